"""Logs of agents, tracers and benchmarks, written by their definitions without any code of the readers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from tests.helpers.log_writers import Spoken, Turn, openai

Json = dict[str, Any]


def _ids(rng: random.Random, calls: list[Any]) -> list[str]:
    return [f"call_{rng.getrandbits(40):x}" for _ in calls]


def _facts(one: Spoken) -> Json:
    return {"task_id": one.task, "session_id": one.session, "success": int(one.success)}


def _split(one: Spoken, rng: random.Random) -> tuple[list[Json], Json]:
    """Return messages of OpenAI's form before the last one, and the last one."""
    *messages, last = openai(one, rng)["messages"]
    return messages, last


def _thought(message: Json) -> str | None:
    return message.get("reasoning_content", message.get("reasoning"))


def _text(message: Json) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "" if content is None else str(content[0]["text"])


# -- spans -------------------------------------------------------------------------------------------------------------


def _parts(message: Json, rng: random.Random) -> Json:
    """Return a message of OpenTelemetry's GenAI conventions."""
    if message["role"] == "tool":
        key = rng.choice(("response", "result"))
        return {"role": "tool", "parts": [{"type": "tool_call_response", "id": message["tool_call_id"],
                                           key: message["content"]}]}  # fmt: skip
    parts = [{"type": "reasoning", "content": _thought(message)}] if _thought(message) else []
    if _text(message) or not message.get("tool_calls"):
        parts.append({"type": "text", "content": _text(message)})
    for call in message.get("tool_calls", ()):
        function = call["function"]
        parts.append({"type": "tool_call", "id": call["id"], "name": function["name"],
                      "arguments": json.loads(function["arguments"])})  # fmt: skip
    return {"role": message["role"], "parts": parts}


def opentelemetry(one: Spoken, rng: random.Random) -> Json:
    """Return a span of the last call of a conversation, as a line."""
    messages, last = _split(one, rng)
    attributes: Json = {"gen_ai.operation.name": "chat", "gen_ai.conversation.id": one.session, **_facts(one)}
    del attributes["session_id"]
    if one.system is not None and rng.random() < 0.5:
        attributes["gen_ai.system_instructions"] = [_parts(messages.pop(0), rng)["parts"][0]]
    attributes |= {
        "gen_ai.input.messages": [_parts(message, rng) for message in messages],
        "gen_ai.output.messages": [{**_parts(last, rng), "finish_reason": "stop"}],
        "gen_ai.tool.definitions": [{"type": "function", **tool["function"]} for tool in one.tools],
    }
    if rng.random() < 0.5:
        attributes = {key: json.dumps(value) if isinstance(value, list) else value for key, value in attributes.items()}
    return {"name": "chat m", "context": {"trace_id": "0x1", "span_id": "0x2"}, "parent_id": None,
            "status": {"status_code": "UNSET"}, "attributes": attributes, "events": []}  # fmt: skip


