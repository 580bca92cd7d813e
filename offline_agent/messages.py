"""Messages, calls and tools of OpenAI's chat format: read one by one, for logs and for rows of messages, and written.

Providers and libraries write them in many ways. What is known is brought into one form; what is known to say nothing
that a model read or wrote is passed over; everything else is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from offline_agent import pictures, strict_json
from offline_agent.errors import DataError, did_you_mean, located
from offline_agent.records import Message

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool",
         "function": "tool"}  # fmt: skip
"""Roles that are read, and the role each becomes: `developer` and `function` are OpenAI's other names."""
MARKS = ("weight", "loss", "train")
"""Keys that say whether a turn is trained: 1 or true, 0 or false."""
_CALL_IDS = ("tool_call_id", "call_id", "tool_use_id", "toolCallId")
_THOUGHTS = ("reasoning_content", "reasoning", "thinking", "reasoning_details", "thinking_blocks")
_READ = {
    "system": ("name",),
    "user": ("name",),
    "assistant": ("name", "tool_calls", "function_call", *_THOUGHTS, *MARKS),
    "tool": ("name", *_CALL_IDS),
}
"""Keys of a message that are read beside `role` and `content`, by role."""
_FACTS = frozenset({
    "role", "content", "type", "object", "id", "uuid", "message_id", "parent_id", "request_id", "response_id", "run_id",
    "trace_id", "session_id", "conversation_id", "index", "step", "turn", "created", "created_at", "updated_at",
    "timestamp", "ts", "time", "date", "start_time", "end_time", "duration", "latency", "latency_ms", "model",
    "provider", "source", "version", "status", "finish_reason", "stop_reason", "stop_sequence", "usage", "cost",
    "tokens", "token_count", "token_ids", "prompt_token_ids", "logprobs", "metadata", "response_metadata",
    "cache_control", "annotations", "citations", "signature", "thought_signature", "extra_content", "is_error",
    "reward", "score",
})  # fmt: skip
"""Keys of a message or call that say nothing which the model reads or writes."""
_TEXTS = {**dict.fromkeys(("text", "input_text", "output_text"), ("text",)), "refusal": ("refusal",)}
_REASONING = {"reasoning": ("reasoning", "text"), "thinking": ("thinking",), "reasoning.text": ("text",),
              "reasoning.summary": ("summary",)}  # fmt: skip
"""Types of the parts of a reasoning, and the keys that may have the text."""
_PICTURES = ("image_url", "input_image", "image")
"""Types of the parts with a picture: of OpenAI's chat, of its Responses, of Anthropic (and of TRL)."""
_GIVEN = ("image_url", "source", "image")
_ARGUMENTS = ("arguments", "parameters", "args", "input")
_PARAMETERS = ("parameters", "input_schema", "inputSchema")
_TOOL_TYPES = (None, "function", "custom")


def parsed(value: Any, what: str) -> Any:
    """Return a value; that of its JSON text where it is a text. Raises DataError where it is no JSON."""
    if not isinstance(value, str):
        return value
    try:
        return strict_json.loads(value)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{what}: no JSON ({error}): {value[:60]!r}") from error


def arrow(messages: Sequence[Any]) -> bool:
    """Return whether messages went through Arrow, which gives all of them the keys of each, with nulls."""
    return any(
        isinstance(message, Mapping)
        and (("tool_calls" in message and message.get("role") != "assistant")
             or ("tool_call_id" in message and message.get("role") not in ("tool", "function")))
        for message in messages
    )  # fmt: skip


def read(given: Any, loose: bool = False, ignored: Collection[str] = ()) -> Message:
    """Return a message in one form.

    It has `role` and `content` (text; a tool's result that is a JSON value is written as JSON); an assistant's may have
    `reasoning_content`, `tool_calls` (each with `function`, whose `arguments` are an object, and perhaps `id`), and
    `trained` where it is marked; a tool's `tool_call_id`; each `name`.

    Args:
        given: An object, or its JSON text.
        loose: Nulls in arguments are Arrow's, put where a key is absent: they are left out.
        ignored: Keys that are passed over.

    Raises:
        DataError: It is not readable, or has a key that is not known.
    """
    given = parsed(given, "it")
    if not isinstance(given, Mapping):
        raise DataError(f"got {brief(given)}, wanted an object with role and content")
    given = {
        key: value for key, value in given.items()
        if key not in ignored and (not _empty(value) or (key == "content" and value is not None))  # "" is a content
    }  # fmt: skip
    told = given.get("role")
    role = ROLES.get(told) if isinstance(told, str) else None
    if role is None:
        raise DataError(f"role: got {told!r:.60}, allowed: {', '.join(ROLES)}{did_you_mean(str(told), ROLES)}")
    if role == "assistant" and "refusal" in given and not given.get("content"):
        given["content"] = given.pop("refusal")  # OpenAI's other place for what the model says
    _check_keys(f"{'an' if role == 'assistant' else 'a'} {role} message", given, ("content", *_READ[role]))
    said = given.get("content")
    with located("content"):
        if role == "tool" and _is_value(said):
            said = _json(bare(said) if loose else said)
        content, thoughts = _parts(said, role == "assistant")
    message: Message = {"role": role, "content": content}
    if "name" in given:
        if not isinstance(given["name"], str):
            raise DataError(f"name: got {given['name']!r:.60}, wanted a text")
        message["name"] = given["name"]
    if role == "assistant":
        return message | _turn(given, thoughts, loose, ignored)
    if "content" not in given:
        raise DataError(f"it has no content, which a {role} message must have")
    id = next((given[key] for key in _CALL_IDS if key in given), None) if role == "tool" else None
    return message if id is None else {**message, "tool_call_id": str(id)}


