"""Contents of a run directory as the page needs them: light columns of all rows, and samples of whole rows."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from offline_agent import pictures
from offline_agent.errors import DataError, in_words
from offline_agent.report.closing import Reasons
from offline_agent.store.columns import known_name
from offline_agent.store.events import EventLog
from offline_agent.store.files import read_json
from offline_agent.store.manifest import read_manifest
from offline_agent.store.run_directory import Quarantine, read_tree, tree_id_of, tree_path
from offline_agent.store.tables import columns_of, rows_at

Row = dict[str, Any]
Item = TypeVar("Item")

_TRIES = 5  # items that do not fit, after which no more are tried


class RunFiles:
    """The files of one run directory. Reads only; what cannot be read is named in `faults` and left out.

    Args:
        path: The run directory.

    Attributes:
        faults: One sentence for each file that could not be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.faults: list[str] = []
        pictures.look_in(path / pictures.FOLDER)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """manifest.json; raises DataError where it is missing or broken."""
        found = read_manifest(self.path, "Name the directory of a run.")
        if "command" not in found:
            raise DataError(f"{self.path / 'manifest.json'}: no manifest of a run. Name the directory of a run.")
        return found

    @property
    def command(self) -> str:
        """The command that wrote the run."""
        return str(self.manifest["command"])

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration."""
        return dict(self.manifest.get("config") or {})

    @cached_property
    def summary(self) -> dict[str, Any]:
        """summary.json; {} where the run is not finished."""
        return self.json("summary.json")

    def json(self, name: str) -> dict[str, Any]:
        """Return a JSON object of the run; {} where there is none."""
        if (self.path / name).exists():
            with self.noting():
                return dict(read_json(self.path / name, "The page leaves it out."))
        return {}

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note what cannot be read inside the block."""
        try:
            yield
        except DataError as error:
            self.faults.append(str(error))

    def part(self, name: str, make: Callable[[], Any], empty: Any) -> Any:
        """Return what is made of the summary; `empty`, and one more fault, where another version wrote it."""
        try:
            return make()
        except DataError as error:
            self.faults.append(str(error))
            return empty
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            version = self.manifest.get("version")
            self.faults.append(
                f"{self.path / 'summary.json'}: {name} left out ({in_words(error)}); version {version} wrote it"
            )
            return empty

    def light(self, table: str, columns: Sequence[str]) -> list[Row]:
        """Return columns (known names) of all rows of a table, with `at`, the row's place for `whole`."""
        out: list[Row] = []
        for file in sorted((self.path / table).glob("*.parquet")):
            with self.noting():
                found = enumerate(columns_of(file, columns))
                out += [{**row, "at": (table, file.name, number)} for number, row in found]
        return out

    def whole(self, places: Sequence[tuple[str, str, int]]) -> list[Row]:
        """Return the rows at these places, by known names, in the same order."""
        files: dict[tuple[str, str], list[int]] = {}
        for table, file, number in places:
            files.setdefault((table, file), []).append(number)
        found: dict[tuple[str, str, int], Row] = {}
        for (table, file), numbers in files.items():
            for number, row in rows_at(self.path / table / file, numbers).items():
                found[table, file, number] = {known_name(name): value for name, value in row.items()}
        return [found[place] for place in places]

    def each_whole(self, light: Iterable[Row], at_once: int = 128) -> Iterator[Row]:
        """Yield the whole row of each light row; many are read at once, as row groups are read whole."""
        stream = iter(light)
        while chunk := list(itertools.islice(stream, at_once)):
            yield from self.whole([row["at"] for row in chunk])

    def tree(self, tree_id: str) -> dict[str, Any] | None:
        """Return a tree; None where it cannot be read."""
        with self.noting():
            return read_tree(tree_path(self.path, tree_id))
        return None

    def tree_ids(self) -> list[str]:
        """Return the ids of the stored trees, sorted."""
        out = []
        for file in (self.path / "trees").glob("*.json.gz"):
            with self.noting():
                out.append(tree_id_of(file))
        return sorted(out)

    def events(self, log: str = "0000") -> Iterator[Mapping[str, Any]]:
        """Yield the records of an event log; ends early where it is broken."""
        with self.noting():
            yield from EventLog(self.path / "events" / f"{log}.jsonl").read()

    @cached_property
    def quarantine(self) -> list[Row]:
        """The entries of quarantine.jsonl."""
        out: list[Row] = []
        with self.noting():
            out.extend(Quarantine(self.path / "quarantine.jsonl").read())
        return out

    @cached_property
    def quarantined_trees(self) -> dict[str, str]:
        """Reason by id of the trees that are in quarantine whole."""
        return {row["name"]: row["reason"] for row in self.quarantine if row["kind"] == "tree"}

    @cached_property
    def pairs(self) -> list[Row]:
        """The light columns of all pairs."""
        columns = (
            "kind", "task_id", "tree_id", "node_id", "chosen_edge", "rejected_edge", "q_chosen", "q_rejected",
            "visits_chosen", "visits_rejected", "confidence", "rest_confidence", "weight",
        )  # fmt: skip
        return self.light("preferences", columns) + self.light("multiturn_preferences", columns)

    @cached_property
    def trajectories(self) -> list[Row]:
        """The light columns of all trajectories."""
        return self.light(
            "trajectories", ("task_id", "origin", "success", "reward", "steps", "terminated", "truncated")
        )

    @cached_property
    def attempts(self) -> list[Row]:
        """The table of attempts of an evaluation."""
        return self.light(
            "attempts",
            ("policy", "mode", "task_id", "attempt", "success", "reward", "steps", "terminated", "truncated", "cut_by",
             "calls", "tool_calls", "error", "verdict"),
        )  # fmt: skip

    def pairs_at(self) -> dict[tuple[str, int], list[Row]]:
        """Return the light columns of the pairs by the (tree, node) that they are of."""
        out: dict[tuple[str, int], list[Row]] = {}
        for row in self.pairs:
            if row["node_id"] is not None:
                out.setdefault((str(row["tree_id"]), row["node_id"]), []).append(row)
        return out

    def reasons(self) -> list[tuple[str, str, int, str]]:
        """Return (kind, reason, count, an example) of what was refused or quarantined, the commonest first."""
        kinds: dict[str, Reasons] = {}
        examples: dict[tuple[str, str], str] = {}
        for row in self.quarantine:
            kind = str(row["kind"])
            rule = kinds.setdefault(kind, Reasons()).add(str(row["reason"]), int(row.get("candidates") or 1))
            examples.setdefault((kind, rule), json.dumps(
                {k: v for k, v in row.items() if k not in ("crc", "schema_version")}, ensure_ascii=False))  # fmt: skip
        found = [(kind, *one) for kind, reasons in kinds.items() for one in reasons.most_common()]
        found.sort(key=lambda one: -one[3])
        return [(kind, text, count, examples[kind, rule]) for kind, rule, text, count in found]


