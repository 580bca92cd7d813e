"""Choice among samples and branches, its cost, and continuation of a stopped search."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.pool import EnvPool
from offline_agent.evaluation.test_time import best_branch, best_of_n, spent
from offline_agent.records import Action, Context, Step, Task, Trajectory, Verdict
from offline_agent.rollouts.attempts import Attempt, to_record
from offline_agent.search.restore import Restorer
from offline_agent.search.scheduler import Scheduler
from offline_agent.search.settings import SearchSettings
from offline_agent.search.tree import SearchTree
from offline_agent.search.tree_search import TreeSearch
from tests.helpers.search import Guess, Paths, tasks

TASK = Task("t", "validation", {})
UNSCORED = Verdict(None, None, "v", error="nobody knows")


def sample(
    number: int, last: str, score: float | None, logp: float = -1.0, cut_by: str | None = None, state: str | None = None
) -> Attempt:
    action = Action(last, last, token_ids=(1, 2), logps=(logp, logp))
    context = Context(TASK, "", (), "go").child(action, None)
    verdict = UNSCORED if score is None else Verdict(score, score == 1, "v")
    return Attempt(
        "candidate", "sampled", TASK, number, context, (Step(action, last, None),), verdict, cut_by is None,
        cut_by is not None, cut_by, score, state, generated=10, prefilled=100, tool_calls=3,
    )  # fmt: skip


def test_the_verifier_takes_any_success_then_the_best_score_then_the_first() -> None:
    some = [sample(0, "a", 0.5), sample(1, "b", None), sample(2, "c", 1.0), sample(3, "d", 1.0)]
    best = best_of_n(some, "verifier")
    assert (best.mode, best.number, best.success, best.steps[-1].key) == ("best_of_n", 0, True, "c")
    assert (best.generated, best.prefilled, best.tool_calls, best.simulations) == (40, 400, 12, 4)
    assert best_of_n([sample(0, "a", 0.2), sample(1, "b", None), sample(2, "c", 0.5)], "verifier").reward == 0.5
    assert best_of_n([sample(0, "a", None), sample(1, "b", 0.0)], "verifier").success is False
    assert best_of_n([sample(0, "a", None), sample(1, "b", None)], "verifier").success is None


def test_agreement_takes_the_most_common_end_whatever_its_score() -> None:
    some = [sample(0, "a", 1.0), sample(1, "b", 0.0), sample(2, "b", 0.0, -0.5), sample(3, "c", 1.0)]
    best = best_of_n(some, "agreement")
    assert best.success is False and best.steps[-1].key == "b" and best.steps[-1].action.logps == (-0.5, -0.5)
    flipped = [replace(s, verdict=Verdict(1 - s.reward, s.reward == 0, "v")) for s in some]  # type: ignore[operator]
    assert best_of_n(flipped, "agreement").steps == best.steps  # the verifier has no say


def test_agreement_tells_states_apart_and_breaks_ties_by_likelihood_then_order() -> None:
    some = [sample(0, "a", 0.0, state="x"), sample(1, "a", 1.0, -0.2, state="y"), sample(2, "b", 0.0, -0.9)]
    assert best_of_n(some, "agreement").success is True
    assert best_of_n([sample(0, "a", 0.0), sample(1, "b", 1.0)], "agreement").reward == 0.0
    silent = [replace(s, steps=(replace(s.steps[0], action=Action(s.steps[0].key)),)) for s in some]
    assert best_of_n(silent, "agreement").fingerprint == "x"


def test_samples_that_were_cut_do_not_vote() -> None:
    cut = [sample(i, "loop", 0.0, cut_by="max_steps") for i in range(3)]
    assert best_of_n([*cut, sample(3, "a", 1.0)], "agreement").success is True
    only = best_of_n([sample(0, "x", None, cut_by="fault"), *cut[1:]], "agreement")
    assert (only.cut_by, only.success) == ("max_steps", False)
    assert best_of_n([sample(0, "x", None, cut_by="fault")], "agreement").success is None


def test_a_judge_of_turns_chooses_by_the_last_turn_and_the_verifier_has_no_say() -> None:
    def judge(trajectory: Trajectory) -> list[float]:
        return [{"a": 0.2, "b": 0.7, "c": 0.7}[trajectory.steps[-1].key]]

    nothing = replace(sample(3, "a", 1.0), steps=())
    best = best_of_n([nothing, sample(0, "a", 1.0), sample(1, "b", 0.0), sample(2, "c", 1.0)], judge)
    assert (best.steps[-1].key, best.success, best.simulations) == ("b", False, 4)
    assert "runs/steps chose" in spent([best], "runs/steps")["in_words"]


def settings(**changes: Any) -> SearchSettings:
    return SearchSettings(**{"simulations": 24, "temperature": 0.7, "max_steps": 5, **changes})


def search(
    spec: EnvSpec, n: int = 4, workers: int = 0, how: SearchSettings | None = None, log: Any = None, logged: Any = None
) -> dict[str, Attempt]:
    pool, policy = EnvPool(workers, 5.0 if workers else None), Guess(skill=0.4)
    try:
        new = (TreeSearch(task, Restorer(spec, task), how or settings(), log=log) for task in tasks(spec, n))
        begun = ((one, (logged or {}).get(one.tree_id, ())) for one in new)
        trees = [one.tree for one in Scheduler(policy.engine(), pool).run(begun)]
        return {tree.task.task_id: best_branch(tree) for tree in trees if tree is not None}
    finally:
        pool.close()


def test_the_best_verified_branch_is_the_attempt() -> None:
    found = search(EnvSpec(Paths))
    assert len(found) == 4
    for attempt in found.values():
        assert (attempt.mode, attempt.success, attempt.cut_by, len(attempt.steps)) == ("mcts", True, None, 3)
        assert attempt.fingerprint == attempt.task.args["code"]  # it really went there
        assert attempt.simulations and attempt.generated > 9 and attempt.tool_calls > 3
        trajectory = attempt.trajectory()
        assert trajectory is not None and trajectory.origin == "search"
    words = spent(list(found.values()), "verifier")
    assert words["simulations"] == sum(attempt.simulations or 0 for attempt in found.values())
    assert "The verifier" in words["in_words"] and "simulations" in words["in_words"]
    assert f"{words['tool_calls']:,} tool calls" in words["in_words"]
    assert "not asked" in spent([], "agreement")["in_words"]


def test_branches_that_ran_out_of_steps_are_failures() -> None:
    for attempt in search(EnvSpec(Paths), how=settings(max_steps=2)).values():
        assert (attempt.success, attempt.reward, attempt.cut_by, attempt.truncated) == (False, 0.0, "max_steps", True)


def test_a_tree_without_an_end_that_counts_is_unscored_and_says_why() -> None:
    class Broken(Paths):
        def reset(self, code: str) -> str:
            raise OSError("no world")

    class Unjudged(Paths):
        def get_reward(self) -> Any:
            return None

    for cls, words in ((Broken, "no world"), (Unjudged, "could be judged")):
        for attempt in search(EnvSpec(cls), n=2).values():
            assert (attempt.success, attempt.cut_by) == (None, "fault") and words in str(attempt.verdict.error)
            assert attempt.trajectory() is None


def test_a_stopped_search_goes_on_to_the_same_attempts() -> None:
    log: list[dict[str, Any]] = []
    whole = search(EnvSpec(Paths), log=lambda record: log.append(json.loads(json.dumps(record))))
    for share in (0.3, 0.8):
        logged: dict[str, list[dict[str, Any]]] = {}
        for record in log[: int(share * len(log))]:
            logged.setdefault(record["tree"], []).append(record)
        Paths.calls.clear()
        again = search(EnvSpec(Paths), workers=2, logged=logged)
        assert {t: to_record(a, None) for t, a in again.items()} == {t: to_record(a, None) for t, a in whole.items()}


def test_among_equal_branches_the_shorter_then_the_first() -> None:
    tree = SearchTree(Context(TASK, "", (), "go"))

    def grow(node: Any, key: str, score: float | None, truncated: bool = False) -> Any:
        edge, _ = tree.add_proposal(node, Action(key), key)
        child = tree.add_child(edge, node.context.child(edge.actions[0], None))
        if truncated:
            child.cut = "max_steps"
        elif score is not None:
            child.terminated, child.verdict = True, Verdict(score, score == 1, "v")
        return child

    middle = grow(tree.root, "on", None)
    grow(middle, "far", 1.0)
    grow(tree.root, "half", 0.5)
    assert [s.key for s in best_branch(tree).steps] == ["on", "far"]
    grow(tree.root, "cut", None, truncated=True)
    near = grow(tree.root, "near", 1.0)
    grow(tree.root, "later", 1.0)
    assert [s.key for s in best_branch(tree).steps] == ["near"]
    near.edge.quarantined = "noise"
    assert [s.key for s in best_branch(tree).steps] == ["later"]
    tree.quarantined = "noise"
    assert best_branch(tree).success is None


@pytest.mark.parametrize("judge", ["verifier", "agreement"])
def test_one_sample_is_chosen(judge: str) -> None:
    assert best_of_n([sample(0, "a", 0.3)], judge).reward == 0.3
