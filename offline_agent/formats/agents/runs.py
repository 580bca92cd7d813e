"""Steps of smolagents' memory, and contents of Gemini: checkpoints and sessions of Gemini CLI, requests of its API.

smolagents: a step is a turn with its observations. A code agent's turn is the text that it wrote, which has its code; a
tool-calling agent's has calls. Gemini: `model` contents are turns, `functionResponse` parts results; thoughts are the
summaries that its API gives. Messages of the command line itself (`info`, `/commands`) are passed over.

Definitions: huggingface/smolagents, src/smolagents/memory.py and agents.py at e3a5b89; google-gemini/gemini-cli,
packages/core/src/services/chatRecordingTypes.ts and chatRecordingService.ts, core/logger.ts, utils/sessionUtils.ts at
5411f11.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from offline_agent.errors import DataError, located
from offline_agent.formats.agents.reader import Reader, as_openai, call, plain
from offline_agent.logs.episode import Fields, LoggedEpisode, at, has_objects, inner
from offline_agent.messages import brief

# -- smolagents --------------------------------------------------------------------------------------------------------

_STEPS = ("step_number", "task", "plan", "system_prompt", "output")
_PROCEED = "Now proceed and carry out this plan."  # what smolagents says after a plan
_WRAPPED = "the words that smolagents puts around tasks and observations, and its repetition of calls as text"


def is_step(value: Any) -> bool:
    """Return whether a value is a step of smolagents' memory."""
    return isinstance(value, Mapping) and ({"step_number", "model_output"} <= value.keys() or "task_images" in value)


def _steps(record: Mapping[str, Any]) -> str | None:
    steps = record.get("steps")
    return "steps of a memory" if isinstance(steps, list) and any(map(is_step, steps[:3])) else None


def _read_steps(record: Mapping[str, Any], name: str, fields: Fields) -> Iterator[LoggedEpisode]:
    messages = []
    for number, step in enumerate(record["steps"]):
        with located(f"step {number}"):
            messages += _step(step)
    read = [at(step, "model_input_messages") for step in record["steps"]]
    opening: Any = next((one[0] for one in read if isinstance(one, list) and one), {})
    if at(opening, "role") == "system" and at(messages[0], "role") != "system":
        messages.insert(0, {"role": "system", "content": opening.get("content")})
    facts = {key: value for key, value in record.items() if key not in ("steps", "output")}
    yield from as_openai({**facts, "messages": messages}, name, fields, _WRAPPED)


def _step(step: Any) -> list[dict[str, Any]]:
    kind = next((key for key in _STEPS if isinstance(step, Mapping) and key in step), None)
    if kind is None or step.get("task_images") or step.get("observations_images"):
        raise DataError(f"got {brief(step)}, wanted a step of smolagents without images: {', '.join(_STEPS)}")
    if kind in ("task", "system_prompt"):
        return [{"role": "user" if kind == "task" else "system", "content": step[kind]}]
    if kind == "plan":
        return [{"role": "assistant", "content": step["plan"]}, {"role": "user", "content": _PROCEED}]
    if kind == "output":
        return []  # the last step has it
    error = at(step, "error.message")
    if step.get("model_output") is None and not step.get("tool_calls"):
        raise DataError(f"the model gave no output: {str(error)[:100]}")
    said = inner(step, "model_output_message")
    turn = {"role": "assistant", "content": step.get("model_output"),
            "reasoning_content": said.get("reasoning_content")}  # fmt: skip
    seen = "\n".join(one for one in (step.get("observations"), error) if isinstance(one, str))
    calls = step.get("tool_calls") or []
    if step.get("code_action") is not None or not calls:
        return [turn, *([{"role": "user", "content": seen}] if seen else [])]
    if not seen:  # a final answer
        return [{**turn, "tool_calls": calls}]
    results = seen.split("\n") if len(calls) > 1 else [seen]
    if len(results) != len(calls):
        raise DataError(f"observations: one text for {len(calls)} calls, and nothing says which is whose")
    ids = [at(one, "id") for one in calls]
    answers = ({"role": "tool", "tool_call_id": id, "content": one} for id, one in zip(ids, results, strict=True))
    return [{**turn, "tool_calls": calls}, *answers]


# -- Gemini ------------------------------------------------------------------------------------------------------------

_CANNED = "Got it. Thanks for the context!"  # the turn that the command line writes after its first message
_ROLES = {"user": "user", "model": "assistant", "function": "user"}
_TYPES = ("user", "gemini", "info", "error", "warning")
_CONTENTS = ("history", "contents")
_CLI = "the system prompt and the tools, which the command line does not keep; its own messages and commands"


def begins_session(value: Any) -> bool:
    """Return whether a value is the first line of a session whose messages are a line each."""
    return isinstance(value, Mapping) and {"sessionId", "projectHash"} <= value.keys() and "messages" not in value


