"""Observation masks of training rows: each executed edge once, failures included, nothing of an action."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offline_agent.errors import ConfigError, DataError
from offline_agent.records import Verdict
from offline_agent.training.data.observations import ObservationReader
from offline_agent.training.data.rows import TrajectoryRow, load_trajectories
from offline_agent.training.data.updates import observation_units, trajectory_units
from tests.helpers.rows import lines, renderer, resealed, run, trajectory

BAD = Verdict(0.0, False, "kit")


def load(
    runs: list[str], files: list[str] | None = None, **more: Any
) -> tuple[list[TrajectoryRow], ObservationReader]:
    reader = ObservationReader(renderer(), more.get("max_length", 2048))
    rows, _ = load_trajectories(runs, files or (), renderer(), max_length=2048, observe=reader.observe)
    return rows, reader


def marked(row: TrajectoryRow) -> list[str]:
    """Return the texts of a row's marked runs."""
    out, before = [], 0
    for token, on in zip(row.input_ids, row.observation_mask, strict=True):
        if on:
            out += [[token]] if not before else []
            out[-1] += [token] if before else []
        before = on
    return [renderer().decode(ids) for ids in out]


def test_each_executed_edge_counts_once_over_all_rows_and_failures_add_theirs(tmp_path: Path) -> None:
    good = [trajectory(1, "red tea"), trajectory(1, "red cup")]
    bad = [trajectory(1, "red mug", verdict=BAD), trajectory(1, "red tea", verdict=BAD)]
    data = run(tmp_path / "r", filtered=good, executed=[*good, *bad])
    rows, reader = load([data])
    assert [marked(row) for row in rows] == [["page of red", "page of tea"], ["page of cup"]]
    (more,) = reader.executed([data], "data")
    assert marked(more) == ["page of mug"], "the other branches were all seen before"
    report = reader.report
    assert (report.edges, report.repeated, report.trajectories, report.certified) == (4, 8, 1, 6)
    assert report.tokens == sum(sum(row.observation_mask) for row in (*rows, more))


def test_actions_of_trajectories_read_for_observations_are_never_scored(tmp_path: Path) -> None:
    rows, _ = load([run(tmp_path / "r", filtered=[trajectory(1, "red tea")])])
    (beside,), (row,) = observation_units(rows), trajectory_units(rows)
    assert beside.anchor and beside.agent_tokens == 0 < beside.observation_tokens == sum(rows[0].observation_mask)
    assert row.agent_tokens == sum(rows[0].action_mask) and row.observation_tokens == beside.observation_tokens
    assert beside.sequences[0][1] == rows[0].observation_mask


def test_turns_of_the_prompt_give_no_observation(tmp_path: Path) -> None:
    rows, _ = load([run(tmp_path / "r", filtered=[trajectory(1, "red tea cup", given=2)])])
    assert marked(rows[0]) == ["page of cup"]


def test_rows_of_earlier_versions_prove_the_same_masks(tmp_path: Path) -> None:
    row = trajectory(1, "red tea")
    data = json.loads(row["certificate"])
    del data["sequence"]["observations"], data["digest"]
    old = resealed({**row, "certificate": json.dumps({k: v for k, v in data.items() if k != "columns"})})
    (new,), _ = load([run(tmp_path / "new", filtered=[row])])
    (derived,), reader = load([run(tmp_path / "old", filtered=[old])])
    assert derived.observation_mask == new.observation_mask and derived.input_ids == new.input_ids
    assert (reader.report.derived, reader.report.certified) == (1, 0)


def test_a_last_observation_beyond_the_models_length_is_left_out_and_the_row_kept(tmp_path: Path) -> None:
    row = trajectory(1, "red tea")
    rows, reader = load([run(tmp_path / "r", filtered=[row])], max_length=len(row["input_ids"]))
    assert marked(rows[0]) == ["page of red"] and rows[0].input_ids == tuple(row["input_ids"])
    assert reader.report.cut == 1


def test_rows_that_do_not_tell_are_counted_and_nothing_at_all_is_refused(tmp_path: Path) -> None:
    bare = {k: v for k, v in trajectory(1, tokens=False).items() if k in ("messages", "tools", "success")}
    rows, reader = load([], [lines(tmp_path / "rows.jsonl", [bare])])
    assert rows[0].observation_mask == () and len(reader.report.notes()) == 1
    with pytest.raises(ConfigError, match="no row tells which of its tokens are observations.*no certified ids"):
        reader.check()


@pytest.mark.parametrize(
    ("mask", "said"),
    [((0, 0, 1, 1), "1 tokens, the first at 2"), ((0, 1), "2 values for 4 ids"), ((1, 0, 0, 0), "first token")],
)
def test_masks_that_overlap_or_do_not_fit_are_refused(mask: tuple[int, ...], said: str) -> None:
    row = TrajectoryRow("one", "task", "search", (5, 6, 7, 8), (0, 1, 1, 0), observation_mask=mask)
    for units in (trajectory_units, observation_units):
        with pytest.raises(DataError, match=said):
            units([row])
