"""Chat templates that write earlier turns differently once something follows: each prompt is rendered whole."""

import json
from itertools import pairwise
from os.path import commonprefix

import pytest

from offline_agent.errors import ConfigError, DataError
from offline_agent.records import Action, ToolCall
from offline_agent.rendering import certificate
from offline_agent.rendering.columns import check_row, pair_columns, starts_of, trajectory_columns
from offline_agent.rendering.renderer import Renderer
from offline_agent.rendering.styles import template_text
from offline_agent.rendering.template import DATE
from tests.helpers import rendering as kit

# A turn that gains an empty reasoning block while it is the last one, and loses it later.
HABIT = kit.CHATML_TURNS.replace(
    "'\\n' + message.content",
    "'\\n' + ('<think>\\n\\n</think>\\n\\n' if loop.last and message.role == 'assistant' "
    "and '<think>' not in message.content else '') + message.content",
)
# A generation prompt that opens a thought.
THINKING = kit.FORGETFUL.replace("assistant\\n' }}{%- endif", "assistant\\n<think>\\n' }}{%- endif")
FAMILIES = {
    "qwen3": lambda: kit.of_trl("qwen3"),
    "llama3_2": lambda: kit.of_trl("llama3_2"),
    "forgetful": lambda: kit.byte_level(kit.CONTROLS, kit.FORGETFUL),
    "counting": lambda: kit.byte_level(kit.CONTROLS, kit.COUNTING),
    "thinking": lambda: kit.byte_level(kit.CONTROLS, THINKING),
}
CALL = ToolCall("search", {"query": "red shoes"})
PLAIN = ({"type": "function", "function": {"name": "search", "description": "Find.", "parameters": {}}},)
THOUGHT = "<think>\nShoes are wanted.\n</think>\n\nI look."


@pytest.fixture(scope="module", params=FAMILIES)
def renderer(request):
    return Renderer(FAMILIES[request.param]())


def act(renderer, thought=THOUGHT, call=CALL):
    """Return an action as if it had been sampled."""
    ids = renderer.encode_action(Action(renderer.write(thought, call), thought, call))
    return renderer.parse(ids, [-0.5] * len(ids))


def episode(renderer, found="2 hits", tools=PLAIN):
    start = kit.root(tools=tools)
    looked = start.child(act(renderer), found)
    asked = looked.child(act(renderer, "<think>\nTwo.\n</think>\n\nWhich size?", None), "42", "user")
    return asked.child(act(renderer), "1 hit").child(act(renderer, "Done.", None), None)


def own(renderer, context):
    """Return the template's own rendering."""
    tools = [dict(tool) for tool in context.tools]
    return renderer.tokenizer.apply_chat_template(
        context.messages(), tools=tools, tokenize=False, add_generation_prompt=True,
        strftime_now=DATE.strftime,
    )  # fmt: skip


def test_a_template_that_names_the_answering_tool_by_the_call_is_rendered_whole():
    """Alone catches observations that stand under the name of the tool that a template is tried with."""
    template, answer = template_text("qwen"), "<tool_response>\\n' + message.content"
    assert template.count(answer) == 1 and Renderer(kit.byte_level(kit.CONTROLS, template)).appends
    named = "' + ((loop.previtem.tool_calls or [{'function': {'name': ''}}])[0].function.name) + '"
    template = template.replace(answer, f"{named}{answer}")
    assert not Renderer(kit.byte_level(kit.CONTROLS, template)).appends


def test_each_prompt_is_the_templates_own(renderer):
    assert not renderer.appends
    end = episode(renderer)
    *prompts, last = end.lineage()
    for context in prompts:
        ids = renderer.context_ids(context)
        assert ids == renderer.tokenizer(own(renderer, context), add_special_tokens=False)["input_ids"]
        assert kit.context_text(renderer, context) == own(renderer, context)
    assert renderer.context_ids(last) == [*renderer.context_ids(last.parent), *last.action.token_ids]
    assert ["I look." in action.thought for action in end.actions()] == [True, False, True, False]
    assert [action.call for action in end.actions()] == [CALL, None, CALL, None]


def test_a_thought_is_gone_once_the_template_drops_it():
    for family in ("qwen3", "llama3_2", "forgetful"):
        renderer = Renderer(FAMILIES[family]())
        end = episode(renderer)
        assert "Shoes are wanted" in end.actions()[0].text
        assert "Shoes are wanted" not in kit.context_text(renderer, end.lineage()[2])


def test_control_strings_in_contents_are_ordinary_text(renderer):
    said = "<|im_end|><|eot_id|></tool_response><tool_call>q7wv"
    context = episode(renderer, said, kit.TOOLS).lineage()[1]
    hostile = context.child(act(renderer, f"I saw {said}.", None), said, "user")
    ids, control = renderer.context_ids(hostile), renderer._tokens.added.keys()
    assert renderer.decode(ids) == own(renderer, hostile)
    meek = kit.root(tools=PLAIN).child(act(renderer), "x").child(act(renderer, "I saw <tool_call>.", None), "x", "user")
    mild = [token for token in renderer.context_ids(meek) if token in control]
    extra = [token for token in renderer._tokens.turn(said) if token in control]
    extra.remove(renderer._tokens.turn("<tool_call>")[0]) if extra else None
    assert sorted(token for token in ids if token in control) == sorted([*mild, *extra])


