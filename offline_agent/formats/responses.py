"""OpenAI's Responses API: calls with `input` and `output`, or plain lists of their items.

The items are those of `openai/openai-python`, `src/openai/types/responses/response_input_item_param.py` (version 2),
and of `openai/codex`, `codex-rs/protocol/src/models.rs` (`ResponseItem`). Reasoning, a message and the calls that
follow are one turn; two messages are two. Of a reasoning the text is read, else its summary; one that only the
provider can read is left out, and the episode says how many were. A custom tool's call has the argument `input`, a
local shell's those of its action. What the provider's own tools found (web search and the like) is in no log, so an
episode with them is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from offline_agent.errors import DataError, located
from offline_agent.formats.anthropic import HIDDEN, SILENT
from offline_agent.logs.conversation import conversation, told_tools, with_system
from offline_agent.logs.episode import Fields, LoggedEpisode, at, has_objects, inner, left_out
from offline_agent.messages import bare, brief

NAME = "responses"
SUMMARIES = "thoughts of which there is a summary alone"
CALLS = ("function_call", "custom_tool_call", "local_shell_call")
_RESULTS = tuple(f"{kind}_output" for kind in CALLS)
_ITEMS = ("message", "reasoning", *CALLS, *_RESULTS)
_PASSED = ("ghost_snapshot",)  # Codex's own: the state of the files, which no model reads
_LEADS = ("system", "developer")
_END = {"role": "user", "content": ""}  # closes the last turn, and is taken out again
_INPUT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


def recognised(record: Mapping[str, Any]) -> str | None:
    """See `formats.Format`."""
    request, output = _parts(record)
    given = request.get("input", record.get("messages"))
    kinds = {kind for one in given if isinstance(kind := at(one, "type"), str)} if isinstance(given, list) else set()
    if found := sorted(kinds.intersection(_ITEMS[1:])):
        return f"items of type {', '.join(found)}"
    listed = has_objects(request.get("input"), "role") and "messages" not in record
    return "input items" if listed or (isinstance(output, list) and isinstance(given, str)) else None


def read(record: Mapping[str, Any], name: str, fields: Fields) -> Iterator[LoggedEpisode]:
    """See `formats.Format`."""
    request, output = _parts(record)
    if request.get("previous_response_id") or at(record, "response.previous_response_id"):
        raise DataError("previous_response_id: what was said before is in another record; log the whole input")
    given = request.get("input", record.get("messages"))
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if output and not isinstance(output, list):
        raise DataError(f"output: got {brief(output)}, wanted a list of items")
    left: Counter[str] = Counter()
    told = request.get("instructions") or at(record, "response.instructions")
    numbered = [(f"item {n}", one) for n, one in enumerate([*items, *(output or ())])]
    messages, _ = turns([*instructions(told), *numbered], left)
    said = conversation(with_system(messages, fields.ignore, request, record), fields.ignore)
    reason = at(record, "response.incomplete_details.reason") or at(record, "incomplete_details.reason")
    tools = told_tools(False, {"tools": _tools(request, left) or _tools(inner(record, "response"), left)}, record)
    cut = reason == "max_output_tokens"
    yield LoggedEpisode(name, said, tools, **fields.read(record), cut=cut, left=left_out(left))


def _parts(record: Mapping[str, Any]) -> tuple[Mapping[str, Any], Any]:
    """Return the request of a record, and the output."""
    request, response = (
        record[key] if isinstance(record.get(key), Mapping) else record for key in ("request", "response")
    )
    return request, response.get("output")


def _tools(request: Mapping[str, Any], left: Counter[str]) -> list[Any]:
    """Return the tools that have a schema; custom ones take a text."""
    out = []
    for tool in request.get("tools") or ():
        kind = at(tool, "type")
        if kind == "custom":
            out.append({"name": tool.get("name"), "description": tool.get("description"), "parameters": _INPUT})
        elif kind in (None, "function"):
            out.append(tool)
        else:
            left[f"tools of type {kind}, without a schema"] += 1
    return out


def instructions(told: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return instructions as the item that they are to the model: a system message before those of the input."""
    return [("instructions", {"role": "system", "content": told})] if told else []


