"""Logs of agents, tracers and benchmarks: what they write is read whole, and what is damaged is named."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from offline_agent import formats
from offline_agent.errors import DataError
from offline_agent.formats import FORMATS, agents, recognise
from offline_agent.logs.episode import Fields, LoggedEpisode, TurnTokens
from offline_agent.logs.files import Record
from offline_agent.logs.sessions import Outcomes
from offline_agent.pipelines import import_logs
from offline_agent.store.columns import known
from offline_agent.store.tables import read_table
from tests.helpers import log_writers
from tests.helpers.agent_log_writers import AGENT_WRITERS
from tests.helpers.log_damage import put
from tests.helpers.log_writers import TOOLS, Spoken, Turn, atif, spoken

ALSO = {"openinference": "opentelemetry", "autogen": "langchain"}
"""Formats that would take a record, too, if those that say more were not asked first; `openai` takes several."""


@pytest.mark.parametrize("format", AGENT_WRITERS)
def test_three_hundred_logs_come_in_with_nothing_lost_and_nothing_invented(format: str, tmp_path: Path) -> None:
    rng = random.Random(7)
    said = [spoken(rng, number) for number in range(300)]
    path = tmp_path / "log.jsonl"
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(AGENT_WRITERS[format](one, rng)) + "\n" for one in said)
    records = list(formats.records(path))
    assert len(records) == 300
    for one, record in zip(said, records, strict=True):
        known = [name for name in FORMATS if recognise(record.value, {name: FORMATS[name]})]
        name, _ = recognise(record.value) or ("", "")
        assert name == format.partition("-")[0] or (format, name) == ("ai_sdk_model", "openai")  # it has no calls
        assert set(known) <= {name, "openai", ALSO.get(name)}
        (episode,) = FORMATS[name].read(record.value, record.name, Fields())
        assert list(episode.messages) == one.expected()
        assert list(episode.tools) == TOOLS
        assert (episode.task, episode.session, episode.success) == (one.task, one.session, one.success)
        assert LoggedEpisode.from_json(json.loads(json.dumps(episode.to_json()))) == episode


# -- damage ------------------------------------------------------------------------------------------------------------

ONE = Spoken("be", "go", [Turn("I look", [("search", {"q": 1})], ["found"]), Turn("done")], "t1", "s1", True)
TWO = Spoken(None, "go", [Turn("", [("search", {}), ("open", {})], ["a", "b"]), Turn("done")], "t1", "s1", True)
DAMAGES = {
    "opentelemetry": [
        ("attributes/gen_ai.input.messages/0/role", "oracle", "role: got 'oracle', allowed: system"),
        ("attributes/gen_ai.input.messages/0/parts", "x", "message 0: parts: got str 'x', wanted a list"),
        ("attributes/gen_ai.input.messages/0/parts/0/type", "blob", "a part of type 'blob'; only text can be read"),
        ("attributes/gen_ai.input.messages", None, "did not capture what was said"),
        ("attributes/gen_ai.input.messages", "[{", "gen_ai.input.messages: no JSON"),
        ("attributes/gen_ai.output.messages", {}, "gen_ai.output.messages: got dict {}, wanted a list"),
        ("status", {"status_code": "ERROR"}, "the call ended in an error"),
        ("attributes/gen_ai.tool.definitions", [{"type": "function"}], "tool 0: got dict"),
    ],
    "opentelemetry-numbered": [
        ("attributes/gen_ai.prompt.1.role", "oracle", "message 1: role: got 'oracle', allowed: system"),
        ("attributes/gen_ai.prompt.2.tool_calls.0.arguments", "{", "the arguments of search: no JSON"),
        ("attributes/gen_ai.completion.0.finish_reason", "content_filter", "finish_reason: content_filter: what the"),
    ],
    "openinference": [
        ("attributes/llm.input_messages/0/message.role", 3, "message 0: role: got 3, allowed"),
        ("attributes/llm.input_messages/0", "x", "input_messages 0: got str 'x', wanted an object"),
        ("attributes/llm.output_messages", [], "did not capture what was said"),
        ("status_code", "ERROR", "the call ended in an error"),
    ],
    "langchain": [
        ("messages/2/type", "remove", "message 2: type: got 'remove', allowed: human, ai"),
        ("messages/2/invalid_tool_calls", [{"args": "{"}], "message 2: invalid_tool_calls: arguments that are no JSON"),
        ("messages/2/tool_calls/0/args", [1], "the arguments of search: got list [1], wanted an object"),
        ("messages/3/tool_call_id", "z", "tool_call_id 'z' is of no call before it"),
    ],
    "langsmith": [
        ("error", "RateLimit", "the call ended in an error: RateLimit"),
        ("inputs", {"prompts": ["go"]}, "the input of a call: got NoneType None, wanted messages"),
        ("outputs", "{", "outputs: no JSON"),
        ("outputs", {}, "type: got None, allowed: human"),
    ],
    "langfuse": [
        ("level", "ERROR", "the call ended in an error"),
        ("input", "go", "the input of a call: got str 'go', wanted messages"),
        ("output", None, "choice 0: it has no message"),
    ],
    "swe_agent": [
        ("history/4/is_demo", True, "after a turn that is to be learnt"),
        ("history/2", "x", "message 2: it: no JSON"),
        ("history", {}, "history: got dict {}"),
    ],
    "mini_swe_agent": [
        ("trajectory_format", "mini-swe-agent-2", "got 'mini-swe-agent-2', read are mini-swe-agent-1, mini-swe-agent-"),
        ("messages/2/tool_calls/0/function/arguments", "{", "the arguments of search: no JSON"),
        ("messages/3/object", "x", None), ("messages/2/role", None, "message 2: role: got None"),
    ],
    "openhands": [
        ("error", "timed out", "the run ended in an error, so it is no attempt: timed out"),
        ("history/0/action", "condensation", "event 0: condensation: from here the model read a summary"),
        ("history/3/tool_call_metadata/model_response/id", None, None),
        ("history/3/tool_call_metadata", None, "event 3: action 'run' without tool_call_metadata"),
        ("history/4/tool_call_metadata", None, "the turn before it called search, and no result came"),
        ("history/2/args/image_urls", ["u"], "event 2: args.image_urls: only text"),
        ("history/2", "x", "event 2: got str 'x', wanted an object"),
    ],
    "openhands-sdk": [
        ("history/1", {"kind": "Condensation"}, "event 1: Condensation: from here the model read a summary"),
        ("history/3/tool_call_id", "z", "tool_call_id 'z' is of no call before it"),
        ("history/2/llm_response_id", None, None),
        ("history/1/kind", "OtherEvent", "event 1: kind: got 'OtherEvent', read are SystemPromptEvent"),
        ("history/2/tool_call/arguments", "[1]", "the arguments of search: got list [1], wanted an object"),
    ],
    "tau_bench": [
        ("info", {"error": "boom"}, "the run ended in an exception, so its reward is no outcome: boom"),
        ("reward", 7, "reward: got 7, wanted an outcome"),
    ],
    "tau2": [
        ("simulations/0/termination_reason", "infrastructure_error", "so its reward is no outcome"),
        ("simulations/0/messages", None, "messages: got NoneType None, wanted a list (ticks of voice are not read)"),
        ("simulations/0/messages/1/is_audio", True, "message 1: is_audio: only text can be read"),
        ("simulations/0/reward_info/reward", "good", "reward_info.reward: got 'good', wanted an outcome"),
    ],
    "smolagents": [
        ("steps/2/observations_images", ["x"], "step 2: got dict"), ("steps/2", {}, "step 2: got dict {}, wanted a"),
        ("steps/3/model_output", None, "step 3: the model gave no output"),
    ],
    "gemini_cli": [
        ("history/0/role", "oracle", "content 0: got dict"), ("history/1/parts", "x", "wanted an object with parts"),
        ("history/0/parts", [{"inlineData": {}}], "content 0: a part of dict {'inlineData': {}}"),
        ("history/2/parts/0/functionResponse/id", "z", "tool_call_id 'z' is of no call before it"),
    ],
    "ai_sdk": [
        ("messages/1/parts/0/type", "file", "message 1: a part of type 'file'; only text can be read, of"),
        ("messages/1/parts/2/toolCallId", "z", None),
        ("messages/1/parts/2/providerExecuted", True, "message 1: a part of type"),
        ("messages/1/parts/2/output", None, "a message follows a call whose result did not come"),
    ],
    "ai_sdk_model": [("messages/2/content/0/toolCallId", "z", "tool_call_id 'z' is of no call before it")],
    "bedrock": [
        ("request/messages/1/content/0", {"image": {}}, "message 1: a part of type 'image'; only text can be read"),
        ("request/messages/2/content/0/toolResult/content", [{"image": {}}], "only text can be read"),
        ("request/messages/1/content/1/toolUse/input", [1], "the arguments of search: got list [1], wanted an object"),
    ],
    "pydantic_ai": [
        ("messages/1/parts/0/part_kind", "file", "message 1: a part of type 'file'; only text can be read"),
        ("messages/1/parts/1/args", "{", "the arguments of search: no JSON"),
    ],
    "opencode": [("messages/1/parts/1/type", "compaction", "message 1: a part of type 'compaction'; only text")],
    "copilot": [("events/1/type", "session.compaction_complete", "message 1: a part of type 'session.compaction")],
    "autogen": [("messages/0/type", "HandoffMessage", "message 0: a part of type 'HandoffMessage'; only text")],
    "gemini_cli-session": [("messages/2/type", "oracle", "message 2: type: got 'oracle', allowed: user, gemini")],
}


@pytest.mark.parametrize("format", DAMAGES)
def test_damage_is_named(format: str) -> None:
    for place, value, said in DAMAGES[format]:
        record = next((one for one in _written(format) if _there(one, place)), next(_written(format)))
        put(record, place, value)
        if said is None:  # nothing of the conversation
            assert list(read(record)[0].messages) == ONE.expected()
            continue
        with pytest.raises(DataError, match=re.escape(said)):
            read(record)


def _written(format: str) -> Iterator[Any]:
    """Yield the same conversation in the forms that the format has."""
    return (AGENT_WRITERS[format](ONE, random.Random(seed)) for seed in range(20))


def _there(record: Any, place: str) -> bool:
    try:
        for part in place.split("/"):
            record = record[int(part) if part.isdigit() else part]
    except (LookupError, TypeError):
        return False
    return True


def read(value: Any, fields: Fields | None = None) -> list[LoggedEpisode]:
    """Return the episodes of a record, taken apart as a file's are."""
    records = agents.parts(Record("log:1", value))
    return [episode for record in records if (found := recognise(record.value)) is not None
            for episode in FORMATS[found[0]].read(record.value, record.name, fields or Fields())]  # fmt: skip


