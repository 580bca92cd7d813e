"""Shared parts of the trainers' commands: loading, settings, records, saving and summary."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.config.refine_grpo import RefineGrpoConfig
from offline_agent.config.training import TrainableConfig, TrainConfig
from offline_agent.crash_notes import noted
from offline_agent.errors import ConfigError
from offline_agent.runner.next_steps import environment_keys, keys_of_runs, made_by
from offline_agent.runner.pipeline import Session
from offline_agent.store.provenance import hash_json

if TYPE_CHECKING:
    from offline_agent.training.data.rows import LoadReport
    from offline_agent.training.models import Trainable
    from offline_agent.training.settings import TrainResult, TrainSettings

_AT_THE_ENDS = 5  # updates of the means at the beginning and at the end
_FEW = 20  # updates below which a training is said to be short
_FAR = 4.0  # nats a token, a probability of 2 %, above which the start is said to be far from the data
_TOLD_AT_MOST = 200  # rows left out that are listed individually
_LEVELS = {
    "tokens": "the sampled ids and their log-probabilities",
    "ids": "ids of a policy without log-probabilities, or of a script's actions",
    "text": "messages, rendered here",
}
_OF_ROWS = ("read", "kept", "tasks", "kinds", "longest", "levels", "foreign", "uncertified")
_MEANS = (
    "loss", "preference", "sft", "anchor", "accuracy", "margin", "entropy", "nll", "reward_mean", "success_mean",
    "group_spread", "zero_spread", "kl", "length", "mismatch", "prefix_cached", "handover_seconds", "accepted_calls",
    "teacher_kl",
)  # fmt: skip


def load(config: TrainableConfig) -> Trainable:
    """Return model, tokenizer and renderer; raises ConfigError."""
    model = config.model
    with noted(f"loading {model.path or 'the embedded model'}"):  # torch takes its time, too
        from offline_agent.training.models import load_trainable

        return load_trainable(model.path, model.tokenizer, model.chat_template, model.weights_dtype)


def max_length(config: TrainConfig | RefineGrpoConfig, model: Any) -> int:
    """Return the largest length of a row, in tokens.

    Raises:
        ConfigError: `batch.max_length` is more than the positions of the model.
    """
    from offline_agent.training.models import positions

    made_for, asked = positions(model), config.batch.max_length
    if asked is not None and asked > made_for:
        raise ConfigError(f"batch.max_length: got {asked}, allowed: at most {made_for}, which the model was made for")
    return asked or made_for


def hashes(trainable: Trainable) -> dict[str, str]:
    """Return the hashes of model, tokenizer and chat template."""
    from offline_agent.policies.hf.loading import model_hash

    return {
        "model": model_hash(trainable.model),
        "tokenizer": trainable.renderer.tokenizer_hash,
        "chat_template": trainable.renderer.template_hash,
    }


def facts(
    config: TrainableConfig, trainable: Trainable | None, *reports: LoadReport | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return entries of the manifest, and tags: the hashes of model and data.

    Args:
        config, trainable: The configuration, and the model; None = a new one, which is not made yet.
        reports: Of the rows that were read; None = none were.
    """
    found: dict[str, Any] = {} if trainable is None else dict(hashes(trainable))
    manifest: dict[str, Any] = {"hashes": found}
    tags = {"model": config.model.path or "embedded default", **({"model_hash": found["model"]} if found else {})}
    read = [report.hashes for report in reports if report is not None]
    if read:
        manifest["data"] = {name: digest for one in read for name, digest in one.items()}
        found["data"] = tags["data_hash"] = hash_json(list(manifest["data"].values()))
    return manifest, tags


def settings(config: TrainConfig | RefineGrpoConfig) -> TrainSettings:
    """Return the settings of the trainer."""
    from offline_agent.training.settings import TrainSettings

    mixed = config.model.dtype == "mixed"
    return TrainSettings.of(
        config.optimizer, config.batch, config.checkpoints, config.guard, seed=config.seed, mixed=mixed
    )


def train(
    session: Session[Any],
    trainable: Trainable,
    rows: Sequence[Any],
    report: LoadReport,
    trainer: Callable[..., TrainResult],
) -> dict[str, Any]:
    """Train on the rows, save the model, and return the summary.

    Args:
        session: The session of the command.
        trainable: Model, tokenizer and renderer; the model is trained in place.
        rows: The training rows.
        report: The report of loading them.
        trainer: `training.offline.sft.train_sft`, or a function with the same arguments.
    """
    from offline_agent.training.models import add_adapters, set_threads
    from offline_agent.training.trainer import TrainRun

    config, folder = session.config, session.run.path
    model, tokenizer, _ = trainable
    set_threads(config.threads, model)
    tell(session, report)
    begun, chosen, lora = hashes(trainable), settings(config), config.lora
    if lora.rank:
        model = add_adapters(model, lora, config.seed)
    session.progress.start(updates(chosen, len(rows)), "training")
    started = time.perf_counter()
    result = trainer(model, tokenizer, rows, chosen, TrainRun(folder, Recorder(session), session.say))
    seconds = time.perf_counter() - started
    new = hasattr(config, "scratch") and config.scratch.layers > 0
    read = config.data.runs or config.data.files  # files name no environment
    return {
        "pipeline": session.run.manifest["command"],
        "environment_keys": keys_of_runs(config.data.runs) if read else environment_keys(config.resolved()),
        "made_by": made_by(config.data.runs),
        "data": {
            **{name: getattr(report, name) for name in _OF_ROWS},
            "left_out": report.dropped(), "files": report.hashes,
        },
        "model": {**save(model, tokenizer, folder, begun), "begun": begun},
        "training": of_result(result, seconds),
        "warnings": [*report.notes(), *result.warnings, *doubts(result, new)],
    }


