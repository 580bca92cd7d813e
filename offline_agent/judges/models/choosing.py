"""Checkpoints that judge in this process: one chooses among allowed answers, in a form that is begun for it.

It is not asked to write JSON. The prompt ends with the beginning of the JSON form, and only the probabilities of the
allowed continuations are looked at (constrained decoding), so any causal model gives an answer of the form, always the
same one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from offline_agent import catalog
from offline_agent.errors import ConfigError, DataError, NoAnswer
from offline_agent.judges.models.asking import AnswerCache, ModelArguments
from offline_agent.store.provenance import hash_path

SELF = "self"
"""The `path` that `iterate` replaces by the folder of the model whose iteration it is."""

LOADER = "offline_agent.training.choices:load"
"""By name: torch is not imported before a checkpoint is needed."""

Messages = Sequence[Mapping[str, str]]
_LEAST = 200  # characters of the work, below which there is nothing left to judge


class Checkpoint(Protocol):
    """A causal model that is loaded."""

    def room(self, messages: Messages, answer: str) -> int:
        """Return how many more tokens than prompt and answer the model takes; negative = they are too long."""
        ...

    def probabilities(self, messages: Messages, begun: str, choices: Sequence[str]) -> list[float]:
        """Return the probability of each choice, float [choices], sum 1; see `Choosing.choose`."""
        ...


class Choosing:
    """Asks a checkpoint to choose, and keeps what it chose.

    It is loaded once a process, by `keep_in` or the first question.

    Args:
        key: The configuration section, for messages.
        path: Folder of a causal model, as `save_pretrained` writes it.
        given: Names no other model; its temperature must be 0: nothing is sampled.

    Attributes:
        model: 12 hex digits that identify the folder's content.

    Raises:
        ConfigError: There is no such model, another one is named beside it, or it is to be sampled.
    """

    def __init__(self, key: str, path: str, given: ModelArguments) -> None:
        faults = []
        named = ", ".join(f"{key}.{name}" for name in ("url", "model", "ask") if getattr(given, name) is not None)
        if named:
            faults.append(f"{key}.path: got {path!r} beside {named}; give one of path, ask, and url with model")
        if given.temperature:
            faults.append(f"{key}.temperature: got {given.temperature!r}, allowed with {key}.path: 0; grades of a "
                          "checkpoint are not sampled")  # fmt: skip
        self.model = ""
        try:
            self._folder = _checked(key, path)
            self.model = hash_path(self._folder)[:12]
        except ConfigError as error:
            faults += error.faults
        except DataError as error:
            faults.append(f"{key}.path: {error}")
        if faults:
            raise ConfigError(faults)
        self._key = key
        self._kept = AnswerCache(given.cache)

    def keep_in(self, folder: Path) -> None:
        """Load the checkpoint, and keep its answers in a folder of the run where the configuration names no file.

        Raises:
            ConfigError: It cannot be loaded.
        """
        self._kept.keep_in(folder)
        self.loaded()

    def fitted(self, question: Callable[[int], Messages], longest: int, answer: str) -> Messages:
        """Return a question that the model's positions have room for.

        Args:
            question: Returns the messages, with so many characters of the work.
            longest: Most characters; they are halved until there is room.
            answer: The longest text that the answer may become.

        Raises:
            NoAnswer: Nothing is left of the work by then.
        """
        asked = question(longest)
        while (room := self.loaded().room(asked, answer)) < 0:
            longest //= 2
            if longest < _LEAST:
                raise NoAnswer(f"the question is {-room} tokens longer than the model takes, hardly any work in it")
            asked = question(longest)
        return asked

    def choose(self, messages: Messages, begun: str, choices: Sequence[str]) -> list[float]:
        """Return the probability of each allowed continuation, float [choices], sum 1.

        At each token the probabilities are renormalised over those with which an allowed continuation can go on.

        Args:
            messages: The question.
            begun: Beginning of the model's answer.
            choices: The continuations; none is the beginning of another.
        """
        content = [self.model, list(map(dict, messages)), begun, list(choices)]
        known = self._kept.get(content)
        if known is None:
            known = self.loaded().probabilities(messages, begun, choices)
            self._kept.keep(content, known)
        return list(map(float, known))

    def loaded(self) -> Checkpoint:
        """Return the checkpoint; raises ConfigError where it cannot be loaded."""
        key = f"{self._key}.path"
        found: Checkpoint = catalog.load(key, LOADER)(str(self._folder), self.model, key)
        return found


def _checked(key: str, path: str) -> Path:
    if path == SELF:
        raise ConfigError(
            f"{key}.path: self is the model of an iteration, which iterate alone has, in its section judge; name the "
            "folder of a checkpoint"
        )
    folder = Path(path).expanduser().resolve()
    missing = [name for name in ("config.json", "*.safetensors") if not any(folder.glob(name))]
    if not folder.is_dir() or missing:
        why = f"it has no {' and no '.join(missing)}" if folder.is_dir() else "there is no such folder"
        raise ConfigError(f"{key}.path: got {path!r}, allowed: a folder that save_pretrained or a training stage wrote "
                          f"({why})")  # fmt: skip
    return folder
