"""Calibration: a judge, or a comparator, held against the verifier whose verdicts the trees of a run keep.

Run `python -m offline_agent.pipelines.calibrate --help` for the keys; docs/verifiers.md says how to read the table.
"""

from __future__ import annotations

import heapq
import json
import random
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offline_agent.config.judging import CalibrateConfig
from offline_agent.errors import ConfigError, collect, ends_the_run, in_words
from offline_agent.evaluation.calibration import (
    Compared,
    Judged,
    agreement,
    biases,
    by_length,
    find_trees,
    judged_trajectories,
    length_effect,
    preference,
)
from offline_agent.judges.judge import Judge, make_judge
from offline_agent.judges.models.comparing import make_comparator
from offline_agent.judges.ranking import Compare, Swapped, both_orders
from offline_agent.pipelines.entry import main
from offline_agent.records import Trajectory
from offline_agent.report.judging import show_calibration
from offline_agent.runner.pipeline import Command, Facts, Session
from offline_agent.store.files import write_atomic, write_json
from offline_agent.store.provenance import hash_json

RESULT, ROWS = "calibration.json", "judged.jsonl"
_PAIRS = 4  # most pairs of one task that are compared


@dataclass(frozen=True)
class Inputs:
    """The trees, and what is held against their verdicts.

    Attributes:
        trees: Files of trees.
        judge: None = none is asked.
        compare: None likewise.
    """

    trees: list[Path]
    judge: Judge | None
    compare: Compare | None


def prepare(config: CalibrateConfig) -> tuple[Inputs, Facts]:
    """Find the trees and make the judge; see `runner.pipeline.Command.prepare`."""
    faults: list[str] = []
    given = dict(config.compare.model_extra or {})
    judge = collect(faults, lambda: make_judge(config.judge.name, dict(config.judge.model_extra or {})))
    compare = collect(faults, lambda: make_comparator("compare", config.compare.name, given))
    trees = find_trees(config.source, faults)
    if not faults and judge is None and compare is None:
        faults.append("judge: got environment and compare=none, so there is nothing to hold against the verifier; name "
                      "a judge, judge=NAME, or a comparator, compare=NAME")  # fmt: skip
    if faults:
        raise ConfigError(faults)
    facts = {
        "hashes": {"trees": hash_json({str(path): path.stat().st_size for path in trees})},
        "judge": None if judge is None else judge.identity,
        "compare": {"name": config.compare.name, "args": given},
    }
    return Inputs(trees, judge, compare), Facts(facts)


def run(inputs: Inputs, session: Session[CalibrateConfig]) -> Mapping[str, Any]:
    """Judge, compare, write; see `runner.pipeline.Command.run`."""
    config = session.config
    for one in (inputs.judge, inputs.compare):
        if (keep := getattr(one, "keep_in", None)) is not None:
            keep(session.run.path / "judge")
    rows: list[dict[str, Any]] = []
    pointwise = None if inputs.judge is None else _judged(inputs.judge, inputs.trees, session, rows)
    pairwise = None if inputs.compare is None else _compared(inputs.compare, inputs.trees, session, rows)
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    write_atomic(session.run.path / ROWS, lines.encode("utf-8", "backslashreplace"))
    result = {
        "source": list(config.source), "judge": config.judge.name, "compare": config.compare.name,
        "length": config.length, "confidence": config.confidence, "pointwise": pointwise, "pairwise": pairwise,
        "biases": biases(pointwise, pairwise),
    }  # fmt: skip
    write_json(session.run.path / RESULT, result)
    return result


