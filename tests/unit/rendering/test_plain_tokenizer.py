"""Tokenizers that are read without torch: the same as transformers' own, or left to it."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offline_agent.errors import ConfigError
from offline_agent.policies.base import DEFAULT_MODEL
from offline_agent.rendering.hub import PlainTokenizer
from offline_agent.rendering.renderer import Renderer
from tests.helpers import rendering as kit


def saved(make: Callable[[], Any], folder: Path) -> Path:
    make().save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return saved(kit.qwen, tmp_path)


@pytest.mark.parametrize("make", [kit.qwen, kit.llama, None], ids=["qwen", "llama", "default model"])
def test_it_renders_as_transformers_own_does(make: Callable[[], Any] | None, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    source = Path(DEFAULT_MODEL) if make is None else saved(make, tmp_path)
    assert PlainTokenizer.read(source) is not None
    ours, theirs = Renderer.load(source), Renderer(AutoTokenizer.from_pretrained(str(source)))
    assert ours.tokenizer_hash == theirs.tokenizer_hash and ours.template_hash == theirs.template_hash
    assert ours.eos_ids == theirs.eos_ids and ours.vocab_size == theirs.vocab_size
    root = kit.root("Find red shoes.")
    assert ours.context_ids(root) == theirs.context_ids(root)
    assert kit.context_text(ours, root) == kit.context_text(theirs, root)
    again = pickle.loads(pickle.dumps(ours))
    assert again.context_ids(kit.root("Find red shoes.")) == theirs.context_ids(root)


def test_the_whole_tokenizer_is_there_when_asked_for_with_the_template_that_was_given(folder: Path) -> None:
    renderer = Renderer.load(folder, chat_template="plain")
    whole = renderer.tokenizer
    assert whole is renderer.tokenizer and hasattr(whole, "pad")
    assert Renderer(whole).template_hash == renderer.template_hash


def change(folder: Path, name: str, **values: Any) -> None:
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


OTHERS: dict[str, Callable[[Path], Any]] = {
    "another class": lambda f: change(f, "tokenizer_config.json", tokenizer_class="Qwen2Tokenizer"),
    "a setting of its own": lambda f: change(f, "tokenizer_config.json", add_bos_token=True),
    "code of its own": lambda f: change(f, "tokenizer_config.json", auto_map={"AutoTokenizer": ["a.B", None]}),
    "a token that is yet to be added": lambda f: change(f, "tokenizer_config.json", bos_token="<begin>"),
    "a token that says more than its text": lambda f: change(f, "tokenizer_config.json", eos_token={"content": "."}),
    "a model whose class is registered": lambda f: change(f, "config.json", model_type="qwen2"),
    "special tokens in another file": lambda f: (f / "special_tokens_map.json").write_text("{}"),
    "added tokens in another file": lambda f: (f / "added_tokens.json").write_text("{}"),
    "several templates": lambda f: (f / "additional_chat_templates").mkdir(),
    "truncation": lambda f: change(
        f, "tokenizer.json",
        truncation={"direction": "Right", "max_length": 9, "strategy": "LongestFirst", "stride": 0},
    ),
    "no model": lambda f: (f / "config.json").unlink(),
    "a broken file": lambda f: (f / "tokenizer.json").write_text("{"),
    "a file of another kind": lambda f: (f / "tokenizer_config.json").write_text("[]"),
}  # fmt: skip


@pytest.mark.parametrize("other", OTHERS)
def test_what_transformers_might_read_otherwise_is_left_to_it(other: str, folder: Path) -> None:
    assert PlainTokenizer.read(folder) is not None
    OTHERS[other](folder)
    assert PlainTokenizer.read(folder) is None


def test_a_folder_without_template_is_refused_by_name(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    assert PlainTokenizer.read(folder) is not None
    with pytest.raises(ConfigError, match=f"{folder.name}.*has no chat template"):
        Renderer.load(folder)


def test_building_pairs_with_a_scripted_policy_never_loads_torch(tmp_path: Path) -> None:
    keys = ["env=shop", "policy=noisy", f"policy.tokenizer={DEFAULT_MODEL}", "tasks.n=2", "search.simulations=4"]
    code = f"""
import sys
from offline_agent.pipelines import build_prefs
from offline_agent.pipelines.entry import main
status = main(build_prefs.COMMAND, {[*keys, "tracking.uri=null", f"run_dir={tmp_path / 'run'}"]!r})
assert "torch" not in sys.modules, "loaded"
sys.exit(status)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
