"""Extension of vLLM's workers: `--worker-extension-cls offline_agent.policies.vllm.worker.CheckpointWorker`.

A server takes new weights without it too (vLLM's own `reload_weights`). With it a bad checkpoint is refused before any
weight changes (vLLM 0.31 cannot recover from a failure during the load), and a tied output layer follows the embeddings
on a CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from offline_agent.policies.weights import Shapes, check_same_model, tensor_shapes


class CheckpointWorker:
    """Methods that vLLM mixes into its worker class; their names must not exist there."""

    def take_checkpoint(self, folder: str) -> None:
        """Load a checkpoint in place of the weights. Called on every worker while no request is computed.

        Raises:
            DataError: It is incomplete, or of another model; the weights are unchanged.
        """
        worker: Any = self
        shapes = tensor_shapes(folder)
        _check(worker, shapes)
        worker.reload_weights(weights_path=folder)
        refresh_tied(worker.get_model())

    def take_tensors(self, tensors: Mapping[str, Any]) -> None:
        """Load tensors of the same process, named as in a checkpoint; else as `take_checkpoint`."""
        worker: Any = self
        _check(worker, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
        worker.reload_weights(weights_iterator=iter(tensors.items()))
        refresh_tied(worker.get_model())


def _check(worker: Any, shapes: Shapes) -> None:
    known: Shapes | None = getattr(worker, "_checkpoint_shapes", None)
    if known is None:
        served = Path(worker.vllm_config.model_config.model)
        known = tensor_shapes(served) if served.is_dir() else shapes  # a hub name has no folder to compare with
        worker._checkpoint_shapes = known
    check_same_model(known, shapes)


def refresh_tied(model: Any) -> None:
    """Update the packed copies of layers that share another layer's weights.

    On a CPU vLLM computes linear layers from a packed copy of their weights. A tied output layer has no weights in a
    checkpoint, so vLLM's reload leaves its copy, and with it every probability, unchanged (observed in 0.31).

    Args:
        model: vLLM's own model with the new weights.
    """
    seen: set[int] = set()
    for module in model.modules():
        weights, method = getattr(module, "weight", None), getattr(module, "quant_method", None)
        if weights is None or method is None:
            continue
        if id(weights) in seen and hasattr(module, "cpu_linear"):
            method.process_weights_after_loading(module)
        seen.add(id(weights))
