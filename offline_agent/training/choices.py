"""A causal model that weighs allowed continuations: constrained decoding for judges of a rubric."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

import torch

from offline_agent.errors import ConfigError
from offline_agent.records import Action, Context, Task
from offline_agent.rendering.renderer import Renderer
from offline_agent.training.models import load_trainable, positions, set_threads

_LOADED: dict[tuple[str, str], CheckpointChoices] = {}
_LOADING = threading.Lock()


class CheckpointChoices:
    """A causal model and the renderer of its tokenizer; see `judges.models.choosing.Checkpoint`.

    Args:
        model: A transformers causal language model.
        renderer: Renders questions to its ids; contents cannot become control tokens.
    """

    def __init__(self, model: torch.nn.Module, renderer: Renderer) -> None:
        self._model = model.eval()
        self._renderer = renderer
        self._lock = threading.Lock()  # one at a time: torch has its own threads

    def room(self, messages: Sequence[Mapping[str, str]], answer: str) -> int:
        """Return how many more tokens than prompt and answer the model takes; negative = they are too long."""
        return positions(self._model) - len(self._prompt(messages)) - len(self._answer(answer))

    def probabilities(self, messages: Sequence[Mapping[str, str]], begun: str, choices: Sequence[str]) -> list[float]:
        """Return the probability of each continuation of a begun answer, float [choices], sum 1.

        Args:
            messages: A system and a user message.
            begun: Beginning of the answer.
            choices: The allowed continuations; none is the beginning of another.
        """
        prompt = self._prompt(messages)
        rows = [self._answer(begun + choice) for choice in choices]

        def restricted(before: Sequence[int], allowed: Sequence[int]) -> list[float]:
            ids = torch.tensor([[*prompt, *before]], device=next(self._model.parameters()).device)
            logits = self._model(input_ids=ids, logits_to_keep=1).logits[0, -1]
            found: list[float] = torch.softmax(logits[list(allowed)].double(), 0).tolist()
            return found

        with self._lock, torch.no_grad():
            return constrained(rows, restricted)

    def _prompt(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        system, user = (message["content"] for message in messages)
        return self._renderer.context_ids(Context(Task("judged", "train", {}), system, (), user))

    def _answer(self, text: str) -> tuple[int, ...]:
        return self._renderer.encode_action(Action(text, text, None, "no_end"))


def constrained(
    rows: Sequence[Sequence[int]], restricted: Callable[[Sequence[int], Sequence[int]], Sequence[float]]
) -> list[float]:
    """Return the probability of each row of ids under constrained decoding, float [rows], sum 1.

    Args:
        rows: int [rows, any]; none is the beginning of another.
        restricted: Returns the probabilities of the allowed ids after some ids, renormalised over the allowed.
    """
    out = [1.0] * len(rows)
    left = [(list(range(len(rows))), 0)]
    while left:
        members, depth = left.pop()
        nexts: dict[int, list[int]] = {}
        for member in members:
            nexts.setdefault(rows[member][depth], []).append(member)
        if len(nexts) > 1:
            for chance, those in zip(restricted(rows[members[0]][:depth], list(nexts)), nexts.values(), strict=True):
                for member in those:
                    out[member] *= chance
        left += [(those, depth + 1) for those in nexts.values() if len(those) > 1]
    return out


def load(folder: str, identity: str, key: str) -> CheckpointChoices:
    """Return the model of a folder, loaded once a process; on CUDA, in bfloat16, where there is one.

    Args:
        folder: Its folder.
        identity: Of its content: a folder that was written again is loaded again.
        key: The configuration key that names it, for messages.

    Raises:
        ConfigError: It cannot be loaded.
    """
    with _LOADING:
        found = _LOADED.get((folder, identity))
        if found is None:
            try:
                dtype = "bfloat16" if torch.cuda.is_available() else "float32"
                model, _, renderer = load_trainable(folder, dtype=dtype)
            except ConfigError as error:
                raise ConfigError([fault.replace("model.path", key, 1) for fault in error.faults]) from error
            set_threads(None, model)
            found = _LOADED[folder, identity] = CheckpointChoices(model, renderer)
        return found
