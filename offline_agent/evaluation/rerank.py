"""Proposals ranked by a preference model at test time: no verifier, no call of the environment, only more tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from offline_agent.errors import PolicyError
from offline_agent.policies.base import Policy
from offline_agent.records import Action, Context


@dataclass(frozen=True)
class Reranker:
    """Takes the proposal with the highest implicit reward of a preference model.

    The implicit reward of an action a after a history h is beta (log pi(a | h) - log pi_ref(a | h)), log-probabilities
    summed over the action's tokens: what DPO fits (Rafailov et al. 2023, arXiv 2305.18290), and what Step-Q ranks an
    agent's actions by (Zhai et al. 2024, arXiv 2409.09345). beta > 0 changes no order and is left out.

    Args:
        scorer: The preference model, pi.
        reference: The model that it was trained from, pi_ref.
    """

    scorer: Policy
    reference: Policy

    def scores(self, context: Context, actions: Sequence[Action]) -> list[float]:
        """Return log pi - log pi_ref of each action, in nats at temperature 1.

        Raises:
            PolicyError: An action has no token ids, or a model could not score or gave no number.
        """
        ids = [action.token_ids for action in actions]
        known = list(dict.fromkeys(each for each in ids if each is not None))
        if None in ids:
            raise PolicyError("an action has no token ids, by which a preference model could score it")
        ours, theirs = self.scorer.score(context, known), self.reference.score(context, known)
        found = {
            each: math.fsum(one) - math.fsum(other) for each, one, other in zip(known, ours, theirs, strict=True)
        }
        if not all(map(math.isfinite, found.values())):
            raise PolicyError("the preference model or its reference gave a log-probability that is no finite number")
        return [found[each] for each in ids if each is not None]

    def choose(self, context: Context, actions: Sequence[Action]) -> int:
        """Return the place of the action with the highest score; of equals the first."""
        if len({action.token_ids for action in actions}) == 1 and actions[0].token_ids is not None:
            return 0
        scores = self.scores(context, actions)
        return max(range(len(scores)), key=scores.__getitem__)


def unlike(policy: Policy, other: Policy, key: str) -> list[str]:
    """Return why a model cannot score the token ids of a policy; nothing where tokenizer and template are the same."""
    if policy.renderer is None:
        return [f"{key}: {policy.name} has no tokenizer, so no model can score what it says; use policy=hf"]
    if not hasattr(other, "score"):
        return [f"{key}: {other.name} cannot score actions; name a folder or hub name of a model"]
    return [
        f"{key}: its {what} is {other.identity.get(what)}, the policy's is {policy.identity.get(what)}; name a model "
        "that was trained from the policy, or with its tokenizer and chat template"
        for what in ("tokenizer_hash", "template_hash")
        if policy.identity.get(what) != other.identity.get(what)
    ]
