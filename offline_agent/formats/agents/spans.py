"""Spans of OpenTelemetry: calls of models in its GenAI conventions, and in OpenInference's (Phoenix).

A span of a call is its input and its output. The calls of a trace repeat one another, so that they are linked into one
episode by equal messages, as calls of the API are; `session.id` or `gen_ai.conversation.id` is the session, else the
trace. Other spans (tools, agents, chains) say nothing that the calls do not, and are passed over. Files of OTLP are
taken apart span by span. Scores of `gen_ai.evaluation.result` events tell the outcome of the session.

Definitions: open-telemetry/semantic-conventions-genai, model/gen-ai/gen-ai-{input,output}-messages.json and
docs/gen-ai/gen-ai-events.md at 2b902ce; open-telemetry/semantic-conventions, docs/gen-ai/gen-ai-events.md v1.36.0 (a
message an event); traceloop/openllmetry, packages/opentelemetry-instrumentation-openai/opentelemetry/instrumentation/
openai/shared/chat_wrappers.py and __init__.py at 00d044f (`gen_ai.prompt.N.role`, `llm.request.functions.N.name` …);
Arize-ai/openinference, spec/llm_spans.md and spec/tool_calling.md at 1fe497f.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from offline_agent.errors import DataError
from offline_agent.formats import responses
from offline_agent.formats.agents.parts import Form, items
from offline_agent.formats.agents.reader import Reader, as_openai, call, first, scored
from offline_agent.logs.episode import Fields, LoggedEpisode, at, inner
from offline_agent.logs.files import Record
from offline_agent.messages import brief, parsed

_CALLS = (None, "chat", "generate_content", "text_completion")  # operations that are a call of a model
_OTLP = (("resourceSpans", "scopeSpans", "spans"), ("resourceLogs", "scopeLogs", "logRecords"))
_PHOENIX = "attributes."  # before the attributes of a table of spans
_TRACE = ("traceId", "trace_id", "context.trace_id", "spanContext.traceId")
_GENAI = Form({"text": "text content", "reasoning": "reasoning content", "tool_call": "call id name arguments",
               "tool_call_response": "result id response|result"})  # fmt: skip
_EVALUATION = "gen_ai.evaluation.result"


def parts(record: Record) -> Iterator[Record]:
    """Yield the spans of a file of OTLP, and the scores of its sessions; another record as it is."""
    value = record.value
    names = next((names for names in _OTLP if isinstance(value, Mapping) and names[0] in value), None)
    if names is None:
        yield record
        return
    spans = [value]
    for key in names:
        spans = [one for outer in spans for one in (at(outer, key) or ())]
    for number, span in enumerate(spans):
        name, attributes = f"{record.name}:{number}", _attributes(span)
        if at(span, "eventName") == _EVALUATION:
            yield scored(name, _session(span, attributes), _scores([attributes]))
            continue
        yield Record(name, {**span, "attributes": attributes, "name": span.get("name") or span.get("eventName", "")})
        if found := _scores([_attributes(event) for event in _events(span, _EVALUATION)]):
            yield scored(name, _session(span, attributes), found)


def _attributes(span: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a span or an event by name, which OTLP has as a list and a table as columns."""
    given = span.get("attributes")
    if isinstance(given, Sequence) and not isinstance(given, str):
        return {str(at(one, "key")): _value(at(one, "value")) for one in given}
    columns = {key.removeprefix(_PHOENIX): value for key, value in span.items() if key.startswith(_PHOENIX)}
    return {**columns, **(given if isinstance(given, Mapping) else {})}


def _value(value: Any) -> Any:
    """Return a value of OTLP, which names its type."""
    if not isinstance(value, Mapping) or not value:
        return value
    kind, content = next(iter(value.items()))
    if kind == "arrayValue":
        return [_value(one) for one in at(content, "values") or ()]
    if kind == "kvlistValue":
        return {str(at(one, "key")): _value(at(one, "value")) for one in at(content, "values") or ()}
    return int(content) if kind == "intValue" and str(content).lstrip("-").isdigit() else content


