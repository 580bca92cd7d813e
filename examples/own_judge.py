"""A judge of one's own: the environment's verdict, and a success only where nothing was looked up twice.

python -m offline_agent.pipelines.build_prefs env=shop policy=noisy judge=examples.own_judge:Tidy judge.repeats=1

A judge is called with a trajectory and returns a `Verdict`, a score in [0, 1], a bool, or None where it cannot judge.
Its constructor's arguments are keys (`judge.repeats=1`). docs/verifiers.md has the contract.
"""

from collections import Counter

from offline_agent.records import Verdict


class Tidy:
    version = "1"  # stands in every verdict
    deterministic = True  # the same trajectory always gets the same verdict

    def __init__(self, repeats: int = 0):
        self.repeats = repeats  # calls that may be repeated

    def __call__(self, trajectory):
        own = trajectory.verdict
        if own is None or own.score is None:
            return None
        calls = Counter(str(step.action.call) for step in trajectory.steps if step.action.call is not None)
        repeated = {call: count for call, count in calls.items() if count > 1}
        tidy = sum(repeated.values()) - len(repeated) <= self.repeats
        score = own.score if tidy else min(own.score, 0.5)
        return Verdict(score, bool(own.success and tidy), "tidy", self.version, {"repeated": repeated})
