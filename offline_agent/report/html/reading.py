"""Contents of a run directory as the page needs them: light columns of all rows, and samples of whole rows."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

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

_IN_A_ROW = 5  # items that do not fit, after which no more are tried


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
        if not (self.path / name).exists():
            return {}
        try:
            found = read_json(self.path / name, "The page leaves it out.")
        except DataError as error:
            self.faults.append(str(error))
            return {}
        return found if isinstance(found, dict) else {}

    def part(self, name: str, make: Callable[[], Any], empty: Any) -> Any:
        """Return what is made of the summary; `empty`, and one more fault, where another version wrote it."""
        try:
            return make()
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
            try:
                found = columns_of(file, columns)
            except DataError as error:
                self.faults.append(str(error))
                continue
            out += [{**row, "at": (table, file.name, number)} for number, row in enumerate(found)]
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

    def each_whole(self, light: Iterable[Row], at_once: int = 128) -> Iterator[tuple[Row, Row]]:
        """Yield each light row with its whole row; many are read at once, as row groups are read whole."""
        stream = iter(light)
        while chunk := list(itertools.islice(stream, at_once)):
            yield from zip(chunk, self.whole([row["at"] for row in chunk]), strict=True)

    def tree(self, tree_id: str) -> dict[str, Any] | None:
        """Return a tree; None where it cannot be read."""
        try:
            return read_tree(tree_path(self.path, tree_id))
        except DataError as error:
            self.faults.append(str(error))
            return None

    def tree_ids(self) -> list[str]:
        """Return the ids of the stored trees, sorted."""
        out = []
        for file in (self.path / "trees").glob("*.json.gz"):
            try:
                out.append(tree_id_of(file))
            except DataError as error:
                self.faults.append(str(error))
        return sorted(out)

    def events(self, log: str = "0000") -> Iterator[Mapping[str, Any]]:
        """Yield the records of an event log; ends early where it is broken."""
        file = self.path / "events" / f"{log}.jsonl"
        if not file.exists():
            return
        try:
            yield from EventLog(file).read()
        except DataError as error:
            self.faults.append(str(error))

    @cached_property
    def quarantine(self) -> list[Row]:
        """The entries of quarantine.jsonl."""
        out: list[Row] = []
        try:
            out.extend(Quarantine(self.path / "quarantine.jsonl").read())
        except DataError as error:
            self.faults.append(str(error))
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
            "trajectories",
            ("task_id", "origin", "success", "reward", "steps", "terminated", "truncated"),
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

    def pairs_of_trees(self) -> Counter[str]:
        """Return the number of pairs of each tree."""
        return Counter(str(row["tree_id"]) for row in self.pairs if row["tree_id"] is not None)

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
    waiting = [iter(group) for group in groups.values()]
    while waiting:
        left = []
        for group in waiting:
            for item in group:
                yield item
                left.append(group)
                break
        waiting = left


def from_both_ends(items: Sequence[Item]) -> Iterator[Item]:
    """Yield the first item, the last, the second, the last but one, and so on."""
    for number in range(len(items)):
        yield items[-(number // 2 + 1) if number % 2 else number // 2]


def choose(
    order: Iterable[Item], total: int, most_bytes: int, make: Callable[[Item], tuple[Any, int] | None], rule: str
) -> Sample:
    """Return items in an order of preference while they fit.

    An item that does not fit is passed over, and the next is tried; after five in a row no more are tried.

    Args:
        order: The items, the first the most wanted.
        total: Number of items there are.
        most_bytes: Bytes that all of them may have.
        make: Returns what is shown of an item and its bytes; None where it cannot be shown.
        rule: One sentence that says how the order was made.
    """
    items: list[Any] = []
    left, passed, in_a_row = most_bytes, 0, 0
    for item in order:
        made = make(item)
        if made is None:
            continue
        shown, size = made
        if size > left:
            passed, in_a_row = passed + 1, in_a_row + 1
            if in_a_row == _IN_A_ROW:
                break
            continue
        in_a_row = 0
        items.append(shown)
        left -= size
    return Sample(tuple(items), total, passed, rule)
