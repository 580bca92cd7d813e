"""Figures of rounds, exported tables and the closing table of `refine_grpo`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.records import POLICY_CUTS
from offline_agent.report.closing import change_rows, closing, cut_advice, cut_rows, figure_rows, table
from offline_agent.runner.next_steps import evaluation
from offline_agent.training.collapse import History, WatchSection

if TYPE_CHECKING:
    from rich.console import RenderableType

    from offline_agent.config.refine_grpo import RefineGrpoConfig
    from offline_agent.policies.weights import WeightUpdate
    from offline_agent.preferences.records import Refusal
    from offline_agent.records import Trajectory
    from offline_agent.rendering.renderer import Renderer
    from offline_agent.rollouts.attempts import Attempt
    from offline_agent.runner.pipeline import Session
    from offline_agent.training.online.groups import Round
    from offline_agent.training.online.samples import TrainingSample


def round_figures(made: Round, env_steps: int, seconds: float) -> dict[str, Any]:
    """Return the figures of a round for the records of its updates; unknown ones are left out.

    Args:
        made: The round.
        env_steps: Environment steps of all rounds up to its end.
        seconds: Seconds of playing it.
    """
    attempts = list(made.attempts)
    acted = [attempt for attempt in attempts if attempt.steps]
    # faults and time-outs say nothing of how far the policy would have gone
    went = [attempt for attempt in attempts if attempt.cut_by not in ("fault", "time")]
    rewards = [reward for group in made.groups for reward in group.scored]
    successes = [success for group in made.groups for success in group.successes]
    spreads = [spread for group in made.groups if (spread := group.spread) is not None]
    calls = sum(attempt.calls for attempt in attempts)
    tools = Counter(s.action.call.name for attempt in attempts for s in attempt.steps if s.action.call is not None)
    out: dict[str, Any] = {
        "groups": len(made.groups),
        "groups_kept": len(made.kept),
        "temperature": made.temperature,
        "env_steps": env_steps,
        "rollout_seconds": seconds,
        "unscored": sum(reward is None for _, reward in made.rewarded) / len(attempts),
    }
    if went:
        out["truncated"] = sum(attempt.truncated for attempt in went) / len(went)
    if rewards:
        mean = sum(rewards) / len(rewards)
        out |= {"reward_mean": mean, "reward_std": (sum((r - mean) ** 2 for r in rewards) / len(rewards)) ** 0.5}
    if successes:
        out["success_mean"] = sum(successes) / len(successes)
    if spreads:
        out |= {"zero_spread": sum(not s for s in spreads) / len(spreads), "group_spread": sum(spreads) / len(spreads)}
    if acted:
        turns = sum(len(attempt.steps) for attempt in acted)
        done = sum(step.action.call is not None and step.fault is None for one in acted for step in one.steps)
        out |= {"steps": turns / len(acted), "accepted_calls": done / turns}
        said = (len(step.action.token_ids or ()) for attempt in acted for step in attempt.steps)
        out["length"] = sum(said) / len(acted)
    if calls:
        out["invalid_calls"] = sum(attempt.invalid_calls for attempt in attempts) / calls
        out["repeated_calls"] = sum(attempt.repeated_calls for attempt in attempts) / calls
    if tools:
        out["tools"] = {name: count / sum(tools.values()) for name, count in sorted(tools.items())}
    return out


def sampler_figures(prefilled: int, cached: int, handed: WeightUpdate | None) -> dict[str, float]:
    """Return the figures of a round's sampler for the records of its updates; unknown ones are left out.

    Args:
        prefilled, cached: Prompt tokens computed, and prompt tokens found in the prefix cache.
        handed: The weight update of the sampler in the round; see `weights.WeightUpdate`.
    """
    out = {}
    if prefilled + cached:
        out["prefix_cached"] = cached / (prefilled + cached)
    if handed is not None:
        out |= {"handover_seconds": handed.seconds, "handover_waited": handed.waited}
        out |= {} if handed.size is None else {"handover_bytes": handed.size}
        out |= {} if handed.gap is None else {"handover_gap": handed.gap}
        out |= {} if handed.shift is None else {"handover_shift": handed.shift}
    return out


def staleness(number: int, samples: Iterable[TrainingSample]) -> dict[str, float]:
    """Return how many versions of the weights a round's agent tokens are behind round `number`: mean and most."""
    tokens = Counter[int]()
    for sample in samples:
        for version, count in zip(sample.versions, sample.turns, strict=True):
            tokens[number - version] += count
    if not tokens:
        return {}
    mean = sum(behind * count for behind, count in tokens.items()) / tokens.total()
    return {"staleness": mean, "staleness_max": max(tokens)}


