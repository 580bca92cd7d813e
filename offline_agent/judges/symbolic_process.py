"""The program that compares mathematical texts inside the sandbox: each in a fork of its own, with limits.

It is sent there as text, so it imports nothing of this package. SymPy evaluates what it reads (`9**9**9**9`), and its
parser ends in Python's `eval`, so a text may crash, fill or hold the fork, and the next one is compared as before. The
fork has no descriptor but the pipe of its own outcome, and starts no process. A text that came to run code of its own,
past the parser, would be in the sandbox, but could write its outcome, and signal the process that it was forked from.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import signal
import time
from typing import Any

from math_verify import parse, verify

_MOST = 1 << 20  # bytes of an answer
_DESCRIPTORS = 4096  # more than the sandbox lets a process have


def read(text: str) -> list[Any]:
    """Return the expressions of a text; of one without delimiters, of the formula that it is."""
    plain = list(parse(text, parsing_timeout=None))
    return plain or list(parse(f"${text}$", parsing_timeout=None))


def compared(answer: str, gold: str) -> dict[str, Any]:
    """Return whether two texts mean the same, and what each was read as; or an error."""
    try:
        wanted, given = read(gold), read(answer)
        if not wanted:
            return {"error": f"the right answer {gold!r} cannot be read"}
        equal = bool(given) and bool(verify(wanted, given, timeout_seconds=None))
        return {"equal": equal, "answer": [str(one) for one in given], "gold": [str(one) for one in wanted]}
    except Exception as error:
        return {"error": f"math-verify raised {type(error).__name__}: {error}"[:500]}


def _alone(own: int) -> None:
    """Close all descriptors but one, the session's socket among them, and start no process or thread from here on."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    os.closerange(3, own)
    os.closerange(own + 1, _DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def judge(answer: str, gold: str, seconds: float) -> str:
    """Return the JSON of `compared`, computed by a fork that is killed where it takes too long."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _alone(theirs)
            resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 2))
            data = json.dumps(compared(answer, gold)).encode()[:_MOST]
            while data:
                data = data[os.write(theirs, data) :]
        finally:
            os._exit(0)
    os.close(theirs)
    data, end = b"", time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and select.select([ours], [], [], left)[0]:
        part = os.read(ours, 1 << 16)
        if not part or len(data) > _MOST:
            break
        data += part
    else:
        data = json.dumps({"error": f"math-verify took longer than {seconds:g} s"}).encode()
    os.close(ours)
    os.kill(child, signal.SIGKILL)  # it may go on after it closed the pipe
    _, status = os.waitpid(child, 0)
    try:
        json.loads(data)
        return data.decode()
    except ValueError:
        how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "its own"
        return json.dumps({"error": f"the math-verify process was ended by {how}: too much memory, or too deep a text"})


_FIRST = (
    (r"$\frac{x^2+1}{2}$", r"$\sqrt{2}$"), ("x^2+2x+1", "(x+1)^2"), (r"\sin(x)", r"\cos(x)"), ("x=3", "3"),
    ("1/2", "0.5"), ("(1,2)", "[1,2)"), (r"\{1,2\}", r"\{2,1\}"), (r"50\%", "0.5"), ("2x+3=0", "x=-1.5"),
)  # fmt: skip

for _one, _other in _FIRST:  # once here: forks find the tables of the grammar, and SymPy's caches, made
    compared(_one, _other)
gc.freeze()  # a collection in a fork would copy every page
