"""OpenHands: events of actions and observations, of its evaluations (`output.jsonl`) or of one conversation.

Two generations: actions with `tool_call_metadata`, which has the model's own message, and since the software agent SDK
events with a `kind`. A turn's calls are several events with one id of the response. Events that say how the scaffold is
doing are passed over, others that are not known refused (`log.ignore=[KIND]` passes over them, too); so is a
condensation, since the model then read another history than the events tell. `TokenEvent` has the ids of a turn.

Definitions: All-Hands-AI/OpenHands, openhands/events/serialization/event.py at 04e2840, openhands/events/tool.py at
6fa8b5a, evaluation/utils/shared.py at 000d9da; OpenHands/software-agent-sdk, openhands-sdk/openhands/sdk/event/
llm_convertible/ at 17555e4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from offline_agent.errors import DataError, located
from offline_agent.formats.agents.reader import Reader, as_openai, call, first
from offline_agent.logs.episode import Fields, LoggedEpisode, TurnTokens, at, inner, turn_tokens
from offline_agent.messages import brief

_SILENT = ("null", "recall", "change_agent_state", "agent_state_changed", "condensation_request", "loop_recovery")
_WORDS = "what the scaffold adds to observations and prompts: working directory, exit code, recalled knowledge"
_CALLED = ("ObservationEvent", "AgentErrorEvent", "UserRejectObservation")
_QUIET = ("CondensationRequest", "ConversationStateUpdateEvent", "HookExecutionEvent", "InterruptEvent",
          "LLMCompletionLogEvent", "PauseEvent", "StreamingDeltaEvent", "TokenEvent")  # fmt: skip
_SPOKEN = ("SystemPromptEvent", "MessageEvent", "ActionEvent", *_CALLED)


def is_event(value: Any) -> bool:
    """Return whether a value is an event."""
    if not isinstance(value, Mapping) or "source" not in value:
        return False
    return {"action", "args"} <= value.keys() or {"observation", "content"} <= value.keys() or (
        str(value.get("kind")) in _SPOKEN
    )


def _events(record: Mapping[str, Any]) -> list[Any]:
    """Return the events of a record; of older evaluations, pairs of an action and what was observed."""
    history = record.get("history")
    if not isinstance(history, list):
        return []
    pairs = all(isinstance(one, list) for one in history)
    return [event for one in history for event in one] if pairs else history


def _recognised(record: Mapping[str, Any]) -> str | None:
    events = _events(record)
    return "a history of events" if events and any(map(is_event, events[:3])) else None


def _read(record: Mapping[str, Any], name: str, fields: Fields) -> Iterator[LoggedEpisode]:
    if record.get("error"):
        raise DataError(f"the run ended in an error, so it is no attempt: {str(record['error'])[:100]}")
    messages: list[dict[str, Any]] = []
    turns: dict[Any, dict[str, Any]] = {}  # by the id of the response
    tools = None
    ids: dict[int, TurnTokens | None] = {}  # by the number of the turn
    events = _events(record)
    for number, event in enumerate(events):
        with located(f"event {number}"):
            if not isinstance(event, Mapping):
                raise DataError(f"got {brief(event)}, wanted an object with action, observation or kind")
            tools = tools or at(event, "args.tools")
            if event.get("kind") not in (None, *fields.ignore):
                messages += _sdk(event, turns)
            elif "kind" not in event:
                messages += _older(event, turns)
            if event.get("kind") == "TokenEvent":  # it follows its turn
                turn = sum(message["role"] == "assistant" for message in messages) - 1
                ids[turn] = turn_tokens(event.get("prompt_token_ids"), event.get("response_token_ids"))
    left = None if any("kind" in event for event in events) else _WORDS
    facts = {key: value for key, value in record.items() if key not in ("history", "instance", "metadata", "metrics")}
    told = {**facts, "messages": messages, "tools": tools or record.get("tools")}
    for episode in as_openai(told, name, fields, left, outcome="test_result.report.resolved"):
        yield replace(episode, tokens=tuple(map(ids.get, range(episode.turns))) if ids else ())


def _older(event: Mapping[str, Any], turns: dict[Any, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what an event adds to the conversation."""
    kind, meta = first(event, ("action", "observation")), inner(event, "tool_call_metadata")
    if not isinstance(kind, str):
        raise DataError(f"action, observation: got {kind!r:.60}, wanted its name")
    if kind == "condensation":
        raise DataError("condensation: from here the model read a summary, so the events are not what it read")
    if "observation" in event and meta:
        return [{"role": "tool", "tool_call_id": meta.get("tool_call_id"), "content": event.get("content")}]
    if kind in _SILENT:
        return []
    if meta:
        response = inner(meta, "model_response")
        said = at((response.get("choices") or [None])[0], "message")
        if not isinstance(said, Mapping):
            raise DataError("tool_call_metadata.model_response: no choice with a message, so what was sampled is lost")
        keys = ("role", "content", "tool_calls", "reasoning_content", "thinking_blocks")
        made = {key: said[key] for key in keys if key in said}
        if turns.setdefault(response.get("id") or meta.get("tool_call_id"), made) is not made:
            return []  # another call of that turn
        return [made]
    if kind in ("message", "system"):
        if at(event, "args.image_urls"):
            raise DataError("args.image_urls: only text can be read")
        role = "system" if kind == "system" else "assistant" if event.get("source") == "agent" else "user"
        return [{"role": role, "content": at(event, "args.content")}]
    if "observation" in event:
        return [{"role": "user", "content": event.get("content")}]
    raise DataError(f"action {kind!r:.60} without tool_call_metadata: what the model wrote for it is not in the log")


def _sdk(event: Mapping[str, Any], turns: dict[Any, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what an event of the software agent SDK adds to the conversation."""
    kind, id = event["kind"], event.get("tool_call_id")
    more = event.get("extended_content") or []
    if str(kind).startswith("Condensation") and kind != "CondensationRequest":
        raise DataError(f"{kind}: from here the model read a summary, so the events are not what it read")
    if kind == "SystemPromptEvent":
        return [{"role": "system", "content": at(event, "system_prompt.text")}]
    if kind == "MessageEvent":
        said = inner(event, "llm_message")
        keys = ("role", "content", "reasoning_content", "thinking_blocks")
        return [{**{key: said.get(key) for key in keys}, "content": _parts(said.get("content")) + more}]
    if kind == "ActionEvent":
        function = inner(event, "tool_call")
        made = call(function.get("name"), function.get("arguments"), id)
        turn = turns.get(event.get("llm_response_id") or id)
        if turn is not None:
            turn["tool_calls"].append(made)
            return []
        turn = {"role": "assistant", "content": event.get("thought"), "tool_calls": [made]}
        turn |= {key: event[key] for key in ("reasoning_content", "thinking_blocks") if event.get(key)}
        turns[event.get("llm_response_id") or id] = turn
        return [turn]
    if kind in _CALLED:
        places = ("observation.content", "observation.output", "error", "rejection_reason")
        said = first(event, places[:2]) if kind == "ObservationEvent" else first(event, places[2:])
        return [{"role": "tool", "tool_call_id": id, "content": _parts(said) + more if more else said}]
    if kind not in _QUIET:
        raise DataError(f"kind: got {kind!r:.60}, read are {', '.join(_SPOKEN)}; others pass with log.ignore=[KIND]")
    return []


def _parts(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [] if content is None else [content]


READERS = (Reader("openhands", _recognised, _read),)
