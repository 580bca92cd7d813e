"""LangChain's messages (LangGraph states), and calls of models in exports of LangSmith, Langfuse and MLflow.

LangSmith's runs and Langfuse's observations are trees; those of calls (`llm`, `GENERATION`) are read, each its input
and its output, and linked by equal messages. Others (chains, tools, retrievers) say nothing that the calls do not, and
are passed over. Their scores tell the outcome of the trace apart: LangSmith's `feedback_stats`, Langfuse's `scores`,
MLflow's `assessments`. A call in a trace of MLflow is what its API was asked and gave, in whichever dialect.

Definitions: langchain-ai/langchain, libs/core/langchain_core/messages/base.py at 002e90d, messages/utils.py at 0026dff
and load/serializable.py at 04c7098; langchain-ai/langsmith-sdk, python/langsmith/schemas.py at d3f159a;
langfuse/langfuse, fern/apis/server/definition/commons.yml at 0010e28 (traces, observations, scores) and
packages/shared/src/domain/observations.ts at 0ea65da (types of observations); mlflow 3.17.2, entities/trace.py
(`Trace.to_json`) and entities/span.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from offline_agent.errors import DataError, located
from offline_agent.formats.agents.reader import Reader, as_openai, call, first, scored
from offline_agent.logs.conversation import told_tools
from offline_agent.logs.episode import Fields, LoggedEpisode, at, has_objects, inner
from offline_agent.logs.files import Record
from offline_agent.messages import brief, parsed

_ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "function": "tool"}
_REPEATED = ("tool_use", "function_call", "tool_call", "input_json_delta")  # parts that tool_calls tells, too
_TRACE = ("sessionId", "session_id", "traceId", "trace_id")  # of Langfuse; its exports have either
_THREAD = tuple(f"extra.metadata.{name}" for name in ("thread_id", "session_id", "conversation_id"))
_REASONS = ("generation_info.finish_reason", "message.kwargs.response_metadata.finish_reason",
            "message.kwargs.response_metadata.stop_reason")  # fmt: skip
_RUN = ("run_type", "inputs", "trace_id")
_OBSERVATIONS = ("GENERATION", "SPAN", "EVENT", "AGENT", "TOOL", "CHAIN", "RETRIEVER", "EVALUATOR", "EMBEDDING",
                 "GUARDRAIL")  # fmt: skip
_STATES = ("messages", "values.messages")


# -- LangChain ---------------------------------------------------------------------------------------------------------


def _kind(given: Any) -> Any:
    """Return the type of a message in any of LangChain's forms; None where it has none."""
    kind = at(given, "type")
    if kind == "constructor" and isinstance(path := at(given, "id"), list) and path:
        kind = path[-1]
    return kind.removesuffix("Chunk").removesuffix("Message").lower() if isinstance(kind, str) else None


def message(given: Any, number: int = 0) -> Any:
    """Return a message in OpenAI's form, where it is in LangChain's.

    Raises:
        DataError: Its type is not known, or its arguments are no JSON.
    """
    if not isinstance(given, Mapping):
        return given
    if "role" in given:
        kept = {key: value for key, value in given.items() if key != "additional_kwargs"}
        return {**_more(given), **{key: value for key, value in kept.items() if value is not None}}
    with located(f"message {number}"):
        kind = _kind(given)
        if kind not in _ROLES:
            raise DataError(f"type: got {kind!r:.60}, allowed: {', '.join(_ROLES)}")
        told = inner(given, "kwargs") or inner(given, "data") or given
        out = {"role": _ROLES[kind], "content": told.get("content"), "name": told.get("name")}
        if out["role"] != "assistant":
            return {**out, "tool_call_id": told.get("tool_call_id")} if kind == "tool" else out
        if told.get("invalid_tool_calls"):
            raise DataError(f"invalid_tool_calls: arguments that are no JSON: {told['invalid_tool_calls']!r:.60}")
        out |= _more(told)
        if told.get("tool_calls"):  # the same calls, parsed
            out["tool_calls"] = [call(at(one, "name"), at(one, "args"), at(one, "id")) for one in told["tool_calls"]]
        if isinstance(out["content"], list):
            out["content"] = [part for part in out["content"] if at(part, "type") not in _REPEATED]
        return out


