"""Foreign conversations as token rows, through the tokenizer's own chat template and its generation markers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from offline_agent.errors import ConfigError, DataError, did_you_mean
from offline_agent.rendering.parsing import CLOSE, OPEN, dump
from offline_agent.rendering.renderer import Renderer
from offline_agent.rendering.styles import TEMPLATES
from offline_agent.rollouts.demonstrations import signature

_ROLES = {"developer": "system", "function": "tool"}
"""Other names of roles."""
_KEYS = {
    "system": {"name"},
    "user": {"name"},
    "assistant": {"name", "tool_calls", "function_call", "reasoning_content", "reasoning", "weight", "loss", "train"},
    "tool": {"name", "tool_call_id"},
}
"""Keys of a message beside `role` and `content`, by role; what others mean for training is not known."""
_MARKS = ("weight", "loss", "train")
"""Keys that say whether a turn is trained: 1 or true, 0 or false."""
_MARKER = re.compile(r"\{%-?\s*generation\s*-?%\}")


class Encoder:
    """Encodes messages where nobody kept the ids; what a policy sampled is never encoded here.

    Args:
        renderer: Holds the tokenizer.

    Raises:
        ConfigError: The chat template has no generation markers, or they leave the end of a turn out, so that a model
            would never learn to stop.
    """

    def __init__(self, renderer: Renderer) -> None:
        self._renderer, self._tokenizer = renderer, renderer.tokenizer
        self._ends = renderer.eos_ids
        tokens = getattr(self._tokenizer, "added_tokens_decoder", {}).values()
        self._controls = sorted({t.content for t in tokens if t.special and t.content.strip()}, key=len, reverse=True)
        template = str(self._tokenizer.get_chat_template())
        if not _MARKER.search(template):
            raise ConfigError(
                "the chat template has no {% generation %} markers, so nothing says which tokens of messages are the "
                "assistant's. Put {% generation %} … {% endgeneration %} around the assistant's turns, end-of-turn "
                f"token included, or name a ready-made template: model.chat_template={' | '.join(TEMPLATES)}"
            )

    def trajectory(self, messages: Any, tools: Any, loose: bool) -> tuple[list[int], list[int]]:
        """Return ids int [n] and mask int [n], 1 = the assistant's, up to and with the last turn's end.

        Args:
            messages: A list of messages, each a mapping or its JSON text.
            tools: A list of schemas, its JSON text, or None.
            loose: Nulls in messages may be Arrow's, put where a key is absent: they are left out.

        Raises:
            DataError: The messages are no conversation, hold control tokens' texts, or have no assistant turn.
        """
        turns, schemas = _messages(messages, loose), _tools(tools, loose)
        self._check_contents(turns, schemas)
        ids, mask = self._encode(turns, schemas)
        last = max((at for at, value in enumerate(mask) if value), default=-1)
        if last < 0:
            raise DataError("it has no assistant turn")
        return ids[: last + 1], mask[: last + 1]

    def pair(self, row: Mapping[str, Any], loose: bool) -> dict[str, list[int]]:
        """Return `prompt_ids`, and `<side>_ids` and `<side>_mask` of both sides, from a row of messages.

        Raises:
            DataError: As `trajectory`; or the template renders the prompt otherwise once it is continued.
        """
        prompt = _messages(row.get("prompt"), loose, trained=False)
        tools = _tools(row.get("tools"), loose)
        self._check_contents(prompt, tools)
        start = self._prompt(prompt, tools)
        out = {"prompt_ids": start}
        for side in ("chosen", "rejected"):
            turns = _messages(row.get(side), loose)
            self._check_contents(turns, None)
            ids, mask = self._encode([*prompt, *turns], tools)
            if ids[: len(start)] != start:
                raise DataError(f"the chat template renders its prompt otherwise once its {side} side follows")
            mask = mask[len(start) :]
            last = max((at for at, value in enumerate(mask) if value), default=-1)
            if last < 0:
                raise DataError(f"its {side} side has no assistant turn")
            out[f"{side}_ids"], out[f"{side}_mask"] = ids[len(start) :][: last + 1], mask[: last + 1]
        return out

    def _prompt(self, messages: Sequence[Mapping[str, Any]], tools: Any) -> list[int]:
        try:
            encoded = self._tokenizer.apply_chat_template(
                _plain(messages), tools=tools, add_generation_prompt=True, return_dict=True
            )
        except Exception as error:  # a template raises what it likes
            raise DataError(f"the chat template refuses its prompt ({type(error).__name__}: {error})") from error
        return [int(token) for token in encoded["input_ids"]]

    def _encode(self, messages: Sequence[Mapping[str, Any]], tools: Any) -> tuple[list[int], list[int]]:
        try:
            encoded = self._tokenizer.apply_chat_template(
                _plain(messages), tools=tools, return_dict=True, return_assistant_tokens_mask=True
            )
        except Exception as error:  # a template raises what it likes
            raise DataError(f"the chat template refuses its messages ({type(error).__name__}: {error})") from error
        ids, mask = [int(token) for token in encoded["input_ids"]], [0] * len(encoded["input_ids"])
        spans = self._ended(ids, [int(v) for v in encoded["assistant_masks"]])
        turns = [message for message in messages if message["role"] == "assistant"]
        if len(spans) != len(turns):
            raise DataError(f"the chat template marks {len(spans)} turns where the conversation has {len(turns)}")
        for (start, stop), turn in zip(spans, turns, strict=True):
            if turn.get("trained", True):
                self._check_turn(ids[start:stop], turn)
                mask[start:stop] = [1] * (stop - start)
        return ids, mask

    def _check_turn(self, ids: Sequence[int], turn: Mapping[str, Any]) -> None:
        """Check that what is trained reads back as the message; several calls at once are not read here."""
        calls = turn.get("tool_calls", ())
        if len(calls) > 1:
            return
        action = self._renderer.parse(list(ids), [0.0] * len(ids))
        called = None if action.call is None else (action.call.name, dict(action.call.arguments))
        wanted = (calls[0]["function"]["name"], calls[0]["function"]["arguments"]) if calls else None
        if action.fault is not None or called != wanted or action.thought.strip() != turn["content"].strip():
            why = action.detail or f"it reads as {(action.thought, called)!r}"[:300]
            raise DataError(f"the chat template writes an assistant's turn that is not read back: {why}")

    def _ended(self, ids: Sequence[int], mask: Sequence[int]) -> list[tuple[int, int]]:
        """Return begin and end of each turn, cut after its end-of-turn token: what follows is the template's."""
        out = []
        at = 0
        while at < len(mask):
            if not mask[at]:
                at += 1
                continue
            stop = at
            while stop < len(mask) and mask[stop]:
                stop += 1
            end = next((place for place in range(at, stop) if ids[place] in self._ends), None)
            if end is None:
                raise ConfigError(
                    "the chat template's generation markers leave the end-of-turn token out, so a model would never "
                    "learn to stop. Close {% endgeneration %} right after that token, or name a ready-made template: "
                    f"model.chat_template={' | '.join(TEMPLATES)}"
                )
            out.append((at, end + 1))
            at = end + 1
            while at < stop and ids[at] not in self._ends and not self._tokenizer.decode([ids[at]]).strip():
                at += 1  # blanks between two turns that one block of the template writes
        return out

    def _check_contents(self, messages: Sequence[Mapping[str, Any]], tools: Any) -> None:
        for name, part in [*((f"message {n}", m) for n, m in enumerate(messages)), ("a tool", tools)]:
            text = json.dumps(part, ensure_ascii=False)
            found = next((control for control in self._controls if control in text), None)
            if found is not None:
                raise DataError(f"{name} holds the text {found!r}, which would become a control token")


