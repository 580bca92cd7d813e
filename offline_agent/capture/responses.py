"""OpenAI Responses, to and from chat completions.

The forms are those of openai/openai-python 3.51.0, src/openai/types/responses: response_create_params.py,
response_input_item_param.py, response.py and response_stream_event.py. A custom tool is a function of one text, and a
tool of a namespace a function whose name begins with it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from offline_agent.capture import chat
from offline_agent.capture.chat import Lost, lose
from offline_agent.errors import DataError

PATH = "responses"
KEY = "authorization"
WAITING = chat.WAITING
error = chat.error
_SAME = {name: name for name in ("model", "temperature", "top_p", "parallel_tool_calls", "user")}
_LIMITS = {"max_output_tokens": "max_completion_tokens"}
_FUNCTION = {name: name for name in ("description", "parameters", "strict")}
_STATEFUL = ("previous_response_id", "conversation", "background", "prompt")
_SPACE = "__"
_INPUT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
_Tools = dict[str, tuple[Mapping[str, Any], str]]


def read_request(given: dict[str, Any], lost: Lost) -> dict[str, Any]:
    """See `exchange.Dialect`."""
    for key in _STATEFUL:
        if given.get(key):
            raise DataError(f"{key}: the log would lack what the server has of the conversation; send it all as input")
    items: Any = given.get("input")
    items = [{"role": "user", "content": items}] if isinstance(items, str) else items
    chat.dicts("input", items)
    if given.get("instructions"):
        items = [{"role": "system", "content": given["instructions"]}, *items]
    request = {**chat.renamed(given, _SAME | _LIMITS), "messages": _messages(items)}
    known = {"input", "instructions", "tools", "tool_choice", "store", "text.format", "reasoning.effort"}
    choice = given.get("tool_choice")
    if tools := _named(given.get("tools") or (), lost):
        request["tools"] = [_function(name, tool, lost) for name, (tool, _) in tools.items()]
        if isinstance(choice, str):
            request["tool_choice"] = choice
        elif choice and "name" in choice:
            request["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
        elif choice:
            known.remove("tool_choice")
    else:
        request.pop("parallel_tool_calls", None)  # which chat takes beside tools alone
    flat = {key: value for key, value in given.items() if key not in ("text", "reasoning")}
    for key in ("text", "reasoning"):
        flat |= {f"{key}.{name}": value for name, value in (given.get(key) or {}).items()}
    form = dict(flat.get("text.format") or {"type": "text"})
    if (kind := form.pop("type")) != "text":
        request["response_format"] = {"type": kind, **({kind: form} if form else {})}
    request |= chat.renamed(flat, {"reasoning.effort": "reasoning_effort"})
    lose(lost, "", flat, {*_SAME, *_LIMITS, *known})
    return request


def _named(tools: Sequence[Mapping[str, Any]], lost: Lost) -> _Tools:
    """Return tools by the name of the function that each becomes, with the namespace of each."""
    found: _Tools = {}
    for tool in tools:
        if tool["type"] == "namespace":
            inner = _named(tool["tools"], lost)
            found |= {f"{tool['name']}{_SPACE}{name}": (one, tool["name"]) for name, (one, _) in inner.items()}
        elif tool["type"] in ("function", "custom"):
            found[tool["name"]] = tool, ""
        else:
            lost.append({"at": "tools", "value": tool})
    return found


def _function(name: str, tool: Mapping[str, Any], lost: Lost) -> dict[str, Any]:
    lose(lost, f"tools.{name}.", tool, (*_FUNCTION, "name", "type"))
    own = {"parameters": _INPUT} if tool["type"] == "custom" else {"strict": tool.get("strict") or None}
    return {"type": "function", "function": {"name": name, **chat.renamed({**tool, **own}, _FUNCTION)}}


def _messages(items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages of items; those of the policy that follow one another are one turn."""
    messages: list[dict[str, Any]] = []
    turn: tuple[list[str], list[dict[str, Any]], list[dict[str, Any]]] | None = None
    for item in items:
        kind, role = item.get("type", "message"), item.get("role")
        if kind.endswith("_call_output") and "call_id" in item:
            said, turn = chat.content(_parts(item["output"])), None
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": said})
        elif kind == "message" and role != "assistant":
            said, turn = _parts(item["content"]), None
            if role != "user" and messages and messages[-1]["role"] == "system":  # templates want one
                said = [*_parts(messages.pop()["content"]), *said]
            messages.append({"role": "user" if role == "user" else "system", "content": chat.content(said)})
        else:
            if turn is None:
                turn = [], [], []
                messages.append({})
            thoughts, parts, calls = turn
            if kind == "message":
                parts += _parts(item["content"])
            elif kind in ("function_call", "custom_tool_call"):
                space = f"{item['namespace']}{_SPACE}" if item.get("namespace") else ""
                arguments = item["arguments"] if "arguments" in item else chat.json_text({"input": item["input"]})
                calls.append(chat.call(item["call_id"], space + item["name"], arguments))
            elif kind == "reasoning" and not parts and (told := item.get("content") or item.get("summary")):
                thoughts += [part["text"] for part in told]
            else:  # nobody learns a turn with it
                parts.append(dict(item))
            messages[-1] = chat.turn(*turn)
    return messages


