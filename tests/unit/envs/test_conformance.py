"""The suite finds each fault by its own check, and lets a good environment pass."""

import re

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.conformance import check_environment, main
from tests.helpers import hostile_environments as hostile


def failed(cls, seconds=20.0, args=None):
    report = check_environment(EnvSpec(cls, args), tasks=2, max_steps=20, seconds=seconds)
    return {c.check_id: c.evidence for c in report.of("fail")}


def test_an_honest_environment_passes():
    report = check_environment(EnvSpec(hostile.Honest), tasks=3)
    assert report.passed, str(report)
    assert [c.check_id for c in report.of("skip")] == ["turn rewards are numbers", "achieved goals are tasks"]
    assert str(report).endswith("\nHonest: passed") and "the oracle succeeds" in str(report)
    assert "\ntools: pick(n)\n" in str(report) and "begin with the same text" not in str(report)


def test_tasks_that_begin_alike_are_told() -> None:
    class Hidden(hostile.Honest):
        def reset(self, goal: int) -> str:
            super().reset(goal)
            return "Guess the goal."

    assert "tasks played begin with the same text" in str(check_environment(EnvSpec(Hidden), tasks=2))


@pytest.mark.parametrize(
    ("cls", "check", "told"),
    [
        (hostile.RaisesInInit, "reset is deterministic", "no database"),
        (hostile.RaisesInReset, "reset is deterministic", "no world"),
        (hostile.ExitsInTool, "tools can be called", "SystemExit"),
        (hostile.AnswersDifferently, "replay repeats", "seed all chance"),
        (hostile.BeginsDifferently, "reset is deterministic", "begin differently"),
        (hostile.CountsResets, "reset is deterministic", "a second reset"),
        (hostile.StaleReset, "reset is deterministic", "set it False in reset()"),
        (hostile.OverAtOnce, "reset is deterministic", "leave tasks out that are over"),
        (hostile.SharesState, "copies are independent", "share state"),
        (hostile.Uncopyable, "copies are independent", "replay_only"),
        (hostile.VerifierRaises, "get_reward at any time", "ZeroDivisionError"),
        (hostile.VerifierFickle, "get_reward at any time", "asked twice"),
        (hostile.Rewards, "the oracle succeeds", "must be in [0, 1]"),
        (hostile.RewardsNothing, "the empty policy fails", "answering nothing scored 1.0"),
        (hostile.NeverEnds, "the empty policy fails", "did not end"),
        (hostile.Earns, "turn rewards are numbers", "turn_reward is 2.0; allowed: a number in [0, 1]"),
        (hostile.EarnsUnsaid, "turn rewards are numbers", "None after every call"),
        (hostile.EarnsFickle, "turn rewards are numbers", "asked twice"),
        (hostile.EarnsTooEarly, "turn rewards are numbers", "turn_reward raised TypeError"),
        (hostile.OverlappingSplits, "splits are disjoint", "is in 'train' and in 'validation'"),
    ],
)
def test_each_fault_is_found(cls, check, told):
    found = failed(cls)
    assert check in found, found
    assert told in found[check]


def test_what_differs_is_shown_with_how_to_mend_it() -> None:
    told = str(check_environment(EnvSpec(hostile.AnswersDifferently), tasks=1))
    assert "seed all chance, and keep no state elsewhere; call 1, " in told and told.count("(call ") >= 2, told


def test_a_hanging_environment_does_not_hang_the_suite():
    found = failed(hostile.HangsInReset, seconds=0.3, args={"seconds": 5.0})
    assert list(found) == ["costs"] and "does not return" in found["costs"]
    assert re.search(r"not done after 0.3 s, and is in .*hostile_environments\.py:\d+, reset", found["costs"])


def test_an_environment_without_tasks_ends_the_checks():
    class Empty(hostile.Honest):
        @classmethod
        def tasks(cls, split):
            return []

    report = check_environment(EnvSpec(Empty))
    assert [c.check_id for c in report.findings] == ["tasks"] and not report.passed
    assert "has no tasks" in report.of("fail")[0].evidence


def test_a_demonstrator_that_raises_is_reported():
    class Bad(hostile.Honest):
        @classmethod
        def demonstrate(cls, task, messages, rng, noise):
            raise KeyError("lost")

    assert "KeyError" in failed(Bad)["the oracle succeeds"]


@pytest.mark.parametrize(("error", "status"), [(ValueError, "skip"), (TypeError, "fail")])
def test_a_tool_that_the_expert_leaves_alone_may_refuse_but_not_break(error, status):
    class Picky(hostile.Honest):
        def look_up(self, number: int) -> str:
            """Look something up.

            Args:
                number: Its number.
            """
            raise error(f"there is no {number}")

    found = check_environment(EnvSpec(Picky), tasks=1, max_steps=20).findings
    (check,) = [one for one in found if one.check_id == "each tool succeeds"]
    assert check.status == status and "look_up" in check.evidence


def test_a_command_with_an_equals_sign_is_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nowhere:env A=b server", "tasks=1"]) == 2
    assert "nowhere" in capsys.readouterr().err
