"""Relatives of a run: those it was made from, those that were made like it, and the figure they are compared by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from offline_agent.report.html.reading import RunFiles
from offline_agent.report.html.text import number, percent

_MOST_SIBLINGS = 300
_PARENTS = (
    ("policy", "model"), ("model", "path"), ("against", "run"), ("against", "model"), ("data", "runs"),
    ("anchor", "runs"), ("offline", "runs"), ("tokens", "runs"),
)  # fmt: skip
"""Keys of configurations that name a run, or a model inside one."""


class Headline(NamedTuple):
    """The figure of a run that is compared with other runs of the same command.

    Attributes:
        name: Its name.
        value: None where the run has none.
        low, high: Its interval; None where there is none.
        higher: Whether more is better.
    """

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    higher: bool = True

    @property
    def words(self) -> str:
        """The figure as text, with its interval where there is one."""
        share = self.name.startswith("success")
        shown = percent(self.value) if share else number(self.value, 4)
        if self.low is None or self.high is None:
            return shown
        between = (percent(self.low), percent(self.high)) if share else (number(self.low), number(self.high))
        return f"{shown} ({between[0]} to {between[1]})"


class Relative(NamedTuple):
    """A line of the table of relatives.

    Attributes:
        role: `this run`, `parent (KEY)` or `best of its kind`.
        path: Its run directory.
        command: The command that wrote it.
        headline: Its figure; None where it has none.
    """

    role: str
    path: Path
    command: str
    headline: Headline | None


def headline(run: RunFiles) -> Headline | None:
    """Return the figure that a run is judged by; None where it has none."""
    summary = run.summary
    success = summary.get("success") or {}
    match run.command:
        case "build_prefs":
            share, tasks = success.get("best_of_search"), summary.get("tasks") or 0
            low, high = interval(share, tasks)
            return Headline("success, best of search", share, low, high)
        case "evaluate":
            modes = summary.get("modes") or {}
            mode = "sampled" if "sampled" in modes else next(iter(modes), None)
            found = (modes.get(mode) or {}).get("success") or {}
            return Headline(f"success, {mode}", found.get("mean"), found.get("low"), found.get("high"))
        case "iterate":
            end = summary.get("end") or {}
            return Headline("success, held out", end.get("mean"), end.get("low"), end.get("high"))
        case "refine_grpo":
            last = (summary.get("training") or {}).get("rounds_last") or {}
            return Headline("success, last rounds", last.get("success_mean"))
        case "train_dpo":
            last = (summary.get("training") or {}).get("last") or {}
            return Headline("accuracy on the pairs", last.get("accuracy"))
        case "train_sft":
            return Headline("loss, last updates", (summary.get("training") or {}).get("loss_last"), higher=False)
        case "import_logs":
            return Headline("pairs", summary.get("pairs_total"))
    return None


def interval(share: float | None, n: int) -> tuple[float | None, float | None]:
    """Return Wilson's 95 % interval of a share among n tasks; (None, None) where there is none."""
    from offline_agent.evaluation.statistics import wilson

    return (None, None) if share is None or n < 1 else wilson(share, n)


def relatives(run: RunFiles) -> list[Relative]:
    """Return this run, the runs that its configuration names, and the best run of its kind in the same folder."""
    here = run.path.resolve()
    out = [Relative("this run", run.path, run.command, headline(run))]
    for key, path in _named(run.config):
        parent = _run_of(path)
        if parent is not None and parent.path.resolve() != here:
            out.append(Relative(f"parent ({key})", parent.path, parent.command, headline(parent)))
    best = _best(run)
    if best is not None:
        out.append(best)
    return list({(one.role, str(one.path)): one for one in out}.values())


def _named(config: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    sources = config.get("source")
    for one in sources if isinstance(sources, list) else [sources]:
        if isinstance(one, str) and one:
            yield "source", Path(one)
    for section, key in _PARENTS:
        value = (config.get(section) or {}).get(key) if isinstance(config.get(section), Mapping) else None
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, str) and one:
                yield f"{section}.{key}", Path(one)


def _run_of(path: Path) -> RunFiles | None:
    """Return the run directory that a path is, or is inside of; None where it is in none."""
    for folder in (path, path.parent):
        try:
            if (folder / "manifest.json").is_file():
                found = RunFiles(folder)
                return found if found.json("manifest.json").get("command") else None
        except (OSError, ValueError):
            return None
    return None


def _best(run: RunFiles) -> Relative | None:
    """Return the best finished run of the same command, environment and tasks beside this one; None where alone."""
    ours = headline(run)
    if ours is None:
        return None
    found: list[tuple[float, str, RunFiles]] = []
    folders = sorted(file.parent for file in run.path.resolve().parent.glob("*/manifest.json"))[:_MOST_SIBLINGS]
    for folder in folders:
        other = RunFiles(folder)
        if other.json("manifest.json").get("command") != run.command or _kind(other) != _kind(run):
            continue
        theirs = headline(other)
        if theirs is not None and theirs.name == ours.name and theirs.value is not None:
            found.append((theirs.value if theirs.higher else -theirs.value, folder.name, other))
    if len(found) < 2:
        return None
    _, _, best = max(found, key=lambda one: (one[0], one[1]))
    return Relative(f"best of {len(found)} of its kind beside it", best.path, best.command, headline(best))


def _kind(run: RunFiles) -> tuple[Any, ...]:
    """Return what runs must have in common to be compared by their figure."""
    manifest = run.json("manifest.json")
    hashes = manifest.get("hashes") or {}
    return (manifest.get("env") or {}).get("name"), hashes.get("task_set"), hashes.get("data")
