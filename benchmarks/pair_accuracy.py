"""Are step pairs labelled right? Rules compared on the same trees, where the truth is known.

Run `python benchmarks/pair_accuracy.py`. Two truths: random choice tasks with a stochastic policy, whose action values
under the policy are computed exactly; and the shop, where the truth is 64 fresh rollouts of each side. A pair is right
if the side called better has the higher value under the policy; a tie is wrong.

Rules: ours (`StepPairs`); ours without the second opinion (one estimate, from the rollouts alone); the open AgentQ's
(sentient-engineering/agent-q: on the best path found, the action taken beats every sibling, tried or not); best child
against worst child by mean Q where the gap is at least 0.1, whatever the visits (AgentQ's paper, without its critic);
every two tried siblings with a gap of at least 0.2.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from offline_agent.envs.base import EnvSpec, Episode
from offline_agent.envs.pool import EnvPool
from offline_agent.evaluation.statistics import too_alike, wilson
from offline_agent.policies.base import Policy, Proposals, ProposeRequest
from offline_agent.preferences.pairs.step import StepPairs
from offline_agent.records import Context, Task
from offline_agent.search.restore import Restorer
from offline_agent.search.scheduler import Scheduler
from offline_agent.search.settings import SearchSettings
from offline_agent.search.tree import Edge, SearchTree
from offline_agent.search.tree_search import TreeSearch
from offline_agent.seeding import derive_seed

Rule = Callable[[SearchTree], list[tuple[Edge, Edge]]]
Truth = Callable[[Edge], float]


def by(rules: StepPairs) -> Rule:
    """Our rules, with the arguments given."""

    def pairs(tree: SearchTree) -> list[tuple[Edge, Edge]]:
        found = rules.mine(tree)[0]
        return [(tree.edges[p.chosen_edge or 0], tree.edges[p.rejected_edge or 0]) for p in found]

    return pairs


def open_agentq(tree: SearchTree) -> list[tuple[Edge, Edge]]:
    """On the path to the best end, the action taken against each sibling."""
    ends = [end for end in tree.terminals() if end.verdict is not None and end.verdict.score is not None]
    if not ends:
        return []
    best = max(ends, key=lambda end: (end.verdict.score, -end.depth, -end.id))  # type: ignore[union-attr, return-value]
    return [(edge, other) for edge in tree.path(best) for other in edge.parent.edges if other is not edge]


def best_worst(tree: SearchTree, gap: float = 0.1) -> list[tuple[Edge, Edge]]:
    """The best against the worst child of each node by mean Q."""
    out = []
    for node in tree.nodes:
        tried = [edge for edge in node.edges if edge.visits]
        if len(tried) >= 2:
            best, worst = max(tried, key=_value), min(tried, key=_value)
            if _value(best) - _value(worst) >= gap:
                out.append((best, worst))
    return out


def fixed_gap(tree: SearchTree, gap: float = 0.2) -> list[tuple[Edge, Edge]]:
    """Every two tried siblings whose means differ enough."""
    return [
        (a, b)
        for node in tree.nodes
        for a, b in itertools.permutations([edge for edge in node.edges if edge.visits], 2)
        if _value(a) - _value(b) >= gap
    ]


SHOP = EnvSpec.load("shop")
RULES: dict[str, Rule] = {
    "ours": by(StepPairs()),
    "ours, no second opinion": by(StepPairs(second_opinion=False)),
    "open AgentQ": open_agentq,
    "best v. worst, gap 0.1": best_worst,
    "any gap of 0.2": fixed_gap,
}


class ShopTruth:
    """The value of an edge under a policy: the mean score of fresh rollouts; one that runs out of steps scores 0."""

    def __init__(self, spec: EnvSpec, policy: Policy, rollouts: int, max_steps: int, batch: int) -> None:
        self._spec, self._policy = spec, policy
        self._rollouts, self._max_steps, self._batch = rollouts, max_steps, batch
        self._known: dict[tuple[str, int], float] = {}

    def __call__(self, task: Task, edge: Edge) -> float:
        """Return the edge's value, measured once."""
        key = (task.task_id, edge.id)
        if key not in self._known:
            self._known[key] = self._measure(task, edge)
        return self._known[key]

    def _measure(self, task: Task, edge: Edge) -> float:
        start = self._spec.open()
        start.reset(task)
        for action in edge.parent.context.actions():
            start.step(action)
        result = start.step(edge.actions[0])
        context = edge.parent.context.child(edge.actions[0], result.observation, result.role)
        if start.terminated:
            return start.verdict().score or 0.0
        live = [(start.copy(), context, i) for i in range(self._rollouts)]
        total = 0.0
        while live:
            live, ended = self._advance(live, task, edge)
            total += ended
        return total / self._rollouts

    def _advance(
        self, live: Sequence[tuple[Episode, Context, int]], task: Task, edge: Edge
    ) -> tuple[list[tuple[Episode, Context, int]], float]:
        requests = [
            ProposeRequest(context, (derive_seed(1, "truth", task.task_id, edge.id, i, context.depth),))
            for _, context, i in live
        ]
        out, ended = [], 0.0
        for at in range(0, len(requests), self._batch):
            answers = self._policy.propose(requests[at : at + self._batch])
            for (episode, context, i), answer in zip(live[at : at + self._batch], answers, strict=True):
                if not isinstance(answer, Proposals):
                    raise answer
                action = answer.actions[0]
                result = episode.step(action)
                after = context.child(action, result.observation, result.role)
                if result.terminated:
                    ended += episode.verdict().score or 0.0
                elif after.depth < self._max_steps:
                    out.append((episode, after, i))
        return out, ended


