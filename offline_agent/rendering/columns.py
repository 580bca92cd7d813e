"""Token columns of stored rows: built from contexts, and checked against certificates and messages."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from offline_agent.errors import DataError
from offline_agent.messages import bare
from offline_agent.records import Action, Context
from offline_agent.rendering import certificate
from offline_agent.rendering.layout import Layout, lay_out
from offline_agent.rendering.values import check_ranges
from offline_agent.store.columns import PAIR, TRAJECTORY, names

if TYPE_CHECKING:
    from offline_agent.rendering.renderer import Renderer

_NO_THOUGHT = re.compile(r"\A(<think>)?\s*</think>\s*")
_TRAJECTORY = names(TRAJECTORY, "ids", "mask")
_PAIR = names(PAIR, "ids", "mask")


def trajectory_columns(
    renderer: Renderer, context: Context, model_hash: str | None = None, first: int = 0
) -> dict[str, Any]:
    """Return the token columns of a trajectory that ends in `context`.

    Args:
        renderer: Gives the ids.
        context: Its last context.
        model_hash: Hash of the model that sampled it; stored in the certificate with the log-probabilities.
        first: Number of its first turns that are not learnt, and belong to the prompt.

    Returns:
        `input_ids` int [L], up to and including the last action's last id, several sequences one after another where
        prompts were rendered anew (`starts`); `action_mask` int [L], 1 = sampled by the policy (or written by the
        demonstrator); `logps` float [L], 0.0 where the mask is 0, or None where those
        of an action are unknown; `certificate` JSON.

    Raises:
        DataError: A span does not decode to the recorded action.
    """
    nodes = context.lineage()
    made = lay_out(renderer, nodes, first, renderer.context_ids(nodes[first]))
    acted = nodes[first + 1 :]  # the first node is the start of the episode, which has no action
    entry = _side(renderer, acted, made)
    known = None if made.logps is None else model_hash
    return {
        "input_ids": made.ids,
        "action_mask": certificate.mask_of(made.spans, len(made.ids)),
        "logps": made.logps,
        "certificate": _certify(renderer, {"sequence": entry}, acted, known, made.ids),
    }


def pair_columns(
    renderer: Renderer, prefix: Context, chosen: Context, rejected: Context, model_hash: str | None = None
) -> dict[str, Any]:
    """Return the token columns of two continuations of one history.

    Args:
        renderer: Gives the ids.
        prefix: The shared history.
        chosen, rejected: Contexts that continue it.
        model_hash: Hash of the model that sampled both; stored in the certificate with the log-probabilities.

    Returns:
        `prompt_ids` int [P], the ids of `prefix`, generation prompt included. For each side, continuing the prompt:
        `<side>_ids` int [n], up to and including the last action's last id; `<side>_mask` int [n], 1 = sampled;
        `ref_<side>_logps` float [n], 0.0 where the mask is 0, or None where any is unknown. `certificate` JSON.

    Raises:
        DataError: A side does not continue `prefix`, or a span does not decode to the recorded action.
    """
    prompt = renderer.context_ids(prefix)
    sides = {"prompt": certificate.side(prompt, (), ())}
    columns: dict[str, Any] = {"prompt_ids": prompt}
    acted: list[Context] = []
    every = list(prompt)
    for name, last in (("chosen", chosen), ("rejected", rejected)):
        lineage = last.lineage()
        # by identity: an equal history elsewhere has other ids where sampling tokenised otherwise
        if len(lineage) <= prefix.depth + 1 or lineage[prefix.depth] is not prefix:
            raise DataError(f"the {name} side does not continue the pair's prefix (depth {prefix.depth})")
        nodes = lineage[prefix.depth + 1 :]
        made = lay_out(renderer, lineage, prefix.depth)
        sides[name] = _side(renderer, nodes, made)
        columns |= {f"{name}_ids": made.ids, f"{name}_mask": certificate.mask_of(made.spans, len(made.ids))}
        columns[f"ref_{name}_logps"] = made.logps
        acted += nodes
        every += made.ids
    # a hash beside one side alone would claim log-probs that are not there
    known = columns["ref_chosen_logps"] is not None and columns["ref_rejected_logps"] is not None
    columns["certificate"] = _certify(renderer, sides, acted, model_hash if known else None, every)
    return columns


def has_ids(context: Context) -> bool:
    """Return whether every turn of a history was sampled here, or has the ids that a log has for it."""
    return all(
        (node.recorded is None or node.recorded.ids is not None)
        and (node.action is None or node.action.recorded is None or node.action.token_ids is not None)
        for node in context.lineage()
    )


def starts_of(row: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """Return where sequences begin anew among the ids of a row's side; () where they are one sequence.

    Args:
        row: Its columns, by known names. The certificate says it; of a row without one a column `starts`,
            `chosen_starts` or `rejected_starts`.
        name: `sequence`, `chosen` or `rejected`.
    """
    text = row.get("certificate")
    if text is None:
        return tuple(row.get(starts_column(name)) or ())
    return tuple(certificate.parse(text)[name].get("starts", ())) if '"starts"' in text else ()


def starts_column(name: str) -> str:
    """Return the column of a row without a certificate that says where its sequences begin anew; see `starts_of`."""
    return "starts" if name == "sequence" else f"{name}_starts"


def check_row(renderer: Renderer | None, row: Mapping[str, Any]) -> None:
    """Check a row as it is written: the ranges of its numbers, every column that its certificate covers, masks.

    Args:
        renderer: Reads the ids; without one a row with token columns is refused.
        row: Its columns, by known names (`store.columns.known`).

    Raises:
        DataError: The first difference found; the message names the row.
    """
    try:
        check_ranges(row, True)
        if row.get("certificate") is not None:  # one that is being written does not cover the columns yet
            certificate.check_columns(certificate.parse(row["certificate"]), row, True)
        check_tokens(renderer, row)
    except DataError as error:
        keys = ("kind", "task_id", "tree_id", "node_id", "chosen_edge", "rejected_edge", "origin")
        facts = ", ".join(f"{key}={row[key]}" for key in keys if row.get(key) is not None)
        raise DataError(f"row ({facts or 'unnamed'}): {error}") from error


def check_columns(row: Mapping[str, Any], own: bool = True) -> None:
    """Check the ranges of a row's numbers, and every column but ids and masks against its certificate.

    Args:
        row: Its columns, by known names (`store.columns`).
        own: Whether it is from a table of a run: then the program's own ranges apply, it must have a certificate, and
            every certified column must be present.

    Raises:
        DataError: The message names the column, its value and the allowed values.
    """
    check_ranges(row, own)
    if row.get("certificate") is None and not own:
        return
    data = certificate.parse(row.get("certificate"))
    if "columns" not in data:
        raise DataError("its certificate does not cover its columns, which its version requires")
    certificate.check_columns(data, row, own)


def _side(renderer: Renderer, nodes: Sequence[Context], made: Layout) -> dict[str, Any]:
    """Return the certificate's entry of one side, after the round-trip check of every span."""
    acted = [node for node in nodes if node.action is not None]
    texts = [renderer.action_text(node.action) for node in acted if node.action is not None]
    for node, (start, end), text in zip(acted, made.spans, texts, strict=True):
        got = renderer.action_of_span(made.ids[start:end]).text
        if got != text:
            raise DataError(
                f"task {node.task.task_id}: the ids of action {node.depth} decode to {got[:80]!r}, "
                f"the recorded action is {text[:80]!r}"
            )
    return certificate.side(made.ids, made.spans, texts, made.starts)


