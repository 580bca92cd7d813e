"""Anthropic Messages, to and from chat completions.

The forms are those of anthropics/anthropic-sdk-python 2.14.0, src/anthropic/types: message_create_params.py,
content_block_param.py, message.py, raw_message_stream_event.py and shared/error_object.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from offline_agent.capture import chat
from offline_agent.capture.chat import Lost, lose

PATH = "messages"
KEY = "x-api-key"
VERSION = {"anthropic-version": "2023-06-01"}
WAITING = chat.event({"type": "ping"})
BILLING = "x-anthropic-billing-header"
"""Beginning of a block that Claude Code puts before its prompt; its hash may change with every call."""
_ERRORS = {400: "invalid_request_error", 401: "authentication_error", 402: "billing_error", 403: "permission_error",
           404: "not_found_error", 413: "request_too_large", 422: "invalid_request_error", 429: "rate_limit_error",
           504: "timeout_error", 529: "overloaded_error"}  # fmt: skip
_SAME = {name: name for name in ("model", "temperature", "top_p", "top_k")}
_LIMITS = {"max_tokens": "max_completion_tokens", "stop_sequences": "stop"}
_TOOL = {"name": "name", "description": "description", "input_schema": "parameters", "strict": "strict"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_REASONS = {"max_tokens": "length", "model_context_window_exceeded": "length", "tool_use": "tool_calls",
            "refusal": "content_filter"}  # fmt: skip
_ENDS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_TOKENS = 8192  # of an answer where the request has no limit, which this API demands


def read_request(given: dict[str, Any], lost: Lost) -> dict[str, Any]:
    """See `exchange.Dialect`."""
    chat.dicts("messages", given.get("messages"))
    system = _blocks(given.get("system") or [])
    told = [block for block in system if not block["text"].startswith(BILLING)]
    lost.extend({"at": BILLING, "value": block["text"]} for block in system if block not in told)
    messages = [{"role": "system", "content": _content(told)}] if told else []
    for number, message in enumerate(given["messages"]):
        at, role, blocks = f"messages.{number}.content.", message["role"], _blocks(message["content"])
        messages += [_turn(blocks, at, lost)] if role == "assistant" else _asked(role, blocks, at, lost)
    request = {**chat.renamed(given, _SAME | _LIMITS), "messages": messages}
    tools = [tool for tool in given.get("tools") or () if tool.get("type") in (None, "custom")]
    lost.extend({"at": "tools", "value": tool} for tool in given.get("tools") or () if tool not in tools)
    if tools:
        request["tools"] = [{"type": "function", "function": chat.renamed(tool, _TOOL)} for tool in tools]
    for tool in tools:
        lose(lost, f"tools.{tool['name']}.", tool, (*_TOOL, "type", "cache_control"))
    if tools and (choice := given.get("tool_choice")):
        named = {"type": "function", "function": {"name": choice.get("name")}}
        request["tool_choice"] = named if choice["type"] == "tool" else _CHOICES[choice["type"]]
        request |= {"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") else {}
    lose(lost, "messages.", {"prefill": given["messages"][-1]["role"] == "assistant" or None}, ())
    output = given.get("output_config") or {}
    if output.get("format"):
        schema = {"name": "answer", "schema": output["format"]["schema"], "strict": True}
        request["response_format"] = {"type": "json_schema", "json_schema": schema}
    lose(lost, "output_config.", output, ("format",))
    lose(lost, "", given, (*_SAME, *_LIMITS, "messages", "system", "tools", "tool_choice", "output_config"))
    return request


def _blocks(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _content(blocks: list[dict[str, Any]]) -> Any:
    """Return texts as chat's content; a block of another kind stays as it is."""
    return chat.content([
        {"type": "text", "text": one["text"]} if one["type"] == "text"
        else chat.picture(one.get("source")) or one if one["type"] == "image" else one
        for one in blocks
    ])  # fmt: skip


def _asked(role: str, blocks: list[dict[str, Any]], at: str, lost: Lost) -> list[dict[str, Any]]:
    """Return the results of tools in a message, and what is said beside them."""
    messages, rest = [], [block for block in blocks if block["type"] != "tool_result"]
    for block in blocks:
        if block["type"] == "tool_result":
            said = _content(_blocks(block.get("content") or ""))
            messages.append({"role": "tool", "tool_call_id": block["tool_use_id"], "content": said})
            lose(lost, at, {"is_error": block.get("is_error") or None}, ())
    return messages + ([{"role": role, "content": _content(rest)}] if rest else [])


def _turn(blocks: list[dict[str, Any]], at: str, lost: Lost) -> dict[str, Any]:
    """Return a turn of the policy. A block that it has no place for stays in the content, so that nobody learns it."""
    thoughts: list[str] = []
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for block in blocks:
        if block["type"] == "thinking" and not parts and not calls:
            thoughts.append(block["thinking"])
        elif block["type"] == "tool_use":
            calls.append(chat.call(block["id"], block["name"], chat.json_text(block["input"])))
        else:
            parts.append({"type": "text", "text": block["text"]} if block["type"] == "text" else block)
            lose(lost, at, {"after a call": block if calls else None}, ())
    return chat.turn(thoughts, parts, calls)


