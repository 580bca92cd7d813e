"""Closing tables, the one way in which commands print their summaries, and the parts that several of them have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.runner.terminal import copyable
from offline_agent.store.columns import MULTITURN, PREFERENCES
from offline_agent.store.tables import count_rows

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

Elsewhere = Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
FIGURES = ("what", ">figure", "note")
_SERVERS = {
    "requests": "requests", "sampled": "generated_tokens", "prompt": "prefilled_tokens", "reused": "reused_tokens",
    "errors": "errors", "time-outs": "timeouts",
}  # fmt: skip


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


def counted(counts: Mapping[str, int], before: str = "") -> str:
    """Return the counts that are not 0, each with its name."""
    return ", ".join(f"{before}{name} {count:,}" for name, count in counts.items() if count)


def commonest(reasons: Mapping[str, int]) -> str:
    """Return the commonest of some reasons for the end of a sentence; "" where there is none."""
    if not reasons:
        return ""
    reason, count = max(reasons.items(), key=lambda item: (item[1], item[0]))
    return f", most often ({count}) because: {reason}"


def pairs_written(path: Path) -> str:
    """Return a line for each folder of pairs, with its rows and, where there are some, how to load them.

    Args:
        path: The run directory.

    Raises:
        DataError: A file cannot be read.
    """
    lines = []
    for name, what in ((PREFERENCES, "one turn a side"), (MULTITURN, "several turns a side")):
        count = count_rows(path, name)
        lines.append(f"  {name + '/':12}  {count:,} pairs of {what}\n")
        if count:
            lines.append(f'                load_dataset("parquet", data_files="{path / name}/*.parquet")\n')
    return "".join(lines)


def quarantine_written(path: Path) -> str:
    """Return "; quarantine.jsonl says …" where the run has the file, else ""."""
    return "; quarantine.jsonl says what was refused and why" if (path / "quarantine.jsonl").is_file() else ""


def of_servers(policies: Mapping[str, Any], elsewhere: Elsewhere | None = None) -> dict[str, Any]:
    """Return `servers` for a summary: by the policies' labels, what `ServerPolicy.server_figures` says.

    Policies that have no servers are left out; nothing where none has.

    Args:
        policies: By their labels.
        elsewhere: By label, what other processes of the run say of the same servers: it is added.
    """
    found = {label: policy.server_figures() for label, policy in policies.items() if hasattr(policy, "server_figures")}
    for label, others in (elsewhere or {}).items():
        for other in others:
            found[label] = [_sum(*pair) for pair in zip(found[label], other, strict=True)]
    return {"servers": found} if found else {}


def _sum(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Add counts; the cache's are over all clients anyway, and whether a server is out is for this process to say."""
    added = {name: value + theirs[name] for name, value in ours.items() if isinstance(value, int) and name in theirs}
    return {**ours, **added, "last_error": ours.get("last_error") or theirs.get("last_error")}


def server_tables(summary: Mapping[str, Any]) -> list[Any]:
    """Return a closing table for each policy of a summary that had more than one server."""
    out: list[Any] = []
    for label, servers in summary.get("servers", {}).items():
        if len(servers) > 1:
            columns = ("server", *(f">{name}" for name in (*_SERVERS, "cache", "out")))
            out.append(table(f"servers, this session ({label})", map(_server, servers), columns))
            out += [f"{one['url']} is out: {one['out']}" for one in servers if one.get("out")]
    return out


def _server(one: Mapping[str, Any]) -> list[str]:
    cache = one["cache"]
    return [
        one["url"],
        *(f"{one[name]:,}" for name in _SERVERS.values()),
        percent(cache["hits"] / cache["queries"]) if cache and cache["queries"] else "–",
        f"{one['ejections']}×" + (", still" if one["out"] else ""),
    ]


class Reasons:
    """Counts of reasons by rule; a number that differs among the reasons of a rule is shown as a range.

    Args:
        kept: From `to_json`.
    """

    def __init__(self, kept: Iterable[tuple[list[str], int, list[str], list[str]]] = ()) -> None:
        self._rules: dict[tuple[str, ...], tuple[int, list[str], list[str]]] = {
            tuple(words): (count, least, most) for words, count, least, most in kept
        }

    def add(self, reason: str, count: int = 1) -> tuple[str, ...]:
        """Count the first line of a reason; return its rule."""
        line = reason.partition("\n")[0]
        words, numbers = tuple(_NUMBER.split(line)), _NUMBER.findall(line)
        known, least, most = self._rules.get(words, (0, numbers, numbers))
        low, high = (
            [pick(pair, key=float) for pair in zip(ends, numbers, strict=True)]
            for pick, ends in ((min, least), (max, most))
        )
        self._rules[words] = known + count, low, high
        return words

    def most_common(self, most: int | None = None) -> list[tuple[tuple[str, ...], str, int]]:
        """Return (rule, its text, count) of the commonest rules, the commonest first."""
        ordered = sorted(self._rules.items(), key=lambda item: -item[1][0])[:most]
        return [(words, _text(words, least, high), count) for words, (count, least, high) in ordered]

    def to_json(self) -> list[Any]:
        """Return its constructor's argument."""
        return [[list(words), *found] for words, found in self._rules.items()]


def _text(words: tuple[str, ...], least: list[str], most: list[str]) -> str:
    numbers = [low if low == high else f"{low}…{high}" for low, high in zip(least, most, strict=True)]
    return "".join(chain.from_iterable(zip_longest(words, numbers, fillvalue="")))
