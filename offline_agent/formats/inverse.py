"""Inverse dynamics: the rows that a model learns from to name the call between two observations; logs that it labels.

A record of such a log has `messages`, the request that the agent was begun with, and `observations`, the texts that it
saw after its calls, in their order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from offline_agent.errors import DataError
from offline_agent.formats.row import ALL, Export, ExportRow, Part
from offline_agent.logs.conversation import conversation, is_turn, told_tools, with_system
from offline_agent.logs.episode import Fields, LoggedEpisode, digest
from offline_agent.logs.labels import Labels, moves

_HELD_OUT = 5  # every so many tasks one, by its name's hash: the same task is on the same side in every run


def rows(row: ExportRow, held_out: bool = False) -> Iterator[Mapping[str, Any]]:
    """Yield a conversation for each turn of one call that changed what is seen; those of other tasks are refused."""
    task = str(row.row["task_id"])
    if (int(digest(task), 16) % _HELD_OUT == 0) is not held_out:
        raise DataError(f"its task is {'not ' if held_out else ''}one of those held out")
    found = list(moves(row.messages("messages")))
    if not found:
        raise DataError("it has no turn of one call after which another observation follows")
    for asked, answer in found:
        yield {"messages": [*asked, answer], "tools": row.tools, "task_id": task}


EXPORT = Export(
    about="An inverse-dynamics model of this package: which call leads from one observation to the next",
    parts=(Part("inverse.jsonl", ALL, rows), Part("held_out.jsonl", ALL, partial(rows, held_out=True))),
    load="""\
```bash
python -m offline_agent.pipelines.train_sft 'data.files=[inverse.jsonl]' data.unknown=take model.path=MODEL
python -m offline_agent.pipelines.import_logs source=LOGS label.model=runs/sft/model label.held_out=held_out.jsonl
```""",
    trains="The call alone. Calls of failures are there, too: what a call does, it does in a failure as well.",
    lost="Words of the policy; turns without a call, with several, or after which the same observation comes again; "
    f"token ids, outcomes and pairs. Every {_HELD_OUT}th task, by its name's hash, is in `held_out.jsonl` alone.",
)


@dataclass(frozen=True, slots=True)
class Observations:
    """Records of observations without actions; see `formats.Format`.

    Attributes:
        labels: Names the calls.
    """

    labels: Labels
    NAME: ClassVar[str] = "observations"

    def recognised(self, record: Mapping[str, Any]) -> str | None:
        """See `formats.Format`."""
        return "messages and observations" if {"messages", "observations"} <= record.keys() else None

    def read(self, record: Mapping[str, Any], name: str, fields: Fields) -> Iterator[LoggedEpisode]:
        """See `formats.Format`."""
        opening = conversation(with_system(record["messages"], fields.ignore, record), fields.ignore)
        seen = record["observations"]
        if not isinstance(seen, list) or not seen or not all(isinstance(text, str) for text in seen):
            raise DataError(f"observations: got {json.dumps(seen)[:60]}, wanted a list of texts, at least one")
        if any(map(is_turn, opening)):
            raise DataError("messages: got a turn of the assistant, allowed: the request alone")
        tools = told_tools(False, record)
        messages, labels = self.labels.episode(opening, seen, tools)
        yield LoggedEpisode(name, tuple(messages), tools=tools, labels=labels, **fields.read(record))