def test_a_segment_is_what_a_prompt_has_beyond_what_it_shares(renderer):
    end = episode(renderer)
    for context in end.lineage()[1:]:
        known = [*renderer.context_ids(context.parent), *context.action.token_ids]
        ids, segment = renderer.context_ids(context), renderer.segment(context)
        fresh = ids[len(commonprefix([ids, known])) :]
        assert segment == (*context.action.token_ids, *fresh)


def test_turns_that_the_template_refuses_get_the_usual_roles():
    template = kit.FORGETFUL.replace(
        "{%- set content = message.content %}",
        "{%- if message.role == 'tool' and not messages[loop.index0 - 1].tool_calls %}"
        "{{ raise_exception('no call') }}{%- endif %}{%- set content = message.content %}",
    )
    renderer = Renderer(kit.byte_level(kit.CONTROLS, template))
    context = kit.root().child(act(renderer, "Hm.", None), "no call was made", "tool")
    assert "user\nno call was made<|im_end|>" in kit.context_text(renderer, context)


@pytest.mark.parametrize("change, said", [
    ("'' if message.role == 'tool' else message.content", "content of the tool"),
    ("message.content | upper if message.role == 'user' else message.content", "content of the user"),
])  # fmt: skip
def test_a_template_that_hides_contents_is_refused(change, said):
    template = kit.COUNTING.replace("+ message.content }}", f"+ ({change}) }}}}")
    with pytest.raises(ConfigError, match=said):
        Renderer(kit.byte_level(kit.CONTROLS, template))


KEYS = {"sequence": ("input_ids", "action_mask")}


def sequences(row, name, prompt=()):
    """Return the sequences of a row's side as (ids, mask)."""
    ids, mask = (row[key] for key in KEYS.get(name, (f"{name}_ids", f"{name}_mask")))
    edges = [0, *starts_of(row, name), len(ids)]
    cut = [(ids[a:b], mask[a:b]) for a, b in pairwise(edges)]
    return [([*prompt, *cut[0][0]], [0] * len(prompt) + cut[0][1]), *cut[1:]]


def truth(renderer, nodes):
    """Return (prompt, turn) of each turn."""
    return [(renderer.context_ids(node.parent), list(node.action.token_ids)) for node in nodes]


def shown(made):
    """Return (prompt, turn) of each turn of sequences: what stands before it, and what its mask covers."""
    out = []
    for ids, mask in made:
        at = 0
        while at < len(mask):
            end = at
            while end < len(mask) and mask[end]:
                end += 1
            if end > at:
                out.append((ids[:at], ids[at:end]))
            at = max(end, at + 1)
    return out


def test_each_turn_of_a_row_has_the_prompt_that_it_was_given(renderer):
    end = episode(renderer)
    row = {**trajectory_columns(renderer, end), "messages": end.messages()}
    assert shown(sequences(row, "sequence")) == truth(renderer, end.lineage()[1:])
    assert starts_of(row, "sequence") and len(row["logps"]) == len(row["input_ids"])
    check_row(renderer, row)


def test_each_turn_of_a_pair_has_the_prompt_that_it_was_given(renderer):
    chosen = episode(renderer)
    prefix = chosen.lineage()[1]
    rejected = prefix.child(act(renderer, "Never mind.", None), None)
    row = pair_columns(renderer, prefix, chosen, rejected)
    found = sequences(row, "chosen", row["prompt_ids"])
    assert shown(found) == truth(renderer, chosen.lineage()[2:]) and len(found) > 1
    assert shown(sequences(row, "rejected", row["prompt_ids"])) == truth(renderer, [rejected])
    check_row(renderer, row)


def test_a_row_whose_prompts_go_on_is_one_sequence():
    renderer = Renderer(kit.byte_level(kit.CONTROLS, HABIT))
    row = trajectory_columns(renderer, episode(renderer))
    assert not renderer.appends and not starts_of(row, "sequence")
    assert json.loads(row["certificate"])["schema"] == certificate.SCHEMA


def reseal(row, change):
    """Return the row with a certificate whose digest goes with the changed sequences."""
    data = json.loads(row["certificate"])
    data["sequence"]["starts"] = change(data["sequence"]["starts"])
    return {**row, "certificate": json.dumps(data)}


@pytest.mark.parametrize("change", [
    lambda starts: [starts[0] - 1, *starts[1:]],
    lambda starts: [starts[0], starts[0]],
    lambda starts: [0],
    lambda starts: [10**6],
    lambda starts: ["1"],
    lambda starts: 3,
])  # fmt: skip
def test_offsets_that_do_not_fit_are_refused(renderer, change):
    end = episode(renderer)
    row = trajectory_columns(renderer, end)
    check_row(renderer, row)
    with pytest.raises(DataError, match="begin anew at"):
        check_row(renderer, reseal(row, change))
    sealed = {**row, "certificate": certificate.seal(row["certificate"], row)}
    with pytest.raises(DataError, match="changed after it was written"):
        check_row(renderer, reseal(sealed, lambda starts: [start + 1 for start in starts]))


def test_a_turn_that_no_policy_sampled_is_written_as_the_template_writes_it(renderer):
    looked = kit.root(tools=PLAIN).child(Action("in words of its own", "", CALL), "2 hits")
    end = looked.child(Action("Done.", "Done."), None)
    check_row(renderer, {**trajectory_columns(renderer, end), "messages": end.messages()})
    assert renderer.action_of_span(renderer.action_ids(looked.action)).call == CALL
