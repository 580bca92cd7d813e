"""The online trainer: losses against float64, rounds and minibatches, the critic, going on, stopping."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from offline_agent.errors import TrainingError
from offline_agent.training import checkpoints
from offline_agent.training.data.updates import Update
from offline_agent.training.models import add_adapters
from offline_agent.training.online import advantages
from offline_agent.training.online.losses import AgentTokens, policy_loss, token_weights
from offline_agent.training.online.objectives import OBJECTIVES, objective
from offline_agent.training.online.round_batch import Algorithm, PlayedRound
from offline_agent.training.online.samples import TrainingSample
from offline_agent.training.online.settings import OnlineSettings
from offline_agent.training.online.trainer import OnlineTrainer, train_online
from offline_agent.training.settings import LoraSection
from offline_agent.training.trainer import TrainRun
from tests.helpers.online import online, rounds, samples, train, trainer
from tests.helpers.rendering import qwen
from tests.helpers.training import exact, far, model, settings

CHOSEN = {name: {"budget": 40} if OBJECTIVES[name].average == "budget" else {} for name in OBJECTIVES}
CHOSEN["gspo"] = {"clip_low": 0.005, "clip_high": 0.005}  # its own bounds would clip every sequence here


class Stop(Exception):
    """A stop in the middle of a run."""


def plain(of: Any, ids: tuple[int, ...], mask: tuple[int, ...], temperature: float) -> torch.Tensor:
    """Return the agent tokens' log-probabilities by a pass of one sequence through the model's own logits."""
    full = torch.tensor([ids])
    logps = torch.log_softmax(of(full).logits[0, :-1] / temperature, -1).gather(-1, full[0, 1:, None])[:, 0]
    return logps[torch.tensor(mask[1:], dtype=torch.bool)]


@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name != "ppo"])
@pytest.mark.parametrize("tokens", [4096, 64])
def test_loss_and_gradients_are_those_of_a_float64_reference(name: str, tokens: int, tmp_path: Path) -> None:
    chosen = replace(objective(name, **CHOSEN[name]), kl=0.05)
    own = trainer(tmp_path, chosen, rounds(temperature=0.7), passes=2, more={"tokens": tokens})
    drawn = samples(0)
    reference, old = exact(own._frozen), exact(own.model)
    own.step(own.plan[0])  # the round is played with the weights as they are here
    own.model.zero_grad()
    with torch.no_grad():
        for number, weights in enumerate(own.model.parameters()):
            weights.add_(0.02 * torch.randn(weights.shape, generator=torch.Generator().manual_seed(number)))
    loss, figures = own.step(own.plan[1])
    found = {n: p.grad.clone() for n, p in own.model.named_parameters() if p.grad is not None}

    now = exact(own.model)
    now.zero_grad()
    counts = [sample.tokens for sample in drawn]
    seen = [[plain(m, s.input_ids, s.action_mask, 0.7) for s in drawn] for m in (now, old, reference)]
    given = torch.cat([torch.tensor(s.advantages) for s in drawn]).double()
    owner, weights = torch.repeat_interleave(torch.tensor(counts)), token_weights(counts, chosen)
    logps, before, ref = map(torch.cat, seen)
    tokens = AgentTokens(logps, before.detach(), given, owner, weights, ref.detach())
    terms = policy_loss(tokens, chosen, sum(counts))
    terms.loss.backward()
    if chosen.ratio == "sequence":
        assert 0 < sum(float(terms.figures[f"clip_{side}_fraction"]) for side in ("low", "high")) < 1
    assert loss == pytest.approx(terms.loss.item(), rel=1e-4, abs=1e-6)
    assert far(found, {n: p.grad for n, p in now.named_parameters() if p.grad is not None}) < 1e-4
    assert figures["kl"] == pytest.approx(float(terms.figures["kl"]), rel=1e-3)


@pytest.mark.parametrize("trunk", [False, True])
@pytest.mark.parametrize("tokens", [4096, 64])
def test_policy_and_critic_together_are_those_of_a_float64_reference(trunk: bool, tokens: int, tmp_path: Path) -> None:
    chosen = replace(objective("ppo"), kl=0.05)
    more = {"tokens": tokens}
    own = trainer(tmp_path, chosen, rounds(critic=True, temperature=0.7), passes=2, trunk=trunk, lam=0.95, more=more)
    drawn, chance = samples(0, critic=True), torch.Generator().manual_seed(0)
    with torch.no_grad():  # a critic of all 0 would hide which hidden states it reads
        own.critic.head.weight.copy_(0.3 * torch.randn(own.critic.head.weight.shape, generator=chance))
    reference, old, critic = exact(own._frozen), exact(own.model), exact(own.critic)
    own.step(own.plan[0])
    own.model.zero_grad(), own.critic.zero_grad()
    with torch.no_grad():
        for weights in (*own.model.parameters(), *own.critic.parameters()):
            weights.add_(0.02 * torch.randn(weights.shape, generator=chance))
    loss, figures = own.step(own.plan[1])
    trained = {**dict(own.model.named_parameters()), **dict(own.critic.named_parameters())}
    found = {name: weights.grad.clone() for name, weights in trained.items() if weights.grad is not None}

    def values(of: Any, head: Any, sample: Any, attached: bool) -> torch.Tensor:
        hidden = of.model(input_ids=torch.tensor([sample.input_ids])).last_hidden_state[0, :-1]
        read = (hidden if attached else hidden.detach()) @ head.head.weight[0] + head.head.bias[0]
        return read[torch.tensor(sample.action_mask[1:], dtype=torch.bool)]

    now, head = exact(own.model), exact(own.critic)
    now.zero_grad()
    head.zero_grad()
    counts = [sample.tokens for sample in drawn]
    before = [values(old, critic, sample, False).detach() for sample in drawn]
    earned = [[0.0] * (sample.tokens - 1) + [sample.reward] for sample in drawn]
    both = [advantages.gae(r, v.tolist(), 1.0, 0.95) for r, v in zip(earned, before, strict=True)]
    given = torch.cat([torch.tensor(a) for a in advantages.whiten([estimate for estimate, _ in both])])
    returns = torch.cat([torch.tensor(target) for _, target in both])
    seen = [[plain(m, s.input_ids, s.action_mask, 0.7) for s in drawn] for m in (now, old, reference)]
    owner, weights = torch.repeat_interleave(torch.tensor(counts)), token_weights(counts, chosen)
    logps, played, ref = map(torch.cat, seen)
    tokens = AgentTokens(logps, played.detach(), given, owner, weights, ref.detach())
    terms = policy_loss(tokens, chosen, sum(counts))
    guessed = torch.cat([values(now, head, sample, trunk) for sample in drawn])
    held = torch.cat(before) + (guessed - torch.cat(before)).clamp(-0.2, 0.2)
    error = torch.maximum((guessed - returns) ** 2, (held - returns) ** 2)
    whole = terms.loss + 0.5 * (torch.tensor(weights, dtype=torch.float64)[owner] * 0.5 * error).sum()
    whole.backward()  # type: ignore[no-untyped-call]
    assert loss == pytest.approx(whole.item(), rel=1e-4, abs=1e-6)
    both_ = {**dict(now.named_parameters()), **dict(head.named_parameters())}
    assert far(found, {name: p.grad for name, p in both_.items() if p.grad is not None}) < 1e-4


def test_minibatches_and_passes_see_every_trajectory_as_often_as_they_should(tmp_path: Path) -> None:
    own = trainer(tmp_path, objective("grpo"), rounds(), passes=3, minibatches=2)
    own._begin(own.model, 0)
    for turn in range(3):
        seen = [unit.index for part in range(2) for unit in own._filled(0, 2 * turn + part).rows]
        assert sorted(seen) == list(range(6))
    groups = [{unit.tree for unit in own._filled(0, part).rows} for part in range(2)]
    assert not groups[0] & groups[1]  # groups are not broken


def test_a_round_with_nothing_to_learn_changes_nothing_and_the_run_goes_on(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = []
    trained = model()
    kept: list[list[torch.Tensor]] = []

    def log(record: dict[str, Any]) -> None:
        records.append(record)
        kept.append([weights.clone() for weights in trained.parameters()])

    train(tmp_path, trained, play=rounds(empty=(1,)), log=log)
    assert [record["loss"] == 0.0 for record in records] == [False, True, False]
    assert all(torch.equal(a, b) for a, b in zip(kept[0], kept[1], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(kept[1], kept[2], strict=True))
    assert "entropy" not in records[1] and records[1]["reward_mean"] == 0.5


@pytest.mark.parametrize("correction", ["off", "token_truncate", "sequence_mask"])
def test_the_sampler_is_corrected_as_it_was_asked_for(correction: str, tmp_path: Path) -> None:
    """Log-probabilities of the samples are made up, so weights are far from 1, and cut at the cap."""
    chosen = replace(objective("reinforce"), kl=0.0)
    own = trainer(tmp_path, chosen, rounds(), correction=correction, cap=0.01)
    loss, _ = own.step(own.plan[0])
    now, weights = [plain(model(), s.input_ids, s.action_mask, 1.0).detach() for s in samples(0)], []
    for s, logps in zip(samples(0), now, strict=True):
        gaps = logps - torch.tensor(s.logps)
        weights.append({
            "off": torch.ones_like(gaps),
            "token_truncate": gaps.exp().clamp(max=0.01),
            "sequence_mask": torch.where(gaps.sum().exp() > 0.01, 0.0, gaps.sum().exp()).expand_as(gaps),
        }[correction])  # fmt: skip
    terms = [w * torch.tensor(s.advantages) * p for w, s, p in zip(weights, samples(0), now, strict=True)]
    assert loss == pytest.approx(-float(torch.cat(terms).mean()), rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("name", ["grpo", "ppo"])
@pytest.mark.parametrize("stop_at", [1, 3, 4])
def test_a_stopped_run_goes_on_as_if_it_had_not_been(name: str, stop_at: int, tmp_path: Path) -> None:
    chosen, more = objective(name), {"passes": 2, "rounds": 3}
    whole = train(tmp_path / "whole", chosen=chosen, **more)  # type: ignore[arg-type]

    def log(record: dict[str, Any]) -> None:
        if record["update"] == stop_at:
            raise Stop

    with pytest.raises(Stop):
        train(tmp_path / "run", chosen=chosen, log=log, **more)  # type: ignore[arg-type]
    result = train(tmp_path / "run", chosen=chosen, **more)  # type: ignore[arg-type]
    assert result.resumed_at == (stop_at - 1) // 2 * 2
    assert result.curve == pytest.approx(whole.curve, abs=1e-6)


def test_a_critic_learns_what_follows(tmp_path: Path) -> None:
    def play(number: int, model: Any) -> PlayedRound:
        return PlayedRound([replace(s, reward=0.8) for s in samples(0, critic=True)], 1.0)

    records: list[dict[str, Any]] = []
    train(
        tmp_path,
        chosen=objective("ppo"),
        play=play,
        log=records.append,
        rounds=40,
        learning_rate=0.05,
        clip=None,
        lam=1.0,
    )
    assert records[0]["value"] == pytest.approx(0.5 * 0.64, rel=1e-3)
    assert records[-1]["value"] < 0.1 * records[0]["value"]


def test_adapters_are_trained_and_switched_off_for_the_reference(tmp_path: Path) -> None:
    trained = add_adapters(model(), LoraSection(rank=4), 0)
    before = {n: w.clone() for n, w in trained.named_parameters()}
    records: list[dict[str, Any]] = []
    train(tmp_path, trained, log=records.append, passes=2)
    moved = {n for n, w in trained.named_parameters() if not torch.equal(w, before[n])}
    assert moved and all("lora_" in name for name in moved)
    assert records[0]["kl"] == pytest.approx(0, abs=1e-6) and records[-1]["kl"] > 1e-6


def test_the_watch_stops_the_run_at_the_newest_sound_checkpoint(tmp_path: Path) -> None:
    trained, kept = model(), dict[int, list[torch.Tensor]]()

    def log(record: dict[str, Any]) -> None:
        kept[record["update"]] = [weights.clone() for weights in trained.parameters()]
        assert record["tools"] == {"go": 1.0}

    def watch(record: Mapping[str, Any]) -> int | None:
        return 2 if record["update"] == 4 else None

    result = train(tmp_path, trained, rounds=8, log=log, watch=watch, more={"keep": 8})
    assert result.updates == 4 and max(kept) == 4
    assert all(isinstance(value, int | float) for record in result.records for value in record.values())
    assert all(torch.equal(a, b) for a, b in zip(trained.parameters(), kept[2], strict=True))
    assert "checkpoint-2" in result.warnings[0]


def test_without_a_sound_checkpoint_the_weights_are_those_given(tmp_path: Path) -> None:
    trained = model()
    result = train(tmp_path, trained, rounds=4, watch=lambda record: 0)
    assert result.updates == 1 and "those given" in result.warnings[0]
    assert all(torch.equal(a, b) for a, b in zip(trained.parameters(), model().parameters(), strict=True))


def test_a_bad_loss_stops_the_run_and_names_the_rows(tmp_path: Path) -> None:
    def play(number: int, model: Any) -> PlayedRound:
        drawn = samples(number)
        if number == 2:
            drawn[1] = replace(drawn[1], advantages=(float("nan"),) * drawn[1].tokens)
        return PlayedRound(drawn, 1.0)

    with pytest.raises(TrainingError, match="round 2, task-0/1"):
        train(tmp_path, play=play, rounds=4)
    left = checkpoints.newest(tmp_path / "checkpoints")
    assert left is not None and left.name == "checkpoint-2"


def test_the_difference_of_sampler_and_trainer_is_measured_at_temperature_1(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = []
    train(tmp_path, log=records.append, rounds=1)
    drawn = samples(0)
    seen = [plain(model(), s.input_ids, s.action_mask, 1.0) for s in drawn]
    gaps = torch.cat([(a - torch.tensor(s.logps)).abs() for a, s in zip(seen, drawn, strict=True)])
    assert records[0]["mismatch"] == pytest.approx(float(gaps.mean()), rel=1e-4)
    train(tmp_path / "warm", play=rounds(temperature=0.7), log=records.append, rounds=1)
    assert "mismatch" not in records[-1]


def test_tokens_of_older_weights_are_weighed_by_the_decoupled_formula() -> None:
    """AReaL's: min(prox / behaviour, cap) times PPO's surrogate with its ratio to prox, on numbers made by hand."""
    behaviour, prox, now = (-1.0, -3.0, -0.5), (-1.2, -1.0, -0.5), (-1.1, -1.5, -0.1)
    one = TrainingSample("one", "t", (5, 6, 7, 8), (0, 1, 1, 1), behaviour, (3,), 1.0, (1.0, -1.0, 2.0))
    scores = SimpleNamespace(logps=torch.tensor(now, requires_grad=True), entropy=torch.zeros(3), hidden=None)
    weights = (math.exp(-0.2), 3.0, 1.0)  # the second would be exp(2)
    surrogate = (math.exp(0.1), -0.8, 2 * 1.2)  # the second's ratio is held at 0.8, the third's at 1.2
    for behind, weighed in ((1, weights), (0, (1.0,) * 3)):
        algorithm = Algorithm(objective("grpo", kl=0.0), OnlineSettings(1, behind=behind))
        batch = algorithm.batch(PlayedRound([one], 1.0))
        batch.old = [torch.tensor(prox)]
        batch.credit()
        parts = batch.loss(Update(0, tuple(batch.units), ()), batch.units, [torch.arange(3)], scores, None)
        assert parts["loss"].item() == pytest.approx(-sum(w * s for w, s in zip(weighed, surrogate, strict=True)) / 3)
        assert parts["mismatch"].item() == pytest.approx((0.2 + 2.0) / 3)


@pytest.mark.parametrize("rank", [0, 2])
def test_the_model_stays_as_it_is_while_somebody_copies_it(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = add_adapters(model(), LoraSection(rank=rank), 0) if rank else model()
    copied: list[Any] = []  # since the round was played, and before anything changes

    def play(number: int, given: Any) -> PlayedRound:
        assert not copied
        copied[:] = [w.clone() for w in given.parameters()]
        return PlayedRound(samples(number), 1.0)

    def settle() -> None:
        assert all(torch.equal(a, b) for a, b in zip(copied, trained.parameters(), strict=bool(copied)))
        copied.clear()

    if rank:
        off = trained.disable_adapter
        monkeypatch.setattr(trained, "disable_adapter", lambda: off() if not copied else pytest.fail("it is copied"))
    algorithm = Algorithm(objective("grpo", kl=0.1), online(3, minibatches=2))
    run = TrainRun(tmp_path, lambda record: None, settle=settle)
    assert train_online(trained, qwen(), play, settings(), algorithm, run).updates == 6


def test_no_copy_of_a_large_model_is_kept_where_the_loss_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offline_agent.training.online.trainer._SMALL", 0)
    records: list[dict[str, Any]] = []
    chosen = objective("grpo", kl=0.0)
    result = train(tmp_path / "a", chosen=chosen, log=records.append, watch=lambda record: 0)
    assert "kl" not in records[0] and "lower checkpoints.every" in result.warnings[0]
    train(tmp_path / "b", log=records.append, rounds=1)
    assert "kl" in records[-1]


def test_a_run_that_was_stopped_and_killed_before_it_ended_stops_again(tmp_path: Path) -> None:
    def watch(record: Mapping[str, Any]) -> int | None:
        return 2 if record["update"] == 4 else None

    class Killed(Exception):
        """Between the stop and the end of the run."""

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(OnlineTrainer, "go_back", lambda self, sound: (_ for _ in ()).throw(Killed))
        train(tmp_path, rounds=8, watch=watch, more={"keep": 8})
    again = train(tmp_path, rounds=8, watch=watch, more={"keep": 8})
    assert (again.resumed_at, again.updates) == (3, 4) and "checkpoint-2" in again.warnings[0]


def test_the_sampler_is_compared_with_the_weights_that_played_in_every_update_of_a_round(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = []
    chosen = objective("reinforce")
    train(tmp_path, chosen=chosen, log=records.append, rounds=1, passes=3, more={"learning_rate": 0.05})
    assert [r["mismatch"] for r in records] == pytest.approx([records[0]["mismatch"]] * 3, rel=1e-5)
    assert records[0]["gradient"] > 0
