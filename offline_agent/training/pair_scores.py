"""Log-probabilities of the tokens of stored pairs under a trained model, to be compared with those before training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from offline_agent.errors import ConfigError
from offline_agent.training.models import load_trainable, set_threads

Sides = tuple[list[float], list[float]]


def scorer(path: str) -> Callable[[Sequence[Mapping[str, Any]]], list[Sides | None]]:
    """Return a function that scores rows of pairs with the model in a folder.

    The function takes rows by known names, and returns for each the log-probabilities (nats, temperature 1) of the
    chosen side, float [n], and of the rejected side, float [m], 0 where the mask is 0; None for a row without token
    columns.

    Raises:
        ConfigError: The model cannot be loaded; or, when the function is called, ids are not of its vocabulary.
    """
    import torch

    from offline_agent.training.prefix_sharing.log_probabilities import Scorer, pack
    from offline_agent.training.prefix_sharing.trie import Sequence as Tokens

    model, _, renderer = load_trainable(path)
    model.eval()
    set_threads(None, model)
    score = Scorer(model)

    def score_row(row: Mapping[str, Any]) -> Sides | None:
        if row["prompt_ids"] is None or row["chosen_ids"] is None or row["rejected_ids"] is None:
            return None
        sequences, masks = [], []
        for side in ("chosen", "rejected"):
            ids, mask = (*row["prompt_ids"], *row[f"{side}_ids"]), row[f"{side}_mask"]
            if max(ids) >= renderer.vocab_size:
                raise ConfigError(
                    f"model: its vocabulary has {renderer.vocab_size} ids, a pair has the id {max(ids)}; name a model "
                    "with the tokenizer that the pairs were made with"
                )
            sequences.append(Tokens(ids, (*(0 for _ in row["prompt_ids"]), *mask)))
            masks.append(mask)
        packed = pack(sequences)
        with torch.no_grad():
            logps = score(model, packed).logps
        chosen, rejected = (
            _spread(logps[places.to(logps.device)].tolist(), mask)
            for places, mask in zip(packed.rows, masks, strict=True)
        )
        return chosen, rejected

    return lambda rows: [score_row(row) for row in rows]


def _spread(values: Sequence[float], mask: Sequence[int]) -> list[float]:
    """Return one value for each token, 0 where the mask is 0."""
    known = iter(values)
    return [next(known) if sampled else 0.0 for sampled in mask]
