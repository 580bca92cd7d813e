"""Figures of trees and of the rows that are mined from them, collected while a run makes them."""

from __future__ import annotations

import resource
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.envs.description import Census
from offline_agent.preferences.records import Refusal
from offline_agent.records import POLICY_CUTS
from offline_agent.report.closing import Reasons, count_cuts, of_servers
from offline_agent.runner.components import Parts
from offline_agent.runner.next_steps import environment_keys
from offline_agent.search.requests import RunCounts
from offline_agent.search.restore import RestoreCounts
from offline_agent.search.tree import SearchTree

Row = Mapping[str, Any]

FEW_ROLLOUTS = 8
"""Rollouts of a side below which a step pair rests on little (docs/pairs.md)."""

_REASONED = ("quarantine_reasons", "refusal_reasons")
_REJUDGED = {"verdicts": "verdicts", "judged": "rejudged", "broken": "rejudged_broken", "disagreed": "disagreed"}
_REASONS = 5  # commonest reasons of quarantine and of refusal that the summary has
_QUARANTINED = ("tree", "branch", "row")  # kinds that are no candidates


def peak_memory(who: int = resource.RUSAGE_SELF) -> int:
    """Return the largest resident memory so far of this process, or of its ended children, in bytes."""
    most = resource.getrusage(who).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


class TreeFigures(NamedTuple):
    """The figures of one tree.

    Attributes:
        totals: Counts that are added up.
        stopped: The reason why its search ended.
        reasons: The reasons of the tree or its branches in quarantine.
        rollouts: Of the policy's first roll-outs that were judged: whether greedy, and the success, 0 or 1.
        best: Whether a verified success is in it, 0 or 1, and the best score; None for a tree in quarantine.
        shortest: Actions of its shortest verified success; None without one.
    """

    totals: Mapping[str, int]
    stopped: str
    reasons: Sequence[str]
    rollouts: Sequence[tuple[bool, float]]
    best: tuple[float, float] | None
    shortest: int | None


def figures_of(tree: SearchTree) -> TreeFigures:
    """Return the figures of one tree."""
    totals = {
        "simulations": tree.simulations,
        "nodes": len(tree.nodes),
        "tool_calls": tree.counters["tool_calls"],
        "generated": tree.counters["generated"],
        "prompt_trie": tree.counters["prefilled"],
        "ends": 0,
        **dict.fromkeys(POLICY_CUTS, 0),
        "quarantined_trees": int(tree.quarantined is not None),
        "quarantined_branches": sum(edge.quarantined is not None for edge in tree.edges),
    }
    for end in tree.terminals():
        totals["ends"] += 1
        if end.cut in POLICY_CUTS:
            totals[end.cut] += 1
    rollouts = [] if tree.quarantined is not None else [
        (bool(rollout["greedy"]), float(bool(rollout["success"])))
        for rollout in tree.first_rollouts
        if rollout["success"] is not None or rollout["cut"] in POLICY_CUTS
    ]  # fmt: skip
    reasons = [str(edge.quarantined) for edge in tree.edges if edge.quarantined is not None]
    if tree.quarantined is not None:
        reasons.append(str(tree.quarantined))
    best, shortest = None, None
    if tree.quarantined is None:
        judged = [(n.verdict, n.depth) for n in tree.terminals() if n.verdict is not None and n.quarantined is None]
        score = max((verdict.score for verdict, _ in judged if verdict.score is not None), default=0.0)
        shortest = min((depth for verdict, depth in judged if verdict.success), default=None)
        best = float(shortest is not None), score
    return TreeFigures(totals, str(tree.stopped), reasons, rollouts, best, shortest)


