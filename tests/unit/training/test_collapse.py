"""The collapse watch: every rule speaks when it should, and is silent on noise, health and gaps."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from offline_agent.config.refine_grpo import RefineGrpoConfig
from offline_agent.report.refine_grpo import checklist
from offline_agent.training.collapse import FIGURES, RULE_NAMES, RULES, Finding, Watch, WatchSection

Record = dict[str, Any]
N = 40
SHARES = {
    "reward_mean", "success_mean", "zero_spread", "truncated", "invalid_calls", "repeated_calls", "accepted_calls",
    "unscored", "trained_share",
}  # fmt: skip


def usual(reward: float = 0.4) -> Record:
    """Records of a run without a fault, before noise."""
    return {
        "loss": 0.02,
        "reward_mean": reward,
        "reward_std": math.sqrt(reward * (1 - reward)),
        "success_mean": reward,
        "zero_spread": 0.25,
        "group_spread": 0.85 * math.sqrt(reward * (1 - reward)),
        "entropy": 0.6,
        "kl": 0.02,
        "clip_low_fraction": 0.01,
        "clip_high_fraction": 0.02,
        "gradient": 0.5,
        "length": 120.0,
        "steps": 6.0,
        "truncated": 0.1,
        "invalid_calls": 0.05,
        "repeated_calls": 0.1,
        "accepted_calls": 0.8,
        "tools": {"search": 0.4, "click": 0.35, "buy": 0.25},
        "unscored": 0.0,
        "mismatch": 0.005,
        "trained_share": 0.3,
    }


def run(change: Callable[[int], Record], n: int = N, seed: int | None = 0, reward: float = 0.4) -> list[Record]:
    """Records of a run: the usual figures, those that `change` gives for update k, and noise (none where seed=None)."""
    noise = random.Random(seed)
    records = []
    for k in range(n):
        record = {**usual(reward), **change(k)}
        for name, value in record.items():
            if seed is not None and isinstance(value, float) and name in FIGURES:
                record[name] = _noisy(name, value, noise)
        records.append({"update": k + 1, "env_steps": 500.0 * (k + 1), **record})
    return records


def _noisy(name: str, value: float, noise: random.Random) -> float:
    """A tenth more or less; of a share, a quarter more or less of its odds, so that it stays one."""
    if name not in SHARES:
        return value * math.exp(noise.gauss(0, 0.1))
    if not 0 < value < 1:
        return value
    odds = value / (1 - value) * math.exp(noise.gauss(0, 0.25))
    return odds / (1 + odds)


def findings(records: Sequence[Record], **settings: Any) -> list[Finding]:
    watch = Watch(WatchSection(**settings))
    return [finding for record in records for finding in watch(record)]


def rules(records: Sequence[Record], **settings: Any) -> list[str]:
    return [finding.rule for finding in findings(records, **settings)]


def late(**figures: Any) -> Callable[[int], Record]:
    """Figures that change at update 16."""
    return lambda k: figures if k >= 15 else {}


def rising(k: int) -> Record:
    """A run that learns: success 0.1 to 0.9, sure of more, longer because it finishes, one tool used more."""
    t = min(1.0, k / (N - 1))
    p = 0.1 + 0.8 * t
    return {
        "reward_mean": p,
        "success_mean": p,
        "group_spread": 0.8 * math.sqrt(p * (1 - p)),
        "zero_spread": 0.3 + 0.3 * abs(2 * p - 1),
        "entropy": 0.6 - 0.35 * t,
        "kl": 0.3 * t,
        "gradient": 0.3 + t,
        "length": 80 + 100 * t,
        "tools": {"search": 0.4 + 0.3 * t, "click": 0.35 - 0.2 * t, "buy": 0.25 - 0.1 * t},
    }


def solved(k: int) -> Record:
    """A run whose tasks are all solved from update 16 on; nothing is left to explore or to compare."""
    if k < 15:
        return {}
    return {
        "reward_mean": 0.995,
        "success_mean": 0.99,
        "group_spread": 0.01,
        "zero_spread": 0.97,
        "entropy": 0.02,
        "gradient": 0.05,
        "length": 30.0,
        "tools": {"search": 0.02, "buy": 0.98},
    }


FIRES: dict[str, Callable[[int], Record]] = {
    "mask": late(trained_share=1.0),
    "nothing_scored": late(unscored=1.0, reward_mean=None, success_mean=None, group_spread=None, zero_spread=None),
    "unscored": late(unscored=0.4),
    "echo_trap": late(entropy=0.1, group_spread=0.08),
    "collapse": late(entropy=0.1, reward_mean=0.15, success_mean=0.15),
    "reward": late(reward_mean=0.15, success_mean=0.15),
    "entropy": late(entropy=0.1),
    "entropy_rise": late(entropy=2.5),
    "spread": late(group_spread=0.08),
    "zero_spread": late(zero_spread=0.9),
    "gradient": lambda k: {"gradient": 20.0} if k >= 15 and k % 3 != 0 else {},
    "kl": late(kl=1.6),
    "mismatch": late(mismatch=0.2),
    "length": late(length=500.0),
    "truncated": late(truncated=0.75),
    "invalid_calls": late(invalid_calls=0.5),
    "repeated_calls": late(repeated_calls=0.75),
    "accepted_calls": late(accepted_calls=0.3),
    "tools": late(tools={"search": 0.97, "click": 0.03}),
}
ALONGSIDE = {
    "nothing_scored": {"unscored"},
    "collapse": {"entropy", "reward", "echo_trap"},
    "echo_trap": {"entropy", "spread"},
}
"""Rules that rightly speak beside the one a run was made for."""


def test_every_rule_has_a_run() -> None:
    assert set(FIRES) == set(RULE_NAMES)
    assert len(set(RULE_NAMES)) == len(RULE_NAMES)


@pytest.mark.parametrize("rule", FIRES)
@pytest.mark.parametrize("seed", [None, 0, 1])
def test_a_fault_is_said_once_after_it_began(rule: str, seed: int | None) -> None:
    records = run(FIRES[rule], seed=seed)
    found = findings(records)
    mine = [finding for finding in found if finding.rule == rule]
    assert len(mine) == 1, found
    assert 16 <= mine[0].update <= 16 + 3 + 5 + 2
    assert mine[0].stops == (rule in WatchSection().stop)
    assert mine[0].since == mine[0].update - (0 if rule == "mask" else WatchSection().patience - 1)
    assert {finding.rule for finding in found} - {rule} <= ALONGSIDE.get(rule, set())


@pytest.mark.parametrize("rule", FIRES)
def test_a_finding_says_figures_and_what_to_do(rule: str) -> None:
    said = next(finding.text for finding in findings(run(FIRES[rule], seed=None)) if finding.rule == rule)
    figures, _, advice = said.partition(": ")
    if rule != "nothing_scored":
        assert re.search(r"\d", figures)
    assert len(advice) > 30 and "not measured" not in advice


def test_advice_and_checklist_name_keys_that_exist() -> None:
    lines = [rule.advice for rule in RULES] + [line for _, line in checklist([])]
    named = {key for line in lines for key in re.findall(r"\b([a-z_]+\.[a-z_]+)\b", line)} - {"data.negatives"}
    assert len(named) > 8
    for key in named:
        section, name = key.split(".")
        fields = RefineGrpoConfig.model_fields[section].annotation.model_fields  # type: ignore[union-attr]
        assert name in fields, key


@pytest.mark.parametrize("seed", range(20))
def test_noise_and_a_healthy_run_are_not_faulted(seed: int) -> None:
    assert rules(run(lambda k: {}, n=100, seed=seed)) == []
    assert rules(run(rising, seed=seed)) == []


@pytest.mark.parametrize("seed", range(5))
def test_a_solved_run_is_no_collapse(seed: int) -> None:
    found = findings(run(solved, n=80, seed=seed))
    assert [finding.rule for finding in found] == ["zero_spread"]
    assert "where all succeed" in found[0].text and not found[0].stops
    assert findings(run(solved, seed=seed), stop=("zero_spread",))[0].stops


def test_groups_without_spread_are_told_apart() -> None:
    failed = findings(run(lambda k: {"zero_spread": 0.95, "group_spread": 0.01}, seed=None, reward=0.01))
    decided = findings(run(lambda k: {"zero_spread": 0.95, "group_spread": 0.02}, seed=None))
    assert [f.rule for f in failed] == [f.rule for f in decided] == ["zero_spread"]
    assert "reward_mean 0.01" in failed[0].text and "reward_mean 0.4" in decided[0].text


def collapsing(k: int) -> Record:
    """An Echo Trap made on purpose: entropy and spread decay from 11, reward falls from 41, gradients from 46."""
    decay = math.exp(-max(0, k - 10) / 8)
    reward = 0.3 + 0.2 * min(k, 20) / 20 if k < 40 else max(0.05, 0.5 - 0.03 * (k - 40))
    return {
        "reward_mean": reward,
        "success_mean": reward,
        "entropy": 0.6 * decay + 0.01,
        "group_spread": 0.42 * decay + 0.01,
        "zero_spread": 0.95 - 0.7 * decay,
        "gradient": 0.5 if k < 45 else 40.0,
    }


FALLS = 41
"""The first update of `collapsing` whose reward is below the plateau."""


@pytest.mark.parametrize("seed", range(10))
def test_a_collapse_is_caught_before_the_reward_falls(seed: int) -> None:
    found = findings(run(collapsing, n=60, seed=seed))
    stop = next(finding for finding in found if finding.stops)
    assert stop.rule == "echo_trap" and stop.update < FALLS
    assert {"entropy", "spread", "zero_spread"} <= {f.rule for f in found if f.update < FALLS}
    later = {f.rule for f in found if f.update >= FALLS}
    assert {"reward", "collapse", "gradient"} <= later
    assert not {"reward", "collapse", "gradient"} & {f.rule for f in found if f.update < FALLS}


def test_the_echo_trap_waits_while_the_reward_improves() -> None:
    def improving(k: int) -> Record:
        reward = 0.3 + 0.012 * k
        return {**collapsing(min(k, 39)), "reward_mean": reward, "success_mean": reward}

    assert not any(finding.stops for finding in findings(run(improving, seed=None)))
    assert {"entropy", "spread"} <= set(rules(run(improving, seed=None)))


def test_a_reward_that_falls_alone_warns_only() -> None:
    found = findings(run(FIRES["reward"]))
    assert [finding.rule for finding in found] == ["reward"] and not found[0].stops


def test_gaps_add_nothing() -> None:
    """No rule speaks of a run whose figures are missing, nor sooner or later because some are."""
    assert rules([{"update": k} for k in range(1, 60)]) == []
    assert rules([{"update": k, **dict.fromkeys(FIGURES), "tools": None} for k in range(1, 60)]) == []
    for made in (*FIRES.values(), collapsing):
        records = run(made)
        empty = [{"update": 0, **dict.fromkeys(FIGURES), "tools": {}, "env_steps": None}] * 3
        gaps = [each for record in records for each in (record, *empty)]
        both = [[(f.rule, f.update) for f in findings(each)] for each in (records, gaps)]
        assert both[0] == both[1]


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_that_is_never_measured_silences_only_what_needs_it(name: str) -> None:
    def without(records: list[Record]) -> list[Record]:
        return [{key: value for key, value in record.items() if key != name} for record in records]

    for rule, made in FIRES.items():
        had = set(rules(run(made, seed=None)))
        assert set(rules(without(run(made, seed=None)))) <= had | {"entropy", "tools"}, rule


def test_what_a_round_repeats_counts_once() -> None:
    """A round that feeds four updates is one bad round, not four."""
    rounds = run(lambda k: {"truncated": 0.9} if k >= 5 else {}, n=14, seed=3)
    updates = [{**record, "update": 4 * i + j} for i, record in enumerate(rounds) for j in range(4)]
    (by_round,), (by_update,) = findings(rounds), findings(updates)
    assert by_update.update == 4 * (by_round.update - 1)  # the first update of the same round
    assert by_update.since == 4 * (by_round.since - 1)
    told_apart = [{**record, "env_steps": float(k)} for k, record in enumerate(updates)]
    assert findings(told_apart)[0].update < by_update.update


def test_a_fault_is_said_again_after_it_was_over() -> None:
    def comes_and_goes(k: int) -> Record:
        return {"truncated": 0.9} if 10 <= k < 25 or k >= 40 else {}

    records = run(comes_and_goes, n=60)
    assert [finding.rule for finding in findings(records)] == ["truncated"] * 2


def test_a_figure_that_jumps_back_to_its_start_has_not_fallen() -> None:
    """Mostly low with a high value every fourth update: sparse, not collapsed."""
    assert rules(run(lambda k: {"entropy": 0.65 if k % 4 == 0 else 0.1} if k >= 15 else {}, seed=None)) == []


def test_the_best_of_many_windows_is_partly_luck() -> None:
    """Rewards that jump between two values have lucky windows, after which nothing has fallen."""
    for seed in range(20):
        luck = random.Random(seed)
        drawn = [luck.choice([0.1, 0.5]) for _ in range(60)]
        jumps = run(lambda k, drawn=drawn: {"reward_mean": drawn[k], "success_mean": drawn[k]}, n=60, seed=None)  # type: ignore[misc]
        assert "reward" not in rules(jumps)


def test_a_gradient_is_measured_by_what_became_usual() -> None:
    """After a start without gradient the run's own level is no spike for ever, and a spike above it is one."""

    def wakes(k: int) -> Record:
        return {"gradient": 0.01 if k < 5 else 0.5 if k < 40 else 20.0}

    records = run(wakes, n=50)
    assert [finding.update > 40 for finding in findings(records)] == [False, True]


