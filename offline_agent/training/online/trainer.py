"""Policy-gradient training on fresh roll-outs, over packs that share prefixes.

A round feeds `passes` times `minibatches` updates. Everything is over agent tokens: the surrogate, K3, entropies,
counts.
"""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from torch import Tensor, nn

from offline_agent.seeding import derive_seed
from offline_agent.training import checkpoints
from offline_agent.training.data.updates import (
    RoundSchedule,
    Unit,
    Update,
    counted,
    fill,
)
from offline_agent.training.online.round_batch import Algorithm, PlayedRound, RoundBatch
from offline_agent.training.prefix_sharing.head import evaluating
from offline_agent.training.prefix_sharing.log_probabilities import Scorer
from offline_agent.training.settings import TrainResult, TrainSettings
from offline_agent.training.state import shard, transfer
from offline_agent.training.trainer import PackedTrainer, Sums, TrainRun, still


class Critic(nn.Module):
    """A value head: a linear map from the hidden state that predicts a token to the expected return; 0 at the start.

    Args:
        model: The model whose hidden states it reads.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.head = nn.Linear(model.config.get_text_config().hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return values [S] of hidden states [S, H], in float32."""
        values: Tensor = self.head(hidden.to(self.head.weight.dtype))
        return values[:, 0]


_SMALL = 100_000_000  # weights up to which a copy of the model as it was given is kept though the loss does not need it
_LOOK = 10  # rounds between two measurements of K3 where the loss does not need it

_OF_ROWS = (
    "policy", "entropy", "kl", "clip_low_fraction", "clip_high_fraction", "ratio_mean", "mismatch", "value",
    "teacher_kl", "taught",
)  # fmt: skip
_SUMMED = ("loss", *_OF_ROWS)


Rounds = Callable[[int, Any], PlayedRound]
"""Plays a round, by its number, with the weights of the model it is given."""


def train_online(
    model: Any,
    tokenizer: Any,
    rounds: Rounds,
    settings: TrainSettings,
    algorithm: Algorithm,
    run: TrainRun,
) -> TrainResult:
    """Train on fresh roll-outs, in place; a run that was stopped goes on from its newest whole checkpoint.

    Minimised is the algorithm's loss, see `RoundBatch`. The reference is the model as it is given (a PeftModel: with
    its adapters off).

    Args:
        model: A causal language model or a PeftModel.
        tokenizer: Goes with the checkpoints.
        rounds: Plays; a round that is asked for again gives the same.
        settings: Settings of the training; `epochs`, `rows` and `max_updates` are not read, `every` counts rounds.
        algorithm: The objective to maximise, with rounds, passes, and what else is not of an optimizer.
        run: Where it writes, who hears of it, and who stops it.

    Raises:
        ConfigError: The objective asks for something that the model cannot give.
        TrainingError: The loss or gradient is no number or too large, or a checkpoint could not be written; what was
            good before is untouched.
    """
    online = algorithm.online
    plan = RoundSchedule(online.rounds * online.per_round, online.per_round)
    trainer = OnlineTrainer(model, tokenizer, plan, settings, run, rounds=rounds, algorithm=algorithm)
    trainer.go()
    if trainer.sound is not None:
        trainer.go_back(trainer.sound)
    return trainer.result(warnings=tuple(trainer.warnings))


