"""The rules of mining and balancing that the configurations of `build_prefs`, `import_logs` and `rejudge` ask for."""

from __future__ import annotations

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.config.import_logs import ImportLogsConfig
from offline_agent.config.rejudge import RejudgeConfig
from offline_agent.envs.base import EnvSpec
from offline_agent.preferences.dataset.balance import Balance
from offline_agent.preferences.dataset.filters import RejectionFilter
from offline_agent.preferences.mining import Miner
from offline_agent.preferences.pairs.goals import evaluation_tasks
from offline_agent.preferences.pairs.hindsight import Hindsight
from offline_agent.preferences.pairs.minimal import MinimalPairs, Rollout
from offline_agent.preferences.pairs.step import StepPairs
from offline_agent.preferences.pairs.trajectory import TrajectoryPairs

LogConfig = ImportLogsConfig | RejudgeConfig


def balance_of(config: BuildPrefsConfig | LogConfig) -> Balance:
    """Return the rules for the pairs of all trees together."""
    return Balance(config.pairs.per_task, config.pairs.per_depth, config.pairs.length_tolerance)


def asks_policy(config: BuildPrefsConfig) -> bool:
    """Return whether mining asks the policy."""
    return config.pairs.criticality in ("counterfactual", "both")


def miner_of(config: BuildPrefsConfig, spec: EnvSpec, rollout: Rollout | None) -> Miner:
    """Return the miner of a run's trees; `rollout` is needed where mining asks the policy."""
    pairs = config.pairs
    relabel = pairs.hindsight != "none" and "hindsight" in pairs.kinds
    kinds = [kind for kind in pairs.kinds if kind != "hindsight" or relabel]
    shorten = "minimal" in kinds or pairs.criticality != "none"
    strategy = "final" if pairs.hindsight == "none" else pairs.hindsight
    return Miner(
        spec,
        steps=StepPairs(
            pairs.min_visits, pairs.min_gap, pairs.confidence, pairs.per_node, value=config.search.value,
            decisive=pairs.decisive,
            exact_terminals=spec.deterministic_verifier, value_source=pairs.value_source,
            critic_alpha=config.search.critic_alpha,
        ),
        trajectory_pairs=TrajectoryPairs(
            pairs.max_extra_steps, certain=spec.deterministic_verifier, cut_failures=pairs.cut_failures
        ),
        hindsight=Hindsight(spec, evaluation_tasks(spec), strategy) if relabel else None,
        minimal=MinimalPairs() if shorten else MinimalPairs(per_tree=0),
        filtered=RejectionFilter(
            config.filtered.per_task, config.filtered.negatives, origins=config.filtered.origins
        ),
        kinds=kinds,
        deletion=pairs.criticality == "deletion",
        rollout=rollout,
        rollouts=pairs.counterfactual_rollouts,
        rejudge=pairs.rejudge,
        replay_budget=pairs.replay_budget,
        step_seconds=config.limits.step_seconds,
        reset_seconds=config.limits.reset_seconds,
        live_states=config.search.state_cache,
    )  # fmt: skip


def log_miner(config: LogConfig, certain: bool) -> Miner:
    """Return the miner of a run without an environment.

    Args:
        config: The command's.
        certain: Whether one verdict settles an end; False where the judge may say something else the next time.
    """
    pairs = config.pairs
    return Miner(
        None,
        steps=StepPairs(
            pairs.min_visits, pairs.min_gap, pairs.confidence, pairs.per_node, exact_terminals=certain,
            decisive=pairs.decisive,
        ),  # fmt: skip
        trajectory_pairs=TrajectoryPairs(pairs.max_extra_steps, certain=certain, cut_failures=pairs.cut_failures),
        filtered=RejectionFilter(config.filtered.per_task),
        kinds=pairs.kinds,
    )
