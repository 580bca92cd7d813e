"""Preference training: pairs in, a better checkpoint out.

Run `python -m offline_agent.pipelines.train_dpo --help` for the keys.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from offline_agent.config.training import TrainDpoConfig
from offline_agent.errors import ConfigError, collect
from offline_agent.pipelines.entry import main
from offline_agent.report.training import show_training
from offline_agent.runner import training
from offline_agent.runner.pipeline import Command, Facts, Session
from offline_agent.store.columns import PAIR_TABLES, SUCCESS_TABLES
from offline_agent.training.settings import DpoSettings

if TYPE_CHECKING:
    from offline_agent.training.data.rows import LoadReport, PairRow, TrajectoryRow
    from offline_agent.training.models import Trainable
    from offline_agent.training.settings import TrainResult, TrainSettings
    from offline_agent.training.trainer import TrainRun


@dataclass
class DpoInputs:
    """The loaded model and data of a training.

    Attributes:
        trainable: Model, tokenizer and renderer.
        dpo: The loss.
        pairs, report: The training pairs, and what was left out.
        anchors, replayed: Trajectories to replay, and what was left out of them; None where none are.
        notes: Notes for the user.
    """

    trainable: Trainable
    dpo: DpoSettings
    pairs: list[PairRow]
    report: LoadReport
    anchors: list[TrajectoryRow] = field(default_factory=list)
    replayed: LoadReport | None = None
    notes: list[str] = field(default_factory=list)


def prepare(config: TrainDpoConfig) -> tuple[DpoInputs, Facts]:
    """Load model, pairs and what is replayed; see `runner.pipeline.Command.prepare`."""
    faults: list[str] = []
    collect(faults, lambda: _look(config))
    trainable = collect(faults, lambda: training.load(config))
    if trainable is not None:
        collect(faults, lambda: training.max_length(config, trainable.model))
    if faults:
        raise ConfigError(faults)
    inputs = _read(config, trainable)
    return inputs, Facts(*training.facts(config, inputs.trainable, inputs.report, inputs.replayed))


def _look(config: TrainDpoConfig) -> None:
    """Raise ConfigError where what is to be read is not there."""
    from offline_agent.training.data import sources

    faults: list[str] = []
    collect(faults, lambda: sources.find(config.data.runs, config.data.files, PAIR_TABLES))
    if config.anchor.rows and config.anchor.runs:
        collect(faults, lambda: sources.find(config.anchor.runs, (), SUCCESS_TABLES, "anchor"))
    if faults:
        raise ConfigError(faults)


def _read(config: TrainDpoConfig, trainable: Trainable) -> DpoInputs:
    """Read the pairs and what is replayed; raises ConfigError and DataError."""
    from offline_agent.policies.hf.loading import model_hash
    from offline_agent.training.data.rows import load_pairs

    model, _, renderer = trainable
    longest = training.max_length(config, model)
    pairs, report = load_pairs(
        config.data.runs,
        config.data.files,
        renderer,
        model_hash=model_hash(model),
        kinds=config.data.kinds,
        max_length=longest,
        reference=config.dpo.reference,
    )
    anchor = config.anchor
    settings = DpoSettings(**dict(config.dpo), anchor_rows=anchor.rows, anchor_weight=anchor.weight)
    inputs = DpoInputs(trainable, settings, pairs, report)
    if config.anchor.rows and config.anchor.weight:
        _read_anchors(inputs, config, longest)
    return inputs


def _read_anchors(inputs: DpoInputs, config: TrainDpoConfig, longest: int) -> None:
    from offline_agent.training.data.rows import load_trajectories

    source = config.anchor.runs or config.data.runs
    if not source:
        inputs.notes.append("nothing is replayed beside the pairs: name runs with verified successes in anchor.runs")
        return
    try:
        found = load_trajectories(source, (), inputs.trainable.renderer, max_length=longest, key="anchor")
        inputs.anchors, inputs.replayed = found
    except ConfigError as error:
        if config.anchor.runs:
            raise
        inputs.notes.append(f"nothing is replayed beside the pairs: {'; '.join(error.faults)}")


def run(inputs: DpoInputs, session: Session[TrainDpoConfig]) -> Mapping[str, Any]:
    """Train; see `runner.pipeline.Command.run`."""
    config = session.config
    for note in inputs.notes:
        session.say(f"note: {note}")
    if inputs.replayed is not None:
        training.tell(session, inputs.replayed)

    from offline_agent.training.offline.dpo import train_dpo

    def trainer(model: Any, tokenizer: Any, rows: Sequence[Any], chosen: TrainSettings, run: TrainRun) -> TrainResult:
        return train_dpo(model, tokenizer, rows, inputs.anchors, chosen, inputs.dpo, run)

    summary = training.train(session, inputs.trainable, inputs.pairs, inputs.report, trainer)
    summary["data"] |= {
        "source": "runs" if config.data.runs else "files",
        "replayed": len(inputs.anchors),
        "replayed_left_out": {} if inputs.replayed is None else inputs.replayed.dropped(),
        "reference_reason": inputs.report.reference_reason,
    }
    summary["loss"] = config.dpo.model_dump(mode="json")
    summary["warnings"] += inputs.notes
    return summary


COMMAND: Command[TrainDpoConfig, DpoInputs] = Command(
    name="train_dpo", config=TrainDpoConfig, prepare=prepare, run=run, show=show_training
)

if __name__ == "__main__":
    sys.exit(main(COMMAND))
