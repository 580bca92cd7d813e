"""A scripted agent: carries out the task's own solution, part by part, and submits; with noise it errs."""

from __future__ import annotations

import base64
import random
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from functools import lru_cache

from offline_agent.errors import ConfigError
from offline_agent.records import Message, call_message
from offline_agent_environments.adapters.harbor.tasks import HarborTask

_CARRIED = re.compile(
    r"^\s*(cd|pushd|popd|export|source|\.|alias|trap|exec|set|shopt|declare|local|function|\w+\+?=|\w+\s*\(\))(\s|$|\S)",
    re.M,
)  # what a later command of the same shell would miss
_LOOKS = ("ls -A", "pwd", "find . -maxdepth 2 -not -path '*/.git*' | sort | head -50")
_NUMBER = re.compile(r"\b\d+\b")
_SOLUTION = re.compile(r"""(?<![\w.~})*/-])(?<![\w.})]["'])/solution(?![\w.-])""")  # the folder, and no part of a path


def next_turn(task: HarborTask, messages: Sequence[Message], rng: random.Random, noise: float) -> Message:
    """Return the next assistant message.

    Args:
        task: The task.
        messages: The conversation so far; the parts of the solution that it carried out are done.
        rng: The source of its errors.
        noise: Probability, in [0, 1], that it errs: it submits too early, leaves a part of the solution out, writes a
            part wrongly, or only looks around. It writes a part anew after it wrote it wrongly.

    Raises:
        ConfigError: The task has no solution.
    """
    if "solve.sh" not in task.solution:
        raise ConfigError(f"task {task.name}: it has no solution/solve.sh, so nothing can demonstrate it")
    said = [made["function"]["arguments"].get("command", "") for message in messages
            for made in message.get("tool_calls") or ()]  # fmt: skip
    every = parts(task)
    done = max((place + 1 for place, part in enumerate(every) if part in said), default=0)
    left = every[done:]
    if not left:
        return call_message("submit", {})
    if noise > 0 and rng.random() < noise:
        error = rng.choice(("submit", "skip", "wrong", "wrong", "look"))
        if error == "look":
            return call_message("run", {"command": rng.choice(_LOOKS)})
        if error == "skip" and len(left) > 1:
            return call_message("run", {"command": left[1]})
        if error == "wrong" and (changed := _wrong(left[0], rng)) != left[0]:
            return call_message("run", {"command": changed})
        return call_message("submit", {})
    return call_message("run", {"command": left[0]})


def parts(task: HarborTask) -> tuple[str, ...]:
    """Return the commands that solve a task: the paragraphs of its script, or the whole where they need one shell."""
    script = task.solution["solve.sh"].data
    assert isinstance(script, bytes)
    others = {name: entry.data for name, entry in task.solution.items()
              if name != "solve.sh" and isinstance(entry.data, bytes)}  # fmt: skip
    found = _parts(script.decode("utf-8", "replace"))
    return found if not others else (_with_files(found, others),)


def _with_files(found: Sequence[str], others: Mapping[str, bytes]) -> str:
    """Return one command that writes the other files of a solution and carries it out; /solution cannot be written."""
    lines = []
    for name, data in sorted(others.items()):
        path = shlex.quote(f"/tmp/solution/{name}")
        text = base64.b64encode(data).decode()
        lines.append(f'mkdir -p "$(dirname {path})" && echo {text} | base64 -d > {path}')
    body = _SOLUTION.sub("/tmp/solution", "\n\n".join(found))
    return "\n".join([*lines, body])


@lru_cache(maxsize=512)
def _parts(script: str) -> tuple[str, ...]:
    lines = script.splitlines()
    head = 0
    while head < len(lines) and (not lines[head].strip() or lines[head].startswith(("#", "set -"))):
        head += 1
    body = "\n".join(lines[head:]).strip()
    if _CARRIED.search(body):
        return (body,)
    found: list[str] = []
    open_part = ""
    for paragraph in re.split(r"\n[ \t]*\n", body):
        open_part = f"{open_part}\n\n{paragraph}" if open_part else paragraph
        if _complete(open_part):
            found.append(open_part)
            open_part = ""
    kept = [part for part in found if any(line.strip() and not line.lstrip().startswith("#")
                                          for line in part.splitlines())]  # fmt: skip
    return (body,) if open_part or not kept else tuple(kept)


def _complete(part: str) -> bool:
    """Return whether bash reads a text as whole commands; it does not carry them out."""
    try:
        done = subprocess.run(["bash", "-n"], input=part, text=True, capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and not done.stderr


def _wrong(part: str, rng: random.Random) -> str:
    """Return a part with a number changed or a line left out; the part itself where neither can be."""
    numbers = list(_NUMBER.finditer(part))
    lines = part.splitlines()
    if numbers and (len(lines) == 1 or rng.random() < 0.5):
        chosen = rng.choice(numbers)
        value = max(0, int(chosen[0]) + rng.choice((-1, 1)))
        return f"{part[: chosen.start()]}{value}{part[chosen.end() :]}"
    if len(lines) > 1:
        gone = rng.randrange(len(lines))
        return "\n".join(line for place, line in enumerate(lines) if place != gone)
    return part
