"""Checkpoints with code of their own."""

import json

import pytest

from offline_agent.errors import ConfigError
from offline_agent.policies.hf.policy import HFPolicy
from tests.helpers import hf as kit


@pytest.mark.parametrize("kind", ["llama", "unheard_of"])
def test_code_of_a_checkpoint_is_neither_run_nor_asked_about(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question was asked"))
    folder = kit.save("llama", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    classes = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    (folder / "config.json").write_text(json.dumps({**config, "model_type": kind, "auto_map": classes}))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w').close()")
    if kind == "llama":
        assert HFPolicy(folder, slots=1).identity["kind"] == "hf"
    else:
        with pytest.raises(ConfigError, match="policy.model.*code of its own"):
            HFPolicy(folder, slots=1)
    assert not (tmp_path / "run").exists()
