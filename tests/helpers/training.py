"""A tiny random model, rows for it, and the plain ways to compute what the trainers are held against."""

from __future__ import annotations

import copy
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from offline_agent.training.data.rows import PairRow, TrajectoryRow
from offline_agent.training.data.updates import UpdateSchedule, pair_units, trajectory_units
from offline_agent.training.offline.dpo import PairTrainer
from offline_agent.training.settings import DpoSettings, TrainSettings
from offline_agent.training.trainer import TrainRun
from tests.helpers.rendering import qwen

VOCABULARY = 60


def model(seed: int = 0, layers: int = 2) -> Any:
    """Return a random Llama of a few thousand weights, float32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.3, pad_token_id=0, bos_token_id=None,
        eos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def side(chance: random.Random, turns: int, tail: bool = False) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return ids and mask of actions with observations between them; `tail`: one after the last action, too."""
    ids: list[int] = []
    mask: list[int] = []
    for turn in range(turns):
        action = chance.randint(2, 5)
        seen = chance.randint(2, 4) if turn < turns - 1 or tail else 0
        ids += [chance.randrange(1, VOCABULARY) for _ in range(action + seen)]
        mask += [1] * action + [0] * seen
    return tuple(ids), tuple(mask)


def pairs(count: int = 6, seed: int = 0, per_tree: int = 3, tail: bool = False) -> list[PairRow]:
    """Return pairs of trees whose histories share a beginning; sides of unequal numbers of turns."""
    chance = random.Random(seed)
    rows = []
    root = tuple(chance.randrange(1, VOCABULARY) for _ in range(6))
    for index in range(count):
        tree = index // per_tree
        if index % per_tree == 0:
            history = (*root, *(chance.randrange(1, VOCABULARY) for _ in range(8)))
        chosen, rejected = side(chance, chance.randint(1, 3), tail), side(chance, chance.randint(1, 3), tail)
        rows.append(
            PairRow(
                f"pair-{index}",
                "step",
                f"task-{tree}",
                f"tree-{tree}",
                index,
                history,
                chosen[0],
                rejected[0],
                chosen[1],
                rejected[1],
                None,
                None,
                weight=1 / (1 + index % 3),
                confidence=1 - 0.1 * (index % 3),
            )  # fmt: skip
        )
    return rows


def trajectories(count: int = 4, seed: int = 1) -> list[TrajectoryRow]:
    """Return trajectories of one to three actions."""
    chance = random.Random(seed)
    rows = []
    for index in range(count):
        ids, mask = side(chance, chance.randint(1, 3))
        rows.append(
            TrajectoryRow(
                f"trajectory-{index}", f"task-{index}", "search", (3, 4, 5, *ids), (0, 0, 0, *mask), 1 / (1 + index)
            )
        )
    return rows


def settings(**changes: Any) -> TrainSettings:
    """Return settings for a few quick updates."""
    return TrainSettings(**{"learning_rate": 1e-2, "rows": 3, "tokens": 4096, "every": 2, "warmup": 0.0, **changes})


def dpo_trainer(
    folder: Path,
    rows: Sequence[PairRow],
    dpo: DpoSettings,
    anchors: Sequence[TrajectoryRow] = (),
    trained: Any = None,
    reference: Any = None,
    **changes: Any,
) -> Any:
    """Return a trainer whose reference is `reference` (None: the model itself), ready for a step."""
    chosen = settings(**{"rows": len(rows), **changes})
    plan = UpdateSchedule(
        pair_units(rows), trajectory_units(anchors, anchor=True), size=chosen.rows,
        anchor_size=dpo.anchor_rows if dpo.anchor_weight else 0, seed=0,
    )  # fmt: skip
    trainer = PairTrainer(
        model() if trained is None else trained, qwen(), plan, chosen, TrainRun(folder, lambda record: None), dpo=dpo
    )
    policy = trainer.model
    if reference is not None:
        trainer.state.model = reference
    trainer.reference = trainer.refer(pair_units(rows))
    trainer.state.model = policy
    return trainer


def step(trainer: Any, update: int = 0) -> tuple[float, dict[str, torch.Tensor]]:
    """Return loss and gradients of one update, nothing changed."""
    trainer.model.zero_grad()
    loss, trainer.seen = trainer.step(trainer.plan[update])
    found = {name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None}
    trainer.model.zero_grad()
    return loss, found


def plain_logps(exact: Any, prompt: Sequence[int], ids: Sequence[int], mask: Sequence[int]) -> torch.Tensor:
    """Return the agent tokens' log-probabilities by a pass of one sequence through the model's own logits."""
    full = torch.tensor([[*prompt, *ids]])
    logps = F.log_softmax(exact(full).logits[0, :-1], -1).gather(-1, full[0, 1:, None])[:, 0]
    return logps[len(prompt) - 1 :][torch.tensor(mask, dtype=torch.bool)]


def exact(of: Any) -> Any:
    """Return a float64 copy of a model."""
    return copy.deepcopy(of).double()


def far(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    """Return the largest difference of two sets of gradients, as a share of the largest gradient."""
    assert left.keys() == right.keys()
    size = max(float(value.abs().max()) for value in right.values())
    return max(float((left[name].double() - right[name].double()).abs().max()) for name in left) / size


def trl_loss(dpo: DpoSettings, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], ref: torch.Tensor) -> torch.Tensor:
    """Return the loss of TRL's own code from per-token log-probabilities.

    Args:
        dpo: The loss.
        pairs: For each of B pairs the agent tokens' log-probabilities, chosen [n] and rejected [m].
        ref: [B, 2], the reference's sums of chosen and rejected.
    """
    from accelerate import Accelerator
    from trl import DPOTrainer

    sides = [chosen for chosen, _ in pairs] + [rejected for _, rejected in pairs]
    values = pad_sequence(sides, batch_first=True)  # [2B, n]
    mask = pad_sequence([torch.ones_like(side, dtype=torch.long) for side in sides], batch_first=True)
    none = torch.zeros_like(values)
    first = torch.zeros(len(sides), 1, dtype=torch.long)  # the token that nothing comes before
    trainer = object.__new__(DPOTrainer)  # its loss alone; a whole one would need a dataset and a model
    vars(trainer).update(
        model=SimpleNamespace(training=True), accelerator=Accelerator(cpu=True), aux_loss_enabled=False, ld_alpha=None,
        precompute_ref_logps=True, f_divergence_type="reverse_kl", loss_types=[dpo.loss], loss_weights=[1.0],
        beta=dpo.beta, label_smoothing=dpo.label_smoothing, args=SimpleNamespace(),
        use_weighting=False, _metrics={"train": defaultdict(list)}, _total_train_tokens=0, _tp_size=1,
    )  # fmt: skip
    loss: torch.Tensor = trainer._compute_loss(
        lambda **more: SimpleNamespace(
            log_probs=values, entropy=none, mean_logits=none, is_top1=none.bool(), log_sum_sq_probs=none
        ),
        {
            "input_ids": torch.zeros(mask.shape[0], mask.shape[1] + 1, dtype=torch.long),
            "attention_mask": torch.cat([first + 1, mask], dim=1), "completion_mask": torch.cat([first, mask], dim=1),
            "ref_chosen_logps": ref[:, 0], "ref_rejected_logps": ref[:, 1],
        },
        False,
    )  # fmt: skip
    return loss
