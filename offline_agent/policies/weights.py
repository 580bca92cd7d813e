"""New weights for a running policy: checkpoint checks, a probe of log-probabilities, and a lock against answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from offline_agent.errors import DataError, PolicyError
from offline_agent.store.files import open_bytes

ADAPTER_FILE = "adapter_config.json"  # peft's, in a folder of adapters alone
TIED = "lm_head.weight"  # optional in checkpoints of models with tied embeddings

Shapes = dict[str, tuple[int, ...]]


class Probe(NamedTuple):
    """Expected log-probabilities of a few tokens under the new weights, computed with the trainer's own copy of them.

    Attributes:
        ids: int [n], n ≥ 2: any token ids, preferably a prompt and an answer of the current task.
        logps: float [n - 1], log-probability (natural, temperature 1) of ids[1:] under the new weights.
        tolerance: Largest |difference| of any token. Two back ends in float32 differ by about 1e-5, in bfloat16 by
            0.01 to 0.1; an update that changes log-probabilities by less than that cannot be detected.
    """

    ids: tuple[int, ...]
    logps: tuple[float, ...]
    tolerance: float = 0.01


class WeightUpdate(NamedTuple):
    """Figures of one update of a back end's weights.

    Attributes:
        version: The back end's name of its weights after the update.
        seconds: Duration of the update.
        waited: The part of `seconds` spent waiting until no request was being answered.
        gap: Largest |log-prob − expected| over the probe's tokens, nats; None without a probe.
        shift: Largest |log-prob after − before| over them; None without a probe. 0 = the weights did not change.
        size: Bytes of the weights' files; None where they were handed over in memory.
    """

    version: str
    seconds: float
    waited: float
    gap: float | None = None
    shift: float | None = None
    size: int | None = None


class WeightsLock:
    """A readers-writer lock: many answers at once, or one change of weights. A waiting change blocks new answers.

    So no answer starts with old weights after a change was requested, and a change cannot wait forever.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._answering = 0
        self._changing = False

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Wait while the weights change; inside the block they do not change."""
        with self._condition:
            while self._changing:
                self._condition.wait()
            self._answering += 1
        try:
            yield
        finally:
            with self._condition:
                self._answering -= 1
                self._condition.notify_all()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Wait until no request is being answered; inside the block none starts."""
        with self._condition:
            while self._changing:
                self._condition.wait()
            self._changing = True
            while self._answering:
                self._condition.wait()
        try:
            yield
        finally:
            with self._condition:
                self._changing = False
                self._condition.notify_all()


def probe_of(model: Any, ids: Sequence[int], tolerance: float = 0.01) -> Probe:
    """Return a probe of a transformers model, or of a peft model around one; the model is not changed.

    Args:
        model: A causal language model of transformers.
        ids: int [n], n ≥ 2.
        tolerance: See `Probe`.
    """
    import torch

    from offline_agent.policies.hf.embedding import inputs

    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            given = torch.tensor([list(ids)], device=next(model.parameters()).device)
            logps = torch.log_softmax(model(**inputs(model, given), use_cache=False).logits[0, :-1].float(), -1)
            found = logps.gather(-1, given[0, 1:, None])[:, 0]
    finally:
        model.train(training)
    return Probe(tuple(ids), tuple(map(float, found)), tolerance)


def probe_gap(probe: Probe, found: Sequence[float], before: Sequence[float] | None) -> tuple[float, float | None]:
    """Return `WeightUpdate.gap` and `WeightUpdate.shift`.

    Args:
        probe: The expected log-probs.
        found: float [n - 1], the back end's log-probs now.
        before: float [n - 1], its log-probs before the update; None where not known.

    Raises:
        PolicyError: They differ by more than the probe's tolerance: the weights are not those of the probe.
    """
    gap = _largest(probe.logps, found)
    shift = None if before is None else _largest(before, found)
    if not gap <= probe.tolerance:  # a NaN is no match either
        moved = f"moved them by up to {shift:.3g}" if shift else "had no effect"
        effect = "" if shift is None else f"; the update {moved}"
        raise PolicyError(
            f"the back end does not have the new weights: log-probs of the probe differ by up to {gap:.3g}, allowed: "
            f"{probe.tolerance:g}{effect}. Is it the same model, in a number format as fine as the tolerance asks for?"
        )
    return gap, shift


def tensor_shapes(folder: str | Path) -> Shapes:
    """Return the shape of every tensor in a checkpoint, from the headers of its files.

    Args:
        folder: A folder written by the `save_pretrained` of transformers, or of peft.

    Raises:
        DataError: It is not such a folder, or one of its files is missing, incomplete or invalid; names the file.
    """
    folder = Path(folder)
    if not any((folder / name).is_file() for name in ("config.json", ADAPTER_FILE)):
        what = "has no config.json" if folder.is_dir() else "is no folder"
        raise DataError(f"weights: {str(folder)!r} {what}; give the folder that model.save_pretrained wrote")
    files = sorted(folder.glob("*.safetensors"))
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            named = set(json.loads(index.read_text())["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"weights: {str(index)!r} is no index of tensors ({error!r}); save them anew") from error
        missing = sorted(named - {file.name for file in files})
        if missing:
            raise DataError(f"weights: {str(folder)!r} lacks {', '.join(missing)}, which its index names; save it anew")
    if not files:
        raise DataError(f"weights: {str(folder)!r} has no *.safetensors; model.save_pretrained(folder) writes them")
    return {name: shape for file in files for name, shape in _header(file).items()}


def check_same_model(expected: Mapping[str, tuple[int, ...]], got: Mapping[str, tuple[int, ...]]) -> None:
    """Check that tensors have the names and shapes of the model that is being served.

    Args:
        expected: Names and shapes of the model's tensors. A tied output layer is optional.
        got: Names and shapes of the tensors that will replace them.

    Raises:
        DataError: A tensor is missing, unknown, or of another shape; names the first.
    """
    names = [name for name in sorted({*expected, *got}) if name != TIED or (name in expected and name in got)]
    for name in names:
        want, have = expected.get(name), got.get(name)
        if want != have:
            raise DataError(
                f"weights: {name} is {_shape(have)}, and {_shape(want)} in the model that is served; give weights of "
                "the same model (adapters merged)"
            )


def _header(file: Path) -> Shapes:
    """Return names and shapes from a safetensors file."""
    from safetensors import SafetensorError, safe_open

    try:
        with open_bytes(file), safe_open(file, "numpy") as tensors:
            return {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
    except (OSError, ValueError, SafetensorError) as error:
        raise DataError(f"weights: {str(file)!r} is torn or no file of tensors ({error}); save it anew") from error


def _shape(shape: tuple[int, ...] | None) -> str:
    return "not there" if shape is None else f"of shape {list(shape)}"


def _largest(one: Sequence[float], other: Sequence[float]) -> float:
    if len(one) != len(other):
        raise PolicyError(f"probe: it has {len(one)} log-probs, the back end gave {len(other)}; n ids have n - 1")
    gaps = [abs(a - b) for a, b in zip(one, other, strict=True)]
    return max(gaps) if all(gap == gap for gap in gaps) else float("nan")
