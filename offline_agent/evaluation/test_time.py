"""Search at test time: the best of n samples, by verifier, agreement or judge of turns, and the best branch of a tree.

Where the verifier chooses, it was asked about the very task that is scored: such a figure says what policy, search and
verifier reach together, not what the policy does alone. `spent` says so in words, with what it cost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from offline_agent.records import Trajectory, Verdict, cut_verdict
from offline_agent.rollouts.attempts import Attempt
from offline_agent.search.tree import Node, SearchTree

SEARCHES = ("best_of_n", "mcts")
CHOOSERS = ("verifier", "agreement")
EXTRA = "best_of_n_sample"
"""Mode of samples that best_of_n sees beyond the attempts that were asked for."""


JudgeOfTurns = Callable[[Trajectory], Sequence[float]]
"""Says what each turn of a trajectory is worth."""


def best_of_n(samples: Sequence[Attempt], judge: str | JudgeOfTurns) -> Attempt:
    """Return the one that is chosen among n independent samples of one task, with the cost of all of them.

    Args:
        samples: Attempts of one policy at one task, by number; at least one.
        judge: `verifier`: the highest score, then the first; the verifier is asked about every sample. `agreement`:
            among the samples that ended by themselves, the most common end (canonical last action and, where the
            environment has one, the fingerprint of its state), ties by the mean log-probability of a token, then the
            first; needs no verifier. Samples that were cut do not vote. A judge of turns: the highest value of the
            last turn, then the first; one without a turn comes last.
    """
    if not isinstance(judge, str):
        chosen = _rated(samples, judge)
    else:
        chosen = _accepted(samples) if judge == "verifier" else _agreed(samples)
    return replace(
        chosen,
        mode="best_of_n",
        number=0,
        generated=sum(sample.generated for sample in samples),
        prefilled=sum(sample.prefilled for sample in samples),
        tool_calls=sum(sample.tool_calls for sample in samples),
        simulations=len(samples),
    )


def _accepted(samples: Sequence[Attempt]) -> Attempt:
    return max(samples, key=lambda s: (s.success or False, -1.0 if s.reward is None else s.reward, -s.number))


def _rated(samples: Sequence[Attempt], judge: JudgeOfTurns) -> Attempt:
    def value(sample: Attempt) -> float:
        return -1.0 if (played := sample.trajectory()) is None else judge(played)[-1]

    return max(samples, key=lambda s: (value(s), -s.number))


def _agreed(samples: Sequence[Attempt]) -> Attempt:
    voters: dict[tuple[str, str | None], list[Attempt]] = defaultdict(list)
    for sample in samples:
        if sample.terminated and sample.steps:
            voters[sample.steps[-1].key, sample.fingerprint].append(sample)
    if not voters:  # nobody got to an end: a failure by steps before something that cannot be scored
        return max(samples, key=lambda s: (s.reward is not None, -s.number))
    ranked = [max(group, key=_belief) for group in voters.values()]
    sizes = [len(group) for group in voters.values()]
    return max(zip(sizes, ranked, strict=True), key=lambda entry: (entry[0], _belief(entry[1])))[1]


def _belief(sample: Attempt) -> tuple[float, int]:
    logps = [logp for step in sample.steps for logp in step.action.logps or ()]
    return (sum(logps) / len(logps) if logps else float("-inf")), -sample.number


def best_branch(tree: SearchTree, policy: str = "candidate") -> Attempt:
    """Return the best branch of a tree as the attempt: verified success, then score, then fewer steps, then the first.

    A branch that a limit of the policy's own cut is a failure and comes after every judged one. Without any end that
    counts, the attempt is unscored and says why.
    """
    cost: dict[str, Any] = {
        "generated": tree.counters["generated"],
        "prefilled": tree.counters["prefilled"],
        "tool_calls": tree.counters["tool_calls"],
        "simulations": tree.simulations,
    }
    ends = [] if tree.quarantined else [end for end in tree.terminals() if end.quarantined is None and _counts(end)]
    if not ends:
        reason = tree.quarantined or f"no branch came to an end that could be judged (stopped by {tree.stopped})"
        context = None if tree.quarantined else tree.root.context
        verdict = Verdict(None, None, "evaluation", error=f"search: {reason}")
        return Attempt(policy, "mcts", tree.task, 0, context, (), verdict, False, True, "fault", **cost)
    end = max(ends, key=_rank)
    judged = end.verdict if end.cut is None else cut_verdict(end.cut)
    assert judged is not None  # it counts
    return Attempt(
        policy, "mcts", tree.task, 0, end.context, tree.steps(end), judged, end.terminated, end.truncated, end.cut,
        None if end.verdict is None else end.verdict.score, end.fingerprint, **cost,
    )  # fmt: skip


def _counts(end: Node) -> bool:
    return end.truncated or (end.verdict is not None and end.verdict.score is not None)


def _rank(end: Node) -> tuple[bool, bool, float, int, int]:
    judged, verdict = not end.truncated, end.verdict
    score = verdict.score if judged and verdict is not None and verdict.score is not None else 0.0
    return judged and verdict is not None and bool(verdict.success), judged, score, -end.depth, -end.id


def spent(attempts: Sequence[Attempt], judge: str) -> dict[str, Any]:
    """Return the costs of search at test time, and a sentence that says who chose the best attempt.

    Args:
        attempts: Of one policy, with mode `best_of_n` or `mcts`.
        judge: `verifier`, `agreement` or the name of a judge of turns.
    """
    simulations = sum(attempt.simulations or 0 for attempt in attempts)
    generated = sum(attempt.generated for attempt in attempts)
    calls = sum(attempt.tool_calls for attempt in attempts)
    what = "simulations" if attempts and attempts[0].mode == "mcts" else "samples"
    asked = (
        "The verifier that scores the tasks was asked at test time which of them is best: this is what policy, search "
        "and verifier reach together, not what the policy does alone."
        if judge == "verifier"
        else "The most common outcome was chosen; the verifier was not asked at test time."
        if judge == "agreement"
        else f"{judge} chose by its value of the last turn; the verifier was not asked at test time."
    )
    words = f"{simulations:,} {what}, {generated:,} tokens sampled and {calls:,} tool calls for {len(attempts)} tasks."
    return {
        "judge": judge,
        "simulations": simulations,
        "generated_tokens": generated,
        "tool_calls": calls,
        "in_words": f"{asked} {words}",
    }
