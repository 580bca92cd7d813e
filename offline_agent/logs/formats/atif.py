"""ATIF, Harbor's Agent Trajectory Interchange Format, versions 1.0 to 1.8: one object of steps a trajectory.

An agent's step is its turn and, as `observation.results`, what its tools answered. Steps with `is_copied_context`
repeat an earlier trajectory and are no part of the conversation that the agent saw then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from offline_agent.errors import DataError
from offline_agent.logs.conversation import conversation
from offline_agent.logs.episode import Fields, LoggedEpisode
from offline_agent.logs.messages import schemas
from offline_agent.logs.tokens import TurnTokens, turn_tokens

NAME = "atif"


def recognised(record: Mapping[str, Any]) -> str | None:
    """See `formats.Format`."""
    version = record.get("schema_version")
    if isinstance(version, str) and version.startswith("ATIF-") and isinstance(record.get("steps"), list):
        return f"schema_version {version}"
    return None


def episodes(record: Mapping[str, Any], name: str, fields: Fields) -> Iterator[LoggedEpisode]:
    """See `formats.Format`."""
    if not str(record["schema_version"]).startswith("ATIF-v1."):
        raise DataError(f"schema_version: got {record['schema_version']!r:.60}, read are ATIF-v1.0 to ATIF-v1.8")
    messages: list[dict[str, Any]] = []
    tokens: list[TurnTokens | None] = []
    for number, step in enumerate(record["steps"]):
        try:
            found = _messages(step)
            messages += found
            if found and found[0]["role"] == "assistant":
                tokens.append(_tokens(step.get("metrics")))
        except DataError as error:
            raise DataError(f"step {number}: {error}") from error
    agent, extra = record.get("agent"), record.get("extra")
    tools = agent.get("tool_definitions") if isinstance(agent, Mapping) else None
    told = {**(extra if isinstance(extra, Mapping) else {}), **record}
    known = tuple(tokens) if any(tokens) else ()
    yield LoggedEpisode(name, conversation(messages), schemas(tools), **fields.read(told), tokens=known)


def _tokens(metrics: Any) -> TurnTokens | None:
    if not isinstance(metrics, Mapping):
        return None
    return turn_tokens(metrics.get("prompt_token_ids"), metrics.get("completion_token_ids"), metrics.get("logprobs"))


_ROLES = {"system": "system", "user": "user", "agent": "assistant"}


def _messages(step: Any) -> list[dict[str, Any]]:
    source = step.get("source") if isinstance(step, Mapping) else None
    if source not in _ROLES:
        raise DataError(f"source: got {source!r:.60}, allowed: {', '.join(_ROLES)}")
    if step.get("is_copied_context"):
        return []
    message: dict[str, Any] = {"role": _ROLES[source], "content": step.get("message")}
    observation = step.get("observation")
    results = observation.get("results") if isinstance(observation, Mapping) else None
    if source != "agent":  # a system's step may be the answer to what it says
        return [message, *({"role": "user", "content": _content(result)} for result in results or ())]
    if step.get("reasoning_content"):
        message["reasoning_content"] = step["reasoning_content"]
    calls = step.get("tool_calls") or []
    if not isinstance(calls, list):
        raise DataError(f"tool_calls: got {calls!r:.60}, wanted a list")
    message["tool_calls"] = [_call(call) for call in calls]
    answers = []
    for result in results or ():
        id = result.get("source_call_id") if isinstance(result, Mapping) else None
        answer = {"role": "tool" if calls else "user", "content": _content(result)}
        answers.append(answer if id is None else {**answer, "tool_call_id": id})
    return [message, *answers]


def _call(call: Any) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        raise DataError(f"a tool call: got {call!r:.60}, wanted an object")
    function = {"name": call.get("function_name"), "arguments": call.get("arguments")}
    return {"id": call.get("tool_call_id"), "function": function}


def _content(result: Any) -> Any:
    content = result.get("content") if isinstance(result, Mapping) else None
    if content is None:
        raise DataError("an observation's result without content; what a sub-agent did is not read from its reference")
    return content