def _typed(value: Any) -> Json:
    """Return a value of OTLP's JSON."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"stringValue": value if isinstance(value, str) else json.dumps(value)}


def otlp(one: Spoken, rng: random.Random) -> Json:
    """Return the same as a file of OTLP, with the messages as an event each."""
    messages, last = _split(one, rng)
    events = []
    for message in [*messages, last]:
        body: Json = {"content": _text(message)}
        if message["role"] == "tool":
            body["id"] = message["tool_call_id"]
        if message.get("tool_calls"):
            body["tool_calls"] = message["tool_calls"]
        if _thought(message):
            body["reasoning_content"] = _thought(message)
        events.append({"name": f"gen_ai.{message['role']}.message", "body": body})
    events[-1] = {"name": "gen_ai.choice", "body": {"index": 0, "finish_reason": "stop", "message": events[-1]["body"]}}
    listed = [{"name": event["name"], "attributes": [
        {"key": "gen_ai.event.content", "value": {"stringValue": json.dumps(event["body"])}},
    ]} for event in events]  # fmt: skip
    attributes = {"gen_ai.system": "openai", "session.id": one.session, "task_id": one.task, "success": one.success,
                  "gen_ai.tool.definitions": one.tools}  # fmt: skip
    span = {"traceId": "a1", "spanId": "b2", "name": "chat m", "events": listed, "status": {},
            "attributes": [{"key": key, "value": _typed(value)} for key, value in attributes.items()]}  # fmt: skip
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": [span]}]}]}


def openllmetry(one: Spoken, rng: random.Random) -> Json:
    """Return a span whose messages are in names with numbers."""
    messages, last = _split(one, rng)
    attributes: Json = {"gen_ai.system": "OpenAI", "session.id": one.session, "task_id": one.task,
                        "success": one.success}  # fmt: skip
    for place, said in (("prompt", messages), ("completion", [last])):
        for number, message in enumerate(said):
            told = {key: message[key] for key in ("role", "tool_call_id") if key in message}
            told |= {"content": [{"type": "reasoning", "reasoning": _thought(message)}, {"type": "text", "text":
                     _text(message)}] if _thought(message) else _text(message)}  # fmt: skip
            for n, call in enumerate(message.get("tool_calls", ())):
                told |= {f"tool_calls.{n}.id": call["id"], f"tool_calls.{n}.name": call["function"]["name"],
                         f"tool_calls.{n}.arguments": call["function"]["arguments"]}  # fmt: skip
            attributes |= {f"gen_ai.{place}.{number}.{key}": value for key, value in told.items()}
    for number, tool in enumerate(one.tools):
        given = {**tool["function"], "parameters": json.dumps(tool["function"]["parameters"])}
        attributes |= {f"llm.request.functions.{number}.{key}": value for key, value in given.items()}
    return {"name": "openai.chat", "trace_id": "t", "attributes": attributes}


def openinference(one: Spoken, rng: random.Random) -> Json:
    """Return a span of OpenInference: attributes in names with dots, or in lists of objects with such names."""
    messages, last = _split(one, rng)
    attributes: Json = {"openinference.span.kind": "LLM", "session.id": one.session, "task_id": one.task,
                        "success": one.success}  # fmt: skip
    attributes |= {f"llm.tools.{n}.tool.json_schema": json.dumps(tool) for n, tool in enumerate(one.tools)}
    dotted = rng.random() < 0.5
    for name, said in (("input_messages", messages), ("output_messages", [last])):
        found = [_dotted(message) for message in said]
        if dotted:
            attributes |= {f"llm.{name}.{n}.{key}": value for n, one_ in enumerate(found)
                           for key, value in _flat(one_).items()}  # fmt: skip
        else:
            attributes[f"llm.{name}"] = found
    return {"name": "ChatCompletion", "context.trace_id": "t", "status_code": "OK", "attributes": attributes}


def _dotted(message: Json) -> Json:
    out: Json = {"message.role": message["role"], "message.content": _text(message)}
    if _thought(message):
        out["message.contents"] = [
            {"message_content.type": "reasoning", "message_content.text": _thought(message)},
            {"message_content.type": "text", "message_content.text": _text(message)},
        ]
        del out["message.content"]
    if message.get("tool_calls"):
        out["message.tool_calls"] = [
            {"tool_call.id": call["id"], "tool_call.function.name": call["function"]["name"],
             "tool_call.function.arguments": call["function"]["arguments"]} for call in message["tool_calls"]
        ]  # fmt: skip
    if "tool_call_id" in message:
        out["message.tool_call_id"] = message["tool_call_id"]
    return out


def _flat(message: Json) -> Json:
    out: Json = {}
    for key, value in message.items():
        if isinstance(value, list):
            out |= {f"{key}.{n}.{name}": text for n, entry in enumerate(value) for name, text in entry.items()}
        else:
            out[key] = value
    return out


# -- LangChain, LangSmith, Langfuse ------------------------------------------------------------------------------------

_TYPES = {"system": "system", "user": "human", "assistant": "ai", "tool": "tool"}
_CLASSES = {"system": "SystemMessage", "user": "HumanMessage", "assistant": "AIMessage", "tool": "ToolMessage"}


def _langchain(message: Json, form: str) -> Json:
    fields: Json = {"content": message["content"] or "", "additional_kwargs": {}, "response_metadata": {}, "id": "x"}
    if message["role"] == "assistant":
        fields["tool_calls"] = [
            {"name": call["function"]["name"], "args": json.loads(call["function"]["arguments"]), "id": call["id"],
             "type": "tool_call"} for call in message.get("tool_calls", ())
        ]  # fmt: skip
        fields["invalid_tool_calls"] = []
        if _thought(message):
            fields["additional_kwargs"] = {"reasoning_content": _thought(message)}
    if message["role"] == "tool":
        fields |= {"tool_call_id": message["tool_call_id"], "status": "success", "artifact": None}
    kind = _TYPES[message["role"]]
    if form == "lc":
        path = ["langchain", "schema", "messages", _CLASSES[message["role"]]]
        return {"lc": 1, "type": "constructor", "id": path, "kwargs": {**fields, "type": kind}}
    return {"type": kind, "data": {**fields, "type": kind}} if form == "data" else {**fields, "type": kind}


def langchain(one: Spoken, rng: random.Random) -> Json:
    """Return a state of LangGraph."""
    form = rng.choice(("lc", "data", "fields"))
    messages = [_langchain(message, form) for message in openai(one, rng)["messages"]]
    return {"messages": messages, "tools": one.tools, **_facts(one)}


def langsmith(one: Spoken, rng: random.Random) -> Json:
    """Return the run of the last call of a conversation."""
    messages, last = _split(one, rng)
    before = [_langchain(message, "lc") for message in messages]
    answer = {"text": "", "generation_info": {"finish_reason": "stop"}, "message": _langchain(last, "lc")}
    return {"id": "r", "trace_id": "t", "run_type": "llm", "name": "ChatModel", "dotted_order": "1", "error": None,
            "session_id": "project", "inputs": {"messages": [before]}, "outputs": {"generations": [[answer]]},
            "extra": {"invocation_params": {"tools": one.tools}, "metadata": {"thread_id": one.session}},
            "task_id": one.task, "success": one.success}  # fmt: skip


def langfuse(one: Spoken, rng: random.Random) -> Json:
    """Return the observation of the last call of a conversation."""
    messages, last = _split(one, rng)
    given: Any = {"messages": messages, "tools": one.tools}
    return {"id": "o", "traceId": "t", "sessionId": one.session, "type": "GENERATION", "level": "DEFAULT",
            "input": given, "output": last, "modelParameters": {"temperature": 1}, "task_id": one.task,
            "success": one.success}  # fmt: skip


# -- scaffolds and benchmarks ------------------------------------------------------------------------------------------


def swe_agent(one: Spoken, rng: random.Random) -> Json:
    """Return a trajectory of SWE-agent."""
    history: list[Json] = []
    for message in openai(one, rng)["messages"]:
        item: Json = {"role": message["role"], "content": message["content"] or "", "agent": "main"}
        if message["role"] == "assistant":
            item |= {"thought": "", "action": "", "message_type": "action", "tool_calls": message.get("tool_calls")}
            if _thought(message):
                item["thinking_blocks"] = [{"type": "thinking", "thinking": _thought(message), "signature": "s"}]
        else:
            item["message_type"] = "observation"
        if message["role"] == "tool":
            item["tool_call_ids"] = [message["tool_call_id"]]
        history.append(item)
    return {"history": history, "trajectory": [{"action": "", "query": history[:-1]}], "environment": "swe_main",
            "info": {"submission": None, "exit_status": "submitted"}, "replay_config": None, "tools": one.tools,
            **_facts(one)}  # fmt: skip


def mini_swe_agent(one: Spoken, rng: random.Random) -> Json:
    """Return a trajectory of mini-swe-agent."""
    messages = [{**message, "extra": {"timestamp": 1.0}} for message in openai(one, rng)["messages"]]
    return {"trajectory_format": "mini-swe-agent-1.1", "messages": messages, "tools": one.tools,
            "info": {"exit_status": "Submitted", "submission": "diff"}, **_facts(one)}  # fmt: skip


def openhands(one: Spoken, rng: random.Random) -> Json:
    """Return a line of OpenHands' evaluations."""
    history: list[Json] = [
        {"id": 0, "source": "agent", "action": "system", "args": {"content": one.system or "be", "tools": one.tools}},
        {"id": 1, "source": "environment", "observation": "agent_state_changed", "content": "", "extras": {}},
        {"id": 2, "source": "user", "action": "message", "args": {"content": one.request, "image_urls": None}},
    ]
    if one.system is None:
        history[0] = {"id": 0, "source": "agent", "action": "null", "args": {"tools": one.tools}}
    for number, message in enumerate(openai(one, rng)["messages"]):
        if message["role"] == "assistant":
            said = {**message, **({"reasoning_content": _thought(message)} if _thought(message) else {})}
            said.pop("reasoning", None)
            for call in message.get("tool_calls") or [{"id": "none", "function": {"name": "none"}}]:
                meta = {"function_name": call["function"]["name"], "tool_call_id": call["id"],
                        "model_response": {"id": f"m{number}", "choices": [{"message": said}]}}  # fmt: skip
                history.append({"id": 3, "source": "agent", "action": "run", "args": {}, "tool_call_metadata": meta})
        elif message["role"] == "tool":
            meta = {"function_name": "x", "tool_call_id": message["tool_call_id"], "model_response": {}}
            history.append({"id": 4, "source": "agent", "observation": "run", "content": message["content"],
                            "extras": {}, "tool_call_metadata": meta})  # fmt: skip
        elif number > 1 or (one.system is None and number > 0):
            history.append({"id": 5, "source": "user", "action": "message", "args": {"content": message["content"]}})
    return {"instance_id": one.task, "history": history, "metadata": {}, "instruction": one.request, "error": None,
            "test_result": {"report": {"resolved": one.success}}, "session_id": one.session}  # fmt: skip


