"""Faults of environments, verifiers and policies: the branch is quarantined, the run goes on, nothing is scored 0."""

from __future__ import annotations

import dataclasses
import json
import random
import re
import threading
import time
from typing import Any

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.pool import EnvPool
from offline_agent.errors import ContextFull, EnvironmentFault, JudgeError, PolicyError
from offline_agent.records import Action, ToolCall
from offline_agent.search.restore import RestoreCounts, Restorer
from offline_agent.search.scheduler import Scheduler
from offline_agent.search.serialization import tree_from_json, tree_to_json
from offline_agent.search.settings import SearchSettings
from tests.helpers.search import Guess, Paths, search, tasks
from tests.helpers.thread_engine import ThreadEngine

SETTINGS = SearchSettings(simulations=32)


class Breaks(Paths):
    """Raises behind one door."""

    def door(self, number: int) -> str:
        """Go through a door.

        Args:
            number: Which door.
        """
        if number == 2 and self.path:
            raise RuntimeError("the floor gave way")
        return super().door(number)


class Hangs(Paths):
    """Sleeps behind one door."""

    def door(self, number: int) -> str:
        """Go through a door.

        Args:
            number: Which door.
        """
        if number == 1 and not self.path:
            time.sleep(3)
        return super().door(number)


class Forgets(Paths):
    """Answers differently on every call; must be replayed."""

    replay_only = True
    noise = random.Random(1)

    def door(self, number: int) -> str:
        """Go through a door.

        Args:
            number: Which door.
        """
        return super().door(number) + (f" {self.noise.random()}" if len(self.path) == 1 else "")


class Unjudged(Paths):
    """Cannot judge paths through door 3."""

    def get_reward(self) -> float:
        """Raise sometimes."""
        if "3" in self.path:
            raise KeyError("judge's notes")
        return super().get_reward()


class NeverOpens(Paths):
    """Fails to start."""

    def reset(self, code: str) -> str:
        """Raise."""
        raise OSError("no such world")


class Shares(Paths):
    """Deep copies share their path."""

    def __deepcopy__(self, memo: Any) -> Shares:
        return self


def scores_of(run: Any) -> list[float | None]:
    return [n.verdict.score if n.verdict else None for s in run.searches.values() for n in s.tree.terminals()]


def test_a_raising_tool_quarantines_its_branch_alone() -> None:
    run = search(EnvSpec(Breaks), Guess(), SETTINGS, tasks(EnvSpec(Breaks), 4))
    edges = [e for s in run.searches.values() for e in s.tree.edges]
    broken = [e for e in edges if e.quarantined]
    assert broken and all("the floor gave way" in (e.quarantined or "") for e in broken)
    assert all(e.child is None and e.visits == 0 and e.closed for e in broken)
    assert all(s.tree.simulations > 20 or s.tree.stopped == "closed" for s in run.searches.values())
    assert run.scheduler and run.scheduler.counts.faults >= len(broken)


def test_a_hanging_tool_is_cut_by_the_time_limit() -> None:
    spec = EnvSpec(Hangs)
    run = search(spec, Guess(), SearchSettings(simulations=12), tasks(spec, 2), workers=2, time_limit=0.3)
    broken = [e for s in run.searches.values() for e in s.tree.edges if e.quarantined]
    assert broken and all("no answer within 0.3 s" in (e.quarantined or "") for e in broken)
    assert all(s.tree.simulations == 12 or s.tree.stopped == "closed" for s in run.searches.values())


def test_an_environment_that_always_hangs_stops_the_run() -> None:
    pool = EnvPool(2, 0.01, most_hung=3)
    scheduler = Scheduler(Guess().engine(), pool)
    for _ in range(8):
        pool.submit(lambda: time.sleep(1), lambda result: None)
    with pytest.raises(EnvironmentFault, match="not fit"):
        for _ in range(400):
            time.sleep(0.01)
            pool.reap()
    assert scheduler.counts.trees == 0


def test_a_long_run_may_meet_as_many_hanging_calls_as_a_short_one_may_not() -> None:
    pool, answered = EnvPool(2, 0.02, most_hung=1), list[object]()
    for place in range(900):
        pool.submit(lambda place=place: time.sleep(0.3 if place % 300 == 0 else 0), answered.append)  # type: ignore[misc]
    while len(answered) < 900:
        time.sleep(0.005)
        pool.reap()
    assert pool.hung == 3 and sum(isinstance(one, EnvironmentFault) for one in answered) == 3


