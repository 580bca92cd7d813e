"""Weights sharded over processes (FSDP2), beside a plain copy of them: to and fro, for models and optimizers.

Every function is called by all processes together, in the same order. What is written to disk is whole and looks as if
one process had trained, so a run goes on with any number of processes, sharded or not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from offline_agent.errors import TrainingError

_WRAPPED = "_checkpoint_wrapped_module."  # what activation checkpointing puts into names


def join() -> None:
    """Have accelerate join the processes over gloo where there is no accelerator.

    Without being told, it takes each process on such a machine for the only one.
    """
    if not torch.accelerator.is_available():
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")


def check(accelerator: Any) -> bool:
    """Return whether the model will be sharded.

    Raises:
        TrainingError: By something that this trainer does not know; it was to be, but will not; or each process takes
            itself for the only one.
    """
    from accelerate.utils import parse_flag_from_env

    meant = int(os.environ.get("WORLD_SIZE", "1"))
    if accelerator.num_processes != meant:
        raise TrainingError(
            f"WORLD_SIZE says that {meant} processes train together, but accelerate joined {accelerator.num_processes} "
            "of them, so each would train by itself; on machines without an accelerator set ACCELERATE_USE_CPU=true"
        )
    kind = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
    if kind in ("NO", "MULTI_GPU", "MULTI_CPU"):
        if meant > 1 and parse_flag_from_env("ACCELERATE_USE_FSDP"):
            raise TrainingError(
                "the weights were to be sharded (ACCELERATE_USE_FSDP), but accelerate does that on accelerators "
                f"alone and joined these processes as {kind}; without it every process keeps a copy"
            )
        return False
    what = kind
    if kind == "FSDP":
        plugin = accelerator.state.fsdp_plugin
        kept = type(plugin.cpu_offload).__name__ == "CPUOffloadPolicy"
        if plugin.fsdp_version == 2 and not kept:
            return True
        what = f"FSDP version {plugin.fsdp_version}" + (" with weights kept in main memory" if kept else "")
    raise TrainingError(
        f"training is spread by {what}, which was not tried; allowed: one process, or several with torchrun or "
        "accelerate launch: plain (data parallel), or sharded with --use_fsdp --fsdp_version 2"
    )


def gather(trained: Any, plain: Any, keep: bool) -> None:
    """Copy trained weights into a plain model of the same kind.

    Args:
        trained: Sharded, or not.
        plain: Gets them.
        keep: Whether this process wants them; it takes part in any case.
    """
    for weights, own in _pairs(trained, plain):
        whole = _whole(weights)
        if keep:
            own.copy_(whole)


def scatter(plain: Any, trained: Any) -> None:
    """Copy a plain model's weights, the same in all processes, into the trained one."""
    for weights, own in _pairs(trained, plain):
        weights.copy_(_like(own, weights))


def shard(accelerator: Any, model: Any) -> None:
    """Shard a model that is not trained, in place, as the trained one is."""
    from accelerate.utils.fsdp_utils import fsdp2_prepare_model
    from torch.distributed.fsdp import FSDPModule

    if not isinstance(model, FSDPModule):
        fsdp2_prepare_model(accelerator, model)


def take(weights: Tensor, other: Tensor) -> None:
    """Copy a tensor into another one, however either is sharded."""
    with torch.no_grad():
        weights.copy_(_like(_whole(other), weights))


def optimizer_state(optimizer: Any, keep: bool) -> dict[str, Any]:
    """Return an optimizer's state as one process would have it, on the CPU; {} where this one does not keep it."""
    given = optimizer.state_dict()
    state = {
        number: {name: _whole(value).cpu() if isinstance(value, Tensor) else value for name, value in entry.items()}
        for number, entry in given["state"].items()
    }
    return {"state": state, "param_groups": given["param_groups"]} if keep else {}


def load_optimizer_state(optimizer: Any, state: dict[str, Any]) -> None:
    """Load the state that `optimizer_state` gave, in every process, sharded as the weights are."""
    weights = [each for group in optimizer.param_groups for each in group["params"]]
    for number, entry in state["state"].items():
        own = weights[int(number)]
        entry |= {
            name: _like(value, own) for name, value in entry.items() if getattr(value, "shape", None) == own.shape
        }
    optimizer.load_state_dict(state)


def _pairs(trained: Any, plain: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the weights of both by their names."""
    own = dict(plain.named_parameters())
    with torch.no_grad():
        for name, weights in trained.named_parameters():
            yield weights, own[name.replace(_WRAPPED, "")]


def _whole(tensor: Tensor) -> Tensor:
    given = tensor.detach()
    return given.full_tensor() if hasattr(given, "full_tensor") else given


def _like(whole: Tensor, own: Tensor) -> Tensor:
    """Return a tensor, the same in all processes, on the device and in the shards of another; nothing is sent."""
    whole = whole.detach().to(own.device, own.dtype)
    if not hasattr(own, "full_tensor"):
        return whole
    from torch.distributed.tensor import distribute_tensor

    shards: Tensor = distribute_tensor(whole, own.device_mesh, own.placements, src_data_rank=None)  # type: ignore[attr-defined]
    return shards
