"""The program that compares mathematical texts inside the sandbox: each in a fork of its own, with limits.

It is sent there as text, after `formulas`, and imports nothing of this package. SymPy evaluates what it reads
(`9^{9^{9^9}}`), so a text may crash, fill or hold the fork, and the next one is compared as before. The fork has no
descriptor but the pipe of its own outcome, and starts no process. A text that came to run code of its own would be in
the sandbox, but could write its outcome, and signal the process that it was forked from.
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

from offline_agent.judges.formulas import Gold, judged  # loaded before this one

_MOST = 1 << 20  # bytes of an outcome
_DESCRIPTORS = 4096  # more than the sandbox lets a process have
_READ = b"+"  # written first where the right answer was read: what fails from there on is the answer's doing


def compared(answer: str, gold: Gold) -> dict[str, Any]:
    """Return whether an answer is the right one, and what each was read as; what fails is a reason for its being none.

    Args:
        answer: Text that holds the answer.
        gold: The right answer, read.
    """
    try:
        equal, read = judged(answer, gold)
        return {"equal": equal, "answer": read, "gold": gold.shown}
    except Exception as error:
        return {"equal": False, "reason": f"the answer made the comparison raise {type(error).__name__}"}


def _alone(own: int) -> None:
    """Close all descriptors but one, the session's socket among them, and start no process or thread from here on."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    os.closerange(3, own)
    os.closerange(own + 1, _DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def _write(own: int, data: bytes) -> None:
    while data:
        data = data[os.write(own, data) :]


def _child(answer: str, gold: str, seconds: float, own: int) -> None:
    """Write the outcome; each half has its own time of the processor, which a busy machine does not shorten."""
    _alone(own)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        wanted = Gold(gold)
    except Exception as error:
        _write(own, json.dumps({"error": f"the right answer {gold!r} cannot be read: {error}"[:500]}).encode())
        return
    _write(own, _READ)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    _write(own, json.dumps(compared(answer, wanted)).encode()[:_MOST])


def judge(answer: str, gold: str, seconds: float, wall: float) -> str:
    """Return the JSON of `compared`, or of an error that is not the answer's, computed by a fork that is killed after.

    Args:
        answer, gold: The texts.
        seconds: Time of the processor for reading the right answer, and again for the comparison.
        wall: Seconds after which the machine counts as too busy.
    """
    mine, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _child(answer, gold, seconds, theirs)
        finally:
            os._exit(0)
    os.close(theirs)
    data, end, late = b"", time.monotonic() + wall, False
    while True:
        left = end - time.monotonic()
        late = left <= 0 or not select.select([mine], [], [], left)[0]
        part = b"" if late else os.read(mine, 1 << 16)
        if not part or len(data) > _MOST:
            break
        data += part
    os.close(mine)
    os.kill(child, signal.SIGKILL)  # it may go on after it closed the pipe
    _, status = os.waitpid(child, 0)
    try:
        json.loads(data.removeprefix(_READ))
        return data.removeprefix(_READ).decode()
    except ValueError:
        pass
    if late:
        return json.dumps({"error": f"the comparison did not end within {wall:g} s: the machine is too busy"})
    slow = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF
    why = f"longer than {seconds:g} s of the processor" if slow else "too much memory, or too deep a text"
    if data.startswith(_READ):
        return json.dumps({"equal": False, "reason": f"the comparison with the answer took {why}"})
    return json.dumps({"error": f"reading the right answer {gold!r} took {why}"})


_FIRST = (
    (r"$\frac{x^2+1}{2}$", r"$\sqrt{2}$"), ("x^2+2x+1", "(x+1)^2"), (r"\sin(x)", r"\cos(x)"), ("x=3", "3"),
    ("1/2", "0.5"), ("(1,2)", "[1,2)"), (r"\{1,2\}", r"\{2,1\}"), (r"50\%", "0.5"), ("2x+3=0", "x=-1.5"),
)  # fmt: skip

for _one, _other in _FIRST:  # once here: forks find the tables of the grammar, and SymPy's caches, made
    compared(_one, Gold(_other))
gc.freeze()  # a collection in a fork would copy every page