def doubts(result: TrainResult, new: bool = False) -> Iterator[str]:
    """Yield why a training may not have changed the model as was meant; `new` = it began with random weights."""
    if result.updates < _FEW:
        yield (
            f"{result.updates} update{'s' * (result.updates > 1)}: so few change a model little, most of them at a low "
            "learning rate; raise optimizer.epochs, lower batch.rows, or bring more data"
        )
    start = result.first.get("sft", result.first.get("nll", 0.0))
    if start > _FAR and not new:
        yield (
            f"the model began far from the data: {start:.1f} nats a token of the policy's. It does not know these "
            "turns: see that model.path, its tokenizer and its chat template are those of the policy that made them, "
            "or fine-tune first (train_sft)"
        )


def save(model: Any, tokenizer: Any, folder: Path, begun: Mapping[str, str]) -> dict[str, Any]:
    """Write a trained model, and its adapters if it has any, into a run directory; return its summary.

    Args:
        model, tokenizer: What was trained.
        folder: The run directory.
        begun: `hashes` before the training.

    Raises:
        TrainingError: The disk is full or not writable.
    """
    from offline_agent.training.models import save_adapter, save_plain

    written = save_plain(model, tokenizer, folder / "model")
    if hasattr(model, "disable_adapter"):
        save_adapter(model, folder / "adapter", begun["model"])
    weights = list(model.parameters())
    return {
        "path": str(folder / "model"),
        "hash": written,
        "parameters": sum(each.numel() for each in weights),
        "trained": sum(each.numel() for each in weights if each.requires_grad),
    }


def updates(chosen: TrainSettings, rows: int) -> int:
    """Return the number of optimizer updates."""
    wanted = max(1, math.ceil(round(chosen.epochs * math.ceil(rows / chosen.rows), 6)))
    return wanted if chosen.max_updates is None else min(wanted, chosen.max_updates)


class Recorder:
    """Writes the record of each update to the event log, once even after resumes, and to tracking.

    Args:
        session: The session of the command.
        phase: Name of a separate event log and prefix of the figures; None = the log of the run.
    """

    def __init__(self, session: Session[Any], phase: str | None = None) -> None:
        self._session = session
        self._prefix = f"{phase}." if phase else ""
        self._log = session.run.events(phase) if phase else session.run.events()
        self._last = max((record["update"] for record in self._log.read()), default=0)

    def __call__(self, record: Mapping[str, Any]) -> None:
        """Keep a record."""
        update = int(record["update"])
        if update > self._last:
            self._log.append(dict(record))
            self._last = update
        self._session.tracker.metrics(dict(self._figures(record)), step=update)
        more: dict[str, Any] = {"accuracy": f"{record['accuracy']:.2f}"} if "accuracy" in record else {}
        if "success_mean" in record:  # more telling than the loss, which is 0 by construction in a round's first update
            more = {"success": f"{record['success_mean']:.0%}", "reward": f"{record['reward_mean']:.3f}"}
        self._session.progress.update(update, loss=f"{record['loss']:.4f}", **more)

    def _figures(self, record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield the figures of a record under their names in tracking; each bar of a histogram is a figure."""
        for name, value in record.items():
            if isinstance(value, Mapping):
                yield from ((f"{self._prefix}{name}/{bar}", share) for bar, share in value.items())
            elif name != "update":
                yield self._prefix + name, value


def tell(session: Session[Any], report: LoadReport) -> None:
    """Print the level and the notes of the report, and list the rows left out in quarantine.jsonl."""
    levels = ", ".join(f"{count:,} {level} ({_LEVELS[level]})" for level, count in report.levels.items())
    if levels:
        session.say(f"rows by level: {levels}")
    for note in report.notes():
        session.say(f"note: {note}")
    for name, reason in report.left_out[:_TOLD_AT_MOST]:
        session.run.quarantine("row", name, reason)
    more = len(report.left_out) - _TOLD_AT_MOST
    if more > 0:
        session.run.quarantine("row", "others", f"{more} more, counted in summary.json")


def of_result(result: TrainResult, seconds: float) -> dict[str, Any]:
    """Return the summary of the training.

    `first` and `last` are means over a few measurements at each end: the first was made before any update, the last
    after all of them (`TrainResult.end`).
    """
    few = max(1, min(_AT_THE_ENDS, len(result.records) // 2))
    first, last = result.records[:few], [*result.records, *([result.end] if result.end else ())][-few:]

    def means(records: Sequence[Mapping[str, float]]) -> dict[str, float]:
        known = {name: [one[name] for one in records if one.get(name) is not None] for name in _MEANS}
        return {name: sum(values) / len(values) for name, values in known.items() if values}

    return {
        "updates": result.updates,
        "resumed_at": result.resumed_at,
        "first": means(first),
        "last": means(last),
        "loss_first": means(first)["loss"],
        "loss_last": means(last)["loss"],
        "seconds": round(result.seconds, 3),
        "seconds_this_session": round(seconds, 3),
        "agent_tokens": result.agent_tokens,
        "tokens": result.tokens,
        "raw_tokens": result.raw_tokens,
        "agent_tokens_per_second": round(result.agent_tokens / result.seconds, 1) if result.seconds else None,
        "shares_prefixes": result.shares,
        "shares_not": result.reason,
        **({"reference": result.reference} if result.reference else {}),
    }
