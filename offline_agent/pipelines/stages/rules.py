"""The rules of mining and balancing that the configurations of `build_prefs`, `import_logs` and `rejudge` ask for."""

from __future__ import annotations

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.config.import_logs import ImportLogsConfig
from offline_agent.config.rejudge import RejudgeConfig
from offline_agent.envs.base import EnvSpec
from offline_agent.preferences.dataset.balance import Balance
from offline_agent.preferences.dataset.filters import RejectionFilter
from offline_agent.preferences.mining import Miner
from offline_agent.preferences.pairs.step import StepPairs
from offline_agent.preferences.pairs.trajectory import TrajectoryPairs

LogConfig = ImportLogsConfig | RejudgeConfig


def balance_of(config: BuildPrefsConfig | LogConfig) -> Balance:
    """Return the rules for the pairs of all trees together."""
    return Balance(config.pairs.per_task, config.pairs.per_depth, config.pairs.length_tolerance)


def miner_of(config: BuildPrefsConfig, spec: EnvSpec) -> Miner:
    """Return the miner of a run's trees."""
    pairs = config.pairs
    return Miner(
        spec,
        steps=StepPairs(
            pairs.min_visits, pairs.min_gap, pairs.confidence, pairs.per_node, value=config.search.value,
            decisive=pairs.decisive,
            exact_terminals=spec.deterministic_verifier,
        ),
        trajectory_pairs=TrajectoryPairs(
            pairs.max_extra_steps, certain=spec.deterministic_verifier, cut_failures=pairs.cut_failures
        ),
        filtered=RejectionFilter(
            config.filtered.per_task, config.filtered.negatives, origins=config.filtered.origins
        ),
        kinds=pairs.kinds,
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
