"""Anthropic Messages, to and from chat completions.

The forms are those of anthropics/anthropic-sdk-python 2.14.0, src/anthropic/types: message_create_params.py,
content_block_param.py, message.py, raw_message_stream_event.py and shared/error_object.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from offline_agent import strict_json
from offline_agent.capture import chat
from offline_agent.capture.chat import Lost, lose
from offline_agent.errors import DataError

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
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_REASONS = {"max_tokens": "length", "model_context_window_exceeded": "length", "tool_use": "tool_calls",
            "refusal": "content_filter"}  # fmt: skip
_ENDS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_DELTAS = {"text": ("text", "text_delta"), "thinking": ("thinking", "thinking_delta")}
_TOKENS = 8192  # of an answer where the request has no limit, which this API demands


def read_request(given: dict[str, Any], lost: Lost) -> dict[str, Any]:
    """See `exchange.Dialect`."""
    chat.dicts("messages", given.get("messages"))
    system = _blocks(given.get("system") or [])
    told = [block for block in system if not block.get("text", "").startswith(BILLING)]
    lost.extend({"at": "system", "value": block} for block in system if block not in told)
    messages = [{"role": "system", "content": _content(told, "system.", lost)}] if told else []
    for number, message in enumerate(given["messages"]):
        at, blocks = f"messages.{number}.content.", _blocks(message["content"])
        messages += [_turn(blocks, at, lost)] if message["role"] == "assistant" else _asked(message, blocks, at, lost)
    request = {**chat.renamed(given, _SAME | _LIMITS), "messages": messages}
    tools = [tool for tool in given.get("tools") or () if tool.get("type") in (None, "custom")]
    lost.extend({"at": "tools", "value": tool} for tool in given.get("tools") or () if tool not in tools)
    if tools:
        request["tools"] = [_tool(tool, lost) for tool in tools]
    choice = given.get("tool_choice") or {}
    if choice:
        named = {"type": "function", "function": {"name": choice.get("name")}}
        request["tool_choice"] = named if choice["type"] == "tool" else _CHOICES[choice["type"]]
    if choice.get("disable_parallel_tool_use"):
        request["parallel_tool_calls"] = False
    output = given.get("output_config") or {}
    if output.get("format"):
        schema = {"name": "answer", "schema": output["format"]["schema"], "strict": True}
        request["response_format"] = {"type": "json_schema", "json_schema": schema}
    lose(lost, "output_config.", output, ("format",))
    lose(lost, "", given, (*_SAME, *_LIMITS, "messages", "system", "tools", "tool_choice", "output_config"))
    return request


def _blocks(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _content(blocks: list[dict[str, Any]], at: str, lost: Lost) -> Any:
    """Return texts as chat's content; a block of another kind stays as it is."""
    for block in blocks:
        if block["type"] == "text":
            lose(lost, at, block, ("type", "text", "cache_control"))
    return chat.content([{"type": "text", "text": one["text"]} if one["type"] == "text" else one for one in blocks])


def _asked(message: Mapping[str, Any], blocks: list[dict[str, Any]], at: str, lost: Lost) -> list[dict[str, Any]]:
    """Return the results of tools in a message, and what is said beside them."""
    messages, rest = [], [block for block in blocks if block["type"] != "tool_result"]
    for block in blocks:
        if block["type"] == "tool_result":
            said = _content(_blocks(block.get("content") or ""), at, lost)
            messages.append({"role": "tool", "tool_call_id": block["tool_use_id"], "content": said})
            lose(lost, at, block | {"is_error": block.get("is_error") or None}, ("type", "tool_use_id", "content",
                                                                                "cache_control"))  # fmt: skip
    return messages + ([{"role": message["role"], "content": _content(rest, at, lost)}] if rest else [])


def _turn(blocks: list[dict[str, Any]], at: str, lost: Lost) -> dict[str, Any]:
    """Return a turn of the policy. A block that it has no place for stays in the content, so that nobody learns it."""
    thoughts: list[str] = []
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for block in blocks:
        if block["type"] == "thinking" and not parts and not calls:
            thoughts.append(block["thinking"])
        elif block["type"] == "tool_use":
            calls.append(chat.call(block["id"], block["name"], strict_json.dumps(block["input"]).decode()))
        else:
            parts.append({"type": "text", "text": block["text"]} if block["type"] == "text" else block)
            if calls:
                lost.append({"at": at, "value": {"follows a call": block}})
    return chat.turn(thoughts, parts, calls)


def _tool(tool: Mapping[str, Any], lost: Lost) -> dict[str, Any]:
    names = {"name": "name", "description": "description", "input_schema": "parameters", "strict": "strict"}
    lose(lost, f"tools.{tool['name']}.", tool, (*names, "type", "cache_control"))
    return {"type": "function", "function": chat.renamed(tool, names)}


