"""Messages to token ids and back: append-only prompts, parsed turns, action masks and their certificates."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from offline_agent.errors import ConfigError, PolicyError, did_you_mean
from offline_agent.records import Action, Context, ToolCall
from offline_agent.rendering import columns as rows
from offline_agent.rendering.parsing import Parsed, call_text
from offline_agent.rendering.plain_tokenizer import PlainTokenizer
from offline_agent.rendering.styles import TEMPLATES, Style, check_append_only, find_style, ready_made
from offline_agent.rendering.template import Form, Quoted, Slot, Template
from offline_agent.rendering.tokens import Tokens

__all__ = ["Renderer", "Segment", "TEMPLATES", "call_text"]

_CACHED = 512
_PAGES = 128
_TURNS = 4096  # turns whose parts and ids are remembered: the rows of one tree hold each of its turns many times


class Segment(tuple[int, ...]):
    """The ids a context adds to its parent's.

    Attributes:
        owner: The renderer that made it; another one makes its own.
    """

    owner: Renderer


class Renderer:
    """Renders through the tokenizer's own chat template, append-only on token ids.

    The template is learnt once, by rendering probes; contents are then tokenised apart from it, so that no text an
    environment or a user wrote can become a control token, and the ids a policy sampled are never touched.

    Args:
        tokenizer: A transformers tokenizer with a fast back end and a chat template.

    Attributes:
        eos_ids: Ids that end a turn.
        end_id: The id the template ends a turn with.
        template_hash, tokenizer_hash: SHA-256, hex.
        vocab_size: Every id is below it.

    Raises:
        ConfigError: The template is not append-only, drops past reasoning or contents, or writes calls in a way that
            cannot be parsed; the message says what to do.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens = Tokens(tokenizer)
        self._template = Template(tokenizer, self._tokens.control_strings())
        self._style: Style = find_style(tokenizer, self._template)
        ends = self._tokens.template(self._template.end)
        if len(ends) != 1:
            raise ConfigError(f"the end of turn {self._template.end!r} is {len(ends)} tokens; it must be one")
        self.end_id = ends[0]
        eos = getattr(tokenizer, "eos_token_id", None)
        self.eos_ids = frozenset([self.end_id] if eos is None else [self.end_id, eos])
        format_ids = {token for text in self._style.samples for token in self._tokens.added_in(text)}
        ordinary = self._tokens.added.keys() - self._tokens.special
        self._tokens.allow_in_turns((format_ids | ordinary) - self.eos_ids)
        self.template_hash = hashlib.sha256(self._template.source.encode()).hexdigest()
        self.tokenizer_hash = self._tokens.hash
        self.vocab_size = self._tokens.vocab_size
        self._roots: dict[tuple[str, int], tuple[object, tuple[int, ...], Slot, tuple[int, ...]]] = {}
        self._bridges: dict[tuple[str, bool, str], tuple[tuple[int, ...], Slot, tuple[int, ...]]] = {}
        self._forms: dict[tuple[str, bool], Form] = {}
        self._parts = lru_cache(_TURNS)(self._style.parse)  # for comparing only: who acts on a call gets one of its own
        self._texts = lru_cache(_TURNS)(self._tokens.decode)
        self._encode = lru_cache(_TURNS)(lambda text: tuple(self._tokens.turn(text)))
        self._contents = lru_cache(_PAGES)(self._tokens.content)  # a tree comes to the same pages again and again
        check_append_only(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process gets the tokenizer, and learns the rest anew."""
        return type(self), (self._tokenizer,)

    @property
    def tokenizer(self) -> Any:
        """The transformers tokenizer; loaded now where rendering did without it."""
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
        source = Path(path_or_name)
        if (source.is_absolute() or str(path_or_name).startswith(".")) and not source.is_dir():
            raise ConfigError(f"no tokenizer could be loaded from {str(path_or_name)!r}: there is no such folder")
        try:
            tokenizer: Any = PlainTokenizer.read(source)
            if tokenizer is None:
                from transformers import AutoTokenizer  # loads torch

                tokenizer = AutoTokenizer.from_pretrained(str(path_or_name))
        except Exception as error:  # a missing file, a broken one, no network, an unknown class: transformers' own
            raise ConfigError(f"no tokenizer could be loaded from {str(path_or_name)!r}: {error}") from error
        if chat_template is not None:
            tokenizer.chat_template = _template_text(chat_template)
        return cls(tokenizer)

    def segment(self, context: Context) -> tuple[int, ...]:
        """Return the ids `context` adds to its parent's, ending with the generation prompt; kept in the context.

        The generation prompt is left out where the episode ended with the action (`observation` is None).
        """
        made = context.segment
        if type(made) is Segment and made.owner is self:
            return made
        action: tuple[int, ...] = ()
        if context.parent is None or context.action is None:
            ids = self._root_ids(context)
        else:
            action = self.action_ids(context.action)
            ids = action + self._after(context, bool(action) and action[-1] in self.eos_ids)
        segment = Segment(ids)
        segment.owner = self
        context.segment = segment
        return segment

    def context_ids(self, context: Context) -> list[int]:
        """Return the whole prompt's ids, generation prompt included."""
        return [token for node in context.lineage() for token in self.segment(node)]

    def context_text(self, context: Context) -> str:
        """Return the whole prompt's text: what the template writes, around the turns as they were emitted."""
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
                called = node.action.call is not None
                name = node.action.call.name if node.action.call is not None else ""
                form = self._form(node.role, called)
                out.append("" if ended else self._template.end)
                out.append(form.text({"observation": node.observation, "name": name}))
        return "".join(out)

    def action_text(self, action: Action) -> str:
        """Return an action's turn in the template's call format.

        The text is the action's own where it parses to the same call; where it is in another format (a scripted
        policy's), the template writes the turn anew.
        """
        if action.token_ids is not None or action.call is None:
            return action.text
        if self._parts(action.text).call == action.call:
            return action.text
        return self.write(action.thought, action.call)

    def write(self, thought: str, call: ToolCall | None = None) -> str:
        """Return a turn as the template writes it, end-of-turn token left out."""
        return self._template.action_text(Action(thought, thought, call).message())

    def action_ids(self, action: Action) -> tuple[int, ...]:
        """Return the ids sampled for an action, untouched; for one nobody sampled, `encode_action`'s."""
        return action.token_ids if action.token_ids is not None else self.encode_action(action)

    def encode_action(self, action: Action) -> tuple[int, ...]:
        """Return the ids, end-of-turn token included (unless it was cut before), of a turn nobody sampled."""
        ids = self._encode(self.action_text(action))
        return ids if action.fault == "no_end" else (*ids, self.end_id)

    def parse(self, ids: Sequence[int], logps: Sequence[float] | None = None) -> Action:
        """Return the action that sampled ids are; one without an end-of-turn id has the fault `no_end`.

        Args:
            ids: int [n], the end-of-turn id included where it was sampled.
            logps: float [n], or None.

        Raises:
            PolicyError: `logps` has another length, or ids go on after an end-of-turn id: a back end's bug.
        """
        ids = tuple(ids)
        if logps is not None and len(logps) != len(ids):
            raise PolicyError(f"got {len(ids)} ids and {len(logps)} log-probs; they must be as many")
        ended = bool(ids) and ids[-1] in self.eos_ids
        if any(token in self.eos_ids for token in (ids[:-1] if ended else ids)):
            raise PolicyError("ids go on after the end of the turn; cut them after the first of " + str(self.eos_ids))
        text = self._tokens.decode(ids[:-1] if ended else ids)
        return self.parse_text(text, ended, ids, None if logps is None else tuple(map(float, logps)))

    def parse_text(
        self,
        text: str,
        ended: bool = True,
        token_ids: tuple[int, ...] | None = None,
        logps: tuple[float, ...] | None = None,
    ) -> Action:
        """Return the action that a turn's text is, end-of-turn token left out.

        Args:
            text: The turn.
            ended: False where it was cut by the token limit.
            token_ids: Kept in the action.
            logps: Kept in the action.
        """
        if ended:
            parsed = self._style.parse(text)
        else:
            size = f" after {len(token_ids)} tokens" if token_ids is not None else ""
            detail = f"The turn was cut{size} before it ended. Be shorter."
            parsed = Parsed(text, None, "no_end", detail)
        return Action(text, parsed.thought, parsed.call, parsed.fault, parsed.detail, token_ids, logps)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the exact text of ids, control tokens included."""
        return self._tokens.decode(ids)

    def trajectory_columns(self, context: Context, model_hash: str | None = None) -> dict[str, Any]:
        """Return the token columns of a trajectory that ends in `context`.

        Args:
            context: Its last context.
            model_hash: Of the model that sampled it; the certificate says whose the log-probabilities are.

        Returns:
            `input_ids` int [L], up to and with the last action's last id; `action_mask` int [L], 1 = sampled by the
            policy (or written by the demonstrator); `logps` float [L], 0.0 where the mask is 0, or None where any
            action's are unknown; `certificate` JSON.

        Raises:
            DataError: A span does not decode to the recorded action.
        """
        return rows.trajectory_columns(self, context, model_hash)

    def pair_columns(
        self, prefix: Context, chosen: Context, rejected: Context, model_hash: str | None = None
    ) -> dict[str, Any]:
        """Return the token columns of two continuations of one history.

        Args:
            prefix: The shared history.
            chosen, rejected: Contexts that continue it.
            model_hash: Of the model that sampled both; the certificate says whose the log-probabilities are.

        Returns:
            `prompt_ids` int [P]: `prefix`'s, generation prompt included. For each side, continuing the prompt:
            `<side>_ids` int [n], up to and with the last action's last id; `<side>_mask` int [n], 1 = sampled;
            `ref_<side>_logps` float [n], 0.0 where the mask is 0, or None where any is unknown. `certificate` JSON.

        Raises:
            DataError: A side does not continue `prefix`, or a span does not decode to the recorded action.
        """
        return rows.pair_columns(self, prefix, chosen, rejected, model_hash)

    def check_row(self, row: Mapping[str, Any]) -> None:
        """Check a row as it is written: the ranges of its numbers, every column that its certificate covers, masks.

        Args:
            row: Its columns, by the program's own names (`_store.columns.known`).

        Raises:
            DataError: Something disagrees; the message names the row and says what.
        """
        rows.check_row(self, row)

    def check_tokens(self, row: Mapping[str, Any]) -> bool:
        """Check a row's masks: hashes, lengths, spans, counts, vocabulary, decoded texts, messages.

        Returns:
            Whether it has token columns; one without makes no claim.

        Raises:
            DataError: Something disagrees; the message says what.
        """
        return rows.check_tokens(self, row)

    def action_of_span(self, ids: Sequence[int]) -> Action:
        """Return the action of a masked span, to be compared: `parse` for ids that are known to be one turn."""
        ended = bool(ids) and ids[-1] in self.eos_ids
        text = self._texts(tuple(ids[:-1] if ended else ids))
        if not ended:
            return self.parse_text(text, False)
        parsed = self._parts(text)
        return Action(text, parsed.thought, parsed.call, parsed.fault, parsed.detail)

    def _root_ids(self, context: Context) -> tuple[int, ...]:
        key = (context.system, id(context.tools))
        entry = self._roots.get(key)
        if entry is None:
            if len(self._roots) >= _CACHED:
                self._roots.clear()
            form = self._template.root(bool(context.system), context.tools)
            # The tools are kept with the entry, so that their id is not given to others.
            entry = self._roots[key] = (context.tools, *self._split(form, "user", {"system": context.system}))
        _, before, slot, after = entry
        return (*before, *self._contents(slot.transform(context.observation or "")), *after)

    def _after(self, context: Context, ended: bool) -> tuple[int, ...]:
        if context.observation is None:
            return ()
        call = context.action.call if context.action is not None else None
        key = (context.role, call is not None, call.name if call is not None else "")
        entry = self._bridges.get(key)
        if entry is None:
            if len(self._bridges) >= _CACHED:
                self._bridges.clear()
            entry = self._split(self._form(key[0], key[1]), "observation", {"name": key[2]})
            self._bridges[key] = entry
        before, slot, after = entry
        observation = self._contents(slot.transform(context.observation))
        return (*(() if ended else (self.end_id,)), *before, *observation, *after)

    def _form(self, role: str, called: bool) -> Form:
        """Return the bridge's form; templates that allow a role after one kind of turn only lend it to the other."""
        form = self._forms.get((role, called))
        if form is None:
            usual = role == "tool"
            try:
                form = self._template.bridge(role, called)
            except ConfigError:
                if called == usual:
                    raise
                form = self._template.bridge(role, usual)
            self._forms[role, called] = form
        return form

    def _split(
        self, form: Form, field: str, fields: Mapping[str, str]
    ) -> tuple[tuple[int, ...], Slot, tuple[int, ...]]:
        """Return the ids before the slot `field`, the slot, and the ids after it."""
        sides: tuple[list[int], list[int]] = ([], [])
        slot: Slot | None = None
        for part in form.parts:
            out = sides[slot is not None]
            if isinstance(part, str):
                out += self._tokens.template(part)
            elif isinstance(part, Quoted):
                out += self._tokens.content(part.text)
            elif part.field == field:
                slot = part
            else:
                out += self._tokens.content(part.transform(fields[part.field]))
        assert slot is not None  # Template._fit refuses a form without it
        return tuple(sides[0]), slot, tuple(sides[1])


def _template_text(named: str) -> str:
    if named in TEMPLATES:
        return ready_made(named)
    if "{" in named:
        return named
    if not Path(named).is_file():
        raise ConfigError(
            f"chat_template={named!r} is neither a name ({', '.join(TEMPLATES)}), nor a file, nor a template's text."
            + did_you_mean(named, TEMPLATES)
        )
    return Path(named).read_text(encoding="utf-8")