def _certify(
    renderer: Renderer, sides: Mapping[str, Any], nodes: Sequence[Context], model_hash: str | None, ids: Sequence[int]
) -> str:
    """Return the certificate of a row's token columns as JSON; `certificate.seal` adds the other columns."""
    facts = {
        "schema": certificate.ANEW if any("starts" in side for side in sides.values()) else certificate.SCHEMA,
        "template_hash": renderer.template_hash,
        "tokenizer_hash": renderer.tokenizer_hash,
        # false where the turns of a demonstrator or a log were encoded
        "sampled": all(node.action.token_ids is not None for node in nodes if node.action is not None),
        "model_hash": model_hash,
        "round_trip": True,  # `_side` raised where it failed
        **sides,
    }
    if renderer.vision is not None and (shown := renderer.vision.pictures_in(ids)):
        facts["pictures"] = sorted(set(shown))
    return json.dumps(facts, sort_keys=True)


def check_tokens(renderer: Renderer | None, row: Mapping[str, Any]) -> bool:
    """Check a row's masks: hashes, lengths, spans, counts, vocabulary, decoded texts, messages.

    Returns:
        Whether it has token columns; a row without them passes.

    Raises:
        DataError: The first difference found.
    """
    columns = _PAIR if "chosen_ids" in row or "prompt_ids" in row else _TRAJECTORY
    values = [row.get(column) for column in columns]
    text = row.get("certificate")
    # a certificate of tokens without the tokens is a row that lost its columns
    if all(value is None for value in values) and not (text and certificate.of_tokens(certificate.parse(text))):
        return False
    missing = [column for column, value in zip(columns, values, strict=True) if value is None]
    if missing:
        raise DataError(f"it lacks {', '.join(missing)}, though other token columns are there")
    if renderer is None:
        raise DataError("it has token columns, and there is no tokenizer to check them with")
    data = certificate.read(text, renderer.template_hash, renderer.tokenizer_hash)
    if renderer.vision is not None:
        renderer.vision.check_row(data, row)
    tools = _tools(row.get("tools"))
    if columns is _TRAJECTORY:
        pieces = _check(renderer, data, "sequence", row["input_ids"], row["action_mask"], row.get("logps"))
        actions = [renderer.action_of_span(piece, tools) for piece in pieces]
        _check_messages("messages", row.get("messages"), actions)
        return True
    _check(renderer, data, "prompt", row["prompt_ids"], None, None)
    for side in ("chosen", "rejected"):
        logps = row.get(f"ref_{side}_logps")
        pieces = _check(renderer, data, side, row[f"{side}_ids"], row[f"{side}_mask"], logps)
        _check_messages(side, row.get(side), [renderer.action_of_span(piece, tools) for piece in pieces])
    return True


