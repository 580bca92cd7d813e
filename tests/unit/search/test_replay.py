"""States that are brought back by replay: the time it may take, and what becomes of an episode that breaks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.play import ReplayMismatch
from offline_agent.errors import EnvironmentFault
from offline_agent.records import Action, ToolCall
from offline_agent.search.environment import ReplayNeeded
from offline_agent.search.restore import RestoreCounts, Restorer
from offline_agent.search.settings import SearchSettings
from tests.helpers.search import Guess, Paths, search, tasks

LAST = 5  # doors before the last one of a corridor


class Corridor(Paths):
    """Six doors, each of which takes its time; a new life may hang at one, until the gate is opened."""

    replay_only = True
    takes = 0.0
    hangs_at = (0, 0)  # the life, from 1, and its door
    gate = threading.Event()
    lives = 0
    touched: list[str] = []

    def reset(self, code: str) -> str:
        """Begin a life."""
        Corridor.lives += 1
        self.life, self.hanging = Corridor.lives, False
        return super().reset(code)

    def door(self, number: int) -> str:
        """Go through a door.

        Args:
            number: Which.
        """
        time.sleep(self.takes)
        if (self.life, len(self.path)) == self.hangs_at:
            self.hanging = True
            self.gate.wait(20)
            self.hanging = False
        seen = super().door(number)
        self.terminated = len(self.path) == LAST + 1
        return seen

    def __enter__(self) -> Corridor:
        return self

    def __exit__(self, *_: object) -> None:
        if self.hanging:
            self.touched.append(f"life {self.life} was closed while its thread hung in it")


@pytest.fixture
def corridor(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Corridor]]:
    for name, value in (("lives", 0), ("gate", threading.Event()), ("touched", [])):
        monkeypatch.setattr(Corridor, name, value)
    yield Corridor
    Corridor.gate.set()


class Straight(Guess):
    """Takes the same door until the last one."""

    def act(self, context: Any, seed: int, temperature: float | None) -> Action:
        """Return one action."""
        if context.depth == LAST:
            return super().act(context, seed, temperature)
        return Action("on", call=ToolCall("door", {"number": 0}))


def walked(limit: float, **options: Any) -> tuple[Any, list[str]]:
    """Let four simulations walk one corridor together, of which one can have the live environment at the last door.

    Returns:
        The run, and why edges are quarantined.
    """
    spec = EnvSpec(Corridor)
    settings = SearchSettings(simulations=4, proposals=4, leaves_in_flight=4)
    policy = Straight(skill=0.0, thoughts=False, doors=9)
    run = search(spec, policy, settings, tasks(spec, 1), workers=4, time_limit=limit, **options)
    (one,) = run.searches.values()
    assert one.tree is not None
    return run, [edge.quarantined for edge in one.tree.edges if edge.quarantined]


@pytest.mark.usefixtures("corridor")
def test_a_replay_has_time_for_each_of_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Corridor, "takes", 0.3)  # one is far from the limit, six are long past it
    run, broken = walked(0.8)
    assert run.counts.replayed >= LAST and not broken
    assert run.scheduler.counts.faults == run.scheduler.counts.hung == 0


@pytest.mark.parametrize(
    ("hangs_at", "reset_seconds", "after"),
    [((1, 3), 0.2, 0.3), ((2, 3), 0.2, 2.0), ((2, 3), None, 2.1), ((2, LAST), 0.2, 2.0)],
)
def test_a_hang_is_noticed_in_a_replay_and_as_soon_as_ever_without_one(
    corridor: type[Corridor],
    monkeypatch: pytest.MonkeyPatch,
    hangs_at: tuple[int, int],
    reset_seconds: float | None,
    after: float,
) -> None:
    monkeypatch.setattr(corridor, "hangs_at", hangs_at)
    run, broken = walked(0.3, reset_seconds=reset_seconds)
    assert broken and all(f"no answer within {after:g} s" in reason for reason in broken)
    assert run.scheduler.counts.hung == 1 and not corridor.gate.is_set() and not corridor.touched


def door(number: int) -> Action:
    return Action("", call=ToolCall("door", {"number": number}))


@pytest.mark.parametrize("replay_only", [True, False])
def test_only_a_state_without_a_live_environment_needs_a_replay(replay_only: bool) -> None:
    spec = EnvSpec(type("Some", (Paths,), {"replay_only": replay_only}))
    (task,) = tasks(spec, 1)
    world = Restorer(spec, task, live_states=1)
    start = world.open().state
    first = world.execute(start, door(1), replay=False).state
    with pytest.raises(ReplayNeeded) as needed:
        world.execute(start, door(2), replay=False)
    assert needed.value.calls == 0
    second = world.execute(first, door(2), replay=False).state
    assert world.execute(second, door(3), replay=False).terminated
    with pytest.raises(ReplayNeeded) as needed:
        world.execute(first, door(3), replay=False)
    assert needed.value.calls == 1 and world.execute(first, door(3)).observation == "Behind you: 13."


def test_without_copies_a_simulation_goes_on_with_its_own_environment() -> None:
    """Alone catches a search without copies that replays every step of each of its simulations."""
    spec, counts = EnvSpec(Paths), RestoreCounts()
    (task,) = tasks(spec, 1)
    world = Restorer(spec, task, live_states=2, counts=counts, copies=False)
    start = world.open().state
    ways = [world.execute(start, door(number)).state for number in (1, 2)]
    for state in ways:
        world.execute(state, door(1), replay=False)
    assert (counts.copies, counts.replayed, counts.resets) == (0, 0, 2)


class Dear(Paths):
    """Counts its open instances; breaks, and fails to close, as its class says."""

    replay_only = True
    breaks = ""
    jams = False
    lives = 0
    open: set[int] = set()

    def __enter__(self) -> Dear:
        self.open.add(id(self))
        return self

    def __exit__(self, *_: object) -> None:
        self.open.discard(id(self))
        if self.jams:
            raise OSError("the lock is jammed")

    def reset(self, code: str) -> str:
        """Begin a life."""
        Dear.lives += 1
        self.life = Dear.lives
        if f"reset {self.life}" == self.breaks:
            raise OSError("no such world")
        return super().reset(code)

    def door(self, number: int) -> str:
        """Go through a door.

        Args:
            number: Which.
        """
        if f"door {self.life}" == self.breaks:
            raise RuntimeError("the floor gave way")
        seen = super().door(number)
        self.terminated |= f"ends {self.life}" == self.breaks
        return seen + " Again?" * (f"differs {self.life}" == self.breaks)

    @property
    def achieved_goal(self) -> dict[str, str]:
        """The path."""
        if self.breaks == "goal":
            raise OSError("no map")
        return {"code": self.path}


@pytest.fixture
def dear(monkeypatch: pytest.MonkeyPatch) -> type[Dear]:
    for name, value in (("lives", 0), ("open", set())):
        monkeypatch.setattr(Dear, name, value)
    return Dear


def play(world: Restorer) -> list[str | None]:
    """Walk to the end, and then another way from the second door on; return what was seen."""
    start = world.open().state
    first = world.execute(start, door(1))
    second = world.execute(first.state, door(1))
    outcomes = [first, second, *[world.execute(second.state, door(number)) for number in (1, 2)]]
    return [outcome.observation for outcome in outcomes]


@pytest.mark.parametrize(
    ("breaks", "error", "match"),
    [
        ("reset 1", EnvironmentFault, "no such world"), ("door 1", EnvironmentFault, "the floor gave way"),
        ("reset 2", EnvironmentFault, "no such world"), ("door 2", EnvironmentFault, "the floor gave way"),
        ("ends 2", ReplayMismatch, "another end"), ("differs 2", ReplayMismatch, "another observation"),
        ("goal", EnvironmentFault, "no map"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("jams", [False, True])
def test_an_episode_that_breaks_is_closed(
    breaks: str, error: type[Exception], match: str, jams: bool, dear: type[Dear], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dear, "breaks", breaks)
    monkeypatch.setattr(dear, "jams", jams)
    spec = EnvSpec(dear)
    (task,) = tasks(spec, 1)
    world = Restorer(spec, task)
    with pytest.raises(error, match=match):
        play(world)
    assert len(dear.open) == (error is ReplayMismatch)  # that one is sound: it can be reset
    world.close()
    assert not dear.open


@pytest.mark.parametrize("live", [1, 2, 100])
@pytest.mark.parametrize("replay_only", [True, False])
def test_an_episode_that_fails_to_close_changes_nothing(live: int, replay_only: bool, dear: type[Dear]) -> None:
    spec = EnvSpec(type("Some", (dear,), {"replay_only": replay_only, "jams": True}))
    (task,) = tasks(spec, 1)
    world = Restorer(spec, task, live)
    assert play(world) == [f"Behind you: {path}." for path in ("1", "11", "111", "112")]
    world.close()
    assert not dear.open
