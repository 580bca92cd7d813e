"""Selection rules, priors, the policy as critic, the worker pool."""

from __future__ import annotations

import math
import random
import threading
from typing import Any

import pytest

from offline_agent.envs.pool import EnvPool
from offline_agent.errors import EnvironmentFault, JudgeError, PolicyError
from offline_agent.policies.base import Proposals, Usage
from offline_agent.policies.engines import InlineEngine
from offline_agent.records import Action, Context, Task, ToolCall
from offline_agent.search.in_flight import Simulation
from offline_agent.search.requests import PolicyCritic
from offline_agent.search.selection import mix, puct, refresh_priors, uct
from offline_agent.search.settings import BudgetSection, SearchSettings
from offline_agent.search.simulation import choose
from offline_agent.search.tree import SearchTree
from tests.helpers.search import Guess


def tree_with(values: list[tuple[int, float]], logps: list[float] | None = None) -> SearchTree:
    """Return a root with one edge per (visits, mean value)."""
    tree = SearchTree(Context(Task("t", "train", {}), "", (), "start"))
    for i, (visits, value) in enumerate(values):
        logp = None if logps is None else (logps[i],)
        edge, new = tree.add_proposal(tree.root, Action(str(i), logps=logp), str(i))
        assert new
        edge.visits, edge.value_sum = visits, visits * value
        tree.root.visits += visits
        tree.root.value_sum += visits * value
        if visits:
            tree.low, tree.high = min(tree.low, value), max(tree.high, value)
    refresh_priors(tree.root)
    return tree


def test_priors_are_count_plus_softmax_over_k_plus_one() -> None:
    tree = tree_with([(0, 0), (0, 0)], [-1.0, -2.0])
    tree.add_proposal(tree.root, Action("0", logps=(-1.5,)), "0")
    refresh_priors(tree.root)
    softmax = 1 / (1 + math.exp(-1.0))
    assert math.isclose(tree.edges[0].prior, (2 + softmax) / 4)
    assert math.isclose(tree.edges[1].prior, (1 + 1 - softmax) / 4)


def test_puct_by_hand() -> None:
    tree = tree_with([(4, 0.8), (2, 0.2), (0, 0.0)])
    low, high, c = 0.2, 0.8, 1.25
    prior = 1 / 3
    scores = [
        1.0 + c * prior * math.sqrt(6) / 5,
        0.0 + c * prior * math.sqrt(6) / 3,
        ((4 * 0.8 + 2 * 0.2) / 6 - low) / (high - low) - 0.2 * math.sqrt(2 / 3) + c * prior * math.sqrt(6) / 1,
    ]
    assert puct(c, 0.2)(tree, tree.root) is tree.edges[max(range(3), key=scores.__getitem__)]
    tree.edges[2].closed = True
    assert puct(c, 0.2)(tree, tree.root) is tree.edges[0]
    tree.edges[0].pending = 50  # others are there already: the exploration term gives way, the value does not
    assert puct(6.0, 0.2)(tree, tree.root) is tree.edges[1]
    for edge in tree.edges:
        edge.closed = True
    assert puct(1.25, 0.2)(tree, tree.root) is None and uct(1.0)(tree, tree.root) is None


def test_uct_is_agentqs() -> None:
    tree = tree_with([(4, 0.5), (1, 0.4)])
    scores = [0.5 + math.sqrt(math.log(5) / 5), 0.4 + math.sqrt(math.log(5) / 2)]
    assert uct(1.0)(tree, tree.root) is tree.edges[max(range(2), key=scores.__getitem__)]


def test_mixed_values() -> None:
    assert mix(0.5, 6, None) == 0.5 and mix(None, 0, 0.3) == 0.3 and mix(None, 0, None) is None
    assert mix(0.5, 6, 1.0) == pytest.approx(6 / 8 * 0.5 + 2 / 8 * 1.0)


@pytest.mark.parametrize("span", [0.0, 0.01, 0.6])
def test_the_critic_counts_alike_whatever_the_spread_of_the_values(span: float) -> None:
    """With equal visits an opinion that is 0.5 higher makes up for just so much search value, normalised."""
    low = 0.2
    for gap in (-0.1, 0.1):  # of the normalised values, beyond what the critic makes up for
        searched = min(1.0, max(0.0, 0.5 + gap))
        tree = tree_with([(2, low + searched * span), (2, low), (1, low), (1, low + span)])
        for edge, critic in zip(tree.edges, (0.2, 0.7), strict=False):
            edge.critic = critic
        tree.edges[2].closed = tree.edges[3].closed = True
        better = tree.edges[0] if gap > 0 and span else tree.edges[1]
        assert puct(0.0, 0.2)(tree, tree.root) is better


