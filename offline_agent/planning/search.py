"""Costs of searching and of playing tasks: the planners of `build_prefs` and `evaluate`."""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.config.evaluate import EvaluateConfig
from offline_agent.planning.figures import Figure, Forecast, exactly, grown, unknown
from offline_agent.planning.planner import Planner, ReferenceRun
from offline_agent.planning.tasks import LACKING, TaskCosts, figures
from offline_agent.store.columns import PAIR_TABLES
from offline_agent.store.manifest import read_manifest

if TYPE_CHECKING:
    from offline_agent.store.run_directory import RunDirectory

_TREES_READ = 500  # trees of a large run from which the spread is estimated
_TABLES: dict[str, tuple[tuple[str, ...], str]] = {  # tables, and the column that names a row's tree or task
    "pairs": (PAIR_TABLES, "tree_id"),
    "filtered": (("filtered",), "task_id"),
    "trajectories": (("trajectories",), "task_id"),
}


class BuildPrefs(Planner):
    """The cost of `build_prefs`."""

    def probe(self, config: Any) -> Any:
        """See `Planner`."""
        return fewer(config, count_tasks(config), config.plan.probe)

    def expected(self, config: BuildPrefsConfig, seen: ReferenceRun | None) -> list[Figure]:
        """See `Planner`."""
        return self.of_tasks(config, count_tasks(config), seen)

    def of_tasks(self, config: BuildPrefsConfig, tasks: int, seen: ReferenceRun | None) -> list[Figure]:
        """Return the figures of so many tasks."""
        found = None if seen is None else self._found(seen)
        search = config.search
        calls = search.simulations * search.max_steps
        per_action = config.policy.max_tokens
        tokens = None if per_action is None else search.simulations * (search.max_steps + search.proposals) * per_action
        out = figures(config, tasks, found, calls, tokens)
        if found is None or seen is None:
            out.append(unknown("seconds_mining", "seconds", LACKING))
        else:
            mining = grown(seen.summary["seconds"]["judging"], found.sizes, tasks, seen.known)
            out.append(Figure("seconds_mining", mining, "seconds", "replays, pairs, certificates, in one thread"))
        return [*out, *_memory(seen), Figure("trees", exactly(tasks), "rows")]

    def _found(self, seen: ReferenceRun) -> TaskCosts:
        summary, seconds = seen.summary, seen.summary["seconds"]
        trees = list(itertools.islice(_trees(seen.path), _TREES_READ))
        names = [tree["graph"]["tree_id"] for tree, _ in trees]
        counters = [tree["graph"]["counters"] for tree, _ in trees]
        share = len(trees) / summary["tasks"]  # of a large run, the trees that were read stand for all
        totals = self._totals(seen)
        whole = totals["seconds_working"] is not None

        def part(amount: float | None) -> float | None:
            return None if amount is None else amount * share

        return TaskCosts(
            tokens=[one["generated"] for one in counters],
            prompts=[one["prefilled"] for one in counters],
            calls=[one["tool_calls"] for one in counters],
            sizes=[float(size) for _, size in trees],
            rows={
                name: (
                    summary["pairs_total" if name == "pairs" else name] * share,
                    rows_by([seen.path / table for table in tables], column, names),
                )
                for name, (tables, column) in _TABLES.items()
            },
            size=size_of(seen.path) * share,
            without_cache=part(totals["prompt_tokens_without_cache"]),
            computed=part(totals["prompt_tokens_computed"]),
            replayed=part(totals["calls_replayed"]),
            seconds=part(totals["seconds_working"]),
            generation=seconds["generation"] * share if whole else 0.0,
            tools=seconds["tools"] * share if whole else 0.0,
            driver=seconds["bookkeeping"] * share if whole else 0.0,
            threads=_threads(seen.path),
            known=seen.known,
        )

    def _totals(self, seen: ReferenceRun) -> dict[str, float | None]:
        """Return the totals of the run; None for totals that only an earlier session knew."""
        summary, session = seen.summary, seen.summary["this_session"]
        whole = bool(session) and not summary["resumed"]
        return {
            "tokens_sampled": summary["generated"],
            "prompt_tokens_without_cache": session["prefilled_tokens"] + session["reused_tokens"] if whole else None,
            "prompt_tokens_computed": session["prefilled_tokens"] if whole else None,
            "prompt_tokens_once": summary["prompt_trie"],
            "tool_calls": summary["tool_calls"],
            "calls_replayed": session["calls_replayed"] + summary["replayed_calls"] if whole else None,
            "seconds_working": summary["seconds"]["search"] if whole else None,
        }

    def actual(self, config: BuildPrefsConfig, seen: ReferenceRun) -> dict[str, float | None]:
        """See `Planner`."""
        summary = seen.summary
        return {
            **self._totals(seen),
            "seconds_mining": summary["seconds"].get("judging"),
            "memory": summary["this_session"].get("memory", {}).get("resident"),
            "disk": size_of(seen.path),
            "trees": summary["tasks"],
            "pairs": summary["pairs_total"],
            "filtered": summary["filtered"],
            "trajectories": summary["trajectories"],
        }

    def adopt(self, probe: ReferenceRun, run: RunDirectory) -> dict[str, float]:
        """Copy the trees of the probe: a tree depends on the seed of the run and its task alone."""
        target = run.path / "trees"
        target.mkdir(exist_ok=True)
        before = set(run.tree_ids())
        for file in sorted((probe.path / "trees").iterdir()):
            if not (target / file.name).exists():
                shutil.copyfile(file, target / f".{file.name}.tmp")
                (target / f".{file.name}.tmp").rename(target / file.name)
        fresh = set(run.tree_ids()) - before
        log = run.events()
        for record in records(probe.path):
            if record["tree"] in fresh:
                log.append(record)
        session, totals = probe.summary["this_session"], self._totals(probe)
        names = ("prompt_tokens_without_cache", "prompt_tokens_computed", "seconds_working")
        spent = {name: value for name in names if (value := totals[name]) is not None}
        return {**spent, "calls_replayed": session["calls_replayed"]}  # pairs are built again


