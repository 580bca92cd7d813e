"""On-policy distillation: loss and gradient against the formula with two models; what is shown in hindsight."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from offline_agent.training.online.distillation import PASSAGE
from offline_agent.training.online.objectives import Objective, ObjectiveSection, objective
from offline_agent.training.online.round_batch import Algorithm, PlayedRound
from offline_agent.training.online.samples import TrainingSample, sample
from offline_agent.training.online.trainer import OnlineTrainer, RoundSchedule
from offline_agent.training.trainer import TrainRun
from tests.helpers.online import online, samples
from tests.helpers.rendering import qwen
from tests.helpers.training import exact, far, model, plain_logps, settings
from tests.unit.training.online.test_samples import act, attempt, renderer, round_of


def trainer(folder: Path, chosen: Objective, drawn: list[TrainingSample], teacher: object) -> OnlineTrainer:
    """Return a trainer of one round and two updates."""
    own = online(1, passes=2)
    run = TrainRun(folder, lambda record: None)
    return OnlineTrainer(
        model(), qwen(), RoundSchedule(2, 2), settings(), run,
        rounds=lambda number, trained: PlayedRound(drawn, 1.0, {}), algorithm=Algorithm(chosen, own, teacher),
    )  # fmt: skip


def shown(one: TrainingSample) -> TrainingSample:
    """Return a sample with a longer prompt in hindsight."""
    return replace(one, hindsight=((5, 6, 7, *one.input_ids), (0, 0, 0, *one.action_mask), ()))


def logps_of(of: Any, one: TrainingSample) -> torch.Tensor:
    return plain_logps(of, one.input_ids[:1], one.input_ids[1:], one.action_mask[1:])


@pytest.mark.parametrize("share", [1.0, 0.3])
@pytest.mark.parametrize("who", ["another model", "sibling", "a server"])
def test_loss_and_gradient_are_those_of_the_formula(who: str, share: float, tmp_path: Path) -> None:
    drawn, other = samples(0), model(seed=1, layers=3)
    taught = [True] * len(drawn)
    if who == "sibling":
        taught = [place % 2 == 0 for place in range(len(drawn))]
        drawn = [shown(one) if has else one for one, has in zip(drawn, taught, strict=True)]
    elif who == "a server":
        drawn = [replace(one, teacher=tuple(0.1 * n - 5 for n in range(one.tokens))) for one in drawn]
    chosen = objective("grpo", kl=0.0, teacher="sibling" if who == "sibling" else "named", distil=share)
    own = trainer(tmp_path, chosen, drawn, other if who == "another model" else None)
    before, teacher = exact(own.model), exact(other)
    own.step(own.plan[0])
    own.model.zero_grad()
    with torch.no_grad():
        for number, weights in enumerate(own.model.parameters()):
            weights.add_(0.02 * torch.randn(weights.shape, generator=torch.Generator().manual_seed(number)))
    loss, figures = own.step(own.plan[1])
    found = {name: p.grad.clone() for name, p in own.model.named_parameters() if p.grad is not None}

    now, total, distance = exact(own.model), torch.zeros((), dtype=torch.float64), 0.0
    now.zero_grad()
    for one, has in zip(drawn, taught, strict=True):
        logps = logps_of(now, one)
        old = logps_of(before, one).detach()
        advantage = (1 - share) * torch.tensor(one.advantages).double()
        if has:
            said = {
                "another model": lambda one=one: logps_of(teacher, one),
                "sibling": lambda one=one: plain_logps(before, (5, 6, 7), one.input_ids, one.action_mask),
                "a server": lambda one=one: torch.tensor(one.teacher).double(),
            }[who]().detach()
            advantage = advantage + share * (said - old)
            distance += float((old - said).sum())
        ratio = (logps - old).exp()
        total = total - torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean() / len(drawn)
    total.backward()  # type: ignore[no-untyped-call]
    tokens = sum(one.tokens for one in drawn)
    assert loss == pytest.approx(total.item(), rel=1e-4, abs=1e-6)
    assert far(found, {name: p.grad for name, p in now.named_parameters() if p.grad is not None}) < 1e-4
    assert figures["teacher_kl"] == pytest.approx(distance / tokens, rel=1e-4, abs=1e-5)
    share_taught = sum(one.tokens for one, has in zip(drawn, taught, strict=True) if has) / tokens
    assert figures["taught"] == pytest.approx(share_taught)


def test_a_failed_attempt_is_shown_what_the_shortest_success_did_and_keeps_its_own_turns() -> None:
    chosen = objective("grpo", teacher="sibling")
    rows = attempt(0, 1.0), attempt(1, 0.0, ("green", "socks")), attempt(2, 1.0, ("blue",)), attempt(3, None)
    made = round_of(*rows)
    won, lost, short = sample(made, renderer(), chosen, max_length=999)
    assert won.hindsight is None and short.hindsight is None and lost.hindsight is not None
    ids, mask, starts = lost.hindsight
    own = [token for query in ("green", "socks") for token in act(query).token_ids or ()]
    assert [token for token, kept in zip(ids, mask, strict=True) if kept] == own and starts == lost.starts
    prompt = renderer().decode(ids[: mask.index(1)])
    assert prompt.count("query\": \"") == 1 and "found blue" not in prompt
    assert f"Find red shoes.\n\n{PASSAGE}\n{act('blue').text}<|im_end|>" in prompt
    (alone,) = sample(round_of(attempt(1, 0.0)), renderer(), chosen, max_length=999)
    assert alone.hindsight is None
    tight = sample(made, renderer(), chosen, max_length=len(lost.input_ids))
    assert [one.hindsight for one in tight] == [None] * 3  # the longer row does not fit: it is learnt from all the same


def test_a_share_without_a_teacher_is_refused() -> None:
    with pytest.raises(ValueError, match="got 0.5 and no objective.teacher"):
        ObjectiveSection(distil=0.5)
    assert ObjectiveSection(teacher="sibling").chosen().distil == 1.0