def choice_trees(n: int, partial: bool, simulations: int) -> list[tuple[SearchTree, Truth]]:
    """Search random choice tasks; the truth is exact."""
    from _mdp import Choices, search, state_after

    out: list[tuple[SearchTree, Truth]] = []
    for seed in range(n):
        task = Choices(seed, partial)
        tree = search(task, simulations=simulations)
        values = {edge.id: task.value(state_after(task, edge)) for edge in tree.edges}
        out.append((tree, looked_up(values)))
    return out


def looked_up(values: dict[int, float]) -> Truth:
    """The values by edge, without the task that they are from."""
    return lambda edge: values[edge.id]


def shop_trees(
    spec: EnvSpec, policy: Policy, n: int, simulations: int, rollouts: int, max_steps: int = 15
) -> list[tuple[SearchTree, Truth]]:
    """Search tasks of the shop; the truth is fresh rollouts of the same policy."""
    settings = SearchSettings(simulations=simulations, max_steps=max_steps, action_tokens=policy.max_tokens)
    tasks = list(itertools.islice(spec.tasks("train"), n))
    truth = ShopTruth(spec, policy, rollouts, max_steps, batch=64)
    engine = policy.engine()
    scheduler = Scheduler(engine, EnvPool(0, None))
    searches = [(TreeSearch(task, Restorer(spec, task), settings, seed=0), ()) for task in tasks]
    trees = [done.tree for done in scheduler.run(searches)]
    engine.close()
    trees.sort(key=lambda tree: [task.task_id for task in tasks].index(tree.tree_id))  # type: ignore[union-attr]
    return [(tree, _by_rollouts(truth, tree.task)) for tree in trees if tree is not None]


def _by_rollouts(truth: ShopTruth, task: Task) -> Truth:
    return lambda edge: truth(task, edge)