def test_a_short_excursion_is_no_finding() -> None:
    for rule, made in FIRES.items():
        if rule == "mask":  # one such update is one too many
            continue
        brief = run(lambda k, made=made: made(k) if 15 <= k < 17 else {}, seed=None)  # type: ignore[misc]
        assert rules(brief) == [], rule


@pytest.mark.parametrize("share", [0.0, 1.0, 1.2, -0.1])
def test_a_mask_out_of_bounds_stops_at_once(share: float) -> None:
    found = findings([{"update": 7, "trained_share": share}])
    assert [(f.rule, f.update, f.stops) for f in found] == [("mask", 7, True)]


def test_hard_tasks_with_rare_successes_are_not_a_collapse() -> None:
    """Small rounds of hard tasks: mostly no success, now and then one; nothing has fallen."""
    noise = random.Random(0)
    records = []
    for k in range(200):
        groups = [[float(noise.random() < 0.04) for _ in range(4)] for _ in range(4)]
        means = [sum(group) / 4 for group in groups]
        spreads = [math.sqrt(m * (1 - m) * 4 / 3) for m in means]
        records.append(
            {
                "update": k + 1,
                "reward_mean": sum(means) / 4,
                "success_mean": sum(means) / 4,
                "group_spread": sum(spreads) / 4,
                "zero_spread": sum(s == 0 for s in spreads) / 4,
                "entropy": math.exp(noise.gauss(0, 0.2)),
            }
        )
    assert not any(finding.stops for finding in findings(records))


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"patience": 6}, "watch.patience: got 6"),
        ({"stop": ("echotrap",)}, "Did you mean 'echo_trap'?"),
    ],
)
def test_a_bad_setting_is_refused(changed: dict[str, Any], part: str) -> None:
    with pytest.raises(ValidationError, match=part):
        WatchSection(**changed)


