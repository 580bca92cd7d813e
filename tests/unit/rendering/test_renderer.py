"""Templates that are accepted and refused, prompts, and proofs of stored rows."""

import hashlib
import json

import pytest

from offline_agent.errors import ConfigError, DataError, PolicyError
from offline_agent.records import Action, ToolCall
from offline_agent.rendering.columns import check_row, pair_columns, trajectory_columns
from offline_agent.rendering.parsing import call_text
from offline_agent.rendering.renderer import Renderer
from offline_agent.rendering.styles import TEMPLATES, template_text
from offline_agent.rendering.values import ids_hash
from tests.helpers import rendering as kit

CALL = ToolCall("search", {"query": "red shoes"})

FAMILIES = {
    "qwen": kit.qwen,
    "llama": kit.llama,
    "sentencepiece": lambda: kit.metaspace(kit.QWEN25),
    "ready-made compact": lambda: kit.byte_level(kit.CONTROLS, template_text("compact")),
    "ready-made qwen": lambda: kit.byte_level(kit.CONTROLS, template_text("qwen")),
    "ready-made llama3": lambda: kit.byte_level(kit.LLAMA_CONTROLS, template_text("llama3")),
    "ready-made plain": lambda: kit.byte_level(kit.CONTROLS, template_text("plain")),
}


@pytest.fixture(scope="module")
def renderer():
    return Renderer(kit.qwen())


def act(renderer, thought="I look.", call=CALL, logps=True):
    """Return an action as if it had been sampled."""
    ids = renderer.encode_action(Action(call_text(thought, call) if call else thought, thought, call))
    return renderer.parse(ids, [-0.5] * len(ids) if logps else None)


def episode(renderer, **kwargs):
    start = kit.root()
    middle = start.child(act(renderer, **kwargs), "2 hits: <|im_end|> and <tool_call>")
    return start, middle, middle.child(act(renderer, "Done.", None, **kwargs), None)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_familys_prompt_is_the_templates_own(family):
    tokenizer = FAMILIES[family]()
    renderer = Renderer(tokenizer)
    _, middle, end = episode(renderer)
    messages, tools = middle.messages(), [dict(tool) for tool in kit.TOOLS]
    want = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
    assert kit.context_text(renderer, middle) == want
    assert renderer.decode(renderer.context_ids(middle)) == want
    assert [action.call for action in end.actions()] == [CALL, None]
    assert renderer.context_ids(end)[: len(renderer.context_ids(middle))] == renderer.context_ids(middle)
    assert renderer.context_ids(end)[-1] in renderer.eos_ids


def test_format_tokens_are_tokens_in_turns_only():
    tokenizer = kit.qwen()
    renderer = Renderer(tokenizer)
    special = tokenizer.convert_tokens_to_ids("<tool_call>")
    _, middle, _ = episode(renderer)
    ids = renderer.context_ids(middle)
    assert ids.count(special) == 1 == renderer.encode_action(middle.actions()[0]).count(special)
    assert renderer.decode(ids).count("<tool_call>") == 3  # the schema's, the turn's, the observation's


@pytest.mark.parametrize(
    "template, said",
    [
        (None, "no chat template"),
        (kit.CHATML_TURNS.replace("'<|im_end|>\\n'", "'\\nEND\\n'"), "no special token"),
        (kit.CHATML_TURNS.replace("+ message.content", "+ (message.content | upper)"), "content"),
        (kit.CHATML_TURNS.replace(
            "message.content }}", "(message.content | upper if message.role == 'tool' else message.content) }}", 1),
         "observation"),
        (kit.CHATML_TURNS.replace(
            "message.content }}", "(message.content[:9] if message.role == 'user' else message.content) }}", 1),
         "user"),
        (kit.CHATML_TURNS.replace(
            "message.content }}",
            "(message.content | replace('x', '') if message.role == 'user' else message.content) }}", 1),
         "cannot be undone"),
        (kit.CHATML_TURNS.replace("call.function | tojson", "call.function | string"), "no parser here reads"),
        ("{{ raise_exception('one turn only') if messages | length > 1 else '' }}" + kit.CHATML_TURNS,
         "one turn only"),
        (kit.CHATML_TURNS + "{% if", "cannot render"),
    ],
)  # fmt: skip
def test_templates_that_are_refused(template, said):
    with pytest.raises(ConfigError, match="(?s)" + said) as error:
        Renderer(kit.byte_level(kit.CONTROLS, template))
    assert "chat_template=" in str(error.value)


