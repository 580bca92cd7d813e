import itertools
import json
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.shop import Shop
from offline_agent.envs.shop.catalogue import vocabulary
from offline_agent.policies.base import DEFAULT_MODEL
from offline_agent.records import Action, Context, ToolCall
from offline_agent.rendering.columns import trajectory_columns
from offline_agent.rendering.renderer import Renderer
from tools.default_model import train as default_model
from tools.default_model.demonstrations import Demonstration, conversation, rows
from tools.default_model.tokenizer import MARKS, SCAFFOLDS, build_tokenizer
from tools.default_model.train import TrainingConfig, TrainingRound, batches, learning_rate, load_config

TINY = TrainingConfig(
    hidden_size=16,
    layers=1,
    heads=2,
    rounds=(TrainingRound(2, 0, 2e-3, 1, (0.5,)), TrainingRound(9, 1, 1e-3, 0, (0.2, 0.4))),
    batch_tokens=512,
    warmup_steps=1,
)


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


@pytest.fixture(scope="module")
def renderer(tokenizer):
    return Renderer(tokenizer)


def test_words_and_scaffolds_are_one_token_in_every_context(tokenizer):
    for word in vocabulary():
        token = tokenizer.convert_tokens_to_ids(word)
        for text in (word, f"a {word}", f'"{word}"', f"{word}, b", f"\n{word}:"):
            assert tokenizer.encode(text).count(token) == 1, (word, text)
    for text in SCAFFOLDS:
        assert len(tokenizer.encode(text)) == 1, text
    assert len(tokenizer.encode("$45")) == 3


def test_a_mark_stands_right_behind_its_word(tokenizer):
    assert tokenizer.tokenize("mild yes, double no") == ["mild", "Ġyes", ",Ġ", "double", "Ġno"]
    for mark in MARKS:
        assert len(tokenizer.encode(mark)) == 1
    assert tokenizer.tokenize("error: no such option, nothing")[2:5] == ["no", "Ġ", "such"]


def test_an_action_is_few_tokens(renderer):
    for call in (ToolCall("open", {"rank": 3}), ToolCall("choose", {"value": "red"}), ToolCall("buy", {})):
        assert len(renderer.encode_action(Action("", call=call))) <= 8


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_any_text_comes_back(text):
    tokenizer = build_tokenizer_once()
    assert tokenizer.decode(tokenizer.encode(text)) == text or any(special in text for special in ("<|im", "<|end"))


_built = []


def build_tokenizer_once():
    if not _built:
        _built.append(build_tokenizer())
    return _built[0]


def test_training_rows_are_what_the_renderer_writes(tokenizer, renderer):
    spec = EnvSpec(Shop)
    for task in itertools.islice(spec.tasks("train"), 20):
        messages = conversation(task.args, random.Random(task.task_id), 0.6, 15)
        episode = spec.open()
        context = Context(task, spec.system_prompt, spec.tools.schemas, episode.reset(task))
        for message in messages[2:]:
            if message["role"] == "assistant":
                function = message["tool_calls"][0]["function"]
                call = ToolCall(function["name"], function["arguments"])
                action = renderer.parse_text(renderer.write(message["content"], call))
                result = episode.step(action)
                context = context.child(action, result.observation, result.role)
        columns = trajectory_columns(renderer, context)
        encoded = tokenizer.apply_chat_template(
            messages, tools=list(spec.tools.schemas), return_dict=True, return_assistant_tokens_mask=True
        )
        size = len(columns["input_ids"])
        assert list(columns["input_ids"]) == encoded["input_ids"][:size]
        assert list(columns["action_mask"]) == encoded["assistant_masks"][:size]
        assert not any(encoded["assistant_masks"][size:])


def test_demonstrations_depend_on_the_seed_alone(tokenizer):
    def first(seed):
        return list(itertools.islice(rows(tokenizer, seed, (0.5,), 15), 3))

    assert first(1) == first(1) != first(2)


