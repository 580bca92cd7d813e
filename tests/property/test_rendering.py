"""Over random conversations: masks aligned, round trips exact, control strings inert, prompts append-only."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_agent.records import Action, ToolCall
from offline_agent.rendering.calls.objects import parse_bare
from offline_agent.rendering.columns import check_row, pair_columns, trajectory_columns
from offline_agent.rendering.parsing import OPEN, call_text, parse_tagged
from offline_agent.rendering.renderer import Renderer
from offline_agent.rendering.styles import template_text
from tests.helpers import rendering as kit

RENDERERS = {
    "qwen": Renderer(kit.qwen()),
    "llama": Renderer(kit.llama()),
    "sentencepiece": Renderer(kit.metaspace(template_text("qwen"))),
    "compact": Renderer(kit.byte_level(kit.CONTROLS, template_text("compact"))),
    "plain": Renderer(kit.byte_level(kit.LLAMA_CONTROLS, template_text("plain"))),
}
EXACT = settings(max_examples=60, deadline=None)

controls = st.sampled_from([*kit.CONTROLS, *kit.LLAMA_CONTROLS, "<tool_response>", "\n", "  ", '{"name": "x"}'])
text = st.lists(st.text(max_size=8) | controls, max_size=6).map("".join)
argument = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
calls = st.builds(ToolCall, st.sampled_from(["search", "buy_now", "an unknown tool"]), st.dictionaries(text, argument))
thoughts = text.filter(lambda t: OPEN not in t and '"name"' not in t and "</tool_call>" not in t)
actions = st.tuples(thoughts, st.none() | calls)
turns = st.lists(st.tuples(actions, text, st.sampled_from(["tool", "user"])), max_size=4)


def tool(description: str) -> dict:
    function = {"name": "search", "description": description, "parameters": {"type": "object", "properties": {}}}
    return {"type": "function", "function": function}


def converse(renderer: Renderer, system, described, first, plan, sampled):
    context = kit.root(first, system, (tool(described),))
    for (thought, call), observation, role in plan:
        action = Action(call_text(thought, call) if call else thought, thought, call)
        if sampled:
            ids = renderer.encode_action(action)
            action = renderer.parse(ids, [-0.25] * len(ids))
        context = context.child(action, observation, role)
    return context


@pytest.mark.parametrize("family", RENDERERS)
@given(system=text, described=text, first=text, plan=turns, sampled=st.booleans())
@EXACT
def test_random_conversations(family, system, described, first, plan, sampled):
    renderer = RENDERERS[family]
    context = converse(renderer, system, described, first, plan, sampled)
    ids = renderer.context_ids(context)
    assert ids == [token for node in context.lineage() for token in renderer.segment(node)]
    assert renderer.decode(ids) == kit.context_text(renderer, context)

    control = renderer._tokens.added.keys()
    for node in context.lineage():
        contents = [node.observation or ""] + ([node.system, described] if node.parent is None else [])
        for content in contents:
            assert not control & set(renderer._tokens.content(content))
        turn = renderer.action_ids(node.action) if node.action is not None else ()
        # As many control tokens as with contents that hold none: what the contents say adds nothing.
        twin = kit.root("x", "s" if node.system else "", (tool("d"),))
        if node.parent is not None:
            twin = twin.child(node.action, "x", node.role)
        count = sum(token in control for token in renderer.segment(node))
        assert count == sum(token in control for token in renderer.segment(twin))
        if turn:
            assert turn[-1] in renderer.eos_ids and not renderer.eos_ids & set(turn[:-1])

    columns = trajectory_columns(renderer, context)
    acted = [token for action in context.actions() for token in renderer.action_ids(action)]
    assert len(columns["action_mask"]) == len(columns["input_ids"])
    assert columns["input_ids"] == ids[: len(columns["input_ids"])]
    assert [t for t, bit in zip(columns["input_ids"], columns["action_mask"], strict=True) if bit] == acted
    check_row(renderer, {**columns, "messages": context.messages() if sampled else None})


@pytest.mark.parametrize("family", RENDERERS)
@given(system=text, described=text, first=text, plan=turns)
@EXACT
def test_the_text_is_the_templates_own(family, system, described, first, plan):
    renderer = RENDERERS[family]
    context = converse(renderer, system, described, first, plan, True)
    want = renderer.tokenizer.apply_chat_template(
        context.messages(), tools=[dict(t) for t in context.tools], tokenize=False, add_generation_prompt=True
    )
    assert kit.context_text(renderer, context) == want


@pytest.mark.parametrize("family", RENDERERS)
@given(first=text, plan=turns.filter(len), sides=st.lists(actions, min_size=2, max_size=2), final=st.booleans())
@EXACT
def test_pairs_continue_their_prompt(family, first, plan, sides, final):
    renderer = RENDERERS[family]
    prefix = converse(renderer, "", "d", first, plan, True)
    ends = []
    for thought, call in sides:
        ids = renderer.encode_action(Action(call_text(thought, call) if call else thought, thought, call))
        ends.append(prefix.child(renderer.parse(ids), None if final else "seen"))
    row = pair_columns(renderer, prefix, *ends)
    for side, end in zip(("chosen", "rejected"), ends, strict=True):
        ids = row["prompt_ids"] + row[f"{side}_ids"]
        assert ids == renderer.context_ids(end)[: len(ids)]
        assert row[f"{side}_mask"] == [1] * len(end.action.token_ids)
    skip = len(prefix.messages())
    messages = {side: end.messages()[skip:] for side, end in zip(("chosen", "rejected"), ends, strict=True)}
    check_row(renderer, {**row, **messages})


@given(thought=thoughts, call=calls)
@EXACT
def test_a_call_reads_back(thought, call):
    parsed = parse_tagged(call_text(thought, call))
    assert (parsed.thought, parsed.call) == (thought, call)


@given(st.text() | text, st.sampled_from([parse_tagged, parse_bare]))
@settings(max_examples=300, deadline=None)
def test_parsing_never_raises(said, parse):
    for turn in (said, f"<tool_call>{said}", f"<tool_call>\n{said}\n</tool_call>", f'{{"name": {said}'):
        parsed = parse(turn)
        assert (parsed.fault is None) == (parsed.detail is None)
        assert parsed.call is None or parsed.fault is None


@pytest.mark.parametrize("family", RENDERERS)
@given(ids=st.lists(st.integers(0, 340), max_size=30), ended=st.booleans())
@EXACT
def test_any_sampled_ids_make_a_row(family, ids, ended):
    renderer = RENDERERS[family]
    sampled = [token for token in ids if token not in renderer.eos_ids] + [renderer.end_id] * ended
    action = renderer.parse(sampled)
    assert action.token_ids == tuple(sampled)
    assert (action.fault == "no_end") is not ended
    context = kit.root().child(action, "Go on.", "user")
    check_row(renderer, {**trajectory_columns(renderer, context), "messages": context.messages()})
    row = pair_columns(renderer, context.parent, context, kit_child(context))
    check_row(renderer, row)


def kit_child(context):
    return context.parent.child(context.action, None)