def test_a_slow_tokenizer_is_refused():
    with pytest.raises(ConfigError, match="fast"):
        Renderer(object())


def test_load(tmp_path, monkeypatch):
    kit.byte_level(kit.CONTROLS, kit.FORGETFUL).save_pretrained(tmp_path)
    assert not Renderer.load(tmp_path).appends
    named = Renderer.load(tmp_path, chat_template="qwen")
    (tmp_path / "mine.jinja").write_text(template_text("qwen"))
    assert Renderer.load(tmp_path, chat_template=str(tmp_path / "mine.jinja")).template_hash == named.template_hash
    assert Renderer.load(tmp_path, chat_template=template_text("qwen")).template_hash == named.template_hash
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    assert Renderer.load(f"~/{tmp_path.name}", chat_template="qwen").template_hash == named.template_hash
    with pytest.raises(ConfigError, match="Did you mean 'qwen'"):
        Renderer.load(tmp_path, chat_template="qwenn")
    with pytest.raises(ConfigError, match="no tokenizer"):
        Renderer.load(tmp_path / "missing")
    assert set(TEMPLATES) == {"compact", "qwen", "llama3", "plain"}


def test_parse_keeps_sampled_ids(renderer):
    sampled = renderer.encode_action(Action("I look.", "I look."))
    whole = renderer.parse(sampled, [-1.0] * len(sampled))
    assert (whole.text, whole.token_ids, whole.fault) == ("I look.", sampled, None)
    cut = renderer.parse(sampled[:-1])
    assert (cut.fault, cut.text, cut.logps) == ("no_end", "I look.", None)
    assert "cut after" in cut.detail
    assert renderer.parse(sampled[-1:]).fault == "empty"
    with pytest.raises(PolicyError, match="got 4 ids and 1 log-probs"):
        renderer.parse(sampled, [0.0])
    with pytest.raises(PolicyError, match="end of the turn"):
        renderer.parse((*sampled, 65))


def test_a_turn_cut_by_the_limit_is_closed_in_the_prompt_but_not_masked(renderer):
    cut = renderer.parse(renderer.encode_action(Action("I look and look", "I look and look"))[:-1])
    start = kit.root()
    context = start.child(cut, "The turn was cut.", "user")
    columns = trajectory_columns(renderer, context)
    ids = renderer.context_ids(context)
    at = len(renderer.context_ids(start)) + len(cut.token_ids)
    assert ids[at] == renderer.end_id
    assert len(columns["input_ids"]) == at == columns["action_mask"].count(1) + len(renderer.context_ids(start))
    assert renderer.decode(ids) == kit.context_text(renderer, context)


def test_another_renderer_makes_its_own_segments():
    first, second = Renderer(kit.qwen()), Renderer(kit.llama())
    start = kit.root()
    ids = first.context_ids(start)
    assert second.context_ids(start) != ids
    assert first.context_ids(start) == ids


def test_tools_of_another_environment_are_not_mixed_up(renderer):
    other = ({"type": "function", "function": {"name": "other", "description": "", "parameters": {}}},)
    text = kit.context_text(renderer, kit.root(tools=other))
    assert '"other"' in text and renderer.decode(renderer.context_ids(kit.root(tools=other))) == text
    assert '"search"' in renderer.decode(renderer.context_ids(kit.root()))


def test_lone_surrogates_do_not_stop_a_prompt(renderer):
    assert "\ufffd" in renderer.decode(renderer.context_ids(kit.root("a \ud800 b")))


def test_a_scripted_turn_in_another_format_is_written_in_the_templates():
    renderer = Renderer(kit.llama())
    action = Action(call_text("I look.", CALL), "I look.", CALL)
    text = renderer.decode(renderer.encode_action(action))
    assert text == 'I look.\n{"name": "search", "parameters": {"query": "red shoes"}}<|eot_id|>'
    context = kit.root().child(action, "ok")
    row = trajectory_columns(renderer, context)
    assert json.loads(row["certificate"])["sampled"] is False
    check_row(renderer, {**row, "messages": context.messages()})