def test_another_answer_on_replay_quarantines_the_subtree() -> None:
    spec = EnvSpec(Forgets)
    run = search(spec, Guess(), SETTINGS, tasks(spec, 3))
    assert run.counts.mismatches > 0
    for one in run.searches.values():
        tree = one.tree
        assert tree is not None
        noisy = [e for e in tree.edges if e.quarantined]
        assert noisy and all("not deterministic" in (e.quarantined or "") for e in noisy)
        below = [n for n in tree.nodes if n.quarantined]
        assert below


def test_a_raising_verifier_gives_no_score() -> None:
    spec = EnvSpec(Unjudged)
    run = search(spec, Guess(), SETTINGS, tasks(spec, 3))
    assert None in scores_of(run)
    for one in run.searches.values():
        assert one.tree is not None
        for node in one.tree.terminals():
            if node.verdict and node.verdict.score is None:
                assert node.edge and node.edge.quarantined and node.edge.visits == 0
                assert "judge's notes" in (node.verdict.error or "")


def test_an_environment_that_does_not_open_gives_an_empty_tree_with_the_reason() -> None:
    spec = EnvSpec(NeverOpens)
    run = search(spec, Guess(), SETTINGS, tasks(spec, 2))
    for one in run.searches.values():
        assert one.tree is not None and "no such world" in (one.tree.quarantined or "")
        assert one.tree.stopped == "quarantined" and len(one.tree.nodes) == 1


class Clumsy(Guess):
    """Emits faulty turns of every kind besides good ones."""

    faults = (
        Action("{", fault="invalid_json", detail="the call is no JSON"),
        Action("", fault="empty", detail="the turn is empty"),
        Action("on and on", fault="no_end"),
        Action("x", call=ToolCall("dor", {"number": 1})),
        Action("y", call=ToolCall("door", {"number": "many"})),
        Action("z", call=ToolCall("door", {"number": 11})),
    )

    def act(self, context: Any, seed: int, temperature: float | None) -> Action:
        """Return a faulty action every other time."""
        rng = random.Random(seed ^ 77)
        return rng.choice(self.faults) if rng.random() < 0.5 else super().act(context, seed, temperature)


def test_faulty_turns_are_answered_and_never_reach_the_environment() -> None:
    spec = EnvSpec(Paths)
    run = search(spec, Clumsy(), SearchSettings(simulations=48, max_steps=6), tasks(spec, 4))
    faults = {e.fault for s in run.searches.values() for e in s.tree.edges if e.fault}  # type: ignore[union-attr]
    assert faults == {"invalid_json", "empty", "no_end", "unknown_tool", "bad_arguments", "tool_error"}
    for one in run.searches.values():
        assert one.tree is not None
        for edge in one.tree.edges:
            if edge.fault == "no_end":
                assert edge.closed and edge.visits == edge.truncated and edge.value_sum == 0
                assert edge.child is None or (edge.child.cut, edge.child.state) == ("tokens", None)
            elif edge.fault:
                assert edge.child is not None and "rror" in (edge.child.context.observation or "")


class Rambles(Guess):
    """Does not end one turn in three; cannot take histories of more than `room` turns."""

    def __init__(self, room: int = 9, **more: Any) -> None:
        super().__init__(**more)
        self.room = room

    def propose(self, requests: Any) -> list[Any]:
        """Refuse what is too long."""
        full = ContextFull("the history has 900 ids")
        return [full if r.context.depth >= self.room else super(Rambles, self).propose((r,))[0] for r in requests]

    def act(self, context: Any, seed: int, temperature: float | None) -> Action:
        """Return an action that may not end."""
        action = super().act(context, seed, temperature)
        return dataclasses.replace(action, call=None, fault="no_end") if seed % 3 == 0 else action


@pytest.mark.parametrize("room", [0, 2, 9])
@pytest.mark.parametrize("algorithm", ["mcts", "best_of_n"])
def test_what_the_policy_causes_is_worth_0_and_told_by_its_kind(algorithm: Any, room: int) -> None:
    spec = EnvSpec(Paths)
    settings = SETTINGS.model_copy(update={"algorithm": algorithm, "gamma": 0.9})
    run = search(spec, Rambles(room), settings, tasks(spec, 3))
    counts, cuts = run.scheduler.counts, set()  # type: ignore[union-attr]
    assert counts.policy_errors == 0 == counts.faults and (room == 9 or counts.full_contexts > 0)
    for one in run.searches.values():
        tree = one.tree
        assert tree is not None and tree.stopped in ("simulations", "closed") and tree.root.value is not None
        assert tree.root.visits == tree.simulations
        for node in tree.nodes:
            if node.cut is not None:
                cuts.add(node.cut)
                assert node.edge is None or node.edge.closed
                assert node.visits and node.value_sum == 0 and node.verdict is None
                endless = node.edge is not None and node.edge.fault == "no_end"
                assert node.cut == ("tokens" if endless else "context") and (endless or node.depth == room)
        for edge in tree.edges:
            assert edge.visits == edge.verified + edge.truncated
            assert edge.child is None or edge.visits == edge.child.visits
        ran = [edge for edge in tree.edges if edge.child is not None and edge.fault != "no_end"]
        assert tree.counters["tool_calls"] == len(ran)
        assert {first["cut"] for first in tree.first_rollouts} <= {None, "tokens", "context"}
    assert cuts == ({"tokens"} if room == 9 else {"context"} if room == 0 else {"tokens", "context"})