def write_request(request: dict[str, Any], lost: Lost) -> dict[str, Any]:
    """See `exchange.Dialect`."""
    system: list[dict[str, Any]] = []
    messages: list[dict[str, Any]] = []
    for number, message in enumerate(request["messages"]):
        role, said = message["role"], [{"type": "text", "text": chat.text(message)}] if chat.text(message) else []
        if role in ("system", "developer") and not messages:
            system += said
            continue
        if role == "assistant":
            said = [block for block in _said(message) if block["type"] != "thinking"]  # it is taken with a signature
            lose(lost, f"messages.{number}.", {"reasoning": chat.reasoning(message)}, ())
        elif role == "tool":
            said = [{"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": chat.text(message)}]
        elif role != "user":
            lost.append({"at": f"messages.{number}.role", "value": role})
        role = "assistant" if role == "assistant" else "user"
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += said
        else:
            messages.append({"role": role, "content": said})
    limit = request.get("max_completion_tokens") or request.get("max_tokens") or _TOKENS
    out: dict[str, Any] = {**chat.renamed(request, _SAME), "max_tokens": limit, "messages": messages}
    if system:
        out["system"] = system
    stop = request.get("stop") or []
    if stop:
        out["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    if request.get("tools"):
        functions = [tool["function"] for tool in request["tools"]]
        out["tools"] = [{"input_schema": one.get("parameters") or {"type": "object"},
                         **{key: one[key] for key in ("name", "description", "strict") if one.get(key) is not None}}
                        for one in functions]  # fmt: skip
    choice = request.get("tool_choice") or "auto"
    if choice != "auto" or request.get("parallel_tool_calls") is False:
        kinds = {chats: own for own, chats in _CHOICES.items()}
        out["tool_choice"] = (
            {"type": kinds[choice]} if isinstance(choice, str) else {"type": "tool", **choice["function"]}
        )
        if request.get("parallel_tool_calls") is False and choice != "none":
            out["tool_choice"]["disable_parallel_tool_use"] = True
    form = request.get("response_format") or {}
    if form.get("type") == "json_schema":
        out["output_config"] = {"format": {"type": "json_schema", "schema": form["json_schema"]["schema"]}}
    known = [*_SAME, *_LIMITS.values(), "max_tokens", "messages", "tools", "tool_choice", "parallel_tool_calls"]
    lose(lost, "", request, [*known, "response_format"] if "output_config" in out else known)
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
    content = _said(choice["message"])
    end, stop = choice.get("finish_reason") or "stop", choice.get("stop_reason")
    if end == "stop" and choice["message"].get("tool_calls"):
        end = "tool_calls"
    named = end == "stop" and isinstance(stop, str)  # vLLM tells which of the texts to stop at it was
    return {
        "id": f"msg_{answer.get('id')}", "type": "message", "role": "assistant", "content": content,
        "model": answer.get("model") or given.get("model"),
        "stop_reason": "stop_sequence" if named else _ENDS.get(end, "end_turn"),
        "stop_sequence": stop if named else None,
        "usage": {"input_tokens": (usage.get("prompt_tokens") or 0) - cached, "cache_read_input_tokens": cached,
                  "cache_creation_input_tokens": 0, "output_tokens": usage.get("completion_tokens") or 0},
    }  # fmt: skip


def _said(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the blocks of a turn. Raises DataError where the arguments of a call are no object."""
    blocks: list[dict[str, Any]] = []
    if thought := chat.reasoning(message):
        blocks.append({"type": "thinking", "thinking": thought, "signature": ""})
    if said := chat.text(message):
        blocks.append({"type": "text", "text": said})
    for call in message.get("tool_calls") or ():
        name, told = call["function"]["name"], call["function"].get("arguments") or "{}"
        try:
            arguments = strict_json.loads(told)
        except ValueError as error:
            raise DataError(f"the arguments of {name} are no JSON: {told!r:.200}") from error
        if not isinstance(arguments, dict):
            raise DataError(f"the arguments of {name} are no object: {told!r:.200}")
        blocks.append({"type": "tool_use", "id": call["id"], "name": name, "input": arguments})
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
        if block["type"] in _DELTAS:
            key, kind = _DELTAS[block["type"]]
            start[key], deltas = "", [{"type": kind, key: block[key]}]
        if block.get("signature"):
            start["signature"] = ""
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        if block["type"] == "tool_use":
            start["input"] = {}
            deltas = [{"type": "input_json_delta", "partial_json": strict_json.dumps(block["input"]).decode()}]
        yield chat.event({"type": "content_block_start", "index": index, "content_block": start})
        for delta in deltas:
            yield chat.event({"type": "content_block_delta", "index": index, "delta": delta})
        yield chat.event({"type": "content_block_stop", "index": index})
    delta = {key: answer.get(key) for key in ("stop_reason", "stop_sequence")}
    yield chat.event({"type": "message_delta", "delta": delta, "usage": counted})
    yield chat.event({"type": "message_stop"})


def error(status: int, text: str) -> dict[str, Any]:
    """Return an error in the API's form."""
    return {"type": "error", "error": {"type": _ERRORS.get(status, "api_error"), "message": text}}


def failed(told: Mapping[str, Any]) -> bytes:
    """Return the event of an error that comes when the stream has begun."""
    return chat.event(told)