def _plain(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages as a chat template takes them."""
    return [{key: value for key, value in message.items() if key != "trained"} for message in messages]


def texts(messages: Any, tools: Any, loose: bool) -> Iterator[str]:
    """Yield the texts of a conversation, to learn a tokenizer from; arguments and errors as `Encoder.trajectory`."""
    for schema in _tools(tools, loose) or ():
        yield signature(schema)
    for message in _messages(messages, loose):
        yield message["content"]
        for call in message.get("tool_calls", ()):
            yield f"{OPEN}\n{dump(call['function'])}\n{CLOSE}"


def _messages(value: Any, loose: bool, trained: bool = True) -> list[dict[str, Any]]:
    value = _parsed(value)
    if not isinstance(value, list) or not value:
        raise DataError("it has no messages (a list of objects with role and content is wanted)")
    messages = [_parsed(message) for message in value]
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise DataError(f"message {number} has no role")
    # A null beside `content` tells that the row went through Arrow, whatever file it lies in now.
    loose = loose or any(v is None for message in messages for k, v in message.items() if k != "content")
    return [_message(message, loose, trained) for message in messages]


def _message(message: Mapping[str, Any], loose: bool, trained: bool) -> dict[str, Any]:
    role = _ROLES.get(message["role"], message["role"])
    if role not in _KEYS:
        allowed = ", ".join([*_KEYS, *_ROLES])
        raise DataError(f"a message has the role {message['role']!r}, allowed: {allowed}{did_you_mean(role, _KEYS)}")
    given = {key: value for key, value in message.items() if value is not None and key not in ("role", "content")}
    unknown = sorted(str(key) for key in given.keys() - _KEYS[role] if not (loose and given[key] in ("", [], {})))
    if unknown:
        raise DataError(
            f"a message of the role {role} has {', '.join(unknown)}, allowed: role, content, "
            f"{', '.join(sorted(_KEYS[role]))}; take it out, or put what is to be learnt into content"
        )
    out: dict[str, Any] = {"role": role, **{key: given[key] for key in ("name", "tool_call_id") if key in given}}
    content = message.get("content")
    content = "" if content is None else content
    if isinstance(content, list):  # parts, as multi-modal formats write them
        texts = [part["text"] for part in content if isinstance(part, Mapping) and isinstance(part.get("text"), str)]
        if len(texts) != len(content):
            raise DataError(f"a {message['role']} message has content that is not text")
        content = "".join(texts)
    if not isinstance(content, str):
        raise DataError(f"a {message['role']} message has {type(content).__name__} content, not text")
    thoughts = given.get("reasoning_content", given.get("reasoning"))
    out["content"] = f"<think>\n{_thoughts(thoughts)}\n</think>\n\n{content}" if thoughts else content
    calls = [_parsed(call) for call in _parsed(given.get("tool_calls")) or ()]
    if given.get("function_call"):
        calls.append({"function": given["function_call"]})
    if calls:
        out["tool_calls"] = [_call(call, loose) for call in calls]
    if role == "assistant":
        out["trained"] = all([_mark(key, given[key]) for key in _MARKS if key in given]) and trained
        if out["trained"] and not calls and not content.strip():
            raise DataError(
                "an assistant's turn has neither content nor a call, and would teach to stop; take it out, or mark it "
                "with train: false"
            )
    return out


def _thoughts(value: Any) -> str:
    if not isinstance(value, str):
        raise DataError(f"an assistant's reasoning is {type(value).__name__}, not text")
    return value


def _mark(key: str, value: Any) -> bool:
    """Return whether a turn is trained, by one of its marks."""
    if value not in (0, 1):  # False and True are equal to these
        raise DataError(f"{key}: got {value!r}, allowed: 1 or true (the turn is trained), 0 or false (it is not)")
    return bool(value)


def _call(call: Any, loose: bool) -> dict[str, Any]:
    function = _parsed(call.get("function") or call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise DataError("a tool call has no function with a name")
    arguments: Any = function.get("arguments")
    given_as_text = isinstance(arguments, str)
    if given_as_text:
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except ValueError as error:
            raise DataError(f"the arguments of a call of {function['name']} are no JSON ({error})") from error
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, Mapping):
        said = "JSON text in JSON text" if isinstance(arguments, str) else type(arguments).__name__
        raise DataError(f"the arguments of a call of {function['name']} are {said}, allowed: an object, or its JSON")
    # Text keeps its nulls: only a struct's may be nobody's.
    arguments = _bare(arguments) if loose and not given_as_text else arguments
    return {"type": "function", "function": {"name": function["name"], "arguments": arguments}}


def _tools(value: Any, loose: bool) -> list[Any] | None:
    value = _parsed(value)
    if value is None:
        return None
    if not isinstance(value, list):
        raise DataError(f"its tools are {type(value).__name__}, not a list of schemas")
    tools = [_parsed(tool) for tool in value]
    return [_bare(tool) if loose else tool for tool in tools] or None


def _parsed(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise DataError(f"a text where a message, call or schema is wanted is no JSON ({error})") from error


def _bare(value: Any) -> Any:
    """Return a value without its null members."""
    if isinstance(value, Mapping):
        return {key: _bare(item) for key, item in value.items() if item is not None}
    return [_bare(item) for item in value] if isinstance(value, list) else value
