"""Programs that attack the verdict on them: each scores 0 or nothing, and what is judged next is judged as ever."""

from __future__ import annotations

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.math import notebook
from offline_agent.judges import apart
from offline_agent.judges.code import unit_tests
from offline_agent.records import Action, ToolCall
from offline_agent.sandbox import Limits
from tests.helpers.attacks import NAME, ON_THE_MACHINE, ON_THE_VERDICT

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "LIMITS", Limits(cpu_seconds=1, wall_seconds=5.0))
    monkeypatch.setattr(notebook, "LIMITS", Limits(cpu_seconds=1, wall_seconds=5.0, output_kb=64))


RIGHT = f"def {NAME}(x):\n    return [x + 1, 'a']"
TESTS = [f"assert {NAME}({n}) == [{n + 1}, 'a']" for n in range(3)]


@pytest.mark.parametrize("attack", ON_THE_VERDICT)
def test_an_attack_on_the_verdict_fails_every_test(attack: str) -> None:
    verdict = unit_tests(ON_THE_VERDICT[attack], TESTS)
    assert not verdict.score, verdict
    assert unit_tests(RIGHT, TESTS).score == 1.0


@pytest.mark.parametrize("attack", ["a fork bomb", "many megabytes", "an endless loop", "a gigabyte of output",
                                    "kills everything", "a crash", "closes every descriptor"])  # fmt: skip
def test_an_attack_on_the_machine_fails_every_test(attack: str) -> None:
    inside = "\n    ".join(ON_THE_MACHINE[attack].splitlines())
    verdict = unit_tests(f"def {NAME}(x):\n    {inside}\n", TESTS)
    assert verdict.score == 0.0, verdict
    assert unit_tests(RIGHT, TESTS).score == 1.0


def test_a_right_program_that_prints_or_leaves_processes_is_right_all_the_same() -> None:
    noisy = f"import os, time\nprint('x' * 1000)\nif os.fork() == 0:\n    time.sleep(600)\n{RIGHT}"
    assert unit_tests(noisy, TESTS).score == 1.0


def test_a_comparison_of_the_programs_own_objects_asks_them_and_with_plain_values_does_not() -> None:
    program = "class P:\n    def __init__(self, x): self.x = x\n    def __eq__(self, other): return True"
    assert unit_tests(program, ["assert P(1) == P(2)"]).score == 1.0
    assert unit_tests(program, ["assert P(1) == 1", "assert 1 == P(1)", "assert P(1) in [1]"]).score == 0.0


def test_a_test_that_cannot_run_apart_gives_no_score() -> None:
    verdict = unit_tests("def f(g): return g(1)", ["assert f(lambda x: x) == 1"])
    assert verdict.score is None and "no plain value" in str(verdict.error)
    assert unit_tests("x = 1", ["import no_such_module_here"]).score == 0.0
    assert unit_tests("x = 1", ["import os; os._exit(0)"]).score is None


def test_the_environment_scores_an_attack_0_and_goes_on() -> None:
    spec = EnvSpec.load("code")
    task = next(iter(spec.tasks("train")))
    name = task.args["names"][0]
    episode = spec.open()
    for attack in ("its results equal everything", "writes passing results into every descriptor"):
        episode.reset(task)
        source = ON_THE_VERDICT[attack].replace(NAME, name)
        for call in (ToolCall("write", {"code": source}), ToolCall("run_tests", {}), ToolCall("submit", {})):
            result = episode.step(Action("", call=call))
            assert "All" not in str(result.observation)
        assert episode.verdict().score == 0.0
    episode.reset(task)
    for call in (ToolCall("write", {"code": task.args["solution"]}), ToolCall("submit", {})):
        episode.step(Action("", call=call))
    assert episode.verdict().score == 1.0


def test_an_interpreter_that_was_destroyed_is_made_anew() -> None:
    spec = EnvSpec.load("math")
    task = next(iter(spec.tasks("train")))
    episode = spec.open()
    episode.reset(task)
    for attack in ("kills everything", "a crash", "ten gigabytes", "closes every descriptor", "an endless loop"):
        episode.step(Action("", call=ToolCall("python", {"code": ON_THE_MACHINE[attack]})))
        told = episode.step(Action("", call=ToolCall("python", {"code": "6 * 7"}))).observation
        assert told == "42", attack
    assert episode.verdict().score == 0.0
