"""Programs that attack the verdict on them: each scores 0 or nothing, and what is judged next is judged as ever."""

from __future__ import annotations

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.math import env as math_env
from offline_agent.judges import code
from offline_agent.judges.code import unit_tests
from offline_agent.records import Action, ToolCall
from offline_agent.sandbox import Limits
from tests.helpers.attacks import NAME, ON_THE_MACHINE, ON_THE_VERDICT

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "LIMITS", Limits(cpu_seconds=1, wall_seconds=5.0))
    monkeypatch.setattr(math_env, "LIMITS", Limits(cpu_seconds=1, wall_seconds=5.0, output_kb=64))


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


AGREES = ON_THE_VERDICT["its results agree with every operator"]


@pytest.mark.parametrize("test", [
    "assert abs({f}(3) - 7) < 1e-6", "assert {f}(3) < 4", "assert 4 > {f}(3)", "assert 5 in {f}(3)",
    "assert {f}(3) != 4", "assert {f}(3) % 7 == 0", "assert {f}(3)", "assert not {f}(3) == 4", "assert {f}(3) in [7]",
    "assert {f}(1) == {f}(2)",
    "import math\nassert math.isclose({f}(3), 0.5)", "import numpy\nassert numpy.allclose({f}(3), [0.5])",
    "assert all(map(lambda x: {f}(x, 'stop') == 1, range(3)))",
])  # fmt: skip
def test_an_object_that_agrees_with_every_operator_passes_no_test(test: str) -> None:
    verdict = unit_tests(AGREES, [test.format(f=NAME)], names=[NAME])
    assert verdict.score == 0.0 and "AssertionError" not in verdict.evidence["error"], verdict


def test_values_of_numpy_and_parts_of_objects_are_compared_as_values() -> None:
    program = (
        "import numpy\nclass P:\n    def __init__(self, x): self.x = [x]\n    def __len__(self): return 3\n"
        "    def __iter__(self): yield 1\ndef f(): return numpy.arange(4.0)[1:]\ndef g(): return numpy.float32(0.1)\n"
        "def h(): return numpy.int64(2) > 1"
    )
    tests = [
        "import numpy\nassert f().shape == (3,) and (f() == numpy.array([1, 2, 3])).all()",
        "import numpy\nassert numpy.allclose(f(), [1, 2, 3])",
        "assert g() == 0.1 and type(g()).__name__ == 'float32' and h()",
        "assert P(1).x == [1] and len(P(1)) == 3 and list(P(1)) == [1] and 1 in P(1)",
    ]
    verdict = unit_tests(program, tests)
    assert verdict.score == 1.0, verdict


@pytest.mark.parametrize(
    ("test", "answer"),
    [("assert sum(range({f}(3))) == 3", "10**12"), ("assert {f}(abs) == 3", "3"), ("assert {f}({f}) == 3", "")],
)
def test_no_score_cannot_be_chosen(test: str, answer: str) -> None:
    program = f"def {NAME}(x): return {answer}" if answer else "x = 1"
    test = test.format(f=NAME)
    verdict = unit_tests(program, [test], names=[NAME], solution=f"def {NAME}(x): return 3")
    assert verdict.score == (None if "abs" in test else 0.0), verdict


@pytest.mark.parametrize("part", ["value", "raised"])
def test_an_answer_of_many_levels_is_the_programs_fault(part: str) -> None:
    text = f'{{"{part}": ' + "[" * 988 + "]" * 988 + "}"
    program = (
        f"import os, struct\nt = {text!r}.encode()\nfor fd in range(3, 64):\n"
        "    try: os.write(fd, struct.pack('>I', len(t)) + t)\n    except OSError: pass\n"
    )
    assert unit_tests(program, TESTS).score == 0.0


def test_a_test_that_cannot_run_apart_gives_no_score() -> None:
    verdict = unit_tests("def f(g): return g(1)", ["assert f(lambda x: x) == 1"])
    assert verdict.score is None and "no plain value" in str(verdict.error)
    assert unit_tests("x = 1", ["import no_such_module_here"]).score == 0.0
    assert unit_tests("x = 1", ["import os; os._exit(0)"]).score is None


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