def measure(name: str, trees: Sequence[tuple[SearchTree, Truth]], most: int) -> list[dict[str, Any]]:
    """One row per rule: the share of pairs labelled right, with an interval over tasks."""
    rows = []
    for rule, pairs_of in RULES.items():
        right, count, soft_right, soft = [], [], 0, 0
        for tree, truth in trees:
            pairs = pairs_of(tree)
            if len(pairs) > most:  # truths cost rollouts: a fair sample of a rule that gives hundreds
                sample = random.Random(derive_seed(0, tree.tree_id, rule)).sample(pairs, most)
            else:
                sample = pairs
            good = [truth(a) > truth(b) for a, b in sample]
            right.append(sum(good) * len(pairs) / max(1, len(sample)))
            count.append(len(pairs))
            for (a, b), ok in zip(sample, good, strict=True):
                if not (a.exact and b.exact):
                    soft += 1
                    soft_right += ok
        low, high = interval(np.array(right), np.array(count))
        rows.append(
            {
                "trees": f"{name}, {len(trees)} tasks",
                "rule": rule,
                "right": round(sum(right) / max(1, sum(count)), 3),
                "95% interval": f"{low:.3f} to {high:.3f}",
                "pairs/task": round(sum(count) / len(trees), 2),
                "tasks with >= 3": round(sum(c >= 3 for c in count) / len(trees), 2),
                "right where a side is estimated": round(soft_right / max(1, soft), 3),
                "share estimated": round(soft / max(1, sum(min(c, most) for c in count)), 2),
            }
        )
    return rows


def interval(right: Any, count: Any, draws: int = 2000) -> tuple[float, float]:
    """Return the 95 % interval by percentile bootstrap over tasks: pairs of one task are not independent.

    Where hardly a task has a wrong pair, or a right one, resampling shows no spread: then at least as wide as Wilson's
    for as many independent tasks as have pairs.
    """
    right, count = right[count > 0], count[count > 0]
    if not len(count):
        return 0.0, 1.0
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(count), (draws, len(count)))
    low, high = np.percentile(right[picks].sum(1) / count[picks].sum(1), [2.5, 97.5])
    if too_alike(right / count):
        below, above = wilson(right.sum() / count.sum(), len(count))
        low, high = min(low, below), max(high, above)
    return float(low), float(high)


def _value(edge: Edge) -> float:
    value = edge.value
    return 0.0 if value is None else value


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=300, help="random choice tasks of each kind")
    parser.add_argument("--shop-tasks", type=int, default=48)
    parser.add_argument("--simulations", type=int, default=64)
    parser.add_argument("--rollouts", type=int, default=64, help="fresh rollouts per side for the shop's truth")
    parser.add_argument("--noise", type=float, default=0.5, help="carelessness of the shop's scripted policy")
    parser.add_argument("--model", default=None, help="folder of a model to measure on the shop as well")
    parser.add_argument("--model-tasks", type=int, default=8)
    parser.add_argument("--most", type=int, default=24, help="pairs per task and rule whose truth is measured there")
    arguments = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    from _common import write_result

    started = time.perf_counter()
    rows = []
    for partial in (False, True):
        trees = choice_trees(arguments.tasks, partial, arguments.simulations)
        rows += measure("choices, partial credit" if partial else "choices", trees, most=10**9)
    for policy, name, n in _shop_policies(arguments):
        trees = shop_trees(SHOP, policy, n, arguments.simulations, arguments.rollouts)
        rows += measure(name, trees, arguments.most)
        policy.close()
    ours = [row for row in rows if row["rule"] == "ours"]
    write_result(
        "pair_accuracy",
        rows,
        {
            "target": "right >= 0.95 with >= 3 pairs a task at 64 simulations",
            "met": all(row["right"] >= 0.95 and row["pairs/task"] >= 3 for row in ours),
            "simulations": arguments.simulations,
            "rollouts per side (shop)": arguments.rollouts,
            "seconds": round(time.perf_counter() - started),
        },
    )


def _shop_policies(arguments: argparse.Namespace) -> Iterator[tuple[Any, str, int]]:
    from offline_agent.policies.scripted import NoisyPolicy

    careless = NoisyPolicy(SHOP.demonstrate, arguments.noise)
    yield careless, f"shop, noisy policy {arguments.noise:g}", arguments.shop_tasks
    if arguments.model is not None:
        from offline_agent.policies.hf.policy import HFPolicy

        yield HFPolicy(arguments.model, temperature=0.7), f"shop, {Path(arguments.model).name}", arguments.model_tasks


if __name__ == "__main__":
    main()
