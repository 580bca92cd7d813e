"""Ranking of attempts by comparing them: swapped orders, ties, errors, and what the verdicts say."""

from __future__ import annotations

import itertools

import pytest

from offline_agent.errors import ConfigError
from offline_agent.judges.judge import make_judge
from offline_agent.judges.ranking import RELATIVE, rank
from offline_agent.preferences.dataset.filters import RejectionFilter
from offline_agent.records import Action, Context, Step, Task, Trajectory, Verdict

ROOT = Context(Task("t", "train", {}), "", (), "go")


def attempt(text: str, verdict: Verdict | None = None) -> Trajectory:
    action = Action(text)
    return Trajectory(ROOT.child(action, None), (Step(action, text, None),), verdict, True, False, "rollout")


def grade(one: Trajectory) -> int:
    return int(one.steps[-1].action.text)


def better(first: Trajectory, second: Trajectory) -> float | None:
    return 0.5 + (grade(first) - grade(second)) / 100


def scores(values: list[int], compare: object = better) -> list[tuple[float | None, bool | None]]:
    found = rank([attempt(str(value)) for value in values], compare, "mine", "2")  # type: ignore[arg-type]
    return [(verdict.score, verdict.success) for verdict in found]


def test_the_score_is_the_share_of_the_others_that_an_attempt_beats() -> None:
    assert scores([3, 1, 2, 4]) == [(2 / 3, True), (0.0, False), (1 / 3, False), (1.0, True)]
    assert scores([2, 1, 2, 3]) == [(None, None), (0.0, False), (None, None), (1.0, True)]  # one won, one lost, one tie
    assert scores([5]) == [(None, None)]
    (verdict, _) = rank([attempt("1"), attempt("2")], better, "mine", "2")
    assert (verdict.verifier, verdict.version, verdict.evidence[RELATIVE]) == ("mine", "2", True)
    assert [verdict.evidence[name] for name in ("wins", "losses", "ties")] == [0, 1, 0]


def test_a_judge_that_prefers_a_place_decides_nothing() -> None:
    assert scores([1, 2, 3], lambda first, second: 1.0) == [(None, None)] * 3
    # It prefers the first place unless the second attempt is better by far.
    assert scores([1, 2, 9], lambda first, second: float(grade(second) - grade(first) < 4)) == [
        (0.25, False), (0.25, False), (1.0, True)]  # fmt: skip


def test_a_comparison_that_fails_is_no_loss() -> None:
    def broken(first: Trajectory, second: Trajectory) -> float | None:
        if "2" in (first.steps[0].action.text, second.steps[0].action.text):
            raise ValueError("no answer")
        return better(first, second)

    one, two, three = rank([attempt("1"), attempt("2"), attempt("3")], broken, "mine", "1")
    assert (one.success, three.success, two.score) == (False, True, None) and "no answer" in str(two.error)
    assert scores([1, 2], lambda first, second: None) == [(None, None)] * 2
    (far, _) = rank([attempt("1"), attempt("2")], lambda first, second: 7.0, "mine", "1")
    assert "compare returned 7.0; it must be in [0, 1]" in str(far.error)


def test_many_attempts_are_compared_with_eight_others_each() -> None:
    asked: set[tuple[int, int]] = set()

    def counted(first: Trajectory, second: Trajectory) -> float | None:
        asked.add((grade(first), grade(second)))
        return better(first, second)

    found = scores(list(range(30)), counted)
    assert len(asked) == 30 * 8 and all((other, one) in asked for one, other in asked)
    assert all(sum(one == number for one, _ in asked) == 8 for number in range(30))
    assert len(scores(list(range(9)))) == 9 and len(list(itertools.combinations(range(9), 2))) == 36
    assert found[29] == (1.0, True) or found[29][1] is not None


def test_a_relative_success_is_no_verified_one() -> None:
    kept, refusals = RejectionFilter().select([attempt("1", Verdict(1.0, True, "m", evidence={RELATIVE: True})),
                                               attempt("2", Verdict(1.0, True, "m"))], "tree")  # fmt: skip
    assert [one.steps[0].action.text for one in kept] == ["2"]
    assert "better than other attempts" in refusals[0].reason


class OnlyCompares:
    def compare(self, first: Trajectory, second: Trajectory) -> float | None:
        return better(first, second)


class Neither:
    pass


def test_a_judge_may_compare_and_not_judge_one_alone() -> None:
    judge = make_judge(f"{__file__}:OnlyCompares", {})
    assert judge is not None and judge.compare is not None
    assert "cannot judge one alone" in str(judge(attempt("1")).error)
    with pytest.raises(ConfigError, match="compare\\(self, first, second\\)"):
        make_judge(f"{__file__}:Neither", {})
    plain = make_judge("exact_match", {"gold": "1"})
    assert plain is not None and plain.compare is None