class OnlineTrainer(PackedTrainer):
    """A trainer on fresh roll-outs.

    Args:
        rounds, algorithm: See `train_online`.
        more: See `PackedTrainer`.
    """

    summed = _SUMMED
    norm = "gradient"
    _batch: RoundBatch

    def __init__(
        self,
        model: Any,
        *more: Any,
        rounds: Rounds,
            algorithm: Algorithm,
    ) -> None:
        self.rounds, self.algorithm, self.online = rounds, algorithm, algorithm.online
        self.warnings: list[str] = []
        self.sound: int | None = None
        self._number = -1  # of the round in `_batch`
        self._adapted = hasattr(model, "disable_adapter")
        self._frozen: Any = None
        if not self._adapted and (algorithm.needs_reference or sum(w.numel() for w in model.parameters()) < _SMALL):
            self._frozen = copy.deepcopy(model).eval().requires_grad_(False)
            still(self._frozen)
        self.critic = Critic(model) if algorithm.needs_values else None
        self.critic_rate = self.online.critic.learning_rate or 10 * more[2].learning_rate
        super().__init__(model, *more)
        self._teacher, self._teacher_scorer = algorithm.teacher, None
        if self._teacher is not None:
            still(self._teacher.to(self.accelerator.device))
            self._teacher_scorer = Scorer(self._teacher, share=self.settings.share_prefixes == "auto")

    @property
    def updates_between_checkpoints(self) -> int:
        """Return the number of updates between two checkpoints; the settings count rounds."""
        return self.settings.every * self.online.per_round

    # -- a round -----------------------------------------------------------------------------------------------------

    def step(self, update: Update) -> tuple[float, dict[str, Any]]:
        """Play the round where the update is its first, then add the update's gradients; return loss and figures."""
        started = time.perf_counter()
        turn, part = divmod(update.number, self.online.per_round)
        if self._number != turn:
            self._begin(self.model, turn)
        update = self._filled(update.number, part)
        if update.rows:
            loss, figures = super().step(update)
        else:  # nothing to learn: without gradients the optimizer changes nothing
            loss, figures = 0.0, dict.fromkeys(("agent_tokens", "tokens", "raw_tokens"), 0.0)
        figures["seconds"] = time.perf_counter() - started
        played = self._batch.played.figures
        return loss, figures | {name: float(value) for name, value in played.items() if isinstance(value, int | float)}

    def _begin(self, model: Any, number: int) -> None:
        """Play a round and compute what its updates compare with."""
        batch = self.algorithm.batch(self._played(number))
        self._batch, self._number = batch, number
        if not batch.units:
            return
        if self.critic is not None or self.online.per_round > 1:  # else the update's own weights are these
            batch.old, batch.values = self._look(model, batch.units, values=self.critic is not None)
        for other in (self._frozen, self._teacher):
            if self.state.sharded and other is not None:
                shard(self.accelerator, other)
        if self.algorithm.objective.teacher is not None:
            batch.teacher = self._taught(model, batch)
        if self.algorithm.needs_reference or (number % _LOOK == 0 and (self._adapted or self._frozen is not None)):
            if self._adapted:
                self._run.settle()
            with self.model.disable_adapter() if self._adapted else contextlib.nullcontext():
                batch.ref, _ = self._look(self._frozen or model, batch.units)
        batch.credit()

    def _played(self, number: int) -> PlayedRound:
        """Have the first process play, with the weights as they are, and all of them see what it played."""
        model = self.state.whole()
        if self.accelerator.num_processes == 1:
            return self.rounds(number, model)
        found = [self.rounds(number, model) if self.accelerator.is_main_process else None]
        played: PlayedRound = broadcast_object_list(found)[0]
        return played

    def _look(self, model: Any, units: Sequence[Unit], values: bool = False) -> tuple[list[Tensor], list[Tensor]]:
        """Return log-probabilities (and values) of the units' agent tokens without gradients, on the CPU.

        Each process computes its share of the packs; all of them get everything.
        """
        mine: dict[int, tuple[Tensor, Tensor | None]] = {}
        processes, place = self.accelerator.num_processes, self.accelerator.process_index
        packs = fill(units, self.settings.tokens, self.scorer.shares)
        with evaluating(model):
            for pack in counted(packs[place::processes], "log-probabilities of the round"):
                packed, scores = self.score(model, pack)
                guessed = self.critic(scores.hidden) if values and self.critic is not None else None
                for unit, row in zip(pack, packed.rows, strict=True):
                    mine[unit.index] = (scores.logps[row].cpu(), None if guessed is None else guessed[row].cpu())
            for idle in self.idle(packs, packs[place::processes]):
                self.score(model, idle)
        if processes > 1:
            parts: list[Any] = [None] * processes
            torch.distributed.all_gather_object(parts, mine)
            mine = {index: entry for part in parts for index, entry in part.items()}
        logps = [mine[unit.index][0] for unit in units]
        return logps, [value for unit in units if (value := mine[unit.index][1]) is not None]

    def _taught(self, model: Any, batch: RoundBatch) -> list[Tensor]:
        """Return the teacher's log-probabilities [n] of each sample's agent tokens; NaN where it has none."""
        samples, asked = batch.played.samples, batch.asked()
        known = {place: torch.tensor(one.teacher) for place, one in enumerate(samples) if one.teacher is not None}
        own, self.scorer = self.scorer, self._teacher_scorer or self.scorer
        found, _ = self._look(self._teacher or model, asked)
        self.scorer = own
        known |= dict(zip((unit.index for unit in asked), found, strict=True))
        return [known.get(unit.index, torch.full((unit.scored,), math.nan)) for unit in batch.units]

    def _filled(self, number: int, part: int) -> Update:
        rows = self._batch.share(part, derive_seed(self.settings.seed, "minibatches", self._number))
        return Update(number, tuple(rows), ())

    # -- an update ---------------------------------------------------------------------------------------------------

    def scoring(self) -> Mapping[str, Any]:
        """See `PackedTrainer.scoring`; at the round's temperature."""
        return {"temperature": self._batch.played.temperature, "hidden": self.critic is not None}

    def parts(self, update: Update, units: Sequence[Unit], pack: Any, scores: Any) -> Sums:
        """Return this pack's share of the update's loss and figures."""
        return self._batch.loss(update, units, pack.rows, scores, self.critic)

    def figures(self, update: Update, sums: dict[str, float]) -> dict[str, float]:
        """Return the update's metrics; what nobody computed is left out."""
        played = self._batch.played
        absent = dict.fromkeys(_OF_ROWS, not update.rows)
        absent["kl"] |= not self._batch.ref
        absent["teacher_kl"] |= not self._batch.teacher
        absent["taught"] |= not self._batch.teacher
        absent["value"] |= self.critic is None
        absent["mismatch"] |= played.temperature != 1.0 or any(sample.logps is None for sample in played.samples)
        return {name: value for name, value in super().figures(update, sums).items() if not absent.get(name)}

    def told(self, record: dict[str, Any]) -> bool:
        """See `PackedTrainer.told`; the record has what is no number, too. No checkpoint is written of a stop.

        So a run that is killed before it ends sees this update, and stops, again.
        """
        tables = {name: value for name, value in self._batch.played.figures.items() if isinstance(value, Mapping)}
        record = {**record, **tables}  # not in the records that checkpoints keep
        super().told(record)
        if self._run.watch is not None and self.accelerator.is_main_process:
            self.sound = self._run.watch(record)
        (self.sound,) = broadcast_object_list([self.sound])
        return self.sound is not None

    def go_back(self, sound: int) -> None:
        """Take the weights of the newest checkpoint of at most `sound` updates; those given where there is none."""
        found = checkpoints.newest(self.folder, sound)
        if found is not None:
            self.state.load_weights(found)
            self.warnings.append(f"the weights are those of {found.name}, the newest before the collapse began")
            return
        if not self._adapted and self._frozen is None:
            self.warnings.append("there is no checkpoint from before the collapse began; lower checkpoints.every")
            return
        if self._frozen is not None:
            transfer(self._frozen, self.model)
        for name, weights in self.model.named_parameters():
            if "lora_B" in name:
                weights.detach().zero_()
        self.warnings.append("the weights are those given: there is no checkpoint from before the collapse began")
