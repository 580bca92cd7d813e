"""Weights under training with their optimizer and schedule: in memory, whole or sharded, and in a checkpoint."""

from __future__ import annotations

import copy
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.optimization import get_scheduler
from transformers.trainer_pt_utils import get_parameter_names

from offline_agent.errors import TrainingError
from offline_agent.policies.hf.embedding import READER
from offline_agent.policies.hf.loading import not_finite
from offline_agent.rendering.hub import quiet
from offline_agent.training import checkpoints
from offline_agent.training.settings import TrainSettings

_WRAPPED = "_checkpoint_wrapped_module."  # what activation checkpointing puts into names


def join() -> None:
    """Have accelerate join the processes over gloo where there is no accelerator.

    Without being told, it takes each process on such a machine for the only one.
    """
    if not torch.accelerator.is_available():
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")


def check(accelerator: Any) -> bool:
    """Return whether the model will be sharded.

    Raises TrainingError: by something that this trainer does not know; it was to be, but will not; or each process
    takes itself for the only one.
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


def transfer(source: Any, target: Any, keep: bool = True) -> None:
    """Copy a model's weights into another of the same kind, however either is sharded.

    Args:
        source: Sharded, or the same in all processes.
        target: Gets them.
        keep: Whether this process wants them; it takes part in any case.
    """
    own = {name.replace(_WRAPPED, ""): weights for name, weights in target.named_parameters()}
    with torch.no_grad():
        for name, weights in source.named_parameters():
            whole = _whole(weights)
            if keep:
                mine = own[name.replace(_WRAPPED, "")]
                mine.copy_(_like(whole, mine))


def shard(accelerator: Any, model: Any) -> None:
    """Shard a model that is not trained, in place, as the trained one is."""
    from accelerate.utils.fsdp_utils import fsdp2_prepare_model
    from torch.distributed.fsdp import FSDPModule

    if not isinstance(model, FSDPModule):
        fsdp2_prepare_model(accelerator, model)


def optimizer_state(optimizer: Any, keep: bool) -> dict[str, Any]:
    """Return an optimizer's state as one process would have it, on the CPU; {} where this one does not keep it."""
    given, state = optimizer.state_dict(), {}
    for number, entry in given["state"].items():
        whole = {name: _whole(value) if isinstance(value, Tensor) else value for name, value in entry.items()}
        if keep:  # not in all processes of a machine: its memory may hold one such state
            state[number] = {name: value.cpu() if isinstance(value, Tensor) else value for name, value in whole.items()}
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


_SCHEDULES = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}
_UNDECAYED = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]  # as transformers has it
_OPTIMIZER, _SCHEDULE, _CRITIC = "optimizer.pt", "scheduler.pt", "critic.pt"


