"""Sampling by counter-based random numbers: a row's draw depends on its own logits, seed and position alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

VECTOR = 32  # floats; a multiple of every vector's length
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> np.ndarray:
    """Return float64 [n] in [0, 1): one draw per (seed, position), by the splitmix64 hash (Steele et al., 2014).

    A counter-based generator has no state, so the draw of a token does not depend on what was drawn before it.

    Args:
        seeds: int [n], each in [0, 2**64).
        positions: int [n], index of the token within its action, from 0.
    """
    state = np.array(seeds, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for number in (np.uint64(0), np.array(positions, dtype=np.uint64)):
            state = state + _GOLDEN * (number + np.uint64(1))
            state = (state ^ (state >> np.uint64(30))) * _MIX_1
            state = (state ^ (state >> np.uint64(27))) * _MIX_2
            state = state ^ (state >> np.uint64(31))
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def sample(
    logits: torch.Tensor, seeds: Sequence[int], positions: Sequence[int], temperatures: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Draw one id per row by inverting the cumulative distribution of softmax(logits / temperature).

    Args:
        logits: float [n, vocabulary].
        seeds, positions: As in `uniforms`; [n].
        temperatures: float [n]; 0 = the likeliest id, the lowest of several.

    Returns:
        int [n], the ids; float [n], their natural-log probabilities at temperature 1 (NaN where the logits are).
    """
    ids, shifted = logits.argmax(-1), logits.float()
    shifted = shifted - shifted.amax(-1, keepdim=True)
    # The elements at the end of an array that is no multiple of the processor's vectors may be computed by other code,
    # which rounds otherwise; without padding, a row's sum could then depend on where in the batch the row stands.
    if extra := -logits.shape[-1] % VECTOR:
        shifted = torch.nn.functional.pad(shifted, (0, extra), value=float("-inf"))
    warm = [row for row, temperature in enumerate(temperatures) if temperature > 0]
    if warm:
        everywhere = len(warm) == len(temperatures)
        scale = torch.tensor([temperatures[row] for row in warm], dtype=torch.float32, device=logits.device)
        draws = torch.from_numpy(uniforms([seeds[row] for row in warm], [positions[row] for row in warm]))
        drawn = _invert((shifted if everywhere else shifted[warm]) / scale[:, None], draws.to(logits.device))
        if everywhere:
            ids = drawn
        else:
            ids[warm] = drawn
    own, sums = shifted.gather(-1, ids[:, None])[:, 0].tolist(), shifted.exp().sum(-1).tolist()
    logps = [logit - math.log(total) for logit, total in zip(own, sums, strict=True)]  # total ≥ 1, or NaN
    return ids.tolist(), logps


def _invert(scaled: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """Return int [n]: the first id whose cumulative weight exceeds `draws` times the whole."""
    cumulative = scaled.exp().cumsum(-1, dtype=torch.float64)
    threshold = (draws * cumulative[:, -1])[:, None]
    return torch.searchsorted(cumulative, threshold, right=True)[:, 0].clamp_(max=scaled.shape[-1] - 1)
