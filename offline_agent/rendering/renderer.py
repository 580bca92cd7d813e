"""Renderer: conversations to token ids and back, with prompts that share their beginnings, and masks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from offline_agent.errors import ConfigError, PolicyError
from offline_agent.pictures import OBJECT
from offline_agent.records import Action, Context, Message, ToolCall
from offline_agent.rendering.hub import PlainTokenizer, load
from offline_agent.rendering.layout import Segment, common_prefix, recorded_ids
from offline_agent.rendering.parsing import Parsed
from offline_agent.rendering.styles import (
    Style,
    check_append_only,
    check_whole,
    find_style,
    in_usual_roles,
    template_text,
)
from offline_agent.rendering.template import DATE, PROBE_TOOL, NotAppendOnly, Template
from offline_agent.rendering.tokens import PromptEncoder, Tokens
from offline_agent.rendering.vision import Vision, arranged, find

_PICTURES = frozenset({OBJECT})  # in a turn of the policy the mark of a picture is text
_TURNS = 4096  # turns whose parts and ids are cached: the rows of one tree contain each of its turns many times


class Renderer:
    """Renders with the tokenizer's own chat template, append-only on token ids where the template allows it.

    The template's text around contents is found once, by rendering probes. Contents are then tokenised separately, so
    that no text of an environment or a user can become a control token. Ids that a policy sampled are never changed.
    A template that writes earlier turns differently once something follows renders each prompt whole.
    docs/masks.md describes the probes and when a template is refused.

    Args:
        tokenizer: A transformers tokenizer with a fast back end and a chat template.
        processor: Its processor, where the model sees pictures.

    Attributes:
        appends: Whether each prompt goes on with the prompt and the ids of the turn before.
        eos_ids: Ids that end a turn.
        end_ids: The ids with which the template ends an answer, and a call.
        end_id: The first of them.
        template_hash, tokenizer_hash: SHA-256, hex.
        vocab_size: Every id of text is below it.
        vision: The pictures' side; None where the model reads text alone.

    Raises:
        ConfigError: The template drops contents, or writes calls in a form that cannot be parsed; the message names the
            remedy.
    """

    def __init__(self, tokenizer: Any, processor: Any = None) -> None:
        self._tokenizer, self._processor = tokenizer, processor
        self._tokens = Tokens(tokenizer)
        self._template = Template(tokenizer, self._tokens.control_strings())
        self._style: Style = find_style(self._template)
        ends = [self._tokens.template(end.control) for end in self._template.ends]
        # a mask ends with one id, and a policy stops at one
        if any(len(ids) != 1 for ids in ends):
            raise ConfigError(f"the ends of turn {self._template.ends} are {ends}; each must be one token")
        self.end_ids = (ends[0][0], ends[1][0])
        self.end_id = self.end_ids[0]
        eos = getattr(tokenizer, "eos_token_id", None)
        self.eos_ids = frozenset(self.end_ids if eos is None else [*self.end_ids, eos])
        written = (*self._style.samples, self._template.prefill)
        format_ids = {token for text in written for token in self._tokens.added_in(text)}
        ordinary = self._tokens.added.keys() - self._tokens.special
        # a turn may hold tokens of the call format, never one that ends it
        in_turns = (format_ids | ordinary) - self.eos_ids
        self._tokens.allow_in_turns(in_turns)
        self._turn_controls = frozenset(self._tokens.added[token] for token in in_turns)
        self.template_hash = hashlib.sha256(self._template.source.encode()).hexdigest()
        self.tokenizer_hash = self._tokens.hash
        self.vocab_size = self._tokens.vocab_size
        self.vision = None if processor is None else Vision(processor, self._template)
        if self.vision is not None:
            self._tokens.vision = self.vision
            self.tokenizer_hash = hashlib.sha256(f"{self.tokenizer_hash} {self.vision.hash}".encode()).hexdigest()
        self._prompts = PromptEncoder(self._template, self._tokens, self.end_ids)
        self._parts = lru_cache(_TURNS)(self._style.parse)  # for comparisons only: the arguments of a call are mutable
        self._texts = lru_cache(_TURNS)(self._tokens.decode)
        self._numbers: dict[int, int] = {}
        self._encode = lru_cache(_TURNS)(lambda text: tuple(self._tokens.turn(text)))
        # last: it needs everything above
        try:
            check_append_only(self._template.render, self._rewritten, self._appended_text)
            self.appends = True
        except NotAppendOnly:
            self.appends = False
            check_whole(self._template.render, self._rewritten)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the tokenizer alone; the other process computes the rest again."""
        return type(self), (self._tokenizer, self._processor)

    @property
    def tokenizer(self) -> Any:
        """The transformers tokenizer; loaded at the first use where rendering did not need it."""
        if isinstance(self._tokenizer, PlainTokenizer):
            self._tokenizer = self._tokenizer.whole()
        return self._tokenizer

    @classmethod
    def load(cls, path_or_name: str | Path, chat_template: str | None = None) -> Renderer:
        """Return the renderer of a tokenizer on disk or on the hub.

        Args:
            path_or_name: A folder, or a hub name.
            chat_template: Replaces the tokenizer's own: a name from `TEMPLATES`, a file, or the template's text.

        Raises:
            ConfigError: There is no such tokenizer, or it cannot be rendered with.
        """
        source = Path(path_or_name).expanduser()
        if (source.is_absolute() or str(path_or_name).startswith(".")) and not source.is_dir():
            raise ConfigError(f"no tokenizer could be loaded from {str(path_or_name)!r}: there is no such folder")
        path_or_name = source if source.is_dir() else path_or_name
        tokenizer: Any = PlainTokenizer.read(source)
        if tokenizer is None:
            from transformers import AutoTokenizer  # loads torch

            tokenizer = load(AutoTokenizer, str(path_or_name), "tokenizer", "a tokenizer")
        if chat_template is not None:
            tokenizer.chat_template = template_text(chat_template)
        return cls(tokenizer, find(path_or_name))

    def asked(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the arguments of `apply_chat_template` for messages and tools, as the template wants them."""
        messages, tools = self._template.dialect.adapt(arranged(self.vision, messages), tools)
        return {"conversation": messages, "tools": list(tools) or None, "strftime_now": DATE.strftime}

    def segment(self, context: Context) -> tuple[int, ...]:
        """Return the ids of an action, and those that the prompt after it has beyond what it shares with them.

        Where prompts are appended these are the ids that `context` adds to its parent's. Raises as `context_ids`.
        """
        context = context.shown
        made = self._segment(context)
        if not made.whole or context.parent is None or context.action is None:
            return made
        action = self.action_ids(context.action)
        return (*action, *made[common_prefix(made, (*self.context_ids(context.parent), *action)) :])

    def context_ids(self, context: Context) -> list[int]:
        """Return the whole prompt's ids, generation prompt included.

        There is no generation prompt where the episode ended with the action (`observation` is None): then it is the
        parent's prompt and the action.

        Raises:
            DataError: The context is of a log that has no ids for it: nothing is rendered in their place.
            ConfigError: The template refuses the history.
        """
        segments: list[Segment] = []
        node: Context | None = context.shown
        while node is not None:
            segments.append(self._segment(node))
            node = None if segments[-1].whole else node.parent
        return [token for segment in reversed(segments) for token in segment]

    def _segment(self, context: Context) -> Segment:
        # cached in the context and not here: it lives as long as the tree that shares it
        made = context.segment
        if type(made) is Segment and made.owner is self:
            return made
        whole = False
        if context.recorded is not None:
            ids, whole = recorded_ids(context), context.recorded.whole
        elif not self.appends and (context.action is None or context.observation is not None):
            ids, whole = self._whole_ids(context), True
        elif context.parent is None or context.action is None:
            ids = self._prompts.root_ids(context)
        else:
            action = self.action_ids(context.action)
            ids = action + self._prompts.after_action(context, bool(action) and action[-1] in self.eos_ids)
        segment = Segment(ids)
        segment.owner, segment.whole = self, whole
        context.segment = segment
        return segment

    def _whole_ids(self, context: Context) -> tuple[int, ...]:
        """Return the ids of the template's own rendering; control strings in contents are spelled out."""
        marks, messages = self._template.marks, arranged(self.vision, context.messages())
        hidden = [marks.hide(m, self._turn_controls if m["role"] == "assistant" else _PICTURES) for m in messages]
        tools = [marks.hide(tool) for tool in context.tools]
        try:
            text = self._template.render(hidden, tools, True)
        except ConfigError:  # of unusual orders of roles
            text = self._template.render(in_usual_roles(hidden), tools, True)
        encode = (self._tokens.rendered, self._tokens.content)
        ids = (token for at, part in enumerate(marks.split(text)) for token in encode[at % 2](part))
        return tuple(self._numbers.setdefault(token, token) for token in ids)  # one object a number: trees keep many

    def _appended_text(self, context: Context) -> str:
        """Return the text of the template around the turns as they were emitted."""
        out = []
        for node in context.lineage():
            if node.parent is None or node.action is None:
                form = self._template.root(bool(node.system), node.tools)
                out.append(form.text({"system": node.system, "user": node.observation or ""}))
                continue
            last = self.action_ids(node.action)[-1:]
            ended = bool(last) and last[0] in self.eos_ids
            out.append(self.action_text(node.action) + (self._tokens.decode(last) if ended else ""))
            if node.observation is not None:
                call = node.action.call
                form = self._prompts.bridge(node.role, call is not None)
                out.append("" if ended else self._template.ends[call is not None].control)
                out.append(form.text({"observation": node.observation, "name": "" if call is None else call.name}))
        return "".join(out)

    def action_text(self, action: Action) -> str:
        """Return an action's turn in the template's call format.

        It is the action's own text where that parses to the same call; a turn in another format (of a scripted policy)
        is written again by the template.
        """
        if action.token_ids is not None or action.fault is not None:
            return action.text
        parsed = self._parts(action.text)
        if action.call is None:  # an answer without what the template writes around it
            return self.write(action.thought or action.text) if parsed.thought == action.text else action.text
        # the same call in other words stays as it was written: its ids are those words'
        if parsed.call == self._style.untyped(action.call):
            return action.text
        return self.write(action.thought, action.call)

    def write(self, thought: str, call: ToolCall | None = None) -> str:
        """Return a turn as the template writes it, without the end-of-turn token; a thought that it drops is kept."""
        return self._template.action_text(Action(thought, thought, call).message())

    def _rewritten(self, thought: str, call: ToolCall | None) -> Action:
        """Return the action that a turn is read back as once the template has written it."""
        return self.parse_text(self.write(thought, call), tools=[PROBE_TOOL])

    def action_ids(self, action: Action) -> tuple[int, ...]:
        """Return the sampled ids of an action, unchanged; for an action that no policy sampled, see `encode_action`."""
        return action.token_ids if action.token_ids is not None else self.encode_action(action)

    def encode_action(self, action: Action) -> tuple[int, ...]:
        """Return the ids of a turn that no policy sampled, end-of-turn token included unless the turn was cut."""
        ids = self._encode(self.action_text(action))
        return ids if action.fault == "no_end" else (*ids, self.end_ids[action.call is not None])

    def parse(
        self, ids: Sequence[int], logps: Sequence[float] | None = None, tools: Sequence[Mapping[str, Any]] = ()
    ) -> Action:
        """Return the action of sampled ids; without an end-of-turn id it has the fault `no_end`.

        Args:
            ids: int [n], the end-of-turn id included where it was sampled.
            logps: float [n], or None.
            tools: The schemas of the context's tools: some call formats write arguments without their types.

        Raises:
            PolicyError: `logps` has another length, or ids follow an end-of-turn id: an error of the back end.
        """
        ids = tuple(ids)
        if logps is not None and len(logps) != len(ids):
            raise PolicyError(f"got {len(ids)} ids and {len(logps)} log-probs; the numbers must be equal")
        ended = bool(ids) and ids[-1] in self.eos_ids
        # ids after an end were sampled under a history that no prompt has
        if any(token in self.eos_ids for token in (ids[:-1] if ended else ids)):
            raise PolicyError("ids follow the end of the turn; cut them after the first of " + str(self.eos_ids))
        text = self._tokens.decode(ids[:-1] if ended else ids)
        return self.parse_text(text, ended, ids, None if logps is None else tuple(map(float, logps)), tools)

    def parse_text(
        self,
        text: str,
        ended: bool = True,
        token_ids: tuple[int, ...] | None = None,
        logps: tuple[float, ...] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Action:
        """Return the action of a turn's text without the end-of-turn token.

        Args:
            text: The turn.
            ended: False where it was cut by the token limit.
            token_ids, logps: Stored in the action.
            tools: As in `parse`.
        """
        if ended:
            parsed = self._style.read(text, tools)
        else:
            size = f" after {len(token_ids)} tokens" if token_ids is not None else ""
            detail = f"The turn was cut{size} before it ended. Be shorter."
            parsed = Parsed(text, None, "no_end", detail)
        return Action(text, parsed.thought, parsed.call, parsed.fault, parsed.detail, token_ids, logps)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the exact text of ids, control tokens included."""
        return self._tokens.decode(ids)

    def action_of_span(self, ids: Sequence[int], tools: Sequence[Mapping[str, Any]] = ()) -> Action:
        """Return the action of a masked span, for comparisons only; cached, unlike `parse`."""
        ended = bool(ids) and ids[-1] in self.eos_ids
        text = self._texts(tuple(ids[:-1] if ended else ids))
        if not ended:
            return self.parse_text(text, False)
        parsed = self._style.typed(self._parts(text), tools)
        return Action(text, parsed.thought, parsed.call, parsed.fault, parsed.detail)