def _parts(content: Any) -> list[dict[str, Any]]:
    """Return a content as chat's parts; one that is no text stays as it is."""
    texts = ("input_text", "output_text", "text")
    content = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [
        {"type": "text", "text": part["text"]} if part["type"] in texts else chat.picture(part.get("image_url")) or part
        for part in content
    ]


def write_request(request: dict[str, Any], lost: Lost) -> dict[str, Any]:
    """See `exchange.Dialect`."""
    items: list[dict[str, Any]] = []
    for number, message in enumerate(request["messages"]):
        said = chat.text(message)
        if message["role"] == "tool":
            items.append({"type": "function_call_output", "call_id": message["tool_call_id"], "output": said})
        elif said:
            items.append({"role": message["role"], "content": said})
        for call in message.get("tool_calls") or ():
            items.append({"type": "function_call", "call_id": call["id"], **call["function"]})
        lose(lost, f"messages.{number}.", {"reasoning": chat.reasoning(message)}, ())  # the server has it encrypted
    limits = {"max_completion_tokens": "max_output_tokens", "max_tokens": "max_output_tokens"}
    out = {**chat.renamed(request, _SAME | limits), "input": items, "store": False}
    if request.get("tools"):
        loose = {"type": "function", "strict": False, "parameters": None}
        out["tools"] = [{**loose, **tool["function"]} for tool in request["tools"]]
    if choice := request.get("tool_choice"):
        out["tool_choice"] = choice if isinstance(choice, str) else {"type": "function", **choice["function"]}
    if form := request.get("response_format"):
        out["text"] = {"format": {"type": form["type"], **form.get("json_schema", {})}}
    if request.get("reasoning_effort"):
        out["reasoning"] = {"effort": request["reasoning_effort"]}
    known = ("messages", "tools", "tool_choice", "response_format", "reasoning_effort", "store")
    lose(lost, "", request, (*_SAME, *limits, *known))
    return out


def read_answer(said: dict[str, Any], lost: Lost) -> dict[str, Any]:
    """See `exchange.Dialect`."""
    if said.get("status") not in ("completed", "incomplete"):
        raise DataError(f"its status is {said.get('status')!r}: {(said.get('error') or {}).get('message')}")
    usage = said.get("usage") or {}
    message = (_messages(said["output"]) or [chat.turn([], [], [])])[0]
    why = (said.get("incomplete_details") or {}).get("reason")
    ends = {None: "tool_calls" if message.get("tool_calls") else "stop", "content_filter": "content_filter"}
    prompt, completion = usage.get("input_tokens", 0), usage.get("output_tokens", 0)
    return {
        "id": said.get("id"), "object": "chat.completion", "model": said.get("model"),
        "choices": [{"index": 0, "message": message, "finish_reason": ends.get(why, "length"), "logprobs": None}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
                  "prompt_tokens_details": usage.get("input_tokens_details"),
                  "completion_tokens_details": usage.get("output_tokens_details")},
    }  # fmt: skip


