"""The chat templates of real models that TRL ships: prompts, masks and calls against the templates' own rendering.

The list of what is taken, and how, is the table in docs/policies.md.
"""

import json
import re
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_agent.records import Action, Context, Task, ToolCall, call_message
from offline_agent.rendering import template as templates
from offline_agent.rendering.columns import check_row, trajectory_columns
from offline_agent.rendering.renderer import Renderer
from offline_agent.rendering.styles import template_text
from offline_agent.training.data.conversations import Encoder
from tests.helpers import rendering as kit

PAGE = Path(__file__).parents[3] / "docs" / "policies.md"
SYSTEM, USER = "You shop.", "Find red shoes."
FUNCTION = {
    "name": "search",
    "description": "Find products.",
    "parameters": {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "What."},
            "size": {"type": "integer", "description": "Of shoes."},
            "rows": {"type": "array", "description": "All.", "items": {"type": "string"}},
        },
        "required": ["query"],
    },
}
TOOLS = ({"type": "function", "function": FUNCTION},)
CALL = ToolCall("search", {"query": '42, "red"\nshoes', "size": 42, "rows": ["ä", "b"]})
TURNS = [  # reasoning, words, call, what follows
    ("They want shoes.", "", CALL, "2 hits"),
    ("Two.", "Which one?", None, "The first."),
    ("I look again.", "Let me see.", ToolCall("search", {"query": "one"}), "1 hit"),
    ("", "Done.", None, None),
]
# what a template writes before a turn where its prompt did not
HEADERS = dict.fromkeys(("diffusion_gemma", "diffusion_gemma_training"), "<|turn>model\n")
HEADERS |= dict.fromkeys(("deepseekv3", "deepseekv3_training"), "<think>\n")
ROW = re.compile(r"^\| (`\w+`.*?) \| (.*?) \| (.*?) \| (.*?) \| (.*?) ?\|$", re.MULTILINE)


def listed():
    """Return what docs/policies.md says of each template: calls, history, reasoning and the rest."""
    out = {}
    for names, *said in ROW.findall(PAGE.read_text(encoding="utf-8").partition("## Chat templates")[2]):
        out |= dict.fromkeys(re.findall(r"`(\w+)`", names), said)
    return out


LISTED = listed()


def facts(renderer):
    """Return what the page is to say of a template."""
    template, dialect = renderer._template, renderer._template.dialect
    opened = template.prefill.partition("</think>")
    rest = {
        "tools in the system prompt": dialect.calls is not None and not dialect.lists,
        "contents in parts": dialect.parts,
        "system prompt in the user's turn": not dialect.system,
        "arguments as JSON text": dialect.calls == "text",
        "words beside a call are reasoning": dialect.beside == "reason",
        "words beside a call are dropped": dialect.beside == "dropped",
        f"prompts {'close' if opened[1] else 'open'} a thought": bool(template.prefill),
        "two ends of turn": len(set(renderer.end_ids)) == 2,
    }
    name = f"`{renderer._style.name}`"
    return [
        name if dialect.calls else f"text, as `qwen` writes them ({name})",
        "appended" if renderer.appends else "rendered anew",
        f"`{dialect.reason}`" if dialect.reason else "in the content",
        ", ".join(said for said, so in rest.items() if so),
    ]


def renderer_of(name):
    return Renderer(kit.of_trl(name))


def thinking(reason, words):
    return f"<think>\n{reason}\n</think>\n\n{words}" if reason else words


def by_hand(name, turns, ours):
    """Return an episode's messages as the page says that a template wants them."""
    calls, _, reasoning, rest = LISTED[name]
    as_text, key = "as `qwen` writes them" in calls, re.search(r"`(\w+)`", reasoning)
    system = SYSTEM
    if as_text or "tools in the system prompt" in rest:
        system = ours([{"role": "system", "content": SYSTEM}], list(TOOLS))
    out = [{"role": "system", "content": system}, {"role": "user", "content": USER}]
    if "system prompt in the user's turn" in rest:
        out = [{"role": "user", "content": f"{system}\n\n{USER}"}]
    for reason, words, call, follows in turns:
        if call is not None and "words beside a call are reasoning" in rest:
            reason, words = "\n\n".join(filter(None, (reason, words))), ""
        if "prompts close a thought" in rest:
            reason, words = "", "\n\n".join(filter(None, (reason, words)))
        message = {"role": "assistant", "content": words if key else thinking(reason, words)}
        if call is not None and "words beside a call are dropped" in rest:
            message["content"] = ""
        if key and reason:
            message[key[1]] = reason
        if call is not None:
            arguments = dict(call.arguments)
            arguments = json.dumps(arguments, ensure_ascii=False) if "arguments as JSON text" in rest else arguments
            function = {"name": call.name, "arguments": arguments}
            made = {**message, "tool_calls": [{"type": "function", "function": function}]}
            message = {"role": "assistant", "content": ours([made], None)} if as_text else made
        out.append(message)
        if follows is not None:
            role = "tool" if call is not None else "user"
            reply = {"role": role, "content": follows} | ({"name": call.name} if call is not None else {})
            out.append({"role": "user", "content": ours([reply], None)} if as_text and call is not None else reply)
    if "contents in parts" in rest:
        out = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in out]
    return out


