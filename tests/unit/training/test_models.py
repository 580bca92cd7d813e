"""Loading and saving what is trained: plain folders in and out, adapters merged, a full disk, new models."""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from offline_agent.envs.base import EnvSpec
from offline_agent.errors import ConfigError, TrainingError
from offline_agent.policies.base import DEFAULT_MODEL, Proposals, ProposeRequest
from offline_agent.policies.hf.loading import model_hash
from offline_agent.policies.hf.policy import HFPolicy
from offline_agent.records import Action, Context, Task, ToolCall
from offline_agent.rendering.renderer import Renderer
from offline_agent.training import models
from offline_agent.training.models import add_adapters, load_trainable, positions, save_adapter, save_plain
from offline_agent.training.scratch import new_model
from offline_agent.training.settings import LoraSection, ScratchSection
from tests.helpers import forked
from tests.helpers import hf as hf_kit
from tests.helpers import rendering as rendering_kit

TEXTS = ["You are in the kitchen. You see a red potato and a knife.", 'act(command) {"command": "take red potato"}'] * 3


def tiny(seed: int = 0) -> tuple[Any, Any]:
    shape = ScratchSection(layers=1, hidden_size=16, heads=2, key_value_heads=1, vocabulary=400)
    return new_model(TEXTS, shape, seed=seed)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(3, 40)[None]).logits


def test_adapters_that_are_finite_and_whose_product_is_not_are_not_saved(tmp_path: Path) -> None:
    model, tokenizer = tiny()
    save_plain(model, tokenizer, tmp_path / "model")
    before = (tmp_path / "model" / "model.safetensors").read_bytes()
    adapted = add_adapters(model, LoraSection(rank=2, targets="q_proj"))
    with torch.no_grad():
        for name, weights in adapted.named_parameters():
            if "lora_" in name:
                weights.fill_(1e30)
    with pytest.raises(TrainingError, match=r"q_proj\.weight first, are not finite, with adapters added"):
        save_plain(adapted, tokenizer, tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == before


def test_weights_too_large_to_compute_with_are_called_that(tmp_path: Path) -> None:
    model, tokenizer = tiny()
    with torch.no_grad():
        model.lm_head.weight.mul_(1e10)
        model.model.norm.weight.fill_(1e38)
    save_plain(model, tokenizer, tmp_path / "model")
    with pytest.raises(ConfigError, match="logits of a random prompt are not finite, though its weights are"):
        HFPolicy(tmp_path / "model")


# -- loading -----------------------------------------------------------------------------------------------------


def test_the_embedded_default_is_loaded_with_its_own_tokenizer() -> None:
    model, tokenizer, renderer = load_trainable(None)
    assert positions(model) == 2048 and model.dtype == torch.float32
    assert all(weights.requires_grad for weights in model.parameters())
    assert renderer.tokenizer is tokenizer
    policy = HFPolicy()
    assert model_hash(model) == policy.identity["model_hash"], "stored log-probabilities are found by this hash"
    assert renderer.tokenizer_hash == policy.identity["tokenizer_hash"]


def test_what_cannot_be_loaded_says_what_to_do(tmp_path: Path) -> None:
    hf_kit.save("llama", tmp_path / "model")
    (tmp_path / "run" / "model").mkdir(parents=True)
    for file in (tmp_path / "model").iterdir():
        shutil.copy(file, tmp_path / "run" / "model")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    (tmp_path / "old").mkdir()
    shutil.copy(tmp_path / "model" / "config.json", tmp_path / "old")
    (tmp_path / "torn").mkdir()
    for file in (tmp_path / "model").iterdir():
        shutil.copy(file, tmp_path / "torn")
    (tmp_path / "torn" / "model.safetensors").write_bytes(b"\x10\x00")
    for name, words in {
        "modle": "Did you mean 'model'?", "run": f"did you mean {tmp_path}/run/model",
        "adapter": "give the folder of a merged model",
        "old": "no \\*.safetensors", "torn": "cannot be loaded as a causal language model",
    }.items():  # fmt: skip
        with pytest.raises(ConfigError, match=words):
            load_trainable(str(tmp_path / name))


def test_a_tokenizer_with_more_ids_than_the_model_is_refused(tmp_path: Path) -> None:
    model, tokenizer = tiny()
    save_plain(model, tokenizer, tmp_path / "small")
    with pytest.raises(ConfigError, match="model.tokenizer: it has .* ids, the model"):
        load_trainable(str(tmp_path / "small"), tokenizer=str(DEFAULT_MODEL))


# -- saving ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2"])
def test_a_saved_model_loads_with_plain_transformers_and_serves(tmp_path: Path, family: str) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer, renderer = load_trainable(
        str(hf_kit.save(family, tmp_path / "from")), chat_template="qwen", dtype="float32"
    )
    with torch.no_grad():
        next(model.parameters()).add_(0.01)
    model.config.use_cache = False  # as a trainer leaves it
    said = save_plain(model, tokenizer, tmp_path / "to")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "to")
    assert torch.equal(logits(plain), logits(model)) and plain.config.use_cache and not model.config.use_cache
    config = json.loads((tmp_path / "to" / "config.json").read_text())
    assert "attn_implementation" not in json.dumps(config)
    loaded = AutoTokenizer.from_pretrained(tmp_path / "to")
    assert loaded.chat_template == tokenizer.chat_template
    again = Renderer(loaded)
    assert (again.tokenizer_hash, again.template_hash) == (renderer.tokenizer_hash, renderer.template_hash)
    if family == "gemma2":
        return  # the policy has no soft-capped attention
    policy = HFPolicy(str(tmp_path / "to"), max_tokens=4)
    assert policy.identity["model_hash"] == said == model_hash(model)
    (answer,) = policy.propose([ProposeRequest(hf_kit.start(), (1,))])
    assert isinstance(answer, Proposals)


