"""Data and DPO loss for the Tinker API (tinker 0.38) of checked rows: only tokens that the policy sampled have weight.

A datum is one sequence: `model_input` [n − 1], and in `loss_fn_inputs` `target_tokens` int64 [n − 1], the next tokens,
and `weights` float32 [n − 1], the mask of these. The data of pairs have three more, which the client keeps to itself
(`TrainingClient.forward_backward_custom` sends targets and weights alone): `reference` float32 [n − 1], `side` int64
[2] = (number of the pair, 1 chosen or −1 rejected), `pair_weight` float32 [1]. docs/export.md has a script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_agent.errors import ConfigError, DataError
from offline_agent.rendering.vision import PATCH

if TYPE_CHECKING:
    import tinker

    from offline_agent.training.data.rows import PairRow, TrajectoryRow

Logps = Callable[[list[int]], Sequence[float | None]]
"""Returns the log-probabilities [n] of the ids [n] of a sequence; the first, which nothing precedes, may be None."""


def data(rows: Sequence[TrajectoryRow]) -> list[tinker.Datum]:
    """Return the data of trajectories for the loss `cross_entropy`, one for each sequence with tokens to learn."""
    found = ((row.weight, *span) for row in rows for span in _spans(row.input_ids, row.action_mask, row.starts))
    return [_datum(ids, mask, weight) for weight, ids, mask, _ in found]


def pair_data(rows: Sequence[PairRow], reference: Logps | None = None) -> list[tinker.Datum]:
    """Return the data of pairs for `dpo`: of each pair the chosen side, then the rejected one, a datum a sequence.

    Args:
        rows: The pairs (`training.data.rows.load_pairs`).
        reference: Log-probabilities of the reference for rows that store none, such as
            `lambda ids: sampler.compute_logprobs(tinker.ModelInput.from_ints(ids)).result()`; None = all rows have
            stored ones, which `load_pairs` keeps where its `model_hash` is that of the rows' policy.

    Raises:
        ConfigError: A row stores none, and there is no `reference`.
        DataError: The reference gave another number of log-probabilities than ids.
    """
    out = []
    for number, row in enumerate(rows):
        for sign, ids, mask, starts, stored in (
            (1, row.chosen_ids, row.chosen_mask, row.chosen_starts, row.ref_chosen),
            (-1, row.rejected_ids, row.rejected_mask, row.rejected_starts, row.ref_rejected),
        ):
            size = len(row.prompt_ids)
            whole, learnt = (*row.prompt_ids, *ids), (*[0] * size, *mask)
            if stored is None and reference is None:
                raise ConfigError(
                    f"{row.name}: it stores no log-probabilities of the reference; give load_pairs the model_hash of "
                    "the run's policy, or compute them with reference=, as docs/export.md shows"
                )
            for part, on, place in _spans(whole, learnt, [size + start for start in starts]):
                if stored is not None:
                    logps: Sequence[float | None] = [0.0] * size + list(stored)
                    logps = logps[place : place + len(part)]
                else:
                    assert reference is not None
                    logps = reference(list(part))
                if len(logps) != len(part):
                    raise DataError(f"{row.name}: the reference gave {len(logps)} log-probabilities of {len(part)} ids")
                out.append(_datum(
                    part, on, 1.0, reference=np.array(logps[1:], np.float32), side=np.array([number, sign], np.int64),
                    pair_weight=np.array([row.weight], np.float32),
                ))  # fmt: skip
    return out


def dpo(beta: float = 0.1) -> Callable[[list[tinker.Datum], list[Any]], tuple[Any, dict[str, float]]]:
    """Return a loss for `forward_backward_custom` over data of `pair_data`, in any order, of whole pairs.

    It is that of `train_dpo` with `dpo.loss=sigmoid`: sum_i w_i l_i / sum_i w_i with l = −log σ(β Δ), Δ the difference
    of the sides' log π/π_ref, summed over the sampled tokens (Rafailov et al. 2023, equation 7).

    Args:
        beta: β.

    The loss raises DataError where one side of a pair is not among the data.
    """

    def loss(given: list[tinker.Datum], logprobs: list[Any]) -> tuple[Any, dict[str, float]]:
        import torch

        ratios: dict[int, dict[int, Any]] = {}
        weights: dict[int, float] = {}
        for datum, found in zip(given, logprobs, strict=True):
            inputs = {name: value.to_torch() for name, value in datum.loss_fn_inputs.items()}
            number, sign = inputs["side"].tolist()
            on = inputs["weights"] > 0
            sides = ratios.setdefault(number, {})
            sides[sign] = sides.get(sign, 0.0) + (found[on] - inputs["reference"][on]).sum()
            weights[number] = inputs["pair_weight"].item()
        if broken := [number for number, sides in ratios.items() if len(sides) != 2]:
            raise DataError(f"pairs {broken[:5]}: one side is not among these data; give both sides to one call")
        margins = beta * torch.stack([sides[1] - sides[-1] for sides in ratios.values()])
        share = torch.tensor(list(weights.values())) / sum(weights.values())
        value = -(share * torch.nn.functional.logsigmoid(margins)).sum()
        accuracy = (margins.detach() > 0).float().mean().item()
        return value, {"loss": value.item(), "accuracy": accuracy, "margin": margins.detach().mean().item()}

    return loss


def _spans(
    ids: Sequence[int], mask: Sequence[int], starts: Sequence[int]
) -> Iterator[tuple[Sequence[int], Sequence[int], int]]:
    """Yield ids, mask and place of each sequence that has a token to learn after its first."""
    for start, end in pairwise(chain((0,), starts, (len(ids),))):
        if any(mask[start + 1 : end]):
            yield ids[start:end], mask[start:end], start


def _datum(ids: Sequence[int], mask: Sequence[int], weight: float, **more: Any) -> tinker.Datum:
    import tinker

    if max(ids) >= PATCH:
        raise DataError("a row has pictures, which are no ids of a vocabulary; Tinker is given text alone")
    targets = {"target_tokens": np.array(ids[1:], np.int64), "weights": weight * np.array(mask[1:], np.float32)}
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(list(ids[:-1])), loss_fn_inputs={**targets, **more})