def openhands_sdk(one: Spoken, rng: random.Random) -> Json:
    """Return the same with events of the software agent SDK."""
    history: list[Json] = []
    for number, message in enumerate(openai(one, rng)["messages"]):
        text = {"type": "text", "text": _text(message)}
        if message["role"] == "system":
            history.append({"kind": "SystemPromptEvent", "source": "agent", "system_prompt": text, "tools": []})
        elif message["role"] == "tool":
            seen = {"kind": "Observation", "content": [{"type": "text", "text": message["content"]}]}
            history.append({"kind": "ObservationEvent", "source": "environment", "observation": seen,
                            "tool_call_id": message["tool_call_id"]})  # fmt: skip
        elif not message.get("tool_calls"):
            said = {"role": message["role"], "content": [text], "reasoning_content": _thought(message)}
            history.append({"kind": "MessageEvent", "source": "agent", "llm_message": said, "extended_content": []})
        for call in message.get("tool_calls", ()):
            history.append({"kind": "ActionEvent", "source": "agent", "thought": [text], "tool_call_id": call["id"],
                            "reasoning_content": _thought(message), "llm_response_id": f"m{number}",
                            "tool_call": {"id": call["id"], **call["function"]}})  # fmt: skip
    history.append({"kind": "ConversationStateUpdateEvent", "source": "environment", "key": "stats"})
    return {"instance_id": one.task, "history": history, "error": None, "tools": one.tools,
            "test_result": {"report": {"resolved": one.success}}, "session_id": one.session}  # fmt: skip


