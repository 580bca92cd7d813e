"""Messages of typed parts, or events, in libraries and agents: one table says where each has texts, calls and results.

A turn is a message, or a step of it (`step-start`); calls of one are parallel, whatever stands between them. Thoughts
are kept, those that only the provider can read and parts that no model read are left out and named; images, and what
the provider's own tools found, are refused by the type of the part.

Definitions: vercel/ai, packages/ai/src/ui/ui-messages.ts at 0103ba5 and packages/provider-utils/src/types/
content-part.ts at 06d915d (UIMessage and ModelMessage, `toolInvocation` of version 4); pydantic/pydantic-ai,
pydantic_ai_slim/pydantic_ai/messages.py at 002cbd4; Amazon Bedrock, API reference, runtime, ContentBlock and
ToolResultBlock; block/goose, crates/goose/src/conversation/message.rs and tool_result_serde.rs at 0513296;
anomalyco/opencode, packages/sdk/js/src/v2/gen/types.gen.ts (Part, ToolState) and `opencode export`; github/copilot-sdk,
nodejs/src/generated/session-events.ts at 0139612 (`~/.copilot/session-state/*/events.jsonl`); microsoft/autogen,
autogen_agentchat/messages.py at 4dd9b6e and autogen_core/models (messages of a model's context).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from offline_agent.errors import DataError, located
from offline_agent.formats import responses
from offline_agent.formats.agents.reader import Reader, as_openai, first, plain
from offline_agent.logs.episode import Fields, LoggedEpisode, at, has_objects, inner, left_out
from offline_agent.messages import brief

_ROLES = {"request": "user", "response": "assistant", "user": "user"}
_GIVEN = ("messages", "events", "llm_context.messages")
_UNREAD = ("request", "response", "output", *_GIVEN)


class Form(NamedTuple):
    """Where a library has what.

    Attributes:
        table: By type of a part what it says: `VERB PATH …`, several where it says several things. Of places with `|`
            between them the first that has something counts; before `:` is the place of a list of such objects. "" =
            it is passed over and named, `quiet`: it says nothing. The type `*` is any that is not in the table.
        role, parts: Places in a message; without `parts` it is a part itself.
        marks: Types of parts, or places in a record, of which one tells the form; none = messages of this shape do.
        kind: Where a part has its type, else its first key is.
    """

    table: Mapping[str, str]
    role: str = "role"
    parts: str = "parts"
    marks: tuple[str, ...] = ()
    kind: str = "type"


_SAID = {"text": "text text", "reasoning": "reasoning text", "step-start": "step"}
_TOOL = "call toolCallId toolName input|rawInput; result toolCallId output|errorText|approval.reason"
_OLDER = "call {0}.toolCallId {0}.toolName {0}.args; result {0}.toolCallId {0}.result".format("toolInvocation")
_OTHER = "other history"
_ANSWERS = "result content: call_id content"
FORMS = {
    "copilot": Form(
        {"system.message": "system data.content", "user.message": "user data.transformedContent|data.content",
         "assistant.message": "step; thought data.reasoningText; text data.content; "
         "call data.toolRequests: toolCallId name arguments",
         "tool.execution_complete": "result data.toolCallId data.result.content|data.error.message", "*": "quiet",
         "session.compaction_complete": _OTHER, "session.snapshot_rewind": _OTHER, "session.truncation": _OTHER},
        "", "", ("session.start",)),
    "autogen": Form(
        {"SystemMessage": "system content", "UserMessage": "user content", "TextMessage": "text content",
         "AssistantMessage": "step; thought thought; text content; call content: id name arguments",
         "ThoughtEvent": "reasoning content", "ToolCallRequestEvent": "call content: id name arguments",
         "ToolCallExecutionEvent": _ANSWERS, "FunctionExecutionResultMessage": _ANSWERS,
         "ToolCallSummaryMessage": "quiet"},
        "source", "", ("UserMessage", "TextMessage", "AssistantMessage")),
    "opencode": Form(
        {**_SAID, "tool": "call callID tool state.input; result callID state.output|state.error", "snapshot": "quiet",
         "step-finish": "quiet", "patch": "quiet", "agent": "", "compaction": _OTHER}, "info.role"),
    "pydantic_ai": Form(
        {"system-prompt": "system content", "user-prompt": "user content", "text": "text content",
         "thinking": "reasoning content", "tool-call": "call tool_call_id tool_name args",
         "tool-return": "result tool_call_id content", "retry-prompt": "result tool_call_id content"},
        "kind", kind="part_kind"),
    "ai_sdk": Form(
        {**_SAID, "tool": _TOOL, "dynamic-tool": _TOOL, "tool-invocation": _OLDER, "source": "", "data": ""}),
    "ai_sdk_model": Form(
        {**_SAID, "tool-call": "call toolCallId toolName input|args",
         "tool-result": "result toolCallId output.value|output.reason|result"},
        parts="content", marks=("tool-call", "tool-result")),
    "bedrock": Form(
        {"text": "text text", "reasoningContent": "reasoning reasoningContent.reasoningText.text",
         "toolUse": "call toolUse.toolUseId toolUse.name toolUse.input", "cachePoint": "quiet",
         "toolResult": "parts toolResult.toolUseId toolResult.content"},
        parts="content", kind="", marks=("toolUse", "toolConfig", "output.message", "reasoningContent")),
    "goose": Form(
        {"text": "text text", "thinking": "reasoning thinking", "redactedThinking": "reasoning data.none",
         "toolRequest": "call id toolCall.value.name toolCall.value.arguments", "systemNotification": "quiet",
         "toolResponse": "parts id toolResult.value.content|toolResult.value|toolResult.error",
         "toolConfirmationRequest": "quiet", "actionRequired": "quiet"},
        parts="content", marks=("toolRequest", "working_dir")),
}  # fmt: skip
"""Forms by the name of the format, those whose marks say most first."""


def _said(form: Form, message: Any, left: Counter[str]) -> Iterator[tuple[str, list[Any]]]:
    """Yield what a message says: verbs with their values. Raises DataError where it has a part that is not read."""
    parts = at(message, form.parts) if form.parts else [message]
    if isinstance(parts, str) and form.parts == "content":
        parts = [{"text": parts, form.kind: "text"}]
    if not isinstance(parts, list) or not all(isinstance(part, Mapping) and part for part in parts):
        raise DataError(f"{form.parts}: got {brief(parts)}, wanted a list of objects")
    for part in parts:
        kind = at(part, form.kind) or next(iter(part))
        if kind == "retry-prompt" and not part.get("tool_name"):
            kind = "user-prompt"
        elif kind not in form.table and kind.partition("-")[0] in form.table:  # tool-NAME
            kind, _, name = kind.partition("-")
            part = {"toolName": name, **part}
        told = form.table.get(kind, form.table.get("*"))
        if told is None or told == _OTHER or part.get("providerExecuted"):
            raise DataError(f"a part of type {kind!r:.60}; only text can be read, of types {', '.join(form.table)}")
        left[f"parts of type {kind}"] += not told
        left["the words around a retry"] += "part_kind" in part and part["part_kind"] == "retry-prompt"
        for verb, *paths in map(str.split, filter(None, told.split("; "))):
            each = at(part, paths.pop(0)[:-1]) if paths and paths[0].endswith(":") else [part]
            for one in each if isinstance(each, list) else ():
                yield verb, [first(one, path.split("|")) for path in paths]


def items(form: Form, given: list[Any], left: Counter[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield items of OpenAI's Responses API, of which `responses.turns` makes turns, with their places.

    Args:
        form: Where the given ones have what.
        given: Messages, or events.
        left: Gets the numbers of what is left out.

    Raises:
        DataError: A part is of a type that is not read, or a message of a role that is not known.
    """
    for number, message in enumerate(given):
        place, told = f"message {number}", at(message, form.role)
        role = _ROLES.get(told, told if form.parts else "assistant")
        results: list[tuple[str, dict[str, Any]]] = []  # of a step, whose calls are parallel
        texts: list[Any] = []
        with located(place):
            for verb, values in _said(form, message, left):
                value = values[-1] if values else None
                if verb == "reasoning" and texts:
                    raise DataError("reasoning follows what is said, and would be learnt before it")
                if verb not in ("call", "result", "parts"):
                    yield from results
                    results, texts = [], texts if verb == "text" and not results else []
                if verb == "call":
                    texts = []
                    yield place, {"type": "function_call", "call_id": values[0], "name": values[1], "arguments": value}
                elif verb in ("result", "parts") and value is not None:
                    output = [{"text": plain(one["json"])} if "json" in one else one for one in value] if (
                        verb == "parts" and isinstance(value, list)) else plain(value)  # fmt: skip
                    results.append((place, {"type": "function_call_output", "call_id": values[0], "output": output}))
                elif verb == "reasoning" or (verb == "thought" and value):
                    yield place, {"type": "reasoning", "content": [{"text": value}]}
                elif verb in ("system", "user") or (verb == "text" and value and not isinstance(value, list)):
                    if not texts or verb != "text":
                        yield place, {"role": role if verb == "text" else verb, "content": (texts := [])}
                    texts += value if isinstance(value, list) else [{"type": "text", "text": value}]
            yield from results


