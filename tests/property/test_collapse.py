"""Invariants of the watch for any record, and its error rate on a run that does not change."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from statistics import fmean, stdev
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as some

from offline_agent.report.refine_grpo import checklist
from offline_agent.training.collapse import FIGURES, RULE_NAMES, Watch, WatchSection

RUNS, UPDATES = 40, 100

figures = some.none() | some.floats(allow_nan=True, allow_infinity=True, width=32) | some.integers(-3, 3)
tools = some.none() | some.dictionaries(some.sampled_from("abc"), some.floats(0, 1) | some.none(), max_size=3)
records = some.lists(
    some.fixed_dictionaries({}, optional={**dict.fromkeys((*FIGURES, "env_steps"), figures), "tools": tools}),
    max_size=25,
)
choices = some.builds(
    WatchSection,
    window=some.integers(2, 4),
    patience=some.integers(1, 2),
    stop=some.lists(some.sampled_from(RULE_NAMES), unique=True).map(tuple),
)


@given(records, choices, some.integers(0, 25))
@settings(max_examples=60)
def test_any_records_are_taken_and_a_resume_finds_the_same(
    told: list[dict[str, Any]], chosen: WatchSection, at: int
) -> None:
    numbered = [{"update": k, **record} for k, record in enumerate(told, start=1)]
    watch = Watch(chosen)
    found = [finding for record in numbered for finding in watch(record)]
    for finding in found:
        assert finding.rule in RULE_NAMES and finding.stops == (finding.rule in chosen.stop)
    resumed = Watch(chosen)
    for record in json.loads(json.dumps(numbered[:at])):
        resumed(record)
    assert [f for record in numbered[at:] for f in resumed(record)] == [f for f in found if f.update > at]
    assert [name for name, _ in checklist(numbered)] == [name for name, _ in checklist([])]


@given(some.sets(some.sampled_from([*FIGURES, "tools"]), min_size=1), some.integers(0, 10**6))
@settings(max_examples=25)
def test_no_rule_speaks_of_figures_it_never_saw(known: set[str], seed: int) -> None:
    """However wild the known figures are, the rules that need others are silent."""
    noise = random.Random(seed)
    needs = {
        "entropy": {"entropy"}, "entropy_rise": {"entropy"}, "kl": {"kl"}, "gradient": {"gradient"},
        "echo_trap": {"entropy", "group_spread"}, "spread": {"group_spread"}, "reward": {"reward_mean"},
        "collapse": {"reward_mean"}, "zero_spread": {"zero_spread"}, "length": {"length"},
        "truncated": {"truncated"}, "invalid_calls": {"invalid_calls"}, "repeated_calls": {"repeated_calls"},
        "tools": {"tools"}, "mask": {"trained_share"}, "mismatch": {"mismatch"}, "unscored": {"unscored"},
        "nothing_scored": {"unscored"}, "accepted_calls": {"accepted_calls"},
    }  # fmt: skip
    assert set(needs) == set(RULE_NAMES)
    watch = Watch(WatchSection(window=2, patience=1))
    for update in range(30):
        record = {name: noise.choice([0.0, 1.0, 100.0 * noise.random()]) for name in known - {"tools"}}
        told: dict[str, Any] = {"update": update} | dict.fromkeys(FIGURES) | record
        if "tools" in known:
            told["tools"] = {name: noise.random() for name in "ab"}
        for finding in watch(told):
            assert needs[finding.rule] <= known


def stationary(seed: int, wanders: float) -> list[dict[str, Any]]:
    """A run whose policy does not change: its figures are those of sampled roll-outs, with noise of a hard kind.

    Tasks of a success rate of their own, few or many groups, rewards of 0 and 1 or in between; entropy and length
    that wander about their level (deviation `wanders` of the logarithm, correlation 0.8 from update to
    update); heavy-tailed gradients; some figures now and then missing.
    """
    noise = random.Random(seed)
    groups, size = noise.choice([4, 8, 16]), noise.choice([4, 8, 16])
    level, graded = noise.uniform(0.03, 0.9), noise.random() < 0.3
    told = []
    wander = {name: noise.gauss(0, wanders) for name in ("entropy", "length")}
    for k in range(UPDATES):
        wander = {name: 0.8 * at + 0.6 * noise.gauss(0, wanders) for name, at in wander.items()}
        rewards = []
        for _ in range(groups):
            p = noise.betavariate(2 * level, 2 * (1 - level))
            rewards.append([p * noise.random() if graded else float(noise.random() < p) for _ in range(size)])
        every = [reward for group in rewards for reward in group]
        shares = [noise.gammavariate(4, 1) for _ in range(3)]
        record: dict[str, Any] = {
            "reward_mean": fmean(every),
            "success_mean": fmean(reward >= 0.5 for reward in every),
            "reward_std": stdev(every),
            "group_spread": fmean(stdev(group) for group in rewards),
            "zero_spread": fmean(len(set(group)) == 1 for group in rewards),
            "entropy": 0.5 * math.exp(wander["entropy"]),
            "kl": 0.05 * math.exp(noise.gauss(0, 1)),
            "gradient": math.exp(noise.gauss(0, 0.7)) * (20 if noise.random() < 0.03 else 1),
            "length": 150 * math.exp(wander["length"]),
            "truncated": fmean(noise.random() < 0.3 for _ in every),
            "invalid_calls": fmean(noise.random() < 0.1 for _ in every),
            "repeated_calls": fmean(noise.random() < 0.2 for _ in every),
            "tools": {name: share / sum(shares) for name, share in zip("abc", shares, strict=True)},
            "unscored": fmean(noise.random() < 0.05 for _ in every),
            "mismatch": 0.01 * math.exp(noise.gauss(0, 0.5)),
            "trained_share": 0.3 * math.exp(noise.gauss(0, 0.2)),
        }
        told.append({"update": k + 1} | {name: each for name, each in record.items() if noise.random() > 0.05})
    return told


def over_runs(wanders: float) -> tuple[int, Counter[str]]:
    """Return how many runs are stopped, and how many each rule warns of (warnings that are true of groups left out)."""
    stopped, said = 0, Counter[str]()
    for seed in range(RUNS):
        watch = Watch(WatchSection())
        found = [finding for record in stationary(seed, wanders) for finding in watch(record)]
        stopped += any(finding.stops for finding in found)
        said.update({finding.rule for finding in found if finding.rule != "zero_spread"})
    return stopped, said


def test_a_run_that_does_not_change_is_hardly_ever_stopped() -> None:
    """Of 40 runs of 100 updates (seeds 0 to 39) whose entropy strays by half and more, at most one is stopped.

    Of 600 others (seeds 1000 to 1599) 4 were: 0.7%.
    """
    stopped, said = over_runs(0.5)
    assert stopped <= 1, said


def test_a_run_that_does_not_change_is_seldom_warned_of() -> None:
    """With figures that stray by a quarter none is stopped, and no rule speaks in more than a tenth of the runs."""
    stopped, said = over_runs(0.25)
    assert stopped == 0
    assert all(count <= 0.1 * RUNS for count in said.values()), said