def test_a_search_that_the_policy_cut_resumes_to_the_same_bytes_for_any_number_of_workers() -> None:
    spec, some = EnvSpec(Paths), tasks(EnvSpec(Paths), 2)
    settings = SearchSettings(simulations=24)
    whole = search(spec, Rambles(2), settings, some)
    assert search(spec, Rambles(2, jitter=0.002), settings, some, workers=3).trees == whole.trees
    for cut in range(0, 24, 3):
        records = {task_id: log[:cut] for task_id, log in whole.logs.items()}
        assert search(spec, Rambles(2), settings, some, records=records).trees == whole.trees, cut
        assert search(spec, Rambles(2, jitter=0.002), settings, some, workers=2, records=records).trees == whole.trees
    for text in whole.trees.values():
        assert json.dumps(tree_to_json(tree_from_json(json.loads(text))), sort_keys=True) == text


class Shut(Paths):
    """Raises behind its second door wherever it is; the states behind the first have empty names, its ends no goal."""

    achieved_goal: dict[str, str] = {}

    def door(self, number: int) -> str:
        """Go through a door.

        Args:
            number: Which door.
        """
        if number == 1:
            raise RuntimeError("it is shut")
        return super().door(number)

    @property
    def fingerprint(self) -> str:
        """The path, but for the first door's name."""
        return self.path.replace("0", "")


@pytest.mark.parametrize("algorithm", ["mcts", "best_of_n"])
@pytest.mark.parametrize(("kind", "skill"), [(Breaks, 0.3), (Shut, 0.0)])
def test_a_search_of_an_environment_that_breaks_resumes_to_the_same_bytes_after_any_commit(
    kind: type[Paths], skill: float, algorithm: str
) -> None:
    spec, some = EnvSpec(kind), tasks(EnvSpec(kind), 1)
    settings = SearchSettings(simulations=16, algorithm=algorithm)
    guess = Guess(skill, thoughts=False, doors=2 if kind is Shut else 4)
    whole = search(spec, guess, settings, some)
    ((name, log),) = whole.logs.items()
    (tree,) = [one.tree for one in whole.searches.values()]
    assert tree is not None and any(edge.quarantined for edge in tree.edges)
    assert tree.counters["tool_calls"] == whole.counts.executed
    for cut in range(len(log) + 1):  # some in flight wait for what a logged one broke at
        again = search(spec, guess, settings, some, records={name: log[:cut]}, live_states=2)
        assert again.trees == whole.trees, f"cut after {cut} commits"


def test_a_search_is_told_how_often_the_policy_rambles() -> None:
    """The value of the root falls with the share of turns that never end, as the share of solved attempts does."""

    class Half(Rambles):
        def act(self, context: Any, seed: int, temperature: float | None) -> Action:
            action = super(Rambles, self).act(context, seed, temperature)
            return dataclasses.replace(action, call=None, fault="no_end") if seed % 2 else action

    spec = EnvSpec(Paths)
    settings = SearchSettings(simulations=200, algorithm="best_of_n", value="success")
    values = []
    for kind in (Guess, Half):
        run = search(spec, kind(skill=1.0), settings, tasks(spec, 2))
        values += [s.tree.root.value for s in run.searches.values()]  # type: ignore[union-attr]
    assert values[0] > 0.99 and values[1] > 0.99 and all(0.05 < value < 0.2 for value in values[2:])  # 1/8


class Fails(Guess):
    """Answers with an error every eighth time, or always."""

    def __init__(self, always: bool = False) -> None:
        super().__init__()
        self.always = always

    def propose(self, requests: Any) -> list[Any]:
        """Fail by seed."""
        return [
            PolicyError("overloaded") if self.always or r.seeds[0] % 8 == 0 else super(Fails, self).propose((r,))[0]
            for r in requests
        ]


