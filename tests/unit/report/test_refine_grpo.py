"""Tables of the online stage: the same rows in the same order, whatever order the roll-outs ended in."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow.parquet as pq

from offline_agent.config.loading import load
from offline_agent.config.refine_grpo import RefineGrpoConfig
from offline_agent.pipelines.stages.rounds import RoundLog
from offline_agent.records import Verdict
from offline_agent.report.refine_grpo import export
from offline_agent.rollouts.attempts import Attempt
from offline_agent.runner.pipeline import Session
from offline_agent.runner.terminal import Progress
from offline_agent.store.run_directory import RunDirectory
from offline_agent.store.tracking import Tracker
from tests.helpers import rows as rows_kit

SIZE, TASKS, ROUNDS = 3, 4, 3


def played(task: int, number: int) -> Attempt:
    """Return an attempt whose length depends on its number; every other one is a success."""
    begun = context = rows_kit.start(task)
    steps = rows_kit.steps(" ".join(["tea", "red", "pot"][: 1 + number % 3]), sampled=True)
    for step in steps:
        context = context.child(step.action, step.observation)
    verdict = Verdict(float(number % 2), bool(number % 2), "kit")
    return Attempt("candidate", "sampled", begun.task, number, context, steps, verdict, True, False, None)


def tables(path: Path, chance: random.Random, behind: int = 0) -> list[bytes]:
    """Log rounds whose attempts ended in some order, and return the tables' bytes."""
    order = [10, 2, 1, 0]  # of the pool; names do not sort like that
    tasks = [rows_kit.start(task).task for task in order]
    config = load(RefineGrpoConfig, None, [f"rollouts.size={SIZE}", "filtered.per_task=2"])
    with RunDirectory.open(path, config={}, facts={}, command="refine_grpo") as run:
        log = RoundLog(run, tasks)
        ended = [(task, number) for task in order for number in range(SIZE * ROUNDS)]
        for task, number in sorted(ended, key=lambda one: one[1] // SIZE + (1 + behind) * chance.random()):
            log.add(played(task, number))
        said: list[str] = []
        session = Session(config, run, Tracker(), Progress("kit"), said.append)
        made = export(rows_kit.renderer(), session, log.ordered(SIZE, behind))
    assert made["attempts"] == ROUNDS * TASKS * SIZE
    rows = pq.read_table(path / "trajectories")
    assert rows.column("task_id").to_pylist() == [t.task_id for _ in range(ROUNDS) for t in tasks for _ in range(SIZE)]
    return [(path / name / "0000.parquet").read_bytes() for name in ("trajectories", "filtered")]


def test_tables_do_not_depend_on_the_order_in_which_roll_outs_end(tmp_path: Path) -> None:
    first, second = (tables(tmp_path / str(seed), random.Random(seed)) for seed in (1, 2))
    assert first == second == tables(tmp_path / "3", random.Random(3), behind=1)
