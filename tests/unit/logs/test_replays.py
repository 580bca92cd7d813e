from __future__ import annotations

import pytest

from offline_agent.logs.replays import Replays
from offline_agent.records import Action, Context, Step, Trajectory
from tests.helpers import preferences as kit

TASK = next(iter(kit.SPEC.tasks("train")))
PRESSED = [("A", "A is down"), ("B", "B is down")]

Shown = list[tuple[str, str | None]]


def logged(shown: Shown, over: bool) -> Trajectory:
    """Return an episode of a log: each turn, and what the log shows after it."""
    context, steps = Context(TASK, "", (), "Press A, then B."), []
    for word, answer in shown:
        action = Action(word) if " " in word else kit.act(word)
        context = context.child(action, answer)
        steps.append(Step(action, word, answer, "tool"))
    return Trajectory(context, tuple(steps), None, over, False, "search")


@pytest.mark.parametrize(
    ("shown", "over", "says"),
    [
        ([*PRESSED, ("leave", None)], True, None),  # less than the environment shows
        ([*PRESSED, ("leave", "bye")], True, None),
        ([("A", "A is down"), ("I am done.", "Thanks.")], True, None),  # more
        ([("A", "A is down"), ("B", None)], False, None),
        ([("A", None), ("B", "B is down")], False, "action 1 is answered differently"),
        ([("A", "A is down"), ("B", "B is up")], False, "action 2 is answered differently"),
        ([*PRESSED, ("leave", "bye"), ("look", "2 down")], True, "the episode is over after 3 of 4 actions"),
        (PRESSED, True, "the episode is not over after 2 actions"),
    ],
)
def test_an_episode_is_judged_where_its_replay_shows_what_the_log_shows(
    shown: Shown, over: bool, says: str | None
) -> None:
    verdict = Replays(kit.SPEC)(logged(shown, over))
    assert verdict.score is not None if says is None else says in str(verdict.error)