def tau_bench(one: Spoken, rng: random.Random) -> Json:
    """Return a result of tau-bench."""
    return {"task_id": one.task, "reward": float(one.success), "info": {"task": {}}, "trial": 0,
            "traj": openai(one, rng)["messages"], "tools": one.tools, "session_id": one.session}  # fmt: skip


def tau2(one: Spoken, rng: random.Random) -> Json:
    """Return results of tau2 with one simulation, whose user calls a tool of its own."""
    messages: list[Json] = [{"role": "assistant", "content": "Hi!", "tool_calls": None, "turn_idx": 0}]
    pending: list[Json] = []
    given = openai(one, rng)["messages"]
    for message in given[one.system is not None :]:
        if message["role"] == "tool":
            pending.append({"role": "tool", "id": message["tool_call_id"], "content": message["content"],
                            "requestor": "assistant", "error": False})  # fmt: skip
            continue
        messages += [{"role": "tool", "tool_messages": pending}] if len(pending) > 1 else pending
        pending = []
        calls = [{"id": call["id"], "name": call["function"]["name"], "requestor": "assistant",
                  "arguments": json.loads(call["function"]["arguments"])}
                 for call in message.get("tool_calls", ())]  # fmt: skip
        messages.append({"role": message["role"], "content": _text(message), "tool_calls": calls or None,
                         "raw_data": {"message": {"reasoning_content": _thought(message)}}, "cost": 0.1})  # fmt: skip
        if message["role"] == "user":
            own = [{"id": "u", "name": "toggle", "arguments": {}, "requestor": "user"}]
            messages += [{"role": "user", "content": None, "tool_calls": own},
                         {"role": "tool", "id": "u", "content": "on", "requestor": "user"}]  # fmt: skip
    functions = [tool["function"] for tool in one.tools]
    messages += [{"role": "tool", "tool_messages": pending}] if len(pending) > 1 else pending
    tools = {given["name"]: {"doc": given["description"], "params": given["parameters"]} for given in functions}
    simulation = {"id": one.session, "task_id": one.task, "trial": 0, "termination_reason": "user_stop",
                  "reward_info": {"reward": float(one.success)}, "messages": messages}  # fmt: skip
    return {"tasks": [], "info": {"environment_info": {"domain_name": "d", "policy": one.system, "tool_defs": tools}},
            "simulations": [simulation]}  # fmt: skip