# -- calls that are linked, and outcomes apart -------------------------------------------------------------------------


def imported(folder: Path, *keys: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the summary and the trajectories of importing a folder."""
    keys = (f"source={folder}", f"run_dir={folder}-run", "tracking.uri=null", *keys)
    assert import_logs.main(import_logs.COMMAND, list(keys)) == 0
    run = Path(f"{folder}-run")
    rows = [known(row) for file in sorted((run / "trajectories").glob("*.parquet")) for row in read_table(file)]
    return json.loads((run / "summary.json").read_text()), rows


def _calls(one: Spoken) -> list[Spoken]:
    """Return the conversation as it was at each of its calls of the model."""
    return [replace(one, turns=one.turns[:number]) for number in range(1, len(one.turns) + 1)]


def _answered(one: Spoken) -> Spoken:
    """Return a conversation whose last turn has no results yet."""
    return replace(one, turns=[*one.turns[:-1], replace(one.turns[-1], results=[], reply=None)])


TRACES = {
    "opentelemetry": {"attributes": {"gen_ai.operation.name": "execute_tool"}, "name": "t", "trace_id": "s1"},
    "openinference": {"attributes": {"openinference.span.kind": "TOOL"}, "name": "t", "trace_id": "s1"},
    "langsmith": {"run_type": "chain", "trace_id": "s1", "inputs": {}, "feedback_stats": {"correct": {"avg": 1.0}}},
    "langfuse": {"type": "SPAN", "traceId": "s1", "input": None, "output": None},
}


@pytest.mark.parametrize("format", TRACES)
def test_the_calls_of_a_trace_are_one_episode_and_other_spans_are_counted(format: str, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    lines = [TRACES[format]]
    for call in _calls(ONE):
        lines.append(AGENT_WRITERS[format](_answered(call), random.Random(1)))
        for facts in (lines[-1], lines[-1].get("attributes", {})):
            facts.pop("success", None)
    if format != "langsmith":
        lines.append({"session_id": "s1", "success": True})
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary, rows = imported(folder)
    assert (summary["episodes"], summary["parts"], summary["judged"]) == (1, 1, 1)
    assert summary["without_conversation"] == 1 and not any(summary["quarantined"].values())
    assert [row["success"] for row in rows] == [True] and summary["level"] == "text"
    assert rows[0]["messages"] == ONE.expected()


def test_a_trace_of_mlflow_is_the_calls_of_its_models_in_their_own_dialect(tmp_path: Path) -> None:
    """Written by hand as `Trace.to_json` of mlflow 3.17.2 does, alone and as a row of `search_traces`."""

    def span(kind: str, given: Any, made: Any, code: str = "STATUS_CODE_OK") -> dict[str, Any]:
        told = {"spanType": kind, "spanInputs": given, "spanOutputs": made}
        attributes = {f"mlflow.{name}": json.dumps(value) for name, value in told.items()}
        return {"name": "s", "attributes": attributes, "status": {"code": code, "message": "late"}}

    spans = [span("AGENT", {"q": "go"}, "done"), span("CHAT_MODEL", {}, None, "STATUS_CODE_ERROR")]
    for one in _calls(ONE):
        told = log_writers.openai(_answered(one), random.Random(1))
        *given, last = told["messages"]
        choices = [{"index": 0, "message": last, "finish_reason": "stop"}]
        spans.append(span("LLM", {"messages": given, "tools": one.tools}, {"choices": choices}))
    told = [{"assessment_name": "correct", "feedback": {"value": True}, "valid": True},
            {"assessment_name": "correct", "feedback": {"value": False}, "valid": False},
            {"assessment_name": "wanted", "expectation": {"value": 3}, "valid": True}]  # fmt: skip
    info = {"trace_id": "tr-1", "trace_metadata": {"mlflow.trace.session": "s9"}, "assessments": told}
    trace = {"info": info, "data": {"spans": spans}}
    row = {"trace_id": "tr-1", "trace": json.dumps(trace), "spans": spans}
    for number, value in enumerate((trace, row)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "log.json").write_text(json.dumps(value))
        summary, rows = imported(folder)
        assert (summary["episodes"], summary["parts"], summary["judged"]) == (1, 1, 1)
        assert [(row["success"], row["messages"]) for row in rows] == [(True, ONE.expected())]
        assert summary["quarantined"]["logs"] == 1


def test_rows_of_nebius_have_their_target(tmp_path: Path) -> None:
    said = [("system", None, "Fix it."), ("user", "An issue.", None), ("ai", "Look.\n```\nls\n```", None),
            ("user", "a.py", None), ("ai", "```\nsubmit\n```", None)]  # fmt: skip
    told = [{"role": role, "text": text, "system_prompt": prompt, "mask": False, "cutoff_date": None}
            for role, text, prompt in said]  # fmt: skip
    (tmp_path / "log.json").write_text(json.dumps({"instance_id": "a__b-1", "target": True, "trajectory": told}))
    summary, rows = imported(tmp_path)
    (row,) = rows
    assert (row["task_id"], row["success"], summary["formats"]) == ("a__b-1", True, {"nebius": 1})
    assert [(one["role"], one["content"]) for one in row["messages"]] == [
        ({"ai": "assistant"}.get(role, role), text or prompt) for role, text, prompt in said
    ]  # fmt: skip
    told[2]["mask"] = True
    episode = next(iter(FORMATS["nebius"].read({"messages": told, "target": True}, "f:1", Fields())))
    assert not episode.messages[2]["train"]


def test_scores_of_langfuse_runs_of_langsmith_and_evaluations_of_spans_tell_the_outcome(tmp_path: Path) -> None:
    one = AGENT_WRITERS["langfuse"](ONE, random.Random(0))
    trace = {"id": "t", "sessionId": "s1", "observations": [one, {"type": "SPAN"}], "scores": [
        {"name": "correct", "value": 0, "observationId": None}, {"name": "x", "value": 3, "observationId": "o"},
    ]}  # fmt: skip
    run = {"run_type": "chain", "trace_id": "t2", "inputs": {}, "child_runs": [], "extra": {"metadata": {}},
           "feedback_stats": {"helpful": {"n": 1, "avg": 1.0}}}  # fmt: skip
    run["child_runs"] = [{**AGENT_WRITERS["langsmith"](ONE, random.Random(0)), "extra": {}, "trace_id": "t2"}]
    spans = AGENT_WRITERS["opentelemetry-otlp"](ONE, random.Random(0))
    (span,) = spans["resourceSpans"][0]["scopeSpans"][0]["spans"]
    span["attributes"] = [one for one in span["attributes"] if one["key"] != "session.id"]
    span["events"].append({"name": "gen_ai.evaluation.result", "attributes": [
        {"key": "gen_ai.evaluation.name", "value": {"stringValue": "success"}},
        {"key": "gen_ai.evaluation.score.value", "value": {"doubleValue": 0.0}},
    ]})  # fmt: skip
    for number, (value, fields, told) in enumerate([
        (trace, Fields(), ("s1", False, "correct")), (run, Fields(outcome="scores.helpful"), ("t2", True,
         "scores.helpful")), (spans, Fields(), ("a1", False, "success")),
    ]):  # fmt: skip
        outcomes, episodes = Outcomes(fields), []
        for record in agents.parts(Record(f"log:{number}", value)):
            found = recognise(record.value)
            if found is None:
                assert outcomes.take(record.value, record.name)
            else:
                episodes += FORMATS[found[0]].read(record.value, record.name, Fields())
        (episode,) = outcomes.told([replace(episode, score=None, success=None) for episode in episodes])
        assert (episode.session, episode.success, episode.outcome) == told
        assert str(episode.stated).startswith(f"log:{number}") and list(episode.messages) == ONE.expected()


def test_spans_of_openinference_are_read_of_otlp_and_of_a_table() -> None:
    span = AGENT_WRITERS["openinference"](ONE, random.Random(0))
    dotted = next(one for seed in range(9) if (one := AGENT_WRITERS["openinference"](ONE, random.Random(seed)))
                  and "llm.input_messages" not in one["attributes"])  # fmt: skip
    listed = [{"key": key, "value": {"boolValue" if value is True else "stringValue": value}}
              for key, value in dotted["attributes"].items()]  # fmt: skip
    otlp = {"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "t", "name": "x", "attributes": listed}]}]}]}
    row = {f"attributes.{key}": value for key, value in dotted["attributes"].items()}
    table = {**row, "name": "x", "context.trace_id": "t", "span_kind": "LLM", "status_code": "OK"}
    for record in (span, otlp, table):
        (episode,) = read(record)
        assert list(episode.messages) == ONE.expected() and episode.session == "s1" and list(episode.tools) == TOOLS


def test_scores_of_langfuse_alone_on_a_line_tell_the_outcome() -> None:
    outcomes = Outcomes(Fields())
    for data_type, trace in (("dataType", "traceId"), ("data_type", "trace_id")):
        score = {"id": "x", trace: trace, "name": "success", "value": 1, data_type: "BOOLEAN"}
        (record,) = agents.parts(Record("log:1", score))
        assert recognise(record.value) is None and outcomes.take(record.value, record.name)
    assert len(outcomes) == 2


# -- what stands in several files or lines -----------------------------------------------------------------------------


def test_events_steps_and_contents_of_a_file_are_one_conversation(tmp_path: Path) -> None:
    for format, key in (("openhands", "history"), ("openhands-sdk", "history"), ("smolagents", "steps"),
                        ("gemini_cli", "history")):  # fmt: skip
        given = AGENT_WRITERS[format](TWO, random.Random(0))[key]
        for name, text in ((".json", json.dumps(given)), (".jsonl", "".join(f"{json.dumps(one)}\n" for one in given))):
            path = tmp_path / f"log{name}"
            path.write_text(text)
            (record,) = formats.records(path)
            assert (record.name, recognise(record.value) or ()) == (str(path), (format.partition("-")[0], ANY))
            (episode,) = read(record.value)
            assert list(episode.messages) == TWO.expected() and (episode.left is None) == (format == "openhands-sdk")
        path.write_text(text + '{"cut": ')
        (record,) = formats.records(path)
        assert record.name == str(path) and f"{path}:{len(given) + 1}: no JSON" in str(record.damage)


def test_a_session_of_gemini_cli_is_put_together_from_its_lines(tmp_path: Path) -> None:
    whole = AGENT_WRITERS["gemini_cli-session"](ONE, random.Random(0))
    info, first, *others = whole["messages"]
    wrong = {"id": "w", "type": "gemini", "content": "no"}
    facts = {key: whole[key] for key in ("sessionId", "projectHash")}
    more = {key: whole[key] for key in ("success", "task_id", "system", "tools")}
    command = {"id": "c", "type": "user", "content": "/help"}
    lines = [facts, info, {**first, "content": "old"}, first, wrong, {"$rewindTo": "w"}, *others, {"$set": more}]
    lines.append(command)
    path = tmp_path / "session.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (record,) = formats.records(path)
    (episode,) = read(record.value)
    assert list(episode.messages) == ONE.expected() and (episode.session, episode.success) == ("s1", True)
    lines.append({"$set": 5})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (record,) = formats.records(path)
    assert "its parts are of another form" in str(record.damage)


def test_a_trial_of_harbor_is_its_result_and_the_trajectory_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    failed = {"exception_type": "DockerError", "exception_message": "no space"}
    late = {"exception_type": "AgentTimeoutError", "exception_message": "900 s"}
    trials: list[dict[str, Any]] = [
        {"verifier_result": {"rewards": {"reward": 1.0, "format": 0.0}}},
        {"verifier_result": {"rewards": {"tests": 0}}},
        {"verifier_result": {"rewards": {"reward": 0.0}}, "exception_info": failed},
        {"verifier_result": {"rewards": {"reward": 0.0}}, "exception_info": late},
        {"verifier_result": None, "exception_info": failed}, {},
    ]  # fmt: skip
    for number, one in enumerate(trials):
        trial = folder / f"t{number}"
        (trial / "agent").mkdir(parents=True)
        (trial / "config.json").write_text("{}")
        told = {"id": f"s{number}", "trial_name": f"n{number}", "task_name": "t1", **one}
        (trial / "result.json").write_text(json.dumps(told))
        if one:
            written = atif(replace(ONE, request=f"go {number}"), random.Random(0))
            written["extra"] = {}
            (trial / "agent/trajectory.json").write_text(json.dumps(written))
    summary, rows = imported(folder)
    assert sorted(str(row["success"]) for row in rows) == ["False", "False", "None", "None", "True"]
    assert (summary["records"], summary["episodes"], summary["judged"]) == (6, 5, 3)
    assert summary["formats"] == {"harbor": 6} and summary["unread_outcomes"] == 2
    quarantine = [json.loads(line) for line in Path(f"{folder}-run/quarantine.jsonl").read_text().splitlines()]
    reasons = {Path(one["name"]).parent.name: one["reason"] for one in quarantine if one["kind"] in ("log", "outcome")}
    assert "agent wrote no ATIF trajectory" in reasons["t5"]
    assert "exception_info: got 'DockerError'" in reasons["t2"] and "exception_info" in reasons["t4"]
    for number, outcome, success in ((0, "verifier_result.rewards", True), (1, "verifier_result.rewards.tests", False),
                                     (3, "verifier_result.rewards.reward", False)):  # fmt: skip
        (record,) = formats.records(folder / f"t{number}/result.json")
        (episode,) = FORMATS["harbor"].read(record.value, record.name, Fields())
        assert (episode.outcome, episode.success) == (outcome, success)
        assert (episode.task, episode.session, episode.turns) == ("t1", f"s{number}", 2)


# -- facts of single formats -------------------------------------------------------------------------------------------


def test_a_trajectory_of_swe_agent_has_its_task_from_its_file_and_each_attempt_is_an_episode(tmp_path: Path) -> None:
    one, two = (AGENT_WRITERS["swe_agent"](said, random.Random(0)) for said in (ONE, TWO))
    for record in (one, two):
        del record["task_id"], record["session_id"], record["success"]
    path = tmp_path / "django__1.traj"
    path.write_text(json.dumps({"attempts": [one, two], **two}))
    (record,) = formats.records(path)
    episodes = list(FORMATS["swe_agent"].read(record.value, record.name, Fields()))
    assert [list(episode.messages) for episode in episodes] == [ONE.expected(), TWO.expected()]
    assert {episode.task for episode in episodes} == {"django__1"} and episodes[0].success is None
    one["trajectory"][0]["query"] = [{"role": "user", "content": "cut"}]
    (episode,) = FORMATS["swe_agent"].read(one, "x.jsonl:1", Fields())
    assert "history processors" in str(episode.left) and episode.task is None
    two["history"].append({"role": "assistant", "content": "Exit due to cost limit", "message_type": "action"})
    row = {"instance_id": "d__2", "resolved": True, "messages": two["history"]}
    (episode,) = read(row)
    assert list(episode.messages) == TWO.expected() and "in the model's name" in str(episode.left)
    assert (episode.task, episode.success, episode.outcome) == ("d__2", True, "resolved")
    for message in row["messages"]:  # as in rows of SWE-smith
        message.pop("message_type", None)
    (episode,) = read(row)
    assert list(episode.messages) == TWO.expected()


def test_the_greeting_of_tau2_and_the_calls_of_its_user_are_not_the_policys() -> None:
    record = AGENT_WRITERS["tau2"](ONE, random.Random(0))
    messages = record["simulations"][0]["messages"]
    assert messages[0]["role"] == "assistant" and [one["role"] for one in messages].count("tool") > 1
    (episode,) = read(record)
    assert list(episode.messages) == ONE.expected() and "the user's calls" in str(episode.left)
    assert (episode.outcome, episode.name) == ("reward_info.reward", "log:1:t1/0")


def test_an_agent_of_tau2_that_is_alone_begins_with_a_call() -> None:
    record = AGENT_WRITERS["tau2"](replace(ONE, turns=ONE.turns[:1]), random.Random(0))
    messages = record["simulations"][0]["messages"]
    messages[:] = [one for one in messages if one.get("tool_calls") and one["role"] == "assistant" or
                   one.get("requestor") == "assistant"]  # fmt: skip
    (episode,) = read(record)
    assert [message["role"] for message in episode.messages] == ["system", "assistant", "tool"]


def test_messages_of_langfuse_may_have_langchains_fields_and_tools_among_them() -> None:
    record = AGENT_WRITERS["langfuse"](ONE, random.Random(0))
    given, calls = record["input"]["messages"], record["input"]["messages"][2].pop("tool_calls")
    given[2] |= {"additional_kwargs": {"tool_calls": calls}, "tool_calls": None}
    record["input"] = json.dumps([*given, *({"role": "tool", "content": tool} for tool in TOOLS)])
    record["output"] = "done"
    (episode,) = read(record)
    assert list(episode.messages) == ONE.expected() and list(episode.tools) == TOOLS


def test_events_of_ids_belong_to_the_turn_before_them_and_other_events_pass_where_they_are_ignored() -> None:
    record = AGENT_WRITERS["openhands-sdk"](TWO, random.Random(0))
    ids = {"kind": "TokenEvent", "source": "agent", "prompt_token_ids": [1, 2], "response_token_ids": [3]}
    record["history"].insert(5, ids)  # after the results of the first turn
    record["history"].append({"kind": "ExtraEvent", "source": "agent"})
    (episode,) = read(record, Fields(ignore=("ExtraEvent",)))
    assert episode.tokens == (TurnTokens((1, 2), (3,)), None) and list(episode.messages) == TWO.expected()


def test_a_turn_that_the_provider_cut_is_marked_whatever_its_word() -> None:
    for format, place in (("langsmith", "outputs/generations/0/0/generation_info/finish_reason"),
                          ("opentelemetry-numbered", "attributes/gen_ai.completion.0.finish_reason")):  # fmt: skip
        record = AGENT_WRITERS[format](ONE, random.Random(0))
        assert not read(record)[0].cut
        put(record, place, "max_tokens")
        assert read(record)[0].cut


def test_ids_of_vllm_in_runs_are_read() -> None:
    record = AGENT_WRITERS["langsmith"](ONE, random.Random(0))
    answer = {"message": {"role": "assistant", "content": "done"}, "finish_reason": "length", "token_ids": [7, 8],
              "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -1.0}]}}  # fmt: skip
    record["outputs"] = {"choices": [answer], "prompt_token_ids": [1, 2, 3]}
    (episode,) = read(record)
    assert episode.cut and episode.tokens == (None, TurnTokens((1, 2, 3), (7, 8), (-0.5, -1.0)))


def test_what_a_model_refused_is_what_it_said() -> None:
    refused = {"type": "ai", "content": "", "additional_kwargs": {"refusal": "I will not."}}
    (episode,) = read({"messages": [{"type": "human", "content": "go"}, refused]})
    assert episode.messages[-1] == {"role": "assistant", "content": "I will not."}
    parts = [{"type": "refusal", "refusal": "No."}]
    (episode,) = read({"messages": [{"role": "user", "content": "go"}, {"role": "assistant", "content": parts}]})
    assert episode.messages[-1]["content"] == "No."
    record = AGENT_WRITERS["opentelemetry-numbered"](ONE, random.Random(0))
    said = record["attributes"]
    said["gen_ai.completion.0.refusal"] = said.pop("gen_ai.completion.0.content")
    said["gen_ai.prompt.1.content"] = json.dumps([{"type": "text", "text": said["gen_ai.prompt.1.content"]}])
    assert list(read(record)[0].messages) == ONE.expected()
    with pytest.raises(DataError, match="an assistant message has refusal"):
        read({"messages": [{"role": "user", "content": "go"}, {"role": "assistant", "content": "a", "refusal": "b"}]})


def test_turns_of_a_code_agent_are_text_and_its_plans_are_turns() -> None:
    code = {"step_number": 1, "model_output": "Thought: x\n<code>1</code>", "code_action": "1", "observations": "1",
            "tool_calls": [{"id": "c", "function": {"name": "python_interpreter", "arguments": "1"}}]}  # fmt: skip
    several = {**code, "code_action": None, "tool_calls": code["tool_calls"] * 2}
    steps = [{"task": "go", "task_images": None}, {"plan": "first", "timing": {}}, code]
    (episode,) = read({"steps": steps, "system_prompt": "be"})
    assert [message["role"] for message in episode.messages] == ["system", "user", "assistant", "user", "assistant",
                                                                  "user"]  # fmt: skip
    assert episode.messages[-2]["content"].startswith("Thought") and "tool_calls" not in episode.messages[-2]
    with pytest.raises(DataError, match="step 2: observations: one text for 2 calls"):
        read({"steps": [*steps[:2], several]})


def test_parts_of_a_turn_that_cannot_be_kept_are_named_and_what_is_out_of_order_is_refused() -> None:
    tool = {"type": "tool-invocation", "toolInvocation": {
        "toolCallId": "c", "toolName": "f", "args": {"a": 1}, "state": "result", "result": {"x": [1]}}}  # fmt: skip
    asked = {"role": "user", "parts": [{"type": "text", "text": "go"}]}
    shown = {"role": "assistant", "parts": [tool, {"type": "source-url", "url": "u"}, {"type": "text", "text": "done"}]}
    (episode,) = read({"messages": [asked, shown]})
    assert [one["content"] for one in episode.messages] == ["go", "", '{"x": [1]}', "done"]
    assert episode.left == "1 parts of type source"
    retry = {"part_kind": "retry-prompt", "content": "again", "tool_name": None, "tool_call_id": "x"}
    history = [{"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "go"}], "instructions": "be"},
               {"kind": "response", "parts": [{"part_kind": "text", "content": "a"}]},
               {"kind": "request", "parts": [retry]},
               {"kind": "response", "parts": [{"part_kind": "text", "content": "b"}]}]  # fmt: skip
    (episode,) = read({"messages": history})
    assert [one["content"] for one in episode.messages] == ["be", "go", "a", "again", "b"]
    assert episode.left == "1 the words around a retry"
    text = {"type": "text", "text": "wait"}
    late = [text, {"type": "tool-f", "toolCallId": "c", "input": {}}, text]
    said = [{"source": name, "type": "TextMessage", "content": name} for name in ("user", "coder", "critic")]
    for record, reason in (({"messages": [asked, {"role": "assistant", "parts": late}]}, "a message follows a call"),
                           ({"messages": [asked, {"role": "oracle", "parts": asked["parts"]}]}, "role: got 'oracle'"),
                           ({"messages": said}, "several agents speak")):  # fmt: skip
        with pytest.raises(DataError, match=reason):
            read(record)


def test_a_file_of_a_bare_list_or_of_events_is_one_conversation(tmp_path: Path) -> None:
    for format, key in (("pydantic_ai", "messages"), ("autogen", "messages"), ("ai_sdk", "messages"),
                        ("opencode", "messages"), ("copilot", "events")):  # fmt: skip
        written = AGENT_WRITERS[format](replace(ONE, system=None), random.Random(0))[key]
        path = tmp_path / ("log.jsonl" if key == "events" else "log.json")
        path.write_text("\n".join(map(json.dumps, written)) if key == "events" else json.dumps(written))
        (record,) = formats.records(path)
        (name, _) = recognise(record.value) or ("", "")
        (episode,) = FORMATS[name].read(record.value, record.name, Fields())
        assert name == format and [message["role"] for message in episode.messages][-1] == "assistant"
