"""ATIF 1.7, Harbor's Agent Trajectory Interchange Format: one document a line, failures included."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from offline_agent import __version__
from offline_agent.export.format import ALL, ExportRow, Format, Part, Unfit
from offline_agent.export.messages import wire

_SOURCES = {"system": "system", "user": "user", "assistant": "agent"}


def document(row: ExportRow) -> Iterator[Mapping[str, Any]]:
    """Yield the trajectory; a turn's metrics have its token ids and their log-probabilities where the run has them."""
    facts = row.row
    metrics = _metrics(facts)
    steps: list[dict[str, Any]] = []
    for message in wire(row.messages("messages")):
        if message["role"] == "tool":
            result = {"source_call_id": message["tool_call_id"], "content": message["content"]}
            steps[-1].setdefault("observation", {"results": []})["results"].append(result)
            continue
        step: dict[str, Any] = {"step_id": len(steps) + 1, "source": _SOURCES[message["role"]]}
        step["message"] = message.get("content") or ""
        if step["source"] == "agent":
            if message.get("reasoning_content"):
                step["reasoning_content"] = message["reasoning_content"]
            if calls := message.get("tool_calls"):
                step["tool_calls"] = [_call(call) for call in calls]
            if metrics is not None:
                step["metrics"] = next(metrics, None)
                if step["metrics"] is None:
                    raise Unfit("its messages have more turns than its mask has spans")
        steps.append(step)
    if metrics is not None and next(metrics, None) is not None:
        raise Unfit("its mask has more spans than its messages have turns")
    yield {
        "schema_version": "ATIF-v1.7",
        "session_id": row.name,
        "agent": {"name": "offline_agent", "version": __version__, "tool_definitions": row.tools},
        "steps": steps,
        "extra": {
            "task_id": facts["task_id"], "split": facts["split"], "origin": facts["origin"],
            **({} if facts["reward"] is None else {"reward": facts["reward"]}),
            **({} if facts["success"] is None else {"success": facts["success"]}),
            **({} if facts["verdict"] is None else {"verdict": json.loads(facts["verdict"])}),
        },
    }  # fmt: skip


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = json.loads(function["arguments"])
    return {"tool_call_id": call["id"], "function_name": function["name"], "arguments": arguments}


def _metrics(row: Mapping[str, Any]) -> Iterator[dict[str, Any]] | None:
    """Return the metrics of each turn, in order; None where the row has no ids."""
    ids, mask, logps = row.get("input_ids"), row.get("action_mask"), row.get("logps")
    if ids is None or mask is None:
        return None
    return _spans(ids, mask, logps)


def _spans(ids: list[int], mask: list[int], logps: list[float] | None) -> Iterator[dict[str, Any]]:
    start = 0
    while start < len(ids):
        if not mask[start]:
            start += 1
            continue
        end = start
        while end < len(ids) and mask[end]:
            end += 1
        made: dict[str, Any] = {"prompt_token_ids": ids[:start], "completion_token_ids": ids[start:end]}
        made |= {"prompt_tokens": start, "completion_tokens": end - start}
        if logps is not None:
            made["logprobs"] = logps[start:end]
        yield made
        start = end


FORMAT = Format(
    about="ATIF 1.7 (Harbor): trajectories, failures included, with token ids and log-probabilities",
    parts=(Part("trajectories.jsonl", ALL, document),),
    load="""\
```bash
python -m offline_agent.pipelines.import_logs source=trajectories.jsonl run_dir=runs/logs     # reads them back
```""",
    trains="Nothing by itself: it is for exchange. `completion_token_ids` of each step were sampled by the policy.",
    lost="Pairs and trees (`import_logs` makes them of trajectories again); certificates; criticality.",
)
