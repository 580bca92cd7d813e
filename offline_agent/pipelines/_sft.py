"""From keys to a trained model: loading, settings, one record an update, saving, and what the summary says."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.config import TrainConfig
from offline_agent.errors import ConfigError
from offline_agent.pipelines._command import Session

if TYPE_CHECKING:
    from offline_agent.rendering import Renderer
    from offline_agent.training.rows import LoadReport

Trainable = tuple[Any, Any, "Renderer"]
_AT_THE_ENDS = 5  # updates whose loss is averaged for the table
_TOLD_AT_MOST = 200  # rows left out that are listed one by one


def load(config: TrainConfig) -> Trainable:
    """Return model, tokenizer and renderer; raises ConfigError."""
    from offline_agent.training.models import load_trainable

    model = config.model
    return load_trainable(model.path, model.tokenizer, model.chat_template, model.dtype)


def set_threads(threads: int | None) -> None:
    """Give torch so many threads; None = as it is."""
    from offline_agent.training.models import set_threads

    set_threads(threads)


def max_length(config: TrainConfig, model: Any) -> int:
    """Return the longest row that is trained on, in tokens.

    Raises:
        ConfigError: More was asked for than the model was made for.
    """
    from offline_agent.training.models import positions

    made_for, asked = positions(model), config.batch.max_length
    if asked is not None and asked > made_for:
        raise ConfigError(f"batch.max_length: got {asked}, allowed: at most {made_for}, which the model was made for")
    return asked or made_for


def hashes(trainable: Trainable) -> dict[str, str]:
    """Return the hashes of model, tokenizer and chat template."""
    from offline_agent.policies.hf_loading import model_hash

    model, _, renderer = trainable
    return {
        "model": model_hash(model),
        "tokenizer": renderer.tokenizer_hash,
        "chat_template": renderer.template_hash,
    }


def settings(config: TrainConfig) -> Any:
    """Return the trainer's settings."""
    from offline_agent.training.settings import TrainSettings

    optimizer, batch, guard = config.optimizer, config.batch, config.guard
    return TrainSettings(
        learning_rate=optimizer.learning_rate,
        schedule=optimizer.schedule,
        warmup=optimizer.warmup,
        weight_decay=optimizer.weight_decay,
        beta2=optimizer.beta2,
        clip=optimizer.clip,
        epochs=optimizer.epochs,
        max_updates=optimizer.max_updates,
        rows=batch.rows,
        tokens=batch.tokens,
        share=batch.share_prefixes == "auto",
        every=config.checkpoints.every,
        keep=config.checkpoints.keep,
        max_loss=guard.max_loss,
        max_gradient=guard.max_gradient,
        seed=config.seed,
    )


def train(
    session: Session[Any], trainable: Trainable, rows: Sequence[Any], report: LoadReport, trainer: Callable[..., Any]
) -> dict[str, Any]:
    """Train on the rows with `trainer` (`training.sft.train_sft`'s signature), save, and return the summary's parts."""
    from offline_agent.training.models import add_adapters, save_adapter, save_plain

    config, folder = session.config, session.run.path
    model, tokenizer, _ = trainable
    tell(session, report)
    begun = hashes(trainable)
    chosen = settings(config)
    lora = config.lora
    if lora.rank:
        model = add_adapters(model, lora.rank, lora.alpha, lora.dropout, lora.targets, config.seed)
    updates = math.ceil(chosen.epochs * math.ceil(len(rows) / chosen.rows))
    updates = updates if chosen.max_updates is None else min(updates, chosen.max_updates)
    session.progress.start(max(1, updates), "training")
    started = time.perf_counter()
    result = trainer(model, tokenizer, rows, chosen, folder, log=Recorder(session), say=session.say)
    seconds = time.perf_counter() - started
    saved = save_plain(model, tokenizer, folder / "model")
    if lora.rank:
        save_adapter(model, folder / "adapter")
    size = sum(weights.numel() for weights in model.parameters())
    trained = sum(weights.numel() for weights in model.parameters() if weights.requires_grad)
    return {
        "data": of_report(report),
        "model": {"path": str(folder / "model"), "hash": saved, "begun": begun, "parameters": size, "trained": trained},
        "training": of_result(result, seconds),
        "warnings": [*report.notes(), *result.warnings],
    }