def test_columns_mask_what_was_sampled_and_nothing_else(renderer):
    start, middle, end = episode(renderer)
    row = trajectory_columns(renderer, end)
    first, second = end.actions()
    masked = [token for token, bit in zip(row["input_ids"], row["action_mask"], strict=True) if bit]
    assert masked == [*first.token_ids, *second.token_ids]
    assert row["input_ids"] == renderer.context_ids(end)
    assert [lp for lp, bit in zip(row["logps"], row["action_mask"], strict=True) if bit] == [-0.5] * len(masked)
    assert {lp for lp, bit in zip(row["logps"], row["action_mask"], strict=True) if not bit} == {0.0}
    assert json.loads(row["certificate"])["sampled"] is True
    check_row(renderer, {**row, "messages": end.messages(), "task_id": "t-1"})
    other = start.child(act(renderer, "Or so.", None), None)
    pair = pair_columns(renderer, start, end, other)
    assert pair["prompt_ids"] == renderer.context_ids(start)
    assert pair["prompt_ids"] + pair["chosen_ids"] == renderer.context_ids(end)
    assert pair["rejected_mask"] == [1] * len(pair["rejected_ids"])
    assert len(pair["ref_chosen_logps"]) == len(pair["chosen_ids"])
    check_row(renderer, {**pair, "chosen": end.messages()[2:], "rejected": other.messages()[2:]})
    with pytest.raises(DataError, match="does not continue"):
        pair_columns(renderer, middle, end, other)
    unknown = start.child(act(renderer, logps=False), "x")
    assert trajectory_columns(renderer, unknown)["logps"] is None
    assert pair_columns(renderer, start, unknown, end)["ref_chosen_logps"] is None


def test_a_row_whose_round_trip_fails_is_not_made(renderer):
    ids = renderer.encode_action(Action("I look.", "I look."))
    wrong = kit.root().child(Action("I looked.", "I looked.", token_ids=ids), None)
    with pytest.raises(DataError, match="I looked"):
        trajectory_columns(renderer, wrong)


def test_rows_without_token_columns_pass(renderer):
    check_row(renderer, {"messages": [], "input_ids": None, "action_mask": None, "certificate": None})
    check_row(renderer, {"prompt_ids": None, "chosen_ids": None})


def swap(row, column, change):
    return {**row, column: change(row[column])}


def recertify(row, **changes):
    data = json.loads(row["certificate"])
    data["sequence"].update(changes)
    return {**row, "certificate": json.dumps(data)}


def forged(row):
    """Return the row with an observation token masked in, and a certificate that says so."""
    data = json.loads(row["certificate"])
    start, end = data["sequence"]["spans"][0]
    data["sequence"]["spans"][0] = [start, end + 1]
    data["sequence"]["trainable"] += 1
    mask = list(row["action_mask"])
    mask[end] = 1
    return {**row, "action_mask": mask, "certificate": json.dumps(data)}


TAMPERED = [
    (lambda r: swap(r, "action_mask", lambda m: [1, *m[1:]]), "mask"),
    (lambda r: swap(r, "action_mask", lambda m: [1] * len(m)), "mask"),
    (lambda r: swap(r, "action_mask", lambda m: m[:-1]), "mask"),
    (lambda r: swap(r, "action_mask", lambda m: "11"), "mask"),
    (lambda r: swap(r, "action_mask", lambda m: None), "lacks action_mask"),
    (lambda r: swap(r, "input_ids", lambda i: [*i[:-1], i[0]]), "certified"),
    (lambda r: swap(r, "input_ids", lambda i: [*i, 1]), "certified"),
    (lambda r: swap(r, "logps", lambda p: p[1:]), "log-probs"),
    (lambda r: swap(r, "logps", lambda p: 0.5), "log-probs"),
    (lambda r: swap(r, "certificate", lambda c: None), "certificate"),
    (lambda r: swap(r, "certificate", lambda c: c[:-1]), "certificate"),
    (lambda r: swap(r, "certificate", lambda c: c.replace('"schema": 2', '"schema": 9')), "schema"),
    (lambda r: swap(r, "certificate", lambda c: c.replace('"round_trip": true', '"round_trip": false')), "round trip"),
    (lambda r: swap(r, "certificate", lambda c: c.replace('"template_hash": "', '"template_hash": "0')), "template"),
    (lambda r: swap(r, "certificate", lambda c: c.replace('"tokenizer_hash": "', '"tokenizer_hash": "0')), "tokenizer"),
    (lambda r: swap(r, "messages", lambda m: m[:-1]), "assistant turns"),
    (lambda r: swap(r, "messages", lambda m: [*m[:-1], {**m[-1], "content": "Other."}]), "assistant turn 1"),
    (lambda r: recertify(r, spans=[[0, 3], [2, 5]]), "spans"),
    (lambda r: recertify(r, spans=[[0, 10**9], [2, 5]]), "spans"),
    (lambda r: recertify(r, spans=None), "spans"),
    (lambda r: recertify(r, texts=[]), "spans"),
    (lambda r: recertify(r, texts=["0" * 16] * 2), "decodes to another text"),
    (lambda r: recertify(r, trainable=1), "mask sets"),
    (forged, "decodes to another text"),
]


