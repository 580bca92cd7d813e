"""Adapters on top of their base, never merged: what the merged model says, and whose they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from offline_agent.errors import ConfigError
from offline_agent.policies.base import ProposeRequest
from offline_agent.policies.hf.loading import model_hash
from offline_agent.policies.hf.policy import HFPolicy
from offline_agent.training.models import add_adapters, save_adapter, save_plain
from offline_agent.training.settings import LoraSection
from tests.helpers import hf as kit

REQUEST = ProposeRequest(kit.start(), (1, 2, 3), 0.9)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kit.save("llama", tmp_path_factory.mktemp("base"), initializer_range=0.1)


def trained(base: Path) -> Any:
    """Return a peft model whose adapters are far from nothing."""
    model = add_adapters(AutoModelForCausalLM.from_pretrained(base), LoraSection(rank=3), 3)
    change(model, 4)
    return model


def change(model: Any, seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "lora_B" in name:
                weights.copy_(0.2 * torch.randn(weights.shape, generator=draws))


def same(policy: HFPolicy, model: Any, base: Path, folder: Path) -> None:
    """Check that a policy samples what the merged model does, with the same log-probabilities."""
    save_plain(model, AutoTokenizer.from_pretrained(base), folder)
    found, wanted = (kit.ask(each, REQUEST)[0].actions for each in (policy, HFPolicy(folder, max_tokens=12, slots=4)))
    assert [action.token_ids for action in found] == [action.token_ids for action in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert list(one.logps) == pytest.approx(list(other.logps), abs=1e-5)


def test_a_folder_of_adapters_is_sampled_as_the_merged_model_is(base: Path, tmp_path: Path) -> None:
    model, plain = trained(base), HFPolicy(base, max_tokens=12, slots=4)
    save_adapter(model, tmp_path / "adapter", plain.identity["model_hash"])
    policy = HFPolicy(tmp_path / "adapter", max_tokens=12, slots=4)
    same(policy, model, base, tmp_path / "merged")
    assert kit.ask(plain, REQUEST)[0].actions[0].logps != kit.ask(policy, REQUEST)[0].actions[0].logps
    known = {name: policy.identity[name] for name in ("base", "base_hash", "adapter_hash", "model_hash")}
    assert known["base"] == str(base) and known["base_hash"] == plain.identity["model_hash"] != known["model_hash"]
    kept = policy.model.state_dict()["model.layers.0.mlp.up_proj.base_layer.weight"]
    assert torch.equal(kept, plain.model.state_dict()["model.layers.0.mlp.up_proj.weight"]) and policy.batch_invariant


@pytest.mark.parametrize("how", ["gone", "unnamed", "other weights", "other shape", "fewer layers"])
def test_a_base_that_is_not_the_adapters_own_is_refused(base: Path, tmp_path: Path, how: str) -> None:
    folder = tmp_path / "adapter"
    model = trained(base)
    save_adapter(model, folder, None if how[-1] == "e" else model_hash(AutoModelForCausalLM.from_pretrained(base)))
    (folder / "whole.json").unlink()  # it is altered on purpose
    changes: dict[str, dict[str, Any]] = {
        "other weights": {"initializer_range": 0.2}, "other shape": {"intermediate_size": 64},
        "fewer layers": {"num_hidden_layers": 1},
    }  # fmt: skip
    other = kit.save("llama", tmp_path / "other", **changes[how]) if how in changes else tmp_path / "nowhere"
    if how == "fewer layers":
        (folder / "base.json").unlink()
    config = json.loads((folder / "adapter_config.json").read_text())
    config |= {"base_model_name_or_path": None if how == "unnamed" else str(other)}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    said = {
        "gone": "names a base that cannot be taken.*nowhere", "unnamed": "base_model_name_or_path .* cannot be read",
        "other weights": "trained on another base", "other shape": "do not fit .*other.*size mismatch",
        "fewer layers": r"do not fit .*layers\.1.* is in one alone",
    }  # fmt: skip
    with pytest.raises(ConfigError, match=f"(?s){said[how]}"):
        HFPolicy(folder, slots=2)


def test_a_trainers_adapters_are_run_without_a_copy(base: Path, tmp_path: Path) -> None:
    policy, model = HFPolicy(base, max_tokens=12, slots=4), trained(base).train()
    for seed in (5, 6):
        change(model, seed)  # as an optimizer does, in place
        policy.take_weights(model)
        same(policy, model, base, tmp_path / str(seed))
        mine = {weights.data_ptr() for weights in policy.model.parameters()}
        assert mine == {weights.data_ptr() for weights in model.parameters()} and policy.batch_invariant
    assert model.training and model.get_base_model().config._attn_implementation != "offline_agent_slots"
    ids = torch.tensor([[1, 2, 3]])
    with model.disable_adapter():  # the reference of a KL: the sampler's own adapters stay on
        reference = model(ids).logits
        same(policy, model, base, tmp_path / "again")
    assert not torch.equal(reference, model(ids).logits)
    model(ids).logits.sum().backward()


def test_adapters_that_are_trained_while_they_answer_are_copied(base: Path, tmp_path: Path) -> None:
    policy, model = HFPolicy(base, max_tokens=12, slots=4), trained(base)
    policy.take_weights(model, together=False)
    mine = {weights.data_ptr() for weights in policy.model.parameters()}
    assert not mine & {weights.data_ptr() for weights in model.parameters()}
    same(policy, model, base, tmp_path / "merged")
    before = {name: weights.clone() for name, weights in policy.model.state_dict().items()}
    change(model, 7)
    assert all(torch.equal(weights, before[name]) for name, weights in policy.model.state_dict().items())