def _turn(given: Mapping[str, Any], thoughts: str, loose: bool, ignored: Collection[str]) -> dict[str, Any]:
    """Return what an assistant's message has beside its content."""
    out: dict[str, Any] = {}
    if reasoning := _reasoning(given, thoughts):
        out["reasoning_content"] = reasoning
    calls = parsed(given.get("tool_calls"), "tool_calls")
    if calls is None:
        calls = [given["function_call"]] if "function_call" in given else []
    if not isinstance(calls, Sequence):
        raise DataError(f"tool_calls: got {brief(calls)}, wanted a list")
    if calls:
        out["tool_calls"] = [_call(call, loose, ignored) for call in calls]
    marks = {key: given[key] for key in MARKS if key in given}
    for key, value in marks.items():
        if value not in (0, 1):  # False and True are equal to these
            raise DataError(f"{key}: got {value!r}, allowed: 1 or true (the turn is trained), 0 or false (it is not)")
    if marks:
        out["trained"] = all(marks.values())
    if "content" not in given and not calls and out.get("trained", True):
        raise DataError("an assistant message with neither content nor a call")
    return out


def _reasoning(given: Mapping[str, Any], part: str) -> str:
    """Return the reasoning of a turn, which several keys may tell, as text or in parts."""
    found = [part] if part else []
    unread = None
    for key in _THOUGHTS:
        try:
            if key in given:
                plain, thought = _parts(given[key], True)  # a list may have both kinds of parts, reasoning first
                found.append(thought + plain)
        except DataError as error:
            unread = DataError(f"{key}: {error}")
    if unread is not None and not found:  # else its text is told beside what is encrypted
        raise unread
    if len({"".join(text.split()) for text in found}) > 1:
        raise DataError("its reasoning is told in two ways, and nothing says which is right")
    return found[0] if found else ""


def _call(given: Any, loose: bool, ignored: Collection[str]) -> dict[str, Any]:
    given = parsed(given, "a tool call")
    function = parsed(given.get("function") or given, "a tool call") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise DataError(f"a tool call: got {brief(given)}, wanted a function with name and arguments")
    name = function["name"]
    told = next((key for key in _ARGUMENTS if function.get(key) is not None), "arguments")
    _check_keys(f"a tool call of {name}", {**given, **function}, ("name", told, "function", *_CALL_IDS, *ignored))
    value = function.get(told)
    value = {} if value is None else value
    if isinstance(value, str):
        arguments = parsed(value, f"the arguments of {name}") if value.strip() else {}
        loose = False  # a text has no nulls but the agent's
    else:
        arguments = value
    if not isinstance(arguments, Mapping):
        said = "JSON text in JSON text" if isinstance(arguments, str) else brief(arguments)
        raise DataError(f"the arguments of {name}: got {said}, wanted an object")
    call = {"type": "function", "function": {"name": name, "arguments": bare(arguments) if loose else dict(arguments)}}
    id = next((given[key] for key in ("id", *_CALL_IDS) if given.get(key) not in (None, "")), None)
    return call if id is None else {"id": str(id), **call}


def schemas(tools: Any, loose: bool = False) -> tuple[dict[str, Any], ...]:
    """Return the schemas of tools in OpenAI's form; bare functions (`name`, `parameters`) are wrapped.

    Args:
        tools: A list of schemas, its JSON text, or None.
        loose: Nulls in them are Arrow's, put where a key is absent: they are left out.

    Raises:
        DataError: A tool is no object with a name, or has its parameters under a name that is not known.
    """
    tools = parsed(tools, "tools") if not isinstance(tools, str) or tools.strip() else None
    if tools is None:
        return ()
    if not isinstance(tools, Sequence):
        raise DataError(f"tools: got {brief(tools)}, wanted a list of schemas")
    return tuple(_schema(tool, number, loose) for number, tool in enumerate(tools))