@dataclass(frozen=True)
class Sample:
    """Items that were chosen.

    Attributes:
        items: What the page shows, in the order of choice; each is whole.
        total: Number of items there are.
        too_large: Number of items that were passed over because one alone has more than the bytes that are left.
        rule: One sentence that says how they were chosen.
    """

    items: tuple[Any, ...]
    total: int
    too_large: int
    rule: str

    @property
    def words(self) -> str:
        """The counts and the rule, for the page."""
        if len(self.items) == self.total:
            return f"All {self.total:,} are shown, each whole."
        passed = f" {self.too_large:,} did not fit and were passed over." if self.too_large else ""
        return f"{len(self.items):,} of {self.total:,} are shown, each whole; nothing is cut. {self.rule}{passed}"


def in_turn(groups: Mapping[str, Sequence[Item]]) -> Iterator[Item]:
    """Yield one item of each group in turn, so that a small group is not crowded out by a large one."""
    gone = object()
    for turn in itertools.zip_longest(*groups.values(), fillvalue=gone):
        yield from (item for item in turn if item is not gone)  # type: ignore[misc]


def choose(
    order: Iterable[Item],
    total: int,
    most_bytes: int,
    view: Callable[[Item, int], dict[str, Any] | None],
    render: Callable[[dict[str, Any]], str],
    rule: str,
) -> Sample:
    """Return items in an order of preference while they fit, each with its rendered `html`.

    An item that does not fit is passed over, and the next is tried; after five no more are tried.

    Args:
        order: The items, the first the most wanted.
        total: Number of items there are.
        most_bytes: Bytes that all of them may have.
        view: Returns what the template needs of an item and its number; None where it cannot be shown.
        render: Renders it.
        rule: One sentence that says how the order was made.
    """
    items: list[Any] = []
    left, passed = most_bytes, 0
    for item in order:
        shown = view(item, len(items))
        if shown is None:
            continue
        html = render(shown)
        size = len(html.encode("utf-8", "replace"))
        if size <= left:
            items.append({**shown, "html": html})
            left -= size
        elif (passed := passed + 1) == _TRIES:
            break
    return Sample(tuple(items), total, passed, rule)
