"""Observations in `train_sft`: checked keys, the rows that are read for them, their loss, and the summary's share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from offline_agent.config.training import TrainSftConfig

if TYPE_CHECKING:
    from offline_agent.rendering.renderer import Renderer
    from offline_agent.training.data.observations import ObservationReader
    from offline_agent.training.data.rows import TrajectoryRow
    from offline_agent.training.offline.sft import ObservationLoss


def faults(config: TrainSftConfig) -> list[str]:
    """Return what is wrong with the keys of `observations`."""
    chosen, found = config.observations, []
    if not chosen.weight:
        return [
            f"observations.{name}: got {value!r}, but observations are predicted only with observations.weight above 0"
            for name, value in (
                ("source", chosen.source), ("runs", list(chosen.runs)), ("per_update", chosen.per_update)
            )
            if value not in ("rows", [], None)
        ]  # fmt: skip
    if config.scratch.layers:
        found.append(
            "observations.weight: a new model encodes messages anew, and nothing marks observations in what it makes; "
            "use scratch.reading, or train the new model first"
        )
    if chosen.source == "executed" and not (chosen.runs or config.data.runs):
        found.append(
            "observations.source: got 'executed', but there are no runs whose trajectories/ could be read; name them "
            "with data.runs or observations.runs, or set observations.source=rows"
        )
    if chosen.source == "rows":
        found += [
            f"observations.{name}: got {value!r}, but it is for observations.source=executed; leave it out"
            for name, value in (("runs", list(chosen.runs)), ("per_update", chosen.per_update))
            if value
        ]
    return found


def reader(config: TrainSftConfig, renderer: Renderer, max_length: int) -> ObservationReader | None:
    """Return what marks the observations of rows; None where they are not predicted."""
    if not config.observations.weight:
        return None
    from offline_agent.training.data.observations import ObservationReader

    return ObservationReader(renderer, max_length)


def executed(found: ObservationReader | None, config: TrainSftConfig) -> list[TrajectoryRow]:
    """Return the trajectories that are read for their observations alone, after the rows themselves were read.

    Raises:
        ConfigError: No row and no trajectory has an observation; or as `training.data.rows.load_trajectories`.
        DataError: As there.
    """
    if found is None:
        return []
    chosen, rows = config.observations, []
    if chosen.source == "executed":
        rows = found.executed(*((chosen.runs, "observations") if chosen.runs else (config.data.runs, "data")))
    found.check()
    return rows


def loss(
    found: ObservationReader | None, trajectories: Sequence[TrajectoryRow], config: TrainSftConfig
) -> ObservationLoss | None:
    """Return the loss on observations; None where they are not predicted."""
    from offline_agent.training.offline.sft import ObservationLoss

    chosen = config.observations
    return None if found is None else ObservationLoss(chosen.weight, tuple(trajectories), chosen.per_update)


def tell(summary: dict[str, Any], found: ObservationReader | None, config: TrainSftConfig) -> None:
    """Add to a summary what each of the two masks counted, and which observations there were."""
    trained = summary["training"]
    trained["masks"] = {
        "agent": {"tokens": trained["agent_tokens"], "weight": 1.0},
        "observations": {"tokens": trained.pop("observation_tokens", 0), "weight": config.observations.weight},
    }
    if found is None:
        return
    report = found.report
    names = ("certified", "derived", "edges", "tokens", "repeated", "cut", "trajectories", "hashes")
    summary["data"]["observations"] = {
        "source": config.observations.source,
        **{name: getattr(report, name) for name in names},
        "without": len(report.without),
    }
    summary["warnings"] += report.notes()
