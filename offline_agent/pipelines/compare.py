"""Comparison of evaluations: `python -m offline_agent.pipelines.compare RUN RUN ... [mode=sampled]`.

Takes run directories of `evaluate` and compares their policies on the tasks that all of them scored: success with
intervals, and every two of them by a paired test, corrected for the number of tests (Holm). Runs whose figures would
not be of the same thing are refused: another environment, verifier, limit of steps or temperature.

  mode  the attempts that count: sampled, greedy, best_of_n or mcts (default: sampled, or the one all runs have)

Exit status: 0 compared, 1 a run cannot be read, 2 the request was wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.errors import ConfigError, DataError
from offline_agent.runner.arguments import TEXT, read_keys, tool
from offline_agent.runner.terminal import show

if TYPE_CHECKING:
    from offline_agent.evaluation.statistics import Outcomes
    from offline_agent.report.html.reading import RunFiles

_SAME = ("max_steps", "limits.max_observation_chars", "policy.temperature", "judge")


def main(arguments: Sequence[str]) -> int:
    """Print the comparison; returns the exit status."""
    return tool("compare", __doc__ or "", arguments, _compare)


def _compare(arguments: Sequence[str]) -> None:
    from offline_agent.evaluation.statistics import task_means

    runs, keys = read_keys(arguments, {"mode": TEXT}, least=2, most=None)
    evaluations, mode = _read(runs, keys.get("mode"))
    tasks = set.intersection(*(set(task_means(outcomes)) for outcomes in evaluations.values()))
    if not tasks:
        raise ConfigError(
            f"{', '.join(evaluations)}: they have no task in common that all of them scored; evaluate them on the same "
            "tasks (tasks.split, tasks.n, tasks.offset)"
        )
    common = {name: {task: of[task] for task in tasks} for name, of in evaluations.items()}
    left_out = len(set().union(*evaluations.values())) - len(tasks)
    show(_tables(common, mode, left_out))


def _read(runs: Sequence[Path], mode: str | None) -> tuple[dict[str, Outcomes], str]:
    """Return the outcomes by name of the run, and the mode.

    Raises:
        ConfigError: A run is no finished evaluation, has no such attempts, or cannot be compared with the first.
        DataError: A run cannot be read.
    """
    from offline_agent.evaluation.statistics import recorded
    from offline_agent.report.html.reading import RunFiles

    files = [RunFiles(run) for run in runs]
    others = [run for run in files if run.command != "evaluate"]
    faults = [f"{run.path}: written by {run.command}, not by evaluate; name runs of evaluate" for run in others]
    begun = [run for run in files if run.manifest["status"] != "done"]
    faults += [f"{run.path}: not finished; give its command again" for run in begun]
    if not faults:
        faults += [fault for run in files[1:] for fault in _differences(files[0], run)]
    if faults:
        raise ConfigError(faults)
    rows = [[row for row in run.attempts if row["policy"] == "candidate"] for run in files]
    if broken := [fault for run in files for fault in run.faults]:
        raise DataError("\n".join(broken))
    common = set.intersection(*({row["mode"] for row in of} for of in rows))
    if mode is None and common:
        mode = "sampled" if "sampled" in common else min(common)
    if mode is None or mode not in common:
        allowed = ", ".join(sorted(common)) or "nothing"
        raise ConfigError(f"mode: got {mode or 'none'}, allowed: what all runs have: {allowed}")
    names = [run.path.resolve().name for run in files]
    names = [name if names.count(name) == 1 else f"{name} ({at})" for at, name in enumerate(names, 1)]
    chosen = ((row for row in of if row["mode"] == mode) for of in rows)
    return {name: recorded(of, "success") for name, of in zip(names, chosen, strict=True)}, mode


def _differences(first: RunFiles, other: RunFiles) -> Iterator[str]:
    """Yield one line for each difference that makes a comparison unfair."""
    from offline_agent.store.provenance import changed_sources

    ours, theirs = first.manifest.get("env"), other.manifest.get("env")
    if ours != theirs:
        yield f"{other.path}: its environment is {theirs}, not {ours}; name runs of one"
    for change in changed_sources(first.manifest.get("sources", {}), other.manifest.get("sources", {})):
        yield f"{other.path}: {change} between the runs, so two verifiers would be compared; make one anew"
    sets = [(_at(run.config, "tasks.file"), _at(run.manifest, "hashes.task_set")) for run in (first, other)]
    if sets[0][0] != sets[1][0] and sets[0][1] != sets[1][1]:
        yield f"{other.path}: its tasks.file has other tasks, which may have the same ids; name runs of one file"
    for key in _SAME:
        ours, theirs = _at(first.config, key), _at(other.config, key)
        if ours != theirs:
            yield f"{other.path}: it has {key}={theirs}, {first.path} has {ours}; name runs of one value"


def _at(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _tables(evaluations: Mapping[str, Outcomes], mode: str, left_out: int) -> Any:
    from offline_agent.evaluation.report import holm
    from offline_agent.evaluation.statistics import mean_over_tasks, paired_difference
    from offline_agent.report.closing import closing, interval, table

    count = len(next(iter(evaluations.values())))
    rows = [(name, interval(mean_over_tasks(of).to_json(), ".1%")) for name, of in evaluations.items()]
    pairs = list(combinations(evaluations, 2))
    found = [paired_difference(evaluations[one], evaluations[other]) for one, other in pairs]
    tests = []
    for (one, other), told, p_value in zip(pairs, found, holm([each.p_value for each in found]), strict=True):
        mean, low, high = (100 * (value or 0) for value in (told.mean, told.low, told.high))
        apart = p_value is not None and p_value <= 0.05
        says = "not told apart" if not apart else "one is better" if mean > 0 else "other is better"
        tests.append((one, other, f"{mean:+.1f} ({low:+.1f} to {high:+.1f})", f"{told.p_value:.3f}",
                      f"{p_value:.3f}", says))  # fmt: skip
    title = f"success, {mode} attempts, on {count} tasks that all of them scored"
    heads = ("one", "other", ">difference, points", ">p", ">p corrected", "says")
    note = f"{left_out} tasks were left out: not all runs scored them" if left_out else ""
    return closing(
        table(title, rows, ("run", ">95% interval")),
        table(f"{len(pairs)} paired comparison{'s' * (len(pairs) > 1)}, p-values corrected by Holm", tests, heads),
        note,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
