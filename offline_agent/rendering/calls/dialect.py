"""Dialects: how a chat template wants its messages, found by rendering probes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from offline_agent.records import Message, call_message
from offline_agent.rendering.parsing import dump, thinking, without_reason

Json = Mapping[str, Any]
Render = Callable[[Sequence[Message], Sequence[Json]], str]

_FIELDS = ("reasoning_content", "thinking", "reasoning")
_ASKED, _WORDS, _REASON, _FOUND = "q2wv asked", "q3wv words", "q4wv reason", "q5wv found"


@dataclass(frozen=True, slots=True)
class Dialect:
    """A chat template's wishes; the defaults are those of the templates that ship, which take messages as they are.

    Attributes:
        parts: Contents are lists of parts.
        system: There are system turns; else the system prompt begins the first user's turn.
        lists: It lists the tools; else the list goes into the system prompt.
        calls: Whether it writes calls, and their arguments from an object or from JSON text. None where it does not:
            then calls and the answers of tools are written as contents, in the form of the template `qwen`.
        reason: The key of a message for its reasoning; None where it stays in the content, between <think> tags.
        beside: What becomes of the words beside a call: they stay, count as reasoning, or are dropped once the turn is
            over.
        example: A call as it writes it, for a list of tools that it does not write itself.
    """

    parts: bool = False
    system: bool = True
    lists: bool = True
    calls: Literal["object", "text"] | None = "object"
    reason: str | None = None
    beside: Literal["kept", "reason", "dropped"] = "kept"
    example: str | None = None

    def adapt(self, messages: Sequence[Message], tools: Sequence[Json]) -> tuple[list[Message], Sequence[Json]]:
        """Return messages and tools as the template wants them."""
        out = [self._message(message) for message in messages]
        if tools and not self.lists:
            system = out.pop(0)["content"] if out[0]["role"] == "system" else ""
            out.insert(0, {"role": "system", "content": _with_tools(system, tools, self.example)})
        if not self.system and len(out) > 1 and out[0]["role"] == "system":
            system = out.pop(0)["content"]
            out[0] = {**out[0], "content": f"{system}\n\n{out[0]['content']}"}
        if self.parts:
            out = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in out]
        return out, tools if self.lists else ()

    def _message(self, message: Message) -> Message:
        if message["role"] == "tool" and self.calls is None:
            return {"role": "user", "content": _ours(message)}
        calls = message.get("tool_calls")
        if message["role"] != "assistant" or (not calls and self.reason is None):
            return message
        if calls and self.calls is None:
            return self._reasoned({"role": "assistant", "content": _ours(message)}, False)
        if calls and self.calls == "text":
            functions = [call["function"] for call in calls]
            texts = [dump(function["arguments"]) for function in functions]
            message = {**message, "tool_calls": [
                {**call, "function": {**function, "arguments": text}}
                for call, function, text in zip(calls, functions, texts, strict=True)
            ]}  # fmt: skip
        return self._reasoned(message, bool(calls))

    def _reasoned(self, message: Message, called: bool) -> Message:
        reason, words = without_reason(message["content"]) if self.reason else ("", message["content"])
        if called and self.beside == "reason":
            reason, words = "\n\n".join(filter(None, (reason, words))), ""
        if called and self.beside == "dropped":
            words = ""
        return {**message, "content": words} | ({self.reason: reason} if self.reason and reason else {})


def learn(render: Render, tool: Json) -> Dialect:
    """Return the dialect of a chat template.

    Args:
        render: Its own rendering of messages and tools; raises where it refuses them.
        tool: The schema of a tool with a text argument `key`.
    """

    def text(dialect: Dialect, *messages: Message) -> str:
        try:
            return render(*dialect.adapt(messages, [tool]))
        except Exception:  # jinja and templates raise errors of any class; what it refuses it does not write
            return ""

    user, system = {"role": "user", "content": _ASKED}, {"role": "system", "content": _REASON}
    call = call_message(tool["function"]["name"], {"key": _FOUND})
    said = lambda **more: {"role": "assistant", "content": "", **more}  # noqa: E731
    found = Dialect()
    if _ASKED not in text(found, user) and _ASKED in text(replace(found, parts=True), user):
        found = replace(found, parts=True)
    if _REASON not in text(found, system, user) and _REASON in text(replace(found, system=False), system, user):
        found = replace(found, system=False)
    if _FOUND not in text(found, user, {**call, "content": _WORDS}):
        as_text = replace(found, calls="text")
        found = as_text if _FOUND in text(as_text, user, {**call, "content": _WORDS}) else replace(found, calls=None)
    if found.calls is None or tool["function"]["name"] not in text(found, user):
        found = replace(found, lists=False)
    # in both kinds of turn, since some templates show reasoning beside a call alone
    thought = thinking(_REASON, _WORDS)
    turns = (said(content=thought), {**call, "content": thought})
    inline = [text(found, user, turn) for turn in turns]
    for key in _FIELDS:
        with_key = replace(found, reason=key)
        written = [text(with_key, user, turn) for turn in turns]
        # some put the tags that they find in a content into the field themselves: then nothing is to be done
        if any(_REASON in new and new != old for new, old in zip(written, inline, strict=True)):
            found = with_key
            break
    if found.calls is not None:
        # words are kept where they come before the call, since a policy writes them there
        ways = (found, replace(found, beside="reason"))
        shown = (text(way, user, turns[1]) for way in ways)
        good = (way for way, all in zip(ways, shown, strict=True) if 0 <= all.find(_WORDS) < all.find(_FOUND))
        found = next(good, replace(found, beside="dropped"))
    return found


def _with_tools(system: str, tools: Sequence[Json], example: str | None) -> str:
    text = _ours({"role": "system", "content": system}, tools)
    text = text if system else text.lstrip()
    if example is not None:
        text = text.rpartition("For each function call")[0] + f"To call a function, write:\n{example}"
    return text


def _ours(message: Message, tools: Sequence[Json] = ()) -> str:
    """Return what the template `qwen` writes between a turn's header and its end."""
    from transformers.utils.chat_template_utils import render_jinja_template

    texts, _ = render_jinja_template([[message]], tools=list(tools) or None, chat_template=_template())
    return str(texts[0]).partition("\n")[2].removesuffix("<|im_end|>\n")


@cache
def _template() -> str:
    return (Path(__file__).parents[1] / "templates" / "qwen.jinja").read_text(encoding="utf-8")