def test_puct_adds_its_exploration_to_the_mixed_value() -> None:
    rng = random.Random(4)
    for _ in range(200):
        tree = tree_with([(rng.randrange(4), round(rng.random(), 1)) for _ in range(5)])
        for edge in tree.edges:
            edge.critic = rng.random() if rng.random() < 0.7 or not edge.visits else None
        chosen = puct(1.25, 0.2)(tree, tree.root)

        def score(edge: Any, tree: Any = tree) -> float:
            low, span = (tree.low, tree.high - tree.low) if tree.high - tree.low > 1e-9 else (0.0, 1.0)
            known = (edge.value_sum / edge.visits - low) / span if edge.visits else None
            value = mix(known, edge.visits, edge.critic)
            assert value is not None
            return float(value + 1.25 * edge.prior * math.sqrt(tree.root.visits) / (1 + edge.visits))

        assert chosen is not None and score(chosen) == pytest.approx(max(score(edge) for edge in tree.edges))


class Says(Guess):
    """Answers every request with the same text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.prompts: list[str] = []

    def propose(self, requests: Any) -> list[Any]:
        """Answer."""
        self.prompts += [str(r.context.observation) for r in requests]
        if self.text == "!":
            return [PolicyError("gone") for _ in requests]
        return [Proposals((Action(self.text),), Usage(7, 0, 0)) for _ in requests]


def ranked(text: str, seed: int = 3) -> tuple[list[float | None], Says]:
    policy = Says(text)
    context = Context(Task("t", "train", {}), "", (), "where to?")
    actions = [Action(f"go {way}", call=ToolCall("go", {"way": way})) for way in ("a", "b", "c")]
    return PolicyCritic(InlineEngine(policy))(context, actions, seed), policy


def test_the_critic_reads_a_ranking_in_a_shuffled_order() -> None:
    scores, policy = ranked("2, 1, 3")
    assert sorted(s for s in scores if s is not None) == [0.0, 0.5, 1.0]
    shown = [line[3:] for line in policy.prompts[0].splitlines() if line[:2] in ("1.", "2.", "3.")]
    assert scores[["go a", "go b", "go c"].index(shown[1])] == 1.0
    assert len({tuple(ranked("2, 1, 3", seed)[0]) for seed in range(12)}) > 2


def test_an_action_without_an_opinion_counts_as_one_of_middling_worth() -> None:
    simulation = Simulation(0, [], SearchTree(Context(Task("t", "train", {}), "", (), "start")).root)
    simulation.critic = {"bad": 0.1, "known": 0.5}
    fresh = {"bad": (3, -1.0, 0, Action("bad")), "unsaid": (1, -2.0, -3, Action("unsaid"))}
    assert choose(simulation, fresh) == (3, Action("unsaid"), "unsaid")
    simulation.critic = {"bad": 0.1, "good": 0.9}
    assert choose(simulation, {**fresh, "good": (1, -3.0, -4, Action("good"))}) == (4, Action("good"), "good")


@pytest.mark.parametrize("text", ["", "the second", "1, 2", "1, 2, 3, 4", "0 1 2", "9" * 5000])
def test_an_unreadable_ranking_scores_nothing(text: str) -> None:
    assert ranked(text)[0] == [None, None, None]


def test_a_failing_critic_says_so() -> None:
    with pytest.raises(JudgeError, match="gone"):
        ranked("!")


def test_the_pool_answers_hung_jobs_and_throws_their_results_away() -> None:
    pool, gate, got = EnvPool(1, 0.05), threading.Event(), []
    done = threading.Event()
    pool.submit(lambda: gate.wait(5) and "late", got.append)
    pool.submit(lambda: "quick", lambda result: (got.append(result), done.set()))
    while pool.hung == 0:
        done.wait(0.01)
        pool.reap()
    assert done.wait(5)
    gate.set()
    pool.submit(lambda: 1 / 0, got.append)
    while len(got) < 3:
        done.wait(0.01)
    pool.close()
    faults = [result for result in got if isinstance(result, EnvironmentFault)]
    assert "quick" in got and len(faults) == 2 and "late" not in got
    assert {type(fault.__cause__) for fault in faults} == {type(None), ZeroDivisionError}


def test_a_budget_too_small_for_one_simulation_is_refused_before_the_run() -> None:
    settings = SearchSettings(budget=BudgetSection(tokens=100, tool_calls=10), action_tokens=8, max_steps=15)
    tokens, calls = settings.budget_faults(3)
    assert "search.budget.tokens: 100 for each of 3 tasks" in tokens and "144" in tokens
    assert "search.budget.tool_calls: 10" in calls
    enough = BudgetSection(tokens=144, tool_calls=15)
    assert SearchSettings(budget=enough, action_tokens=8).budget_faults(1) == []
    none = SearchSettings(budget=BudgetSection(prefilled=5).share(6))
    assert "less than 1 for each of 6 tasks" in none.budget_faults(6)[0]
