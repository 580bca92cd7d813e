"""Weights under training with their optimizer and schedule: in memory, whole or sharded, and in a checkpoint."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.optimization import get_scheduler
from transformers.trainer_pt_utils import get_parameter_names

from offline_agent.policies.hf.loading import not_finite
from offline_agent.rendering.hub import quiet
from offline_agent.training import checkpoints, sharding
from offline_agent.training.settings import TrainSettings

_SCHEDULES = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}
_UNDECAYED = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]  # as transformers has it
_OPTIMIZER, _SCHEDULE, _CRITIC = "optimizer.pt", "scheduler.pt", "critic.pt"


class TrainState:
    """The part of a training that updates change, with its tokenizer.

    All processes call each method together. What is written is whole and looks as if one process had trained, so a run
    goes on with any number of processes, sharded or not.

    Args:
        accelerator: Of accelerate.
        model: The model that was given, on the process's device.
        tokenizer: Goes with the checkpoints.
        critic: A module that is trained beside the model; None without one.

    Attributes:
        sharded: Whether the weights are sharded, from `begin` on.
        given: The model that was given, plain; in the first process `whole` brings it up to date.
        model: The model that is trained: the given one, or a copy of it where weights are sharded.
    """

    def __init__(self, accelerator: Any, model: Any, tokenizer: Any, critic: nn.Module | None) -> None:
        self.accelerator, self.given, self.tokenizer, self.critic = accelerator, model, tokenizer, critic
        self.sharded = sharding.check(accelerator)
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
        betas = (0.9, settings.beta2)
        self._optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, betas=betas, fused=True)
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
            sharding.gather(self.model, self.given, keep=self.accelerator.is_main_process)
        return self.given

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write everything into a folder, which may be there already."""
        main = self.accelerator.is_main_process
        whole, state = self.whole(), sharding.optimizer_state(self._optimizer, keep=main)
        folder.mkdir(parents=True, exist_ok=True)
        if main:
            with quiet():
                whole.save_pretrained(str(folder))
            self.tokenizer.save_pretrained(str(folder))
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
            sharding.scatter(self.given, self.model)

    def load(self, folder: Path) -> None:
        """Take everything from a checkpoint, after `begin`; raises TrainingError where it cannot be loaded."""
        self.load_weights(folder)
        with checkpoints.loading(folder):
            sharding.load_optimizer_state(self._optimizer, _read(folder / _OPTIMIZER))
            self._schedule.load_state_dict(_read(folder / _SCHEDULE))
            if (folder / self._random_file).is_file():  # another number of processes wrote others
                _set_random_states(_read(folder / self._random_file))

    @property
    def _random_file(self) -> str:
        number = f"_{self.accelerator.process_index}" if self.accelerator.num_processes > 1 else ""
        return f"rng_state{number}.pth"


def _read(file: Path) -> Any:
    """Return what torch wrote into a file, on the CPU: two copies on the process's device may be too much for it."""
    return torch.load(file, map_location="cpu", weights_only=True)


def _load_weights(model: Any, folder: Path) -> None:
    if hasattr(model, "disable_adapter"):
        model.load_adapter(str(folder), model.active_adapter, is_trainable=True)
        return
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError("it has no *.safetensors")
    for file in files:  # tied weights are in none of them, others in one
        model.load_state_dict(load_file(file), strict=False)


def _random_states() -> dict[str, Any]:
    drawn = tuple(part.tolist() if isinstance(part, np.ndarray) else part for part in np.random.get_state())
    states = {"python": random.getstate(), "numpy": drawn, "torch": torch.get_rng_state()}
    return states | ({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {})


def _set_random_states(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
