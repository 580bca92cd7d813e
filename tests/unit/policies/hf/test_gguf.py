"""GGUF files: weights and tokenizer as transformers reads them, made once, and used by commands."""

import json

import pytest

pytest.importorskip("gguf")
import torch
from transformers import AutoModelForCausalLM

from offline_agent.errors import ConfigError
from offline_agent.pipelines import entry, evaluate, train_sft
from offline_agent.policies.hf.gguf import plain_folder
from offline_agent.rendering.renderer import Renderer
from offline_agent.rendering.styles import template_text
from tests.helpers import gguf_files


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "packed").mkdir()
    return gguf_files.llama(tmp_path / "packed" / "tiny.gguf", template_text("qwen"))


def test_the_folder_is_the_file_and_made_once(file):
    folder = plain_folder(str(file), "policy.model")
    assert folder == plain_folder(str(file.parent), "policy.model")
    ids = torch.tensor([[5, 6, 7, 8]])
    packed = AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.float32)
    plain = AutoModelForCausalLM.from_pretrained(folder)
    assert torch.equal(packed(ids).logits, plain(ids).logits)
    renderer = Renderer.load(folder)
    assert renderer.tokenizer.eos_token == renderer.tokenizer.pad_token == "<|im_end|>"
    assert renderer.decode(renderer.tokenizer.encode("a , b ?")) == "a , b ?"


def test_a_folder_with_two_is_refused(file):
    (file.parent / "other.gguf").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"one of its files; it has other.gguf, tiny.gguf"):
        plain_folder(str(file.parent), "model.path")


def test_a_damaged_file_is_refused(file):
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ConfigError, match="model.path: .* cannot be loaded as"):
        plain_folder(str(file), "model.path")


def test_commands_take_the_file(file, tmp_path):
    common = ["env=shop", "tracking.uri=null", "threads=1"]
    keys = ["tasks.n=4", f"model.path={file}", "model.chat_template=compact", "batch.rows=4"]
    assert entry.main(train_sft.COMMAND, [*common, *keys, f"run_dir={tmp_path / 'sft'}"]) == 0
    keys = [f"policy.model={file}", "policy.chat_template=compact", "policy.max_tokens=8", "tasks.n=2", "max_steps=2"]
    assert entry.main(evaluate.COMMAND, [*common[:2], *keys, f"run_dir={tmp_path / 'test'}"]) == 0
    manifest = json.loads((tmp_path / "test" / "manifest.json").read_text())
    assert "tiny.gguf" in json.dumps(manifest["config"])