def test_a_failing_policy_is_counted_and_the_run_goes_on() -> None:
    run = search(EnvSpec(Paths), Fails(), SETTINGS, tasks(EnvSpec(Paths), 2))
    assert run.scheduler and run.scheduler.counts.policy_errors > 0
    assert all(s.tree and s.tree.simulations > 0 for s in run.searches.values())


def test_a_dead_policy_stops_the_run_with_what_to_do() -> None:
    with pytest.raises(PolicyError, match="Nothing is lost: run the same command again"):
        search(EnvSpec(Paths), Fails(always=True), SETTINGS, tasks(EnvSpec(Paths), 2))


def test_a_policy_that_raises_answers_each_request_with_the_error() -> None:
    class Raises(Guess):
        def propose(self, requests: Any) -> list[Any]:
            raise ZeroDivisionError("no weights")

        def engine(self) -> Any:
            return ThreadEngine(self)

    with pytest.raises(PolicyError, match="no weights"):
        search(EnvSpec(Paths), Raises(), SETTINGS, tasks(EnvSpec(Paths), 1))


def test_copies_that_share_state_are_found_before_the_search() -> None:
    from offline_agent.envs.checks.trial import copying_fault

    spec = EnvSpec(Shares)
    (task,) = tasks(spec, 1)
    actions = [Action("", call=ToolCall("door", {"number": n})) for n in (1, 2)]
    assert "share" in (copying_fault(spec, task, actions) or "")
    assert copying_fault(EnvSpec(Paths), task, actions) is None


@pytest.mark.parametrize("live", [1, 2, 5, 100])
@pytest.mark.parametrize("replay_only", [True, False])
def test_after_random_backtracking_the_environment_is_where_the_tree_says(live: int, replay_only: bool) -> None:
    spec = EnvSpec(type("Some", (Paths,), {"replay_only": replay_only}))
    (task,) = tasks(spec, 1)
    counts = RestoreCounts()
    world = Restorer(spec, task, live, counts)
    rng = random.Random(live)
    states = [world.open().state]
    for _ in range(150):
        parent = rng.choice([s for s in states if s.depth < 2] if rng.random() < 0.9 else states[:1])
        number = rng.randrange(10)
        outcome = world.execute(parent, Action("", call=ToolCall("door", {"number": number})))
        path = f"{parent.fingerprint}{number}"
        assert outcome.observation == f"Behind you: {path}." and outcome.fingerprint == path
        states.append(outcome.state)
    assert counts.mismatches == 0 and (replay_only or live < 100 or counts.replayed == 0)
    world.close()


def test_the_critic_steers_and_is_kept_apart() -> None:
    def likes_the_code(context: Any, actions: Any, seed: int) -> list[float | None]:
        right = int(str(context.task.args["code"])[min(context.depth, 2)])
        return [1.0 if a.call.arguments["number"] == right else 0.0 for a in actions]

    spec, settings = EnvSpec(Paths), SearchSettings(simulations=24)
    plain = search(spec, Guess(), settings, tasks(spec, 6))
    led = search(spec, Guess(), settings, tasks(spec, 6), critic=likes_the_code)
    best = [max((s for s in scores_of(run) if s is not None), default=0) for run in (plain, led)]
    assert best[1] >= best[0]
    scored = [e for s in led.searches.values() for e in s.tree.edges if e.critic is not None]  # type: ignore[union-attr]
    assert scored and all(e.critic in (0.0, 1.0) for e in scored)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda n: 1 / 0, "division by zero"),
        (lambda n: 7, "it answered 7, allowed: a list of"),
        (lambda n: [0.5] * (n + 1), "allowed: a list of"),
        (lambda n: [float("nan")] * n, "it gave the score nan, allowed: a number in"),
        (lambda n: [2.0] * n, "it gave the score 2.0"),
        (lambda n: ["good"] * n, "it gave the score 'good'"),
    ],
)
def test_a_critic_that_never_answers_ends_the_search_and_one_that_did_once_does_not(answer: Any, says: str) -> None:
    spec, settings = EnvSpec(Paths), SearchSettings(simulations=24)
    asked: list[int] = []

    def at_first(context: Any, actions: Any, seed: int) -> Any:
        asked.append(seed)
        return [None] * len(actions) if len(asked) == 1 else answer(len(actions))

    with pytest.raises(JudgeError, match=f"first 16 calls.*{re.escape(says)}"):
        search(spec, Guess(), settings, tasks(spec, 4), critic=lambda context, actions, seed: answer(len(actions)))
    run = search(spec, Guess(), settings, tasks(spec, 4), critic=at_first)
    assert run.scheduler and len(asked) > 17 and any(says in t for t in run.scheduler.counts.fault_examples)