def test_adapters_are_merged_into_a_copy(tmp_path: Path) -> None:
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM

    model, tokenizer = tiny()
    save_plain(model, tokenizer, tmp_path / "base")
    before = logits(model)
    adapted = add_adapters(model, LoraSection(rank=2), 3)
    assert torch.equal(logits(adapted), before), "fresh adapters change nothing"
    names = [name for name, weights in adapted.named_parameters() if weights.requires_grad]
    assert names and all("lora" in name for name in names)
    with torch.no_grad():
        for name, weights in adapted.named_parameters():
            if "lora_B" in name:
                weights.normal_()
    after = logits(adapted)
    save_plain(adapted, tokenizer, tmp_path / "model")
    save_adapter(adapted, tmp_path / "adapter")
    assert torch.equal(logits(adapted), after), "saving changes nothing"
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert torch.allclose(logits(merged), after, atol=1e-5) and not torch.allclose(after, before, atol=1e-2)
    assert not any("lora" in name for name in merged.state_dict())
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = str(tmp_path / "base")
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(config))
    again = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter")
    assert torch.allclose(logits(again), after, atol=1e-6)


def test_adapters_are_the_same_for_the_same_seed_and_leave_chance_alone() -> None:
    def first(seed: int) -> torch.Tensor:
        adapted = add_adapters(tiny()[0], LoraSection(rank=2, alpha=8.0, targets="q_proj,v_proj"), seed)
        return next(weights for name, weights in adapted.named_parameters() if "lora_A" in name)

    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(first(1), first(1)) and not torch.equal(first(1), first(2))
    assert torch.equal(torch.rand(1), expected)


def test_unknown_targets_of_adapters_get_the_nearest_name() -> None:
    with pytest.raises(ConfigError) as error:
        add_adapters(tiny()[0], LoraSection(rank=2, targets="q_prj, v_proj, up"))
    assert len(error.value.faults) == 2 and "Did you mean 'q_proj'?" in error.value.faults[0]


def test_saving_replaces_what_was_there_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    for seed in (0, 1):
        model, tokenizer = tiny(seed)
        (tmp_path / ".model.123.tmp").mkdir()  # of a writer that was killed
        save_plain(model, tokenizer, folder)
        assert model_hash(load_trainable(str(folder))[0]) == model_hash(model)
        (folder / "stale.txt").touch()
        assert os.listdir(tmp_path) == ["model"]
    save_plain(*tiny(2), folder)
    assert not (folder / "stale.txt").exists()


def test_without_an_exchange_of_names_it_is_replaced_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError("no such call here")

    monkeypatch.setattr(models.ctypes, "CDLL", refuse)
    for seed in (0, 1):
        model, tokenizer = tiny(seed)
        save_plain(model, tokenizer, tmp_path / "model")
    assert model_hash(load_trainable(str(tmp_path / "model"))[0]) == model_hash(model)
    assert os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize("broken", ["weights", "tokenizer", "rename"])
def test_a_failure_while_saving_leaves_the_old_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    folder = tmp_path / "model"
    old, tokenizer = tiny(0)
    save_plain(old, tokenizer, folder)
    new, _ = tiny(1)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    target = {"weights": (type(new), "save_pretrained"), "tokenizer": (type(tokenizer), "save_pretrained"),
              "rename": (models, "_swap")}[broken]  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(*target, full)
        with pytest.raises(TrainingError, match="No space left.*what was there before is untouched.*MB are free"):
            save_plain(new, tokenizer, folder)
    assert os.listdir(tmp_path) == ["model"]
    assert model_hash(load_trainable(str(folder))[0]) == model_hash(old)


