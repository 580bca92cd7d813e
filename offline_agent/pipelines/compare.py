"""Comparison of evaluations: `python -m offline_agent.pipelines.compare RUN RUN ... [mode=sampled]`.

Takes run directories of `evaluate` and compares their policies on the tasks that all of them scored: success with
intervals, every two of them by a paired test, corrected for the number of tests (Holm), how far the same model differs
from itself by the luck of sampling, and how many tasks would tell two apart. docs/report.md explains the figures.

  mode        the attempts that count: sampled, greedy, best_of_n or mcts (default: sampled, or the one all runs have)
  confidence  of the intervals, and 1 - the error of the tests (default: 0.95)
  json=true   prints JSON

Exit status: 0 compared, 1 a run cannot be read, 2 the request was wrong.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.errors import ConfigError, DataError
from offline_agent.runner.arguments import FLAG, TEXT, ToolKey, read_keys, tool
from offline_agent.runner.terminal import show

if TYPE_CHECKING:
    from offline_agent.evaluation.panel import Contrast, Entry, Panel
    from offline_agent.evaluation.statistics import Outcomes


def main(arguments: Sequence[str]) -> int:
    """Print the comparison; returns the exit status."""
    return tool("compare", __doc__ or "", arguments, _compare)


def _compare(arguments: Sequence[str]) -> None:
    from offline_agent.evaluation.panel import compare

    share = ToolKey(_confidence, "0.5 to below 1, e.g. confidence=0.95")
    runs, keys = read_keys(arguments, {"mode": TEXT, "confidence": share, "json": FLAG}, least=2, most=None)
    confidence = keys.get("confidence", 0.95)
    evaluations, models, mode = _read(runs, keys.get("mode"))
    panel = compare(evaluations, confidence)
    if keys.get("json") == "true":
        show(json.dumps(_to_json(panel, models, mode), indent=2))
    else:
        show(_tables(panel, models, mode, confidence))


def _confidence(text: str) -> float:
    share = float(text)
    if not 0.5 <= share < 1:
        raise ValueError
    return share


def _read(runs: Sequence[Path], mode: str | None) -> tuple[dict[str, Outcomes], dict[str, str | None], str]:
    """Return the outcomes and the hash of the model (None = not known) by name of the run, and the mode.

    Raises:
        ConfigError: A run is no evaluation, has no such attempts, or plays another environment than the first.
        DataError: A run cannot be read.
    """
    from offline_agent.evaluation.statistics import recorded
    from offline_agent.report.html.reading import RunFiles

    files = [RunFiles(run) for run in runs]
    others = [run for run in files if run.command != "evaluate"]
    faults = [f"{run.path}: written by {run.command}, not by evaluate; name runs of evaluate" for run in others]
    environments = {(run.manifest.get("env") or {}).get("name") for run in files}
    if len(environments) > 1:
        played = ", ".join(sorted(map(str, environments)))
        faults.append(f"they play different environments: {played}; name runs of one")
    rows = [[row for row in run.attempts if row["policy"] == "candidate"] for run in files]
    broken = [fault for run in files for fault in run.faults]
    if broken:
        raise DataError("\n".join(broken))
    common = set.intersection(*({row["mode"] for row in of} for of in rows))
    if mode is None and common:
        mode = "sampled" if "sampled" in common else min(common)
    if mode not in common and not faults:
        allowed = ", ".join(sorted(common)) or "nothing"
        faults.append(f"mode: got {mode or 'none'}, allowed: what all runs have: {allowed}")
    if faults or mode is None:
        raise ConfigError(faults)
    out: dict[str, Outcomes] = {}
    models: dict[str, str | None] = {}
    for run, of in zip(files, rows, strict=True):
        name, number = run.path.resolve().name, 2
        while name in out:
            name, number = f"{run.path.resolve().name} ({number})", number + 1
        out[name] = recorded((row for row in of if row["mode"] == mode), "success")
        models[name] = (run.manifest.get("policy") or {}).get("model_hash")
    return out, models, mode


def _tables(panel: Panel, models: Mapping[str, str | None], mode: str, confidence: float) -> Any:
    from offline_agent.report.closing import closing, percent, table

    title = f"success, {mode} attempts, on {len(panel.tasks)} tasks that all of them scored"
    rows = [
        (entry.name, percent(entry.success.mean or 0, 1),
         f"{percent(entry.success.low or 0, 1)} to {percent(entry.success.high or 0, 1)}", str(entry.attempts),
         _noise(entry, mode))
        for entry in panel.entries
    ]  # fmt: skip
    columns = ("run", ">success", f">{confidence:.0%} interval", ">attempts", ">noise floor")
    count = len(panel.contrasts)
    tests = f"{count} paired comparison{'' if count == 1 else 's'}, p-values corrected by Holm"
    told = (_contrast(contrast, 1 - confidence, _same(contrast, models)) for contrast in panel.contrasts)
    heads = ("one", "other", ">difference, points", ">p", ">p corrected", "says", ">tasks needed")
    return closing(table(title, rows, columns), table(tests, told, heads), "\n".join(_notes(panel, mode)))


def _noise(entry: Entry, mode: str) -> str:
    if entry.noise is not None:
        return f"± {100 * entry.noise:.1f}"
    if mode == "greedy":
        return "nothing is sampled"
    return "not known" if entry.noise_at_most is None else f"below ± {100 * entry.noise_at_most:.1f}"


def _same(contrast: Contrast, models: Mapping[str, str | None]) -> bool:
    """Return whether both are of one model, so that their difference is noise."""
    return models[contrast.one] is not None and models[contrast.one] == models[contrast.other]


def _contrast(contrast: Contrast, error: float, same: bool) -> tuple[str, ...]:
    found = contrast.difference
    mean, low, high = (100 * (value or 0) for value in (found.mean, found.low, found.high))
    apart = contrast.p_holm is not None and contrast.p_holm <= error
    says = "not told apart" if not apart else "one is better" if mean > 0 else "other is better"
    says += ", the same model" if same else ""
    return (
        contrast.one, contrast.other, f"{mean:+.1f} ({low:+.1f} to {high:+.1f})", f"{found.p_value:.3f}",
        f"{contrast.p_holm:.3f}", says, "–" if contrast.tasks_needed is None else f"{contrast.tasks_needed:,}",
    )  # fmt: skip


def _notes(panel: Panel, mode: str) -> Iterator[str]:
    if panel.left_out:
        yield f"{panel.left_out} tasks were left out: not all runs scored them"
    yield (
        "noise floor: two evaluations of the same model on these tasks differ by no more than this in 95 of 100 cases; "
        "a smaller difference is no news"
    )
    if any(entry.noise is None for entry in panel.entries):
        yield (
            "  with one attempt a task only a bound of it is known, which holds the spread between tasks too; sampled "
            "attempts with attempts=2 or more tell it, else evaluate the same model with another seed and compare both"
        )
    yield "tasks needed: to find a true difference as large as the measured one in 4 of 5 evaluations"
    least = 100 * max(one.detectable for one in panel.contrasts)
    yield f"these {len(panel.tasks)} tasks find true differences of {least:.1f} points or more like that"
    needed = ", ".join(f"{tasks:,} for {100 * size:.0f} points" for size, tasks in panel.plan)
    yield f"tasks needed to tell two apart like that: {needed}"
    if any(one.assumed for one in panel.contrasts):
        yield (
            "where two had the same difference on every task, these figures are as if they succeeded independently of "
            "each other: fewer tasks may be enough"
        )


def _to_json(panel: Panel, models: Mapping[str, str | None], mode: str) -> dict[str, Any]:
    return {
        "mode": mode,
        "tasks": len(panel.tasks),
        "tasks_left_out": panel.left_out,
        "runs": [{**asdict(entry), "success": entry.success.to_json()} for entry in panel.entries],
        "comparisons": [
            {**asdict(one), **one.difference.to_json(), "same_model": _same(one, models)} for one in panel.contrasts
        ],
        "plan": [{"difference": size, "tasks": tasks} for size, tasks in panel.plan],
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
