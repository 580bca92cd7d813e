"""Keys and settings of the search of a tree. docs/search.md has each of them beside its formula."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import field_validator, model_validator

from offline_agent.envs.settings import DEFAULT_STEPS, OWN_STEPS
from offline_agent.sections import Section, key, section


class BudgetSection(Section):
    """Limits of a whole run, whichever is reached first; null = no limit."""

    tokens: int | None = key(None, "generated tokens", ge=1)
    prefilled: int | None = key(None, "prompt tokens computed", ge=1)
    tool_calls: int | None = key(None, "steps of the environment; replays are not counted", ge=1)
    seconds: float | None = key(None, "wall-clock seconds; the only budget that is not reproducible", gt=0)

    def share(self, tasks: int) -> BudgetSection:
        """Return an even share of each task, so that a tree depends on its seed and task alone; 0 = nothing fits."""
        limits = {"tokens": self.tokens, "prefilled": self.prefilled, "tool_calls": self.tool_calls}
        shares = {name: None if limit is None else limit // tasks for name, limit in limits.items()}
        return self.model_copy(update={**shares, "seconds": None})


class SearchSection(Section):
    """The search over tool calls."""

    algorithm: Literal["mcts", "best_of_n"] = key("mcts", "tree search, or independent samples as the baseline")
    simulations: int = key(32, "simulations a task (samples a task for best_of_n)", ge=1, le=10**7)
    until: Literal["spent", "success", "contrast"] = key(
        "spent",
        "when a task's search ends before its simulations are spent, looked at after the first search.proposals plain "
        "rollouts: success = there is a verified success; contrast = there is a success and a failure",
    )
    proposals: int = key(4, "actions sampled in one request when a node is expanded", ge=1, le=1024)
    max_children: int = key(8, "most distinct actions of one node", ge=1, le=4096)
    widening: float = key(2.0, "a node of N visits may have up to ceil(widening * sqrt(N)) actions", gt=0)
    saturation: int = key(
        8, "proposals in a row, beyond a node's first search.proposals, that add nothing until no more are drawn", ge=1
    )
    selection: Literal["puct", "uct"] = key("puct", "how a child is chosen; uct needs no log-probabilities")
    c_puct: float = key(1.25, "exploration constant of puct", ge=0)
    c_uct: float = key(1.0, "exploration constant of uct", ge=0)
    fpu_reduction: float = key(0.2, "an unvisited child counts as its parent minus this * sqrt(visited prior)", ge=0)
    leaves_in_flight: int = key(4, "simulations of one tree under way at once", ge=1, le=64)
    trees_in_flight: int = key(64, "tasks searched at once", ge=1, le=10**6)
    max_steps: int = key(0, f"actions in one episode; one that uses them up failed; {OWN_STEPS}", ge=0, le=10**5)
    gamma: float = key(1.0, "discount a step", gt=0, le=1)
    value: Literal["reward", "success"] = key("reward", "what is backed up: the score, or 1 for success and else 0")
    critic: str | None = key(
        None, "policy = the policy ranks its proposals itself; module:callable; the folder of a step model; null = none"
    )
    repeated_states: Literal["close", "keep"] = key(
        "keep", "close = a simulation ends where it comes to a state that its tree has already, as the environment's "
        "fingerprint says, and that action is not tried again: where many ways lead to the same state",
    )  # fmt: skip
    state_cache: int = key(
        64, "environment copies kept for each tree; 0 = none is made, and states are restored by replay",
        ge=0, le=10**6, free=True,
    )  # fmt: skip
    budget: BudgetSection = section(BudgetSection, "limits of the whole run")

    @field_validator("critic")
    @classmethod
    def _names_a_critic(cls, critic: str | None) -> str | None:
        if critic not in (None, "policy") and ":" not in str(critic) and not os.path.isdir(str(critic)):
            told = "allowed: policy, module:callable of your own, a folder that train_reward wrote, or null."
            raise ValueError(f"search.critic: got {critic!r}, {told}")
        return critic

    @model_validator(mode="after")
    def _room(self) -> SearchSection:
        if self.proposals > self.max_children:
            raise ValueError(
                f"search.proposals ({self.proposals}) is more than search.max_children ({self.max_children}); "
                f"raise the latter or lower the former"
            )
        return self


class SearchSettings(SearchSection):
    """Settings of the search of a tree: the keys, with this tree's share of the budget, and what a run decides.

    Attributes:
        max_steps: Actions after which an episode is cut; it then backs up 0, flagged.
        budget: Of this tree. A simulation is issued only if its worst case still fits.
        temperature, max_tokens: Of proposals; None = the policy's own setting.
        deterministic_verifier: A judged terminal is closed after one visit.
        action_tokens: The most tokens one action can have, reserved for each action of a simulation; 0 for policies
            without tokens.
    """

    max_steps: int = key(DEFAULT_STEPS, "actions in one episode", ge=1, le=10**5)
    temperature: float | None = None
    max_tokens: int | None = None
    deterministic_verifier: bool = True
    action_tokens: int = 0

    @classmethod
    def of_tree(cls, keys: SearchSection, tasks: int, **decided: Any) -> SearchSettings:
        """Return the settings of each tree of a run.

        Args:
            keys: The keys of the run.
            tasks: Number of tasks that share the budget.
            decided: What the run decides; it replaces keys of the same name.
        """
        steps = keys.max_steps or DEFAULT_STEPS  # 0 where the environment was not asked
        return cls(**{**dict(keys), "max_steps": steps, "budget": keys.budget.share(tasks), **decided})

    def budget_faults(self, tasks: int) -> list[str]:
        """Return why no simulation of a task fits its share of the run's budget; empty where one fits.

        Args:
            tasks: Number of tasks among which the budget of the run was divided.
        """
        tokens, calls, faults = self.worst_tokens(1), self.max_steps, list[str]()
        if self.budget.prefilled == 0:
            faults.append(f"search.budget.prefilled: less than 1 for each of {tasks} tasks; raise it, or lower tasks.n")
        for name, share, worst, why in (
            ("tokens", self.budget.tokens, tokens, f"{self.max_steps} steps of up to {self.action_tokens} tokens"),
            ("tool_calls", self.budget.tool_calls, calls, f"{self.max_steps} steps"),
        ):
            if share is not None and share < worst:
                faults.append(
                    f"search.budget.{name}: {share} for each of {tasks} tasks, but one simulation may take {worst} "
                    f"({why}); raise it, or lower tasks.n, search.max_steps or policy.max_tokens"
                )
        return faults

    def worst_tokens(self, simulations: int) -> int:
        """Return the most tokens that so many simulations can sample, proposals of an expansion included."""
        return simulations * self.action_tokens * (self.max_steps + self.proposals - 1)

    def spent(self, counters: Mapping[str, int], flight: int) -> str | None:
        """Return the limit of the budget that one more simulation might exceed in the worst case; None = none.

        Args:
            counters: The tree's.
            flight: Number of simulations in flight.
        """
        budget, more = self.budget, flight + 1
        if budget.tokens is not None and counters["generated"] + self.worst_tokens(more) > budget.tokens:
            return "tokens"
        if budget.tool_calls is not None and counters["tool_calls"] + more * self.max_steps > budget.tool_calls:
            return "tool_calls"
        if budget.prefilled is not None and counters["prefilled"] >= budget.prefilled:
            return "prefilled"
        return None
