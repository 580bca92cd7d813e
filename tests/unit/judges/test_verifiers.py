from __future__ import annotations

from typing import Any

import pytest

from offline_agent.judges.verifiers import (
    exact_match,
    f1,
    goal_state,
    normalise,
    purchase,
    rows,
    symbolic,
    verifier,
)


def test_normalise() -> None:
    assert normalise("  The “Eiffel”-Tower,\tParis! ") == "“eiffel” tower paris"
    assert normalise("A-ha") == "a ha" and normalise("ﬁve") == "five"


@pytest.mark.parametrize(
    ("answer", "gold", "success"),
    [("The cat.", "cat", True), ("dog", ["cat", "Dog"], True), ("cats", "cat", False), ("", "the", False),
     ("", "A", False), ("the", "A", False), ("A.", "A", True), ("Plan", "plan A", False), ("5", "-5", False),
     ("\u22125", "-5", True), ("c", "C++", False), ("C", "C#", False), ("50", "50%", False), ("A", "A-", False),
     ("5", ".5", False), ("1 2", "1/2", False), ("!", "?!", False), ("**Paris**", "Paris", True),
     ("pre-war", "pre war", True)],
)  # fmt: skip
def test_exact(answer: str, gold: Any, success: bool) -> None:
    verdict = exact_match(answer, gold)
    assert verdict.success is success and verdict.score == float(success) and verdict.evidence["answer"] == answer
    assert f1(answer, gold).success is success


def test_exact_as_written() -> None:
    assert exact_match("Cat", "cat", normalised=False).success is False


def test_no_accepted_answer_is_no_score() -> None:
    verdict = exact_match("cat", [])
    assert verdict.score is None and verdict.success is None and "no accepted answer" in (verdict.error or "")


def test_f1() -> None:
    verdict = f1("tower of eiffel", ["nothing", "the eiffel tower"])
    assert verdict.score == pytest.approx(0.8) and verdict.success is False
    assert verdict.evidence["nearest"] == "the eiffel tower"
    assert f1("tower of eiffel", "eiffel tower", threshold=0.75).success is True
    assert f1("a b b", "b b c").score == pytest.approx(0.8) and f1("", "cat").score == 0.0 and f1("", "").score == 1.0


@pytest.mark.parametrize(
    ("answer", "gold", "equal"),
    [
        (r"\frac{1}{2}", "0.5", True),
        (r"the answer is $\boxed{2\sqrt{3}}$", r"\sqrt{12}", True),
        ("x^2+2x+1", "(x+1)^2", True),
        ("41", "42", False),
        ("no idea", "42", False),
    ],
)
def test_symbolic(answer: str, gold: str, equal: bool) -> None:
    verdict = symbolic(answer, gold, seconds=20)
    assert verdict.error is None and verdict.success is equal


def test_symbolic_that_the_answer_makes_too_slow_is_wrong_and_the_next_one_is_judged() -> None:
    verdict = symbolic("9^{9^{9^9}}", "3", seconds=1)
    assert verdict.score == 0.0 and "longer than 1 s" in verdict.evidence["reason"]
    assert symbolic("3", "3").success is True


def test_symbolic_without_a_right_answer_is_no_score() -> None:
    verdict = symbolic("3", "", seconds=20)
    assert verdict.score is None and "cannot be read" in (verdict.error or "")


@pytest.mark.parametrize("score", [float("nan"), -0.1, 17])
def test_a_score_beyond_0_to_1_is_no_score(score: float) -> None:
    @verifier("1")
    def mine(answer: str) -> tuple[float, bool, dict[str, object]]:
        return score, True, {}

    verdict = mine("x")
    assert verdict.score is None and verdict.success is None and "allowed: from 0 to 1" in str(verdict.error)


def test_what_is_no_table_has_no_right_rows() -> None:
    for got in ("", b"", {}):
        assert rows(got, []).score == 0.0  # type: ignore[arg-type]


def test_a_number_beyond_floats_is_another_one() -> None:
    assert goal_state({"n": 10**400}, {"n": 1.5}).success is False


def test_rows() -> None:
    assert rows([(1, "a"), (2, None)], [(2.0, None), (1, "a")]).success is True
    assert rows([(1,), (1,)], [(1,)]).success is False
    assert rows([(1,), (2,)], [(2,), (1,)], ordered=True).evidence["first_difference"] == 0
    assert rows([(0.1 + 0.2,)], [(0.3,)]).success is True and rows([(0.31,)], [(0.3,)]).success is False
    assert rows([(True,)], [(1,)]).success is True and rows([("1",)], [(1,)]).success is False
    assert rows([(1_000_000_001,)], [(1_000_000_002,)]).success is False
    missing = rows([(1,)], [(1,), (2,)])
    assert missing.evidence["missing"] == [["2"]] and missing.evidence["extra"] == []
    assert rows([(float("nan"),)], [(float("nan"),)]).success is True and rows([], []).success is True


def test_goal_state() -> None:
    goal = {"user": {"name": "Ann", "orders": [1, 2]}, "open": False, "none": {}}
    assert goal_state(goal, goal).success is True
    verdict = goal_state({"user": {"name": "Bob", "orders": [1]}, "open": False, "x": 1, "none": {}}, goal)
    assert verdict.success is False and verdict.score == 0.0
    assert verdict.evidence == {
        "missing": {"user.orders.1": 2}, "changed": {"user.name": ["Bob", "Ann"]}, "extra": {"x": 1}, "differences": 3,
    }  # fmt: skip
    assert goal_state({**goal, "x": 1}, goal, subset=True).success is True
    assert goal_state({**goal, "open": True}, goal, partial=True).score == pytest.approx(4 / 5)
    assert goal_state({**goal, "open": True}, goal, ignore=["open"]).success is True
    assert goal_state({"user": 1, **{k: v for k, v in goal.items() if k != "user"}}, goal, ignore=["user"]).success
    assert goal_state({"n": 1}, {"n": True}).success is False and goal_state({"n": 1.0}, {"n": 1}).success is True
    assert goal_state({"o": {}}, {"o": {"t": 5}}, ignore=["o.t"]).success is True
    assert goal_state({"a": 1}, {}, subset=True).success is True and goal_state({"a": 1}, {}).success is False
    assert goal_state({}, {"none": {}}).success is False and goal_state({}, {}).success is True


def test_purchase() -> None:
    wanted = {"type": "desk lamp", "attributes": ["red", "soft"], "options": {"size": "m"}, "max_price": 20}
    right = {"type": "Desk Lamp", "attributes": ["Soft", "red", "new"], "options": {"size": "M"}, "price": 20}
    assert purchase(right, wanted).score == 1.0 and purchase(right, wanted).success is True
    assert purchase({**right, "price": 20.01}, wanted).score == pytest.approx(3 / 4)
    assert purchase({**right, "attributes": ["red"], "options": {}}, wanted).score == pytest.approx(2 / 4)
    assert purchase({**right, "type": "floor lamp"}, wanted).score == pytest.approx(0.5)
    assert purchase({**right, "type": "sofa"}, wanted).score == 0.0 and purchase(None, wanted).score == 0.0
    assert purchase(right, {**wanted, "type": ["sofa", "lamp"]}).success is True
    assert purchase({"price": 1}, wanted).score is None
