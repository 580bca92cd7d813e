"""Observation masks of training rows: which tokens are contents of observations, each executed edge counted once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from offline_agent.errors import ConfigError, DataError
from offline_agent.rendering import observations
from offline_agent.rendering.certificate import mask_of
from offline_agent.rendering.renderer import Renderer
from offline_agent.training.data.load_report import LoadReport
from offline_agent.training.data.reading import EXECUTED, SourceRow, TokenReader, read_rows
from offline_agent.training.data.rows import TrajectoryRow


@dataclass
class ObservationReport:
    """Counts of the observations that are learnt from.

    Attributes:
        certified: Rows read whose certificates mark their observations.
        derived: Rows read of which messages and ids prove them, though the certificate is older.
        without: Rows read that do not tell which tokens are observations, with their reasons.
        edges, tokens: Executed edges whose observations are predicted, and the tokens of those.
        repeated: Edges that further rows contain; they are counted once.
        cut: Last observations left out because the row would be longer than allowed.
        trajectories: Trajectories read for their observations alone.
        hashes: Of the files these are from.
    """

    certified: int = 0
    derived: int = 0
    without: list[tuple[str, str]] = field(default_factory=list)
    edges: int = 0
    tokens: int = 0
    repeated: int = 0
    cut: int = 0
    trajectories: int = 0
    hashes: dict[str, str] = field(default_factory=dict)

    def notes(self) -> list[str]:
        """Return notes for the user: one sentence each."""
        if not self.without:
            return []
        name, why = self.without[0]
        return [
            f"{len(self.without)} rows give no observations to predict, e.g. {name}: {why}"
        ]


class ObservationReader:
    """Gives rows their observation masks.

    Args:
        renderer: Of the tokenizer that is trained with.
        max_length: Longest row in tokens.

    Attributes:
        report: What was found.
    """

    def __init__(self, renderer: Renderer, max_length: int) -> None:
        self._renderer = renderer
        self._max_length = max_length
        self._seen: set[bytes] = set()
        self.report = ObservationReport()

    def observe(self, found: SourceRow, row: TrajectoryRow) -> TrajectoryRow:
        """Return the row with its observation mask, and with the ids of the reply to its last action.

        An edge (history, action and observation) that an earlier row had is not marked again.

        Raises:
            DataError: An observation shares tokens with an action.
        """
        entry = found.certificate.get("sequence")
        messages = found.row.get("messages")
        if entry is None or messages is None:
            return self._without(row, "it has no certified ids, or no messages")
        spans = entry["spans"]
        messages = [json.loads(one) if isinstance(one, str) else one for one in messages]
        try:
            seen = observations.find(
                self._renderer, row.input_ids, spans, messages, int(found.certificate.get("given", 0))
            )
        except DataError as error:
            return self._without(row, str(error))
        if observations.FIELD in entry:  # compared when the row was read
            self.report.certified += 1
        else:
            self.report.derived += 1
        ids, marked, tail = row.input_ids, seen.spans, seen.tail
        if tail and len(ids) + len(tail) > self._max_length:
            marked, tail = marked[:-1], ()
            self.report.cut += 1
        ids = (*ids, *tail)
        mask = tuple(mask_of(self._fresh(ids, marked), len(ids)))
        made = replace(
            row, input_ids=ids, action_mask=(*row.action_mask, *(0 for _ in tail)), observation_mask=mask
        )
        made.check_masks()
        return made

    def executed(self, runs: Sequence[str], key: str) -> list[TrajectoryRow]:
        """Return the trajectories of runs that have observations no row had before; their actions are not learnt from.

        Args:
            runs: Finished run directories; their `trajectories/` is read, failures included.
            key: The configuration section the paths are from, for messages.

        Raises:
            ConfigError, DataError: As `rows.load_pairs`.
        """
        load = LoadReport()
        reader = TokenReader(self._renderer, load, EXECUTED)
        rows = []
        for found in read_rows(runs, (), EXECUTED, load, key):
            if found.row.get("input_ids") is None:
                self._without(TrajectoryRow(found.name, "", "", (), ()), "it has no token ids")
                continue
            tokens = reader.tokens(found)
            if tokens is None:
                continue  # `load` has the reason
            if len(tokens[0]) > self._max_length:
                self._without(TrajectoryRow(found.name, "", "", (), ()), f"longer than {self._max_length} tokens")
                continue
            origin = found.row.get("origin") or "foreign"
            ids, mask = tokens
            row = self.observe(found, TrajectoryRow(found.name, str(found.row["task_id"]), origin, ids, mask))
            if any(row.observation_mask):
                rows.append(row)
        self.report.without += load.left_out
        self.report.trajectories = len(rows)
        self.report.hashes = dict(load.hashes)
        return rows

    def check(self) -> None:
        """Raise ConfigError where there is nothing to predict."""
        if not self.report.tokens:
            why = f", e.g. {': '.join(self.report.without[0])}" if self.report.without else ""
            raise ConfigError(
                "observations.weight: no row tells which of its tokens are observations (rows of a run do, and those "
                f"of your own that have only messages do not){why}; set observations.weight=0"
            )

    def _without(self, row: TrajectoryRow, reason: str) -> TrajectoryRow:
        self.report.without.append((row.name, reason))
        return row

    def _fresh(self, ids: Sequence[int], spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the spans whose edges no earlier row had: all ids up to a span's end are its history and itself."""
        digest, at, out = hashlib.blake2b(digest_size=16), 0, []
        numbers = np.asarray(ids, dtype=np.int64)
        for start, end in spans:
            digest.update(numbers[at:end].tobytes())
            at, key = end, digest.digest()
            if key in self._seen:
                self.report.repeated += 1
                continue
            self._seen.add(key)
            self.report.edges += 1
            self.report.tokens += end - start
            out.append((start, end))
        return out