def _more(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a message has as OpenAI's server gave it."""
    more = inner(told, "additional_kwargs")
    return {key: more[key] for key in ("tool_calls", "function_call", "reasoning_content", "refusal") if key in more}


def _state(record: Mapping[str, Any]) -> str | None:
    found = first(record, _STATES)
    known = has_objects(found) and any(_kind(one) in _ROLES and "role" not in one for one in found[:3])
    return "messages of LangChain's types" if known else None


def _read_state(record: Mapping[str, Any], name: str, fields: Fields) -> Iterator[LoggedEpisode]:
    messages = [message(one, number) for number, one in enumerate(first(record, _STATES))]
    thread = first(record, ("config.configurable.thread_id", "metadata.thread_id", "thread_id"))
    yield from as_openai({**record, **({"session_id": thread} if thread else {}), "messages": messages}, name, fields)


# -- LangSmith ---------------------------------------------------------------------------------------------------------


def parts(record: Record) -> Iterator[Record]:
    """Yield a run and the runs within it, a trace's observations, and the scores of either; another record as it is."""
    value = record.value
    if isinstance(value, Mapping) and value.keys() >= set(_RUN):
        yield from _runs(record.name, value)
    elif isinstance(value, Mapping) and has_objects(value.get("observations"), "type"):
        trace = {"traceId": value.get("id"), "sessionId": value.get("sessionId")}
        for number, one in enumerate(value["observations"]):
            yield Record(f"{record.name}:{number}", {**one, **trace} if isinstance(one, Mapping) else one)
        scores = (one for one in value.get("scores") or () if at(one, "observationId") is None)
        if found := {at(one, "name"): at(one, "value") for one in scores}:
            yield scored(record.name, first(trace, _TRACE), found)
    elif has_objects(at(value, "data.spans"), "attributes") and _attribute(value["data"]["spans"][0], "spanType"):
        yield from _traced(record.name, value)
    elif isinstance(at(value, "trace"), str) and has_objects(at(value, "spans"), "attributes"):  # `search_traces`
        yield from _traced(record.name, parsed(value["trace"], "trace"))
    elif isinstance(value, Mapping) and {"name", "value"} <= value.keys() and value.keys() & {"dataType", "data_type"}:
        yield scored(record.name, first(value, _TRACE), {value["name"]: value["value"]})
    else:
        yield record


def _runs(name: str, run: Mapping[str, Any]) -> Iterator[Record]:
    yield Record(name, run)
    feedback = {key: at(one, "avg") for key, one in inner(run, "feedback_stats").items()}
    if found := {key: value for key, value in feedback.items() if value is not None}:
        yield scored(name, first(run, (*_THREAD, "trace_id")), found)
    for number, child in enumerate(run.get("child_runs") or ()):
        yield from _runs(f"{name}/{number}", child)


def _run(record: Mapping[str, Any]) -> str | None:
    return f"a run, type {record['run_type']}" if record.keys() >= set(_RUN) else None


def _read_run(record: Mapping[str, Any], name: str, fields: Fields) -> Iterator[LoggedEpisode]:
    if record["run_type"] != "llm":
        return
    if record.get("error"):
        raise DataError(f"the call ended in an error: {str(record['error'])[:100]}")
    inputs, outputs = parsed(record["inputs"], "inputs"), parsed(record.get("outputs"), "outputs")
    given = at(inputs, "messages")
    if isinstance(given, list) and given and isinstance(given[0], list):
        if len(given) > 1:
            raise DataError(f"inputs.messages: {len(given)} conversations in one call, wanted one")
        given = given[0]
    generations = at(outputs, "generations")
    if isinstance(generations, list) and generations:
        made = generations[0] if isinstance(generations[0], list) else generations
        choices = [{"message": at(one, "message"), "finish_reason": first(one, _REASONS)} for one in made]
    else:
        choices = at(outputs, "choices") or [{"message": at(outputs, "message") or outputs}]
    tools = told_tools(False, inputs, inner(record, "extra.invocation_params"))
    own = {"session_id": first(record, (*_THREAD, "trace_id")), "task_id": record.get("reference_example_id"),
           "prompt_token_ids": at(outputs, "prompt_token_ids")}  # fmt: skip
    yield from _call(record, name, fields, (given, choices, tools), own)


def _call(
    record: Mapping[str, Any], name: str, fields: Fields, call: tuple[Any, Any, Any], own: Mapping[str, Any]
) -> Iterator[LoggedEpisode]:
    """Yield a call of a model: the messages before it, its choices, its tools."""
    messages, choices, tools = call
    if not isinstance(messages, list) or not messages:
        raise DataError(f"the input of a call: got {brief(messages)}, wanted messages")
    facts = {key: value for key, value in record.items() if key not in ("inputs", "outputs", "input", "output")}
    own = {key: value for key, value in own.items() if value is not None}
    told = [at(one, "content") for one in messages if _is_schema(one)]  # Langfuse has them among LangChain's messages
    said = [message(one, number) for number, one in enumerate(messages) if not _is_schema(one)]
    yield from as_openai({
        **facts, **own, "tools": tools or told, "messages": said,
        "choices": [{**one, "message": _answer(one["message"])} for one in choices],
    }, name, fields)  # fmt: skip


def _is_schema(given: Any) -> bool:
    return at(given, "role") == "tool" and isinstance(at(given, "content.function"), Mapping)


def _answer(given: Any) -> Any:
    return message({"role": "assistant", "content": given} if isinstance(given, str) else given)


# -- MLflow ------------------------------------------------------------------------------------------------------------


def _attribute(span: Any, name: str) -> Any:
    return parsed(inner(span, "attributes").get(f"mlflow.{name}"), name)


def _traced(name: str, trace: Mapping[str, Any]) -> Iterator[Record]:
    """Yield the calls of models of a trace, as request and response of their API, and its valid feedback."""
    info = inner(trace, "info")
    session = first(inner(info, "trace_metadata"), ("mlflow.trace.session",)) or info.get("trace_id")
    for number, span in enumerate(trace["data"]["spans"]):
        if _attribute(span, "spanType") not in ("CHAT_MODEL", "LLM"):
            continue
        if at(span, "status.code") == "STATUS_CODE_ERROR":
            said = str(at(span, "status.message"))[:100]
            yield Record(f"{name}:{number}", None, f"the call ended in an error: {said}")
            continue
        call = {"request": _attribute(span, "spanInputs"), "response": _attribute(span, "spanOutputs")}
        yield Record(f"{name}:{number}", {**call, "session_id": session})
    told = [one for one in info.get("assessments") or () if at(one, "valid") is not False]
    values = {at(one, "assessment_name"): at(one, "feedback.value") for one in told}
    if found := {key: value for key, value in values.items() if value is not None}:
        yield scored(name, session, found)


# -- Langfuse ----------------------------------------------------------------------------------------------------------


def _observation(record: Mapping[str, Any]) -> str | None:
    known = record.get("type") in _OBSERVATIONS and first(record, _TRACE[2:]) is not None
    return f"an observation, type {record['type']}" if known else None


def _read_observation(record: Mapping[str, Any], name: str, fields: Fields) -> Iterator[LoggedEpisode]:
    if record["type"] != "GENERATION":
        return
    if record.get("level") == "ERROR":
        raise DataError(f"the call ended in an error: {str(first(record, ('statusMessage', 'status_message')))[:100]}")
    given, answer = (parsed(value, key) if str(value)[:1] in ("[", "{") else value
                     for key in ("input", "output") for value in (record.get(key),))  # fmt: skip
    answers = answer if isinstance(answer, list) else [answer]
    choices = at(answer, "choices") or [{"message": at(one, "message") or one} for one in answers]
    tools = told_tools(False, given if isinstance(given, Mapping) else {}, inner(record, "modelParameters"),
                       inner(record, "metadata"))  # fmt: skip
    messages = at(given, "messages") if isinstance(given, Mapping) else given
    own = {"session_id": first(record, _TRACE), "prompt_token_ids": at(answer, "prompt_token_ids")}
    yield from _call(record, name, fields, (messages, choices, tools), own)


READERS = (
    Reader("langsmith", _run, _read_run),
    Reader("langfuse", _observation, _read_observation),
    Reader("langchain", _state, _read_state),
)