def smolagents(one: Spoken, rng: random.Random) -> Json:
    """Return a memory of smolagents; of a turn with several calls, the results are made a line each, to be told."""
    for turn in one.turns:
        if len(turn.calls) > 1:
            turn.results = [result.replace("\n", " ") for result in turn.results]
    steps: list[Json] = [{"task": one.request, "task_images": None}]
    if one.system is not None:
        steps.insert(0, {"system_prompt": one.system})
    for number, turn in enumerate(one.turns):
        calls = [{"id": id, "type": "function", "function": {"name": n, "arguments": a}}
                 for id, (n, a) in zip(_ids(rng, turn.calls), turn.calls, strict=True)]  # fmt: skip
        steps.append({
            "step_number": number, "tool_calls": calls, "error": None, "model_output": turn.text, "code_action": None,
            "model_output_message": {"role": "assistant", "reasoning_content": turn.reasoning},
            "observations": "\n".join(turn.results) or None, "observations_images": None, "is_final_answer": False,
        })  # fmt: skip
        if turn.reply is not None:
            steps.append({"task": turn.reply, "task_images": None})
    return {"steps": steps, "tools": one.tools, "state": "success", "output": "x", **_facts(one)}


def _contents(one: Spoken, rng: random.Random) -> list[Json]:
    out: list[Json] = [{"role": "user", "parts": [{"text": one.request}]}]
    for turn in one.turns:
        ids = _ids(rng, turn.calls)
        parts: list[Json] = [{"text": turn.reasoning, "thought": True}] if turn.reasoning is not None else []
        parts += [{"text": turn.text}] if turn.text or not turn.calls else []
        parts += [{"functionCall": {"id": id, "name": n, "args": a}}
                  for id, (n, a) in zip(ids, turn.calls, strict=True)]  # fmt: skip
        out.append({"role": "model", "parts": parts})
        results = [{"functionResponse": {"id": id, "name": n, "response": {"output": result}}}
                   for id, (n, _), result in zip(ids, turn.calls, turn.results, strict=False)]  # fmt: skip
        rng.shuffle(results)
        out += [{"role": "user", "parts": results}] if results else []
        out += [{"role": "user", "parts": [{"text": turn.reply}]}] if turn.reply is not None else []
    return out