def test_template_lists_tools_and_takes_messages_without_a_system_turn(tokenizer):
    tools = list(EnvSpec(Shop).tools.schemas)
    user = [{"role": "user", "content": "hello"}]
    assert "search(query)" in tokenizer.apply_chat_template(user, tools=tools, tokenize=False)
    text = tokenizer.apply_chat_template(user, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


def test_batches_stay_within_their_tokens_and_use_every_row_once():
    made = [Demonstration([number] * (10 + number % 90), [1] * (10 + number % 90)) for number in range(2000)]
    config = replace(TrainingConfig(), batch_tokens=300)
    stream, seen = batches(iter(made), config, 0), []
    for batch in itertools.islice(stream, 100):
        assert len(batch) * max(len(row.input_ids) for row in batch) <= 300
        seen += [row.input_ids[0] for row in batch]
    assert len(seen) == len(set(seen)) > 300


def test_learning_rate_warms_up_and_falls():
    part = TrainingRound(1000, 0, 2e-3, 0, (0.5,))
    rates = [learning_rate(step, part, 60) for step in range(part.steps)]
    assert max(rates) == pytest.approx(2e-3)
    assert rates[0] < rates[60] > rates[-1] >= 0.05 * 2e-3


def test_training_is_reproducible_and_its_loss_falls(tmp_path, capsys):
    import torch

    for name in ("a", "b"):
        default_model.train(TINY, tmp_path / name, log_every=1)
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b"))
    assert first == second
    assert load_config(tmp_path / "a" / "training_config.json") == TINY
    losses = [float(line.split()[3]) for line in capsys.readouterr().out.splitlines() if line.startswith("step")]
    assert len(losses) == 6 and losses[0] > losses[2]
    assert torch.isfinite(torch.tensor(losses)).all()


def test_a_round_goes_on_from_the_one_before(tmp_path):
    default_model.train(TINY, tmp_path / "whole")
    default_model.train(replace(TINY, rounds=TINY.rounds[:1]), tmp_path / "parts")
    before = (tmp_path / "parts" / "model.safetensors").read_bytes()
    default_model.train(TINY, tmp_path / "parts", first_round=1)
    after = (tmp_path / "parts" / "model.safetensors").read_bytes()
    assert before != after == (tmp_path / "whole" / "model.safetensors").read_bytes()


def test_measuring_an_untrained_model_finds_it_bad(tmp_path):
    from tools.default_model.measure import measure

    default_model.train(replace(TINY, rounds=TINY.rounds[1:]), tmp_path)
    found = measure(tmp_path, tasks=2, samples=2)
    assert found["greedy"]["success"] == 0.0 and found["temperature_0.7"]["pass_at_2"] == 0.0
    assert found["greedy"]["malformed"] > 0.5


def test_only_agent_tokens_are_trained(tokenizer):
    import torch

    model = default_model.build_model(TINY, tokenizer)
    ids = torch.arange(3, 15).tolist()
    mask = [0, 0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0]
    loss, _, count = default_model.loss_of(model, [Demonstration(ids, mask), Demonstration(ids[:6], mask[:6])], 0)
    assert count == 5
    logps = torch.log_softmax(model(torch.tensor([ids])).logits[0], -1)
    wanted = [-logps[place - 1, ids[place]] for place in (3, 4, 8, 3, 4)]
    assert loss.item() == pytest.approx(sum(wanted).item() / 5, abs=1e-5)


def test_the_shipped_model_is_small_complete_and_from_this_code(tokenizer):
    sizes = {path.name: path.stat().st_size for path in DEFAULT_MODEL.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "training_config.json"} <= sizes.keys()
    assert sum(sizes.values()) <= 8 * 2**20
    load_config(DEFAULT_MODEL / "training_config.json")
    shipped = Renderer.load(DEFAULT_MODEL)
    built = json.loads(tokenizer.backend_tokenizer.to_str())
    assert json.loads((DEFAULT_MODEL / "tokenizer.json").read_text())["model"] == built["model"]
    assert shipped.template_hash == Renderer(tokenizer).template_hash
