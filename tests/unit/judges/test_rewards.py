from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from offline_agent.errors import ConfigError
from offline_agent.judges.rewards import CompositeReward
from offline_agent.preferences.pairs.trajectory import trajectories
from offline_agent.records import Action, Step, ToolCall, Trajectory, Verdict
from tests.helpers import preferences as kit


def run(words: str, verdict: Verdict | None = None) -> Trajectory:
    done = next(trajectories(kit.grow([words], max_steps=99)))
    return done if verdict is None else replace(done, verdict=verdict)


def parts(reward: CompositeReward, done: Trajectory) -> dict[str, float]:
    return dict(reward.judge(done).parts)


def test_the_defaults() -> None:
    found = CompositeReward().judge(run("A B leave"))
    assert found.parts == {"outcome": 1.0, "format": 1.0, "tool": 1.0, "length": 0.0}
    assert found.raw == pytest.approx(1.3) and found.value == 1.0 and found.error is None


def test_no_outcome_is_no_reward() -> None:
    done = run("A B leave")
    for verdict in (None, Verdict(None, None, "k", error="it broke")):
        found = CompositeReward().judge(replace(done, verdict=verdict))
        assert found.value is None and found.raw is None and found.error and not found.parts
        assert CompositeReward()(replace(done, verdict=verdict)) is None


def test_partial_credit_of_a_failure_is_capped() -> None:
    reward = CompositeReward(failure_ceiling=0.4)
    assert parts(reward, run("A B leave", Verdict(0.9, False, "k")))["outcome"] == 0.4
    assert parts(reward, run("A B leave", Verdict(0.1, False, "k")))["outcome"] == 0.1
    assert parts(reward, run("A B leave", Verdict(0.9, True, "k")))["outcome"] == 1.0


def test_format_counts_turns_that_parse() -> None:
    assert parts(CompositeReward(), run("A ? B leave"))["format"] == 0.75


def test_tools_that_do_not_exist_and_repetitions_cost() -> None:
    assert parts(CompositeReward(), run("A A B leave"))["tool"] == pytest.approx(1 - 0.05)
    assert parts(CompositeReward(), run("A fly B leave"))["tool"] == pytest.approx(3 / 4 - 0.3)
    worst = parts(CompositeReward(cap=0.4), run("fly " * 9 + "leave"))["tool"]
    assert worst == -0.4
    assert parts(CompositeReward(), run("nothing"))["tool"] == 0.0


def test_length_linear() -> None:
    reward = CompositeReward(target=2, slope=0.25)
    assert [parts(reward, run("look " * n + "leave"))["length"] for n in (1, 2, 4, 9)] == [0.0, 0.25, 0.75, 1.0]
    assert reward.judge(run("look leave")).raw > reward.judge(run("look look leave")).raw  # type: ignore[operator]


def test_length_sigmoid_shrinks_the_outcome() -> None:
    reward = CompositeReward(outcome=1.0, format=0, tool=0, length=-0.4, length_rule="sigmoid", target=3, tau=2)
    done = run("A B leave")
    assert parts(reward, done)["length"] == pytest.approx(0.5)
    long = run("look " * 6 + "A B leave")
    assert parts(reward, long)["length"] == pytest.approx(1 / (1 + math.exp(-3)))
    assert parts(reward, run("leave", Verdict(0.0, False, "k")))["length"] == 0.0
    assert parts(replace_rule(reward, tau=1e-3), long)["length"] == pytest.approx(1.0)


def replace_rule(reward: CompositeReward, **changes: float) -> CompositeReward:
    for name, value in changes.items():
        setattr(reward, name, value)
    return reward


def test_length_dapo() -> None:
    reward = CompositeReward(length_rule="dapo", longest=10, cache=4)
    sizes = {n: parts(reward, run("look " * (n - 1) + "leave"))["length"] for n in (5, 6, 8, 10, 12)}
    assert sizes == {5: 0.0, 6: 0.0, 8: 0.5, 10: 1.0, 12: 1.0}
    assert parts(CompositeReward(length_rule="none", target=0), run("A B leave"))["length"] == 0.0


def test_length_in_tokens_needs_ids() -> None:
    reward = CompositeReward(unit="tokens", target=10, slope=0.1)
    assert reward(run("A B leave")) is None and "no token ids" in (reward.judge(run("A B leave")).error or "")
    done = run("A B leave")
    steps = tuple(replace(s, action=Action(s.action.text, call=s.action.call, token_ids=(1,) * 5)) for s in done.steps)
    assert parts(reward, replace(done, steps=steps))["length"] == pytest.approx(0.5)
    assert parts(CompositeReward(unit="characters", target=0, slope=0.1), run("A B leave"))["length"] == pytest.approx(
        0.7
    )


def test_shaping_that_could_overturn_the_outcome_is_refused_with_the_sum() -> None:
    with pytest.raises(ConfigError, match=r"overturn.*0\.3 \+ tool 0\.1.*= 0\.55.*= 0\.5"):
        CompositeReward(format=0.3)
    CompositeReward(format=0.3, failure_ceiling=0.4)
    with pytest.raises(ConfigError, match="overturn"):
        CompositeReward(outcome=0.0)
    with pytest.raises(ConfigError, match="overturn"):
        CompositeReward(length=-1.0, length_rule="sigmoid")


def test_every_fault_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        CompositeReward(
            outcome=-1,
            format=math.nan,
            length=0.5,
            failure_ceiling=1,
            cap=-1,
            tau=0,
            unit="words",
            length_rule="x",  # type: ignore[arg-type]
        )
    text = "\n".join(caught.value.faults)
    assert all(f"reward.{name}" in text for name in ("outcome", "format", "length", "failure_ceiling", "cap", "tau"))
    assert "steps, tokens, characters" in text and "linear, sigmoid" in text


def extreme(success: bool, good: bool) -> Trajectory:
    """The best or worst behaved trajectory there can be."""
    call = ToolCall("fly", {})
    step = Step(Action("look", call=ToolCall("look", {})), "look", "x")
    bad = Step(Action("fly", call=call, fault=None), "fly", "x", fault="unknown_tool")
    faulty = Step(Action("?", fault="invalid_json"), "!invalid_json", "x", "user", "invalid_json")
    steps = (step,) if good else (bad, faulty) * 40
    done = run("A B leave")
    score = 1.0 if success else 0.999
    return replace(done, steps=steps, verdict=Verdict(score, success, "k"))


@pytest.mark.parametrize(
    "reward",
    [
        CompositeReward(),
        CompositeReward(length_rule="sigmoid", target=0, tau=0.1),
        CompositeReward(length_rule="dapo", longest=2, cache=1),
        CompositeReward(format=0.04, tool=0.2, cap=1.0, length=-0.05),
    ],
)
def test_the_worst_success_is_worth_more_than_the_best_failure(reward: CompositeReward) -> None:
    worst, best = reward.judge(extreme(True, False)), reward.judge(extreme(False, True))
    assert worst.raw is not None and best.raw is not None and worst.raw > best.raw
    for success, good in itertools.product((True, False), repeat=2):
        value = reward(extreme(success, good))
        assert value is not None and 0.0 <= value <= 1.0