def session(lines: list[Any]) -> dict[str, Any]:
    """Return the session of its lines: messages by id, of which the last counts, going back, and changes of facts."""
    facts: dict[str, Any] = {}
    messages: dict[Any, Any] = {}
    for line in lines:
        if "$rewindTo" in line:
            ids = list(messages)
            start = ids.index(line["$rewindTo"]) if line["$rewindTo"] in messages else 0
            messages = {id: messages[id] for id in ids[:start]}
        elif "$set" in line:
            facts |= line["$set"]
            if "messages" in line["$set"]:
                messages = {one["id"]: one for one in line["$set"]["messages"]}
        elif "id" in line:
            messages[line["id"]] = line
        else:
            facts |= line
    return {**facts, "messages": list(messages.values())}


def is_content(value: Any) -> bool:
    """Return whether a value is a content of Gemini."""
    return isinstance(value, Mapping) and {"role", "parts"} <= value.keys()


def _gemini(record: Mapping[str, Any]) -> str | None:
    key = next((key for key in _CONTENTS if has_objects(record.get(key), "role", "parts")), None)
    if key is not None:
        return f"{key} with roles and parts"
    known = "sessionId" in record and has_objects(record.get("messages"), "type")
    return "a session of Gemini CLI" if known and record["messages"][0]["type"] in _TYPES else None


def _read_gemini(record: Mapping[str, Any], name: str, fields: Fields) -> Iterator[LoggedEpisode]:
    key = next((key for key in _CONTENTS if record.get(key) is not None), None)
    given = _recorded(record["messages"]) if key is None else record[key]
    if not isinstance(given, list):
        raise DataError(f"{key}: got {brief(given)}, wanted a list of objects with role and parts")
    canned = [number for number, one in enumerate(given[:3]) if at(one, "parts") == [{"text": _CANNED}]]
    messages = [made for number, one in enumerate(given) if number not in canned for made in _content(one, number)]
    if parts := at(record, "systemInstruction.parts"):
        messages[:0] = [{"role": "system", "content": [{"type": "text", "text": at(one, "text")} for one in parts]}]
    tools = [tool for one in record.get("tools") or () for tool in at(one, "functionDeclarations") or [one]]
    facts = {key: value for key, value in record.items() if key not in (*_CONTENTS, "tools", "systemInstruction")}
    told = {"session_id": record.get("sessionId"), **facts, "messages": messages, "tools": tools}
    yield from as_openai(told, name, fields, None if key == "contents" else _CLI)


def _recorded(messages: list[Any]) -> list[Any]:
    """Return the messages of a session as contents, as the command line does to go on with it."""
    out: list[Any] = []
    for number, one in enumerate(messages):
        if at(one, "type") not in _TYPES:
            raise DataError(f"message {number}: type: got {at(one, 'type')!r:.60}, allowed: {', '.join(_TYPES)}")
        content = one.get("content") or []
        parts = [{"text": part} if isinstance(part, str) else part
                 for part in (content if isinstance(content, list) else [content])]  # fmt: skip
        if one["type"] == "user" and not str(at(parts[0] if parts else None, "text")).startswith(("/", "?")):
            out.append({"role": "user", "parts": parts})
        if one["type"] != "gemini":
            continue
        calls = one.get("toolCalls") or []
        if not any(at(part, "functionCall") or at(part, "thought") for part in parts):  # older ones have them beside it
            thoughts = [{"thought": True, "text": "\n".join(filter(None, map(thought.get, ("subject", "description"))))}
                        for thought in one.get("thoughts") or ()]  # fmt: skip
            parts = [*thoughts, *parts, *({"functionCall": call} for call in calls)]
        out.append({"role": "model", "parts": parts})
        results = [part for call in calls for part in _results(call)]
        out += [{"role": "user", "parts": results}] if results else []
    return out


def _results(given: Mapping[str, Any]) -> list[Any]:
    result = given.get("result")
    if isinstance(result, str):
        named = {"id": given.get("id"), "name": given.get("name")}
        result = {"functionResponse": {**named, "response": {"output": result}}}
    return result if isinstance(result, list) else [] if result is None else [result]


def _content(given: Any, number: int) -> list[dict[str, Any]]:
    """Return a content as messages of OpenAI's form: results of functions are messages of their own there."""
    with located(f"content {number}"):
        role = _ROLES.get(at(given, "role")) if isinstance(at(given, "role"), str) else None
        if role is None or not isinstance(given.get("parts"), list):
            raise DataError(f"got {brief(given)}, wanted an object with parts and a role of {', '.join(_ROLES)}")
        said, calls, results = [], [], []
        for part in given["parts"]:
            if made := inner(part, "functionCall"):
                calls.append(call(made.get("name"), made.get("args"), made.get("id")))
            elif made := inner(part, "functionResponse"):
                answer = made.get("response")
                text = answer["output"] if isinstance(answer, Mapping) and [*answer] == ["output"] else answer
                results.append({"role": "tool", "tool_call_id": made.get("id"), "name": made.get("name"),
                                "content": plain(text)})  # fmt: skip
            elif isinstance(at(part, "text"), str):
                said.append({"type": "reasoning" if part.get("thought") else "text", "text": part["text"]})
            else:
                raise DataError(f"a part of {brief(part)}; only text and functions can be read")
    turn = {"role": role, "content": said, **({"tool_calls": calls} if calls else {})}
    return [*results, turn] if said or calls or not results else results


READERS = (Reader("smolagents", _steps, _read_steps), Reader("gemini_cli", _gemini, _read_gemini))