def _check(
    renderer: Renderer, data: Mapping[str, Any], name: str, ids: object, mask: object, logps: object
) -> list[list[int]]:
    def decode(piece: Sequence[int]) -> str:
        return renderer.action_of_span(piece).text

    size, pictured = renderer.vocab_size, renderer.vision is not None
    return certificate.check_side(name, data.get(name), ids, mask, logps, size, decode, pictured)


def _check_messages(column: str, messages: object, actions: Sequence[Action]) -> None:
    """Compare a message column's assistant turns with the actions that the ids decode to."""
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        return
    turns = [one for one in messages if one.get("role") == "assistant" and one.get("train") is not False]
    if len(turns) != len(actions):
        raise DataError(f"its {column} have {len(turns)} assistant turns, its masked spans are {len(actions)}")
    for index, (turn, action) in enumerate(zip(turns, actions, strict=True)):
        want = action.message()
        if not says(want["content"], turn) or not _same_calls(turn.get("tool_calls"), want.get("tool_calls")):
            raise DataError(f"assistant turn {index} of its {column} is not what its masked span decodes to")


def says(text: str, message: Mapping[str, Any]) -> bool:
    """Return whether the text of a turn, without its call, is what a message says with its reasoning.

    A prompt may have opened the thought, and templates write an empty one where there is none.
    """
    content, thought = message.get("content") or "", message.get("reasoning_content")
    if thought:
        return text in (f"<think>\n{thought}\n</think>\n\n{content}", f"{thought}\n</think>\n\n{content}")
    return content in (text, _NO_THOUGHT.sub("", text))


def _same_calls(got: Any, want: Sequence[Mapping[str, Any]] | None) -> bool:
    """Return whether calls are equal; a table may store all calls, one call, or its arguments as JSON text."""
    try:
        calls = _loaded(got) or []
        names_and_arguments = []
        for call in calls:
            call = _loaded(call)
            function = _loaded(call.get("function", call))
            names_and_arguments.append((function["name"], bare(_loaded(function["arguments"]))))
    except (AttributeError, KeyError, TypeError, ValueError):
        return False
    wanted = [(call["function"]["name"], bare(call["function"]["arguments"])) for call in want or ()]
    return names_and_arguments == wanted


def _tools(text: Any) -> Sequence[Mapping[str, Any]]:
    """Return a row's schemas, which some call formats need; () where they cannot be read, which is told elsewhere."""
    try:
        return _loaded(text) or ()
    except ValueError:
        return ()


def _loaded(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value
