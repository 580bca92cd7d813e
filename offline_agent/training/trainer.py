"""The frame of all trainers, on transformers' Trainer: one element of the data is one update, computed in packs."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import TrainerState
from transformers.trainer_utils import align_special_tokens

from offline_agent.crash_notes import noted
from offline_agent.rendering.hub import quiet
from offline_agent.training import checkpoints
from offline_agent.training.data.updates import Unit, Update, UpdateSchedule, counted, fill
from offline_agent.training.guard import CheckedWeights, Guard
from offline_agent.training.prefix_sharing import log_probabilities as prefix_sharing
from offline_agent.training.settings import TrainResult, TrainSettings, trainer_arguments

Sums = dict[str, Tensor]
_COUNTS = ("agent_tokens", "tokens", "raw_tokens")


class PackedTrainer(CheckedWeights, Trainer):  # type: ignore[misc]
    """One optimizer update after the other.

    Gradients are those of the whole update's loss for any number of packs and processes: what the loss is divided by
    is known from the rows beforehand, each process takes its share of the packs, and gradients are summed over them.
    Where weights are sharded (FSDP2) a copy is trained, and the model that was given gets what was learnt in the first
    process: `rounds` and `result` leave it so.

    Args:
        model: A causal language model, or a PeftModel around one.
        tokenizer: Goes with the checkpoints.
        folder: `checkpoints/` is in it.
        plan: The updates.
        settings: The run's.
        log: Gets one record for every update.

    Attributes:
        seen: The present update's figures; they are in its record.
    """

    args: Any
    state: Any
    accelerator: Any
    model: Any
    seen: dict[str, float]

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        folder: Path,
        plan: UpdateSchedule,
        settings: TrainSettings,
        log: Callable[[dict[str, Any]], None],
    ) -> None:
        self.plan, self.settings, self._record = plan, settings, log
        arguments = TrainingArguments(**trainer_arguments(settings, folder, len(plan)))
        arguments.save_steps = self.updates_between_checkpoints
        self.folder = Path(arguments.output_dir)
        self.guard = Guard(settings.max_loss, settings.max_gradient, self.folder)
        self._writing = False
        self._update: Update | None = None
        self.seen = {}
        cached = model.config.use_cache
        still(model)
        super().__init__(
            model=model,
            args=arguments,
            train_dataset=plan,
            processing_class=tokenizer,
            callbacks=[_SaveInterval(self.updates_between_checkpoints)],
        )
        self.model.config.use_cache = cached  # it is saved with the model, for those who sample from it
        self.remove_callback(PrinterCallback)
        align_special_tokens(self.model, tokenizer)  # training does it too; not all runs train
        self.scorer = prefix_sharing.Scorer(self.model, share=settings.share)
        self.begin_sharding()

    @property
    def updates_between_checkpoints(self) -> int:
        """Return the number of updates between two checkpoints."""
        return self.settings.every

    # -- an update -------------------------------------------------------------------------------------------------

    def training_step(self, model: Any, inputs: dict[str, Update], num_items_in_batch: Any = None) -> Tensor:
        """Add the gradients of one update and return its loss; raises TrainingError before a bad one does harm."""
        started = time.perf_counter()
        update = self._update = inputs["update"]
        model = self.model  # not the wrapper of data parallelism, which wants as many passes of every process
        model.train()
        sums = self._learnt(model, update)
        figures = _numbers(sums)
        if update.number and not math.isfinite(figures["loss"]):
            self.check_weights()  # where they are to blame, it is the update before that did it
        self.guard.loss(figures["loss"], update)
        self.seen = {**self.figures(update, figures), "seconds": time.perf_counter() - started}
        return sums["loss"].detach().float().clone()

    def _learnt(self, model: Any, update: Update) -> Sums:
        """Return what `learn` sums up, over all processes."""
        packs = fill([*update.rows, *update.anchors], self.settings.tokens, self.scorer.shares)
        processes = self.accelerator.num_processes
        sums = self.learn(model, update, packs, packs[self.accelerator.process_index :: processes])
        if processes > 1:
            whole = [weights for weights in self.trained() if not hasattr(weights, "full_tensor")]
            sums = _add_up(sums, whole if torch.is_grad_enabled() else (), self.accelerator.device)
        return sums

    def after(self) -> dict[str, float]:
        """Return the figures of the last update's rows with the weights that it made; {} where it has no rows.

        Those in its record were measured before it.
        """
        update = self.plan[len(self.plan) - 1]
        if not update.rows:
            return {}
        training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                sums = _numbers(self._learnt(self.model, update))
        finally:
            self.model.train(training)
        return {"loss": sums["loss"], **self.figures(update, sums)}

    def learn(
        self, model: Any, update: Update, packs: Sequence[Sequence[Unit]], mine: Sequence[Sequence[Unit]]
    ) -> Sums:
        """Run forward and, where gradients are on, backward over this process's packs; return sums, `loss` too."""
        sums: Sums = {name: torch.zeros((), device=self.accelerator.device) for name in (*self.summed, *_COUNTS)}
        learning = torch.is_grad_enabled()
        for units in counted(mine, f"update {update.number + 1}{'' if learning else ', measured after it'}"):
            pack, scores = self.score(model, units, entropy=True)
            parts = self.parts(update, units, pack, scores)
            if learning:
                self.accelerator.backward(parts["loss"] * self._mean_of)
            counts = (sum(unit.scored for unit in units), pack.tokens, sum(unit.raw_tokens for unit in units))
            parts |= {name: torch.tensor(float(n)) for name, n in zip(_COUNTS, counts, strict=True)}
            for name, value in parts.items():
                sums[name] = sums[name] + value.detach().to(sums[name].device)
        for units in self.idle(packs, mine):
            nothing = 0.0 * self.score(model, units)[1].logps.sum()
            if learning:
                self.accelerator.backward(nothing)
        return sums

    @property
    def _mean_of(self) -> int:
        """Return the number of processes over which sharded gradients are averaged; the loss is multiplied by it."""
        return self.accelerator.num_processes if self.sharded else 1

    def idle(self, packs: Sequence[Sequence[Unit]], mine: Sequence[Any]) -> list[list[Unit]]:
        """Return extra packs, so that all processes make equally many passes: sharded weights are gathered at each."""
        passes = math.ceil(len(packs) / self.accelerator.num_processes)
        least = min((unit for units in packs for unit in units), key=lambda unit: unit.raw_tokens, default=None)
        return [[least]] * (passes - len(mine)) if self.sharded and least is not None else []

    summed: tuple[str, ...] = ("loss",)

    def score(self, model: Any, units: Sequence[Unit], entropy: bool = False) -> tuple[Any, Any]:
        """Return the pack of the units and the scores of its tokens."""
        pack = self._pack(units)
        with self.compute_loss_context_manager():  # type: ignore[attr-defined]
            return pack, self.scorer(model, pack, entropy=entropy)

    def _pack(self, units: Sequence[Unit]) -> Any:
        sequences = [prefix_sharing.Sequence(*sequence) for unit in units for sequence in unit.sequences]
        return prefix_sharing.pack(sequences).to(self.accelerator.device)

    def trained(self) -> list[Tensor]:
        """Return every tensor that is trained."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def parts(self, update: Update, units: Sequence[Unit], pack: Any, scores: Any) -> Sums:
        """Return this pack's share of everything in `summed`; `loss` with its graph."""
        raise NotImplementedError

    def figures(self, update: Update, sums: dict[str, float]) -> dict[str, float]:
        """Return the update's metrics, from the sums over all packs."""
        return {name: value for name, value in sums.items() if name != "loss"}

    # -- what transformers is told otherwise -------------------------------------------------------------------------

    def get_train_dataloader(self) -> DataLoader[Update]:
        """Return the updates in order; every process gets all of them and takes its packs."""
        return DataLoader(self.plan, batch_size=1, shuffle=False, collate_fn=_wrapped)  # type: ignore[arg-type]

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)  # type: ignore[misc]
        assert self._update is not None
        self.guard.gradient(float(norm), self._update)
        return norm

    def floating_point_ops(self, inputs: Any) -> int:
        """Return 0: nobody reads it."""
        return 0

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Keep and pass on an update's record."""
        if "loss" in logs:
            logs.update(self.seen)
        super().log(logs, start_time)
        if "loss" in logs and self.state.is_world_process_zero:
            self.keep(record_of({**logs, "step": self.state.global_step}, self.plan.per_epoch))

    def keep(self, record: dict[str, Any]) -> None:
        """Pass an update's record on."""
        self._record(record)

    def _get_output_dir(self, trial: Any) -> str:
        return str(checkpoints.staging(self.folder) if self._writing else self.folder)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self.check_weights()
        main = self.accelerator.is_main_process
        with checkpoints.saving(self.folder, "a checkpoint") if main else contextlib.nullcontext():
            self.accelerator.wait_for_everyone()
            self._writing = True
            try:
                with quiet(), noted("writing a checkpoint"):
                    super()._save_checkpoint(model, trial)  # type: ignore[misc]
            finally:
                self._writing = False
            self.accelerator.wait_for_everyone()
            if main:
                checkpoints.commit(self.folder, f"checkpoint-{self.state.global_step}", self.settings.keep)
        self.accelerator.wait_for_everyone()

    # -- a run -----------------------------------------------------------------------------------------------------

    def go(self, say: Callable[[str], None]) -> int:
        """Train, from the newest sound checkpoint where there is one; return how many updates were there already.

        Args:
            say: Gets a note on each newer checkpoint that is damaged; the result has them too.

        Raises:
            TrainingError: Every checkpoint is damaged, one cannot be loaded, or training cannot go on.
        """
        found = self.resumed()
        for note in self.notes if self.accelerator.is_main_process else ():
            say(f"note: {note}")
        done = 0 if found is None else checkpoints.number(found)
        if found is not None:
            with checkpoints.loading(found):
                state = TrainerState.load_from_json(str(found / "trainer_state.json"))
                if state.global_step != done:
                    raise ValueError(f"trainer_state.json is of update {state.global_step}")
        if found is not None and done >= len(self.plan):
            self._load_from_checkpoint(str(found))
            self.state = state
        else:
            self.train(resume_from_checkpoint=None if found is None else str(found))  # type: ignore[attr-defined]
        return done

    def records(self) -> list[dict[str, Any]]:
        """Return every update's record, earlier sessions' too."""
        return [record_of(entry, self.plan.per_epoch) for entry in self.state.log_history if "loss" in entry]

    def result(self, done: int, warnings: Sequence[str] = (), **more: Any) -> TrainResult:
        """Return the result of the run over all its sessions; the model that was given has its weights.

        Raises:
            TrainingError: The weights are not finite.
        """
        end = self.after()
        self.whole()
        self.check_weights()
        records = self.records()
        agent, computed, raw = (int(sum(record[name] for record in records)) for name in _COUNTS)
        return TrainResult(
            updates=self.state.global_step,
            resumed_at=done,
            seconds=sum(record["seconds"] for record in records),
            agent_tokens=agent,
            tokens=computed,
            raw_tokens=raw,
            records=records,
            end=end,
            shares=self.scorer.shares,
            reason=self.scorer.reason,
            warnings=(*self.notes, *warnings),
            **more,
        )


