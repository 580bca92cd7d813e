"""A method more for vLLM's workers: `--worker-extension-cls offline_agent.policies.vllm.worker.CheckpointWorker`.

A served model takes new weights without it too (vLLM's own `reload_weights`). With it a bad checkpoint is refused
before anything is touched (vLLM 0.31 is lost when it fails midway), and a tied output layer follows the embeddings on a
CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from offline_agent.policies.weights import Shapes, check_same_model, tensor_shapes


class CheckpointWorker:
    """What vLLM mixes into its worker class; names must not be the worker's own."""

    def take_checkpoint(self, folder: str) -> None:
        """Load a checkpoint in place of the weights. Called on every worker, while nothing is being computed.

        Raises:
            DataError: It is not whole, or of another model; the weights are what they were.
        """
        worker: Any = self
        shapes = tensor_shapes(folder)
        _check(worker, shapes)
        worker.reload_weights(weights_path=folder)
        refresh_tied(worker.get_model())

    def take_tensors(self, tensors: Mapping[str, Any]) -> None:
        """Load tensors of the same process, named as in a checkpoint. Otherwise as `take_checkpoint`."""
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
    """Let layers that share another's weights notice that these changed.

    On a CPU vLLM computes linear layers from a packed copy of their weights. A tied output layer has no weights in a
    checkpoint, so that vLLM's reload leaves its copy, and with it every probability, as it was (seen in 0.31).

    Args:
        model: vLLM's own model, new weights loaded.
    """
    seen: set[int] = set()
    for module in model.modules():
        weights, method = getattr(module, "weight", None), getattr(module, "quant_method", None)
        if weights is None or method is None:
            continue
        if id(weights) in seen and hasattr(module, "cpu_linear"):
            method.process_weights_after_loading(module)
        seen.add(id(weights))
