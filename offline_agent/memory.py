"""Free memory of the machine, and of the control group this process is in."""

from __future__ import annotations

import contextlib
from pathlib import Path

_UNKNOWN = 4 << 40  # bytes, where neither the system nor a group sets a limit
_GROUP_FILES = (  # limit and use of the control group's memory, version 2 and 1
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def free_memory() -> int:
    """Return the bytes that this process may still take; 4 TiB where they are not known."""
    free = [_UNKNOWN]
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free.append(int(line.split()[1]) * 1024)
    for most, used in _GROUP_FILES:
        with contextlib.suppress(OSError, ValueError):  # "max" is no number
            free.append(max(0, int(Path(most).read_text()) - int(Path(used).read_text())))
    return min(free)