def record_of(entry: dict[str, Any], per_epoch: int) -> dict[str, Any]:
    """Return an update's record from an entry of transformers' log history."""
    entry = {name: value for name, value in entry.items() if name not in ("step", "epoch")} | {
        "update": entry["step"],
        "epoch": entry["step"] / per_epoch,
    }
    return {"update": entry.pop("update"), "loss": entry.pop("loss"), **entry}


def still(model: Any) -> None:
    """Switch dropout off, but that of adapters: it was asked for."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Dropout) and "lora_dropout" not in name:
            module.p = 0.0


def _numbers(sums: Sums) -> dict[str, float]:
    return dict(zip(sums, torch.stack([value.double() for value in sums.values()]).tolist(), strict=True))


def _add_up(sums: Sums, parameters: Sequence[Tensor], device: torch.device) -> Sums:
    """Sum gradients and figures over the processes; every process calls it with the same names and parameters."""
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        torch.distributed.all_reduce(parameter.grad)
    values = torch.stack([value.double() for value in sums.values()]).to(device)
    torch.distributed.all_reduce(values)
    return dict(zip(sums, values.unbind(), strict=True))


class _SaveInterval(TrainerCallback):
    """Keeps to the present `checkpoints.every` where a checkpoint has brought an old one."""

    def __init__(self, every: int) -> None:
        self.every = every

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        state.save_steps = self.every


def _wrapped(elements: Sequence[Update]) -> dict[str, Update]:
    return {"update": elements[0]}