def gemini_cli(one: Spoken, rng: random.Random) -> Json:
    """Return a checkpoint of Gemini CLI, with what a request would have beside it."""
    system = {} if one.system is None else {"systemInstruction": {"parts": [{"text": one.system}]}}
    declared = [{"functionDeclarations": [tool["function"] for tool in one.tools]}]
    return {"history": _contents(one, rng), "tools": declared, **system, **_facts(one)}


def gemini_session(one: Spoken, rng: random.Random) -> Json:
    """Return a session of Gemini CLI, with the calls beside the messages."""
    messages: list[Json] = [{"id": "0", "type": "info", "content": "welcome"},
                            {"id": "1", "type": "user", "content": [{"text": one.request}]}]  # fmt: skip
    for number, turn in enumerate(one.turns):
        calls = [{"id": id, "name": n, "args": a, "status": "success", "result": [
            {"functionResponse": {"id": id, "name": n, "response": {"output": result}}},
        ]} for id, (n, a), result in zip(_ids(rng, turn.calls), turn.calls, turn.results, strict=True)]  # fmt: skip
        thoughts = [{"subject": "", "description": turn.reasoning}] if turn.reasoning is not None else []
        messages.append({"id": f"g{number}", "type": "gemini", "content": turn.text, "toolCalls": calls,
                         "thoughts": thoughts})  # fmt: skip
        if turn.reply is not None:
            messages.append({"id": f"u{number}", "type": "user", "content": turn.reply})
    return {"sessionId": one.session, "projectHash": "h", "messages": messages, "task_id": one.task,
            "success": one.success, "tools": one.tools, "system": one.system}  # fmt: skip


# -- messages of typed parts, and events -------------------------------------------------------------------------------


Part = Callable[[str, Any], Json]


def _spoken(one: Spoken, rng: random.Random) -> Iterator[tuple[Turn, list[Json]]]:
    """Yield each turn, and its calls: `id`, `name`, `input` and `said`, which answers it."""
    for turn in one.turns:
        ids = _ids(rng, turn.calls)
        told = zip(ids, turn.calls, turn.results, strict=True)
        yield turn, [{"id": id, "name": name, "input": given, "said": said} for id, (name, given), said in told]


def _parted(one: Spoken, rng: random.Random, part: Part, message: Part, results: str | None) -> list[Json]:
    """Return messages, whose parts and themselves two functions make; with the role of results, None = calls have them.
    """
    messages = [message("user", [part("text", one.request)])]
    for turn, calls in _spoken(one, rng):
        parts = [part("thought", turn.reasoning)] if turn.reasoning is not None else []
        parts += [part("text", turn.text)] if turn.text else []
        messages.append(message("assistant", [*parts, *(part("call", call) for call in calls)]))
        if calls and results is not None:
            messages.append(message(results, [part("result", call) for call in calls]))
        messages += [message("user", [part("text", turn.reply)])] if turn.reply is not None else []
    return messages


def ai_sdk(one: Spoken, rng: random.Random) -> Json:
    """Return UIMessages of the Vercel AI SDK, version 5: a message of the assistant has all steps up to the user."""
    def part(kind: str, value: Any) -> Json:
        if kind != "call":
            return {"type": {"thought": "reasoning"}.get(kind, kind), "text": value, "state": "done"}
        named = rng.choice(({"type": f"tool-{value['name']}"}, {"type": "dynamic-tool", "toolName": value["name"]}))
        return {**named, "toolCallId": value["id"], "state": "output-available", "input": value["input"],
                "output": value["said"]}  # fmt: skip

    messages: list[Json] = []
    for given in _parted(one, rng, part, lambda role, parts: {"role": role, "id": "m", "parts": parts}, None):
        if given["role"] == "assistant":
            given["parts"].insert(0, {"type": "step-start"})
        if messages and messages[-1]["role"] == given["role"] == "assistant":
            messages[-1]["parts"] += given["parts"]
        else:
            messages.append(given)
    return {"messages": messages, "system": one.system, "tools": one.tools, **_facts(one)}