class TrainState:
    """The part of a training that updates change, with its tokenizer.

    All processes call each method together. What is written is whole and looks as if one process had trained, so a run
    goes on with any number of processes, sharded or not.

    Args:
        accelerator: Of accelerate.
        model: The model that was given, on the process's device; it gets the weights that the first process has.
        tokenizer: Goes with the checkpoints.
        critic: A module that is trained beside the model; None without one.

    Attributes:
        sharded: Whether the weights are sharded, from `begin` on.
        given: The model that was given, plain; in the first process `whole` brings it up to date.
        model: The model that is trained: the given one, or a copy of it where weights are sharded.
    """

    def __init__(self, accelerator: Any, model: Any, tokenizer: Any, critic: nn.Module | None) -> None:
        self.accelerator, self.given, self.tokenizer, self.critic = accelerator, model, tokenizer, critic
        self.sharded = check(accelerator)
        if accelerator.num_processes > 1:  # the first one's count: weights that each drew by itself would stay apart
            for weights in model.state_dict().values():
                torch.distributed.broadcast(weights, 0)
        self.model = copy.deepcopy(model) if self.sharded else model  # weights are sharded in place
        if self.sharded:
            model.to("cpu")
        if critic is not None:
            critic.to(accelerator.device)
        self._optimizer: Any = None
        self._schedule: Any = None

    def begin(self, settings: TrainSettings, updates: int, critic_rate: float) -> None:
        """Make optimizer and schedule, and shard the weights where that was asked for."""
        trained = [(name, weights) for name, weights in self.model.named_parameters() if weights.requires_grad]
        decayed = set(get_parameter_names(self.model, [nn.LayerNorm], _UNDECAYED))
        groups = [
            {"params": [w for name, w in trained if name in decayed], "weight_decay": settings.weight_decay},
            {"params": [w for name, w in trained if name not in decayed], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.98), fused=True)
        if self.sharded:  # accelerate takes an optimizer of the model's weights alone
            self.model, prepared = self.accelerator.prepare(self.model, self._optimizer)
            self._optimizer = prepared.optimizer
        if self.critic is not None:
            group = {"params": list(self.critic.parameters()), "lr": critic_rate, "weight_decay": 0.0}
            self._optimizer.add_param_group(group)
        warmup = round(settings.warmup * updates)
        self._schedule = get_scheduler(_SCHEDULES[settings.schedule], self._optimizer, warmup, updates)

    def step(self) -> float:
        """Change the weights by their gradients, clear these, and return the learning rate that was used."""
        self._optimizer.step()
        rate = float(self._schedule.get_last_lr()[0])
        self._schedule.step()
        self._optimizer.zero_grad()
        return rate

    def add_up(self, sums: dict[str, Tensor], gradients: bool) -> dict[str, Tensor]:
        """Return the sums of every figure over the processes, and sum the gradients where that is asked for, too.

        Every process calls it with the same names.
        """
        more = () if self.critic is None else self.critic.parameters()
        for weights in (*self.model.parameters(), *more) if gradients else ():
            if weights.requires_grad and not hasattr(weights, "full_tensor"):  # FSDP has summed those of shards already
                if weights.grad is None:
                    weights.grad = torch.zeros_like(weights)
                torch.distributed.all_reduce(weights.grad)
                if self.sharded:  # of a loss that was multiplied for the shards' mean
                    weights.grad /= self.accelerator.num_processes
        values = torch.stack([value.double() for value in sums.values()]).to(self.accelerator.device)
        torch.distributed.all_reduce(values)
        return dict(zip(sums, values.unbind(), strict=True))

    def broken(self) -> list[str]:
        """Return the names of weights that are not finite, in any process."""
        more = () if self.critic is None else self.critic.named_parameters(prefix="critic")
        broken = not_finite([*self.model.named_parameters(), *more])
        if self.accelerator.num_processes > 1:
            found: list[Any] = [None] * self.accelerator.num_processes
            torch.distributed.all_gather_object(found, broken)
            broken = list(dict.fromkeys(name for names in found for name in names))
        return broken

    def whole(self) -> Any:
        """Return the model that was given, with the present weights where this is the first process."""
        if self.model is not self.given:
            transfer(self.model, self.given, keep=self.accelerator.is_main_process)
        return self.given

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write everything into a folder, which may be there already."""
        main = self.accelerator.is_main_process
        whole, state = self.whole(), optimizer_state(self._optimizer, keep=main)
        folder.mkdir(parents=True, exist_ok=True)
        if main:
            with quiet():  # by the names in memory, which differ from the hub's where experts are one tensor
                whole.save_pretrained(str(folder), save_original_format=False)
            reader = getattr(whole, READER, None)
            self.tokenizer.save_pretrained(str(folder)) if reader is None else reader.save(folder, self.tokenizer)
            torch.save(state, folder / _OPTIMIZER)
            torch.save(self._schedule.state_dict(), folder / _SCHEDULE)
            if self.critic is not None:
                torch.save(self.critic.state_dict(), folder / _CRITIC)
        torch.save(_random_states(), folder / self._random_file)

    def load_weights(self, folder: Path) -> None:
        """Take the weights of a checkpoint; raises TrainingError where they cannot be loaded."""
        with checkpoints.loading(folder):
            _load_weights(self.given, folder)
            if self.critic is not None:
                self.critic.load_state_dict(_read(folder / _CRITIC))
        if self.model is not self.given:
            transfer(self.given, self.model)

    def load(self, folder: Path) -> None:
        """Take everything from a checkpoint, after `begin`; raises TrainingError where it cannot be loaded."""
        self.load_weights(folder)
        with checkpoints.loading(folder):
            load_optimizer_state(self._optimizer, _read(folder / _OPTIMIZER))
            self._schedule.load_state_dict(_read(folder / _SCHEDULE))
            if (folder / self._random_file).is_file():  # another number of processes wrote others
                _set_random_states(_read(folder / self._random_file))

    @property
    def _random_file(self) -> str:
        number = f"_{self.accelerator.process_index}" if self.accelerator.num_processes > 1 else ""
        return f"rng_state{number}.pth"


def _read(file: Path) -> Any:
    # on the CPU: two copies on the process's device may be too much for it
    return torch.load(file, map_location="cpu", weights_only=True)


def _load_weights(model: Any, folder: Path) -> None:
    if hasattr(model, "disable_adapter"):
        model.load_adapter(str(folder), model.active_adapter, is_trainable=True)
        return
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError("it has no *.safetensors")
    for file in files:  # tied weights are in none of them, others in one
        strange = model.load_state_dict(load_file(file), strict=False).unexpected_keys
        if strange:
            raise ValueError(f"{file.name} has weights that the model does not have, {strange[0]} first")


def _random_states() -> dict[str, Any]:
    numpy = tuple(part.tolist() if isinstance(part, np.ndarray) else part for part in np.random.get_state())
    own = {"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {}
    return {"python": random.getstate(), "numpy": numpy, "torch": torch.get_rng_state(), **own}


def _set_random_states(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
