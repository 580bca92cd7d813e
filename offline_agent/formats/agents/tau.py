"""Results of tau-bench and tau2-bench: the agent is the policy, and what the simulated user does is the environment's.

tau2 has the policy's text apart from the messages: it is their system message here. The user's own calls of tools, with
their results, are no part of what the agent read. The greeting before the user's first words is written by no model.

Definitions: sierra-research/tau-bench, tau_bench/types.py and run.py at 01ed5e3; sierra-research/tau2-bench,
src/tau2/data_model/{message,simulation}.py and src/tau2/environment/environment.py at a2c0247.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from offline_agent.errors import DataError, located
from offline_agent.formats.agents.reader import Reader, as_openai, call, first
from offline_agent.logs.episode import Fields, LoggedEpisode, at, has_objects, inner
from offline_agent.logs.files import Record
from offline_agent.messages import brief

_NO_ATTEMPT = ("infrastructure_error", "unexpected_error", "user_error")
_WORDS = "the words around the policy in the agent's system prompt, the greeting that no model wrote, the user's calls"
_NO_POLICY = f"the policy, which is not in the file; {_WORDS}"


def parts(record: Record) -> Iterator[Record]:
    """Yield the simulations of a file of tau2's results; another record as it is."""
    value = record.value
    if not isinstance(value, Mapping) or not has_objects(value.get("simulations"), "task_id"):
        yield record
        return
    for one in value["simulations"]:
        told = f"{at(one, 'task_id')}/{at(one, 'trial')}"
        facts = inner(value, "info.environment_info")
        yield Record(f"{record.name}:{told}", {**one, "environment_info": facts} if isinstance(one, Mapping) else one)


def _tau(record: Mapping[str, Any]) -> str | None:
    return "traj, reward and task_id" if {"traj", "reward", "task_id"} <= record.keys() else None


def _read_tau(record: Mapping[str, Any], name: str, fields: Fields) -> Iterator[LoggedEpisode]:
    if error := at(record, "info.error"):
        raise DataError(f"the run ended in an exception, so its reward is no outcome: {str(error)[:100]}")
    yield from as_openai({**record, "messages": record["traj"]}, name, fields)


def _tau2(record: Mapping[str, Any]) -> str | None:
    known = {"messages", "task_id", "termination_reason"} <= record.keys()
    return "a simulation with messages and termination_reason" if known else None


def _read_tau2(record: Mapping[str, Any], name: str, fields: Fields) -> Iterator[LoggedEpisode]:
    reason = record["termination_reason"]
    if reason in _NO_ATTEMPT:
        raise DataError(f"termination_reason: {reason}: the simulation failed, so its reward is no outcome")
    given = record["messages"]
    if not isinstance(given, list):
        raise DataError(f"messages: got {brief(given)}, wanted a list (ticks of voice are not read)")
    messages = [made for number, one in enumerate(given) for made in _messages(one, number)]
    start = int(bool(messages) and at(messages[0], "role") == "assistant" and not at(messages[0], "tool_calls"))
    policy = first(record, ("policy", "environment_info.policy"))
    system = [] if policy is None or at(given[0] if given else None, "role") == "system" else [
        {"role": "system", "content": policy}]  # fmt: skip
    tools = [{"name": key, "description": at(tool, "doc"), "parameters": at(tool, "params")}
             for key, tool in inner(record, "environment_info.tool_defs").items()]  # fmt: skip
    told = {**record, "messages": [*system, *messages[start:]], "tools": tools or record.get("tools")}
    yield from as_openai(told, name, fields, _NO_POLICY if policy is None else _WORDS, outcome="reward_info.reward")


def _messages(given: Any, number: int) -> Iterator[Any]:
    """Yield a message in OpenAI's form; the results of several calls as one each; nothing of what the user's calls
    say.
    """
    if not isinstance(given, Mapping):
        yield given
    elif has_objects(given.get("tool_messages"), "role"):
        for one in given["tool_messages"]:
            yield from _messages(one, number)
    elif given.get("is_audio"):
        with located(f"message {number}"):
            raise DataError("is_audio: only text can be read")
    elif given.get("role") == "tool":
        if given.get("requestor", "assistant") == "assistant":
            yield {"role": "tool", "tool_call_id": given.get("id"), "content": given.get("content")}
    elif given.get("role") != "user":
        calls = [call(at(one, "name"), at(one, "arguments"), at(one, "id")) for one in given.get("tool_calls") or ()]
        yield {"role": given.get("role"), "content": given.get("content"), **({"tool_calls": calls} if calls else {}),
               "reasoning_content": at(given, "raw_data.message.reasoning_content")}  # fmt: skip
    elif given.get("content") is not None or not given.get("tool_calls"):
        yield {"role": "user", "content": given.get("content")}


READERS = (Reader("tau_bench", _tau, _read_tau), Reader("tau2", _tau2, _read_tau2))
