"""Second round of `build_prefs`: attempts with the environment's hint at the tasks that the search did not solve.

The attempts stand in an event log of their own. Mining runs the actions of their successes again without the hint
(`preferences.mining`), so that the rows show the prompt as it is without it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.envs.pool import EnvPool
from offline_agent.errors import ConfigError, EnvironmentFault, ends_the_run, in_words
from offline_agent.policies.base import Engine
from offline_agent.records import Action, Task
from offline_agent.report.mining import Figures, figures_of
from offline_agent.rollouts.attempts import AttemptRequest, Journal
from offline_agent.rollouts.episodes import Episodes
from offline_agent.runner.components import Parts
from offline_agent.runner.pipeline import Session
from offline_agent.search.serialization import action_from_json, tree_from_json
from offline_agent.store.events import EventLog

LOG = "guided"
"""Name of the event log."""


def check(parts: Parts, config: BuildPrefsConfig) -> None:
    """Raise ConfigError where hints are asked for and cannot be given."""
    if not config.guidance.attempts:
        return
    faults = []
    if parts.spec.hint is None:
        faults.append(
            f"guidance.attempts={config.guidance.attempts}: environment {parts.spec.name} has no hints; allowed: 0, or "
            "give the class a class method hint(cls, **task) -> str | None"
        )
    if config.launcher != "local":
        faults.append(f"guidance.attempts: is played by this process; got launcher={config.launcher}, allowed: local")
    if faults:
        raise ConfigError(faults)


def guide(parts: Parts, session: Session[BuildPrefsConfig], engine: Engine, figures: Figures) -> None:
    """Play the attempts with hints that are not logged yet.

    Args:
        parts: Environment, tasks and policy.
        session: The run, with a tree for every task.
        engine: The policy's.
        figures: Takes how many there were.
    """
    config = session.config
    if not config.guidance.attempts:
        return
    log = session.run.events(LOG)
    journal = Journal(log.append, log.read(), {task.task_id: task for task in parts.tasks})
    pool = EnvPool(config.limits.workers, config.limits.step_seconds)
    segment = None if parts.policy.renderer is None else parts.policy.renderer.segment
    session.progress.start(len(parts.tasks), "trying again with hints")
    progress, census = session.progress, parts.spec.census
    census.expect(0)
    try:
        episodes = Episodes(
            parts.spec, engine, pool, policy=LOG, seed=config.seed, max_steps=config.search.max_steps,
            temperature=config.policy.temperature, max_tokens=config.policy.max_tokens,
            in_flight=min(64, parts.spec.census.most), reset_seconds=config.limits.reset_seconds, segment=segment,
            tick=lambda: progress.update(progress.done, actions=episodes.requests, resets=census.resets()),
        )  # fmt: skip
        for attempt in episodes.play(_requests(parts, session, journal)):
            journal.add(attempt)
    finally:
        pool.close()
    played = journal.attempts.values()
    solved = {attempt.task.task_id for attempt in played if attempt.success}
    figures.guided = {
        "tasks": len({attempt.task.task_id for attempt in played}),
        "attempts": len(played),
        "successes": sum(attempt.success is True for attempt in played),
        "tasks_solved": len(solved),
    }


def guided_successes(run_dir: Path) -> dict[str, list[list[Action]]]:
    """Return task id → the actions of each success that was found with a hint, in the order of their numbers."""
    path = run_dir / "events" / f"{LOG}.jsonl"
    found: dict[str, list[tuple[int, list[Action]]]] = {}
    for record in EventLog(path).read() if path.exists() else ():
        if "attempt" in record and record["verdict"]["success"]:
            _, _, task_id, number = record["attempt"]
            actions = [action_from_json(step[0]) for step in record["steps"]]
            found.setdefault(task_id, []).append((number, actions))
    return {task_id: [actions for _, actions in sorted(listed, key=_number)] for task_id, listed in found.items()}


def _number(entry: tuple[int, Sequence[Action]]) -> int:
    return entry[0]


def _requests(parts: Parts, session: Session[BuildPrefsConfig], journal: Journal) -> Iterator[AttemptRequest]:
    for done, task in enumerate(parts.tasks, 1):
        best = figures_of(tree_from_json(session.run.read_tree(task.task_id))).best
        session.progress.update(done)
        if best is None or best[0]:
            continue
        hint = _hint(parts, task)
        for number in range(session.config.guidance.attempts if hint else 0):
            if (LOG, "sampled", task.task_id, number) not in journal.attempts:
                yield AttemptRequest(task, "sampled", number, hint=hint)


def _hint(parts: Parts, task: Task) -> str:
    """Return the environment's hint for a task; "" where it has none.

    Raises:
        EnvironmentFault: It raised, or returned no text.
    """
    assert parts.spec.hint is not None  # `check`
    try:
        hint = parts.spec.hint(**copy.deepcopy(dict(task.args)))
    except BaseException as error:
        if ends_the_run(error):
            raise
        raise EnvironmentFault(f"{parts.spec.name}: hint() raised {in_words(error)} (task {task.task_id})") from error
    if hint is not None and not isinstance(hint, str):
        raise EnvironmentFault(f"{parts.spec.name}: hint() returned {type(hint).__name__}; allowed: text, or None")
    return hint or ""