def export(
    renderer: Renderer, session: Session[RefineGrpoConfig], attempts: Iterable[Attempt], restarts: Collection[str] = ()
) -> dict[str, Any]:
    """Write all attempts to `trajectories/` and the best successes to `filtered/`; return the counts.

    Successes beyond `filtered.per_task` are not quarantined: they are in `trajectories/`.

    Args:
        renderer: Renders the rows.
        session: The run.
        attempts: All logged attempts, in the order of the tables.
        restarts: See `RejectionFilter`.
    """
    from offline_agent.preferences.dataset.export import trajectory_rows
    from offline_agent.preferences.dataset.filters import RejectionFilter
    from offline_agent.preferences.settings import FilteredSection

    refusals: list[Refusal] = []
    counts = {"attempts": 0, "successes": 0, "unscored": 0, "filtered": 0, **dict.fromkeys(POLICY_CUTS, 0)}
    best = RejectionFilter(FilteredSection(per_task=session.config.filtered.per_task), restarts)
    chosen: dict[str, list[Trajectory]] = {}

    def counted() -> Iterator[Attempt]:
        for attempt in attempts:
            counts["attempts"] += 1
            counts["successes"] += attempt.success is True
            counts["unscored"] += attempt.reward is None
            if attempt.cut_by in POLICY_CUTS:
                counts[attempt.cut_by] += 1
            if attempt.success is True and (trajectory := attempt.trajectory()) is not None:
                task = attempt.task.task_id
                chosen[task], _ = best.select([*chosen.get(task, ()), trajectory], task)
            yield attempt

    def rows(trajectories: Iterable[Trajectory]) -> Iterator[dict[str, Any]]:
        return (row for trajectory in trajectories for row in trajectory_rows([trajectory], renderer, refusals))

    def kept() -> Iterator[dict[str, Any]]:
        for row in rows(trajectory for task in sorted(chosen) for trajectory in chosen[task]):
            counts["filtered"] += 1
            yield row

    known = (trajectory for attempt in counted() if (trajectory := attempt.trajectory()) is not None)
    session.run.write_rows("trajectories", rows(known))
    session.run.write_rows("filtered", kept())
    for refusal in refusals:
        session.run.quarantine(refusal.kind, refusal.name, refusal.reason, **dict(refusal.facts))
    return counts


def show(summary: Mapping[str, Any], path: Path) -> RenderableType:
    """Return the closing table, and what to do next on a line that can be copied."""
    after = evaluation(path / "model", summary["environment_keys"])
    told = table(summary["pipeline"], _rows(summary))
    return closing(*cut_advice(summary["cuts"]), told, after)


_FIGURES = (
    ("episodes played", "rollouts.attempts", "{rollouts[env_steps]:,} steps of {environment}"),
    ("unscored", "rollouts.unscored", "in no mean and no loss"),
    ("updates", "training.updates", "in {training[seconds]:.1f} s; objective {objective[name]}"),
    ("agent tokens", "training.agent_tokens", ""),
    ("tokens computed", "training.tokens", "for {training[raw_tokens]:,} of the rows"),
    ("weights trained", "model.trained", "of {model[parameters]:,}; {model[path]}"),
)
_CHANGES = (
    ("success in training", "success_mean", ".0%"),
    ("reward", "reward_mean", ".3f"),
    ("entropy, nats a token", "entropy", ".3f"),
    ("turns that are accepted calls", "accepted_calls", ".0%"),
    ("nats a token from the teacher", "teacher_kl", ".3f"),
    ("groups without spread", "zero_spread", ".0%"),
    ("prompt tokens reused", "prefix_cached", ".0%"),
)


def _rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    yield from figure_rows(summary, _FIGURES)
    yield from cut_rows(summary["cuts"])
    yield from change_rows(summary["training"], _CHANGES, "rounds")
    for rule, update, text in summary["findings"]:
        yield f"watch: {rule}", f"update {update}", text
    if summary["findings"]:
        yield from ((f"check: {name}", "", line) for name, line in summary["checklist"])
    yield from (("note", "", warning) for warning in summary["warnings"])


_LINES = {
    "reward": "mean {reward_mean:.3g}, success {success_mean:.0%}, unscored {unscored:.0%} - "
              "do most trajectories get 0? is the rule wrong, or is it being gamed?",
    "length": "agent tokens {length:.3g}, steps {steps:.3g}, truncated {truncated:.0%} - "
              "are most cut off? then the policy cannot finish",
    "mask": "share of all tokens that is trained on {trained_share:.3g} - "
            "does it leave out prompt, observations and padding? it must be between 0 and 1, steady",
    "KL": "KL {kl:.3g}, entropy {entropy:.3g}, clipped low {clip_low_fraction:.1%}, high {clip_high_fraction:.1%}, "
          "gradient norm {gradient:.3g}, mismatch {mismatch:.3g} - "
          "KL blows up: raise objective.kl; entropy collapses: raise objective.clip_high or rollouts.temperature",
    "group spread": "within a group {group_spread:.3g}, groups without any {zero_spread:.0%} - "
                    "are many groups all 0 or all 1? set objective.dynamic=true, or choose other tasks",
    "tool histogram": "most used {tool_top:.0%}, invalid {invalid_calls:.0%}, repeated {repeated_calls:.0%} - "
                      "one tool for everything? choose some tools at random; let repeats cost",
    "sample efficiency": "success {success_mean:.0%}, over environment steps {env_steps:.0f}, "
                         "spread of all rewards {reward_std:.3g} - "
                         "do roll-outs of one task differ too much? then the offline checkpoint is too weak",
}  # fmt: skip
"""Figures and question of each line."""


def checklist(records: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return seven lines, in the order in which to look: reward first, sample efficiency last.

    Args:
        records: Of the updates so far, first to last.

    Returns:
        Name and line of each: figures at the start -> now (`not measured` where there are none), then what to ask.
    """
    history = History(WatchSection().window)
    for record in records:
        history.add(record)
    told = lambda figure: history.change(figure[1], figure[2])  # noqa: E731
    return [(name, re.sub(r"\{(\w+):(.+?)\}", told, line)) for name, line in _LINES.items()]