def _schema(given: Any, number: int, loose: bool) -> dict[str, Any]:
    tool = parsed(given, f"tool {number}")
    tool = bare(tool) if loose else tool
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise DataError(f"tool {number}: got {brief(tool)}, wanted a function with a name")
    if tool.get("type") not in _TOOL_TYPES:
        raise DataError(f"tool {number}: type: got {tool['type']!r:.60}, allowed: function, custom")
    told = [key for key in _PARAMETERS if function.get(key) is not None]
    rest = [key for key in function if key not in ("type", "name", "description", "strict", *_FACTS, *_PARAMETERS)]
    if len(told) > 1 or (rest and not told):
        said = f"has {', '.join(told or rest)}{'' if told else ', but no parameters'}"
        raise DataError(f"tool {number} {said}; wanted is a JSON schema in one of {', '.join(_PARAMETERS)}")
    out = {("parameters" if key in told else key): value for key, value in function.items() if key != "type"}
    if told:
        out["parameters"] = parsed(out["parameters"], f"the parameters of tool {number}")
        if not isinstance(out["parameters"], Mapping):
            raise DataError(f"tool {number}: parameters: got {brief(out['parameters'])}, wanted a JSON schema")
    return {"type": "function", "function": out}


def _is_value(content: Any) -> bool:
    """Return whether a tool's result is a JSON value of its own; a list is one of parts."""
    if isinstance(content, Mapping):
        return content.get("type") not in (*_TEXTS, *_PICTURES)
    return isinstance(content, bool | int | float)


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:  # a date or NaN of a Parquet file
        raise DataError(f"no JSON value: {error}") from error


def _parts(content: Any, thinks: bool) -> tuple[str, str]:
    """Return the text of a content and the reasoning in it."""
    if content is None or isinstance(content, str):
        return content or "", ""
    if not isinstance(content, Sequence):
        raise DataError(f"got {brief(content)}, wanted text or a list of its parts")
    said: list[str] = []
    thought: list[str] = []
    for part in content:
        part = {"type": "text", "text": part} if isinstance(part, str) else part
        kind = part.get("type") or "text" if isinstance(part, Mapping) else type(part).__name__
        if kind in _PICTURES and not thinks and (given := next((part[key] for key in _GIVEN if part.get(key)), None)):
            said.append(pictures.of_source(given))
            continue
        keys = _TEXTS.get(kind) or (_REASONING.get(kind) if thinks else None) or ()
        text = next((part[key] for key in keys if isinstance(part.get(key), str)), None)
        if text is None or part.get("redacted"):
            raise DataError(f"a part of type {kind!r:.60}; only text can be read")
        if kind in _REASONING and said:
            raise DataError("reasoning follows what is said, and would be learnt before it")
        (thought if kind in _REASONING else said).append(text)
    return "".join(said), "".join(thought)


def _check_keys(what: str, given: Mapping[str, Any], known: Collection[str]) -> None:
    unknown = sorted(k for k, value in given.items() if k not in known and k not in _FACTS and not _empty(value))
    if unknown:
        raise DataError(
            f"{what} has {', '.join(unknown)}, read are {', '.join(sorted(set(known)))}; rename it, take it out, or "
            f"let import_logs pass it over: log.ignore=[{','.join(unknown)}]"
        )


def _empty(value: Any) -> bool:
    """Return whether a value says nothing."""
    if isinstance(value, Mapping):
        return all(map(_empty, value.values()))
    return value is None or value == "" or value == []


def bare(value: Any) -> Any:
    """Return a value without its null members: Arrow adds them where rows of one column differ in their keys."""
    if isinstance(value, Mapping):
        return {key: bare(item) for key, item in value.items() if item is not None}
    return [bare(item) for item in value] if isinstance(value, list | tuple) else value


def brief(value: Any) -> str:
    """Return the type of a value and the beginning of its text, for messages."""
    return f"{type(value).__name__} {value!r:.60}"


def write(messages: Sequence[Message], first: int = 0) -> list[dict[str, Any]]:
    """Return messages as OpenAI's API takes them: calls with ids and arguments as JSON text, results with those ids.

    Args:
        messages: In the form of `read`, without ids; results follow the turn that called, in the order of its calls.
        first: The number of the first call, where these messages continue others.

    Raises:
        DataError: A result answers no call.
    """
    out: list[dict[str, Any]] = []
    open_calls: list[str] = []
    for message in messages:
        made = dict(message)
        if message["role"] != "assistant":
            made["content"] = pictures.as_parts(message["content"])
        if message["role"] == "tool":
            if not open_calls:
                raise DataError("a tool's result answers no call")
            made["tool_call_id"] = open_calls.pop(0)
        else:
            functions = [call["function"] for call in message.get("tool_calls") or ()]
            open_calls = [f"call_{number}" for number in range(first, first + len(functions))]
            first += len(functions)
            texts = [json.dumps(one["arguments"], ensure_ascii=False) for one in functions]
            calls = [
                {"id": id, "type": "function", "function": {"name": one["name"], "arguments": text}}
                for id, one, text in zip(open_calls, functions, texts, strict=True)
            ]
            made |= {"tool_calls": calls} if calls else {}
        out.append(made)
    return out
