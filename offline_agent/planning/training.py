"""Costs of training: the planners of `train_sft`, `train_dpo` and `refine_grpo`."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from offline_agent.config.refine_grpo import RefineGrpoConfig
from offline_agent.config.training import TrainSftConfig
from offline_agent.planning.figures import Figure, Forecast, exactly, grown, total, unknown
from offline_agent.planning.planner import Planner, ReferenceRun
from offline_agent.planning.search import records, rows_by, size_of
from offline_agent.planning.tasks import LACKING
from offline_agent.runner import training
from offline_agent.store.columns import PAIR_TABLES, SUCCESS_TABLES

_LACKING = LACKING.replace("plan.probe=20", "plan.probe=1")
_ROUND_ATTEMPTS = "rollouts"
MEMORY_NOTE = "resident, largest process; a GPU's is not measured"


class _Offline(Planner):
    """The cost of an offline trainer."""

    tables: tuple[str, ...] = ()

    def probe(self, config: Any) -> Any:
        """See `Planner`."""
        most = config.optimizer.max_updates
        updates = config.plan.updates if most is None else min(config.plan.updates, most)
        return config.model_copy(
            update={
                "optimizer": config.optimizer.model_copy(update={"max_updates": updates}),
                "checkpoints": config.checkpoints.model_copy(update={"every": updates, "keep": 1}),
            }
        )

    def expected(self, config: Any, seen: ReferenceRun | None) -> list[Figure]:
        """See `Planner`."""
        rows = self.stored(config) if seen is None else self.rows(config, seen)
        return self.of_rows(config, rows, seen)

    def of_rows(self, config: Any, rows: Forecast, seen: ReferenceRun | None) -> list[Figure]:
        """Return the figures of training on so many rows."""
        chosen = training.settings(config)
        updates = rows.map(lambda count: float(training.updates(chosen, max(1, round(count)))))
        out = [
            Figure("rows", rows, "rows", "in the files; some may be left out" if seen is None else ""),
            Figure("updates", updates, "", f"of {chosen.rows} rows"),
            *_of_updates(config, updates, seen, "start-up and saving not counted"),
        ]
        return [*out, *_on_disk(config, updates, seen)]

    def rows(self, config: Any, seen: ReferenceRun) -> Forecast:
        """Return the number of rows: the probe reads all of them, and trains on few."""
        return exactly(seen.summary["data"]["kept"])

    def stored(self, config: Any) -> Forecast:
        """Return the number of rows that the files state, as an upper bound."""
        if not config.data.runs and not config.data.files:
            return Forecast()
        from offline_agent.training.data import sources

        counts = [one.rows for one in sources.find(config.data.runs, config.data.files, self.tables)]
        return Forecast() if None in counts else Forecast(high=float(sum(count or 0 for count in counts)))

    def actual(self, config: Any, seen: ReferenceRun) -> dict[str, float | None]:
        """See `Planner`."""
        return {"rows": seen.summary["data"]["kept"], **_trained(seen)}


class TrainDpo(_Offline):
    """The cost of `train_dpo`."""

    tables = PAIR_TABLES


class TrainSft(_Offline):
    """The cost of `train_sft`."""

    tables = SUCCESS_TABLES

    def probe(self, config: TrainSftConfig) -> TrainSftConfig:
        """Return a small run; demonstrations are of fewer tasks, but enough for whole updates."""
        small: TrainSftConfig = super().probe(config)
        if config.data.runs or config.data.files:
            return small
        wanted = math.ceil(1.5 * config.plan.updates * config.batch.rows / config.demonstrations.per_task)
        n = min(count_demonstrated(config), max(config.plan.probe, wanted))
        return small.model_copy(update={"tasks": config.tasks.model_copy(update={"n": n})})

    def rows(self, config: TrainSftConfig, seen: ReferenceRun) -> Forecast:
        """Return the number of rows, those of tasks that the probe did not demonstrate included."""
        if "demonstrations" not in seen.summary:
            return super().rows(config, seen)
        import pyarrow.parquet as pq

        files = sorted((seen.path / "demonstrations").glob("*.parquet"))
        names = {name for file in files for name in pq.read_table(file, columns=["task_id"])["task_id"].to_pylist()}
        per_task = config.demonstrations.per_task
        each = rows_by([seen.path / "demonstrations"], "task_id", sorted(names))
        each += [0.0] * (seen.summary["demonstrations"]["attempts"] // per_task - len(names))  # never kept
        return grown(seen.summary["data"]["kept"], each, count_demonstrated(config), seen.known)

    def of_rows(self, config: TrainSftConfig, rows: Forecast, seen: ReferenceRun | None) -> list[Figure]:
        """Return the figures, the reading of a new model included."""
        out = super().of_rows(config, rows, seen)
        if not config.scratch.reading:
            return out
        chosen = replace(training.settings(config), epochs=config.scratch.reading, max_updates=None)
        updates = rows.map(lambda count: float(training.updates(chosen, max(1, round(count)))))
        if seen is None:
            return [*out, unknown("seconds_reading", "seconds", _LACKING)]
        each = [one["seconds"] for one in _steady(list(records(seen.path, "reading")))]
        return [*out, Figure("seconds_reading", over(each, updates), "seconds", "before it is trained on actions")]

    def actual(self, config: TrainSftConfig, seen: ReferenceRun) -> dict[str, float | None]:
        """Return the actual values, the reading of a new model included."""
        read = seen.summary.get("reading")
        return {**super().actual(config, seen), **({"seconds_reading": read["seconds"]} if read else {})}


class RefineGrpo(Planner):
    """The cost of `refine_grpo`."""

    def probe(self, config: RefineGrpoConfig) -> RefineGrpoConfig:
        """See `Planner`."""
        rounds = min(config.rounds, config.plan.updates)
        kept = config.checkpoints.model_copy(update={"every": rounds, "keep": 1})
        return config.model_copy(update={"rounds": rounds, "checkpoints": kept})

    def expected(self, config: RefineGrpoConfig, seen: ReferenceRun | None) -> list[Figure]:
        """See `Planner`."""
        plan, rounds = config.plan, config.rounds
        episodes = config.rollouts.tasks * config.rollouts.size
        updates = rounds * config.objective.passes * config.objective.minibatches
        out = [Figure("rounds", exactly(rounds), ""), Figure("updates", exactly(updates), "")]
        if seen is None:
            most = rounds * episodes * config.rollouts.max_steps
            redrawn = "" if not config.rollouts.redraws else "; redrawn groups come on top"
            out += [
                Figure("episodes", Forecast(rounds * episodes), "", f"rounds × tasks × size{redrawn}"),
                Figure("tokens_sampled", Forecast(high=most * config.rollouts.max_tokens), "tokens", "at most"),
                Figure("tool_calls", Forecast(high=most), "calls", "at most"),
                unknown("seconds_playing", "seconds", _LACKING),
            ]
        else:
            played = _played(seen.path, config.rollouts.size)
            for name, unit in (("episodes", ""), ("tokens_sampled", "tokens"), ("prompt_tokens_once", "tokens"),
                               ("tool_calls", "calls"), ("seconds_playing", "seconds")):  # fmt: skip
                out.append(Figure(name, total(played[name], rounds, seen.known), unit))
            if plan.tokens_per_second is not None:
                sampled = out[3].forecast.times(1 / plan.tokens_per_second / plan.generators)
                out[-1] = Figure("seconds_playing", sampled, "seconds", "tokens at the given rate; tools overlap")
            elif plan.generators > 1:
                out[-1] = Figure("seconds_playing", out[-1].forecast, "seconds", "on one generator, as in the probe")
        out += _of_updates(config, exactly(updates), seen, "playing not counted")
        return [*out, *_on_disk(config, exactly(rounds), seen)]

    def actual(self, config: RefineGrpoConfig, seen: ReferenceRun) -> dict[str, float | None]:
        """See `Planner`."""
        played = _played(seen.path, config.rollouts.size)
        sums = {name: sum(each) for name, each in played.items()}
        return {"rounds": len(played["episodes"]), **sums, **_trained(seen)}


def over(each: Sequence[float], count: Forecast) -> Forecast:
    """Return the total of so many units, where their number is itself a forecast."""
    if not each or count.expected is None:
        return Forecast()
    low, expected, high = (total(each, n, False) for n in (count.low or 0, count.expected, count.high or 0))
    return Forecast(
        expected.expected,
        None if count.low is None else low.low,
        None if count.high is None else high.high,
    )


def count_demonstrated(config: TrainSftConfig) -> int:
    """Return the number of tasks that are demonstrated."""
    from offline_agent.envs.base import EnvSpec
    from offline_agent.runner.components import make_tasks

    spec = EnvSpec.load(config.env.name, dict(config.env.model_extra or {}), python=config.env.python)
    return len(make_tasks(spec, config.tasks))


def _trained(seen: ReferenceRun) -> dict[str, float | None]:
    """Return the actual values that all trainers have."""
    trained = seen.summary["training"]
    return {
        "updates": trained["updates"],
        "tokens_a_step": trained["tokens"] / max(1, trained["updates"]),
        "tokens_computed": trained["tokens"],
        "tokens_of_rows": trained["raw_tokens"],
        "seconds_training": trained["seconds"],
        "memory": seen.memory,
        "checkpoint": _checkpoint(seen.path),
        "disk": size_of(seen.path),
    }


def _steady(done: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the updates without the first one, which is slower: it fills caches."""
    return done[1:] if len(done) > 1 else done


