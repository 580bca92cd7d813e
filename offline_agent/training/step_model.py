"""Step models: reward models that are read after each turn, trained on the values of a search's edges.

The label of a turn is the mean value of its edge, in [0, 1], and counts as often as the edge was visited: each rollout
through it is one observation (soft labels of Math-Shepherd, Wang et al. 2023, arXiv 2312.08935, section 3.3; AgentPRM,
Choudhury 2025, arXiv 2502.10325, section 3.1). It is read at the turn's last token, before the reply to it: Q of
history and action. So one forward of a causal model values all turns of a trajectory.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from itertools import takewhile
from pathlib import Path

import torch
from torch import Tensor

from offline_agent.errors import ConfigError, DataError
from offline_agent.records import Action, Context, Trajectory
from offline_agent.search.tree import SearchTree
from offline_agent.training.models import set_threads
from offline_agent.training.reward_model import Example, RewardModel, load_reward_model

Row = tuple[list[int], dict[int, int]]
"""Ids, int [n], and the places in them where turns end, by the number of the turn from 0."""


def check_head(reward: RewardModel, key: str, path: str | None) -> None:
    """Raise ConfigError where a model cannot be read after each turn: it has no head over single tokens (`score`)."""
    if not hasattr(reward.model, "score"):
        raise ConfigError(
            f"{key}: {path!r} is a {type(reward.model).__name__}, which reads a whole text alone; turns are read by "
            "causal models, such as Llama's or Qwen's"
        )


def turn_rows(reward: RewardModel, context: Context) -> list[Row]:
    """Return rows in which the turns of a history are read: one for all, more where a template rewrites earlier turns.

    Raises:
        DataError: The history is of a log that has no ids for it, or of a policy with another tokenizer.
    """
    rows: list[Row] = []
    for node in reversed(context.lineage()[1:]):
        assert node.parent is not None and node.action is not None  # the start alone has none
        turn, said = reward.renderer.action_ids(node.action), node.action
        if said.token_ids is not None and said.recorded is None and said.text not in reward.renderer.decode(turn):
            raise DataError("the ids of a turn are another tokenizer's; take a model with the tokenizer of the policy")
        ids = reward.fit([*reward.renderer.context_ids(node.parent), *turn])
        if not rows or rows[-1][0][: len(ids)] != ids:
            rows.append((ids, {}))
        rows[-1][1][node.parent.depth] = len(ids) - 1
    return rows


def turn_logits(reward: RewardModel, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Tensor:
    """Return the logit at each place, float [places of all rows].

    Args:
        reward: The model.
        rows: Ids of each row, and the places that are read.
    """
    hidden = reward.model.base_model(**reward.padded([ids for ids, _ in rows])).last_hidden_state
    places = [(row, end) for row, (_, ends) in enumerate(rows) for end in ends]
    at, ends = torch.tensor(places, device=hidden.device).T
    out = reward.model.score(hidden[at, ends]).float()
    return out[:, 0] if out.shape[1] == 1 else out[:, 1] - out[:, 0]


def turn_values(
    reward: RewardModel, rows: Sequence[tuple[Sequence[int], Sequence[int]]], at_once: int = 16
) -> list[float]:
    """Return the value in [0, 1] at each place; see `turn_logits`."""
    return reward.probabilities(rows, at_once, partial(turn_logits, reward))


def step_examples(reward: RewardModel, tree: SearchTree) -> Iterator[Example]:
    """Yield the branches of a tree with the value of each visited edge once; nothing behind a quarantined edge.

    Raises:
        DataError: As `turn_rows`.
    """
    done: set[int] = set()
    for end in () if tree.quarantined else tree.nodes:
        if any(edge.child is not None for edge in end.edges):
            continue
        sound = takewhile(lambda edge: edge.quarantined is None, tree.path(end))
        fresh = {edge.parent.depth: edge for edge in sound if edge.visits and edge.id not in done}
        done.update(edge.id for edge in fresh.values())
        for ids, ends in turn_rows(reward, end.context) if fresh else ():
            labelled = [(ends[turn], fresh[turn]) for turn in ends if turn in fresh]
            turns = tuple((place, edge.value_sum / edge.visits, edge.visits) for place, edge in labelled)
            if turns:
                yield Example(tree.task.task_id, ids, turns[0][1] > 0, turns)


def places(examples: Sequence[Example]) -> list[tuple[list[int], list[int]]]:
    """Return what `turn_logits` reads of examples with turns."""
    return [(one.ids, [end for end, _, _ in one.turns]) for one in examples]


def step_loss(reward: RewardModel, batch: Sequence[Example], visits: float) -> Tensor:
    """Return the cross-entropy of the labels, each weighted by its visits, 0-d.

    Args:
        reward: The model.
        batch: Examples with turns.
        visits: Mean sum of visits of an example of the whole data: all rollouts through all turns count alike.
    """
    logits = turn_logits(reward, places(batch))
    labels = torch.tensor([turn[1:] for one in batch for turn in one.turns], device=logits.device)
    wanted, weights = labels[:, 0], labels[:, 1] / (visits * len(batch))
    return torch.nn.functional.binary_cross_entropy_with_logits(logits, wanted, weights, reduction="sum")


class StepModel:
    """A reward model that values single turns: a critic of proposals (`search.critic`), a judge of turns.

    Args:
        path: A folder that `train_reward` wrote.
        key: The configuration key, for messages.

    Raises:
        ConfigError: It cannot be loaded, or reads whole texts alone.
    """

    def __init__(self, path: str, key: str) -> None:
        if not Path(path).is_dir():
            raise ConfigError(f"{key}: got {path!r}, allowed: module:callable, or a folder that train_reward wrote")
        self._reward = load_reward_model(path, key)
        check_head(self._reward, key, path)
        set_threads(None, self._reward.model)
        self._lock = threading.Lock()  # one at a time: torch has its own threads

    def critic(self, context: Context, actions: Sequence[Action], seed: int) -> list[float | None]:
        """Return the value of each action after a history; see `search.requests.Critic`."""
        rows = [turn_rows(self._reward, context.child(action, None))[0] for action in actions]
        with self._lock:
            return [*turn_values(self._reward, [(ids, [ends[context.depth]]) for ids, ends in rows])]

    def turns(self, trajectory: Trajectory) -> list[float]:
        """Return the value of each turn, float [turns]."""
        rows = turn_rows(self._reward, trajectory.context)
        numbers = [turn for _, ends in rows for turn in ends]
        with self._lock:
            values = turn_values(self._reward, [(ids, list(ends.values())) for ids, ends in rows]) if rows else []
        return [value for _, value in sorted(zip(numbers, values, strict=True))]


step_model = lru_cache(2)(StepModel)
"""Returns the step model of a folder; it is loaded once a process, since checks and searches both ask for it."""
