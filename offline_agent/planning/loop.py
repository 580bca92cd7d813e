"""What is known about the cost of `iterate`: the sum of its stages, each as its own pipeline's plan has it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.config.iterate import IterateConfig
from offline_agent.launch.loop_stages import Plan
from offline_agent.planning.figures import Estimate, Figure, unknown
from offline_agent.planning.plan import Planner, Seen
from offline_agent.planning.search import BuildPrefs, Evaluate, count_tasks, fewer
from offline_agent.planning.training import RefineGrpo, TrainDpo, TrainSft

if TYPE_CHECKING:
    from offline_agent.store.run_directory import RunDirectory

_SUMMED = (
    "tokens_sampled", "prompt_tokens_without_cache", "prompt_tokens_computed", "prompt_tokens_once", "tool_calls",
    "calls_replayed", "trees", "pairs", "filtered", "trajectories", "attempts", "episodes", "updates",
    "tokens_computed", "disk",
)  # fmt: skip
_NOT_MADE = "not known: the probe did not come to this stage (no verified success, or no pair); raise plan.probe"
_PLANNERS: dict[str, Planner] = {
    "build_prefs": BuildPrefs(), "evaluate": Evaluate(), "train_sft": TrainSft(), "train_dpo": TrainDpo(),
    "refine_grpo": RefineGrpo(),
}  # fmt: skip


class Iterate:
    """The cost of `iterate`; see `_plan.Planner`."""

    def probe(self, config: IterateConfig) -> IterateConfig:
        """Return one small iteration: every stage of it is the probe of its pipeline."""
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

    def expected(self, config: IterateConfig, seen: Seen | None) -> list[Figure]:
        """See `_plan.Planner`."""
        made = list(self._stages(config, seen))
        out = []
        for name in _SUMMED:
            found = [figure for _, figures in made for figure in figures if figure.name == name]
            if found:
                out.append(_sum(name, found))
        seconds = [_time(pipeline, figures) for pipeline, figures in made]
        out += _by_name(seconds)
        note = "all stages; start-up of their processes not counted"
        out.append(Figure("seconds", _sum("seconds", seconds).estimate, "seconds", note))
        known = seen is not None and seen.memory is not None
        if seen is not None and known:
            resident = "resident, largest process; a GPU's is not measured"
            out.append(Figure("memory", Estimate(float(seen.memory or 0)), "bytes", resident))
        return out

    def _stages(self, config: IterateConfig, seen: Seen | None) -> Iterator[tuple[str, list[Figure]]]:
        """Yield the figures of stages, with the pipeline that each is."""
        plan, count = Plan(config, Path("/"), ""), config.iterations
        start, nowhere = plan.start(), Path("/tasks.jsonl")
        tasks = count_tasks(config)
        search = BuildPrefs().of_tasks(_own(config, plan.build_prefs(0, start, nowhere)), tasks * count,
                                       _stage(seen, "build_prefs"))  # fmt: skip
        yield "build_prefs", search
        trained = [name for name in ("sft", "dpo") if getattr(config, name).enabled]
        refined = {"never": 0, "last": 1, "each": count}[config.refine.when]
        evaluations = (1 + len(trained)) * count + refined  # the incumbent's own again in each iteration
        held_out = _own(config, plan.evaluate(0, "evaluate", start, nowhere, None))
        played = Evaluate().of_tasks(held_out, config.held_out.n * evaluations, _stage(seen, "evaluate_incumbent"))
        yield "evaluate", played
        found = {figure.name: figure.estimate for figure in search}
        if config.sft.enabled:
            stage = _own(config, plan.train_sft(0, start, ()))
            rows = self._kept(seen, "train_sft", "filtered", found.get("filtered", Estimate()))
            for number in range(count):  # each is tuned on all successes so far
                yield "train_sft", self._trained(TrainSft(), stage, rows.times((number + 1) / count), seen)
        if config.dpo.enabled:
            stage = _own(config, plan.train_dpo(0, start, Path("/"), (), ()))
            rows = self._kept(seen, "train_dpo", "pairs_total", found.get("pairs", Estimate()))
            for number in range(count):
                replay = config.replay.share if config.replay.pairs and number else 0.0
                each = rows.times(1 / count).map(lambda n, share=replay: n + min(share * n, config.replay.pairs))  # type: ignore[misc]
                yield "train_dpo", self._trained(TrainDpo(), stage, each, seen)
        for _ in range(refined):
            stage = _own(config, plan.refine(0, start, nowhere, ()))
            yield "refine_grpo", RefineGrpo().expected(stage, _stage(seen, "refine_grpo"))

    def _kept(self, seen: Seen | None, name: str, found: str, rows: Estimate) -> Estimate:
        """Return how many of the rows that searches find are trained on, going by the probe."""
        trained, built = _stage(seen, name), _stage(seen, "build_prefs")
        if trained is None or built is None or not built.summary[found]:
            return rows
        return rows.times(trained.summary["data"]["kept"] / built.summary[found])

    def _trained(self, planner: TrainSft | TrainDpo, config: Any, rows: Estimate, seen: Seen | None) -> list[Figure]:
        name = "train_sft" if isinstance(planner, TrainSft) else "train_dpo"
        stage = _stage(seen, name)
        if seen is not None and stage is None:
            return [unknown("updates", "", _NOT_MADE), unknown("seconds_training", "seconds", _NOT_MADE)]
        return planner.of_rows(config, rows, stage)

    def actual(self, config: IterateConfig, seen: Seen) -> dict[str, float | None]:
        """See `_plan.Planner`."""
        out: dict[str, float | None] = {}

        def add(name: str, value: float | None) -> None:
            before = out.get(name, 0.0)
            out[name] = None if value is None or before is None else before + value

        plan = Plan(config, Path("/"), "")
        refine = plan.refine(0, plan.start(), Path("/tasks.jsonl"), ()).config
        for pipeline, stage in _finished(seen.path):
            came = _PLANNERS[pipeline].actual(refine, stage)
            for name in _SUMMED:
                if name in came:
                    add(name, came[name])
            for name, value in came.items():
                if name.startswith("seconds"):
                    add(f"seconds_{pipeline}", value)
                    add("seconds", value)
        return {**out, "memory": None}

    def adopt(self, probe: Seen, run: RunDirectory) -> dict[str, float]:
        """Take over nothing: the stages have seeds and models of their own."""
        return {}


def _own(config: IterateConfig, stage: Any) -> Any:
    """Return a stage's configuration with the loop's plan."""
    return stage.config.model_copy(update={"plan": config.plan})


def _stage(seen: Seen | None, name: str) -> Seen | None:
    """Return a stage of the first iteration; its tasks are not those of the planned run's stages."""
    if seen is None:
        return None
    path = seen.path / "iteration-0" / name
    if not (path / "summary.json").is_file():
        return None
    return Seen(path, json.loads((path / "summary.json").read_bytes()), False, seen.memory)


def _finished(path: Path) -> Iterator[tuple[str, Seen]]:
    for manifest in sorted(path.glob("iteration-*/*/manifest.json")):
        summary = manifest.with_name("summary.json")
        if summary.is_file():
            told = json.loads(summary.read_bytes())
            yield json.loads(manifest.read_bytes())["command"], Seen(manifest.parent, told, True)


def _time(pipeline: str, figures: Iterable[Figure]) -> Figure:
    return _sum(f"seconds_{pipeline}", [figure for figure in figures if figure.name.startswith("seconds")])


def _by_name(figures: Iterable[Figure]) -> list[Figure]:
    by_name: dict[str, list[Figure]] = {}
    for figure in figures:
        by_name.setdefault(figure.name, []).append(figure)
    return [_sum(name, found) for name, found in by_name.items()]


def _sum(name: str, found: list[Figure]) -> Figure:
    """Return the sum; where a part of it is not known it is not known either, and the note says why."""
    estimate = found[0].estimate
    for figure in found[1:]:
        estimate = estimate.plus(figure.estimate)
    lacking = next((figure.note for figure in found if figure.estimate.expected is None), "")
    return Figure(name, estimate, found[0].unit, lacking)
