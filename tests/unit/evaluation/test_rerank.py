"""Proposals ranked by a preference model: the score against float64, the choice, and who may score whom."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.pool import EnvPool
from offline_agent.errors import PolicyError
from offline_agent.evaluation.rerank import Reranker, unlike
from offline_agent.policies.base import ProposeRequest
from offline_agent.policies.hf.policy import HFPolicy
from offline_agent.records import Action, Context
from offline_agent.rollouts.attempts import Attempt, AttemptRequest
from offline_agent.rollouts.episodes import Episodes
from tests.helpers.rendering import root
from tests.helpers.search import Guess, Paths, tasks


@dataclass
class Table:
    """Scores ids by a table."""

    known: dict[tuple[int, ...], tuple[float, ...]] = field(default_factory=dict)
    name = "table"

    def score(self, context: Context, actions: Any) -> list[tuple[float, ...]]:
        """Look them up."""
        return [self.known[tuple(ids)] for ids in actions]


def says(*ids: int) -> Action:
    return Action("x", token_ids=ids)


def test_the_score_is_summed_over_tokens_and_the_first_of_the_best_is_taken() -> None:
    policy = Table({(1,): (-1.0,), (2, 3): (-0.5, -0.5), (4,): (-2.0,)})
    reference = Table({(1,): (-1.5,), (2, 3): (-1.0, -0.75), (4,): (-2.75,)})
    ranks = Reranker(policy, reference)  # type: ignore[arg-type]
    actions = [says(1), says(2, 3), says(4), says(2, 3)]
    assert ranks.scores(root(), actions) == [0.5, 0.75, 0.75, 0.75]
    assert ranks.choose(root(), actions) == 1 and ranks.choose(root(), actions[::2]) == 1
    assert ranks.choose(root(), [says(9), says(9)]) == 0  # nothing to choose, nobody is asked
    with pytest.raises(PolicyError, match="no token ids"):
        ranks.choose(root(), [says(1), Action("x")])
    policy.known[1,] = (float("nan"),)
    with pytest.raises(PolicyError, match="no finite number"):
        ranks.choose(root(), actions)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[HFPolicy, HFPolicy]:
    """Return the embedded model, and one with other weights."""
    plain, folder = HFPolicy(), tmp_path_factory.mktemp("other")
    other = HFPolicy()
    torch.manual_seed(0)
    with torch.no_grad():
        for weights in other.model.parameters():
            weights.add_(0.02 * torch.randn_like(weights))
    other.model.save_pretrained(folder)
    plain.renderer.tokenizer.save_pretrained(folder)
    return plain, HFPolicy(str(folder), renderer=plain.renderer)


def exact(policy: HFPolicy, context: Context, ids: tuple[int, ...]) -> float:
    """Return the sum of the action's log-probabilities in float64, by one plain pass."""
    import copy

    prompt = list(policy.renderer.context_ids(context))
    model = copy.deepcopy(policy.model).double()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *ids]])).logits[0].double()
    logps = torch.log_softmax(logits, -1)
    return float(sum(logps[len(prompt) - 1 + place, token] for place, token in enumerate(ids)))


def test_the_score_of_models_is_that_of_a_float64_reference(models: tuple[HFPolicy, HFPolicy]) -> None:
    reference, scorer = models
    context = root()
    (answer,) = reference.propose([ProposeRequest(context, (1, 2, 3, 4), 1.0, 12)])
    actions = answer.actions  # type: ignore[union-attr]
    wanted = [
        exact(scorer, context, action.token_ids or ()) - exact(reference, context, action.token_ids or ())
        for action in actions
    ]
    ranks = Reranker(scorer, reference)
    assert ranks.scores(context, actions) == pytest.approx(wanted, abs=1e-3) and len(set(wanted)) > 1
    assert ranks.choose(context, actions) == max(range(len(wanted)), key=wanted.__getitem__)
    assert unlike(reference, scorer, "test_time.scorer") == []


def test_ids_of_another_tokenizer_cannot_be_scored(models: tuple[HFPolicy, HFPolicy]) -> None:
    policy, _ = models
    other = Table()
    other.identity = {**policy.identity, "tokenizer_hash": "another"}  # type: ignore[attr-defined]
    other.identity |= {"template_hash": "one more"}  # type: ignore[attr-defined]
    told = unlike(policy, other, "test_time.scorer")  # type: ignore[arg-type]
    assert len(told) == 2 and told[0].startswith("test_time.scorer: its tokenizer_hash is another")
    assert "guess has no tokenizer" in unlike(Guess(), other, "test_time.scorer")[0]  # type: ignore[arg-type]
    assert "cannot score" in unlike(policy, Guess(), "test_time.scorer")[0]


SPEC = EnvSpec(Paths)


def play(choose: Any, proposals: int) -> list[Attempt]:
    (task,) = tasks(SPEC, 1)
    pool, engine = EnvPool(2, 20.0), Guess(thoughts=False).engine()
    try:
        episodes = Episodes(SPEC, engine, pool, max_steps=5, temperature=0.7, choose=choose)
        asks = [AttemptRequest(task, "rerank", n, proposals=proposals) for n in range(4)]
        return sorted(episodes.play(asks), key=lambda attempt: attempt.number)
    finally:
        engine.close()
        pool.close()


def test_of_several_proposals_the_chosen_one_is_executed_and_all_are_counted() -> None:
    alone = play(None, 1)
    first = play(lambda context, actions: 0, 5)
    assert [a.context.actions() for a in first if a.context] == [a.context.actions() for a in alone if a.context]
    assert [a.simulations for a in first] == [5 * len(a.steps) for a in first] and alone[0].simulations is None
    assert all(a.tool_calls == len(a.steps) and a.explored == () for a in first)

    def highest(context: Context, actions: Any) -> int:
        doors = [action.call.arguments["number"] if action.call else -1 for action in actions]
        return doors.index(max(doors))

    chosen = [s.action.call.arguments["number"] for a in play(highest, 5) for s in a.steps if s.action.call]
    plain = [s.action.call.arguments["number"] for a in alone for s in a.steps if s.action.call]
    assert sum(chosen) / len(chosen) > sum(plain) / len(plain)


def test_an_attempt_whose_proposals_cannot_be_ranked_is_unscored() -> None:
    def fails(context: Context, actions: Any) -> int:
        raise PolicyError("no opinion")

    found = play(fails, 2)
    assert all(a.success is None and "the policy failed: no opinion" in str(a.verdict.error) for a in found)