def _of_updates(config: Any, updates: Forecast, seen: ReferenceRun | None, note: str) -> Iterator[Figure]:
    """Yield tokens and seconds of updates; `note` says which time is not counted."""
    done = [] if seen is None else [record for record in records(seen.path) if "update" in record]
    if config.plan.update_seconds is not None:
        yield Figure("seconds_training", updates.times(config.plan.update_seconds), "seconds", "as given")
    elif done:
        each = [one["seconds"] for one in _steady(done)]
        yield Figure("seconds_training", over(each, updates), "seconds", note)
    else:
        yield unknown("seconds_training", "seconds", f"{_LACKING} or plan.update_seconds")
    if not done:
        yield unknown("tokens_a_step", "tokens", _LACKING if seen is None else "the probe made no update")
        return
    computed, whole = [one["tokens"] for one in done], [one["raw_tokens"] for one in done]
    yield Figure("tokens_a_step", total(computed, 1, False), "tokens", "shared histories once")
    yield Figure("tokens_computed", over(computed, updates), "tokens", "shared histories once")
    yield Figure("tokens_of_rows", over(whole, updates), "tokens", "each row for itself")


def _on_disk(config: Any, updates: Forecast, seen: ReferenceRun | None) -> Iterator[Figure]:
    """Yield memory and disk; checkpoints are counted by `updates`."""
    if seen is None:
        for name in ("memory", "checkpoint", "disk"):
            yield unknown(name, "bytes", _LACKING)
        return
    if seen.memory is None:
        yield unknown("memory", "bytes", "plan.rates names a run whose processes are gone")
    else:
        yield Figure("memory", Forecast(float(seen.memory)), "bytes", MEMORY_NOTE)
    one = _checkpoint(seen.path)
    if one is None:
        yield unknown("checkpoint", "bytes", "the run that it would be taken from has none")
        return
    every, keep = config.checkpoints.every, config.checkpoints.keep
    yield Figure("checkpoint", Forecast(float(one)), "bytes", f"each; one every {every}, {keep} are kept")
    folders = list((seen.path / "checkpoints").glob("checkpoint-*"))
    without = size_of(seen.path) - sum(map(size_of, folders))
    disk = updates.map(lambda count: without + one * min(keep, math.ceil(count / every)))
    yield Figure("disk", disk, "bytes", "the model and what checkpoints are kept; logs grow with the updates")


def _checkpoint(path: Path) -> int | None:
    folders = list((path / "checkpoints").glob("checkpoint-*"))
    return max(map(size_of, folders)) if folders else None


def _played(path: Path, size: int) -> dict[str, list[float]]:
    """Return the costs of the rounds, by round."""
    rounds: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for record in records(path, _ROUND_ATTEMPTS):
        if "attempt" in record:
            one = rounds[record["attempt"][3] // size]
            one["episodes"] += 1
            one["tokens_sampled"] += record["generated"]
            one["prompt_tokens_once"] += record["prefilled"]
            one["tool_calls"] += record["tool_calls"]
    for record in records(path, "rounds"):
        rounds[record["round"]]["seconds_playing"] = record["seconds"]
    names = ("episodes", "tokens_sampled", "prompt_tokens_once", "tool_calls", "seconds_playing")
    return {name: [rounds[number][name] for number in sorted(rounds)] for name in names}