def ai_sdk_model(one: Spoken, rng: random.Random) -> Json:
    """Return ModelMessages of the same."""
    def part(kind: str, value: Any) -> Json:
        if kind in ("text", "thought"):
            return {"type": {"thought": "reasoning"}.get(kind, kind), "text": value}
        told = {"input": value["input"]} if kind == "call" else {"output": {"type": "text", "value": value["said"]}}
        return {"type": f"tool-{kind}", "toolCallId": value["id"], "toolName": value["name"], **told}

    messages = _parted(one, rng, part, lambda role, parts: {"role": role, "content": parts}, "tool")
    return {"messages": messages, "system": one.system, "tools": one.tools, **_facts(one)}


def bedrock(one: Spoken, rng: random.Random) -> Json:
    """Return a request of Bedrock's Converse API and its response."""
    def part(kind: str, value: Any) -> Json:
        if kind in ("text", "thought"):
            return {"text": value} if kind == "text" else {"reasoningContent": {"reasoningText": {"text": value}}}
        told = {"name": value["name"], "input": value["input"]} if kind == "call" else {
            "content": [{"text": value["said"]}], "status": "success"}  # fmt: skip
        return {{"call": "toolUse", "result": "toolResult"}[kind]: {"toolUseId": value["id"], **told}}

    messages = _parted(one, rng, part, lambda role, parts: {"role": role, "content": parts}, "user")
    specs = [{"toolSpec": {"name": tool["function"]["name"], "description": tool["function"]["description"],
                           "inputSchema": {"json": tool["function"]["parameters"]}}} for tool in one.tools]  # fmt: skip
    answer = {"output": {"message": messages.pop()}, "stopReason": "end_turn"}
    system = {} if one.system is None else {"system": [{"text": one.system}]}
    request = {"modelId": "m", **system, "messages": messages, "toolConfig": {"tools": specs}}
    return {"request": request, "response": answer, **_facts(one)}


def pydantic_ai(one: Spoken, rng: random.Random) -> Json:
    """Return a message history of pydantic-ai."""
    def part(kind: str, value: Any) -> Json:
        if kind in ("text", "thought"):
            return {"content": value, "part_kind": {"thought": "thinking"}.get(kind, kind)}
        told = {"args": rng.choice((value["input"], json.dumps(value["input"])))} if kind == "call" else {
            "content": value["said"]}  # fmt: skip
        return {"tool_name": value["name"], "tool_call_id": value["id"], **told,
                "part_kind": {"call": "tool-call", "result": "tool-return"}[kind]}  # fmt: skip

    def message(role: str, parts: list[Json]) -> Json:
        if role == "user":
            parts = [{**one, "part_kind": "user-prompt"} for one in parts]
        return {"kind": "response" if role == "assistant" else "request", "parts": parts}

    messages = _parted(one, rng, part, message, "tool")
    if one.system is not None:
        messages[0]["parts"].insert(0, {"content": one.system, "part_kind": "system-prompt"})
    return {"messages": messages, "tools": one.tools, **_facts(one)}


def goose(one: Spoken, rng: random.Random) -> Json:
    """Return a session that goose exported, with its system prompt and tools beside it."""
    def part(kind: str, value: Any) -> Json:
        if kind in ("text", "thought"):
            name = {"thought": "thinking"}.get(kind, kind)
            return {"type": name, name: value}
        said = [{"type": "text", "text": value["said"]}]
        told = {"name": value["name"], "arguments": value["input"]} if kind == "call" else rng.choice(
            (said, {"content": said}))  # fmt: skip
        place, name = {"call": ("toolCall", "toolRequest"), "result": ("toolResult", "toolResponse")}[kind]
        return {"type": name, "id": value["id"], place: {"status": "success", "value": told}}

    messages = _parted(one, rng, part, lambda role, parts: {"role": role, "created": 1, "content": parts}, "user")
    return {"conversation": messages, "working_dir": "/w", "system": one.system, "tools": one.tools, **_facts(one)}