def turns(items: Iterable[tuple[str, Any]], left: Counter[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return items as messages of OpenAI's chat form, and the place of each message's first item.

    Args:
        items: Each with its place, for messages.
        left: Gets the number of thoughts that are not read.

    Raises:
        DataError: An item is of a kind that is not read, or stands where it would be learnt out of its order.
    """
    out: list[dict[str, Any]] = []
    places: list[str] = []
    turn: dict[str, Any] | None = None  # the one that the next item may belong to
    for place, item in (*items, ("the end", _END)):
        with located(place):
            kind = at(item, "type") or ("message" if at(item, "role") else None)
            if kind in _PASSED:
                continue
            if kind not in _ITEMS:
                raise DataError(
                    f"type: got {kind!r:.60}, read are {', '.join(_ITEMS)}; what another one says or finds is not in it"
                )
            if kind in _RESULTS or (kind == "message" and item.get("role") != "assistant"):
                if turn is not None and "content" not in turn:
                    left[SILENT] += 1
                    del out[-1], places[-1]
                turn = None
                given = _result(item) if kind in _RESULTS else {key: item.get(key) for key in ("role", "content")}
                if out and given["role"] in _LEADS and out[-1]["role"] in _LEADS:  # one system message, as in `capture`
                    out[-1]["content"] = [*_listed(out[-1]["content"]), *_listed(given["content"])]
                    continue
                out.append(given)
                places.append(place)
                continue
            thought = _thought(item, left) if kind == "reasoning" else None
            if kind == "reasoning" and not thought:
                continue
            if turn is None or (kind not in CALLS and "content" in turn):
                if turn is not None and "tool_calls" in turn:
                    raise DataError(f"a {kind} follows a call whose result did not come, and would be learnt before it")
                out.append(turn := {"role": "assistant"})
                places.append(place)
            if kind == "reasoning":
                turn["reasoning_content"] = "\n".join(filter(None, (turn.get("reasoning_content"), thought)))
            elif kind == "message":
                turn["content"] = item.get("content")
            else:
                turn.setdefault("content", "")
                turn.setdefault("tool_calls", []).append(_call(item, kind))
    return out[:-1], places[:-1]


def _listed(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def _thought(item: Mapping[str, Any], left: Counter[str]) -> str:
    for key, separator in (("content", ""), ("summary", "\n\n")):
        parts = item.get(key) or ()
        texts = [text for part in parts if isinstance(text := at(part, "text"), str) and text]
        if texts:
            left[SUMMARIES] += key == "summary"
            return separator.join(texts)
    left[HIDDEN] += 1
    return ""


def _call(item: Mapping[str, Any], kind: str) -> dict[str, Any]:
    id = item.get("call_id") or item.get("id")
    if kind == "local_shell_call":
        action = {key: value for key, value in inner(item, "action").items() if key != "type"}
        return {"id": id, "function": {"name": "local_shell", "arguments": bare(action)}}
    arguments = item.get("arguments") if kind == "function_call" else {"input": item.get("input")}
    if kind == "custom_tool_call" and not isinstance(item.get("input"), str):
        raise DataError(f"input: got {item.get('input')!r:.60}, wanted text")
    name, space = item.get("name"), item.get("namespace")
    name = f"{space}.{name}" if space and space != "functions" else name
    return {"id": id, "function": {"name": name, "arguments": arguments}}


def _result(item: Mapping[str, Any]) -> dict[str, Any]:
    output = item.get("output")
    if isinstance(output, Mapping) and "success" in output:  # as Codex once wrote it
        output = output.get("content")
    return {"role": "tool", "tool_call_id": item.get("call_id"), "content": output}
