"""Data of the Tinker API: the client's own types hold what is certified, and its own steps train the DPO loss.

Needs tinker (pip install tinker==0.38.0 beside the test requirements). A small model stands in for the server.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from offline_agent.errors import ConfigError, DataError
from offline_agent.training import tinker_rows
from offline_agent.training.data.rows import PairRow, load_pairs, load_trajectories
from tests.helpers import rows as kit

tinker = pytest.importorskip("tinker", reason="needs tinker: pip install tinker")
BETA = 0.5


def model(seed: int = 1) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    size = kit.renderer().vocab_size
    config = LlamaConfig(vocab_size=size, max_position_embeddings=2048, initializer_range=0.3, **shape)
    return LlamaForCausalLM(config).double()


def logps(of: Any, ids: Any) -> torch.Tensor:
    """Return log-probabilities [n − 1] of ids [n] after the first."""
    every = torch.tensor([list(ids)])
    return F.log_softmax(of(every).logits[0, :-1], -1).gather(-1, every[0, 1:, None])[:, 0]


def served(of: Any, datum: Any) -> torch.Tensor:
    """Return what the server computes of a datum: log-probabilities of the targets."""
    ids = [*datum.model_input.to_ints(), datum.loss_fn_inputs["target_tokens"].data[-1]]
    assert ids[1:] == datum.loss_fn_inputs["target_tokens"].data
    return logps(of, ids)


def rows(tmp_path: Path) -> list[PairRow]:
    """Return a pair of one turn, one of several, and one whose chosen side begins anew, with a prompt of its own."""
    pairs = [kit.pair(0), kit.pair(1, "tea cup", "mug", kind="trajectory", weight=0.25)]
    run = kit.run(tmp_path / "run", pairs, [])
    kinds = ["step", "trajectory"]
    found, _ = load_pairs([run], [], kit.renderer(), model_hash=kit.MODEL, kinds=kinds, max_length=9999)
    anew = PairRow("anew", "step", "t", None, None, (5, 6), (7, 8, 5, 6, 9), (10,), (1, 1, 0, 0, 1), (1,),
                   (-1.0, -2.0, 0.0, 0.0, -0.5), (-1.5,), chosen_starts=(2,))  # fmt: skip
    assert len(found) == 2 and found[0].ref_chosen is not None
    return [*found, anew]


def summed(of: Any, row: PairRow, side: str) -> torch.Tensor:
    """Return Σ log π/π_ref of a side's sampled tokens, computed sequence by sequence from the row."""
    names = (f"{side}_ids", f"{side}_mask", f"{side}_starts", f"ref_{side}")
    ids, mask, starts, ref = (getattr(row, name) for name in names)
    total, prompt = torch.zeros((), dtype=torch.float64), row.prompt_ids
    for start, end in zip((0, *starts), (*starts, len(ids)), strict=True):
        part = logps(of, [*prompt, *ids[start:end]])[-(end - start) :] if prompt else logps(of, ids[start:end])
        on, then = mask[start:end][-len(part) :], ref[start:end][-len(part) :]
        total = total + sum(lp - r for lp, r, m in zip(part, then, on, strict=True) if m)
        prompt = ()
    return total


def test_the_clients_own_step_has_the_gradient_of_dpo(tmp_path: Path) -> None:
    """Alone catches a target off by one, a token of a tool that is learnt, a second sequence after the wrong prompt."""
    from tinker.lib.public_interfaces.training_client import TrainingClient

    pairs, policy = rows(tmp_path), model()
    given = tinker_rows.pair_data(pairs)
    assert len(given) == 7
    given = [*given[3:], *given[:3]]  # any order
    outputs = [{"logprobs": tinker.TensorData.from_torch(served(policy, datum).detach())} for datum in given]
    result = TrainingClient._compute_custom_loss(given, tinker_rows.dpo(BETA), SimpleNamespace(loss_fn_outputs=outputs))
    sent = sum(-(served(policy, one) * one.loss_fn_inputs["weights"].to_torch()).sum() for one in result.data)
    assert isinstance(sent, torch.Tensor)
    sent.backward()
    found = {name: value.grad.clone() for name, value in policy.named_parameters()}
    policy.zero_grad()
    share = torch.tensor([row.weight for row in pairs], dtype=torch.float64)
    margins = torch.stack([summed(policy, row, "chosen") - summed(policy, row, "rejected") for row in pairs])
    wanted = -(share / share.sum() * F.logsigmoid(BETA * margins)).sum()
    wanted.backward()
    assert result.loss_sum == pytest.approx(wanted.item(), abs=1e-5)
    for name, value in policy.named_parameters():
        assert torch.allclose(found[name], value.grad, atol=1e-5), name
    for before, after in zip(given, result.data, strict=True):
        masked = before.loss_fn_inputs["weights"].to_torch() == 0
        assert not after.loss_fn_inputs["weights"].to_torch()[masked].any()


def test_trajectories_have_the_weights_of_their_masks(tmp_path: Path) -> None:
    run = kit.run(tmp_path / "run", [], [kit.trajectory(0), kit.trajectory(1)])
    found, _ = load_trajectories([run], [], kit.renderer(), max_length=9999)
    for row, datum in zip(found, tinker_rows.data(found), strict=True):
        ids = [*datum.model_input.to_ints(), datum.loss_fn_inputs["target_tokens"].data[-1]]
        assert tuple(ids) == row.input_ids
        assert tuple(datum.loss_fn_inputs["weights"].data) == row.action_mask[1:]
        assert {name: value.dtype for name, value in datum.loss_fn_inputs.items()} == {
            "target_tokens": "int64", "weights": "float32"
        }  # fmt: skip


def test_the_reference_is_asked_where_none_is_stored(tmp_path: Path) -> None:
    run = kit.run(tmp_path / "run", [kit.pair(0)], [])
    found, _ = load_pairs([run], [], kit.renderer(), model_hash=None, kinds=["step"], max_length=9999)
    with pytest.raises(ConfigError, match=r"model_hash of the run's policy, or compute them with reference="):
        tinker_rows.pair_data(found)
    policy = model()
    given = tinker_rows.pair_data(found, lambda ids: [None, *logps(policy, ids).tolist()])
    loss, metrics = tinker_rows.dpo()(given, [served(policy, datum).detach().float() for datum in given])
    assert loss.item() == pytest.approx(0.6931472, abs=1e-5) and abs(metrics["margin"]) < 1e-5
    with pytest.raises(DataError, match="one side is not among"):
        tinker_rows.dpo()(given[:1], [served(policy, given[0])])
    with pytest.raises(DataError, match="gave 1 log-probabilities"):
        tinker_rows.pair_data(found, lambda ids: [0.0])
