"""ATIF, Harbor's Agent Trajectory Interchange Format, versions 1.0 to 1.8: one object of steps a trajectory.

An agent's step is its turn and, as `observation.results`, what its tools answered. Steps with `is_copied_context`
repeat an earlier trajectory and are no part of the conversation that the agent saw then.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from offline_agent import __version__
from offline_agent.errors import DataError, located
from offline_agent.formats.row import ALL, Export, ExportRow, Part
from offline_agent.logs.conversation import conversation
from offline_agent.logs.episode import Fields, LoggedEpisode, TurnTokens, at, inner, turn_tokens
from offline_agent.messages import schemas, write
from offline_agent.rendering.columns import starts_of

NAME = "atif"
_ROLES = {"system": "system", "user": "user", "agent": "assistant"}


def recognised(record: Mapping[str, Any]) -> str | None:
    """See `formats.Format`."""
    version = record.get("schema_version")
    if isinstance(version, str) and version.startswith("ATIF-") and isinstance(record.get("steps"), list):
        return f"schema_version {version}"
    return None


def read(record: Mapping[str, Any], name: str, fields: Fields) -> Iterator[LoggedEpisode]:
    """See `formats.Format`."""
    if not str(record["schema_version"]).startswith("ATIF-v1."):
        raise DataError(f"schema_version: got {record['schema_version']!r:.60}, read are ATIF-v1.0 to ATIF-v1.8")
    messages: list[dict[str, Any]] = []
    tokens: list[TurnTokens | None] = []
    for number, step in enumerate(record["steps"]):
        with located(f"step {number}"):
            found = _messages(step)
            messages += found
            if found and found[0]["role"] == "assistant":
                metrics = inner(step, "metrics")
                ids, sampled = metrics.get("prompt_token_ids"), metrics.get("completion_token_ids")
                tokens.append(turn_tokens(ids, sampled, metrics.get("logprobs")))
    tools = schemas(at(record, "agent.tool_definitions"))
    known = fields.read({**inner(record, "extra"), **record})
    yield LoggedEpisode(name, conversation(messages), tools, **known, tokens=tuple(tokens) if any(tokens) else ())


def _messages(step: Any) -> list[dict[str, Any]]:
    source = at(step, "source")
    if source not in _ROLES:
        raise DataError(f"source: got {source!r:.60}, allowed: {', '.join(_ROLES)}")
    if step.get("is_copied_context"):
        return []
    message: dict[str, Any] = {"role": _ROLES[source], "content": step.get("message")}
    results = at(step, "observation.results") or ()
    if source != "agent":  # a system's step may be the answer to what it says
        return [message, *({"role": "user", "content": _content(result)} for result in results)]
    if step.get("reasoning_content"):
        message["reasoning_content"] = step["reasoning_content"]
    calls = step.get("tool_calls") or []
    if not isinstance(calls, list):
        raise DataError(f"tool_calls: got {calls!r:.60}, wanted a list")
    message["tool_calls"] = [_call(call) for call in calls]
    answers = []
    for result in results:
        id = at(result, "source_call_id")
        answer = {"role": "tool" if calls else "user", "content": _content(result)}
        answers.append(answer if id is None else {**answer, "tool_call_id": id})
    return [message, *answers]


def _call(call: Any) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        raise DataError(f"a tool call: got {call!r:.60}, wanted an object")
    function = {"name": call.get("function_name"), "arguments": call.get("arguments")}
    return {"id": call.get("tool_call_id"), "function": function}


def _content(result: Any) -> Any:
    content = at(result, "content")
    if content is None:
        raise DataError("an observation's result without content; what a sub-agent did is not read from its reference")
    return content


def document(row: ExportRow) -> Iterator[Mapping[str, Any]]:
    """Yield the trajectory; a turn's metrics have its token ids and their log-probabilities where the run has them."""
    facts = row.row
    sources = {role: source for source, role in _ROLES.items()}
    steps: list[dict[str, Any]] = []
    for message in write(row.messages("messages", anew=True)):
        if message["role"] == "tool":
            result = {"source_call_id": message["tool_call_id"], "content": message["content"]}
            steps[-1].setdefault("observation", {"results": []})["results"].append(result)
            continue
        step = {"step_id": len(steps) + 1, "source": sources[message["role"]], "message": message.get("content") or ""}
        if message.get("reasoning_content"):
            step["reasoning_content"] = message["reasoning_content"]
        if calls := message.get("tool_calls"):
            step["tool_calls"] = [
                {"tool_call_id": call["id"], "function_name": call["function"]["name"],
                 "arguments": json.loads(call["function"]["arguments"])}
                for call in calls
            ]  # fmt: skip
        steps.append(step)
    if facts.get("input_ids") is not None and facts.get("action_mask") is not None:
        turns, metrics = [step for step in steps if step["source"] == "agent"], list(_metrics(facts))
        if len(turns) != len(metrics):
            raise DataError("its mask has more or fewer spans than its messages have turns")
        for step, found in zip(turns, metrics, strict=True):
            step["metrics"] = found
    verdict = facts["verdict"]
    told = {"reward": facts["reward"], "success": facts["success"], "verdict": verdict and json.loads(verdict)}
    yield {
        "schema_version": "ATIF-v1.7",
        "session_id": row.name,
        "agent": {"name": "offline_agent", "version": __version__, "tool_definitions": row.tools},
        "steps": steps,
        "extra": {
            **{name: facts[name] for name in ("task_id", "split", "origin")},
            **{name: value for name, value in told.items() if value is not None},
        },
    }


def _metrics(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the metrics of each turn, which is a span of the mask; its prompt begins where its sequence does."""
    ids, mask, logps = row["input_ids"], row["action_mask"], row.get("logps")
    starts = (0, *starts_of(row, "sequence"))
    for start in range(len(ids)):
        if not mask[start] or (start and mask[start - 1]):
            continue
        end = next((place for place in range(start, len(ids)) if not mask[place]), len(ids))
        begin = max(place for place in starts if place <= start)
        made = {"prompt_token_ids": ids[begin:start], "completion_token_ids": ids[start:end]}
        made |= {"prompt_tokens": start - begin, "completion_tokens": end - start}
        yield made if logps is None else {**made, "logprobs": logps[start:end]}


EXPORT = Export(
    about="ATIF 1.7 (Harbor): trajectories, failures included, with token ids and log-probabilities",
    parts=(Part("trajectories.jsonl", ALL, document),),
    load="""\
```bash
python -m offline_agent.pipelines.import_logs source=trajectories.jsonl run_dir=runs/logs     # reads them back
```""",
    trains="Nothing by itself: it is for exchange. `completion_token_ids` of each step were sampled by the policy.",
    lost="Pairs and trees (`import_logs` makes them of trajectories again); certificates. `import_logs` takes "
    "`success` for the outcome where there is one, and does not read that an episode was cut.",
)
