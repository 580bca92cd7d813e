"""Call formats of chat templates, and the check that a template is append-only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offline_agent.errors import ConfigError, did_you_mean
from offline_agent.records import Action, Context, Role, Task, ToolCall
from offline_agent.rendering.parsing import OPEN, Parsed, parse_bare, parse_compact, parse_message, parse_tagged
from offline_agent.rendering.template import HOW_TO_MEND, PROBE_TOOL, ROUGH, TRANSFORMS, NotAppendOnly, Template

_CALL = ToolCall("look_up", {"key": 'a "quoted" value', "rows": [1, 2.5, None, {"deep": True}]})
_THOUGHT = "I look it up first."
_REASONING = "<think>\nThe key is known,\nso look.\n</think>\n\nI look it up."
_THOUGHTS = (_THOUGHT, "", _REASONING)

Rewritten = Callable[[str, ToolCall | None], Action]

TEMPLATES = ("compact", "llama3", "plain", "qwen")
"""Append-only chat templates of this package, for tokenizers whose own template is not append-only, or missing."""


def template_text(named: str) -> str:
    """Return the text of a chat template.

    Args:
        named: A name from `TEMPLATES`, a file, or the template's text.

    Raises:
        ConfigError: It is none of these.
    """
    if named in TEMPLATES:
        return (Path(__file__).parent / "templates" / f"{named}.jinja").read_text(encoding="utf-8")
    if "{" in named:
        return named
    if not Path(named).is_file():
        raise ConfigError(
            f"chat_template={named!r} is neither a name ({', '.join(TEMPLATES)}), nor a file, nor a template's text."
            + did_you_mean(named, TEMPLATES)
        )
    return Path(named).read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Style:
    """A call format.

    Attributes:
        name: `tagged` (Qwen), `bare` (Llama 3), `compact` (this package's), or `tokenizer` (its `response_template`).
        parse: Parses a turn's text.
        samples: Turns as the template writes them.
    """

    name: str
    parse: Callable[[str], Parsed]
    samples: tuple[str, ...]

    @property
    def keeps(self) -> bool:
        """Whether the template writes all that stands beside a call."""
        pairs = zip(_THOUGHTS, self.samples, strict=True)
        return all(line in sample for thought, sample in pairs for line in thought.splitlines())


def find_style(tokenizer: Any, template: Template) -> Style:
    """Return the first call format whose parser reads the calls that the template writes.

    Raises:
        ConfigError: The template drops calls, or no parser reads its calls.
    """
    samples = tuple(template.action_text(Action(thought, thought, _CALL).message()) for thought in _THOUGHTS)
    if _CALL.name not in samples[0] or "quoted" not in samples[0]:
        raise ConfigError(f"the chat template does not write tool calls. {HOW_TO_MEND}")
    # what stands between a thought and its call belongs to neither
    _, kept, after = samples[0].partition(_THOUGHT)
    separator = after[: min(at for at in (after.find(OPEN), after.find("{"), len(after)) if at >= 0)] if kept else "\n"
    styles = [
        Style("tagged", lambda text: parse_tagged(text, separator), samples),
        Style("bare", lambda text: parse_bare(text, separator), samples),
        Style("compact", parse_compact, samples),
    ]
    if getattr(tokenizer, "response_template", None) is not None:
        opening = template.render([{"role": "user", "content": "Hi."}], [PROBE_TOOL], True)

        def own(text: str) -> Parsed:
            return parse_message(text, lambda t: tokenizer.parse_response(t + template.end, prefix=opening), separator)

        # after the tags, which are read more strictly, and before formats that are guessed
        styles.insert(1, Style("tokenizer", own, samples))
    for style in styles:
        if all(style.parse(sample).call == _CALL for sample in samples):
            return style
    raise ConfigError(
        f"the chat template writes a call as {samples[1]!r}, which no parser here reads (Qwen's <tool_call> tags, a "
        "bare JSON object with name and arguments). Set tokenizer.response_template so that "
        "tokenizer.parse_response reads it, or use another template (chat_template='qwen')."
    )


def check_append_only(render: Callable[..., str], rewritten: Rewritten, text_of: Callable[[Context], str]) -> None:
    """Compare probe conversations of several turns, turn by turn, with the template's own rendering.

    Args:
        render: The template's own rendering; see `Template.render`.
        rewritten: Maps a thought and a call to the action that is read back from the template's text of them.
        text_of: Returns the text of a prompt as it is appended turn by turn.

    Raises:
        NotAppendOnly: They differ; the message tells whether reasoning is dropped or earlier text changes.
        ConfigError: The template cannot render one of them.
    """
    for conversation in _conversations(rewritten):
        for context in conversation[-1].lineage():
            messages = context.messages()
            want = text_of(context)
            try:
                got = render(messages, context.tools, context.observation is not None)
            except ConfigError:
                # the form of the usual order is used for such turns, so the template need not write them
                if not _usual(messages):
                    break  # some templates refuse unusual orders of roles; `Renderer` uses the usual form instead
                raise
            if context.observation is None and got.startswith(want):
                continue
            if got != want:
                raise NotAppendOnly(_difference(got, want, context))


def check_whole(render: Callable[..., str], rewritten: Rewritten) -> None:
    """Check that a template that is rendered whole for each turn shows what a policy has to see.

    Args:
        render, rewritten: See `check_append_only`.

    Raises:
        ConfigError: It cannot render a conversation, or drops a content or changes it in a way that cannot be undone.
    """
    said = {name: f"{name}:{ROUGH}:{name}" for name in ("system", "user", "tool", "reply")}
    start = Context(Task("probe", "train", {}), said["system"], (PROBE_TOOL,), said["user"])
    context = start.child(rewritten("", _CALL), said["tool"]).child(Action("So it is."), said["reply"], "user")
    text = render(context.messages(), context.tools, True)
    for name, content in said.items():
        if not any(transform(content) in text for transform in TRANSFORMS):
            raise ConfigError(f"the chat template drops or changes the content of the {name}. {HOW_TO_MEND}")
    if "quoted" not in text:  # of the call's arguments
        raise ConfigError(f"the chat template drops the calls of answered turns. {HOW_TO_MEND}")


def _conversations(rewritten: Rewritten) -> list[list[Context]]:
    tools: Sequence[Any] = (PROBE_TOOL,)
    acted = lambda thought: rewritten(thought, _CALL)  # noqa: E731
    said = lambda text: rewritten(text, None)  # noqa: E731
    plans: list[list[tuple[Action, str | None, Role]]] = [
        [(acted(_REASONING), "one", "tool"), (acted(_THOUGHT), '{"rows": []}', "tool"), (acted(""), "", "tool")],
        [(said(_REASONING), "And then?", "user"), (acted(_REASONING), "two", "tool"), (said("So."), "Yes", "user")],
        [(acted(_THOUGHT), "What?", "user"), (said("It is."), "no call was made", "tool"), (acted(""), "x", "tool")],
        [(acted(_THOUGHT), " \n padded \n", "tool"), (said("That is it."), None, "user")],
    ]
    out = []
    for index, plan in enumerate(plans):
        system = "" if index % 2 else "Be brief."
        contexts = [Context(Task("probe", "train", {}), system, tools, "Find it.")]
        for action, observation, role in plan:
            contexts.append(contexts[-1].child(action, observation, role))
        out.append(contexts)
    return out


def in_usual_roles(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages of which a tool answers every call and the user every other turn."""
    out = [dict(message) for message in messages]
    for before, after in zip(messages, out[1:], strict=False):
        if before["role"] == "assistant":
            after["role"] = "tool" if before.get("tool_calls") else "user"
    return out


def _usual(messages: Sequence[dict[str, Any]]) -> bool:
    """Return whether every call is answered by a tool and every other turn by the user."""
    return all(a["role"] == b["role"] for a, b in zip(messages, in_usual_roles(messages), strict=True))


def _difference(got: str, want: str, context: Context) -> str:
    dropped = [
        line
        for action in context.actions()
        for line in action.text.splitlines()
        if line.strip() and line in want and got.count(line) < want.count(line)
    ]
    if dropped:
        return (
            f"the chat template drops reasoning of earlier turns ({dropped[0]!r} is gone after turn {context.depth}), "
            f"so a prompt would not extend the one before it. {HOW_TO_MEND}"
        )
    at = next((i for i, (a, b) in enumerate(zip(got, want, strict=False)) if a != b), min(len(got), len(want)))
    return (
        f"the chat template is not append-only: after turn {context.depth} it writes "
        f"{got[max(0, at - 20) : at + 40]!r} where appending gives {want[max(0, at - 20) : at + 40]!r}. {HOW_TO_MEND}"
    )
