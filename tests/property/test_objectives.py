"""An update may be computed in any parts, and in any order of its trajectories."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from offline_agent.training.online.losses import AgentTokens, correction_weights, policy_loss, token_weights, value_loss
from offline_agent.training.online.objectives import OBJECTIVES, Objective, objective

CLOSE = {"rtol": 1e-9, "atol": 1e-12}
FIELDS: dict[str, dict[str, Any]] = {"dr_grpo": {"budget": 9}}
MODES = ("off", "token_truncate", "sequence_truncate", "token_mask", "sequence_mask")


class Case(NamedTuple):
    objective: Objective
    mode: Any
    counts: list[int]
    parts: list[list[int]]  # trajectories of each part
    seed: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    name = draw(st.sampled_from(sorted(OBJECTIVES)))
    wanted = objective(name, **FIELDS.get(name, {}), kl=draw(st.sampled_from([0.0, 0.05])))
    counts = draw(st.lists(st.integers(0, 6), min_size=1, max_size=8))
    order = draw(st.permutations(range(len(counts))))
    cuts = sorted(draw(st.lists(st.integers(0, len(counts)), max_size=4)))
    bounds = [0, *cuts, len(counts)]
    parts = [list(order[a:b]) for a, b in zip(bounds, bounds[1:], strict=False)]
    return Case(wanted, draw(st.sampled_from(MODES)), counts, parts, draw(st.integers(0, 2**16)))


def columns(total: int, seed: int) -> list[Tensor]:
    """Log-probs, old ones, the reference's, the sampler's, advantages, values, old values and returns, each [total]."""
    made = torch.Generator().manual_seed(seed)
    noise = torch.randn(8, total, generator=made, dtype=torch.float64)
    noise[:4] = -1.5 + 0.5 * noise[:4]
    return list(noise)


def shares(case: Case, trajectories: list[list[int]]) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Add up what the parts give: losses and figures, and the gradients by log-probs and by values."""
    total = sum(case.counts)
    logps, old, ref, sampler, advantages, values, was, returns = columns(total, case.seed)
    logps.requires_grad_()
    values.requires_grad_()
    starts = [sum(case.counts[:i]) for i in range(len(case.counts))]
    weights = token_weights(case.counts, case.objective)
    sums: dict[str, Tensor] = {}
    for part in trajectories:
        places = torch.tensor([starts[i] + k for i in part for k in range(case.counts[i])], dtype=torch.long)
        sizes = torch.tensor([case.counts[i] for i in part], dtype=torch.long)
        owner = torch.repeat_interleave(torch.arange(len(part)), sizes)
        mine = [weights[i] for i in part]
        correction = correction_weights(old[places], sampler[places], owner, case.mode, 1.5)
        tokens = AgentTokens(logps[places], old[places], advantages[places], owner, mine, ref[places], correction)
        terms = policy_loss(tokens, case.objective, total)
        critic = value_loss(values[places], was[places], returns[places], owner, mine, 0.2)
        (terms.loss + critic).backward()  # type: ignore[no-untyped-call]
        for name, value in {"loss": terms.loss.detach(), "critic": critic.detach(), **terms.figures}.items():
            sums[name] = sums.get(name, torch.zeros((), dtype=torch.float64)) + value
    assert logps.grad is not None and values.grad is not None
    return sums, logps.grad, values.grad


@settings(max_examples=150, deadline=None)
@given(cases())
def test_parts_add_up_to_the_whole(case: Case) -> None:
    whole, slopes, pulls = shares(case, [list(range(len(case.counts)))])
    parts, part_slopes, part_pulls = shares(case, case.parts)
    assert set(parts) == set(whole)
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, **CLOSE)
    torch.testing.assert_close(part_slopes, slopes, **CLOSE)
    torch.testing.assert_close(part_pulls, pulls, **CLOSE)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8))
def test_weights_say_how_it_is_averaged(counts: list[int]) -> None:
    def covered(name: str, **changes: Any) -> float:
        wanted = objective(name, **changes)
        return math.fsum(w * n for w, n in zip(token_weights(counts, wanted), counts, strict=True))

    full = sum(1 for count in counts if count)
    assert covered("grpo") == pytest.approx(full / len(counts))  # an empty completion is in the mean, as nothing
    assert covered("dapo") == pytest.approx(1.0 if full else 0.0)
    assert covered("dr_grpo", budget=9) == pytest.approx(sum(counts) / len(counts) / 9)


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(sorted(OBJECTIVES)), st.integers(0, 2**16))
def test_on_policy_every_surrogate_pulls_alike(name: str, seed: int) -> None:
    """With the weights of the roll-outs, each gradient is -A times the weight of its token."""
    wanted = objective(name, **FIELDS.get(name, {}), kl=0.0)
    counts = [3, 1, 4]
    logps, _, _, _, advantages, *_ = columns(sum(counts), seed)
    owner = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
    if wanted.ratio == "sequence":  # one ratio has one advantage
        advantages = advantages[:3][owner]
    weights = torch.tensor(token_weights(counts, wanted), dtype=torch.float64)
    logps.requires_grad_()
    terms = policy_loss(AgentTokens(logps, logps.detach(), advantages, owner, weights), wanted, sum(counts))
    terms.loss.backward()  # type: ignore[no-untyped-call]
    assert logps.grad is not None
    torch.testing.assert_close(logps.grad, -weights[owner] * advantages, **CLOSE)
    assert terms.figures["ratio_mean"] == pytest.approx(1.0)
