"""OpenAI's chat messages: whole conversations, or requests with their responses (also of several choices).

A record has `messages` and perhaps `tools`. With `choices`, or `response.choices`, it is one call of the API: each
choice continues the messages. A later call of the same session repeats the earlier ones, so they are one episode.
vLLM's `prompt_token_ids`, `token_ids` and `logprobs` are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from offline_agent.errors import DataError
from offline_agent.logs.conversation import conversation, told_tools, with_system
from offline_agent.logs.episode import Fields, LoggedEpisode
from offline_agent.logs.messages import arrow, brief
from offline_agent.logs.tokens import TurnTokens, turn_tokens

NAME = "openai"
_PARAMETERS = {"model", "max_tokens", "temperature", "tools", "functions"}  # one of which the rest of a request has


def recognised(record: Mapping[str, Any]) -> str | None:
    """See `formats.Format`."""
    request = _request(record)
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        return None
    if not all(isinstance(message, Mapping) and "role" in message for message in messages[:3]):
        return None
    return "messages with roles, and choices" if _choices(record) is not None else "messages with roles"


def episodes(record: Mapping[str, Any], name: str, fields: Fields) -> Iterator[LoggedEpisode]:
    """See `formats.Format`."""
    request, choices = _request(record), _choices(record)
    known = {"tools": told_tools(arrow(request["messages"]), request, record), **fields.read(record)}
    within = (one for one in record.values() if isinstance(one, Mapping) and one.keys() & _PARAMETERS)
    messages = with_system(request["messages"], fields.ignored, request, record, *within)
    if choices is None:
        _check_answer(record, messages[-1], fields)
        yield LoggedEpisode(name, conversation(messages, fields.ignored), **known)
        return
    if not isinstance(choices, list) or not choices:
        raise DataError("choices: wanted a list with at least one choice")
    for number, choice in enumerate(choices):
        message = choice.get("message") if isinstance(choice, Mapping) else None
        if not isinstance(message, Mapping):
            raise DataError(f"choice {number}: it has no message (a part of a stream cannot be read alone)")
        if message.get("role") not in (None, "assistant"):
            raise DataError(f"choice {number}: role: got {message['role']!r:.60}, wanted assistant")
        tokens = _tokens(record, choice)
        place = name if len(choices) == 1 else f"{name}/{number}"
        said = conversation([*messages, {**message, "role": "assistant"}], fields.ignored)
        episode = LoggedEpisode(place, said, **known)
        turns = (*(None for _ in range(episode.turns - 1)), tokens) if tokens is not None else ()
        yield replace(episode, cut=choice.get("finish_reason") == "length", tokens=turns, choice=number)


def _request(record: Mapping[str, Any]) -> Mapping[str, Any]:
    request = record.get("request")
    return request if isinstance(request, Mapping) else record


def _check_answer(record: Mapping[str, Any], last: Any, fields: Fields) -> None:
    """Raise DataError where the turn that follows the messages may be in the record, in a form that is not read."""
    for name in ("response", "output", "completion"):
        if record.get(name) and name not in fields.ignored and last.get("role") != "assistant":
            raise DataError(
                f"{name}: got {brief(record[name])}, wanted an object with choices; it may be the turn that follows "
                f"the messages. Put it there, or pass it over with log.ignore=[{name}]"
            )


def _tokens(record: Mapping[str, Any], choice: Mapping[str, Any]) -> TurnTokens | None:
    """Return the ids of a choice, as vLLM gives them with `return_token_ids` and `logprobs`."""
    response = record.get("response")
    prompt = (response if isinstance(response, Mapping) else record).get("prompt_token_ids")
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    logps = [token.get("logprob") for token in content] if isinstance(content, list) else None
    return turn_tokens(prompt, choice.get("token_ids"), logps)


def _choices(record: Mapping[str, Any]) -> Any:
    response = record.get("response")
    if isinstance(response, Mapping) and "choices" in response:
        return response["choices"]
    return record.get("choices")
