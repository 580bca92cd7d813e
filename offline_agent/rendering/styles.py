"""Call formats of chat templates, and the check that a template is append-only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from offline_agent.errors import ConfigError, did_you_mean
from offline_agent.records import Action, Context, Role, Task, ToolCall
from offline_agent.rendering.calls import channels, compact
from offline_agent.rendering.calls.literals import PYTHON, UNESCAPED, gemma
from offline_agent.rendering.calls.objects import DEEPSEEK, parse_bare
from offline_agent.rendering.calls.xml import GLM, QWEN, as_text, typed
from offline_agent.rendering.forms import HOW_TO_MEND, ROUGH, TRANSFORMS
from offline_agent.rendering.parsing import TAGGED, Parsed
from offline_agent.rendering.template import PROBE_TOOL, NotAppendOnly, Template

_OTHER = ToolCall("put_away", {"key": "x"})  # its result may be written by the name of its call
_CALL = ToolCall("look_up", {"key": 'it\'s a "quoted" \\ value', "rows": [1, 2.5, None, {"deep": True}]})
_THOUGHT = "I look it up first."
_REASONING = "<think>\nThe key is known,\nso look.\n</think>\n\nI look it up."

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


Parse = Callable[[str, str], Parsed]
_BLOCKS = {
    "tagged": TAGGED,
    "xml": QWEN,
    "glm": GLM,
    "python": PYTHON,
    "unescaped python": UNESCAPED,
    "deepseek": DEEPSEEK,
}
_UNTYPED = ("xml", "glm", "atem")
# syntax: the mark with which a call begins, and the parser of a turn
_PARSERS: dict[str, tuple[str, Parse]] = {
    **{name: (block.open, block.parse) for name, block in _BLOCKS.items()},
    "gemma": ("<|tool_call>", gemma),
    "channels": ("<|start|>assistant to=", channels.parse),
    "atem": ("<|start|>assistant to=", channels.parse),
    "bare": ("{", parse_bare),
    "compact": ("> ", compact.parse),
}


@dataclass(frozen=True, slots=True)
class Style:
    """A call format.

    Attributes:
        name: Of the syntax.
        parse: Parses a turn's text; arguments are texts in some syntaxes, which have no types.
        samples: Turns as the template writes them.
    """

    name: str
    parse: Callable[[str], Parsed]
    samples: tuple[str, ...]

    def read(self, text: str, tools: Sequence[Mapping[str, Any]]) -> Parsed:
        """Return the parts of a turn, arguments with the types that the tools' schemas give them."""
        return self.typed(self.parse(text), tools)

    def typed(self, parsed: Parsed, tools: Sequence[Mapping[str, Any]]) -> Parsed:
        """Return the same with types."""
        if parsed.call is None or self.name not in _UNTYPED:
            return parsed
        return replace(parsed, call=typed(parsed.call, tools))

    def untyped(self, call: ToolCall) -> ToolCall:
        """Return a call as `parse` returns it."""
        if self.name not in _UNTYPED:
            return call
        return ToolCall(call.name, {key: as_text(value) for key, value in call.arguments.items()})


def find_style(template: Template) -> Style:
    """Return the first call format whose parser reads the calls that the template writes.

    Raises:
        ConfigError: The template drops calls, or no parser reads its calls.
    """
    thoughts = (_THOUGHT, "", _REASONING)
    samples = tuple(template.action_text(Action(thought, thought, _CALL).message()) for thought in thoughts)
    for thought, sample in zip(thoughts, samples, strict=True):
        lost = [line for line in thought.splitlines() if line not in sample and "think>" not in line]
        if lost:
            raise ConfigError(
                f"the chat template drops what the assistant says or thinks beside a call ({lost[0]!r} is missing "
                f"from its rendering). {HOW_TO_MEND}"
            )
    # what stands between a thought and its call belongs to neither
    after = samples[0].partition(_THOUGHT)[2]
    for name, (mark, parser) in _PARSERS.items():
        separator = after.partition(mark)[0] if "think" not in after.partition(mark)[0] else ""
        style = Style(name, _reader(template, parser, separator), samples)
        if all(style.read(sample, [PROBE_TOOL]).call == _CALL for sample in samples):
            return style
    raise ConfigError(
        f"the chat template writes a call as {samples[1]!r}, which no parser here reads ({', '.join(_PARSERS)}). "
        "Use another template (chat_template='qwen')."
    )


def _reader(template: Template, parser: Parse, separator: str) -> Callable[[str], Parsed]:
    """Return the parser of a turn that may begin inside a thought, or with words of the template's own."""
    lead, closing = template.lead, template.closing

    def parse(text: str) -> Parsed:
        body = text.removesuffix(closing)
        if lead and body.startswith(lead):
            body = body[len(lead) :]
        elif "<think>" not in (thought := body.partition("</think>"))[0] and thought[1]:
            body = template.prefill + body
        return parser(body, separator)

    return parse


def check_append_only(render: Callable[..., str], rewritten: Rewritten, text_of: Callable[[Context], str]) -> None:
    """Compare probe conversations of several turns, turn by turn, with the template's own rendering.

    Args:
        render: The template's own rendering; see `Template.render`.
        rewritten: Maps a thought and a call to the action that is read back from the template's text of them.
        text_of: Returns the text of a prompt as it is appended turn by turn.

    Raises:
        NotAppendOnly: They differ.
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
                raise NotAppendOnly("its prompts do not go on with those before")


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
        [(rewritten("", _OTHER), "three", "tool"), (said("So it is."), None, "user")],
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
