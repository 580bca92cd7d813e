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
from offline_agent.formats.agents.reader import Reader, as_openai, call, first, plain
from offline_agent.formats.anthropic import HIDDEN, SILENT
from offline_agent.logs.episode import Fields, LoggedEpisode, at, has_objects, inner, left_out

_ROLES = {"request": "user", "response": "assistant"}  # of pydantic-ai's messages
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


_SAID = {"text": "say text", "reasoning": "think text", "step-start": "step"}
_TOOL = "call toolCallId toolName input|rawInput; result toolCallId output|errorText|approval.reason"
_OLDER = _TOOL.replace("input|rawInput", "args").replace("output|errorText|approval.reason", "result")
_OTHER = "other history"
_ANSWERS = "result content: call_id content"
FORMS = {
    "copilot": Form(
        {"system.message": "system data.content", "user.message": "user data.transformedContent|data.content",
         "assistant.message": "step; think? data.reasoningText; say data.content; "
         "call data.toolRequests: toolCallId name arguments",
         "tool.execution_complete": "result data.toolCallId data.result.content|data.error.message", "*": "quiet",
         "session.compaction_complete": _OTHER, "session.snapshot_rewind": _OTHER, "session.truncation": _OTHER},
        "", "", ("session.start",)),
    "autogen": Form(
        {"SystemMessage": "system content", "UserMessage": "user content", "TextMessage": "say content",
         "AssistantMessage": "step; think? thought; say content; call content: id name arguments",
         "ThoughtEvent": "think content", "ToolCallRequestEvent": "call content: id name arguments",
         "ToolCallExecutionEvent": _ANSWERS, "FunctionExecutionResultMessage": _ANSWERS,
         "ToolCallSummaryMessage": "quiet"},
        "source", "", ("UserMessage", "TextMessage", "AssistantMessage")),
    "opencode": Form(
        {**_SAID, "tool": "call callID tool state.input; result callID state.output|state.error", "snapshot": "quiet",
         "step-finish": "quiet", "patch": "quiet", "agent": "", "compaction": _OTHER}, "info.role"),
    "pydantic_ai": Form(
        {"system-prompt": "system content", "user-prompt": "user content", "text": "say content",
         "thinking": "think content", "tool-call": "call tool_call_id tool_name args",
         "tool-return": "result tool_call_id content", "retry-prompt": "result tool_call_id content"},
        "kind", kind="part_kind"),
    "ai_sdk": Form(
        {**_SAID, "tool": _TOOL, "dynamic-tool": _TOOL, "tool-invocation": _OLDER, "source": "", "data": ""}),
    "ai_sdk_model": Form(
        {**_SAID, "tool-call": "call toolCallId toolName input|args",
         "tool-result": "result toolCallId output.value|output.reason|result"},
        parts="content", marks=("tool-call", "tool-result")),
    "bedrock": Form(
        {"text": "say text", "reasoningContent": "think reasoningContent.reasoningText.text", "cachePoint": "quiet",
         "toolUse": "call toolUse.toolUseId toolUse.name toolUse.input",
         "toolResult": "parts toolResult.toolUseId toolResult.content"},
        parts="content", kind="", marks=("toolUse", "toolConfig", "output.message", "reasoningContent")),
    "goose": Form(
        {"text": "say text", "thinking": "think thinking", "redactedThinking": "think data.none",
         "toolRequest": "call id toolCall.value.name toolCall.value.arguments", "systemNotification": "quiet",
         "toolResponse": "parts id toolResult.value.content|toolResult.value|toolResult.error",
         "toolConfirmationRequest": "quiet", "actionRequired": "quiet"},
        parts="content", marks=("toolRequest", "working_dir")),
}  # fmt: skip
"""Forms by the name of the format, those whose marks say most first."""


