"""The loop of all trainers: one update after the other, each computed in packs, with checkpoints in between."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, broadcast_object_list, set_seed
from torch import Tensor, nn
from transformers.trainer_utils import align_special_tokens
from transformers.utils import logging

from offline_agent.crash_notes import noted
from offline_agent.errors import TrainingError
from offline_agent.policies.hf.loading import slow
from offline_agent.training import checkpoints
from offline_agent.training.checkpoints import Guard
from offline_agent.training.data.updates import Unit, Update, UpdateSchedule, counted, fill
from offline_agent.training.models import use_checkpointing
from offline_agent.training.prefix_sharing import log_probabilities as prefix_sharing
from offline_agent.training.prefix_sharing.head import evaluating
from offline_agent.training.settings import TrainResult, TrainSettings
from offline_agent.training.state import TrainState

Sums = dict[str, Tensor]
_COUNTS = ("agent_tokens", "tokens", "raw_tokens")
PATIENCE = timedelta(days=7)  # others wait while the first process plays; torchrun ends them where one dies


class TrainRun(NamedTuple):
    """A run that trains.

    Attributes:
        folder: `checkpoints/` is in it.
        log: Gets one record for every update.
        say: Gets sentences for the user.
        watch: Sees records after `log`; where the run must stop, answers how many updates are sound. Online alone.
        settle: Called before weights change or adapters are switched off: they may be being copied. Online alone.
    """

    folder: Path
    log: Callable[[dict[str, Any]], None]
    say: Callable[[str], None] = print
    watch: Callable[[Mapping[str, Any]], int | None] | None = None
    settle: Callable[[], None] = lambda: None


class PackedTrainer:
    """Makes the updates of a plan; a subclass says what the loss is.

    Gradients are those of the whole update's loss for any number of packs and processes: what the loss is divided by
    is known from the rows beforehand, each process takes its share of the packs, and gradients are summed over them.
    The model that was given has what was learnt, in the first process, when it plays (`rounds`) and after `result`.

    Args:
        model: A causal language model, or a PeftModel around one.
        tokenizer: Goes with the checkpoints.
        plan: The updates.
        settings: Of the training.
        run: The run.

    Attributes:
        critic, critic_rate: A module that is trained beside the model, and its learning rate; None without one. A
            subclass sets them before it calls this class.
        state: Weights, optimizer and schedule.
        records: One for each update so far, earlier sessions' too; `resumed_at` of them were there at the start.
    """

    summed: tuple[str, ...] = ("loss",)
    norm = "grad_norm"  # the name of the gradient's norm in records
    critic: nn.Module | None = None
    critic_rate = 0.0

    def __init__(
        self, model: Any, tokenizer: Any, plan: UpdateSchedule, settings: TrainSettings, run: TrainRun
    ) -> None:
        self.plan, self.settings, self._run = plan, settings, run
        self.folder, self.resumed_at = run.folder / "checkpoints", 0
        self.guard = Guard(settings.max_loss, settings.max_gradient, self.folder)
        self.records: list[dict[str, Any]] = []
        self._notes: list[str] = []
        set_seed(settings.seed % 2**32)
        self.accelerator = Accelerator(mixed_precision="no", kwargs_handlers=[InitProcessGroupKwargs(timeout=PATIENCE)])
        still(model)
        use_checkpointing(model, settings.gradient_checkpointing)
        logging.set_verbosity_error()  # what it warns of is meant: tokens aligned, a checkpoint without tied weights
        align_special_tokens(model.to(self.accelerator.device), tokenizer)
        self.scorer = prefix_sharing.Scorer(model, share=settings.share_prefixes == "auto")
        self.state = TrainState(self.accelerator, model, tokenizer, self.critic)

    @property
    def model(self) -> Any:
        """The model that is trained."""
        return self.state.model

    @property
    def compute_dtype(self) -> torch.dtype:
        """The number format of forward and backward passes."""
        return torch.bfloat16 if self.settings.mixed else self.model.dtype

    @property
    def updates_between_checkpoints(self) -> int:
        """Return the number of updates between two checkpoints."""
        return self.settings.every

    # -- a run -------------------------------------------------------------------------------------------------------

    def go(self) -> None:
        """Train, from the newest sound checkpoint where there is one.

        Raises:
            TrainingError: Every checkpoint is damaged, one cannot be loaded, or training cannot go on.
        """
        found = self._resumed()
        self._notes += filter(None, [slow(self.compute_dtype, self.accelerator.device)])
        for note in self._notes if self.accelerator.is_main_process else ():
            self._run.say(f"note: {note}")
        if found is not None:
            self.records = checkpoints.records(found)
        done = self.resumed_at = len(self.records)
        if done < len(self.plan):
            self.state.begin(self.settings, len(self.plan), self.critic_rate)
        if found is not None:
            (self.state.load if done < len(self.plan) else self.state.load_weights)(found)
        for number in range(done, len(self.plan)):
            if self.make(self.plan[number]):
                break
            if (number + 1) % self.updates_between_checkpoints == 0 or number + 1 == len(self.plan):
                self._save()

    def make(self, update: Update) -> bool:
        """Make an update and pass its record on; return whether the run must stop with it.

        Raises:
            TrainingError: Its loss or gradient is bad; the weights are as they were.
        """
        loss, figures = self.step(update)
        norm = float(self.accelerator.clip_grad_norm_(self.model.parameters(), self.settings.clip))
        self.guard.gradient(norm, update)
        self._run.settle()
        rate, number = self.state.step(), update.number + 1
        record = {"update": number, "loss": loss, self.norm: norm, "learning_rate": rate, **figures}
        self.records.append({**record, "epoch": number / self.plan.per_epoch})
        return self.told(self.records[-1])

    def told(self, record: dict[str, Any]) -> bool:
        """Pass an update's record on; return, in all processes, whether the run must stop."""
        if self.accelerator.is_main_process:
            self._run.log(record)
        return False

    def result(self, warnings: Sequence[str] = (), **more: Any) -> TrainResult:
        """Return the result of the run over all its sessions; the model that was given has its weights.

        Raises:
            TrainingError: The weights are not finite.
        """
        end = self._after()
        self.state.whole()
        self._check_weights()
        agent, computed, raw = (int(sum(record[name] for record in self.records)) for name in _COUNTS)
        return TrainResult(
            updates=len(self.records),
            resumed_at=self.resumed_at,
            seconds=sum(record["seconds"] for record in self.records),
            agent_tokens=agent,
            tokens=computed,
            raw_tokens=raw,
            records=self.records,
            end=end,
            shares=self.scorer.shares,
            reason=self.scorer.reason,
            warnings=(*self._notes, *warnings),
            **more,
        )

    # -- an update ---------------------------------------------------------------------------------------------------

    def step(self, update: Update) -> tuple[float, dict[str, Any]]:
        """Add the gradients of one update; return its loss and figures.

        Raises:
            TrainingError: The loss is bad, or the weights that the update before it made.
        """
        started = time.perf_counter()
        self.model.train()
        sums = self._learnt(update)
        figures = _numbers(sums)
        if update.number and not math.isfinite(figures["loss"]):
            self._check_weights()  # where they are to blame, it is the update before that did it
        self.guard.loss(figures["loss"], update)
        found = {**self.figures(update, figures), "seconds": time.perf_counter() - started}
        return float(sums["loss"].float()), found

    def _learnt(self, update: Update) -> Sums:
        """Run forward and, where gradients are on, backward over an update; return the sums over all processes."""
        packs = fill([*update.rows, *update.anchors], self.settings.tokens, self.scorer.shares)
        mine = packs[self.accelerator.process_index :: self.accelerator.num_processes]
        sums: Sums = {name: torch.zeros((), device=self.accelerator.device) for name in (*self.summed, *_COUNTS)}
        learning = torch.is_grad_enabled()
        # FSDP averages the gradients of sharded weights over the processes; they are to be summed
        times = self.accelerator.num_processes if self.state.sharded else 1
        for units in counted(mine, f"update {update.number + 1}{'' if learning else ', measured after it'}"):
            pack, scores = self.score(self.model, units, entropy=True)
            parts = self.parts(update, units, pack, scores)
            if learning:
                (parts["loss"] * times).backward()
            counts = (sum(unit.scored for unit in units), pack.tokens, sum(unit.raw_tokens for unit in units))
            parts |= {name: torch.tensor(float(n)) for name, n in zip(_COUNTS, counts, strict=True)}
            for name, value in parts.items():
                sums[name] = sums[name] + value.detach().to(sums[name].device)
        for units in self.idle(packs, mine):
            nothing = 0.0 * self.score(self.model, units)[1].logps.sum()
            if learning:
                nothing.backward()
        return self.state.add_up(sums, learning) if self.accelerator.num_processes > 1 else sums

    def idle(self, packs: Sequence[Sequence[Unit]], mine: Sequence[Any]) -> list[list[Unit]]:
        """Return extra packs, so that all processes make equally many passes: sharded weights are gathered at each."""
        passes = math.ceil(len(packs) / self.accelerator.num_processes)
        least = min((unit for units in packs for unit in units), key=lambda unit: unit.raw_tokens, default=None)
        return [[least]] * (passes - len(mine)) if self.state.sharded and least is not None else []

    def score(self, model: Any, units: Sequence[Unit], entropy: bool = False) -> tuple[Any, Any]:
        """Return the pack of the units, its `rows` those of their sides, and the scores of its tokens."""
        pack = prefix_sharing.pack([sequence for unit in units for sequence in unit.sequences])
        pack = pack.to(self.accelerator.device)
        with torch.autocast(self.accelerator.device.type, torch.bfloat16, enabled=self.settings.mixed):
            scores = self.scorer(model, pack, entropy=entropy, **self.scoring())
        rows = iter(pack.rows)
        sides = [torch.cat(list(islice(rows, len(side)))) for unit in units for side in unit.sides]
        return replace(pack, rows=sides), scores

    def scoring(self) -> Mapping[str, Any]:
        """Return further options of the scorer."""
        return {}

    def parts(self, update: Update, units: Sequence[Unit], pack: Any, scores: Any) -> Sums:
        """Return this pack's share of everything in `summed`; `loss` with its graph."""
        raise NotImplementedError

    def figures(self, update: Update, sums: dict[str, float]) -> dict[str, float]:
        """Return the update's metrics, from the sums over all packs."""
        return {name: value for name, value in sums.items() if name != "loss"}

    def _after(self) -> dict[str, float]:
        """Return the figures of the last update's rows with the weights that it made; {} where it has no rows.

        Those in its record were measured before it.
        """
        update = self.plan[len(self.plan) - 1]
        if not update.rows:
            return {}
        with evaluating(self.model):
            sums = _numbers(self._learnt(update))
        return {"loss": sums["loss"], **self.figures(update, sums)}

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        self._check_weights()
        main, name = self.accelerator.is_main_process, f"checkpoint-{len(self.records)}"
        with checkpoints.saving(self.folder, "a checkpoint") if main else contextlib.nullcontext():
            self.accelerator.wait_for_everyone()  # what an earlier session left half-written is gone
            place = checkpoints.staging(self.folder) / name
            with noted("writing a checkpoint"):
                self.state.save(place)
            self.accelerator.wait_for_everyone()  # every process has written its part
            if main:
                checkpoints.write_records(place, self.records)
                checkpoints.commit(self.folder, name, self.settings.keep)
        self.accelerator.wait_for_everyone()

    def _resumed(self) -> Path | None:
        """Return the checkpoint to go on from, the same in all processes: the first one looks."""
        found: list[Any] = [None, []]
        if self.accelerator.is_main_process:
            try:
                found = list(checkpoints.resume(self.folder))
            except TrainingError as error:  # the others are to raise it, too
                found = [error, []]
        place, self._notes = broadcast_object_list(found)
        if isinstance(place, TrainingError):
            raise place
        return place if place is None else Path(place)

    def _check_weights(self) -> None:
        """Raise TrainingError where weights are not finite; in all processes."""
        self.guard.weights(self.state.broken(), len(self.records))


def still(model: Any) -> None:
    """Switch dropout off: that of modules, and the rates that modules pass to functions (`attention_dropout`)."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def _numbers(sums: Sums) -> dict[str, float]:
    return dict(zip(sums, torch.stack([value.double() for value in sums.values()]).tolist(), strict=True))