def _given(record: Mapping[str, Any]) -> tuple[Mapping[str, Any], Any]:
    """Return the facts of a record, and its messages with the answer to them."""
    facts = {**record, **inner(record, "request"), **inner(record, "response")}
    given, answer = first(facts, _GIVEN), at(facts, "output.message")
    return facts, [*given, answer] if answer and isinstance(given, list) else given


def _recognised(form: Form, record: Mapping[str, Any]) -> str | None:
    facts, given = _given(record)
    if not has_objects(given):
        return None
    if not form.marks:
        shaped = all(at(one, form.role) and isinstance(at(one, form.parts), list) for one in given[:3])
        return f"messages of {form.role} and {form.parts}" if shaped else None
    lists = [at(one, form.parts) if form.parts else [one] for one in given]
    parts = [part for one in lists if isinstance(one, list) for part in one if isinstance(part, Mapping)]
    kinds = [at(part, form.kind) if form.kind else next(iter(part), None) for part in parts]
    return next((f"messages with {mark}" for mark in form.marks if mark in kinds or at(facts, mark)), None)


def _read(form: Form, record: Mapping[str, Any], name: str, fields: Fields) -> Iterator[LoggedEpisode]:
    facts, given = _given(record)
    left: Counter[str] = Counter()
    told = next((told for one in given[::-1] if (told := at(one, "instructions"))), None)
    own = [one for one in given if at(one, "agentId") is None and at(one, "data.parentToolCallId") is None]
    left["events of agents that it started"] += len(given) - len(own)
    if len({at(one, "source") for one in own if not form.parts} - {None, "user"}) > 1:
        raise DataError("source: several agents speak, and nothing says which one learns")
    said, _ = responses.turns([*responses.instructions(told), *items(form, own, left)], left)
    known = first({**facts, "start": given[0]}, ("session_id", "info.id", "start.data.sessionId"))
    tools = [{**inner(one, "toolSpec"), "inputSchema": at(one, "toolSpec.inputSchema.json")}
             for one in at(facts, "toolConfig.tools") or ()]  # fmt: skip
    more = {"session_id": known, "tools": tools, "choices": None}
    if "stopReason" in facts:
        more["choices"] = [{"message": said.pop(), "finish_reason": facts["stopReason"]}]
    facts = {key: value for key, value in facts.items() if key not in _UNREAD}
    told = {**facts, **{key: value for key, value in more.items() if value}, "messages": said}
    yield from as_openai(told, name, fields, left_out(left))


READERS = tuple(Reader(name, partial(_recognised, form), partial(_read, form)) for name, form in FORMS.items())
