"""Subgoals of a planner: what it is shown, which proposals are refused, and that predicates say what is reached."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.play import play
from offline_agent.errors import ConfigError
from offline_agent.judges.judge import Judge
from offline_agent.judges.models.planning import load_predicates
from offline_agent.policies.base import Proposals, ProposeRequest
from offline_agent.policies.scripted import NoisyPolicy, OraclePolicy
from offline_agent.records import Action, Context, Trajectory
from tests.unit.judges.test_judge import made

HERE = "tests.unit.judges.test_planning:"
SHOP = "examples.shop_predicates:PREDICATES"

asked: list[list[dict[str, str]]] = []
plan: list[Any] = []


@pytest.fixture(autouse=True)
def clean() -> None:
    asked.clear()
    plan.clear()


def ask(messages: Sequence[Any], seed: int) -> str:
    """Answer with the plan."""
    asked.append([dict(message) for message in messages])
    return json.dumps({"subgoals": plan})


def goal(predicate: str, **arguments: Any) -> dict[str, Any]:
    return {"predicate": predicate, "arguments": arguments}


def judge(**args: Any) -> Judge:
    return made("planned", **{"predicates": SHOP, "ask": HERE + "ask", **args})


def untyped(trajectory: Trajectory, kind) -> bool:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """Says no type."""
    return True


def silent(trajectory: Trajectory, kind: str) -> bool:
    return True


BAD = (untyped, silent)
NONE: tuple[Any, ...] = ()


@pytest.fixture(scope="module")
def shop() -> EnvSpec:
    return EnvSpec.load("shop")


def episode(spec: EnvSpec, policy: Any = None, most: int = 15, number: int = 0) -> Trajectory:
    """Return an episode of a policy at a train task."""
    task = [task for _, task in zip(range(number + 1), spec.tasks("train"), strict=False)][-1]
    policy = policy or OraclePolicy(spec.demonstrate)

    def choose(context: Context) -> Action:
        answer = policy.propose([ProposeRequest(context, (1,), 1.0)])[0]
        assert isinstance(answer, Proposals)
        return answer.actions[0]

    one = spec.open()
    try:
        played = play(one, task, choose, most)
    finally:
        one.close()
    return Trajectory(played.context, tuple(played.steps), played.verdict, True, False, "rollout")


def test_accepted_subgoals_are_checked_on_the_state_and_say_when_they_were_reached(shop: EnvSpec) -> None:
    done = episode(shop)
    wanted = done.task.args
    plan.extend([
        goal("listed", kind=wanted["kind"]), goal("opened", kind=wanted["kind"], attribute=wanted["attributes"][0]),
        goal("affordable", most=wanted["max_price"]), goal("bought", kind="no such thing"),
        goal("bought", kind=wanted["kind"]),
    ])  # fmt: skip
    verdict = judge(outcome=0.6)(done)
    reached = verdict.evidence["reached_at"]
    turns = [reached[name] for name in verdict.evidence["plan"]]
    assert len(turns) == 5 and turns[3] is None and turns[0] < turns[1] < turns[4] == len(done.steps)
    assert verdict.success is True and verdict.score == pytest.approx(0.6 + 0.4 * 4 / 5)
    failed = Trajectory(done.context.lineage()[2], done.steps[:2], None, False, False, "rollout")
    assert judge()(failed).score is None, "there is no outcome"


def test_a_failure_gets_its_share_and_never_as_much_as_a_success(shop: EnvSpec) -> None:
    for number in range(6):
        done = episode(shop, NoisyPolicy(shop.demonstrate, 0.9), number=number)
        plan[:] = [goal("affordable", most=1000)]
        verdict = judge()(done)
        assert done.verdict is not None
        reached = next(iter(verdict.evidence["reached_at"].values())) is not None
        assert verdict.score == 0.5 * bool(done.verdict.success) + 0.5 * reached


def test_what_is_no_call_of_a_known_predicate_is_refused_with_its_reason(shop: EnvSpec) -> None:
    done = episode(shop)
    plan.extend([
        goal("bought", kind=done.task.args["kind"]), goal("bougth", kind="x"), goal("bought"), goal("bought", kind=3),
        goal("bought", kind="x", price=2), goal("affordable", most="12"), goal("bought", kind=done.task.args["kind"]),
        goal("__import__", name="os"),
    ])  # fmt: skip
    evidence = judge()(done).evidence
    assert len(evidence["plan"]) == 1
    reasons = [one["reason"] for one in evidence["refused"]]
    for reason, told in zip(reasons, (
        "Did you mean 'bought'", "kind: Field required", "kind: Input should be a valid string",
        "price: Extra inputs", "most: Input should be a valid integer", "there already", "no predicate '__import__'",
    ), strict=True):  # fmt: skip
        assert told in reason
    assert evidence["refused"][0]["proposed"] == goal("bougth", kind="x")


def at_once(trajectory: Trajectory) -> bool:
    """Hold always."""
    return True


ALWAYS = (at_once,)


def test_what_holds_before_the_first_turn_is_no_subgoal_and_without_any_there_is_no_score(shop: EnvSpec) -> None:
    plan.append(goal("at_once"))
    verdict = judge(predicates=HERE + "ALWAYS")(episode(shop))
    assert verdict.score is None and "refused" in str(verdict.error)
    assert verdict.evidence["refused"][0]["reason"] == "it holds before the first turn"
    plan[:] = []
    verdict = judge(retries=0)(episode(shop))
    assert verdict.score is None and "no plan" in str(verdict.error), "an empty plan is not of the form"


def test_more_than_the_most_are_refused(shop: EnvSpec) -> None:
    plan.extend(goal("bought", kind=str(n)) for n in range(5))
    evidence = judge(most=2)(episode(shop)).evidence
    assert len(evidence["plan"]) == 2 and len(evidence["refused"]) == 3


def test_a_task_is_planned_once_whatever_becomes_of_it_and_the_run_keeps_the_plan(
    shop: EnvSpec, tmp_path: Path
) -> None:
    plan.append(goal("bought", kind="shoes"))
    one = judge()
    one.keep_in(tmp_path)
    attempts = [episode(shop), episode(shop, NoisyPolicy(shop.demonstrate, 0.9))] * 3
    threads = [threading.Thread(target=one, args=(each,)) for each in attempts]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(asked) == 1
    again = judge()
    again.keep_in(tmp_path)
    assert again(attempts[0]) == one(attempts[0]) and len(asked) == 1
    one(episode(shop, number=1))
    assert len(asked) == 2


def test_the_planner_is_shown_task_tools_and_predicates_and_nothing_of_the_attempt(shop: EnvSpec) -> None:
    plan.append(goal("bought", kind="shoes"))
    done = episode(shop)
    judge()(done)
    system, user = (message["content"] for message in asked[0])
    assert '"name": "opened"' in system and '"attribute": {"type": "string"}' in system and "was bought" in system
    assert str(done.context.lineage()[0].observation) in user and '"search"' in user
    assert str(done.steps[0].observation) not in user


def test_a_plan_that_was_not_had_for_want_of_an_answer_is_asked_for_again(shop: EnvSpec) -> None:
    one, done = judge(retries=0), episode(shop)
    assert "no plan" in str(one(done).error)  # an empty plan is not of the form
    plan.append(goal("bought", kind="shoes"))
    assert one(done).error is None and len(asked) == 2


def test_bad_arguments_are_refused_before_anything_runs() -> None:
    for args, told in (
        ({"outcome": 0.4}, "judge.outcome"), ({"most": 0}, "judge.most"),
        ({"predicates": HERE + "NONE"}, "at least one"),
        ({"predicates": HERE + "BAD"}, "untyped.* cannot be called from JSON"), ({"judge": "nobody"}, "judge.judge"),
        ({"ask": None}, "judge.url"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=told):
            judge(**args)
    with pytest.raises(ConfigError) as caught:
        load_predicates("k", HERE + "BAD")
    assert len(caught.value.faults) == 2
