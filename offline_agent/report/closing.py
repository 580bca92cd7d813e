"""Closing tables, the one way in which commands print their summaries, and the parts that several of them have."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.records import POLICY_CUTS
from offline_agent.runner.terminal import copyable
from offline_agent.store.columns import MULTITURN, PREFERENCES
from offline_agent.store.tables import count_rows

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
FIGURES = ("what", ">figure", "note")


def table(title: str, rows: Iterable[Sequence[str]], columns: Sequence[str] = FIGURES) -> Table:
    """Return a table for the terminal and the page.

    Args:
        title: Its heading.
        rows: Texts, as many in each as there are columns; fewer leave the last ones empty.
        columns: Their names; `>` before a name puts its cells to the right, `!` keeps each of them on one line.
    """
    from rich.table import Table

    made = Table(title=title)
    for name in columns:
        justify: Any = "right" if name.startswith(">") else "left"
        made.add_column(name.lstrip(">!"), justify=justify, overflow="fold", no_wrap=name.startswith("!"))
    for row in rows:
        made.add_row(*row)
    return made


def closing(*parts: Any) -> RenderableType:
    """Return what a command prints at its end; the lines of texts are never broken, so that they can be copied."""
    from rich.console import Group

    return Group(*(copyable(part) if isinstance(part, str) else part for part in parts if part))


def percent(value: float | None, digits: int = 0) -> str:
    """Return a share as a percentage; a dash for None."""
    return "–" if value is None else f"{value:.{digits}%}"


def interval(found: Mapping[str, Any], form: str = ".0%") -> str:
    """Return a mean or a share with its interval, e.g. `42% [35%, 49%]`; a dash where there is none."""
    mean = found.get("mean", found.get("value"))
    return "–" if mean is None else f"{mean:{form}} [{found['low']:{form}}, {found['high']:{form}}]"


def counted(counts: Mapping[str, int], before: str = "") -> str:
    """Return the counts that are not 0, each with its name."""
    return ", ".join(f"{before}{name} {count:,}" for name, count in counts.items() if count)


def figure_rows(summary: Mapping[str, Any], rows: Iterable[tuple[str, str, str]]) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of a table whose figure is there and is not 0.

    Args:
        summary: The run's.
        rows: Name, dotted key of the figure, and note: a format of the summary, left out where it lacks a figure.
    """
    for name, key, note in rows:
        value: Any = summary
        for part in key.split("."):
            value = (value or {}).get(part)
        if value:
            with contextlib.suppress(KeyError, TypeError, IndexError):
                note = note.format_map(summary)
            yield name, value if isinstance(value, str) else f"{value:,}", "" if "{" in note else note


def change_rows(
    training: Mapping[str, Any], changes: Iterable[tuple[str, str, str]], of: str
) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of figures that the first and the last updates (`of`) have: name, key, form of each."""
    first, last = training["first"], training["last"]
    for label, name, form in changes:
        if first.get(name) is not None and last.get(name) is not None:
            yield label, f"{first[name]:{form}} → {last[name]:{form}}", f"first and last {of}"


def commonest(reasons: Mapping[str, int]) -> str:
    """Return the commonest of some reasons for the end of a sentence; "" where there is none."""
    if not reasons:
        return ""
    reason, count = max(reasons.items(), key=lambda item: (item[1], item[0]))
    return f", most often ({count}) because: {reason}"


def mined_rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of a table that say what was mined, put in quarantine and refused."""
    yield "pairs", f"{summary['pairs_total']:,}", counted(summary["pairs"])
    yield "filtered trajectories", f"{summary['filtered']:,}", f"of {summary['trajectories']:,} trajectories"
    for name, reasons in (("quarantined", "quarantine_reasons"), ("refused", "refusal_reasons")):
        note = counted(summary[name]) + commonest(summary[reasons])
        yield name, f"{sum(summary[name].values()):,}", note


