"""The objectives against loops over their papers' formulas, and against TRL's own code, value and gradient."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from trl import GRPOTrainer

from offline_agent.errors import ConfigError
from offline_agent.training.online.advantages import gae, group_advantages, kept_groups, overlong, token_rewards, whiten
from offline_agent.training.online.losses import correction_weights, policy_loss, token_weights, value_loss
from offline_agent.training.online.objectives import OBJECTIVES, Objective, ObjectiveSection, objective

SOFT, HARD, BUDGET = 3, 6, 7
FIELDS: dict[str, dict[str, Any]] = {
    "dr_grpo": {"budget": BUDGET},
    "dapo": {"overlong_soft": SOFT, "overlong_hard": HARD},
    "starpo_s": {"keep_spread": 0.5},
}


class Token(NamedTuple):
    logp: float
    old: float
    ref: float
    value: float
    agent: bool


class Row(NamedTuple):
    group: str
    reward: float | None
    tokens: tuple[Token, ...]

    @property
    def own(self) -> list[Token]:
        return [token for token in self.tokens if token.agent]


def _batch() -> list[Row]:
    """Ragged; ratios up to 5.5 and down to 0.4; observations full of wild numbers; group b has no spread."""
    steps = cycle([0.9, -0.7, 0.05, -0.1, 0.22, 0.0, -0.3, 1.7, -0.9])
    gaps = cycle([0.3, -0.6, 0.0, 1.1, -0.2])
    values = cycle([0.5, 0.1, -0.2, 0.8])
    shape = [
        ("a", 1.0, "0110111"), ("a", 0.0, "01"), ("a", 0.6, "1110111"), ("a", None, "0110"),
        ("b", 0.4, "011"), ("b", 0.4, "0110"), ("c", 1.0, "01"), ("c", 0.0, "10100"), ("c", 0.0, "11"),
        ("d", 0.3, "0111111101"), ("d", 0.2, "0011"), ("d", 0.2, "01011"),
    ]  # fmt: skip
    rows = []
    for at, (group, reward, marks) in enumerate(shape):
        tokens = []
        for t, mark in enumerate(marks):
            logp = -0.3 * (t + 1) - 0.05 * at
            if mark == "0":
                tokens.append(Token(logp, logp - 30.0, logp + 50.0, 1e6, False))
                continue
            step = next(steps) - (0.8 if at == 0 else 0.0)  # a good one that became less likely
            if group == "c" and reward == 1.0:
                step = 2e-4  # within GSPO's bounds
            tokens.append(Token(logp, logp - step, logp + next(gaps), next(values), True))
        rows.append(Row(group, reward, tuple(tokens)))
    return rows


BATCH = _batch()
Found = tuple[float, dict[tuple[int, int], float]]


# -- by hand: row numbers are those of BATCH, nothing of the package is used ------------------------------------------


def scored() -> list[tuple[int, Row]]:
    return [(i, row) for i, row in enumerate(BATCH) if row.reward is not None]


def rewards_of(rows: Sequence[tuple[int, Row]], group: str, but: int | None = None) -> list[float]:
    return [row.reward for i, row in rows if row.group == group and i != but and row.reward is not None]


def clipped(ratio: float, a: float, low: float, high: float) -> tuple[float, float]:
    """min(r A, clip(r) A) and its derivative by log r."""
    plain, held = ratio * a, min(max(ratio, low), high) * a
    return (plain, plain) if plain <= held else (held, 0.0)


def k3(token: Token) -> tuple[float, float]:
    gap = token.ref - token.logp
    return math.exp(gap) - gap - 1, 1 - math.exp(gap)


class Total:
    """Adds -(S - beta K3) * weight up, and its derivatives."""

    def __init__(self, beta: float) -> None:
        self.beta, self.loss = beta, 0.0
        self.slopes: dict[tuple[int, int], float] = {}

    def add(self, row: int, t: int, token: Token, term: tuple[float, float], weight: float) -> None:
        kl, pull = k3(token)
        self.loss -= weight * (term[0] - self.beta * kl)
        self.slopes[row, t] = -weight * (term[1] - self.beta * pull)

    def found(self) -> Found:
        return self.loss, self.slopes


def agent_tokens(row: Row) -> list[tuple[int, Token]]:
    return [(t, token) for t, token in enumerate(row.tokens) if token.agent]


def mean_std(rows: Sequence[tuple[int, Row]], row: Row) -> float:
    assert row.reward is not None
    others = rewards_of(rows, row.group)
    return (row.reward - statistics.mean(others)) / (statistics.stdev(others) + 1e-4)


def by_trajectory(rows: Sequence[tuple[int, Row]], beta: float, high: float) -> Found:
    total = Total(beta)
    for i, row in rows:
        for t, token in agent_tokens(row):
            term = clipped(math.exp(token.logp - token.old), mean_std(rows, row), 0.8, high)
            total.add(i, t, token, term, 1 / len(rows) / len(row.own))
    return total.found()


def grpo(beta: float) -> Found:
    return by_trajectory(scored(), beta, 1.2)


def starpo_s(beta: float) -> Found:
    rows = scored()
    spreads = {row.group: statistics.stdev(rewards_of(rows, row.group)) for _, row in rows}
    best = sorted(spreads, key=lambda group: -spreads[group])[:2]
    return by_trajectory([(i, row) for i, row in rows if row.group in best], beta, 1.28)


def dapo(beta: float) -> Found:
    shaped = []
    for i, row in scored():
        assert row.reward is not None
        length = len(row.own)
        punished = 0.0 if length <= SOFT else (SOFT - length) / (HARD - SOFT) if length <= HARD else -1.0
        shaped.append((i, row._replace(reward=row.reward + punished)))
    rows = [(i, row) for i, row in shaped if statistics.stdev(rewards_of(shaped, row.group)) > 0]
    tokens = sum(len(row.own) for _, row in rows)
    total = Total(beta)
    for i, row in rows:
        for t, token in agent_tokens(row):
            total.add(
                i, t, token, clipped(math.exp(token.logp - token.old), mean_std(rows, row), 0.8, 1.28), 1 / tokens
            )
    return total.found()


def dr_grpo(beta: float) -> Found:
    rows, total = scored(), Total(beta)
    for i, row in rows:
        assert row.reward is not None
        a = row.reward - statistics.mean(rewards_of(rows, row.group))
        for t, token in agent_tokens(row):
            term = clipped(math.exp(token.logp - token.old), a, 0.8, 1.2)
            total.add(i, t, token, term, 1 / len(rows) / BUDGET)
    return total.found()


def rloo(beta: float) -> Found:
    rows, total = scored(), Total(beta)
    tokens = sum(len(row.own) for _, row in rows)
    for i, row in rows:
        assert row.reward is not None
        a = row.reward - statistics.mean(rewards_of(rows, row.group, but=i))
        for t, token in agent_tokens(row):
            total.add(i, t, token, (a * token.logp, a), 1 / tokens)
    return total.found()


def reinforce(beta: float) -> Found:
    rows, total = scored(), Total(beta)
    tokens = sum(len(row.own) for _, row in rows)
    for i, row in rows:
        assert row.reward is not None
        for t, token in agent_tokens(row):
            total.add(i, t, token, (row.reward * token.logp, row.reward), 1 / tokens)
    return total.found()


def cispo(beta: float) -> Found:
    rows, total = scored(), Total(beta)
    tokens = sum(len(row.own) for _, row in rows)
    for i, row in rows:
        for t, token in agent_tokens(row):
            pull = min(math.exp(token.logp - token.old), 5.0) * mean_std(rows, row)
            total.add(i, t, token, (pull * token.logp, pull), 1 / tokens)
    return total.found()


def gspo(beta: float) -> Found:
    rows, total = scored(), Total(beta)
    for i, row in rows:
        length = len(row.own)
        whole = math.exp(sum(token.logp - token.old for token in row.own) / length)
        value, slope = clipped(whole, mean_std(rows, row), 1 - 3e-4, 1 + 4e-4)
        for t, token in agent_tokens(row):  # every token moves the one ratio by 1 / length
            total.add(i, t, token, (value, slope), 1 / len(rows) / length)
    return total.found()


def ppo(beta: float) -> Found:
    gamma, lam = 0.9, 0.8
    rows, total = scored(), Total(beta)
    found: dict[tuple[int, int], float] = {}
    for i, row in rows:
        own = agent_tokens(row)
        values = [token.value for _, token in own] + [0.0]
        deltas = [
            (row.reward or 0.0) * (k == len(own) - 1) + gamma * values[k + 1] - values[k] for k in range(len(own))
        ]
        for k, (t, _) in enumerate(own):
            found[i, t] = sum((gamma * lam) ** (later - k) * deltas[later] for later in range(k, len(own)))
    mean, std = statistics.mean(found.values()), statistics.stdev(found.values())
    for i, row in rows:
        for t, token in agent_tokens(row):
            a = (found[i, t] - mean) / (std + 1e-4)
            total.add(i, t, token, clipped(math.exp(token.logp - token.old), a, 0.8, 1.2), 1 / len(found))
    return total.found()


BY_HAND: dict[str, Callable[[float], Found]] = {
    "grpo": grpo, "dapo": dapo, "dr_grpo": dr_grpo, "rloo": rloo, "cispo": cispo, "gspo": gspo, "starpo_s": starpo_s,
    "reinforce": reinforce, "ppo": ppo,
}  # fmt: skip


# -- ours --------------------------------------------------------------------------------------------------------------


class Flat(NamedTuple):
    """What a trainer would have of the trained rows: their agent tokens alone."""

    rows: list[int]
    places: list[tuple[int, int]]
    logps: Tensor
    old: Tensor
    ref: Tensor
    advantages: Tensor
    owner: Tensor
    counts: list[int]


def flat(wanted: Objective) -> Flat:
    rewards = [None if row.reward is None else row.reward + overlong(len(row.own), wanted) for row in BATCH]
    groups = [row.group for row in BATCH]
    each: list[Any]
    if wanted.baseline == "value":
        pairs = [
            gae(token_rewards([row.reward], [len(row.own)]), [token.value for token in row.own], 0.9, 0.8)[0]
            for row in BATCH
            if row.reward is not None
        ]
        found = iter(whiten(pairs))
        each = [None if reward is None else next(found) for reward in rewards]
    else:
        given = group_advantages(rewards, groups, wanted)
        each = [None if a is None else [a] * len(row.own) for a, row in zip(given, BATCH, strict=True)]
    kept = kept_groups(rewards, groups, wanted)
    rows = [i for i, row in enumerate(BATCH) if each[i] is not None and row.group in kept]
    places = [(i, t) for i in rows for t, _ in agent_tokens(BATCH[i])]
    tokens = [BATCH[i].tokens[t] for i, t in places]
    counts = [len(BATCH[i].own) for i in rows]

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)

    return Flat(
        rows,
        places,
        column([token.logp for token in tokens]).requires_grad_(),
        column([token.old for token in tokens]),
        column([token.ref for token in tokens]),
        column([float(a) for i in rows for a in each[i]]),
        torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(counts)),
        counts,
    )


def ours(wanted: Objective, correction: Tensor | None = None) -> tuple[Flat, Any]:
    it = flat(wanted)
    weights = token_weights(it.counts, wanted)
    terms = policy_loss(
        it.logps,
        it.old,
        it.advantages,
        it.owner,
        weights,
        wanted,
        ref=it.ref,
        correction=correction,
        total=len(it.places),
    )
    terms.loss.backward()  # type: ignore[no-untyped-call]
    return it, terms


@pytest.mark.parametrize("beta", [None, 0.0, 0.05])
@pytest.mark.parametrize("name", list(BY_HAND))
def test_an_objective_is_its_formula(name: str, beta: float | None) -> None:
    wanted = objective(name, **FIELDS.get(name, {}), **({} if beta is None else {"kl": beta}))
    it, terms = ours(wanted)
    loss, slopes = BY_HAND[name](wanted.kl)
    assert set(it.places) == set(slopes)
    assert terms.loss.item() == pytest.approx(loss, rel=1e-6)
    assert it.logps.grad is not None
    assert it.logps.grad.tolist() == pytest.approx([slopes[place] for place in it.places], rel=1e-6, abs=1e-15)
    assert any(slopes.values())


def test_every_objective_is_checked() -> None:
    assert set(BY_HAND) == set(OBJECTIVES)


@pytest.mark.parametrize("name", ["grpo", "gspo", "cispo", "ppo"])
def test_the_batch_reaches_past_both_bounds_with_both_signs(name: str) -> None:
    wanted = objective(name)
    it = flat(wanted)
    with torch.no_grad():
        gaps = it.logps - it.old
        if name == "gspo":
            means = {i: float(gaps[it.owner == i].mean()) for i in range(len(it.counts))}
            gaps = torch.tensor([means[int(i)] for i in it.owner], dtype=torch.float64)
    seen = {
        ("over" if r > 1 + wanted.clip_high else "under" if r < 1 - wanted.clip_low else "within", a > 0)
        for r, a in zip(gaps.exp().tolist(), it.advantages.tolist(), strict=True)
    }
    outside = {(side, sign) for side in ("over", "under") for sign in (True, False)}
    assert ("within", True) in seen
    assert seen >= (outside if name != "cispo" else {("over", True)})


def test_the_figures_are_means_over_agent_tokens() -> None:
    wanted = objective("grpo")
    it, terms = ours(wanted)
    tokens = [(BATCH[i].tokens[t], float(a)) for (i, t), a in zip(it.places, it.advantages, strict=True)]
    ratios = [math.exp(token.logp - token.old) for token, _ in tokens]
    low = [r < 0.8 and a < 0 for r, (_, a) in zip(ratios, tokens, strict=True)]
    high = [r > 1.2 and a > 0 for r, (_, a) in zip(ratios, tokens, strict=True)]
    expected = {
        "clip_low_fraction": statistics.mean(map(float, low)),
        "clip_high_fraction": statistics.mean(map(float, high)),
        "ratio_mean": statistics.mean(ratios),
        "kl": statistics.mean(k3(token)[0] for token, _ in tokens),
    }
    assert {name: float(value) for name, value in terms.figures.items()} == pytest.approx(expected, rel=1e-9)
    assert 0 < expected["clip_low_fraction"] < 1 and 0 < expected["clip_high_fraction"] < 1
    _, free = ours(objective("grpo", kl=0.0))
    assert float(free.figures["kl"]) == pytest.approx(expected["kl"])  # shown, though nothing is pulled by it


def test_what_no_bound_holds_is_not_counted_as_clipped() -> None:
    _, terms = ours(objective("rloo"))
    assert float(terms.figures["clip_low_fraction"]) == float(terms.figures["clip_high_fraction"]) == 0
    it, cut = ours(objective("cispo"))
    over = float(((it.logps - it.old).exp() > 5).double().mean())
    assert float(cut.figures["clip_high_fraction"]) == pytest.approx(over) and over > 0


def test_no_reference_gives_no_kl_and_is_refused_where_one_is_needed() -> None:
    one = torch.zeros(1)
    args = (one, one, one, torch.zeros(1, dtype=torch.long), [1.0])
    assert "kl" not in policy_loss(*args, objective("gspo"), total=1).figures
    with pytest.raises(ValueError, match="kl=0.01"):
        policy_loss(*args, objective("grpo"), total=1)


@pytest.mark.parametrize("name", ["rloo", "reinforce"])
def test_a_budget_of_one_is_the_papers_sum_over_whole_completions(name: str) -> None:
    wanted = objective(name, average="budget", budget=1, kl=0.0)
    it, terms = ours(wanted)
    whole = [it.logps[it.owner == k].sum().item() for k in range(len(it.rows))]
    first = [float(it.advantages[it.owner == k][0]) for k in range(len(it.rows))]
    assert terms.loss.item() == pytest.approx(-statistics.mean(a * s for a, s in zip(first, whole, strict=True)))


@pytest.mark.parametrize("name", list(OBJECTIVES))
@pytest.mark.parametrize("kl", [0.0, 0.1])
def test_far_off_policy_nothing_overflows(name: str, kl: float) -> None:
    wanted = objective(name, **FIELDS.get(name, {}), kl=kl)
    logps = torch.tensor([-0.1, -0.2, -300.0, -0.5], requires_grad=True)
    old = torch.tensor([-200.0, -150.0, -0.1, -0.5])
    advantages, owner = torch.tensor([1.0, 1.0, -1.0, 1.0]), torch.tensor([0, 0, 1, 1])
    ref = torch.tensor([-300.0, -0.1, -0.1, -400.0])
    loss = policy_loss(logps, old, advantages, owner, token_weights([2, 2], wanted), wanted, ref=ref, total=4).loss
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.isfinite() and logps.grad is not None and logps.grad.isfinite().all()


# -- TRL's own code ----------------------------------------------------------------------------------------------------


def trl_loss(
    it: Flat, wanted: Objective, loss_type: str, correction: Tensor | None = None
) -> tuple[float, Tensor, Any]:
    """Run TRL 1.16's loss on the same rows, padded, with their observations; return it and its gradient [B, T]."""
    rows = [BATCH[i] for i in it.rows]
    width = max(len(row.tokens) for row in rows)

    def padded(pick: Callable[[Token], float]) -> Tensor:
        return torch.tensor(
            [[pick(token) for token in row.tokens] + [7.0] * (width - len(row.tokens)) for row in rows],
            dtype=torch.float64,
        )

    logps = padded(lambda token: token.logp).requires_grad_()
    real = torch.tensor([[1] * len(row.tokens) + [0] * (width - len(row.tokens)) for row in rows])
    marks = torch.tensor([[int(t.agent) for t in row.tokens] + [0] * (width - len(row.tokens)) for row in rows])
    advantages = torch.stack([it.advantages[it.owner == k][0] for k in range(len(rows))])
    trainer: Any = object.__new__(GRPOTrainer)
    cispo = wanted.surrogate == "cispo"
    vars(trainer).update(
        loss_type=loss_type,
        beta=wanted.kl,
        epsilon_low=wanted.clip_low,
        epsilon_high=1 + wanted.clip_high if cispo else wanted.clip_high,  # TRL's is the bound itself for cispo
        importance_sampling_level=wanted.ratio,
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1),
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=correction is not None,
        vllm_importance_sampling_correction=correction is not None,
        max_completion_length=wanted.budget,
        current_gradient_accumulation_steps=1,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(num_processes=1, reduce=lambda x, reduction: x, gather=lambda x: x),
        _metrics={"train": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *args, **more: (logps, torch.zeros_like(logps), None),
    )
    ids = torch.zeros_like(real)
    inputs = {
        "prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1] + 1, "completion_ids": ids, "completion_mask": real,
        "tool_mask": marks, "advantages": advantages, "old_per_token_logps": padded(lambda token: token.old),
        "ref_per_token_logps": padded(lambda token: token.ref), "num_items_in_batch": marks.sum(),
    }  # fmt: skip
    if correction is not None:
        spread = torch.ones_like(logps)
        spread = spread.detach().masked_scatter(marks.bool(), correction)
        inputs["importance_sampling_ratio"] = spread
    loss = trainer._compute_loss(None, inputs)
    loss.backward()
    assert logps.grad is not None
    return loss.item(), logps.grad, trainer._metrics["train"]


