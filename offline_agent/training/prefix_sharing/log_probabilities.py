"""Log-probabilities of many token sequences that share prefixes, every shared token computed once.

    packed = pack([Sequence(ids, scored), …])
    scorer = Scorer(model)                      # tries on the model whether sharing is exact; .reason says why not
    logps = scorer(model, packed).logps         # [S], with gradients
    per_sequence = [logps[row] for row in packed.rows]

The packed row is a trie in depth-first order; positions are depths, and a token sees its ancestors. The vocabulary
head is computed at scored positions only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from offline_agent.errors import ConfigError, in_words
from offline_agent.policies.hf import embedding
from offline_agent.policies.hf.architecture import Unpackable, check_layers, distance, length_limit, lowered
from offline_agent.training.prefix_sharing.attention import KEYWORD, AttentionPlan, switched
from offline_agent.training.prefix_sharing.head import after_head, alone, evaluating, forest, score
from offline_agent.training.prefix_sharing.trie import Pack, Sequence, pack, plan

__all__ = ["Pack", "Scorer", "Scores", "Sequence", "pack", "plan"]


class Scores(NamedTuple):
    """Scores of the scored tokens of a pack.

    Attributes:
        logps: [S] float32, natural logarithms; carries gradients.
        entropy: [S] float32, of the distribution each token was scored under, detached; None where not asked for.
        hidden: [S, H], what the vocabulary head saw where it predicted each token, with gradients; None where not asked
            for.
    """

    logps: torch.Tensor
    entropy: torch.Tensor | None
    hidden: torch.Tensor | None = None


class _ScoreOptions(NamedTuple):
    """Outputs of a forward pass beside log-probabilities, and the temperature of those."""

    entropy: bool = False
    temperature: float = 1.0
    hidden: bool = False


class Scorer:
    """Scores packs with a model, in one forward pass where that is exact for it, else in separate passes.

    Building one tries both on a small random forest, without gradients and in evaluation mode; nothing of the model
    stays changed.

    Args:
        model: A causal language model of transformers, a PeftModel, or a wrapper with the model as `.module`.
        share: False = separate passes, untried.
        way: blocks or flex attention; None = blocks on a CPU, flex elsewhere and blocks where that fails.
        limit: Most logits held at once; None = by device.

    Attributes:
        shares: Whether shared tokens are computed once.
        reason: Why not; None where they are.
        way: The attention of shared passes: blocks or flex.
        head: scored = the vocabulary head is computed at scored positions only; all = the model's own logits are
            used, since it does something to them that is not known here.
    """

    def __init__(self, model: Any, share: bool = True, way: str | None = None, limit: int | None = None) -> None:
        inner = _inner(model)
        self._config = inner.config.get_text_config()
        self._after = after_head(self._config)
        self._limit = limit
        self._one_by_one = length_limit(self._config) is not None
        self.shares, self.head, self.way = False, "scored", "blocks"
        self.reason: str | None = None if share else "switched off"
        self._probe(inner, share, way)

    def __call__(
        self, model: Any, pack: Pack, entropy: bool = False, *, temperature: float = 1.0, hidden: bool = False
    ) -> Scores:
        """Return the scores of a pack.

        Args:
            model: The model this was built with, or a wrapper of it; it is called as it is, hooks included.
            pack: On any device; it is moved to the model's.
            entropy: Whether entropies are wanted too.
            temperature: Divisor of the logits; > 0.
            hidden: Whether hidden states are wanted too.

        Raises:
            ConfigError: Hidden states are wanted of a model whose vocabulary head is not called apart.
        """
        if hidden and self.head == "all":
            raise ConfigError(
                "the hidden states before this model's vocabulary head cannot be had, and a critic needs them; choose "
                "an objective without one"
            )
        pack = pack.to(next(_inner(model).parameters()).device)
        if not pack.tokens:
            return Scores(*_nothing(entropy, pack.input_ids.device))
        want = _ScoreOptions(entropy, temperature, hidden)
        return self._shared(model, pack, want) if self.shares else self._separate(model, pack, want)

    def _probe(self, inner: Any, share: bool, way: str | None) -> None:
        sequences = forest(self._config.vocab_size)
        packed = pack(sequences).to(next(inner.parameters()).device)
        # without autocast: it would round both ways differently, and hide a difference or make one
        with evaluating(inner), lowered(inner), torch.autocast(packed.input_ids.device.type, enabled=False):
            known = alone(inner, sequences, packed)
            if not self._agrees(inner, known, packed):
                self.head = "all"
            if not share:
                return
            if self._one_by_one:
                self.reason = "its positions are encoded by the longest sequence of a call"
                return
            # FlexAttention is compiled for the device; on a CPU it has no backward pass
            default = ("blocks",) if packed.input_ids.device.type == "cpu" else ("flex", "blocks")
            for self.way in (way,) if way else default:
                self.reason = self._objection(inner, packed, known)
                self.shares = self.reason is None
                if self.shares:
                    return

    def _agrees(self, inner: Any, known: torch.Tensor, packed: Pack) -> bool:
        try:
            far, allowed = distance(inner, self._separate(inner, packed, _ScoreOptions()).logps, known)
        except (TypeError, ValueError, RuntimeError, AttributeError):  # a head that takes no part of the positions
            return False
        return far <= allowed

    def _objection(self, inner: Any, packed: Pack, known: torch.Tensor) -> str | None:
        seen: list[int | None] = []  # proves that every layer attended through us, and under which window
        try:
            found = self._shared(inner, packed, _ScoreOptions(), seen).logps
            check_layers(self._config, seen)
        except Unpackable as error:
            return str(error)
        except Exception as error:  # whatever a foreign model raises when handed what it does not know
            return f"it cannot be called with a packed row ({_shortly(error)})"
        odd = self._no_backward(inner, packed)
        if odd is not None:
            return odd
        far, allowed = distance(inner, found, known)
        return None if far <= allowed else f"log-probabilities differ by {far:.2g} from separate passes"

    def _no_backward(self, inner: Any, packed: Pack) -> str | None:
        """Return why there are no gradients: FlexAttention compiles its backward pass apart, and not everywhere."""
        weight = next((p for p in inner.parameters() if p.requires_grad), None)
        if self.way != "flex" or weight is None:
            return None
        try:
            with torch.enable_grad():
                torch.autograd.grad(self._shared(inner, packed, _ScoreOptions()).logps.sum(), weight, allow_unused=True)
        except Exception as error:  # of the compiler: of any class
            return f"FlexAttention has no backward pass here ({_shortly(error)})"
        return None

    def _shared(self, model: Any, pack: Pack, want: _ScoreOptions, seen: list[int | None] | None = None) -> Scores:
        given = _inputs(model, pack.input_ids[None])
        with switched(_inner(model)):
            return self._run(
                model, pack.source, pack.target, want, **given,
                position_ids=pack.position_ids[None], **{KEYWORD: AttentionPlan(pack, self.way, seen)},
            )  # fmt: skip

    def _separate(self, model: Any, pack: Pack, want: _ScoreOptions) -> Scores:
        """Score each token in the first sequence that has it, in padded batches of sequences of about one length."""
        device, host = pack.input_ids.device, pack.input_ids.cpu()
        owned = _owned(pack)
        found: list[Scores] = []
        order: list[torch.Tensor] = []
        for batch in _batches(pack, list(owned), 1 if self._one_by_one else None):
            # padded at the right: a causal model's real tokens never see what is added, and positions need no shift
            ids, mask = _padded([host[torch.from_numpy(pack.paths[i])] for i in batch])
            # places in the flattened batch: a line has the longest sequence of its batch
            source = torch.cat([owned[i][0] + line * ids.shape[1] for line, i in enumerate(batch)]).to(device)
            which = torch.cat([owned[i][1] for i in batch]).to(device)
            inputs = {**_inputs(model, ids.to(device)), "attention_mask": mask.to(device)}
            found.append(self._run(model, source, pack.target[which], want, **inputs))
            order.append(which)
        if not found:
            found, order = [Scores(*_nothing(want.entropy, device))], [torch.zeros(0, dtype=torch.int64, device=device)]
        # from the batches' order to the pack's
        back = torch.argsort(torch.cat(order))
        spread = [scores.entropy for scores in found if scores.entropy is not None]
        states = [scores.hidden for scores in found if scores.hidden is not None]
        return Scores(
            torch.cat([scores.logps for scores in found])[back],
            torch.cat(spread)[back] if want.entropy else None,
            torch.cat(states)[back] if states else None,
        )

    def _run(
        self, model: Any, source: torch.Tensor, target: torch.Tensor, want: _ScoreOptions, **inputs: Any
    ) -> Scores:
        vocabulary, cool = self._config.vocab_size, want.temperature
        if self.head == "all":
            logits = model(**inputs, use_cache=False).logits.flatten(0, 1)[source]
            return Scores(*score(lambda part: part / cool, logits, target, vocabulary, want.entropy, self._limit))
        found: list[Scores] = []

        def run(head: Callable[[torch.Tensor], torch.Tensor], hidden: torch.Tensor) -> torch.Tensor:
            def logits(part: torch.Tensor) -> torch.Tensor:
                out = self._after(head(part))
                return out if cool == 1.0 else out / cool

            part = hidden.flatten(0, -2)[source]
            scores = score(logits, part, target, vocabulary, want.entropy, self._limit)
            found.append(Scores(*scores, part if want.hidden else None))
            # what wrappers for several processes find all weights through; no view, which sharded modules warn of
            return found[-1].logps.sum() + part.new_zeros(1, 1, 1)

        with _instead_of_head(_inner(model), run):
            model(**inputs, use_cache=False)
        if len(found) != 1:
            raise RuntimeError(f"the vocabulary head was called {len(found)} times in one forward pass, allowed: once")
        return found[0]


def _owned(pack: Pack) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """Return, by sequence that is the first to score any token, those tokens' sources in it and indices into S."""
    left = torch.ones(pack.scored, dtype=torch.bool)
    depth = pack.position_ids[pack.source].cpu()
    found = {}
    for index, row in enumerate(pack.rows):
        mine = row.cpu()
        # a token that several sequences share is scored in the first of them alone, as in the pack
        mine = mine[left[mine]]
        if len(mine):
            left[mine] = False
            found[index] = (depth[mine], mine)
    return found


