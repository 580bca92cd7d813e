"""Settings of the search of a tree, checked. docs/search.md has each of them beside its formula."""

from __future__ import annotations

from dataclasses import dataclass

from offline_agent.config.build_prefs import DEFAULT_STEPS, SearchSection
from offline_agent.errors import ConfigError

_KEYS = SearchSection()  # the defaults are declared there


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Settings of the search of a tree; the keys under `search` of `build_prefs --help`.

    Attributes:
        algorithm: `mcts`, or `best_of_n`: independent rollouts, the baseline.
        simulations: Rollouts per tree.
        proposals: K0, proposals drawn in one request where a node is expanded; also the number of plain policy
            rollouts with which a tree starts.
        rollout_proposals: Proposals drawn in one request at each new node of a rollout. 1 draws the others when the
            node is expanded, if ever; `proposals` draws them all at once (fewer, larger requests).
        max_children, widening: A node may have ceil(widening * sqrt(N)) children, at least K0, at most `max_children`.
        saturation: Proposals in a row, beyond the first `proposals` of a node, that add nothing before it counts as
            exhausted: an action of probability p is then missed with probability (1 - p)^saturation at most.
        selection: `puct` or `uct`.
        c_puct, c_uct, fpu_reduction: Constants of the two rules; see `selection`.
        gumbel_root, gumbel_m: Gumbel top-m with sequential halving at the root.
        leaves_in_flight: L, simulations in flight per tree.
        max_steps: Actions after which an episode is cut; it then backs up 0, flagged.
        gamma: Discount per step.
        value: `reward` backs up the score, `success` backs up 0 or 1.
        temperature, max_tokens: Of proposals; None = the policy's own setting.
        greedy_first: The first rollout is the greedy one.
        critic_alpha: Weight of the search against the critic; None = n / (n + 2).
        repeated_states: `close` ends a simulation at a state that the tree has already, and closes the edge; `keep`
            goes on.
        deterministic_verifier: A judged terminal is closed after one visit.
        until: When a tree has enough, looked at once its first `proposals` rollouts are known: `spent` never, `success`
            at the first verified success, `contrast` at the first success and the first failure.
        budget_tokens, budget_prefilled, budget_tool_calls: Per tree; None = unlimited. A simulation is issued only if
            its worst case still fits.
        action_tokens: The most tokens one action can have, reserved for each action of a simulation; 0 for policies
            without tokens.

    Raises:
        ConfigError: A value is not allowed; all such values are listed.
    """

    algorithm: str = _KEYS.algorithm
    simulations: int = _KEYS.simulations
    proposals: int = _KEYS.proposals
    rollout_proposals: int = _KEYS.rollout_proposals
    max_children: int = _KEYS.max_children
    widening: float = _KEYS.widening
    saturation: int = _KEYS.saturation
    selection: str = _KEYS.selection
    c_puct: float = _KEYS.c_puct
    c_uct: float = _KEYS.c_uct
    fpu_reduction: float = _KEYS.fpu_reduction
    gumbel_root: bool = _KEYS.gumbel_root
    gumbel_m: int = _KEYS.gumbel_m
    leaves_in_flight: int = _KEYS.leaves_in_flight
    max_steps: int = DEFAULT_STEPS
    gamma: float = _KEYS.gamma
    value: str = _KEYS.value
    temperature: float | None = None
    max_tokens: int | None = None
    greedy_first: bool = _KEYS.greedy_first
    critic_alpha: float | None = _KEYS.critic_alpha
    repeated_states: str = _KEYS.repeated_states
    deterministic_verifier: bool = True
    until: str = "spent"
    budget_tokens: int | None = None
    budget_prefilled: int | None = None
    budget_tool_calls: int | None = None
    action_tokens: int = 0

    def __post_init__(self) -> None:
        faults = []
        for name, allowed in (
            ("algorithm", ("mcts", "best_of_n")), ("selection", ("puct", "uct")),
            ("value", ("reward", "success")), ("until", ("spent", "success", "contrast")),
            ("repeated_states", ("close", "keep")),
        ):  # fmt: skip
            if getattr(self, name) not in allowed:
                faults.append(f"search.{name}: got {getattr(self, name)!r}, allowed: {', '.join(allowed)}")
        for name in ("simulations", "proposals", "max_children", "saturation", "gumbel_m", "max_steps"):
            if getattr(self, name) < 1:
                faults.append(f"search.{name}: got {getattr(self, name)}, must be at least 1")
        if not 1 <= self.leaves_in_flight <= 64:
            faults.append(f"search.leaves_in_flight: got {self.leaves_in_flight}, must be between 1 and 64")
        if self.max_children < self.proposals:
            faults.append(f"search.max_children: got {self.max_children}, must be at least search.proposals")
        if not 1 <= self.rollout_proposals <= self.proposals:
            faults.append(
                f"search.rollout_proposals: got {self.rollout_proposals}, must be between 1 and search.proposals"
            )
        if not 0 < self.gamma <= 1:
            faults.append(f"search.gamma: got {self.gamma}, must be in (0, 1]")
        if faults:
            raise ConfigError(faults)

    def budget_faults(self, tasks: int) -> list[str]:
        """Return why no simulation of a task fits its share of the run's budget; empty where one fits.

        Args:
            tasks: Number of tasks among which the budget of the run was divided.
        """
        tokens, calls, faults = self.worst_tokens(1), self.max_steps, []
        for name, share, worst, why in (
            ("tokens", self.budget_tokens, tokens, f"{self.max_steps} steps of up to {self.action_tokens} tokens"),
            ("tool_calls", self.budget_tool_calls, calls, f"{self.max_steps} steps"),
        ):
            if share is not None and share < worst:
                faults.append(
                    f"search.budget.{name}: {share} for each of {tasks} tasks, but one simulation may take {worst} "
                    f"({why}); raise it, or lower tasks.n, search.max_steps or policy.max_tokens"
                )
        return faults

    def worst_tokens(self, simulations: int) -> int:
        """Return the most tokens that so many simulations can sample, proposals of an expansion included."""
        rollout = self.max_steps * self.rollout_proposals
        return simulations * self.action_tokens * (rollout + self.proposals - 1)
