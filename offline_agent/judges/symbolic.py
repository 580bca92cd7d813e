"""math-verify in a process of its own: `9**9**9**9` must not hold the program, and nothing short of a kill stops it."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_START_SECONDS = 60.0  # importing sympy on a busy machine


@dataclass(frozen=True, slots=True)
class SymbolicComparison:
    """The outcome of comparing two mathematical texts.

    Attributes:
        equal: Whether they mean the same; False where the answer could not be read at all.
        answer, gold: The expressions that each was read as.
        error: Why they could not be compared; None where they could.
    """

    equal: bool = False
    answer: tuple[str, ...] = ()
    gold: tuple[str, ...] = ()
    error: str | None = None


class _Worker:
    """The process, started when first needed, killed and forgotten when it takes too long."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._ready = False

    def ask(self, question: dict[str, Any], seconds: float) -> dict[str, Any]:
        with self._lock:
            process = self._running()
            assert process.stdin is not None and process.stdout is not None
            try:
                if not self._ready:
                    _line(process, _START_SECONDS)
                    self._ready = True
                process.stdin.write(json.dumps(question) + "\n")
                process.stdin.flush()
                answer: dict[str, Any] = json.loads(_line(process, seconds))
                return answer
            except (OSError, ValueError, TimeoutError) as error:
                self._stop()
                if isinstance(error, TimeoutError):
                    return {"error": f"math-verify took longer than {seconds:g} s"}
                return {"error": f"the math-verify process broke: {error}"}

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._ready = False
            package = str(Path(__file__).resolve().parents[2])
            path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
            self._process = subprocess.Popen(
                [sys.executable, "-m", "offline_agent.judges.symbolic"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
                errors="surrogatepass",
                env={**os.environ, "PYTHONPATH": path},
            )
        return self._process

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    try:
                        pipe.close()
                    except OSError:  # unsent bytes to a dead process
                        continue
        self._process = None


_WORKER = _Worker()


def compare(answer: str, gold: str, seconds: float = 10.0) -> SymbolicComparison:
    """Return whether two mathematical texts mean the same; safe to call from any thread.

    Args:
        answer: Text that holds the answer.
        gold: The right answer; one that cannot be read is an error.
        seconds: Time limit, after which the comparison is an error.
    """
    outcome = _WORKER.ask({"answer": answer, "gold": gold}, seconds)
    if outcome.get("error") is not None:
        return SymbolicComparison(error=str(outcome["error"]))
    return SymbolicComparison(bool(outcome["equal"]), tuple(outcome["answer"]), tuple(outcome["gold"]))


def _line(process: subprocess.Popen[str], seconds: float) -> str:
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if not selector.select(seconds):
            raise TimeoutError
    line = process.stdout.readline()
    if not line:
        raise OSError("it ended without an answer")
    return line


def _serve() -> None:
    from math_verify import parse, verify

    def read(text: str) -> list[Any]:
        # A formula without delimiters is LaTeX all the same; bare text such as "the answer is 4" is read as it is.
        plain = list(parse(text, parsing_timeout=None))
        return plain or list(parse(f"${text}$", parsing_timeout=None))

    print("ready", flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            gold, answer = read(question["gold"]), read(question["answer"])
            if not gold:
                reply: dict[str, Any] = {"error": f"the right answer {question['gold']!r} cannot be read"}
            else:
                equal = bool(answer) and bool(verify(gold, answer, timeout_seconds=None))
                reply = {"equal": equal, "answer": [str(a) for a in answer], "gold": [str(g) for g in gold]}
        except Exception as error:
            reply = {"error": f"math-verify raised {type(error).__name__}: {error}"}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    _serve()