@pytest.mark.parametrize("change, said", TAMPERED, ids=range(len(TAMPERED)))
def test_a_row_that_was_changed_is_refused_by_name(renderer, change, said):
    _, _, end = episode(renderer)
    row = {**trajectory_columns(renderer, end), "messages": end.messages(), "task_id": "t-9"}
    check_row(renderer, row)
    with pytest.raises(DataError, match=f"(?s)task_id=t-9.*{said}"):
        check_row(renderer, change(row))


def test_a_pair_that_was_changed_is_refused(renderer):
    start, _, end = episode(renderer)
    other = start.child(act(renderer, "Or so.", None), None)
    row = {**pair_columns(renderer, start, end, other), "kind": "trajectory"}
    with pytest.raises(DataError, match="kind=trajectory.*chosen mask"):
        check_row(renderer, {**row, "chosen_mask": [1] * len(row["chosen_ids"])})
    with pytest.raises(DataError, match="prompt ids"):
        check_row(renderer, {**row, "prompt_ids": row["prompt_ids"][1:]})
    with pytest.raises(DataError, match="lacks rejected_ids"):
        check_row(renderer, {**row, "rejected_ids": None})


def test_another_tokenizer_refuses_the_row(renderer):
    _, _, end = episode(renderer)
    with pytest.raises(DataError, match="another tokenizer"):
        check_row(Renderer(kit.llama()), trajectory_columns(renderer, end))


def test_arrows_nulls_do_not_fail_a_row(renderer):
    _, middle, _ = episode(renderer)
    messages = json.loads(json.dumps(middle.messages()))
    messages[2]["tool_calls"][0]["function"]["arguments"]["page"] = None
    row = trajectory_columns(renderer, middle)
    check_row(renderer, {**row, "messages": messages})
    messages[2]["tool_calls"][0]["function"]["arguments"] = json.dumps({"query": "red shoes"})
    check_row(renderer, {**row, "messages": messages})
    call = messages[2]["tool_calls"][0]
    check_row(renderer, {**row, "messages": [*messages[:2], {**messages[2], "tool_calls": [json.dumps(call)]}]})
    check_row(renderer, {**row, "messages": [*messages[:2], {**messages[2], "tool_calls": json.dumps([call])}]})
    for odd in ("{", ["{"], [3], 3, [{}], [{"function": {"name": "search"}}], [], None):
        with pytest.raises(DataError, match="assistant turn 0"):
            check_row(renderer, {**row, "messages": [*messages[:2], {**messages[2], "tool_calls": odd}]})
    messages[2]["tool_calls"][0]["function"]["arguments"] = "{"
    with pytest.raises(DataError, match="assistant turn 0"):
        check_row(renderer, {**row, "messages": messages})


def test_the_default_models_template_is_taken():
    """The embedded model's own tokenizer: exact, and every content apart from the template as inside it."""
    from offline_agent.policies.base import DEFAULT_MODEL

    renderer = Renderer.load(DEFAULT_MODEL)
    _, middle, _ = episode(renderer)
    want = renderer.tokenizer.apply_chat_template(
        middle.messages(), tools=list(kit.TOOLS), tokenize=False, add_generation_prompt=True
    )
    assert renderer.decode(renderer.context_ids(middle)) == kit.context_text(renderer, middle) == want
    plain = kit.root("Find red shoes.").child(act(renderer), "2 hits: one, two.")
    text = kit.context_text(renderer, plain)
    assert renderer.context_ids(plain) == renderer.tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("ids", [[], [0], [5, 4095, 4096, 9000], [70_000, 3], [1 << 20, 1], [1 << 40], [7, -100]])
def test_the_hash_of_ids_is_that_of_their_digits_however_large_they_are(ids: list[int]) -> None:
    text = " ".join(str(number) for number in ids)
    assert ids_hash(ids) == hashlib.sha256(text.encode()).hexdigest()[:16]