def test_no_rule_stops_where_none_is_named() -> None:
    found = findings(run(collapsing, n=60), stop=())
    assert found and not any(finding.stops for finding in found)


def test_the_checklist_has_the_order_of_the_text_and_this_runs_figures() -> None:
    lines = checklist(run(collapsing, n=60, seed=None))
    assert [name for name, _ in lines] == [
        "reward", "length", "mask", "KL", "group spread", "tool histogram", "sample efficiency",
    ]  # fmt: skip
    said = dict(lines)
    assert "mean 0.32 -> 0.05, success 32% -> 5%" in said["reward"]
    assert "agent tokens 120, steps 6, truncated 10%" in said["length"]
    assert "0.3" in said["mask"]
    assert "KL 0.02, entropy 0.61 -> 0.0117" in said["KL"] and "gradient norm 0.5 -> 40" in said["KL"]
    assert "within a group 0.43 -> 0.0112, groups without any 25% -> 95%" in said["group spread"]
    assert "most used 40%" in said["tool histogram"]
    assert "success 32% -> 5%, over environment steps 1500 -> 29000" in said["sample efficiency"]


def test_the_checklist_says_what_was_not_measured() -> None:
    for records in ([], [{"update": 1}], [{"update": 1, **dict.fromkeys(FIGURES), "tools": None}]):
        lines = checklist(records)
        assert len(lines) == 7 and all("not measured" in line for _, line in lines)
    one = dict(checklist([{"update": 1, **usual(), "env_steps": 9}]))
    assert "mean 0.4," in one["reward"] and "->" not in one["reward"].split(" - ")[0]
