"""Filter of Toolformer (Schick et al. 2023, arXiv 2302.04761, section 2): calls whose result tells nothing.

Run `python -m offline_agent.training.useful_calls MODEL ROWS --out FILE`. Of each turn with calls that are answered,
the gain is log p(later turns | history) less the larger of the same without the turn and with its results empty, in
nats, under MODEL. A turn that gains less than the threshold is marked `train: false`: it stays in the history, as it
was played, and no loss counts it. It is for logs without an environment; with one, pairs of the kind `minimal` are
made by replay, which asks no model.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from offline_agent import strict_json
from offline_agent.errors import ConfigError, DataError, OfflineAgentError
from offline_agent.messages import MARKS, ROLES
from offline_agent.store.files import read_text, write_atomic
from offline_agent.training.data.conversations import Encoder
from offline_agent.training.data.updates import Unit, fill, policy_tokens

THRESHOLD = 1.0
_TOKENS = 16_384  # of a forward pass

Messages = Sequence[Mapping[str, Any]]


class Turn(NamedTuple):
    """A turn whose calls are answered, and which a turn that is learnt follows.

    Attributes:
        start: The place of its message.
        end: The place after its results.
    """

    start: int
    end: int


def answered(messages: Messages) -> Iterator[Turn]:
    """Yield the turns that may be left out, first to last."""
    roles = [ROLES.get(message["role"]) for message in messages]
    said = [place for place, role in enumerate(roles) if role == "assistant"]
    learnt = [place for place in said if all(messages[place].get(mark, True) for mark in MARKS)]
    for start in (place for place in said if learnt and place < learnt[-1]):
        end = next(place for place in range(start + 1, len(roles)) if roles[place] != "tool")
        if end > start + 1 and (messages[start].get("tool_calls") or messages[start].get("function_call")):
            yield Turn(start, end)


def variants(messages: Messages, turn: Turn) -> tuple[list[dict[str, Any]], ...]:
    """Return the conversation as it is, with the turn's results empty, and without the turn.

    Turns up to this one are marked as not learnt, so that masks hold the later ones alone.
    """
    marked = [{**message, "train": False} if message["role"] == "assistant" and place <= turn.start else dict(message)
              for place, message in enumerate(messages)]  # fmt: skip
    empty = [{**message, "content": ""} if turn.start < place < turn.end else message
             for place, message in enumerate(marked)]  # fmt: skip
    return marked, empty, marked[: turn.start] + marked[turn.end :]


def gains(
    model: Any, renderer: Any, conversations: Sequence[tuple[Messages, Any]], tokens: int = _TOKENS
) -> list[dict[int, float]]:
    """Return the gain of each answered turn, in nats, by the place of its message, of each conversation.

    Args:
        model: A causal language model of transformers.
        renderer: Of its tokenizer.
        conversations: Messages and tools of each.
        tokens: Most tokens of a forward pass, shared histories counted once.

    Raises:
        DataError: A conversation cannot be rendered; the message has its number, from 1.
    """
    import torch

    from offline_agent.training.prefix_sharing import log_probabilities as prefix_sharing
    from offline_agent.training.prefix_sharing.head import evaluating

    encoder = Encoder(renderer)
    units: list[Unit] = []
    turns: list[tuple[int, int]] = []
    for number, (messages, tools) in enumerate(conversations):
        for turn in answered(messages):
            try:
                made = [encoder.trajectory(one, tools, False) for one in variants(messages, turn)]
            except DataError as error:
                raise DataError(f"row {number + 1}: {error}") from error
            sides = [policy_tokens(tuple(one["input_ids"]), tuple(one["action_mask"]), tuple(one["starts"]))
                     for one in made]  # fmt: skip
            units.append(Unit("", len(units), tuple(sides), f"row {number}", str(turn.start)))
            turns.append((number, turn.start))
    scorer = prefix_sharing.Scorer(model)
    found: list[dict[int, float]] = [{} for _ in conversations]
    for packed in fill(units, tokens, scorer.shares):
        pack = prefix_sharing.pack([sequence for unit in packed for sequence in unit.sequences])
        with evaluating(model), torch.no_grad():
            logps = scorer(model, pack).logps
        rows = iter(pack.rows)
        for unit in packed:
            whole, *without = [sum(float(logps[next(rows)].sum()) for _ in side) for side in unit.sides]
            number, place = turns[unit.index]
            found[number][place] = whole - max(without)
    return found


def main() -> None:
    """Mark the turns of a file's rows; print how many."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("model", help="a folder or hub name; it measures the gains")
    parser.add_argument("rows", type=Path, help="JSON lines with `messages`, as data.files of train_sft")
    parser.add_argument("--out", type=Path, required=True, help="the marked rows, JSON lines")
    parser.add_argument("--chat-template", help="a ready-made one, a file or its text, in place of the model's")
    parser.add_argument("--threshold", type=float, default=THRESHOLD, help="least gain of a turn that is learnt, nats")
    options = parser.parse_args()
    try:
        from offline_agent.training.models import load_trainable

        rows = read(options.rows)
        model, _, renderer = load_trainable(options.model, chat_template=options.chat_template)
        every = gains(model, renderer, [(row["messages"], row.get("tools")) for row in rows])
    except OfflineAgentError as error:
        sys.exit(str(error))
    counts = [0, 0]
    for row, of_row in zip(rows, every, strict=True):
        for place, gain in of_row.items():
            message, useful = row["messages"][place], gain >= options.threshold
            counts[useful] += 1
            message |= {} if useful else {"train": False}
        row["gains"] = {place: round(gain, 3) for place, gain in of_row.items()}
    write_atomic(options.out, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
    print(f"{sum(counts)} answered turns of {len(rows)} rows: {counts[1]} gain {options.threshold:g} nats or more, "
          f"{counts[0]} are marked train: false; written to {options.out}")  # fmt: skip


def read(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file.

    Raises:
        ConfigError: It cannot be read, or has another row than one of messages alone.
    """
    allowed = "JSON lines whose rows have a list `messages`, each with a role, and no ids"
    rows = []
    try:
        lines = read_text(path).split("\n")
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"ROWS: got {str(path)!r}: {error}; allowed: {allowed}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = strict_json.loads(line)
            if "input_ids" in row:
                raise ValueError(
                    "it has input_ids: a policy has played it, so its environment tells which calls matter "
                    "(pairs.kinds=[minimal])"
                )
            _ = [message["role"] for message in row["messages"]]
        except (ValueError, LookupError, TypeError) as error:
            raise ConfigError(f"ROWS: {path}, line {number}: got {error!r}; allowed: {allowed}") from error
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
