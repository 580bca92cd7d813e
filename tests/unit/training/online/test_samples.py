"""What of a round is trained on: ids, masks, rewards and advantages of the judged attempts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from offline_agent.records import Action, Context, Step, ToolCall, Verdict
from offline_agent.rendering.renderer import Renderer
from offline_agent.rollouts.attempts import Attempt
from offline_agent.training.online.groups import Group, Round
from offline_agent.training.online.objectives import objective
from offline_agent.training.online.round_batch import Algorithm, PlayedRound
from offline_agent.training.online.samples import sample
from offline_agent.training.online.settings import OnlineSettings
from tests.helpers.online import credited
from tests.helpers.rendering import qwen, root

TURN_REWARD = credited("turn_reward", outcome=0.0)


@cache
def renderer() -> Renderer:
    return Renderer(qwen())


def act(query: str) -> Action:
    """Return a call as a model would have written it."""
    call = ToolCall("search", {"query": query})
    text = f'<tool_call>\n{{"name": "search", "arguments": {{"query": "{query}"}}}}\n</tool_call>'
    ids = tuple(qwen()(f"{text}<|im_end|>", add_special_tokens=False)["input_ids"])
    return Action(text, call=call, token_ids=ids, logps=tuple(-0.1 * (n + 1) for n in range(len(ids))))


def attempt(
    number: int,
    reward: float | None,
    queries: tuple[str, ...] = ("red", "shoes"),
    earned: tuple[float | None, ...] | None = None,
    cut_by: str | None = None,
    **more: Any,
) -> Attempt:
    context: Context = root()
    steps = []
    for query, told in zip(queries, earned or (None,) * len(queries), strict=True):
        steps.append(Step(act(query), query, f"found {query}", reward=told))
        context = context.child(steps[-1].action, steps[-1].observation)
    verdict = Verdict(reward, None if reward is None else reward == 1.0, "test", error="no" if reward is None else None)
    return Attempt(
        "candidate", "sampled", context.task, number, context, tuple(steps), verdict, True, False, cut_by, **more
    )


PLAIN = objective("dr_grpo", budget=9)  # advantages are differences, divided by nothing


def round_of(*attempts: Attempt, kept: bool = True) -> Round:
    group = Group(attempts[0].task, attempts, tuple(a.reward for a in attempts), kept)
    return Round(0, 1.0, (group,))


def test_rows_are_the_sampled_ids_and_nothing_else_counts() -> None:
    one, two = sample(round_of(attempt(0, 1.0), attempt(1, 0.0)), renderer(), objective("grpo"), max_length=999)
    actions = [act(query) for query in ("red", "shoes")]
    own = [token for token, kept in zip(one.input_ids, one.action_mask, strict=True) if kept]
    assert own == [*actions[0].token_ids, *actions[1].token_ids]  # type: ignore[misc]
    assert one.turns == tuple(len(action.token_ids or ()) for action in actions) and one.tokens == sum(one.turns)
    assert one.logps == (*actions[0].logps, *actions[1].logps)  # type: ignore[misc]
    assert one.advantages is not None and len(one.advantages) == one.tokens and len(set(one.advantages)) == 1
    assert one.advantages[0] == pytest.approx(0.5 / (0.5**0.5 + 1e-4))
    assert two.advantages is not None and two.advantages[0] == pytest.approx(-one.advantages[0])


def test_what_nobody_judged_is_in_no_mean_and_no_loss() -> None:
    made = round_of(attempt(0, 1.0), attempt(1, None), attempt(2, 0.0))
    found = sample(made, renderer(), objective("grpo"), max_length=999)
    assert [one.name[-2:] for one in found] == ["/0", "/2"]
    assert found[0].advantages is not None and found[0].advantages[0] == pytest.approx(0.5 / (0.5**0.5 + 1e-4))
    alone = round_of(attempt(0, 1.0), attempt(1, None))
    assert sample(alone, renderer(), objective("grpo"), max_length=999)[0].advantages == (0.0,) * found[0].tokens
    assert not sample(alone, renderer(), objective("rloo"), max_length=999)  # nobody to compare with
    assert not sample(round_of(attempt(0, 1.0), kept=False), renderer(), objective("grpo"), max_length=999)


def test_rows_that_cannot_be_trained_on_are_listed() -> None:
    refused: list[tuple[str, str]] = []
    wrong = attempt(1, 0.0)
    broken = replace(wrong.steps[0].action, token_ids=act("blue").token_ids)
    context = root().child(broken, "found red")
    wrong = replace(wrong, context=context, steps=(Step(broken, "red", "found red"),))
    made = round_of(attempt(0, 1.0, ("red",)), wrong, attempt(2, 0.0, ("red",) * 30))
    found = sample(made, renderer(), PLAIN, max_length=700, refused=refused)
    assert len(found) == 1 and [name[-2:] for name, _ in refused] == ["/1", "/2"]
    assert "allowed: 700" in refused[1][1]
    # they were judged all the same, and stay in the mean that the other is compared with
    assert found[0].advantages == pytest.approx((2 / 3,) * found[0].tokens)


def rambling(number: int) -> Attempt:
    """Return an attempt whose second turn never ended."""
    one = attempt(number, 0.0, ("red",), (0.5,), cut_by="tokens")
    ids = (act("and on").token_ids or ())[:-4]
    endless = Action(qwen().decode(ids), fault="no_end", token_ids=ids, logps=(-1.0,) * len(ids))
    context = one.context.child(endless, None, "user")  # type: ignore[union-attr]
    return replace(
        one, context=context, steps=(*one.steps, Step(endless, "!no_end", None, "user", "no_end", 0.0)),
        truncated=True, terminated=False,
    )  # fmt: skip


@pytest.mark.parametrize("credit", ["trajectory", "turn_reward"])
def test_a_turn_that_never_ends_is_punished_and_trained_on_up_to_its_last_token(credit: Any) -> None:
    refused: list[tuple[str, str]] = []
    made = round_of(attempt(0, 1.0, ("red", "hats"), (0.5, 0.0)), rambling(1))
    one, two = sample(made, renderer(), PLAIN, max_length=999, settings=credited(credit), refused=refused)
    assert not refused and two.advantages is not None and two.advantages[-1] == -0.5 and one.advantages is not None
    endless = made.groups[0].attempts[1].steps[1].action.token_ids
    assert two.turns[1] == len(endless or ()) and two.input_ids[-two.turns[1] :] == endless


def test_what_the_policy_cut_is_in_the_mean_and_not_in_the_loss_where_it_is_filtered() -> None:
    silent = replace(attempt(2, 0.0, cut_by="context"), steps=(), context=root())
    made = round_of(attempt(0, 1.0), rambling(1), silent, attempt(3, 0.0))
    for chosen, names in ((PLAIN, ["/0", "/1", "/3"]), (replace(PLAIN, overlong_filter=True), ["/0", "/3"])):
        found = sample(made, renderer(), chosen, max_length=999)
        assert [one.name[-2:] for one in found] == names
        assert found[0].advantages == pytest.approx((0.75,) * found[0].tokens)


def test_a_judge_says_what_turns_earned_where_the_environment_does_not() -> None:
    def judge(trajectory: Any) -> list[float]:
        return [float(step.key == "red") for step in trajectory.steps]

    made = round_of(attempt(0, 1.0, ("red", "shoes")), attempt(1, 0.0, ("hats", "red")))
    one, two = sample(made, renderer(), PLAIN, max_length=999, settings=credited("turn_reward", judge=judge))
    assert one.earned == (0.5, 1.0) and two.earned == (0.0, 0.5)
    for wrong, says in ((lambda _: [2.0, 0.0], "2 numbers in [0, 1]"), (lambda _: [1 / 0], "ZeroDivisionError")):
        refused: list[tuple[str, str]] = []
        credit = credited("turn_reward", judge=wrong)
        assert not sample(made, renderer(), PLAIN, max_length=999, settings=credit, refused=refused)
        assert len(refused) == 2 and all(says in why for _, why in refused)


def test_long_trajectories_lose_reward_by_their_agent_tokens_alone() -> None:
    tokens = sum(len(act(query).token_ids or ()) for query in ("red", "shoes"))
    chosen = objective("dapo", overlong_soft=tokens - 2, overlong_hard=tokens + 2)
    one, _ = sample(round_of(attempt(0, 1.0), attempt(1, 0.0)), renderer(), chosen, max_length=999)
    assert one.reward == pytest.approx(0.5)


def test_a_critic_is_asked_for_advantages_later() -> None:
    found = sample(round_of(attempt(0, 1.0), attempt(1, 0.0)), renderer(), objective("ppo"), max_length=999)
    assert [one.advantages for one in found] == [None, None] and [one.reward for one in found] == [1.0, 0.0]


def test_credit_by_turn_rewards_is_what_the_turn_and_later_ones_earned() -> None:
    made = round_of(attempt(0, 1.0, earned=(0.5, 0.25)), attempt(1, 0.0, ("red", "hats", "caps"), (0.0, 0.75, 0.5)))
    one, two = sample(made, renderer(), PLAIN, max_length=999, settings=TURN_REWARD)
    assert one.earned == (0.5, 0.25) and two.earned == (0.0, 0.75, 0.5)
    # returns 0.75, 0.25 and 1.25, 1.25, 0.5: the third turn has nothing to be compared with
    assert one.advantages == (-0.25,) * one.turns[0] + (-0.5,) * one.turns[1]
    assert two.advantages == (0.25,) * two.turns[0] + (0.5,) * two.turns[1] + (0.0,) * two.turns[2]
    one, two = sample(made, renderer(), PLAIN, max_length=999, settings=credited("turn_reward", outcome=2.0))
    assert one.earned == (0.5, 2.25)  # the outcome stands with the last turn
    assert one.advantages == (0.75,) * one.turns[0] + (0.5,) * one.turns[1]


def test_a_trajectory_of_which_a_turn_is_not_rewarded_is_left_out_and_not_scored_0() -> None:
    refused: list[tuple[str, str]] = []
    made = round_of(attempt(0, 1.0, earned=(0.5, None)), attempt(1, 0.0, earned=(0.0, 0.0)))
    credit = credited("turn_reward")
    (left,) = sample(made, renderer(), PLAIN, max_length=999, settings=credit, refused=refused)
    assert left.name[-2:] == "/1" and left.advantages == (0.0,) * left.tokens
    ((name, why),) = refused
    assert name[-2:] == "/0" and why == "the environment does not say what turn 1 of 2 earned"
    assert len(sample(made, renderer(), PLAIN, max_length=999)) == 2  # who does not ask does not mind


def test_a_critic_learns_what_turns_earned() -> None:
    made = round_of(attempt(0, 1.0, earned=(0.5, 0.25)), attempt(1, 0.0, earned=(0.0, 0.0)))
    found = sample(made, renderer(), objective("ppo"), max_length=999, settings=TURN_REWARD)
    assert [one.advantages for one in found] == [None, None]
    batch = Algorithm(objective("ppo", scale="none"), OnlineSettings(1)).batch(PlayedRound(found, 1.0))
    batch.values = [torch.zeros(one.tokens) for one in found]
    batch.credit()
    first, second = found[0].turns
    assert batch.returns[0].tolist() == [0.75] * first + [0.25] * second


@pytest.mark.parametrize("ids", [(), None])
@pytest.mark.parametrize("credit", ["trajectory", "turn_reward"])
def test_an_empty_completion_is_trained_on_or_left_out(ids: tuple[int, ...] | None, credit: Any) -> None:
    """The turn is over at once: only its end was sampled, or not even that."""
    end = qwen().convert_tokens_to_ids("<|im_end|>")
    empty = Action("", fault="empty", detail="say something", token_ids=(end,) if ids is None else ids, logps=(-1.0,))
    if ids is not None:
        empty = replace(empty, logps=())
    one = attempt(0, 0.0, ("red",), (0.0,))
    context = one.context.child(empty, "Error: say something", "user")  # type: ignore[union-attr]
    one = replace(
        one, context=context, steps=(*one.steps, Step(empty, "x", "Error: say something", "user", "empty", 0))
    )
    made = round_of(one, attempt(1, 1.0, ("red",), (1.0,)))
    found = sample(made, renderer(), PLAIN, max_length=999, settings=credited(credit))
    assert len(found) == 2
    assert all(len(each.advantages or ()) == each.tokens == sum(each.action_mask) for each in found)


def test_an_episode_that_ends_on_an_observation_is_trained_on_up_to_its_last_action() -> None:
    ended = attempt(0, 1.0)
    last = ended.steps[-1]
    bare = replace(last, observation=None)  # the same episode, if its last action had been answered by nothing
    before = ended.context.parent  # type: ignore[union-attr]
    silent = replace(ended, number=1, context=before.child(last.action, None), steps=(ended.steps[0], bare))  # type: ignore[union-attr]
    one, two, _ = sample(round_of(ended, silent, attempt(2, 0.0)), renderer(), objective("grpo"), max_length=999)
    assert one.input_ids == two.input_ids and one.action_mask == two.action_mask and one.action_mask[-1] == 1
    assert one.turns == two.turns and one.advantages == two.advantages and one.logps == two.logps
