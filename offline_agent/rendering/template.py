"""Chat templates: what they write around contents, before, in and after turns, found by rendering probes."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os.path import commonprefix
from typing import Any, NamedTuple

from offline_agent.errors import ConfigError
from offline_agent.records import Message, call_message
from offline_agent.rendering.calls.dialect import learn
from offline_agent.rendering.forms import HOW_TO_MEND, Marks, TemplateForm
from offline_agent.rendering.parsing import thinking, without_reason

Json = Mapping[str, Any]


class NotAppendOnly(ConfigError):
    """A template writes earlier text differently once something follows; it can be rendered whole all the same."""


PROBE_TOOL: Json = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look something up.",
        "parameters": {"type": "object", "properties": {"key": {"type": "string", "description": "What."}}},
    },
}
# the opening of a thought, or an empty one, which some generation prompts end with
_PREFILL = re.compile(r"<think>\s*(?:</think>\s*)?\Z")
# templates that write a date must write the same one on every day, or no run could be repeated
DATE = datetime.date(2024, 7, 26)
class End(NamedTuple):
    """The end of an assistant's turn: the control string that says so, and all that follows the turn's text."""

    control: str
    tail: str


class Template:
    """A tokenizer's chat template as forms.

    Args:
        tokenizer: A transformers tokenizer.
        control_strings: The texts of its added tokens, longest first.

    Attributes:
        source: The template's text.
        ends: How it ends an answer, and how a call.
        dialect: How it wants messages.
        marks: Stand for contents in its renderings.
        prefill: The part of the generation prompt that belongs to the turn: the opening of a thought.
        lead, closing: What it writes before and after an answer's words, inside the turn.

    Raises:
        ConfigError: There is no template, or it drops or repeats contents.
    """

    def __init__(self, tokenizer: Any, control_strings: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._controls = control_strings
        try:
            self.source: str = tokenizer.get_chat_template(None, tools=[dict(PROBE_TOOL)])
        except ValueError as error:
            raise ConfigError(
                f"the tokenizer {getattr(tokenizer, 'name_or_path', '')!r} has no chat template. {HOW_TO_MEND}"
            ) from error
        self.marks = Marks(self.source, control_strings)
        self._first: Message = {"role": "user", "content": "Hi."}
        self.dialect = learn(self._render, PROBE_TOOL)
        # every probe begins with it, so that what follows it is the turn alone
        self._opening = self.render([self._first], [PROBE_TOOL], True)
        prefill = _PREFILL.search(self._opening)
        self.prefill = prefill[0] if prefill else ""
        closed = commonprefix([self._opening, self.render([self._first], [PROBE_TOOL], False)])
        self._header = self._opening[len(closed) :].removesuffix(self.prefill)
        content = f"{self.marks.mark}answer"
        answer: Message = {"role": "assistant", "content": content}
        full = self.render([self._first, answer], [PROBE_TOOL], False)
        if full.count(content) != 1:
            raise ConfigError(f"the chat template does not write an assistant's content once. {HOW_TO_MEND}")
        ended = self._learn_end(full, full.index(content) + len(content), answer, self._first)
        self.ends = (ended, ended)
        called = self._acted(True, "x")
        self.ends = (ended, self._learn_end(self.render([self._first, called], [PROBE_TOOL], False), -1, called))
        self.lead, _, self.closing = self.action_text(answer).partition(content)
        if self.dialect.calls is not None and not self.dialect.lists:
            shown = call_message("<function-name>", {"<argument>": "<value>"})
            example = self.action_text(shown).removeprefix(self.lead)
            self.dialect = replace(self.dialect, example=example.removesuffix(self.closing))
            self._opening = self.render([self._first], [PROBE_TOOL], True)

    def _render(self, messages: Sequence[Message], tools: Sequence[Json], generation_prompt: bool = False) -> str:
        return str(
            self._tokenizer.apply_chat_template(
                list(messages),
                tools=[dict(tool) for tool in tools] or None,
                chat_template=self.source,
                tokenize=False,
                add_generation_prompt=generation_prompt,
                strftime_now=DATE.strftime,
            )
        )

    def raw(self, messages: Sequence[Message]) -> str:
        """Return its rendering of messages as they are; raises what it raises."""
        return self._render(messages, ())

    def render(self, messages: Sequence[Message], tools: Sequence[Json], generation_prompt: bool) -> str:
        """Return the template's own rendering.

        Raises:
            ConfigError: The template raised; its message is passed on.
        """
        try:
            return self._render(*self.dialect.adapt(messages, tools), generation_prompt)
        except Exception as error:  # jinja and templates raise errors of any class
            roles = ", ".join(str(message["role"]) for message in messages)
            raise ConfigError(
                f"the chat template cannot render the turns {roles}: {type(error).__name__}: {error}. {HOW_TO_MEND}"
            ) from error

    def root(self, system: bool, tools: Sequence[Json]) -> TemplateForm:
        """Return the form of an episode's start, up to the first generation prompt; fields `system`, `user`."""
        hidden = [self.marks.hide(tool) for tool in tools]

        def build(fields: Mapping[str, str]) -> str:
            messages = [{"role": "user", "content": fields["user"]}]
            if system:
                messages.insert(0, {"role": "system", "content": fields["system"]})
            return self.render(messages, hidden, True)

        return self.marks.fit(build, ["system", "user"] if system else ["user"], [])

    def bridge(self, role: str, called: bool) -> TemplateForm:
        """Return the form from after an action's end-of-turn token to the next generation prompt.

        Args:
            role: Role of the observation.
            called: Whether the action made a call.

        Returns:
            A form with the field `observation`, and `name` (the called tool's) where the template writes it.
        """
        text = self.action_text(self._acted(called, "x"))

        def build(fields: Mapping[str, str]) -> str:
            observation: Message = {"role": role, "content": fields["observation"]}
            if called and role == "tool":
                observation["name"] = fields["name"]
            # rendered as a whole: a template may write a turn differently once something follows it
            full = self.render([self._first, self._acted(called, "x"), observation], [PROBE_TOOL], True)
            start = self._opening + text + self.ends[called].control
            if not full.startswith(start):
                raise NotAppendOnly("a turn is rendered anew once it is answered")
            return full[len(start) :]

        return self.marks.fit(build, ["observation"], ["name"] if called and role == "tool" else [])

    def action_text(self, message: Message) -> str:
        """Return the template's text of an assistant's turn, from the generation prompt to the end-of-turn token.

        Where the template drops the words beside a call, or reasoning, of a turn that is over, they are put back.
        """
        text = self._after_prompt(message)
        called = "tool_calls" in message
        tail = self.ends[called].tail
        if not text.endswith(tail):
            raise ConfigError(
                f"the chat template ends some of the assistant's turns with {text[-20:]!r} and others with "
                f"{tail!r}. {HOW_TO_MEND}"
            )
        text = text[: len(text) - len(tail)]
        reason, words = without_reason(message["content"])
        if called and self.dialect.beside == "dropped" and message["content"]:
            return f"{message['content']}\n{text}"
        if reason in text:
            return text
        if self.prefill:  # the text begins by closing the thought
            return f"{reason}\n{text}"
        # as it is written beside a call, where it is not dropped
        beside, call = (self._after_prompt(self._acted(True, said)) for said in (thinking(reason, ""), ""))
        if reason in beside and beside.endswith(call):
            return beside.removesuffix(call) + text
        return thinking(reason, text)

    def _after_prompt(self, message: Message) -> str:
        full = self.render([self._first, message], [PROBE_TOOL], False)
        if full.startswith(self._opening):
            return full[len(self._opening) :]
        before = self._opening.count(self._header) if self._header else 0
        if not before or full.count(self._header) < before:
            raise ConfigError(_diverged(full, self._opening, "its generation prompt is not what precedes a turn"))
        rest = full.split(self._header, before)[-1]
        if rest.startswith(self.prefill):
            return rest.removeprefix(self.prefill)
        if "</think>" in self.prefill:  # thoughts are over where the turn begins: reasoning becomes words
            reason, words = without_reason(message["content"])
            if reason:
                return self._after_prompt({**message, "content": f"{reason}\n\n{words}"})
        # the prompt opened a thought that the template does not write: the turn closes it
        if rest.startswith("<think>"):
            return rest.removeprefix("<think>")
        return f"</think>{rest}" if rest.startswith("\n") else f"</think>\n\n{rest}"

    def _acted(self, called: bool, thought: str) -> Message:
        message: Message = {"role": "assistant", "content": thought}
        if called:
            call = {"name": "look_up", "arguments": {"key": "a"}}
            message["tool_calls"] = [{"type": "function", "function": call}]
        return message

    def _learn_end(self, full: str, at: int, message: Message, reply: Message | None = None) -> End:
        """Return the end of a turn whose text ends at `at`; of one with a call, where -1 says that this is unknown."""
        answers = self.ends[0].tail if at < 0 else ""
        if at < 0:
            stripped = full.rstrip()
            last = next((c for c in self._controls if stripped.endswith(c)), "")
            reply = {"role": "tool", "content": "x", "name": "look_up"}
            at = len(full) - len(answers) if full.endswith(answers) else len(stripped) - len(last)
        tail = full[at:]
        place = 0
        # a run of control strings is one end, of which the last says that the turn is over; longest first: one may
        # begin with another
        while control := next((c for c in self._controls if tail.startswith(c, place)), ""):
            place += len(control)
            found = End(control, tail[place - len(control) :])
        if place:
            return found
        if not tail.strip() and reply is not None:  # some templates end a turn with the header of the next one
            more = self.render([self._first, message, reply], [PROBE_TOOL], True)
            control = next((c for c in self._controls if more.startswith(full + c)), "")
            if control:
                return End(control, "")
        raise ConfigError(
            f"the chat template ends an assistant's turn with {tail[:20]!r}, which starts with no special "
            f"token, so nothing would say where a turn ends. {HOW_TO_MEND}"
        )

def _diverged(got: str, want: str, what: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(got, want, strict=False)) if a != b), min(len(got), len(want)))
    return (
        f"the chat template is not append-only: {what} (it writes {got[at : at + 40]!r} where "
        f"{want[at : at + 40]!r} stood). {HOW_TO_MEND}"
    )