def _typed(form: Form, message: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the parts of a message, each with its type."""
    parts = at(message, form.parts) if form.parts else [message]
    for part in [{"text": parts, form.kind: "text"}] if isinstance(parts, str) else parts or ():
        kind = at(part, form.kind) or next(iter(part))
        if kind == "retry-prompt" and not part.get("tool_name"):
            kind = "user-prompt"
        elif kind == "tool-invocation":
            part = part["toolInvocation"]
        elif kind not in form.table and kind.partition("-")[0] in form.table:  # tool-NAME
            kind, _, name = kind.partition("-")
            part = {"toolName": name, **part}
        yield kind, part


def _says(form: Form, message: Any, left: Counter[str]) -> Iterator[tuple[str, list[Any]]]:
    """Yield what a message says: verbs with their values. Raises DataError where it has a part that is not read."""
    if at(message, "agentId") or at(message, "data.parentToolCallId"):
        left["events of agents that it started"] += 1
        return
    for kind, part in _typed(form, message):
        told = form.table.get(kind, form.table.get("*"))
        if told is None or told == _OTHER or part.get("providerExecuted"):
            raise DataError(f"a part of type {kind!r:.60}; read are {', '.join(form.table)}, what a model did not read "
                            "or wrote elsewhere is not")  # fmt: skip
        left[f"parts of type {kind}"] += not told
        for verb, *paths in map(str.split, filter(None, told.split("; "))):
            each = at(part, paths.pop(0)[:-1]) if paths and paths[0].endswith(":") else [part]
            for item in each if isinstance(each, list) else ():
                yield verb, [first(item, path.split("|")) for path in paths]


def messages(form: Form, given: list[Any], left: Counter[str]) -> list[dict[str, Any]]:
    """Return messages in OpenAI's form.

    Args:
        form: Where the given ones have what.
        given: Messages, or events.
        left: Gets the numbers of what is left out.

    Raises:
        DataError: A part is of a type that is not read, or stands where it would be learnt out of its order.
    """
    out: list[dict[str, Any]] = []
    turn: dict[str, Any] | None = None  # the one that goes on
    for number, one in enumerate(given):
        role = _ROLES.get(str(at(one, form.role)), at(one, form.role))
        role = role if role in ("system", "user") else "assistant"
        said: list[Any] = []  # by the user
        turn = None if turn and (turn["tool_calls"] or turn["content"][-1]["type"] == "text") else turn
        with located(f"message {number}"):
            for verb, values in _says(form, one, left):
                text = values[-1] if values else None
                if verb == "step":
                    turn = None
                elif verb in ("system", "user"):
                    out.append({"role": verb, "content": text})
                elif verb in ("result", "parts") and text is not None:
                    content = [{"text": plain(part["json"])} if "json" in part else part for part in text] if (
                        verb == "parts" and isinstance(text, list)) else plain(text)  # fmt: skip
                    out.append({"role": "tool", "tool_call_id": values[0], "content": content})
                elif verb in ("say", "think", "think?") and (not text or isinstance(text, list)):
                    left[HIDDEN] += verb == "think"
                elif verb == "say" and role != "assistant":
                    said.append({"type": "text", "text": text})
                elif verb in ("say", "think", "think?", "call"):
                    if verb != "call" and turn and turn["tool_calls"]:
                        if out[-1] is turn:
                            raise DataError("a text follows a call, and would be learnt before it")
                        turn = None
                    if turn is None:
                        out.append(turn := {"role": "assistant", "content": [], "tool_calls": []})
                    kind = "text" if verb == "say" else "reasoning"
                    if verb == "call":
                        turn["tool_calls"].append(call(values[1], text, values[0]))
                    else:
                        turn["content"].append({"type": kind, kind: text})
        out += [{"role": role, "content": said}] if said else []
    silent = [one for one in out if not one.get("tool_calls", True) and one["content"][-1]["type"] == "reasoning"]
    left[SILENT] += len(silent)
    return [one for one in out if one not in silent]


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
    parts = [part for one in given for part in (_listed(at(one, form.parts)) if form.parts else [one])]
    kinds = [at(part, form.kind) if form.kind else next(iter(part), None) for part in parts]
    return next((f"messages with {mark}" for mark in form.marks if mark in kinds or at(facts, mark)), None)


def _read(form: Form, record: Mapping[str, Any], name: str, fields: Fields) -> Iterator[LoggedEpisode]:
    facts, given = _given(record)
    left: Counter[str] = Counter()
    said = messages(form, given, left)
    told = next((told for one in given[::-1] if (told := at(one, "instructions"))), None)
    said[:0] = [{"role": "system", "content": told}] if told else []
    known = first({**facts, "start": given[0]}, ("session_id", "info.id", "start.data.sessionId"))
    tools = [{**inner(one, "toolSpec"), "inputSchema": at(one, "toolSpec.inputSchema.json")}
             for one in at(facts, "toolConfig.tools") or ()]  # fmt: skip
    more = {"session_id": known, "tools": tools, "choices": None}
    if "stopReason" in facts:
        more["choices"] = [{"message": said.pop(), "finish_reason": facts["stopReason"]}]
    facts = {key: value for key, value in facts.items() if key not in _UNREAD}
    told = {**facts, **{key: value for key, value in more.items() if value}, "messages": said}
    yield from as_openai(told, name, fields, left_out(left))


def _listed(value: Any) -> list[Any]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


READERS = tuple(Reader(name, partial(_recognised, form), partial(_read, form)) for name, form in FORMS.items())