class Figures:
    """Counts what a run did; every figure of the trees is taken from the trees, so a resumed run shows the same.

    Args:
        path: The run directory.
        tasks: Number of tasks.
        resumed: Whether the run went on from an earlier one.
    """

    def __init__(self, path: Path, tasks: int, resumed: bool) -> None:
        self.path = path
        self.tasks = tasks
        self.resumed = resumed
        self.seconds: dict[str, float] = {}
        self.rows: Counter[str] = Counter()
        self.pairs: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        self.stopped: Counter[str] = Counter()
        self.quarantine_reasons, self.refusal_reasons = Reasons(), Reasons()
        self.sums: Counter[str] = Counter()  # of what `mean` returns, and under `n NAME` how many
        self.session: dict[str, Any] = {}
        self._paired: set[str] = set()

    def searched(self, run: RunCounts, restored: RestoreCounts, census: Census) -> None:
        """Take the figures that this process measured while it searched."""
        loop = max(0.0, run.seconds - run.seconds_waiting)
        self.seconds |= {"search": run.seconds, "generation": run.generation_seconds, "tools": run.tool_seconds}
        self.seconds["bookkeeping"] = loop
        self.session = {
            "requests": run.requests,
            "generated_tokens": run.generated,
            "prefilled_tokens": run.prefilled,
            "reused_tokens": run.cached,
            "policy_errors": run.policy_errors,
            "full_contexts": run.full_contexts,
            "environment_faults": run.faults,
            "hung_calls": run.hung,
            "calls_executed": restored.executed,
            "calls_replayed": restored.replayed,
            "states_copied": restored.copies,
            "replay_mismatches": restored.mismatches,
            "fault_examples": run.fault_examples,
            "memory": peak_memory(),
            "environments_open": census.peak,
            "environments_limit": census.most,
        }

    def tree(self, tree: TreeFigures, mining: Mapping[str, int]) -> None:
        """Take the figures of one tree, and what mining it cost and left out."""
        self.totals.update(tree.totals)
        self.totals.update(mining)
        self.stopped[tree.stopped] += 1
        for reason in tree.reasons:
            self.quarantine_reasons.add(reason)
        for greedy, success in tree.rollouts:
            self._add("greedy" if greedy else "plain", success)
        if tree.best is not None:
            self._add("best", tree.best[0])
            self._add("best_score", tree.best[1])
        if tree.shortest is not None:
            self._add("shortest", tree.shortest)

    def _add(self, name: str, value: float) -> None:
        self.sums[name] += value  # type: ignore[assignment]  # a sum of floats
        self.sums[f"n {name}"] += 1

    def mean(self, name: str) -> float | None:
        """Return a mean over roll-outs (`plain`, `greedy`) or trees (`best`, `best_score`, `shortest`), or None."""
        count = self.sums[f"n {name}"]
        return self.sums[name] / count if count else None

    def count(self, table: str, rows: Iterable[Row]) -> Iterator[Row]:
        """Count rows on their way to a table."""
        for row in rows:
            self.rows[table] += 1
            yield row

    def count_pairs(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Count pairs by kind on their way to a table."""
        for row in self.count("preferences", rows):
            self.pairs[row["kind"]] += 1
            self.totals["few_rollouts"] += row["kind"] == "step" and _least_rollouts(row) < FEW_ROLLOUTS
            self._paired.add(row["tree_id"])
            yield row

    def refused(self, refusals: Iterable[Refusal]) -> None:
        """Count what was refused."""
        for refusal in refusals:
            self.refusals[refusal.kind] += refusal.candidates
            if refusal.kind not in _QUARANTINED[:2]:  # counted with the trees
                self.refusal_reasons.add(refusal.reason, refusal.candidates)
            self.totals["unmatched"] += refusal.reason.startswith("length matching")

    def unmatched(self, pairs: int, longer: bool) -> None:
        """Take how many pairs are kept though length matching would drop them, and whether better sides are longer."""
        self.totals["kept_unmatched"] += pairs
        self.totals["kept_unmatched_longer"] += longer

    def mined(self, of: str, quarantined: int) -> dict[str, Any]:
        """Return what was mined, refused and put in quarantine, as JSON.

        Args:
            of: `trees` or `logs`, which were mined.
            quarantined: How many of them are in quarantine.
        """
        return {
            "pairs": dict(sorted(self.pairs.items())),
            "pairs_total": self.rows["preferences"],
            "tasks_with_pairs": len(self._paired),
            "pairs_dropped_by_length_matching": self.totals["unmatched"],
            "kept_unmatched": self.totals["kept_unmatched"],
            "trajectories": self.rows["trajectories"],
            "filtered": self.rows["filtered"],
            "quarantined": {
                of: quarantined, "branches": self.totals["quarantined_branches"], "rows": self.refusals["row"],
            },
            "refused": {kind: count for kind, count in sorted(self.refusals.items()) if kind not in _QUARANTINED},
            **{name: {text: n for _, text, n in getattr(self, name).most_common(_REASONS)} for name in _REASONED},
        }  # fmt: skip

    def summary(self, parts: Parts, config: BuildPrefsConfig) -> dict[str, Any]:
        """Return everything as JSON."""
        return {
            "environment": parts.spec.name,
            "typed": {"env": config.env.name, "policy": config.policy.name},
            "environment_keys": environment_keys(config.resolved()),
            "model": config.policy.model,
            "policy": parts.policy.name,
            **({} if parts.spec.sandbox is None else {"sandbox": parts.spec.sandbox}),
            "split": config.tasks.split,
            "seed": config.seed,
            "resumed": self.resumed,
            "tasks": self.tasks,
            "offset": config.tasks.offset,
            **{name: self.totals[name] for name in (
                "simulations", "nodes", "tool_calls", "generated", "prompt_trie", "replays", "replayed_calls",
                "replays_left_out",
            )},
            "rejudged": {name: self.totals[key] for name, key in _REJUDGED.items()},
            "success": {
                "plain_greedy": self.mean("greedy"),
                "plain_sampled": self.mean("plain"),
                "plain_rollouts": self.sums["n plain"],
                "best_of_search": self.mean("best"),
                "best_score_of_search": self.mean("best_score"),
                "actions_of_shortest": self.mean("shortest"),
            },
            "cuts": count_cuts(
                self.totals["ends"], self.totals,
                config.search.max_steps, config.policy.max_tokens or parts.policy.max_tokens,
                ("search.max_steps", "policy.max_tokens"),
            ),
            "step_pairs_of_few_rollouts": self.totals["few_rollouts"],
            "kept_unmatched_longer": bool(self.totals["kept_unmatched_longer"]),
            **self.mined("trees", self.totals["quarantined_trees"]),
            "stopped": dict(sorted(self.stopped.items())),
            "seconds": {name: round(value, 2) for name, value in self.seconds.items()},
            "this_session": self.session,
            **of_servers({"policy": parts.policy}),
        }  # fmt: skip


def _least_rollouts(row: Row) -> float:
    """Return the rollouts of the side of a step pair that has fewer; ends with a verdict of their own need none."""
    sides = [row[f"visits_{side}"] for side in ("chosen", "rejected") if row[f"verdict_{side}"] is None]
    return min(sides, default=float("inf"))
