"""OpenAI's chat messages: whole conversations, or requests with their responses (also of several choices).

A record has `messages` and perhaps `tools`. With `choices`, or `response.choices`, it is one call of the API: each
choice continues the messages. A later call of the same session repeats the earlier ones, so they are one episode.
vLLM's `prompt_token_ids`, `token_ids` and `logprobs` are read. What is written is the fine-tuning API's: chats, and
preferences of one turn a side.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from offline_agent.errors import DataError
from offline_agent.formats.row import NO_TOKENS, PAIRS, SUCCESSES, Export, ExportRow, Part
from offline_agent.logs.conversation import conversation, told_tools, with_system
from offline_agent.logs.episode import Fields, LoggedEpisode, TurnTokens, at, has_objects, labels_of, turn_tokens
from offline_agent.messages import arrow, brief, write
from offline_agent.records import Message

NAME = "openai"
_TOOL = ("name", "description", "parameters", "strict")  # keys of a function that the fine-tuning API takes
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # openai 3.51, types/shared_params/function_definition.py
_PARAMETERS = {"model", "max_tokens", "temperature", "tools", "functions"}  # one of which the rest of a request has


def recognised(record: Mapping[str, Any]) -> str | None:
    """See `formats.Format`."""
    if not has_objects(_request(record).get("messages"), "role"):
        return None
    return "messages with roles, and choices" if _choices(record) is not None else "messages with roles"


def read(record: Mapping[str, Any], name: str, fields: Fields) -> Iterator[LoggedEpisode]:
    """See `formats.Format`."""
    request, choices = _request(record), _choices(record)
    tools = told_tools(arrow(request["messages"]), request, record)
    known = {"tools": tools, "labels": labels_of(record.get("verdict")), **fields.read(record)}
    within = (one for one in record.values() if isinstance(one, Mapping) and one.keys() & _PARAMETERS)
    messages = with_system(request["messages"], fields.ignore, request, record, *within)
    if choices is None:
        _check_answer(record, messages[-1], fields)
        yield LoggedEpisode(name, conversation(messages, fields.ignore), **known)
        return
    if not isinstance(choices, list) or not choices:
        raise DataError("choices: wanted a list with at least one choice")
    for number, choice in enumerate(choices):
        message = at(choice, "message")
        if not isinstance(message, Mapping):
            raise DataError(f"choice {number}: it has no message (a part of a stream cannot be read alone)")
        if message.get("role") not in (None, "assistant"):
            raise DataError(f"choice {number}: role: got {message['role']!r:.60}, wanted assistant")
        tokens = _tokens(record, choice)
        place = name if len(choices) == 1 else f"{name}/{number}"
        said = conversation([*messages, {**message, "role": "assistant"}], fields.ignore)
        episode = LoggedEpisode(place, said, **known)
        turns = (*(None for _ in range(episode.turns - 1)), tokens) if tokens is not None else ()
        yield replace(episode, cut=choice.get("finish_reason") == "length", tokens=turns, choice=number)


def _request(record: Mapping[str, Any]) -> Mapping[str, Any]:
    request = record.get("request")
    return request if isinstance(request, Mapping) else record


def _check_answer(record: Mapping[str, Any], last: Any, fields: Fields) -> None:
    """Raise DataError where the turn that follows the messages may be in the record, in a form that is not read."""
    for name in ("response", "output", "completion"):
        if record.get(name) and name not in fields.ignore and last.get("role") != "assistant":
            raise DataError(
                f"{name}: got {brief(record[name])}, wanted an object with choices; it may be the turn that follows "
                f"the messages. Put it there, or pass it over with log.ignore=[{name}]"
            )


def _tokens(record: Mapping[str, Any], choice: Mapping[str, Any]) -> TurnTokens | None:
    """Return the ids of a choice, as vLLM gives them with `return_token_ids` and `logprobs`."""
    response = record.get("response")
    prompt = (response if isinstance(response, Mapping) else record).get("prompt_token_ids")
    content = at(choice, "logprobs.content")
    logps = [token.get("logprob") for token in content] if isinstance(content, list) else None
    return turn_tokens(prompt, choice.get("token_ids"), logps)


def _choices(record: Mapping[str, Any]) -> Any:
    response = record.get("response")
    if isinstance(response, Mapping) and "choices" in response:
        return response["choices"]
    return record.get("choices")


def chat(row: ExportRow) -> Iterator[Mapping[str, Any]]:
    """Yield the trajectory up to its last turn of the policy, with which a chat must end."""
    messages = row.messages("messages")
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()
    if not messages:
        raise DataError("it has no turn of the policy")
    yield {"messages": _chat(messages), **_tools(row)}


def preference(row: ExportRow) -> Iterator[Mapping[str, Any]]:
    """Yield the pair."""
    prompt = row.messages("prompt")
    calls = sum(len(message.get("tool_calls") or ()) for message in prompt)
    sides = [_chat([side], calls) for side in row.single_turns()]
    yield {
        "input": {"messages": _chat(prompt), **_tools(row)},
        "preferred_output": sides[0],
        "non_preferred_output": sides[1],
    }


def _chat(messages: Sequence[Message], first: int = 0) -> list[dict[str, Any]]:
    out = []
    for message in write(messages, first):
        if message.get("reasoning_content"):
            raise DataError("a turn with reasoning_content, which the format has no place for")
        if message["role"] == "tool":
            message.pop("name", None)
        if message.get("tool_calls") and not message.get("content"):
            message["content"] = None
        for call in message.get("tool_calls") or ():
            _check_name(call["function"]["name"])
        out.append(message)
    return out


def _check_name(name: Any) -> None:
    """Raise DataError where the API refuses the name of a function."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise DataError("a tool's name is not 1 to 64 of a-z, A-Z, 0-9, _ and -, which the API refuses")


def _tools(row: ExportRow) -> dict[str, Any]:
    tools = [
        {"type": "function", "function": {key: value for key, value in tool["function"].items() if key in _TOOL}}
        for tool in row.tools
    ]
    for tool in row.tools:
        _check_name(tool["function"].get("name"))
    return {"tools": tools, "parallel_tool_calls": True} if tools else {}


EXPORT = Export(
    about="OpenAI fine-tuning: JSON lines of chats and preferences, as servers with that API take them",
    parts=(Part("sft.jsonl", SUCCESSES, chat), Part("preference.jsonl", PAIRS, preference)),
    load="""\
```bash
curl $BASE_URL/v1/files -F purpose=fine-tune -F file=@sft.jsonl      # or preference.jsonl, method dpo
```""",
    pictures=True,
    trains="Every assistant message of a chat; the output messages of a preference. The server renders them.",
    lost=f"{NO_TOKENS}; reasoning_content; keys of a tool's schema beyond name, description, parameters and strict. "
    "What follows the last turn of the policy is left out. Ids of calls are made here, `call_0` and so on.",
)