def truth(name, turns, prompt, **how):
    tokenizer = kit.of_trl(name)

    def ours(messages, tools):
        text = tokenizer.apply_chat_template(messages, tools=tools, chat_template=template_text("qwen"), tokenize=False)
        return text.partition("\n")[2].removesuffix("<|im_end|>\n")

    as_text = "tools in the system prompt" in LISTED[name][3] or "as `qwen` writes them" in LISTED[name][0]
    return tokenizer.apply_chat_template(
        by_hand(name, turns, ours), tools=None if as_text else list(TOOLS), add_generation_prompt=prompt,
        strftime_now=templates.DATE.strftime, **{"tokenize": False, **how},
    )  # fmt: skip


def episode(renderer):
    context = Context(Task("t", "train", {}), SYSTEM, TOOLS, USER)
    for reason, words, call, follows in TURNS:
        ids = renderer.encode_action(Action(renderer.write(thinking(reason, words), call), "", call))
        action = renderer.parse(ids, [-0.5] * len(ids), TOOLS)
        assert (action.call, action.fault) == (call, None), action.detail
        context = context.child(action, follows, "user" if call is None else "tool")
    return context


def test_every_template_is_listed():
    assert LISTED.keys() == kit.trl_templates().keys()


@pytest.mark.parametrize("name", LISTED)
def test_prompts_and_masks_are_the_templates_own(name):
    renderer = renderer_of(name)
    _, history, _, rest = LISTED[name]
    assert LISTED[name] == facts(renderer)  # a new row of the page is what `facts` gives
    end, compared = episode(renderer), 0
    for number, context in enumerate(end.lineage()[:-1]):
        prompt = truth(name, TURNS[:number], True)
        got = renderer.decode(renderer.context_ids(context))
        if "tools in the system prompt" in rest:  # with the model's own form of a call, which the test does not know
            assert got.count("search") > prompt.count("search") - 1 and got.endswith(prompt[-40:])
        else:
            assert got == prompt
        action, (reason, words, call, _) = end.actions()[number], TURNS[number]
        written = renderer.decode(renderer.action_ids(action))
        whole = truth(name, [*TURNS[:number], (reason, words, call, None)], False)
        assert reason in written and words in written
        assert renderer.action_ids(action)[-1] == renderer.end_ids[call is not None]
        its = whole[len(prompt) :].removeprefix(HEADERS.get(name, "")) if whole.startswith(prompt) else ""
        if reason in its and words in its:  # else the template does not write what a policy writes
            if name.startswith("deepseekv3"):  # the prompt after a tool's answer does not open a thought
                written = written.removeprefix("</think>\n\n")
            mark = renderer.decode(renderer.action_ids(action)[-1:])
            assert its.startswith(written) or its == written.removesuffix(mark)  # some end with the next turn's header
            assert its[len(written) :].strip() in ("", "<eos>")
            compared += 1
    # this one never writes the reasoning, nor a turn that closes the thought that its prompt opens
    assert compared >= (4 if history == "appended" else int(name != "deepseek_r1_distill"))
    row = trajectory_columns(renderer, end)
    check_row(renderer, {**row, "messages": end.messages(), "tools": json.dumps(TOOLS)})
    masked = [token for token, bit in zip(row["input_ids"], row["action_mask"], strict=True) if bit]
    assert masked == [token for action in end.actions() for token in renderer.action_ids(action)]


MARKED = [name for name, text in kit.trl_templates().items() if "generation -%}" in text or "generation %}" in text]


