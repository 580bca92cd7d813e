"""Templates that do not end, and checkpoints with code of their own."""

import json

import pytest

from offline_agent.errors import ConfigError
from offline_agent.policies.hf.policy import HFPolicy
from offline_agent.rendering import hub as trial
from offline_agent.rendering import template
from offline_agent.rendering.renderer import Renderer
from tests.helpers import hf as kit

ROUNDS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture(autouse=True)
def tried(monkeypatch):
    monkeypatch.setattr(template, "check_ends", trial.check_ends)


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        (ROUNDS, "more than 1 s"),
        ("{% if messages|length > 2 and not tools %}" + ROUNDS + "{% endif %}", "more than 1 s"),
        ("{{ 'x' * 9999999999 }}", "more than 2 GiB"),
        ("{{ 'x' * 9999999 }}", "letters"),
    ],
)
def test_a_template_that_does_not_end_is_refused(tmp_path, monkeypatch, start, reason):
    monkeypatch.setattr(trial, "CPU_SECONDS", 1)
    folder = kit.save("llama", tmp_path)
    own = (folder / "chat_template.jinja").read_text()
    with pytest.raises(ConfigError, match=f"{reason}.*chat_template="):
        Renderer.load(folder, start + own)
    Renderer.load(folder, "{# another #}" + own)


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
