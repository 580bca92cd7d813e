"""Dockerfiles as steps that need no container: which instructions are carried out, and why others are refused."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from offline_agent.sandbox.calls import place_fault
from offline_agent.store.files import read_text
from offline_agent_environments.adapters.harbor.workspace import HOME, split

SYSTEM = "/usr/local/bin:/usr/bin:/bin"
"""PATH of the sandbox."""
_NO_EFFECT = frozenset(("CMD", "EXPOSE", "LABEL", "MAINTAINER", "STOPSIGNAL", "HEALTHCHECK"))
_ROOT = ("root", "0", "0:0", "root:root")
_RESERVED = ("/tests", "/solution", "/logs")
LOADERS = frozenset(
    ("LD_PRELOAD", "LD_LIBRARY_PATH", "BASH_ENV", "ENV", "PYTHONHOME", "PYTHONSTARTUP", "PYTEST_ADDOPTS",
     "PYTEST_PLUGINS", "HOME")
)  # fmt: skip
_PROGRAMS = {
    "ubuntu": "bash", "debian": "bash", "buildpack-deps": "gcc", "bash": "bash", "alpine": "sh", "busybox": "sh",
    "python": "python3", "gcc": "gcc", "node": "node", "golang": "go", "rust": "cargo", "perl": "perl", "ruby": "ruby",
    "php": "php", "openjdk": "java", "eclipse-temurin": "java", "maven": "mvn", "r-base": "R", "julia": "julia",
    "postgres": "postgres", "mysql": "mysqld", "redis": "redis-server", "nginx": "nginx",
}  # fmt: skip
_NEEDS = {
    "the network": (
        "apt-get", "apt", "aptitude", "apk", "yum", "dnf", "microdnf", "pacman", "pip", "pip3", "pipx", "uv", "uvx",
        "conda", "mamba", "npm", "npx", "yarn", "pnpm", "gem", "cpan", "curl", "wget", "ssh", "scp", "rsync",
    ),
    "rights or services of a container": (
        "sudo", "su", "useradd", "adduser", "groupadd", "chown", "chgrp", "chroot", "mount", "service", "systemctl",
        "update-rc.d", "docker", "ldconfig", "locale-gen", "dpkg", "dpkg-reconfigure", "update-alternatives",
    ),
}  # fmt: skip
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
TOP = re.compile(r"(?<![\w.$}~*-])/([A-Za-z0-9_][\w.-]*)")


@dataclass(frozen=True)
class Step:
    """An instruction that is carried out.

    Attributes:
        line: Its line in the Dockerfile.
        said: Its text.
        workdir: The folder that it is carried out in.
        env: The variables at that time.
        run: The command; () = it copies.
        sources: Paths on this machine to copy.
        target: Absolute path that they are copied to.
        into: The target is a folder that they are put in.
        mode: Mode bits of the copies; None = their own.
    """

    line: int
    said: str
    workdir: str
    env: Mapping[str, str]
    run: tuple[str, ...] = ()
    sources: tuple[Path, ...] = ()
    target: str = ""
    into: bool = False
    mode: int | None = None


@dataclass
class Image:
    """What a Dockerfile makes.

    Attributes:
        name: The image that it begins with, which is not fetched.
        workdir: The folder that commands begin in.
        env: Variables beside PATH and HOME.
        steps: Instructions to carry out, in order.
        places: Top folders that they write.
        faults: Why it cannot be made here, each with its line.
    """

    name: str = ""
    workdir: str = "/app"
    env: dict[str, str] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    places: set[str] = field(default_factory=lambda: {"/app", "/tmp", HOME})
    faults: list[str] = field(default_factory=list)


class _Refused(Exception):
    """An instruction that is not carried out; the argument says why."""


def read(context: Path, path: str, images: Collection[str]) -> Image:
    """Return what the Dockerfile of a folder makes.

    Args:
        context: The folder that files are copied from.
        path: The value of PATH here, which `ENV PATH=...:$PATH` may extend.
        images: Names of images, without tag, whose programs the user says are all here.
    """
    image, known = Image(), {"PATH": path, "HOME": HOME}
    try:
        lines = list(_instructions(read_text(context / "Dockerfile")))
    except (OSError, UnicodeError) as error:
        return Image(faults=[f"Dockerfile: {error}"])
    for line, word, rest in lines:
        try:
            _carry(image, known, context, images, line, word, rest)
        except (_Refused, ValueError, OSError) as error:
            image.faults.append(f"Dockerfile, line {line}: {word} {rest[:80]}: {error}")
    if not image.name and not image.faults:
        image.faults.append("Dockerfile: it has no FROM")
    image.places |= {split(image.workdir)[0]}
    image.faults += [f"Dockerfile: {fault}" for place in sorted(image.places)
                     if (fault := place_fault(place, image.places - {place}))]  # fmt: skip
    return image


def network_words(script: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, program and what it needs, for the programs of a shell script that cannot work in the sandbox."""
    needs = {program: need for need, programs in _NEEDS.items() for program in programs}
    for number, line in enumerate(script.splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue
        for part in re.split(r"&&|\|\||[;|&(){}`]|\bthen\b|\bdo\b|\belse\b", line):
            words = [word for word in part.split() if not re.match(r"^\w+=", word)]
            while words and words[0] in ("exec", "time", "nohup", "env", "command", "if", "!", "while"):
                words = words[1:]
            program = PurePosixPath(words[0]).name if words else ""
            if program in ("python", "python3") and words[1:3] == ["-m", "pip"]:
                program = "pip"
            if program == "git" and len(words) > 1 and words[1] in ("clone", "fetch", "pull") and "://" in part:
                yield number, "git " + words[1], "the network"
            elif program in needs:
                yield number, program, needs[program]


def image_fault(name: str, images: Collection[str]) -> str | None:
    """Return why an image's programs are not to be had here; None where they are."""
    bare = re.sub(r":[^/]*$", "", name.partition("@")[0])
    short = bare.rpartition("/")[2]
    if bare in images or name in images or name == "scratch":
        return None
    if short not in _PROGRAMS or ("/" in bare and not bare.startswith(("docker.io/library/", "library/"))):
        return (
            f"the image {name!r} is not known, and containers are not started; where this machine has the programs "
            f"that the task needs, say so: env.images=[{bare}]"
        )
    program = _PROGRAMS[short]
    if shutil.which(program, path=SYSTEM) is None:
        return f"the image {name!r} has {program!r}, which is not installed in {SYSTEM}; install it"
    return None


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, keyword and the rest of each instruction; comments and continued lines are joined."""
    parts: list[str] = []
    began = 0
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if not line.lstrip().startswith("#") and (line.strip() or not parts):
            began = began or number
            parts.append(line.rstrip().removesuffix("\\"))
            if line.rstrip().endswith("\\") and number < len(lines):
                continue
        elif number < len(lines):
            continue
        if whole := "".join(parts).strip():
            word, _, rest = whole.partition(" ")
            yield began, word.upper(), rest.strip()
        parts, began = [], 0


def _carry(
    image: Image, known: dict[str, str], context: Path, images: Collection[str], line: int, word: str, rest: str
) -> None:
    """Add one instruction to an image; raises _Refused where it cannot be carried out."""
    if word in _NO_EFFECT:
        return
    if "<<" in rest and word in ("RUN", "COPY", "ADD"):
        raise _Refused("here-documents are not carried out; put the text in a file")
    if word == "FROM":
        if image.name:
            raise _Refused("builds of several stages are not carried out")
        image.name = _expanded(re.sub(r"^(--platform=\S+\s+)+", "", rest), known).split()[0]
        if fault := image_fault(image.name, images):
            raise _Refused(fault)
    elif word == "WORKDIR":
        image.workdir = _absolute(_expanded(rest.strip("\"'"), known), image.workdir)
        image.places.add(_place(image.workdir))
        image.steps.append(Step(line, f"WORKDIR {rest}", image.workdir, {}))
    elif word == "ARG":
        for one in shlex.split(rest):
            name, equal, value = one.partition("=")
            if equal and name in LOADERS:
                raise _Refused(f"{name} would change how programs are loaded")
            if equal and name not in image.env and name != "PATH":  # ENV counts for more
                known[name] = _expanded(value, known)
    elif word == "ENV":
        for name, value in _pairs(rest):
            if name in LOADERS:
                raise _Refused(f"{name} would change how the verifier's programs are loaded")
            image.env[name] = known[name] = _expanded(value, known)
    elif word in ("COPY", "ADD"):
        image.steps.append(_copy(image, known, context, line, word, rest))
    elif word == "RUN":
        image.steps.append(_run(image, known, line, rest))
    elif not (word == "VOLUME" or (word == "SHELL" and "bash" in rest) or (word == "USER" and rest in _ROOT)):
        raise _Refused("it is not carried out")


def _run(image: Image, known: Mapping[str, str], line: int, rest: str) -> Step:
    if rest.startswith("--"):
        raise _Refused("options of RUN are not carried out")
    listed = rest.startswith("[")
    argv = tuple(map(str, json.loads(rest))) if listed else ("bash", "-c", f"umask 022; {rest}")
    for _, program, need in network_words(shlex.join(argv) if listed else rest):
        raise _Refused(f"{program} needs {need}, which the sandbox does not have")
    image.places |= {f"/{top}" for top in TOP.findall(rest)
                     if f"/{top}" not in _RESERVED and place_fault(f"/{top}", image.places) is None}  # fmt: skip
    return Step(line, f"RUN {rest}", image.workdir, dict(known), run=argv)


def _copy(image: Image, known: Mapping[str, str], context: Path, line: int, word: str, rest: str) -> Step:
    if (context / ".dockerignore").exists():
        raise _Refused("environment/.dockerignore is not carried out; remove it")
    words = [str(w) for w in json.loads(rest)] if rest.startswith("[") else shlex.split(rest)
    mode = None
    while words and words[0].startswith("--"):
        option, _, value = words.pop(0).partition("=")
        if option == "--chmod":
            mode = int(value, 8)
        elif option != "--chown":
            raise _Refused(f"{option} is not carried out")
    words = [_expanded(one, known) for one in words]
    if len(words) < 2:
        raise _Refused("it needs a source and a target")
    sources: list[Path] = []
    for one in words[:-1]:
        if "://" in one or one.startswith("git@"):
            raise _Refused(f"{one} needs the network, which the sandbox does not have")
        if ".." in PurePosixPath(one).parts:
            raise _Refused(f"{one} leaves environment/")
        relative = one.strip("/") or "."
        found = [context] if relative == "." else sorted(context.glob(relative))
        if not found:
            raise _Refused(f"there is no environment/{relative}")
        for path in found:
            if not path.resolve().is_relative_to(context.resolve()):
                raise _Refused(f"{one} leaves environment/")
            if word == "ADD" and re.search(r"\.(tar|tgz|tbz2?|txz|tar\.\w+)$", path.name):
                raise _Refused(f"{one} is an archive, which is not unpacked; put the files in environment/")
        sources += found
    target = _absolute(words[-1], image.workdir)
    image.places.add(_place(target))
    into = words[-1].endswith(("/", "/.")) or words[-1] == "." or len(sources) > 1
    return Step(line, f"{word} {rest}", image.workdir, {}, sources=tuple(sources), target=target, into=into, mode=mode)


def _place(path: str) -> str:
    place, _ = split(path)
    if place in _RESERVED:
        raise _Refused(f"{place} is the verifier's")
    if fault := place_fault(place):
        raise _Refused(fault)
    return place


def _absolute(path: str, workdir: str) -> str:
    return "/" + os.path.normpath(PurePosixPath(workdir, path)).strip("/")


def _pairs(rest: str) -> Iterator[tuple[str, str]]:
    words = shlex.split(rest)
    if words and "=" not in words[0]:
        yield words[0], rest.partition(" ")[2].strip()
        return
    for word in words:
        name, equal, value = word.partition("=")
        if not equal:
            raise _Refused(f"{word!r} has no value")
        yield name, value


def _expanded(text: str, known: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name not in known:
            raise _Refused(f"the variable {name} is not set before")
        return known[name]

    if re.search(r"\$\{\w+[^\w}]", text):
        raise _Refused("only $NAME and ${NAME} are replaced")
    return _VARIABLE.sub(value, text)