def _judged(
    judge: Judge, trees: list[Path], session: Session[CalibrateConfig], rows: list[dict[str, Any]]
) -> dict[str, Any]:
    """Judge a sample of the trajectories; return the figures."""
    config = session.config
    chosen = _sample(trees, config)
    session.progress.start(len(chosen), "judging")
    judged: list[Judged] = []
    with ThreadPoolExecutor(config.workers) as pool:
        for number, (one, verdict) in enumerate(zip(chosen, pool.map(judge, chosen), strict=True), 1):
            assert one.verdict is not None
            length = _length(one, config.length)
            judged.append(Judged(bool(one.verdict.success), verdict.success, length, verdict.score))
            rows.append({"task_id": one.task.task_id, "length": length, "verifier": one.verdict.to_json(),
                         "judge": verdict.to_json()})  # fmt: skip
            session.progress.update(number)
    return {
        **agreement(judged, config.confidence),
        "length_effect": length_effect(judged),
        "by_length": by_length(judged, config.bins, config.confidence),
        "errors": sorted({row["judge"]["error"] for row in rows if row["judge"]["error"]})[:5],
    }


def _compared(
    compare: Compare, trees: list[Path], session: Session[CalibrateConfig], rows: list[dict[str, Any]]
) -> dict[str, Any]:
    """Compare pairs of a success and a failure at one task, in both orders; return the figures."""
    config = session.config
    pairs = list(_pairs(trees, config))
    session.progress.start(len(pairs), "comparing")
    compared: list[Compared] = []
    with ThreadPoolExecutor(config.workers) as pool:
        found = pool.map(lambda pair: _both_orders(compare, *pair), pairs)
        for number, ((good, bad), said) in enumerate(zip(pairs, found, strict=True)):
            sizes = _length(good, config.length), _length(bad, config.length)
            longer = None if sizes[0] == sizes[1] else sizes[0] > sizes[1]
            # both are said of the success, which has the first place in the first order alone
            forward = None if not said.forward else said.forward > 0
            backward = None if not said.backward else said.backward < 0
            compared += [Compared(True, longer, forward, number), Compared(False, longer, backward, number)]
            rows.append({"task_id": good.task.task_id, "lengths": sizes, "success_first": said.forward,
                         "failure_first": said.backward, "error": said.error})  # fmt: skip
            session.progress.update(number + 1)
    return {"pairs": len(pairs), **preference(compared, config.confidence)}


def _both_orders(compare: Compare, good: Trajectory, bad: Trajectory) -> Swapped:
    """Return a comparison in both orders; where the comparator raises, it said nothing, which is counted."""
    try:
        return both_orders(compare, good, bad)
    except BaseException as error:
        if ends_the_run(error):
            raise
        return Swapped(None, None, f"the comparator raised {in_words(error)}")


def _sample(trees: list[Path], config: CalibrateConfig) -> list[Trajectory]:
    """Return the trajectories that are judged: all, or `n` drawn by the seed, in the order of the trees."""
    if config.n is None:
        return [one for path in trees for one in judged_trajectories(path)]
    drawn: list[tuple[float, int, Trajectory]] = []
    number = 0
    for path in trees:
        for one in judged_trajectories(path):
            number += 1
            entry = (-random.Random(f"{config.seed} {number}").random(), -number, one)
            if len(drawn) < config.n:
                heapq.heappush(drawn, entry)
            else:
                heapq.heappushpop(drawn, entry)
    return [one for _, _, one in sorted(drawn, key=lambda entry: -entry[1])]


def _pairs(trees: list[Path], config: CalibrateConfig) -> Iterator[tuple[Trajectory, Trajectory]]:
    """Yield pairs of a success and a failure at one task, drawn by the seed."""
    left = config.n
    for path in trees:
        ends = list(judged_trajectories(path))
        good = [one for one in ends if one.verdict is not None and one.verdict.success]
        bad = [one for one in ends if one.verdict is not None and not one.verdict.success]
        pairs = [(one, other) for one in good for other in bad]
        random.Random(f"{config.seed} {path.name}").shuffle(pairs)
        for pair in pairs[:_PAIRS]:
            if left is not None:
                if left == 0:
                    return
                left -= 1
            yield pair


def _length(one: Trajectory, unit: str) -> int:
    return len(one.steps) if unit == "steps" else sum(len(step.action.text) for step in one.steps)


COMMAND: Command[CalibrateConfig, Inputs] = Command(
    name="calibrate", config=CalibrateConfig, prepare=prepare, run=run, show=show_calibration, alone=True
)

if __name__ == "__main__":
    sys.exit(main(COMMAND))