def _batches(pack: Pack, which: list[int], most: int | None) -> Iterator[list[int]]:
    """Yield sequences, the longest first, in batches of no more padded tokens than the pack or its longest has."""
    # by length, so that little is padded; stable, so that the same pack gives the same batches and bits
    ordered = sorted(which, key=lambda i: -len(pack.paths[i]))
    while ordered:
        longest = len(pack.paths[ordered[0]])
        count = most or max(1, pack.tokens // longest)
        yield ordered[:count]
        ordered = ordered[count:]


def _inputs(model: Any, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return ids, or their embeddings where there are pictures; raises ConfigError where weights are wrapped."""
    given = embedding.inputs(_inner(model), ids)
    if "inputs_embeds" in given and _inner(model) is not model:
        raise ConfigError("rows have pictures, and are trained by one process alone: launcher=local, one device")
    return given


def _shortly(error: Exception) -> str:
    return " ".join(in_words(error).split())[:200]


def _padded(sequences: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and mask [B, longest], filled up at the right."""
    ids = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(sequence) for sequence in sequences], batch_first=True)
    return ids, mask


def _nothing(entropy: bool, device: torch.device) -> tuple[torch.Tensor, torch.Tensor | None]:
    empty = torch.zeros(0, device=device)
    return empty, empty if entropy else None


def _inner(model: Any) -> Any:
    """Return the model inside wrappers for several processes."""
    while not hasattr(model, "get_output_embeddings") and hasattr(model, "module"):
        model = model.module
    return model


@contextmanager
def _instead_of_head(
    inner: Any, run: Callable[[Callable[[torch.Tensor], torch.Tensor], torch.Tensor], torch.Tensor]
) -> Iterator[None]:
    """Call `run(head, hidden states)` inside the block wherever the model calls its vocabulary head.

    The module itself is still called, so hooks on it (of adapters, of sharded weights) still run.
    """
    # the attribute of the instance hides the class's method, and is taken off again
    head = inner.get_output_embeddings()
    if head is None:
        raise RuntimeError("the model names no vocabulary head")
    own = head.__dict__.get("forward")
    forward = head.forward

    def instead(hidden: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        return run(forward, hidden)

    head.forward = instead
    try:
        yield
    finally:
        if own is None:
            del head.forward
        else:
            head.forward = own