def tables_written(summary: Mapping[str, Any], path: Path, trajectories: str) -> str:
    """Return a line for each table that was mined, and how to load one.

    Args:
        summary: The run's.
        path: Its directory.
        trajectories: What its trajectories are.

    Raises:
        DataError: A file cannot be read.
    """
    lines = [
        f"  {name + '/':12}  {count_rows(path, name):,} pairs of {what} a side\n"
        for name, what in ((PREFERENCES, "one turn"), (MULTITURN, "several turns"))
    ]
    refused = "; quarantine.jsonl says what was refused and why" if (path / "quarantine.jsonl").is_file() else ""
    lines.append(f"  filtered/     {summary['filtered']} verified successes for fine-tuning\n")
    lines.append(f"  trajectories/ {summary['trajectories']} {trajectories}{refused}\n")
    lines.append(f'  read one with load_dataset("parquet", data_files="{path}/TABLE/*.parquet")\n')
    return "".join(lines)


def of_servers(policies: Mapping[str, Any]) -> dict[str, Any]:
    """Return `servers` for a summary: by the policies' labels, what `ServerPolicy.server_figures` says.

    Policies that have no servers are left out; nothing where none has.
    """
    found = {label: policy.server_figures() for label, policy in policies.items() if hasattr(policy, "server_figures")}
    return {"servers": found} if found else {}


class Reasons:
    """Counts of reasons by rule: reasons that differ in numbers alone are one, with `…` for the numbers."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._texts: dict[str, str] = {}

    def add(self, reason: str, count: int = 1) -> str:
        """Count the first line of a reason; return its rule."""
        line = reason.partition("\n")[0]
        rule = _NUMBER.sub("…", line)
        self._counts[rule] += count
        if self._texts.setdefault(rule, line) != line:
            self._texts[rule] = rule
        return rule

    def most_common(self, most: int | None = None) -> list[tuple[str, str, int]]:
        """Return (rule, its text, count) of the commonest rules, the commonest first."""
        return [(rule, self._texts[rule], count) for rule, count in self._counts.most_common(most)]


CUT_WORDS = {"max_steps": "max_steps", "tokens": "the token limit", "context": "the context's length"}
"""`records.POLICY_CUTS` in words."""
_MANY_STEPS, _MANY = 0.5, 0.05  # shares of the episodes above which advice is given: max_steps, others


def count_cuts(
    episodes: int, cut: Mapping[Any, int], max_steps: int, max_tokens: int, keys: tuple[str, str]
) -> dict[str, Any]:
    """Return how many episodes each limit cut, as JSON for the summary.

    Args:
        episodes: The number of all episodes.
        cut: The number of episodes by cut (`records.POLICY_CUTS`); other keys are left out.
        max_steps, max_tokens: The limits; `max_tokens` = 0 for a policy without tokens.
        keys: Configuration keys of the two limits.
    """
    return {
        "episodes": episodes,
        **{kind: cut.get(kind, 0) for kind in POLICY_CUTS},
        "limits": {"max_steps": [keys[0], max_steps], "tokens": [keys[1], max_tokens]},
    }


def cut_rows(cut: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of a table of three columns: name, count and share, and the limit; from `count_cuts`."""
    for kind, words in CUT_WORDS.items():
        if not cut[kind] and (kind == "context" or not cut["limits"][kind][1]):
            continue
        key, limit = cut["limits"].get(kind, ("", 0))
        note = f"{key}={limit}" if key else "the history was longer than the model's context"
        share = f"{_cut_share(cut, kind):.1%} of {cut['episodes']:,}"
        yield f"episodes cut by {words}", f"{cut[kind]:,}", f"{share}; {note}"


def cut_advice(cut: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each limit that cut so many episodes that it may decide the result; from `count_cuts`."""
    steps, tokens = cut["limits"]["max_steps"], cut["limits"]["tokens"]
    advice = {
        "max_steps": f"raise {steps[0]}={steps[1]}; where an episode (inspect) has refused or repeated calls, give the "
        "policy a warm start (policy=random: policy.answer_probability=0.3, where an answer ends an episode)",
        "tokens": f"raise {tokens[0]}={tokens[1]}; a policy that repeats itself without an end needs training first",
        "context": f"shorten observations (limits.max_observation_chars), or lower {steps[0]}",
    }
    for kind, words in CUT_WORDS.items():
        if (share := _cut_share(cut, kind)) > (_MANY_STEPS if kind == "max_steps" else _MANY):
            yield f"{share:.0%} of the episodes were cut by {words}, and count as failures: {advice[kind]}"


def _cut_share(cut: Mapping[str, Any], kind: str) -> float:
    return float(cut[kind] / cut["episodes"]) if cut["episodes"] else 0.0