def _memory(seen: ReferenceRun | None) -> Iterator[Figure]:
    """Yield the memory of a search whose policy runs in its process: the probe's, and the room its store has left."""
    held = {} if seen is None else seen.summary["this_session"].get("memory", {})
    if held:
        most = held["resident"] + held["kept_limit"] - held["kept"]
        note = f"at most: {held['kept_limit'] / 1e9:.2f} GB of it for keys and values kept (policy.cache_bytes)"
        yield Figure("memory", Forecast(float(most)), "bytes", note)


class Evaluate(Planner):
    """The cost of `evaluate`."""

    def probe(self, config: EvaluateConfig) -> EvaluateConfig:
        """See `Planner`."""
        small = fewer(config, count_tasks(config), config.plan.probe)
        # an earlier run to compare with costs nothing, and has other tasks
        return small.model_copy(update={"against": config.against.model_copy(update={"run": None}), "resamples": 100})

    def expected(self, config: EvaluateConfig, seen: ReferenceRun | None) -> list[Figure]:
        """See `Planner`."""
        return self.of_tasks(config, count_tasks(config), seen)

    def of_tasks(self, config: EvaluateConfig, tasks: int, seen: ReferenceRun | None) -> list[Figure]:
        """Return the figures of so many tasks."""
        searched = config.test_time.simulations if config.test_time.algorithm != "none" else 0
        sampled = max(config.attempts, searched) if config.test_time.algorithm == "best_of_n" else config.attempts
        ranked = max(config.attempts, 1) if config.test_time.algorithm == "rerank" else 0
        played = int(config.greedy) + sampled + ranked
        players = 1 if config.against.model is None else 2
        simulated = searched if config.test_time.algorithm == "mcts" else 0
        calls = players * (played + simulated) * config.max_steps
        per_action = config.policy.max_tokens
        extra = players * simulated * config.search.proposals + players * ranked * (searched - 1) * config.max_steps
        tokens = None if per_action is None else (calls + extra) * per_action
        return [one for one in figures(config, tasks, None if seen is None else self._found(seen), calls, tokens)
                if one.name != "pairs"]  # fmt: skip

    def _found(self, seen: ReferenceRun) -> TaskCosts:
        by_task = _attempts(seen.path)
        measured = _players(seen.summary["this_session"])
        totals = self._totals(seen)
        names = list(by_task)
        rows_each = [by_task[name]["rows"] for name in names]
        whole = totals["seconds_working"] is not None
        generation = sum(one["generation_seconds"] for one in measured) if whole else 0.0
        replays = [one.get("calls_replayed", 0) for one in measured]
        return TaskCosts(
            tokens=[by_task[name]["generated_tokens"] for name in names],
            prompts=[by_task[name]["prefilled_tokens"] for name in names],
            calls=[by_task[name]["tool_calls"] for name in names],
            sizes=[by_task[name]["steps"] for name in names],
            rows={"attempts": (sum(rows_each), rows_each)},
            size=size_of(seen.path),
            without_cache=totals["prompt_tokens_without_cache"],
            computed=totals["prompt_tokens_computed"],
            replayed=sum(replays) if any(replays) else None,
            seconds=totals["seconds_working"],
            generation=generation,
            known=seen.known,
        )

    def _totals(self, seen: ReferenceRun) -> dict[str, float | None]:
        session, seconds = seen.summary["this_session"], seen.summary["seconds"]
        measured = _players(session)
        whole = not session["resumed"]
        computed = sum(one["prompt_tokens_computed"] for one in measured)
        reused = sum(one["prompt_tokens_reused"] for one in measured)
        return {
            "prompt_tokens_without_cache": computed + reused if whole else None,
            "prompt_tokens_computed": computed if whole else None,
            "seconds_working": sum(seconds.values()) if whole else None,
        }

    def actual(self, config: EvaluateConfig, seen: ReferenceRun) -> dict[str, float | None]:
        """See `Planner`."""
        by_task = _attempts(seen.path).values()

        def summed(name: str) -> float:
            return sum(one[name] for one in by_task)

        return {
            **self._totals(seen),
            "tokens_sampled": summed("generated_tokens"),
            "prompt_tokens_once": summed("prefilled_tokens"),
            "tool_calls": summed("tool_calls"),
            "disk": size_of(seen.path),
            "attempts": summed("rows"),
        }


