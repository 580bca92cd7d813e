"""tools/unpack_gguf.py: weights and tokenizer as transformers reads them, in a folder that commands use."""

import runpy
from pathlib import Path

import pytest

pytest.importorskip("gguf")
import torch
from transformers import AutoModelForCausalLM

from offline_agent.pipelines import entry, train_sft
from offline_agent.rendering.renderer import Renderer
from offline_agent.rendering.styles import template_text
from tests.helpers import gguf_files

TOOL = Path(__file__).parents[4] / "tools" / "unpack_gguf.py"


def test_the_folder_is_the_file_and_commands_take_it(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    file = gguf_files.llama(folder / "tiny.gguf", template_text("qwen"))
    packed = AutoModelForCausalLM.from_pretrained(str(folder), gguf_file=file.name, dtype=torch.float32)
    runpy.run_path(str(TOOL))["unpack"](folder)
    ids = torch.tensor([[5, 6, 7, 8]])
    plain = AutoModelForCausalLM.from_pretrained(folder)
    assert torch.equal(packed(ids).logits, plain(ids).logits)
    renderer = Renderer.load(folder)
    assert renderer.tokenizer.eos_token == renderer.tokenizer.pad_token == "<|im_end|>"
    assert renderer.decode(renderer.tokenizer.encode("a , b ?")) == "a , b ?"
    keys = ["env=shop", "tracking.uri=null", "threads=1", "tasks.n=4", f"model.path={folder}", "batch.rows=4"]
    assert entry.main(train_sft.COMMAND, [*keys, "model.chat_template=compact", f"run_dir={tmp_path / 'sft'}"]) == 0
