"""Java machines of TextWorldExpress that die: what is lost, and what goes on."""

import os

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.pool import EnvPool
from offline_agent.errors import EnvironmentFault
from offline_agent.policies.scripted import OraclePolicy
from offline_agent.rollouts.episodes import AttemptRequest, Episodes
from offline_agent.search.settings import SearchSettings
from offline_agent_environments.textworld import TextWorld, server
from offline_agent_environments.textworld.tests.test_textworld import act, first_tasks, needs_java
from tests.helpers.search import search


def _kill():
    """Kill the Java machine and return its server."""
    dead = server.server()
    dead._process.kill()
    dead._process.wait()
    return dead


@pytest.fixture
def own_java(monkeypatch):
    """Give the test a Java machine that it may kill."""
    monkeypatch.setattr(server, "_servers", {})
    yield
    _kill()


@needs_java
@pytest.mark.usefixtures("own_java")
@pytest.mark.parametrize("by", ["closing", "resetting"])
def test_games_of_a_java_machine_that_died_leave_nothing_to_the_next(by):
    spec, tasks = EnvSpec(TextWorld, {"game": "coin"}), first_tasks("coin", n=6)
    begun = [spec.open() for _ in tasks]
    first = [episode.reset(task) for episode, task in zip(begun, tasks, strict=True)]
    used = [episode._env._interface for episode in begun]
    dead = _kill()
    with pytest.raises(EnvironmentFault, match="Java"):
        begun[0].step(act("look around"))
    if by == "closing":
        for episode in begun:
            episode.close()
        assert server._servers[os.getpid()] is dead  # closing starts no Java
        begun = [spec.open() for _ in tasks]
    assert [episode.reset(task) for episode, task in zip(begun, tasks, strict=True)] == first
    assert server.server() is not dead
    assert not any(episode._env._interface is one for episode in begun for one in used)
    for episode in begun:
        assert episode.step(act("look around")).fault is None
        episode.close()
    free = server.server()._free["coin", ""]
    assert len(free) == len(begun) and not any(one is other for one in free for other in used)


@needs_java
@pytest.mark.usefixtures("own_java")
def test_a_java_machine_that_dies_in_a_replay_leaves_nothing_to_the_next():
    where = ("coin", "", "train", 3)

    def commands():
        yield "look around"
        _kill()
        yield "look around"

    with pytest.raises(EnvironmentFault, match="Java failed to carry out 'look around'.*starts it again"):
        server.replay(*where, commands())
    assert len(server.replay(*where, ("look around", "inventory"))) == 2
    assert len(server.server()._free["coin", ""]) == 1


def _find_paths(tasks):
    """Ask for the winning paths, which are kept: the expert needs no Java from here on."""
    for task in tasks:
        server.gold_path(task.args["game"], task.args["params"], task.args["fold"], task.args["seed"])


class Killing(OraclePolicy):
    """The expert; kills the Java machine when it is asked for its n-th turn."""

    def __init__(self, demonstrate, n):
        super().__init__(demonstrate)
        self.left = n

    def _act(self, context, rng):
        self.left -= 1
        if self.left == 0:
            _kill()
        return super()._act(context, rng)


@needs_java
@pytest.mark.usefixtures("own_java")
@pytest.mark.parametrize("in_flight", [1, 4])
def test_only_attempts_in_flight_are_unscored_when_java_dies(in_flight):
    spec, tasks = EnvSpec(TextWorld, {"game": "coin"}), first_tasks("coin", n=16)
    _find_paths(tasks)
    pool = EnvPool(2, 30.0)
    episodes = Episodes(spec, Killing(spec.demonstrate, 20).engine(), pool, max_steps=100, in_flight=in_flight)
    played = list(episodes.play(AttemptRequest(task, "greedy", 0) for task in tasks))
    pool.close()
    assert len(played) == 16
    unscored = [attempt for attempt in played if attempt.success is None]
    assert 1 <= len(unscored) <= in_flight
    assert all(attempt.success for attempt in played if attempt not in unscored)
    for attempt in unscored:
        assert attempt.reward is None and attempt.cut_by == "fault" and "Java failed to" in str(attempt.verdict.error)


@needs_java
@pytest.mark.usefixtures("own_java")
def test_only_searches_in_flight_are_cut_when_java_dies():
    spec, tasks = EnvSpec(TextWorld, {"game": "coin"}), first_tasks("coin", n=8)
    _find_paths(tasks)
    settings = SearchSettings(simulations=2, max_steps=60)
    found = search(spec, Killing(spec.demonstrate, 9), settings, tasks, workers=1, trees_in_flight=2)
    trees = [one.tree for one in found.searches.values()]
    cut = [tree for tree in trees if tree.root.visits == 0]
    assert len(trees) == 8 and 1 <= len(cut) <= 2
    # one whose game was being loaded just then has nothing to keep
    assert all("Java failed to load" in tree.quarantined for tree in trees if tree.quarantined)
    assert all(tree in cut for tree in trees if tree.quarantined)


@needs_java
@pytest.mark.usefixtures("own_java")
def test_half_an_answer_is_no_mistake_of_the_policy(monkeypatch):
    episode = EnvSpec(TextWorld, {"game": "coin"}).open()
    episode.reset(first_tasks("coin")[0])

    class Torn:
        def stepJSON(self, command):  # noqa: N802
            return '{"observation": "You are in'

    monkeypatch.setattr(episode._env._interface, "_java", Torn())
    with pytest.raises(EnvironmentFault, match="Java failed"):
        episode.step(act("look around"))
    before = list(server.server()._free["coin", ""])
    episode.close()
    assert server.server()._free["coin", ""] == before  # what failed is not handed out again