def _events(span: Mapping[str, Any], prefix: str) -> list[Mapping[str, Any]]:
    return [event for event in span.get("events") or () if str(at(event, "name")).startswith(prefix)]


def _scores(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = ("gen_ai.evaluation.name", "gen_ai.evaluation.score.value")
    return {at(one, names[0]): value for one in found if (value := at(one, names[1])) is not None}


def _session(span: Mapping[str, Any], attributes: Mapping[str, Any]) -> Any:
    trace = first(span, _TRACE)
    return first(attributes, ("session.id", "gen_ai.conversation.id")) or trace


def _recognised(record: Mapping[str, Any]) -> str | None:
    if "name" not in record or first(record, _TRACE) is None:
        return None
    return "a span with a trace" if "attributes" in record or any(key.startswith(_PHOENIX) for key in record) else None


def _openinference(record: Mapping[str, Any]) -> str | None:
    attributes = _attributes(record)
    kind = first({**attributes, **record}, ("openinference.span.kind", "span_kind"))
    told = at(attributes, "openinference.span.kind") is not None or at(attributes, "llm.input_messages") is not None
    return f"a span of OpenInference, kind {kind}" if _recognised(record) and told else None


def _read(record: Mapping[str, Any], name: str, fields: Fields) -> Iterator[LoggedEpisode]:
    attributes = _attributes(record)
    if _openinference(record):
        is_call = first({**record, **attributes}, ("openinference.span.kind", "span_kind")) in ("LLM", None)
        said = _openinference_call
    else:
        known = any("gen_ai" in key for key in attributes) and at(attributes, "gen_ai.tool.name") is None
        is_call = known and at(attributes, "gen_ai.operation.name") in _CALLS
        said = _genai_call
    if not is_call:
        return
    status = first(record, ("status.code", "status.status_code", "status_code"))
    if status in (2, "ERROR", "STATUS_CODE_ERROR"):
        raise DataError(f"the call ended in an error: {str(first(record, ('status.message', 'status_message')))[:100]}")
    messages, choices, tools = said(record, attributes)
    if not messages or not choices:
        raise DataError(
            "a call without its input or its output: the instrumentation did not capture what was said (OpenTelemetry: "
            "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT)"
        )
    facts = {key: value for key, value in {**record, **attributes}.items() if key not in ("attributes", "events")}
    own = {"session_id": _session(record, attributes), "messages": messages, "choices": choices, "tools": tools}
    yield from as_openai({**facts, **own}, name, fields)


# -- GenAI conventions -------------------------------------------------------------------------------------------------

_Said = tuple[list[Any], list[Any], Any]  # messages, choices, tools


def _genai_call(record: Mapping[str, Any], attributes: Mapping[str, Any]) -> _Said:
    def of(name: str) -> Any:
        return parsed(at(attributes, f"gen_ai.{name}"), f"gen_ai.{name}")

    given = at(attributes, "gen_ai.input.messages")
    if given is None and (numbered := _listed(attributes, "gen_ai.prompt")):
        answers = _listed(attributes, "gen_ai.completion")
        made = [{"message": _numbered(one), "finish_reason": one.get("finish_reason")} for one in answers]
        return [_numbered(one) for one in numbered], made, _listed(attributes, "llm.request.functions")
    if given is None:
        return *_genai_events(record), of("tool.definitions")
    reasons = of("response.finish_reasons") or []
    messages = _genai_messages(of("input.messages"), "gen_ai.input.messages")
    if system := of("system_instructions"):
        messages[:0] = _genai_messages([{"role": "system", "parts": system}], "gen_ai.system_instructions")
    choices = []
    for number, one in enumerate(_list(of("output.messages"), "gen_ai.output.messages")):
        reason = at(one, "finish_reason") or (reasons[number] if number < len(reasons) else None)
        choices += [{"message": message, "finish_reason": reason} for message in _genai_messages([one], "output")]
    return messages, choices, of("tool.definitions")


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise DataError(f"{what}: got {brief(value)}, wanted a list")
    return value


def _genai_messages(given: Any, what: str) -> list[Any]:
    """Return messages in OpenAI's form, which some write themselves."""
    if any("content" in one and "parts" not in one for one in _list(given, what) if isinstance(one, Mapping)):
        return list(given)
    return responses.turns(items(_GENAI, given, Counter()), Counter())[0]


def _numbered(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message that has a name with its number for each of its facts; parts of a content are a JSON text."""
    if given.get("finish_reason") == "content_filter":
        raise DataError("finish_reason: content_filter: what the model said is not in the log")
    calls = [call(one.get("name"), one.get("arguments"), one.get("id")) for one in _listed(given, "tool_calls")]
    message = {key: given[key] for key in ("role", "content", "refusal", "tool_call_id") if key in given}
    if str(given.get("content")).startswith('[{"type": '):
        with contextlib.suppress(DataError):
            message["content"] = parsed(given["content"], "content")
    return {**message, "tool_calls": calls} if calls else message


def _genai_events(record: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """Return the messages of the conventions up to 1.36, which have an event each."""
    messages: list[Any] = []
    choices: list[Any] = []
    for event in _events(record, "gen_ai."):
        role = event["name"].split(".")[1]
        body = {**_attributes(event), **inner(event, "body")}
        body |= parsed(body.pop("gen_ai.event.content", None), event["name"]) or {}
        kept = {key: parsed(value, key) if key in ("tool_calls", "message") else value for key, value in body.items()
                if not key.startswith(("gen_ai.", "event."))}  # fmt: skip
        if role == "choice":
            choices.append({"finish_reason": kept.get("finish_reason"), "message": kept.get("message", kept)})
        elif event["name"].endswith(".message"):
            id = {"tool_call_id": kept.pop("id", None)} if role == "tool" else {}
            messages.append({"role": role, **kept, **id})
    return messages, choices


# -- OpenInference -----------------------------------------------------------------------------------------------------


def _openinference_call(record: Mapping[str, Any], attributes: Mapping[str, Any]) -> _Said:
    said = [[_message(one, f"{name} {number}") for number, one in enumerate(_listed(attributes, f"llm.{name}"))]
            for name in ("input_messages", "output_messages")]  # fmt: skip
    tools = [first(one, ("tool.json_schema", "json_schema")) for one in _listed(attributes, "llm.tools")]
    reason = at(attributes, "llm.finish_reason")
    return said[0], [{"message": message, "finish_reason": reason} for message in said[1]], tools


def _listed(attributes: Mapping[str, Any], name: str) -> list[Any]:
    """Return the entries of an attribute that is a list, or has its numbers and the rest in names with dots."""
    found = at(attributes, name)
    if found is not None:
        return _list(found, name)
    entries: dict[int, dict[str, Any]] = {}
    for key, value in attributes.items():
        number, _, rest = key.removeprefix(f"{name}.").partition(".")
        if key.startswith(f"{name}.") and number.isdigit():
            entries.setdefault(int(number), {})[rest] = value
    return [entries[number] for number in sorted(entries)]


def _message(given: Any, place: str) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise DataError(f"{place}: got {brief(given)}, wanted an object with message.role and message.content")
    content: Any = at(given, "message.content")
    calls = [_call(one) for one in _listed(given, "message.tool_calls")]
    if contents := _listed(given, "message.contents"):
        kinds = [(first(one, ("message_content.type",)), one) for one in contents]
        content = [{"type": kind, str(kind): at(one, "message_content.text")} for kind, one in kinds
                   if kind != "tool_use"]  # fmt: skip
        calls = calls or [_call(one) for kind, one in kinds if kind == "tool_use"]
    names = ("role", "name", "tool_call_id")
    found = {name: at(given, f"message.{name}") for name in names}
    message = {name: value for name, value in found.items() if value is not None} | {"content": content}
    return {**message, "tool_calls": calls} if calls else message


def _call(given: Any) -> dict[str, Any]:
    name, arguments, id = (at(given, f"tool_call.{key}") for key in ("function.name", "function.arguments", "id"))
    return call(name, arguments, id)


READERS = (Reader("openinference", _openinference, _read), Reader("opentelemetry", _recognised, _read))