@pytest.mark.parametrize("beta", [0.0, 0.05])
@pytest.mark.parametrize(
    ("name", "loss_type"),
    [
        ("grpo", "grpo"), ("dapo", "dapo"), ("dapo", "bnpo"), ("dr_grpo", "dr_grpo"), ("cispo", "cispo"),
        ("gspo", "grpo"), ("starpo_s", "grpo"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("corrected", [False, True])
def test_trl_has_the_same_loss(name: str, loss_type: str, beta: float, corrected: bool) -> None:
    wanted = objective(name, **FIELDS.get(name, {}), kl=beta)
    it = flat(wanted)
    sampler = it.old + torch.linspace(-1.5, 0.5, len(it.old), dtype=torch.float64)
    correction = correction_weights(it.old, sampler, it.owner, "token_mask", 3.0) if corrected else None
    it, terms = ours(wanted, correction)
    loss, slopes, metrics = trl_loss(it, wanted, loss_type, correction)
    assert terms.loss.item() == pytest.approx(loss, rel=1e-6)
    mine = torch.zeros_like(slopes)
    assert it.logps.grad is not None
    for (i, t), value in zip(it.places, it.logps.grad, strict=True):
        mine[it.rows.index(i), t] = value
    torch.testing.assert_close(mine, slopes, rtol=1e-6, atol=1e-12)  # observations and padding: 0 on both sides
    if beta:
        assert float(terms.figures["kl"]) == pytest.approx(metrics["kl"][0], rel=1e-5)  # TRL sums it in float32
    if name == "grpo":
        for side in ("low", "high"):
            found = float(terms.figures[f"clip_{side}_fraction"])
            assert found == pytest.approx(metrics[f"clip_ratio/{side}_mean"][0], rel=1e-5)


# -- weights, corrections, the critic ----------------------------------------------------------------------------------


def test_weights_follow_agent_tokens_alone() -> None:
    counts = [2, 4, 0, 1]  # an empty completion is a trajectory, without a token to weigh
    assert token_weights(counts, objective("grpo")) == pytest.approx([1 / 8, 1 / 16, 0.0, 1 / 4])
    assert token_weights(counts, objective("dapo")) == pytest.approx([1 / 7, 1 / 7, 0.0, 1 / 7])
    assert token_weights(counts, objective("dr_grpo", budget=10)) == pytest.approx([1 / 40, 1 / 40, 0.0, 1 / 40])
    assert token_weights([], objective("grpo")) == []
    assert token_weights([0, 0], objective("dapo")) == [0.0, 0.0]


@pytest.mark.parametrize("name", list(OBJECTIVES))
def test_a_part_without_tokens_adds_nothing(name: str) -> None:
    wanted = objective(name, **FIELDS.get(name, {}))
    none = torch.zeros(0, requires_grad=True)
    owner = torch.zeros(0, dtype=torch.long)
    terms = policy_loss(none, none, none, owner, token_weights([0], wanted), wanted, ref=none, total=0)
    assert terms.loss.item() == 0 and all(float(value) == 0 for value in terms.figures.values())
    terms.loss.backward()  # type: ignore[no-untyped-call]


def test_corrections_truncate_or_mask_tokens_or_trajectories() -> None:
    train = torch.tensor([0.0, -1.0, -2.0, -1.0, -1.0], dtype=torch.float64, requires_grad=True)
    sampler = torch.tensor([-2.0, -1.5, -1.0, -1.5, -1.5], dtype=torch.float64)
    owner = torch.tensor([0, 0, 0, 1, 1])
    each = [math.exp(d) for d in (2.0, 0.5, -1.0, 0.5, 0.5)]
    first, second = math.exp(1.5), math.exp(1.0)
    expected = {
        "token_truncate": [3.0, *each[1:]],
        "token_mask": [0.0, *each[1:]],
        "sequence_truncate": [3.0] * 3 + [second] * 2,
        "sequence_mask": [0.0] * 3 + [second] * 2,
    }
    assert first > 3 > second
    for mode, weights in expected.items():
        found = correction_weights(train, sampler, owner, mode, 3.0)  # type: ignore[arg-type]
        assert found is not None and not found.requires_grad
        assert found.tolist() == pytest.approx(weights)
    assert correction_weights(train, sampler, owner, "off", 3.0) is None


def test_a_sampler_that_does_not_know_is_not_corrected_but_a_broken_trainer_shows() -> None:
    unknown, owner = torch.tensor([float("nan"), -1.0]), torch.tensor([0, 0])
    found = correction_weights(torch.tensor([-3.0, -1.5]), unknown, owner, "token_truncate", 3.0)
    assert found is not None and found.tolist() == pytest.approx([1.0, math.exp(-0.5)])
    broken = correction_weights(torch.tensor([-3.0, float("nan")]), unknown, owner, "token_truncate", 3.0)
    assert broken is not None and broken[1].isnan()


@pytest.mark.parametrize("clip", [None, 0.2])
def test_the_critic_is_held_near_what_it_was(clip: float | None) -> None:
    values, old, returns = [0.5, 1.0, -0.3, 0.9], [0.1, 0.9, 0.2, 0.8], [1.0, 0.0, 0.4, 1.0]
    owner, weights = [0, 0, 0, 1], [0.2, 0.4]
    loss, slopes = 0.0, []
    for v, o, r, i in zip(values, old, returns, owner, strict=True):
        held = v if clip is None else o + min(max(v - o, -clip), clip)
        larger, moves = ((v - r) ** 2, True) if (v - r) ** 2 >= (held - r) ** 2 else ((held - r) ** 2, held == v)
        loss += 0.5 * weights[i] * larger
        slopes.append(weights[i] * (v - r) if moves else 0.0)
    given = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    was, wanted = torch.tensor(old, dtype=torch.float64), torch.tensor(returns, dtype=torch.float64)
    found = value_loss(given, was, wanted, torch.tensor(owner), weights, clip)
    found.backward()  # type: ignore[no-untyped-call]
    assert found.item() == pytest.approx(loss, rel=1e-12)
    assert given.grad is not None and given.grad.tolist() == pytest.approx(slopes, rel=1e-9)
    assert clip is None or 0.0 in slopes


# -- names -------------------------------------------------------------------------------------------------------------


def test_grpo_is_the_formula_of_the_design() -> None:
    wanted = objective("grpo")
    assert (wanted.baseline, wanted.scale, wanted.average, wanted.ratio) == ("mean", "group_std", "trajectory", "token")
    assert (wanted.clip_low, wanted.clip_high, wanted.kl) == (0.2, 0.2, 0.01)


@pytest.mark.parametrize("name", list(OBJECTIVES))
def test_every_name_makes_an_objective_that_remembers_it(name: str) -> None:
    assert objective(name, **FIELDS.get(name, {}), kl=0.02).name == name


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("gropo", {}, ["Did you mean 'grpo'"]),
        ("grpo", {"klx": 1, "avrage": "token"}, ["klx", "avrage"]),
        ("grpo", {"budget": 10}, ["only objective.average=budget"]),
        ("grpo", {"kl": -1, "clip_low": 1.5, "scale": "std"}, ["kl", "clip_low", "scale"]),
        ("starpo_s", {"keep_spread": 2}, ["keep_spread"]),
        ("dapo", {"overlong_soft": 4}, ["give both or neither"]),
        ("dapo", {"overlong_soft": 4, "overlong_hard": 4}, ["less than objective.overlong_hard"]),
        ("reinforce", {"scale": "group_std"}, ["without a baseline"]),
        ("ppo", {"scale": "group_std"}, ["does not go with baseline=value"]),
    ],
)
def test_what_cannot_be_is_refused_with_every_fault(name: str, changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValidationError) as caught:
        objective(name, **changes)
    assert caught.value.error_count() == len(words) and all(word in str(caught.value) for word in words)


def test_a_budget_is_needed_where_the_average_is_by_one() -> None:
    with pytest.raises(ConfigError, match="needs budget"):
        objective("dr_grpo")
    assert ObjectiveSection(name="dr_grpo").chosen(12).budget == 12


@pytest.mark.parametrize("name", list(OBJECTIVES))
def test_the_docs_have_each_name_with_its_constants(name: str) -> None:
    page = (Path(__file__).parents[4] / "docs" / "objectives.md").read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` ")]
    made = OBJECTIVES[name]
    constants = row.split("|")[3]
    low, high = (f"{value:f}".rstrip("0").rstrip(".") for value in (made.clip_low, made.clip_high))
    assert f"clip {low} / {high}" in constants and f"kl {made.kl:g}" in constants
    assert made.average in row.split("|")[2]
