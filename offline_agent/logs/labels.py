"""Labels: calls that an inverse-dynamics model names for logs that have observations alone.

The model is asked which call leads from one observation to the next; it sees both, so it needs far less data than a
policy, which sees the first alone (VPT, Baker et al. 2022, arXiv 2206.11795). `export format=inverse` writes the rows
that it is trained on, with the same words. A label is the model's opinion, and is marked as such wherever it goes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from offline_agent.errors import DataError, PolicyError
from offline_agent.logs import files
from offline_agent.logs.linking import shown, turns_of
from offline_agent.policies.base import Policy, ProposeRequest
from offline_agent.records import Context, Message, Task, ToolCall, call_message

SYSTEM = "Name the call that leads from the first observation to the second."
Question = tuple[Message, Message]
Label = tuple[ToolCall | None, float]
"""A call, None where the model names none of these tools, and the probability of the turn at temperature 1."""


def question(opening: Sequence[Message], before: str | None, after: str) -> Question:
    """Return what the model is asked.

    Args:
        opening: The messages before the first call; those of the system are left out.
        before: The observation before the call; None at the start, where the opening is all that was seen.
        after: The one after it.
    """
    asked = shown(message for message in opening if message["role"] != "system")
    parts = [asked, *([] if before is None else [f"First:\n{before}"]), f"Second:\n{after}"]
    return {"role": "system", "content": SYSTEM}, {"role": "user", "content": "\n\n".join(parts)}


def moves(messages: Sequence[Message]) -> Iterator[tuple[Question, Message]]:
    """Yield the question and the answer of each turn with one call that changed what is seen; words are left out."""
    opening, turns = turns_of(messages)
    before = None
    for message, answers in turns:
        calls, after = list(message.get("tool_calls") or ()), shown(answers)
        if len(calls) == 1 and answers and after != before:
            call = calls[0]["function"]
            yield question(opening, before, after), call_message(call["name"], call["arguments"])
        before = after if answers else before


class Labels:
    """Labels observations.

    Args:
        policy: The model; its answers have log-probabilities.
        least: The least probability of a call (`label.least`).
        held_out: A file of rows whose calls are known (`label.held_out`); None = none.

    Attributes:
        model_hash: Of the model's weights.
    """

    def __init__(self, policy: Policy, least: float, held_out: str | None = None) -> None:
        self._policy, self._least, self._held_out = policy, least, held_out
        self.model_hash = str(policy.identity["model_hash"])

    def name(self, asked: Sequence[Question], tools: Sequence[Mapping[str, Any]]) -> list[Label]:
        """Return the call that answers each question, chosen token by token.

        Raises:
            DataError: A question is longer than the model can read, or the model broke.
        """
        start, known = Task("label", "train", {}), {tool["function"]["name"] for tool in tools}
        contexts = [Context(start, system["content"], tools, user["content"]) for system, user in asked]
        labels: list[Label] = []
        for answer in self._policy.propose([ProposeRequest(one, (0,), temperature=0.0) for one in contexts]):
            if isinstance(answer, PolicyError):
                raise DataError(f"the model cannot label it: {answer}")
            call, logps = answer.actions[0].call, answer.actions[0].logps
            sure = call is not None and call.name in known and logps is not None
            labels.append((call, math.exp(sum(logps or ()))) if sure else (None, 0.0))
        return labels

    def episode(
        self, opening: Sequence[Message], observations: Sequence[str], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[list[Message], dict[str, Any]]:
        """Return the messages of an episode, cut before the first call that is not sure enough, and its evidence.

        Raises:
            DataError: Not even the first call is sure enough; or as `name`.
        """
        pairs = list(zip((None, *observations), observations, strict=False))
        labels = self.name([question(opening, *pair) for pair in pairs], tools)
        messages, left = list(opening), len(labels)
        for (before, after), (call, probability) in zip(pairs, labels, strict=True):
            if call is None or probability < self._least or before == after:  # what left no trace cannot be seen
                break
            left -= 1
            answer = {"role": "tool", "content": after, "name": call.name}
            messages += [call_message(call.name, call.arguments), answer]
        shares = [round(probability, 4) for _, probability in labels]
        if left == len(labels):
            raise DataError(f"label.least: got {shares[0]:g} for its first call, allowed: {self._least:g} or more")
        return messages, {"by": self.model_hash, "probabilities": shares, "left_out": left}

    def measured(self) -> dict[str, Any] | None:
        """Return how well the model names the calls of the held-out rows, each row once; None where no file is named.

        Returns:
            Numbers of `calls`, and of those named with `least` or more (`sure`); the shares of both that are right
            (`right`, `right_of_sure`), None where there are none.

        Raises:
            DataError: The file has other rows.
        """
        if self._held_out is None:
            return None
        rows = {json.dumps(record.value): record for record in files.records(Path(self._held_out))}
        found = []
        for record in rows.values():
            try:
                *asked, answer = record.value["messages"]
                wanted, tools = answer["tool_calls"][0]["function"], record.value["tools"]
            except (LookupError, TypeError, ValueError) as error:
                why = f"{record.name} is no row of export format=inverse ({error!r})"
                raise DataError(f"label.held_out: {why}") from error
            ((call, probability),) = self.name([asked], tools)
            same = call is not None and (call.name, call.arguments) == (wanted["name"], wanted["arguments"])
            found.append((probability, same))
        sure = [same for probability, same in found if probability >= self._least]
        shares = {"right": [same for _, same in found], "right_of_sure": sure}
        told = {name: sum(those) / len(those) if those else None for name, those in shares.items()}
        return {"calls": len(found), "sure": len(sure), **told}
