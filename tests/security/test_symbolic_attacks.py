"""Mathematical answers that attack the verifier: none is a success, stops the run, or reaches outside."""

from __future__ import annotations

import json
import os
import threading
import time

import pytest

from offline_agent.judges import symbolic as process
from offline_agent.judges.judge import make_judge
from offline_agent.judges.verifiers import symbolic
from tests.unit.judges.test_judge import played

HOSTILE = {
    "tower": "9^{9^{9^9}}", "factorials": "((9!)!)!", "brackets": "(" * 140 + "1" + ")" * 140,
    "nested": "(" * 5000 + "1" + ")" * 5000, "roots": r"\sqrt{" * 2000 + "2" + "}" * 2000,
    "code": "__import__('os').system('touch escaped')", "zero": "3\0", "surrogate": "\ud800",
}  # fmt: skip


@pytest.mark.slow
def test_a_hostile_answer_is_wrong_and_the_next_answer_is_judged() -> None:
    assert symbolic("3", "3").success is True
    session = process._POOL.idle[-1]
    for name, answer in HOSTILE.items():
        verdict = symbolic(answer, "4", seconds=1)
        assert verdict.score == 0.0 and verdict.success is False and verdict.error is None, (name, verdict)
        slow = "1 s of the processor" in verdict.evidence.get("reason", "")
        assert slow == (name in ("tower", "factorials", "brackets")), name
    assert process._POOL.idle[-1] is session and not session.ended, "no restart"
    judge = make_judge("symbolic", {})
    assert judge is not None and judge(played("42")).success is True


@pytest.mark.slow
def test_a_right_answer_that_cannot_be_compared_is_no_score_whatever_is_answered() -> None:
    for answer in ("84", "((9!)!)!+1", "no idea"):
        verdict = symbolic(answer, "((9!)!)!", seconds=0.5)
        assert verdict.score is None and "0.5 s of the processor" in (verdict.error or ""), answer


@pytest.mark.slow
def test_a_slow_answer_does_not_keep_another_waiting() -> None:
    assert symbolic("3", "3").success is True
    if len(process._POOL.idle) == 1:
        process._POOL.idle.append(process.started())
    ready = len(process._POOL.idle)
    slow = threading.Thread(target=symbolic, args=("((9!)!)!", "5", 4.0))
    slow.start()
    while len(process._POOL.idle) == ready:
        time.sleep(0.01)
    assert symbolic("7/2", "3.5").success is True and slow.is_alive()
    slow.join()


@pytest.mark.slow
def test_what_an_expression_could_run_is_in_the_sandbox_with_a_limit_of_memory() -> None:
    assert symbolic("3", "3", seconds=20).success is True
    session = process._POOL.idle[-1]
    tried = {
        "memory": "x = bytearray(2 << 30)",
        "files": f"open({os.path.abspath(__file__)!r})",
        "network": "import socket; socket.create_connection(('127.0.0.1', 22), 1)",
        "variables": "import os; os.environ['PYTEST_CURRENT_TEST']",
    }
    said = {name: session.ask({"op": "cell", "code": code}, 30)["body"] for name, code in tried.items()}
    assert said["memory"]["raised"] == "MemoryError" and said["variables"]["raised"] == "KeyError"
    assert said["files"]["raised"] in ("FileNotFoundError", "PermissionError") and "raised" in said["network"]


@pytest.mark.slow
def test_the_fork_of_a_comparison_has_no_socket_and_starts_no_process() -> None:
    assert symbolic("3", "3", seconds=20).success is True
    attack = """
import os, sys
def attack(answer, gold):
    held = [n for n in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}')]
    kinds = sorted({os.readlink(f'/proc/self/fd/{n}').partition(':')[0] for n in held})
    try:
        if os.fork() == 0:
            os._exit(0)
        started = True
    except OSError:
        started = False
    return {'kinds': kinds, 'started': started}
module = sys.modules['offline_agent.judges.symbolic_process']
before, module.compared = module.compared, attack
try:
    print(module.judge('1', '1', 10, 10))
finally:
    module.compared = before
"""
    said = process._POOL.idle[-1].ask({"op": "cell", "code": attack}, 30)
    told = json.loads(said["stdout"])
    assert told == {"kinds": ["/dev/null", "pipe"], "started": False}
    assert symbolic("5", "5", seconds=20).success is True


@pytest.mark.slow
def test_a_fork_of_the_run_has_a_session_of_its_own() -> None:
    assert symbolic("3", "3", seconds=20).success is True
    before = process._POOL
    reading, writing = os.pipe()
    with before.free:  # as if another thread were judging
        pid = os.fork()
        if pid == 0:
            os.write(writing, b"other" if process._POOL is not before else b"same")
            os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reading, 16) == b"other" and symbolic("5", "5", seconds=20).success is True


@pytest.mark.slow
def test_several_threads_are_each_told_of_their_own_answer() -> None:
    found: dict[int, bool | None] = {}

    def judge(number: int) -> None:
        found[number] = symbolic(f"{number}/2", str(number / 2 if number % 2 else number), seconds=20).success

    threads = [threading.Thread(target=judge, args=(number,)) for number in range(1, 7)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert found == {number: bool(number % 2) for number in range(1, 7)}


class _Broken:
    """A session that a limit ended, which only the next question shows."""

    ended = closed = False

    def ask(self, *_: object) -> dict[str, None]:
        return {"body": None}

    def close(self) -> None:
        self.closed = True


@pytest.mark.slow
def test_a_session_that_ended_before_it_was_asked_is_replaced_and_the_answer_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Alone catches a right answer without a score, because of what was judged before it."""
    broken = _Broken()
    monkeypatch.setattr(process._POOL, "idle", [broken])
    assert symbolic("11", "11", seconds=20).success is True and broken.closed
