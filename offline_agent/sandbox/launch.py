"""Command lines of the sandbox's process: bubblewrap, namespaces of its own, limits alone, or a command of the user."""

from __future__ import annotations

import json
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from offline_agent.sandbox.inside.confinement import WORK

# each after those that it imports
_MODULES = ("kernel", "messages", "grading", "interpreter", "processes", "folders", "confinement", "call", "zygote")
_CAPABILITIES = ("SYS_ADMIN", "SETUID", "SETGID", "SETPCAP", "KILL", "CHOWN", "DAC_OVERRIDE", "SYS_RESOURCE")
_REPLACED = ("/tmp/", "/dev/")  # programs have their own
MOVED = "/packages"
"""The folder of installed packages that lie where programs have a folder of their own, as in a clone below /tmp."""
_FIRST_USER, _RANGE = 1_600_000_000, 400_000  # of user numbers that no system gives out
_BOOT = """
import json, sys, types
def load(sources):
    for name in ('offline_agent', 'offline_agent.sandbox', 'offline_agent.sandbox.inside'):
        module = sys.modules[name] = types.ModuleType(name)
        module.__path__ = []
    for name, source in sources:
        full = 'offline_agent.sandbox.inside.' + name
        made = sys.modules[full] = types.ModuleType(full)
        setattr(module, name, made)
        exec(compile(source, full, 'exec'), made.__dict__)
    return made
load(SOURCES).main(json.loads(sys.argv[1]))
"""


def program() -> str:
    """Return the program that runs inside, as one text: it needs no file there."""
    folder = resources.files("offline_agent.sandbox.inside")
    sources = [(name, (folder / f"{name}.py").read_text(encoding="utf-8")) for name in _MODULES]
    return f"SOURCES = {sources!r}\n{_BOOT}"


def site_packages() -> list[str]:
    """Return the folders of installed packages that programs may import from; inside there are no links."""
    paths = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    return list(dict.fromkeys(os.path.realpath(path) for path in paths if path and os.path.isdir(path)))


def packages() -> list[str]:
    """Return `site_packages` as programs see them: a folder below /tmp has two paths, of which each level has one."""
    found = site_packages()
    places = map(_place, found)
    return list(dict.fromkeys([*(place for place in places if place.startswith(MOVED + "/")), *found]))


def python_environment() -> dict[str, str]:
    """Return the variables with which a command finds this Python and the installed packages."""
    folder = os.path.dirname(os.path.realpath(sys.executable))
    return {"PATH": f"{folder}:/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": ":".join(packages())}


def hidden_python() -> str | None:
    """Return Python's own folder if programs cannot have it where they have namespaces of their own, else None."""
    paths = [os.path.realpath(path) for path in (sys.base_prefix, sys.executable)]
    return next((path for path in paths if path.startswith(_REPLACED)), None)


def _place(path: str) -> str:
    """Return the path inside of a real path outside: another one where programs have a folder of their own."""
    return MOVED + path if path.startswith(_REPLACED) else path


def user_number() -> int:
    """Return the first of 1,024 user numbers for a process that root starts; 0 for other users."""
    return _FIRST_USER + os.getpid() % _RANGE * 1024 if os.getuid() == 0 else 0


def bubblewrap(channel: int) -> list[str]:
    """Return the command under bubblewrap."""
    command = [shutil.which("bwrap") or "bwrap", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    command += ["--unshare-cgroup-try"]
    if os.getuid() != 0:
        command += ["--unshare-user", "--uid", "0", "--gid", "0"]
    command += ["--new-session", "--hostname", "sandbox", "--clearenv", "--cap-drop", "ALL"]
    for capability in _capabilities():
        command += ["--cap-add", f"CAP_{capability}"]
    for path in _parents(place for _, place in binds()):  # bubblewrap gives them the mode that they have outside
        command += ["--perms", "0755", "--dir", path]
    for path, place in binds():
        command += ["--ro-bind", path, place]
    for path, target in links():
        command += ["--symlink", target, path]
    command += ["--proc", "/proc", "--dev", "/dev", "--dir", WORK, "--dir", "/tmp", "--remount-ro", "/"]
    command += ["--setenv", "PYTHONHASHSEED", "0", "--chdir", "/"]
    facts = {"channel": channel, "isolated": True, "user": user_number(), "reading": False, **_shown()}
    return [*command, *_python(facts)]


def _capabilities() -> Iterator[str]:
    """Yield the capabilities of the sandbox's own process; one helps it to see pipes and sockets, where root has it."""
    yield from _CAPABILITIES
    facts = Path("/proc/self/status").read_text()
    if os.getuid() != 0 or int(facts.partition("CapEff:")[2].split()[0], 16) >> 19 & 1:
        yield "SYS_PTRACE"


def namespaces(channel: int) -> list[str]:
    """Return the command that makes namespaces itself."""
    user = -1 if os.getuid() == 0 else os.getuid()
    root = {"user": user, "group": os.getgid(), "binds": list(binds()), "links": dict(links())}
    facts = {"channel": channel, "isolated": True, "user": user_number(), "reading": False, "root": root, **_shown()}
    return _python(facts)


def limits(channel: int) -> list[str]:
    """Return the command without namespaces."""
    # Python's own files must be there for another user: they are not where it lies in root's home
    others = all(os.stat(path).st_mode & 0o001 for path in (sys.base_prefix, *map(str, Path(sys.base_prefix).parents)))
    facts = {"channel": channel, "isolated": False, "user": user_number(), "reading": not others, "confine": True}
    return _python(facts)


def custom(prefix: Sequence[str]) -> list[str]:
    """Return the command of one call behind the user's own, such as `docker run`; it talks on standard streams."""
    facts = {"channel": -1, "isolated": False, "user": _FIRST_USER, "reading": True}
    return [*prefix, "python3", "-s", "-S", "-c", program(), json.dumps(facts)]


def _shown() -> dict[str, Any]:
    return {"binds": list(shown()), "links": dict(links())}


def _python(facts: dict[str, Any]) -> list[str]:
    return [os.path.realpath(sys.executable), "-s", "-S", "-c", program(), json.dumps(facts)]


def shown() -> Iterator[str]:
    """Yield the paths inside of the host's folders and files that programs may read."""
    yield from (place for _, place in binds())


def binds() -> Iterator[tuple[str, str]]:
    """Yield the host's folders and files that programs may read (the system's, Python's), each with its path inside."""
    base = [path for path in ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin") if os.path.isdir(path)]
    base = [path for path in base if not os.path.islink(path)]
    base += [path for path in ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime") if os.path.exists(path)]
    more = [sys.base_prefix, str(Path(os.path.realpath(sys.executable)).parents[1]), *site_packages()]
    chosen: list[str] = []
    for path in [*base, *sorted(map(os.path.realpath, more), key=len)]:
        if not any(path == known or path.startswith(known + "/") for known in chosen):
            chosen.append(path)
    yield from ((path, _place(path)) for path in chosen)


def _parents(paths: Iterable[str]) -> list[str]:
    found = {str(parent) for path in paths for parent in Path(path).parents}
    return sorted(found - {"/"}, key=len)


def links() -> Iterator[tuple[str, str]]:
    """Yield the links of the root folder, such as /bin → usr/bin."""
    for path in ("/lib", "/lib32", "/lib64", "/bin", "/sbin"):
        if os.path.islink(path):
            yield path, os.readlink(path)