def opencode(one: Spoken, rng: random.Random) -> Json:
    """Return a session that opencode exported, with its system prompt and tools beside it."""
    def part(kind: str, value: Any) -> Json:
        if kind != "call":
            return {"type": {"thought": "reasoning"}.get(kind, kind), "text": value}
        state = {"status": "completed", "input": value["input"], "output": value["said"], "title": ""}
        return {"type": "tool", "tool": value["name"], "callID": value["id"], "state": state}

    messages = _parted(one, rng, part, lambda role, parts: {"info": {"role": role}, "parts": [
        *([{"type": "step-start"}] if role == "assistant" else []), *parts]}, None)  # fmt: skip
    return {"info": {"id": one.session, "directory": "/w"}, "messages": messages, "system": one.system,
            "tools": one.tools, "task_id": one.task, "success": one.success}  # fmt: skip


def copilot(one: Spoken, rng: random.Random) -> Json:
    """Return the events of a session of GitHub Copilot CLI, as one record."""
    told: list[tuple[str, Json]] = [("session.start", {"sessionId": one.session}), ("session.info", {"message": "hi"})]
    told += [] if one.system is None else [("system.message", {"content": one.system, "role": "system"})]
    told.append(("user.message", {"content": "raw", "transformedContent": one.request}))
    for turn, calls in _spoken(one, rng):
        asked = [{"toolCallId": call["id"], "name": call["name"], "arguments": call["input"]} for call in calls]
        thought = {} if turn.reasoning is None else {"reasoningText": turn.reasoning}
        told.append(("assistant.message", {"content": turn.text, "toolRequests": asked, **thought}))
        told += [("tool.execution_complete", {"toolCallId": call["id"], "result": {"content": call["said"]}})
                 for call in calls]  # fmt: skip
        told += [("user.message", {"content": turn.reply})] if turn.reply is not None else []
    events = [{"type": type, "data": data, "id": "e", "parentId": None} for type, data in told]
    return {"events": events, "tools": one.tools, "task_id": one.task, "success": one.success}


def autogen(one: Spoken, rng: random.Random) -> Json:
    """Return the messages of a run of AutoGen's agent, whose calls have no text beside them but a thought."""
    told: list[Json] = [] if one.system is None else [{"type": "SystemMessage", "content": one.system}]
    told.append({"type": "TextMessage", "source": "user", "content": one.request})
    for turn, calls in _spoken(one, rng):
        turn.text = "" if calls else turn.text
        told += [{"type": "ThoughtEvent", "content": turn.reasoning}] if turn.reasoning is not None else []
        told += [{"type": "TextMessage", "content": turn.text}] if turn.text else []
        asked = [{"id": call["id"], "name": call["name"], "arguments": json.dumps(call["input"])} for call in calls]
        answers = [{"call_id": call["id"], "content": call["said"], "is_error": False} for call in calls]
        told += [{"type": "ToolCallRequestEvent", "content": asked}] if asked else []
        told += [{"type": "ToolCallExecutionEvent", "content": answers}] if answers else []
        told += [{"type": "TextMessage", "source": "user", "content": turn.reply}] if turn.reply is not None else []
    return {"messages": [{"source": "agent", **one} for one in told], "tools": one.tools, **_facts(one)}


AGENT_WRITERS = {
    "swe_agent": swe_agent, "mini_swe_agent": mini_swe_agent, "openhands": openhands, "openhands-sdk": openhands_sdk,
    "tau_bench": tau_bench, "tau2": tau2, "smolagents": smolagents, "gemini_cli": gemini_cli,
    "gemini_cli-session": gemini_session, "langchain": langchain, "langsmith": langsmith, "langfuse": langfuse,
    "openinference": openinference, "opentelemetry": opentelemetry, "opentelemetry-otlp": otlp,
    "opentelemetry-numbered": openllmetry, "ai_sdk": ai_sdk, "ai_sdk_model": ai_sdk_model, "bedrock": bedrock,
    "pydantic_ai": pydantic_ai, "goose": goose, "opencode": opencode, "copilot": copilot, "autogen": autogen,
}  # fmt: skip
"""Writers by format; what follows a hyphen is another form of the same format."""