@pytest.mark.parametrize("name", [name for name in MARKED if LISTED[name][1] == "appended"])
def test_masks_are_those_of_trls_markers(name):
    tokenizer, renderer = kit.of_trl(name), renderer_of(name)
    made = truth(name, TURNS, False, return_dict=True, tokenize=True, return_assistant_tokens_mask=True)
    marked = [token if bit else None for token, bit in zip(made["input_ids"], made["assistant_masks"], strict=True)]
    runs = [tokenizer.decode(list(run)) for on, run in groupby(marked, lambda token: token is not None) if on]
    turns = [renderer.decode(renderer.action_ids(action)) for action in episode(renderer).actions()]
    assert len(runs) == len(turns)
    for run, turn in zip(runs, turns, strict=True):
        # TRL marks what follows the end too, and in some what the prompt ends with
        heads = ("", renderer._template.prefill, "Assistant:", "<|start|>assistant")
        assert run.removesuffix("<eos>").strip() in [(head + turn).strip() for head in heads]


def rows_messages():
    out = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": USER}]
    for reason, words, call, follows in TURNS:
        turn = {"role": "assistant", "content": words} | ({"reasoning_content": reason} if reason else {})
        if call is not None:
            turn["tool_calls"] = call_message(call.name, call.arguments)["tool_calls"]
        out.append(turn)
        if follows is not None:
            named = {"role": "user"} if call is None else {"role": "tool", "name": call.name}
            out.append({**named, "content": follows})
    return out


@pytest.mark.parametrize(
    "name",
    ["gemma", "idefics3", "gptoss", "gemma4_v5", "deepseekv3", "llama3_2", "nemotron_3_nano"],
)
def test_rows_of_messages_get_the_ids_of_a_search(name):
    renderer = renderer_of(name)
    encoder = Encoder(renderer)
    row = encoder.trajectory(rows_messages(), list(TOOLS), False)
    masked = [token for token, bit in zip(row["input_ids"], row["action_mask"], strict=True) if bit]
    assert masked == [token for action in episode(renderer).actions() for token in renderer.action_ids(action)]
    assert not encoder.one_text


SYNTAXES = {
    "tagged": "qwen2_5", "xml": "qwen3_5_think_training", "glm": "glm4moe", "python": "lfm2_v2",
    "unescaped python": "lfm2_2_5", "gemma": "gemma4_v5", "deepseek": "deepseekv3", "channels": "gptoss",
    "atem": "muse_glimmer", "bare": "llama3_1",
}  # fmt: skip
names = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)
TRICKY = ["it's", 'a "b"', "\n", " x ", "null", "True", "1", "[1]", "\\n", "", "漢🙂", "{"]
words = st.text(max_size=12) | st.sampled_from(TRICKY)
atoms = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words
nested = st.recursive(atoms, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3))
calls = st.builds(ToolCall, st.sampled_from(["search", "buy_now"]), st.dictionaries(names, nested, max_size=3))
KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


class _Lazily(dict):
    def __missing__(self, syntax):
        self[syntax] = renderer_of(SYNTAXES[syntax])
        return self[syntax]


RENDERERS = _Lazily()


def tool_of(call):
    properties = {key: {"type": KINDS.get(type(value), "null")} for key, value in call.arguments.items()}
    return {"function": {"name": call.name, "parameters": {"type": "object", "properties": properties}}}


@pytest.mark.parametrize("syntax", SYNTAXES)
@given(call=calls, thought=st.sampled_from(["", "I look."]))
@settings(max_examples=30, deadline=None)
def test_parsing_inverts_rendering(syntax, call, thought):
    renderer = RENDERERS[syntax]
    assert renderer._style.name == syntax
    if syntax == "unescaped python" and "'" in str(call.arguments):
        return  # it has no escapes
    written = renderer.write(thought, call)
    action = renderer.parse_text(written, tools=[tool_of(call)])
    assert (action.fault, action.call) == (None, call), written
    assert thought in action.thought and renderer.write(action.thought, call) == written


@pytest.mark.parametrize("syntax", SYNTAXES)
def test_a_malformed_call_is_told_in_its_own_syntax(syntax):
    renderer = RENDERERS[syntax]
    written = renderer.write("", CALL)
    middle = written.index("query") + 7
    broken = renderer.parse_text(written[:middle])
    assert broken.fault in ("invalid_json", "bad_call"), broken
    marks = [mark for mark in re.findall(r"<[^>\n]+>", written) if "think" not in mark]
    assert any(mark in broken.detail for mark in marks) or syntax == "bare"
    if syntax not in ("bare", "channels"):  # these write one call alone
        twice = call_message(CALL.name, CALL.arguments)
        twice["tool_calls"] *= 2
        assert renderer.parse_text(renderer._template.action_text(twice)).fault == "several_calls"
    for end in range(len(written)):
        cut = renderer.parse_text(written[:end])
        assert (cut.fault is None) == (cut.detail is None) and cut.call in (None, CALL)