@pytest.mark.parametrize(("takes", "limit", "heard"), [(0.8, 20.0, True), (1.5, 0.1, False)])
def test_a_critic_has_a_time_limit_of_its_own(takes: float, limit: float, heard: bool) -> None:
    def slow(context: Any, actions: Any, seed: int) -> list[float | None]:
        time.sleep(takes)  # overdue calls are looked for twice a second
        return [1.0] * len(actions)

    spec, settings = EnvSpec(Paths), SearchSettings(simulations=10)
    limits: dict[str, Any] = {"workers": 2, "time_limit": 0.2, "critic_seconds": limit}
    run = search(spec, Guess(), settings, tasks(spec, 1), critic=slow, **limits)
    (one,) = run.searches.values()
    assert one.tree is not None and any(edge.critic is not None for edge in one.tree.edges) is heard
    assert run.scheduler is not None and (run.scheduler.counts.faults == 0) is heard
    assert all("critic" in text for text in run.scheduler.counts.fault_examples)


class Moody(Paths):
    """Its verdict on the same end state differs from time to time."""

    deterministic_verifier = False
    mood = random.Random(3)
    asked = 0

    def get_reward(self) -> float:
        """Return the score, or nothing at all in a bad mood."""
        Moody.asked += 1
        return super().get_reward() * self.mood.randrange(2)


def test_a_verdict_that_may_differ_is_asked_for_again() -> None:
    spec = EnvSpec(Moody)
    settings = SearchSettings(simulations=120, deterministic_verifier=False)
    run = search(spec, Guess(doors=2, thoughts=False), settings, tasks(spec, 2))
    for one in run.searches.values():
        assert one.tree is not None
        ends = [node for node in one.tree.nodes if node.terminated]
        assert one.tree.stopped == "simulations" and all(not node.edges and not node.closed for node in ends)
        assert max(node.visits for node in ends) > 3
        assert any(0 < node.edge.score_sum / node.edge.verified < max(1.0, 0.0) for node in ends if node.edge)
        assert one.tree.root.visits == 120
    Moody.asked = 0
    settings = SearchSettings(simulations=120, deterministic_verifier=False, leaves_in_flight=8)
    search(spec, Guess(doors=2, thoughts=False), settings, tasks(spec, 2))
    assert Moody.asked > 220  # of 240 visits; simulations that reach an end together for the first time share one


class Sticks(Paths):
    """Its last door opens at times, and stays shut at others: the same action is answered differently."""

    deterministic_verifier = False
    chance = random.Random(1)

    def door(self, number: int) -> str:
        """Go through a door.

        Args:
            number: Which door, 0 to 9.
        """
        answer = super().door(number)
        if self.terminated and self.chance.random() < 0.5:
            self.terminated, self.path = False, self.path[:2]
            return f"{answer} It is stuck."
        return answer


def test_an_end_that_is_answered_differently_when_it_is_judged_again_does_not_stop_the_search() -> None:
    """Alone catches simulations that wait for samples of a history that was freed."""
    settings = SearchSettings(simulations=60, deterministic_verifier=False, max_steps=8, leaves_in_flight=6)
    done: list[Any] = []

    def run() -> None:
        done.append(search(EnvSpec(Sticks), Guess(doors=2, thoughts=False), settings, tasks(EnvSpec(Sticks), 2)))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert done and all(one.tree.stopped == "simulations" for one in done[0].searches.values())


class SlowToOpen(Paths):
    """Takes its time to start."""

    def reset(self, code: str) -> str:
        """Sleep."""
        time.sleep(0.6)
        return super().reset(code)


def test_opening_has_a_time_limit_of_its_own() -> None:
    spec = EnvSpec(SlowToOpen)
    patient = search(spec, Guess(), SearchSettings(simulations=4), tasks(spec, 1), workers=1, time_limit=0.3,
                     reset_seconds=20.0)  # fmt: skip
    assert all(one.tree and one.tree.simulations == 4 for one in patient.searches.values())
    hasty = search(spec, Guess(), SearchSettings(simulations=4), tasks(spec, 1), workers=1, reset_seconds=0.1)
    assert all(one.tree and "limits.reset_seconds" in str(one.tree.quarantined) for one in hasty.searches.values())


class Forgetful(Forgets):
    """Not deterministic, but copied properly."""

    replay_only = False


def test_copies_are_not_blamed_for_an_environment_that_differs_by_itself() -> None:
    from offline_agent.envs.checks.trial import copying_fault

    spec = EnvSpec(Forgetful)
    (task,) = tasks(spec, 1)
    actions = [Action("", call=ToolCall("door", {"number": n})) for n in (1, 2)]
    assert copying_fault(spec, task, actions) is None
