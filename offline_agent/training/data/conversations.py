"""Foreign conversations as token rows: with the ids that a search would have of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from offline_agent import pictures
from offline_agent.errors import ConfigError, DataError, located
from offline_agent.messages import arrow, parsed, read, schemas
from offline_agent.records import Action, Context, Role, Task, ToolCall
from offline_agent.rendering.layout import Layout, lay_out
from offline_agent.rendering.parsing import CLOSE, OPEN, dump
from offline_agent.rendering.renderer import Renderer
from offline_agent.rendering.styles import TEMPLATES
from offline_agent.rollouts.demonstrations import signature

_MARKER = re.compile(r"\{%-?\s*generation\s*-?%\}")
_THOUGHT = re.compile(r"</?think>")


class _History(NamedTuple):
    """Messages as the history that a search has of them.

    Attributes:
        context: Its last context.
        differs: Whether the whole text, tokenised at once, has other ids.
    """

    context: Context
    differs: bool


class Encoder:
    """Encodes messages where nobody kept the ids; what a policy sampled is never encoded here.

    A conversation that a search could have is encoded as a search does it, contents apart from the template's text.
    Any other (several calls in a turn, several messages in a row) is one text, which the chat template renders and
    whose generation markers say which tokens are the assistant's.

    Args:
        renderer: Holds the tokenizer.

    Attributes:
        one_text: Whether the last row was encoded as one text.
        differs: Whether it was not, and its whole text, tokenised at once as servers of chat completions do, has other
            ids.
    """

    def __init__(self, renderer: Renderer) -> None:
        self._renderer, self._tokenizer = renderer, renderer.tokenizer
        self._ends = renderer.eos_ids
        tokens = getattr(self._tokenizer, "added_tokens_decoder", {}).values()
        self._controls = sorted({t.content for t in tokens if t.special and t.content.strip()}, key=len, reverse=True)
        self._known_tools: dict[str, list[Any]] = {}  # one object for equal tools: the renderer knows them by `id`
        self.differs = self.one_text = False

    def trajectory(self, messages: Any, tools: Any, loose: bool) -> dict[str, list[int]]:
        """Return `input_ids`, `action_mask` (1 = the assistant's) and `starts`, up to and with the last turn's end.

        Args:
            messages: A list of messages, each a mapping or its JSON text.
            tools: A list of schemas, its JSON text, or None.
            loose: Nulls in messages may be Arrow's, put where a key is absent: they are left out.

        Raises:
            DataError: The messages are no conversation, hold control tokens' texts, or have no assistant turn.
            ConfigError: They must be encoded as one text, and the chat template has no generation markers, or these
                leave the end of a turn out, so that a model would never learn to stop.
        """
        turns, functions = _messages(messages, loose), self._tools(tools, loose)
        self._check_contents(turns, functions)
        history = self._history(turns, functions)
        ids, mask, starts = self._encode(turns, functions, history)
        self._note(history)
        if not ids:
            raise DataError("it has no assistant turn that is trained")
        return {"input_ids": ids, "action_mask": mask, "starts": starts}

    def pair(self, row: Mapping[str, Any], loose: bool) -> dict[str, list[int]]:
        """Return `prompt_ids`, and `<side>_ids`, `<side>_mask` and `<side>_starts` of both sides, of a row of messages.

        Raises:
            DataError: As `trajectory`; or the template renders the prompt otherwise once it is continued.
            ConfigError: As `trajectory`.
        """
        prompt = _messages(row.get("prompt"), loose, trained=False)
        tools = self._tools(row.get("tools"), loose)
        sides = {side: [*prompt, *_messages(row.get(side), loose)] for side in ("chosen", "rejected")}
        for turns in sides.values():
            self._check_contents(turns, tools)
        found = [self._history(turns, tools) for turns in (prompt, *sides.values())]
        start_of, *histories = found if None not in found else [None] * len(found)
        start = self._prompt(prompt, tools) if start_of is None else self._renderer.context_ids(start_of.context)
        out = {"prompt_ids": start}
        for (side, turns), history in zip(sides.items(), histories, strict=True):
            first = 0 if start_of is None else start_of.context.depth
            ids, mask, starts = self._encode(turns, tools, history, first)
            if not ids:
                raise DataError(f"its {side} side has no assistant turn that is trained")
            if ids[: len(start)] != start:
                raise DataError(f"the chat template renders its prompt otherwise once its {side} side follows")
            out[f"{side}_ids"], out[f"{side}_mask"] = ids[len(start) :], mask[len(start) :]
            out[f"{side}_starts"] = [at - len(start) for at in starts]
        self._note(*histories)
        return out

    def _note(self, *histories: _History | None) -> None:
        self.one_text = None in histories
        self.differs = any(one is not None and one.differs for one in histories)

    def _history(self, messages: Sequence[Mapping[str, Any]], tools: Any) -> _History | None:
        """Return messages as a history; None where no search has such ones."""
        try:
            context = _context(messages, tools, self._renderer)
            if context is None:
                return None
            shown = context
            if context.observation is None and not self._renderer.appends and context.parent is not None:
                # the template may write the last turn otherwise than a policy does
                shown, messages = context.parent, messages[:-1]
            ids = self._renderer.context_ids(shown)
        except ConfigError:  # the template refuses such turns as a search writes them
            return None
        text = self._renderer.decode(ids)
        rendered = self._render(messages, tools, add_generation_prompt=shown.observation is not None, tokenize=False)
        if (vision := self._renderer.vision) is not None:
            rendered, ids = vision.shown(rendered), vision.plain(ids)
        if rendered != text and not (shown.observation is None and rendered.startswith(text)):
            return None  # the template writes something that no context has, such as the ids of calls
        whole = self._tokenizer(rendered, add_special_tokens=False)["input_ids"]
        return _History(context, list(whole[: len(ids)]) != ids)

    def _render(self, messages: Sequence[Mapping[str, Any]], tools: Any, **how: bool) -> Any:
        plain = [{key: value for key, value in message.items() if key != "trained"} for message in messages]
        try:
            return self._tokenizer.apply_chat_template(**self._renderer.asked(plain, tools or ()), **how)
        except Exception as error:  # a template raises what it likes
            raise DataError(f"the chat template refuses its messages ({type(error).__name__}: {error})") from error

    def _prompt(self, messages: Sequence[Mapping[str, Any]], tools: Any) -> list[int]:
        encoded = self._render(messages, tools, add_generation_prompt=True, return_dict=True)
        return [int(token) for token in encoded["input_ids"]]

    def _encode(
        self, messages: Sequence[Mapping[str, Any]], tools: Any, history: _History | None, first: int = 0
    ) -> tuple[list[int], list[int], list[int]]:
        """Return ids and mask up to the last trained id, and where sequences begin anew; empty where none is trained.

        Args:
            messages, tools: The conversation.
            history: The same; None = it is one text.
            first: Number of a history's turns that are left to the prompt.
        """
        if history is None:
            made = Layout(*self._one_text(messages, tools), None, [])
        else:
            nodes = history.context.lineage()
            made = lay_out(self._renderer, nodes, first, self._renderer.context_ids(nodes[first]))
        mask = [0] * len(made.ids)
        turns = [message for message in messages if message["role"] == "assistant"][first:]
        if len(made.spans) != len(turns):
            raise DataError(f"the chat template marks {len(made.spans)} turns where the conversation has {len(turns)}")
        end = 0
        for (start, stop), turn in zip(made.spans, turns, strict=True):
            if turn["trained"]:
                self._check_turn(made.ids[start:stop], turn, tools or ())
                mask[start:stop] = [1] * (stop - start)
                end = stop
        return made.ids[:end], mask[:end], [at for at in made.starts if at < end]

    def _one_text(self, messages: Sequence[Mapping[str, Any]], tools: Any) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the same of messages that the chat template renders and marks."""
        if pictures.in_messages(messages):
            raise DataError("it has pictures, which are read in turns of one call and one reply alone")
        if not _MARKER.search(str(self._tokenizer.get_chat_template())):
            raise ConfigError(
                "the chat template has no {% generation %} markers, so nothing says which tokens of messages are the "
                "assistant's. Put {% generation %} … {% endgeneration %} around the assistant's turns, end-of-turn "
                f"token included, or name a ready-made template: model.chat_template={' | '.join(TEMPLATES)}"
            )
        encoded = self._render(messages, tools, return_dict=True, return_assistant_tokens_mask=True)
        ids = [int(token) for token in encoded["input_ids"]]
        return ids, self._ended(ids, [int(value) for value in encoded["assistant_masks"]])

    def _check_turn(self, ids: Sequence[int], turn: Mapping[str, Any], tools: Any) -> None:
        """Check that what is trained reads back as the message; several calls at once are not read here."""
        calls = turn.get("tool_calls", ())
        if len(calls) > 1:
            return
        action = self._renderer.parse(list(ids), tools=tools)
        called = None if action.call is None else (action.call.name, dict(action.call.arguments))
        wanted = (calls[0]["function"]["name"], calls[0]["function"]["arguments"]) if calls else None
        # templates write an empty thought, too, or take words for one and the other way round
        said, meant = (_THOUGHT.sub(" ", text).split() for text in (action.thought, turn["content"]))
        if action.fault is not None or called != wanted or said != meant:
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

    def _tools(self, value: Any, loose: bool) -> list[Any] | None:
        found = list(schemas(value, loose))
        return self._known_tools.setdefault(json.dumps(found), found) or None


def texts(messages: Any, tools: Any, loose: bool) -> Iterator[str]:
    """Yield the texts of a conversation, to learn a tokenizer from; arguments and errors as `Encoder.trajectory`."""
    for schema in schemas(parsed(tools, "tools"), loose):
        yield signature(schema)
    for message in _messages(messages, loose):
        yield message["content"]
        for call in message.get("tool_calls", ()):
            yield f"{OPEN}\n{dump(call['function'])}\n{CLOSE}"


def _messages(value: Any, loose: bool, trained: bool = True) -> list[dict[str, Any]]:
    value = parsed(value, "messages")
    if not isinstance(value, list) or not value:
        raise DataError("it has no messages (a list of objects with role and content is wanted)")
    given = [parsed(message, f"message {number}") for number, message in enumerate(value)]
    loose = loose or arrow(given)
    out = []
    for number, message in enumerate(given):
        with located(f"message {number}"):
            if isinstance(message, Mapping) and message.get("anew"):
                raise DataError("the policy's history goes on anew here, which stored ids alone say: train on these")
            out.append(_message(read(message, loose), trained))
    return out


def _message(message: dict[str, Any], trained: bool) -> dict[str, Any]:
    """Return a message with its reasoning in its content, and whether it is trained."""
    if message["role"] != "assistant":
        return message
    thoughts = message.pop("reasoning_content", "")
    message["trained"] = message.get("trained", True) and trained
    if message["trained"] and "tool_calls" not in message and not message["content"].strip():
        raise DataError(
            "an assistant's turn has neither content nor a call, and would teach to stop; take it out, or mark it "
            "with train: false"
        )
    if thoughts:
        message["content"] = f"<think>\n{thoughts}\n</think>\n\n{message['content']}"
    return message


def _context(messages: Sequence[Mapping[str, Any]], tools: Any, renderer: Renderer) -> Context | None:
    """Return the last context of messages: perhaps a system's, a user's, then turns of one call at most, each with one
    reply but perhaps the last; None where they are others.
    """
    rest = list(messages)
    system = rest.pop(0)["content"] if rest[0]["role"] == "system" else ""
    if not rest or rest[0]["role"] != "user":
        return None
    at = Context(Task("row", "train", {}), system, tools or (), rest.pop(0)["content"])
    while rest:
        turn = rest.pop(0)
        calls = turn.get("tool_calls", ())
        if turn["role"] != "assistant" or len(calls) > 1 or at.observation is None:
            return None
        call = ToolCall(**calls[0]["function"]) if calls else None
        role: Role = "tool" if rest and rest[0]["role"] == "tool" else "user"
        reply = rest.pop(0)["content"] if rest and rest[0]["role"] == role else None
        at = at.child(Action(renderer.write(turn["content"], call), turn["content"], call), reply, role)
    return at