def write_request(request: dict[str, Any], lost: Lost) -> dict[str, Any]:
    """See `exchange.Dialect`."""
    system: list[dict[str, Any]] = []
    messages: list[dict[str, Any]] = []
    for number, message in enumerate(request["messages"]):
        role, said = message["role"], [block for block in _said(message) if block["type"] != "thinking"]
        lose(lost, f"messages.{number}.", {"reasoning": chat.reasoning(message)}, ())  # it is taken with a signature
        if role in ("system", "developer") and not messages:
            system += said
            continue
        if role == "tool":
            said = [{"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": chat.text(message)}]
        elif role not in ("user", "assistant"):
            lost.append({"at": f"messages.{number}.role", "value": role})
        role = "assistant" if role == "assistant" else "user"
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += said
        else:
            messages.append({"role": role, "content": said})
    out: dict[str, Any] = {**chat.renamed(request, _SAME), "messages": messages}
    out["max_tokens"] = request.get("max_completion_tokens") or request.get("max_tokens") or _TOKENS
    if system:
        out["system"] = system
    if stop := request.get("stop"):
        out["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    if request.get("tools"):
        own = {chats: name for name, chats in _TOOL.items()}
        out["tools"] = [{"input_schema": {"type": "object"}, **chat.renamed(tool["function"], own)}
                        for tool in request["tools"]]  # fmt: skip
    choice, alone = request.get("tool_choice") or "auto", request.get("parallel_tool_calls") is False
    if isinstance(choice, dict):
        out["tool_choice"] = {"type": "tool", "name": choice["function"]["name"]}
    elif request.get("tools"):
        out["tool_choice"] = {"type": {chats: name for name, chats in _CHOICES.items()}[choice]}
    if alone and out.get("tool_choice", {"type": "none"})["type"] != "none":
        out["tool_choice"]["disable_parallel_tool_use"] = True
    known = [*_SAME, *_LIMITS.values(), "max_tokens", "messages", "tools", "tool_choice", "parallel_tool_calls"]
    form = request.get("response_format") or {}
    if form.get("type") == "json_schema":
        out["output_config"] = {"format": {"type": "json_schema", "schema": form["json_schema"]["schema"]}}
        known.append("response_format")
    lose(lost, "", request, known)
    return out


def read_answer(said: dict[str, Any], lost: Lost) -> dict[str, Any]:
    """See `exchange.Dialect`."""
    usage = said.get("usage") or {}
    read, made = (usage.get(f"cache_{name}_input_tokens") or 0 for name in ("read", "creation"))
    prompt, completion = usage.get("input_tokens", 0) + read + made, usage.get("output_tokens", 0)
    choice = {"index": 0, "message": _turn(said["content"], "answer.content.", lost), "logprobs": None,
              "finish_reason": _REASONS.get(said.get("stop_reason") or "", "stop"),
              **({"stop_reason": said["stop_sequence"]} if said.get("stop_sequence") else {})}  # fmt: skip
    return {
        "id": said.get("id"), "object": "chat.completion", "model": said.get("model"), "choices": [choice],
        "usage": {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
                  "prompt_tokens_details": {"cached_tokens": read}},
    }  # fmt: skip


def write_answer(answer: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """See `exchange.Dialect`."""
    choice, usage = answer["choices"][0], answer.get("usage") or {}
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    end, stop = choice.get("finish_reason") or "stop", choice.get("stop_reason")
    named = end == "stop" and isinstance(stop, str)  # vLLM tells which of the texts to stop at it was
    end = "tool_calls" if end == "stop" and choice["message"].get("tool_calls") else end
    return {
        "id": f"msg_{answer.get('id')}", "type": "message", "role": "assistant", "content": _said(choice["message"]),
        "model": answer.get("model") or given.get("model"),
        "stop_reason": "stop_sequence" if named else _ENDS.get(end, "end_turn"),
        "stop_sequence": stop if named else None,
        "usage": {"input_tokens": (usage.get("prompt_tokens") or 0) - cached, "cache_read_input_tokens": cached,
                  "cache_creation_input_tokens": 0, "output_tokens": usage.get("completion_tokens") or 0},
    }  # fmt: skip


def _said(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the blocks of a turn."""
    blocks: list[dict[str, Any]] = []
    if thought := chat.reasoning(message):
        blocks.append({"type": "thinking", "thinking": thought, "signature": ""})
    if said := chat.text(message):
        blocks.append({"type": "text", "text": said})
    for call in message.get("tool_calls") or ():
        told = {"id": call["id"], "name": call["function"]["name"], "input": chat.arguments(call)}
        blocks.append({"type": "tool_use", **told})
    return blocks


def events(answer: Mapping[str, Any], usage: bool) -> Iterator[bytes]:
    """Yield the events of a message."""
    counted = answer.get("usage") or {}
    begun = {
        **answer,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**counted, "output_tokens": 0},
    }
    yield chat.event({"type": "message_start", "message": begun})
    for index, block in enumerate(answer["content"]):
        start, deltas = dict(block), []
        if block["type"] == "tool_use":
            start["input"] = {}
            deltas.append({"type": "input_json_delta", "partial_json": chat.json_text(block["input"])})
        for key in ("text", "thinking", "signature"):
            if key in block:
                start[key] = ""
                deltas.append({"type": f"{key}_delta", key: block[key]})
        yield chat.event({"type": "content_block_start", "index": index, "content_block": start})
        for delta in deltas:
            yield chat.event({"type": "content_block_delta", "index": index, "delta": delta})
        yield chat.event({"type": "content_block_stop", "index": index})
    end = {name: answer.get(name) for name in ("stop_reason", "stop_sequence")}
    yield chat.event({"type": "message_delta", "delta": end, "usage": counted})
    yield chat.event({"type": "message_stop"})


def error(status: int, text: str) -> dict[str, Any]:
    """Return an error in the API's form."""
    return {"type": "error", "error": {"type": _ERRORS.get(status, "api_error"), "message": text}}
