"""Models that see pictures: answers with and without caches, and losses, equal those of transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from offline_agent import pictures
from offline_agent.errors import ConfigError
from offline_agent.policies.base import ProposeRequest
from offline_agent.policies.hf.embedding import read_pictures
from offline_agent.policies.hf.policy import HFPolicy
from offline_agent.records import Context, Task
from offline_agent.rendering.vision import PATCH
from offline_agent.store.columns import known
from offline_agent.store.tables import rows
from offline_agent.training.models import load_trainable
from offline_agent.training.prefix_sharing.log_probabilities import Scorer, Sequence, pack
from tests.helpers import seeing
from tests.helpers.bandit import call
from tests.helpers.pictures import COLOURS, png

ENV = "env=tests.helpers.pictures:Squares"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield seeing.saved(tmp_path_factory.mktemp("seeing") / "model")
    pictures._kept.clear()


def asked(colour: tuple[int, int, int]) -> Context:
    return Context(Task("t", "train", {}), "Name it.", (), f"Which {pictures.mark(png(colour))} colour?")


def plain(model: Any, renderer: Any, ids: list[int]) -> torch.Tensor:
    """Return the model's own log-probabilities, with placeholders and `pixel_values`."""
    vision = renderer.vision
    (hash,) = vision.pictures_in(ids)
    shown = {name: torch.as_tensor(value) for name, value in vision.tower(hash).items()}
    given = torch.tensor([vision.plain(ids)])
    logits = model(input_ids=given, attention_mask=torch.ones_like(given), **shown).logits[0, :-1]
    return torch.log_softmax(logits, -1).gather(-1, given[0, 1:, None])[:, 0]


def test_answers_with_kept_keys_are_those_without(model: Path) -> None:
    shared = HFPolicy(model)
    contexts = [asked(colour) for colour in COLOURS.values()]
    # the second is asked when all of the first, of equal length and equal text, is kept; then all again
    answers = [shared.propose([ProposeRequest(one, (1, 2), 0.7, 12)])[0] for one in [*contexts, *contexts]]
    fresh = []
    for one in contexts:
        shared.forget()
        one.cache = None
        fresh.append(shared.propose([ProposeRequest(one, (1, 2), 0.7, 12)])[0])
    assert [a.actions for a in answers] == [a.actions for a in [*fresh, *fresh]]
    assert len({a.actions[0].token_ids for a in fresh}) > 1 and answers[-1].usage.cached > answers[-1].usage.prefilled
    trained = load_trainable(str(model))
    for context, answer in zip(contexts, fresh, strict=True):
        ids, action = shared.renderer.context_ids(context), answer.actions[0]
        found = plain(trained.model, trained.renderer, [*ids, *action.token_ids])[len(ids) - 1 :]
        assert torch.allclose(found, torch.tensor(action.logps), atol=1e-4)


def test_new_weights_see_with_their_own_tower(model: Path) -> None:
    """Alone catches features of pictures that are kept when the weights change."""
    policy, context = HFPolicy(model), asked(COLOURS["red"])
    policy.propose([ProposeRequest(context, (1,), 0.7, 4)])
    trained = load_trainable(str(model))
    with torch.no_grad():
        for name, weights in trained.model.named_parameters():
            if "vision_tower" in name:
                weights.add_(0.2 * torch.randn(weights.shape, generator=torch.Generator().manual_seed(0)))
    policy.take_weights(trained.model)
    action = policy.propose([ProposeRequest(context, (1,), 0.7, 4)])[0].actions[0]
    ids = policy.renderer.context_ids(context)
    found = plain(trained.model, trained.renderer, [*ids, *action.token_ids])[len(ids) - 1 :]
    assert torch.allclose(found, torch.tensor(action.logps), atol=1e-4)


@pytest.mark.parametrize("make", [seeing.made, seeing.split_up])
@pytest.mark.parametrize("share", [True, False])
def test_losses_and_gradients_are_those_of_transformers(make: Any, share: bool) -> None:
    own, _, renderer = make()  # Idefics3's processor is not loaded from a folder without torchvision
    read_pictures(own, renderer.vision, "model")
    texts = [[*renderer.context_ids(asked(COLOURS[name])), 9, at, 11] for name in ("red", "blue") for at in (5, 6)]
    packed = pack([Sequence(tuple(ids), (*[0] * (len(ids) - 3), 1, 1, 1)) for ids in texts])
    scorer = Scorer(own, share=share)
    assert scorer.shares is share and packed.tokens < sum(map(len, texts))
    found = scorer(own, packed).logps
    wanted = [plain(own, renderer, ids)[-3:] for ids in texts]
    for row, want in zip(packed.rows, wanted, strict=True):
        assert torch.allclose(found[row], want, atol=1e-5)
    tower = next(w for name, w in own.named_parameters() if "patch_embedding.weight" in name)
    weights = [own.get_input_embeddings().weight, tower]
    loss = sum(found[row].sum() for row in packed.rows)
    for mine, theirs in zip(
        torch.autograd.grad(loss, weights), torch.autograd.grad(sum(w.sum() for w in wanted), weights), strict=True
    ):
        assert theirs.abs().max() > 0 and torch.allclose(mine, theirs, atol=1e-4)


def test_models_that_see_are_trained_searched_and_trained_again(tmp_path: Path) -> None:
    small = ["scratch.layers=2", "scratch.hidden_size=32", "scratch.heads=2", "scratch.key_value_heads=2", "threads=1"]
    small += ["scratch.vocabulary=320", "scratch.pictures=16", "scratch.patch_size=8", "optimizer.learning_rate=3e-3"]
    small += ["scratch.reading=1"]
    call("train_sft", ENV, *small, "optimizer.epochs=30", "batch.rows=4", f"run_dir={tmp_path / 'sft'}")
    call("build_prefs", ENV, "policy=hf", f"policy.model={tmp_path / 'sft' / 'model'}", "tasks.n=4",
         "search.simulations=12", "policy.temperature=1.5", f"run_dir={tmp_path / 'pairs'}")  # fmt: skip
    found = [known(row) for table in ("preferences", "filtered") for row in rows(tmp_path / "pairs", table)]
    assert any(token >= PATCH for row in found for token in row.get("prompt_ids") or row["input_ids"])
    pictures._folders.clear()  # as in another process
    call("train_dpo", f"model.path={tmp_path / 'sft' / 'model'}", f"data.runs=[{tmp_path / 'pairs'}]", "threads=1",
         "optimizer.max_updates=2", f"run_dir={tmp_path / 'dpo'}")  # fmt: skip
    call("evaluate", ENV, "policy=hf", f"policy.model={tmp_path / 'dpo' / 'model'}", "tasks.split=validation",
         f"run_dir={tmp_path / 'evaluated'}")  # fmt: skip
    assert list((tmp_path / "evaluated" / "images").iterdir())


def test_a_model_whose_patches_are_no_plain_tokens_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import LlavaForConditionalGeneration

    own = LlavaForConditionalGeneration.get_image_features

    def other(self: Any, **given: Any) -> Any:
        made = own(self, **given)
        made.pooler_output = [one * 2 + 1 for one in made.pooler_output]
        return made

    monkeypatch.setattr(LlavaForConditionalGeneration, "get_image_features", other)
    with pytest.raises(ConfigError, match="its patches are not plain tokens"):
        load_trainable(str(model))
