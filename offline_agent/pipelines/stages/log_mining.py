"""Mining without an environment: the rules of `import_logs` and `rejudge`, which replay nothing."""

from __future__ import annotations

from offline_agent.config.import_logs import ImportLogsConfig
from offline_agent.config.rejudge import RejudgeConfig
from offline_agent.preferences.dataset.balance import Balance
from offline_agent.preferences.dataset.filters import RejectionFilter
from offline_agent.preferences.mining import Miner
from offline_agent.preferences.pairs.step import StepPairs
from offline_agent.preferences.pairs.trajectory import TrajectoryPairs

Config = ImportLogsConfig | RejudgeConfig


def log_miner(config: Config, certain: bool) -> Miner:
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


def log_balance(config: Config) -> Balance:
    """Return the rules for the pairs of all trees together."""
    return Balance(config.pairs.per_task, config.pairs.per_depth, config.pairs.length_tolerance)