def count_tasks(config: Any) -> int:
    """Return the number of tasks of a configuration."""
    from offline_agent.runner.components import make_environment, make_tasks

    return len(make_tasks(make_environment(config), config.tasks))


def fewer(config: Any, tasks: int, most: int) -> Any:
    """Return the configuration with fewer tasks, each with the same budget."""
    n = min(tasks, most)
    budget = config.search.budget
    shared = {name: value for name in ("tokens", "prefilled", "tool_calls") if (value := getattr(budget, name))}
    kept = budget.model_copy(update={name: value // tasks * n for name, value in shared.items()})
    return config.model_copy(
        update={
            "tasks": config.tasks.model_copy(update={"n": n}),
            "search": config.search.model_copy(update={"budget": kept}),
        }
    )


def size_of(path: Path) -> int:
    """Return the total size of the files in a folder, bytes."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def rows_by(folders: Iterable[Path], column: str, names: Sequence[str]) -> list[float]:
    """Return the number of rows of each name in tables."""
    import pyarrow.parquet as pq

    counts: Counter[str] = Counter()
    for file in (file for folder in folders for file in sorted(folder.glob("*.parquet"))):
        counts.update(pq.read_table(file, columns=[column])[column].to_pylist())
    return [float(counts[name]) for name in names]


def records(path: Path, shard: str = "0000") -> Iterator[dict[str, Any]]:
    """Yield the records of a finished run's event log."""
    from offline_agent.store.events import EventLog

    file = path / "events" / f"{shard}.jsonl"
    if file.is_file():
        yield from EventLog(file).read()


def _trees(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    from offline_agent.store.run_directory import read_tree

    for file in sorted((path / "trees").glob("*.json.gz")):
        yield read_tree(file), file.stat().st_size


def _players(session: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [session[label] for label in ("candidate", "against") if label in session]


def _threads(path: Path) -> int:
    return int(read_manifest(path)["config"]["limits"]["workers"])


def _attempts(path: Path) -> dict[str, dict[str, float]]:
    """Return the costs of the attempts at each task; rows of best_of_n repeat other attempts and are left out."""
    import pyarrow.parquet as pq

    names = ("generated_tokens", "prefilled_tokens", "tool_calls", "steps")
    out: dict[str, dict[str, float]] = {}
    for file in sorted((path / "attempts").glob("*.parquet")):
        for row in pq.read_table(file, columns=["task_id", "mode", *names]).to_pylist():
            one = out.setdefault(row["task_id"], dict.fromkeys((*names, "rows"), 0.0))
            one["rows"] += 1
            if row["mode"] != "best_of_n":
                for name in names:
                    one[name] += row[name]
    return out
