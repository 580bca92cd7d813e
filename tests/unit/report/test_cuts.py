"""Tables say how many episodes a limit cut, and what to raise where they are many."""

from __future__ import annotations

from collections import Counter
from typing import Any

from offline_agent.report.closing import count_cuts as counts
from offline_agent.report.closing import cut_advice as advice
from offline_agent.report.closing import cut_rows as rows

KEYS = ("search.max_steps", "policy.max_tokens")


def counted(cut: list[str | None], max_tokens: int = 64) -> dict[str, Any]:
    return counts(len(cut), Counter(cut), 15, max_tokens, KEYS)


def test_each_episode_is_counted_under_the_limit_that_cut_it() -> None:
    found = counted([None, "tokens", "max_steps", "max_steps", "fault"])
    assert (found["episodes"], found["max_steps"], found["tokens"], found["context"]) == (5, 2, 1, 0)
    table = {name: (count, note) for name, count, note in rows(found)}
    assert table["episodes cut by max_steps"] == ("2", "40.0% of 5; search.max_steps=15")
    assert table["episodes cut by the token limit"] == ("1", "20.0% of 5; policy.max_tokens=64")


def test_turns_that_do_not_end_are_advised_on_above_one_in_twenty() -> None:
    assert not list(advice(counted(["tokens"] + [None] * 19)))
    (told,) = advice(counted(["tokens"] * 2 + [None] * 18))
    assert "policy.max_tokens=64" in told and told.startswith("10%")


def test_unfinished_episodes_are_advised_on_where_they_are_most() -> None:
    assert not list(advice(counted(["max_steps", None])))
    (told,) = advice(counted(["max_steps"] * 2 + [None]))
    assert told.startswith("67% of the episodes were cut by max_steps") and "search.max_steps=15" in told
    assert "policy.answer_probability=0.3" in told  # no number of actions helps where an answer alone ends an episode


def test_a_policy_without_tokens_has_no_row_of_them() -> None:
    assert [name for name, *_ in rows(counted([None], 0))] == ["episodes cut by max_steps"]
    assert not list(rows(counted([], 0)))[1:]