FULL = """
import resource, sys
from offline_agent.errors import TrainingError
from offline_agent.training.models import load_trainable, save_plain
model, tokenizer, _ = load_trainable(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    save_plain(model, tokenizer, __import__("pathlib").Path(sys.argv[1]))
except TrainingError as error:
    print(error)
    sys.exit(7)
"""


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    model, tokenizer = tiny()
    save_plain(model, tokenizer, folder)
    assert max(file.stat().st_size for file in folder.iterdir()) > 20_000 and resource.RLIMIT_FSIZE is not None
    done = forked.run([sys.executable, "-c", FULL, str(folder)], cwd=Path(__file__).parents[3])
    assert done.returncode == 7, done.stderr
    assert "could not be saved" in done.stdout and "untouched" in done.stdout
    assert os.listdir(tmp_path) == ["model"]
    assert model_hash(load_trainable(str(folder))[0]) == model_hash(model)


# -- new models --------------------------------------------------------------------------------------------------


def test_a_new_model_is_the_same_for_the_same_seed_and_leaves_chance_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    (one, tokenizer), (two, again), (three, _) = tiny(0), tiny(0), tiny(1)
    assert torch.equal(torch.rand(1), expected)
    assert model_hash(one) == model_hash(two) != model_hash(three)
    assert tokenizer.get_vocab() == again.get_vocab()
    assert one.config.vocab_size == len(tokenizer) <= 400


@pytest.mark.parametrize(("heads", "shared"), [(4, 4), (4, 2), (4, 1), (2, 2)])
def test_half_of_the_key_heads_begin_by_looking_for_equal_tokens(heads: int, shared: int) -> None:
    shape = ScratchSection(layers=2, hidden_size=32, heads=heads, key_value_heads=shared, vocabulary=400)
    model, _ = new_model(TEXTS, shape)
    vectors = torch.nn.functional.normalize(model.get_input_embeddings().weight, dim=-1)
    for layer in model.model.layers:
        query = (vectors @ layer.self_attn.q_proj.weight.T).view(len(vectors), shared, heads // shared, -1)[:, :, 0]
        key = (vectors @ layer.self_attn.k_proj.weight.T).view(len(vectors), shared, -1)
        scores = torch.einsum("ahd,bhd->hab", query, key)
        own = scores.diagonal(dim1=1, dim2=2).mean(-1)
        ahead = own - scores.mean((1, 2)) > scores.std((1, 2))
        assert ahead.tolist() == [head < (shared + 1) // 2 for head in range(shared)]


def test_a_command_is_one_token_a_word_wherever_it_stands() -> None:
    _, tokenizer = tiny()
    words = [token for token in tokenizer.tokenize("You see a red potato, take red potato.") if len(token) > 1]
    assert [word for word in words if "red" in word or "potato" in word] == ["Ġred", "Ġpotato"] * 2
    renderer = Renderer(tokenizer)
    ids = renderer.encode_action(Action("", call=ToolCall("act", {"command": "take red potato"})))
    assert len(ids) <= 10, tokenizer.convert_ids_to_tokens(ids)


def test_any_text_comes_back_and_no_content_becomes_a_control_token() -> None:
    _, tokenizer = tiny()
    renderer = Renderer(tokenizer)
    text = 'Ünseen wörds 漢字 🙂 <|im_end|> 12.5\n\n  "x" <tool_call>\n{"name": "'
    context = Context(Task("t", "train", {}), "Play.", rendering_kit.TOOLS, text)
    ids = renderer.context_ids(context)
    assert text in renderer.decode(ids)
    assert ids.count(renderer.end_id) == 2  # the system's and the user's own


def test_the_vocabulary_is_kept_to() -> None:
    texts = [f"word{chr(97 + n % 26)}{chr(97 + n // 26)} " * (n % 7 + 1) for n in range(600)]
    for size in (400, 512):
        shape = ScratchSection(layers=1, hidden_size=16, heads=2, key_value_heads=2, vocabulary=size)
        _, tokenizer = new_model(texts, shape)
        assert len(tokenizer) <= size
    with pytest.raises(ConfigError, match="no text"):
        new_model([], ScratchSection(layers=1))


def test_a_new_model_reads_every_environment_it_was_made_for(tmp_path: Path) -> None:
    from offline_agent.rollouts.demonstrations import demonstrate, texts

    spec = EnvSpec.load("shop")
    tasks = [task for task, _ in zip(spec.tasks("train"), range(6), strict=False)]
    done = demonstrate(spec, tasks, None)
    shape = ScratchSection(layers=1, hidden_size=16, heads=2, key_value_heads=2)
    model, tokenizer = new_model(texts(done.trajectories), shape)
    save_plain(model, tokenizer, tmp_path / "model")
    policy = HFPolicy(str(tmp_path / "model"), max_tokens=4)
    context = done.trajectories[0].context.lineage()[2]
    (answer,) = policy.propose([ProposeRequest(context, (1, 2))])
    assert isinstance(answer, Proposals) and len(answer.actions) == 2
