"""Costs of `iterate`: the sum of the plans of its stages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from offline_agent.config.iterate import IterateConfig
from offline_agent.launch.loop_stages import LoopStages
from offline_agent.planning.figures import Figure, Forecast, unknown
from offline_agent.planning.planner import Planner, ReferenceRun
from offline_agent.planning.search import BuildPrefs, Evaluate, count_tasks, fewer
from offline_agent.planning.training import MEMORY_NOTE, RefineGrpo, TrainDpo, TrainSft
from offline_agent.store.files import read_json
from offline_agent.store.manifest import read_manifest

_SUMMED = (
    "tokens_sampled", "prompt_tokens_without_cache", "prompt_tokens_computed", "prompt_tokens_once", "tool_calls",
    "calls_replayed", "trees", "pairs", "filtered", "trajectories", "attempts", "episodes", "updates",
    "tokens_computed", "disk",
)  # fmt: skip
_NOT_MADE = "not known: the probe did not come to this stage (no verified success, or no pair); raise plan.probe"
STAGES: dict[str, Planner] = {
    "build_prefs": BuildPrefs(), "evaluate": Evaluate(), "train_sft": TrainSft(), "train_dpo": TrainDpo(),
    "refine_grpo": RefineGrpo(),
}  # fmt: skip


class Iterate(Planner):
    """The cost of `iterate`."""

    def probe(self, config: IterateConfig) -> IterateConfig:
        """Return one small iteration; each of its stages is the probe of its command."""
        plan, held_out, refine = config.plan, config.held_out, config.refine
        small = fewer(config, count_tasks(config), plan.probe)
        trained = {}
        for name in ("sft", "dpo"):
            stage = getattr(config, name)
            most = stage.optimizer.max_updates
            updates = plan.updates if most is None else min(plan.updates, most)
            optimizer = stage.optimizer.model_copy(update={"max_updates": updates})
            trained[name] = stage.model_copy(update={"optimizer": optimizer})
        when = "never" if refine.when == "never" else "last"
        rounds = min(refine.rounds, plan.updates)
        made: IterateConfig = small.model_copy(
            update={
                **trained,
                "iterations": 1,
                "held_out": held_out.model_copy(update={"n": min(held_out.n, max(2, plan.probe))}),
                "refine": refine.model_copy(update={"when": when, "rounds": rounds}),
            }
        )
        return made

    def expected(self, config: IterateConfig, seen: ReferenceRun | None) -> list[Figure]:
        """See `Planner`."""
        parts: dict[str, list[Figure]] = {name: [] for name in _SUMMED}
        for command, figures in self._stages(config, seen):
            for figure in figures:
                if figure.name.startswith("seconds"):
                    parts.setdefault(f"seconds_{command}", []).append(figure)
                elif figure.name in _SUMMED:
                    parts[figure.name].append(figure)
        out = [_sum(name, found) for name, found in parts.items() if found]
        seconds = _sum("seconds", [figure for figure in out if figure.name.startswith("seconds")])
        note = "all stages; start-up of their processes not counted"
        out.append(Figure("seconds", seconds.forecast, "seconds", note))
        if seen is not None and seen.memory is not None:
            out.append(Figure("memory", Forecast(float(seen.memory)), "bytes", MEMORY_NOTE))
        return out

    def _stages(self, config: IterateConfig, seen: ReferenceRun | None) -> Iterator[tuple[str, list[Figure]]]:
        """Yield the command and the figures of each stage."""
        plan, count = LoopStages(config, Path("/"), ""), config.iterations
        start, nowhere = plan.start(), Path("/tasks.jsonl")
        tasks = count_tasks(config)
        search = BuildPrefs().of_tasks(_own(config, plan.build_prefs(0, start, nowhere)), tasks * count,
                                       _stage(seen, "build_prefs"))  # fmt: skip
        yield "build_prefs", search
        trained = [name for name in ("sft", "dpo") if getattr(config, name).enabled]
        refined = {"never": 0, "last": 1, "each": count}[config.refine.when]
        evaluations = (1 + len(trained)) * count + refined  # the incumbent is evaluated again in each iteration
        held_out = _own(config, plan.evaluate(0, "evaluate", start, nowhere, None))
        played = Evaluate().of_tasks(held_out, config.held_out.n * evaluations, _stage(seen, "evaluate_incumbent"))
        yield "evaluate", played
        found = {figure.name: figure.forecast for figure in search}
        if config.sft.enabled:
            stage = _own(config, plan.train_sft(0, start, ()))
            rows = self._kept(seen, "train_sft", "filtered", found.get("filtered", Forecast()))
            for number in range(count):  # each iteration trains on all successes so far
                yield "train_sft", self._trained(TrainSft(), stage, rows.times((number + 1) / count), seen)
        if config.dpo.enabled:
            stage = _own(config, plan.train_dpo(0, start, Path("/"), (), ()))
            rows = self._kept(seen, "train_dpo", "pairs_total", found.get("pairs", Forecast()))
            for number in range(count):
                replay = config.replay.share if config.replay.pairs and number else 0.0
                each = rows.times(1 / count).map(lambda n, share=replay: n + min(share * n, config.replay.pairs))  # type: ignore[misc]
                yield "train_dpo", self._trained(TrainDpo(), stage, each, seen)
        for _ in range(refined):
            stage = _own(config, plan.refine(0, start, nowhere, ()))
            yield "refine_grpo", RefineGrpo().expected(stage, _stage(seen, "refine_grpo"))

    def _kept(self, seen: ReferenceRun | None, name: str, found: str, rows: Forecast) -> Forecast:
        """Return how many of the rows found are trained on, by the share in the probe."""
        trained, built = _stage(seen, name), _stage(seen, "build_prefs")
        if trained is None or built is None or not built.summary[found]:
            return rows
        return rows.times(trained.summary["data"]["kept"] / built.summary[found])

    def _trained(
        self, planner: TrainSft | TrainDpo, config: Any, rows: Forecast, seen: ReferenceRun | None
    ) -> list[Figure]:
        name = "train_sft" if isinstance(planner, TrainSft) else "train_dpo"
        stage = _stage(seen, name)
        if seen is not None and stage is None:
            return [unknown("updates", "", _NOT_MADE), unknown("seconds_training", "seconds", _NOT_MADE)]
        return planner.of_rows(config, rows, stage)

    def actual(self, config: IterateConfig, seen: ReferenceRun) -> dict[str, float | None]:
        """See `Planner`."""
        out: dict[str, float | None] = {}

        def add(name: str, value: float | None) -> None:
            before = out.get(name, 0.0)
            out[name] = None if value is None or before is None else before + value

        plan = LoopStages(config, Path("/"), "")
        refine = plan.refine(0, plan.start(), Path("/tasks.jsonl"), ()).config
        for pipeline, stage in _finished(seen.path):
            came = STAGES[pipeline].actual(refine, stage)
            for name in _SUMMED:
                if name in came:
                    add(name, came[name])
            for name, value in came.items():
                if name.startswith("seconds"):
                    add(f"seconds_{pipeline}", value)
                    add("seconds", value)
        return {**out, "memory": None}


def _own(config: IterateConfig, stage: Any) -> Any:
    """Return the configuration of a stage with the section `plan` of the loop."""
    return stage.config.model_copy(update={"plan": config.plan})


def _stage(seen: ReferenceRun | None, name: str) -> ReferenceRun | None:
    """Return a stage of the first iteration as a reference run; the planned stages have other tasks."""
    if seen is None:
        return None
    path = seen.path / "iteration-0" / name
    if not (path / "summary.json").is_file():
        return None
    return ReferenceRun(path, read_json(path / "summary.json"), False, seen.memory)


def _finished(path: Path) -> Iterator[tuple[str, ReferenceRun]]:
    for manifest in sorted(path.glob("iteration-*/*/manifest.json")):
        summary = manifest.with_name("summary.json")
        if summary.is_file():
            told = read_json(summary)
            yield read_manifest(manifest.parent)["command"], ReferenceRun(manifest.parent, told, True)


def _sum(name: str, found: list[Figure]) -> Figure:
    """Return the sum; it is not known if a part is not known, and the note says why."""
    forecast = found[0].forecast
    for figure in found[1:]:
        forecast = forecast.plus(figure.forecast)
    lacking = next((figure.note for figure in found if figure.forecast.expected is None), "")
    return Figure(name, forecast, found[0].unit, lacking)