def write_answer(answer: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """See `exchange.Dialect`."""
    choice, usage = answer["choices"][0], answer.get("usage") or {}
    read, made = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    thought = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    why = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(choice.get("finish_reason"))
    return {
        "id": f"resp_{answer.get('id')}", "object": "response", "created_at": answer.get("created") or int(time.time()),
        "model": answer.get("model") or given.get("model"), "status": "incomplete" if why else "completed",
        "incomplete_details": {"reason": why} if why else None, "error": None,
        "output": _items(choice["message"], _named(given.get("tools") or (), []), str(answer.get("id"))),
        "tools": given.get("tools") or [], "tool_choice": given.get("tool_choice") or "auto",
        "parallel_tool_calls": given.get("parallel_tool_calls") is not False,
        "usage": {"input_tokens": read, "output_tokens": made, "total_tokens": read + made,
                  "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
                  "output_tokens_details": {"reasoning_tokens": thought}},
    }  # fmt: skip


def _items(message: Mapping[str, Any], tools: _Tools, id: str) -> list[dict[str, Any]]:
    """Return the items of a turn; tools are those that were offered, by the names of their functions."""
    items: list[dict[str, Any]] = []
    if thought := chat.reasoning(message):
        content = [{"type": "reasoning_text", "text": thought}]
        items.append({"type": "reasoning", "id": f"rs_{id}", "summary": [], "content": content})
    if said := chat.text(message):
        part = {"type": "output_text", "text": said, "annotations": list[Any](), "logprobs": list[Any]()}
        done = {"role": "assistant", "status": "completed", "content": [part]}
        items.append({"type": "message", "id": f"msg_{id}", **done})
    for call in message.get("tool_calls") or ():
        name = call["function"]["name"]
        tool, space = tools.get(name, ({}, ""))
        item = {"id": f"fc_{call['id']}", "call_id": call["id"], "name": name.removeprefix(f"{space}{_SPACE}")}
        item |= {"namespace": space} if space else {}
        if tool.get("type") == "custom":
            items.append({"type": "custom_tool_call", **item, "input": chat.arguments(call)["input"]})
        else:
            told = call["function"].get("arguments") or "{}"
            items.append({"type": "function_call", **item, "arguments": told, "status": "completed"})
    return items


def events(answer: Mapping[str, Any], usage: bool) -> Iterator[bytes]:
    """Yield the events of a response."""
    return (chat.event({**one, "sequence_number": number}) for number, one in enumerate(_events(answer)))


def _events(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for kind in ("response.created", "response.in_progress"):
        yield {"type": kind, "response": {**answer, "status": "in_progress", "output": [], "usage": None}}
    for index, item in enumerate(answer["output"]):
        at = {"item_id": item.get("id"), "output_index": index}
        parts = item.get("content") or () if item["type"] in ("message", "reasoning") else ()
        empty: dict[str, Any] = {key: [] if key == "content" else "" if key in ("arguments", "input") else value
                 for key, value in item.items()}  # fmt: skip
        yield {"type": "response.output_item.added", "output_index": index, "item": empty}
        for number, part in enumerate(parts):
            place, kind = {**at, "content_index": number}, f"response.{part['type']}"
            told = part.get("text") or part.get("refusal") or ""
            yield {"type": "response.content_part.added", **place, "part": {**part, "text": ""}}
            yield {"type": f"{kind}.delta", **place, "delta": told, "logprobs": []}
            yield {"type": f"{kind}.done", **place, "text": told, "logprobs": []}
            yield {"type": "response.content_part.done", **place, "part": part}
        for key, kind in (("arguments", "function_call_arguments"), ("input", "custom_tool_call_input")):
            if key in item:
                yield {"type": f"response.{kind}.delta", **at, "delta": item[key]}
                yield {"type": f"response.{kind}.done", **at, "name": item["name"], key: item[key]}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{answer['status']}", "response": answer}


def failed(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the event of an error: OpenAI's client reads it beside the response, Codex within."""
    response = {"id": "resp_failed", "object": "response", "status": "failed", "output": list[Any](), **told}
    return {"type": "response.failed", "sequence_number": 0, "response": response, **told}
