"""Embeddings of ids: those of pictures' patches are replaced by the features of the model's vision tower."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from offline_agent import pictures
from offline_agent.errors import ConfigError
from offline_agent.policies.hf.architecture import distance
from offline_agent.rendering.vision import PATCH, Vision

READER = "picture_reader"
"""The attribute of a model that has its `Vision`."""
_MOST_KEPT = 1024  # pictures


def inputs(model: Any, ids: torch.Tensor, kept: dict[str, torch.Tensor] | None = None) -> dict[str, torch.Tensor]:
    """Return the argument of a forward pass for ids: themselves, or their embeddings where there are pictures.

    Args:
        model: A causal language model; one that sees pictures has its `Vision` as the attribute `READER`.
        ids: int [batch, n].
        kept: Features of earlier calls, for a model whose weights do not change; None = computed again.

    Raises:
        ConfigError: A picture has another number of features than patches.
    """
    vision: Vision | None = getattr(model, READER, None)
    patches = None if vision is None else ids >= PATCH
    if vision is None or patches is None or not bool(patches.any()):
        return {"input_ids": ids}
    places: list[int] = []
    at: dict[str, int] = {}
    size = 0
    found: list[torch.Tensor] = []
    for patch in ids[patches].tolist():
        hash, number = vision.hash_of(patch)
        if hash not in at:
            at[hash] = size
            found.append(_features(model, vision, hash, kept))
            size += len(found[-1])
        places.append(at[hash] + number)
    embedded = model.get_input_embeddings()(ids.masked_fill(patches, 0))
    features = torch.cat(found).to(embedded.dtype)[torch.tensor(places, device=ids.device)]
    return {"inputs_embeds": embedded.masked_scatter(patches[..., None], features)}


def _features(model: Any, vision: Vision, hash: str, kept: dict[str, torch.Tensor] | None) -> torch.Tensor:
    """Return [patches, width], computed for one picture at a time: the same for any batch."""
    if kept is not None and hash in kept:
        return kept[hash]
    weight = next(model.parameters())
    arrays = {name: torch.as_tensor(value, device=weight.device) for name, value in vision.tower(hash).items()}
    given = {name: value.to(weight.dtype) if value.is_floating_point() else value for name, value in arrays.items()}
    with _plain_tower(model):
        made = model.get_image_features(**given).pooler_output
    features = (torch.cat(list(made)) if isinstance(made, list | tuple) else made).flatten(0, -2)
    wanted = len(vision.patches(hash))
    if len(features) != wanted:
        raise ConfigError(
            f"the model gives {len(features)} features of a picture, its processor writes {wanted} placeholders; "
            "give the processor the model was made with"
        )
    if kept is not None:
        if len(kept) >= _MOST_KEPT:
            kept.pop(next(iter(kept)))
        kept[hash] = features
    return features


@contextmanager
def _plain_tower(model: Any) -> Iterator[None]:
    """Compute the vision tower with transformers' own attention inside the block, whatever the text's is."""
    kind = model.config.vision_config.model_type
    configs = [module.config for module in model.modules() if hasattr(module, "config")]
    own = {id(one): one for one in configs if getattr(one, "model_type", None) == kind}.values()
    before = [config._attn_implementation_internal for config in own]
    for config in own:
        config._attn_implementation_internal = "sdpa"
    try:
        yield
    finally:
        for config, name in zip(own, before, strict=True):
            config._attn_implementation_internal = name


def read_pictures(model: Any, vision: Vision | None, key: str) -> None:
    """Give a model its `Vision`, and check on a picture that the embeddings give what the model itself computes.

    Args:
        model: The model, with attention functions of transformers.
        vision: None = it reads text alone.
        key: The configuration key that names the model.

    Raises:
        ConfigError: They do not.
    """
    if vision is None:
        return
    from PIL import Image

    setattr(model, READER, vision)
    image = Image.effect_mandelbrot((40, 30), (-2.0, -1.5, 1.0, 1.5), 20)
    hash = pictures.named(pictures.mark(image))[0]
    try:
        device = next(model.parameters()).device
        shown = vision.ids(hash)
        ids = torch.tensor([[1, 2, *shown, 3, 4]], device=device)
        given = {name: torch.as_tensor(value, device=device) for name, value in vision.tower(hash).items()}
        training = model.training
        model.eval()
        with torch.no_grad():
            plain = ids.masked_fill(ids >= PATCH, vision.token_id)
            known = model(input_ids=plain, attention_mask=torch.ones_like(plain), use_cache=False, **given).logits
            own = model(**inputs(model, ids), use_cache=False).logits
        model.train(training)
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
        raise ConfigError(f"{key}: the model cannot read a picture ({type(error).__name__}: {error})") from error
    finally:
        pictures.forget(hash)
    far, allowed = distance(model, torch.log_softmax(own.float(), -1), torch.log_softmax(known.float(), -1))
    if not far <= allowed:
        raise ConfigError(
            f"{key}: with a picture the model's own log-probabilities are others, by {far:.2g} (allowed: "
            f"{allowed:.2g}): its patches are not plain tokens with plain positions; serve it and use policy=server"
        )
