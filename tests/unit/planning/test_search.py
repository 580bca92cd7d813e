"""The small run that a plan goes by: fewer tasks, each under the budget that it has in the whole run."""

from __future__ import annotations

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.config.evaluate import EvaluateConfig
from offline_agent.config.loading import load
from offline_agent.pipelines.stages.search import settings_of
from offline_agent.planning.search import BuildPrefs, Evaluate, fewer

BUDGETS = ("budget_tokens", "budget_tool_calls", "budget_prefilled")


def config(*keys: str) -> BuildPrefsConfig:
    return load(BuildPrefsConfig, None, ["env=shop", "policy=noisy", *keys])


def test_a_task_of_the_probe_has_the_budget_it_has_in_the_run() -> None:
    whole = config(
        "tasks.n=70", "search.budget.tokens=100003", "search.budget.tool_calls=9001", "search.budget.prefilled=55555"
    )
    small = fewer(whole, 70, 20)
    assert small.tasks.n == 20
    ours, theirs = settings_of(small, 20, 8), settings_of(whole, 70, 8)
    for name in BUDGETS:
        assert getattr(ours, name) == getattr(theirs, name) is not None, name
    assert fewer(config("tasks.n=3"), 3, 20).tasks.n == 3
    assert settings_of(fewer(config(), 24, 20), 20, 8).budget_tokens is None


def test_probes_are_the_run_itself_but_smaller() -> None:
    whole = config("tasks.n=50", "seed=7", "search.simulations=5", "plan.probe=6")
    small = BuildPrefs().probe(whole)
    assert small.tasks.n == 6
    same = small.model_copy(update={"tasks": whole.tasks})
    assert same == whole


def test_an_evaluation_is_compared_with_nobody_in_its_probe() -> None:
    whole = load(EvaluateConfig, None, ["env=shop", "policy=noisy", "tasks.n=30", "against.run=x", "plan.probe=5"])
    small = Evaluate().probe(whole)
    assert small.tasks.n == 5 and small.against.run is None and small.attempts == whole.attempts