class Recorder:
    """Takes one record for each update: into the event log, once however often it is resumed, and to tracking."""

    def __init__(self, session: Session[Any]) -> None:
        self._session = session
        self._log = session.run.events()
        self._last = max((record["update"] for record in self._log.read()), default=0)

    def __call__(self, record: Mapping[str, Any]) -> None:
        """Keep a record."""
        update = int(record["update"])
        if update > self._last:
            self._log.append(dict(record))
            self._last = update
        figures = {name: value for name, value in record.items() if name != "update"}
        self._session.tracker.metrics(figures, step=update)
        self._session.progress.update(update, loss=f"{record['loss']:.4f}")


def tell(session: Session[Any], report: LoadReport) -> None:
    """Say what the user should know of the rows, and list those left out in quarantine.jsonl."""
    for note in report.notes():
        session.say(f"note: {note}")
    for name, reason in report.left_out[:_TOLD_AT_MOST]:
        session.run.quarantine("row", name, reason)
    more = len(report.left_out) - _TOLD_AT_MOST
    if more > 0:
        session.run.quarantine("row", "others", f"{more} more, counted in summary.json")


def of_report(report: LoadReport) -> dict[str, Any]:
    """Return the summary of what was read."""
    names = ("read", "kept", "tasks", "kinds", "longest", "foreign", "uncertified")
    return {**{name: getattr(report, name) for name in names}, "left_out": report.dropped(), "files": report.hashes}


def of_result(result: Any, seconds: float) -> dict[str, Any]:
    """Return the summary of what was trained; losses are means over the first and the last few updates."""
    curve = result.curve
    return {
        "updates": result.updates,
        "resumed_at": result.resumed_at,
        "loss_first": sum(curve[:_AT_THE_ENDS]) / len(curve[:_AT_THE_ENDS]),
        "loss_last": sum(curve[-_AT_THE_ENDS:]) / len(curve[-_AT_THE_ENDS:]),
        "seconds": round(result.seconds, 3),
        "seconds_this_session": round(seconds, 3),
        "agent_tokens": result.agent_tokens,
        "tokens": result.tokens,
        "raw_tokens": result.raw_tokens,
        "agent_tokens_per_second": round(result.agent_tokens / result.seconds, 1) if result.seconds else None,
        "shares_prefixes": result.shares,
        "shares_not": result.reason,
    }


def show(summary: Mapping[str, Any], path: Path) -> Any:
    """Return the closing table."""
    from rich.table import Table

    data, model, training = summary["data"], summary["model"], summary["training"]
    table = Table(title="train_sft", title_justify="left", show_header=False)
    kinds = ", ".join(f"{kind} {count}" for kind, count in data["kinds"].items())
    table.add_row("learnt from", f"{data['kept']} trajectories of {data['tasks']} tasks ({kinds})")
    left = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in data["left_out"].items())
    if left:
        table.add_row("left out", left)
    table.add_row("updates", f"{training['updates']} in {training['seconds']:.1f} s")
    table.add_row("loss", f"{training['loss_first']:.4f} → {training['loss_last']:.4f} a token of the policy's")
    share = training["agent_tokens"] / max(1, training["raw_tokens"])
    speed = f", {training['agent_tokens_per_second']:.0f}/s" if training["agent_tokens_per_second"] else ""
    table.add_row("tokens", f"{training['agent_tokens']} of the policy's ({share:.0%} of all){speed}")
    table.add_row("model", f"{model['path']} ({model['parameters']:,} weights, {model['trained']:,} trained)")
    for warning in summary["warnings"]:
        table.add_row("note", warning)
    table.add_row("next", f"python -m offline_agent.pipelines.evaluate policy.model={path / 'model'}")
    return table
