"""Evaluation of a policy on held-out tasks, with intervals, and comparison with another policy.

Run `python -m offline_agent.pipelines.evaluate --help` for the keys.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from offline_agent.config.evaluate import EvaluateConfig
from offline_agent.envs.pool import EnvPool
from offline_agent.errors import ConfigError, collect
from offline_agent.evaluation import report, test_time
from offline_agent.pipelines.entry import main
from offline_agent.pipelines.stages import attempts
from offline_agent.pipelines.stages.attempts import EvaluationInputs, EvaluationRun
from offline_agent.pipelines.stages.search import test_time_settings
from offline_agent.preferences.dataset.export import trajectory_rows
from offline_agent.preferences.records import Refusal
from offline_agent.report.evaluate import show, summary
from offline_agent.rollouts.attempts import Attempt, Journal, row, schema
from offline_agent.runner.components import Parts, completed, facts_of, judge_of_turns, make_parts, make_policy
from offline_agent.runner.pipeline import Command, Facts, Session, Shard, Spread
from offline_agent.store.columns import table_schema

Evaluation = Session[EvaluateConfig]


def prepare(config: EvaluateConfig) -> tuple[EvaluationInputs, Facts]:
    """Make the parts; see `runner.pipeline.Command.prepare`."""
    faults = list(_conflicts(config))
    parts: Parts | None = collect(faults, lambda: make_parts(config))
    section = collect(faults, config.other_policy)
    collect(faults, lambda: _chooser(config))
    if faults or parts is None:
        raise ConfigError(faults)
    other, left_out = None, ""
    if section is not None:
        try:
            other = make_policy(section, parts.spec)
        except ConfigError as error:
            if (key := config.against.named()) is not None:
                raise ConfigError([f"against.{key}: {fault}" for fault in error.faults]) from error
            left_out = str(error)  # nobody asked for it by name
    facts = facts_of(config, parts, other)
    settings = test_time_settings(config, parts) if config.test_time.algorithm == "mcts" else None
    more = {"against_left_out": left_out} if left_out else {}
    return EvaluationInputs(parts, other, settings), replace(facts, manifest={**facts.manifest, **more})


def _chooser(config: EvaluateConfig) -> str | test_time.JudgeOfTurns:
    """Return who chooses among samples; raises ConfigError where it cannot be loaded."""
    name = config.test_time.judge
    return name if name in test_time.CHOOSERS else judge_of_turns("test_time.judge", name)


def _conflicts(config: EvaluateConfig) -> Iterator[str]:
    """Yield keys that another key decides, where they are set to something else, and what does not go together."""
    for name, key, value in (
        ("max_steps", "max_steps", config.max_steps),
        ("simulations", "test_time.simulations", config.test_time.simulations),
        ("algorithm", "test_time.algorithm", "mcts"),
    ):
        given = getattr(config.search, name)
        if given not in (value, type(config.search).model_fields[name].default):
            yield f"search.{name}: got {given!r}, but here {key} decides it; set {key} and leave search.{name} out"
    for name in ("simulations", "judge"):
        given = getattr(config.test_time, name)
        if config.test_time.algorithm == "none" and given != type(config.test_time).model_fields[name].default:
            yield f"test_time.{name}: got {given!r}, but nothing is searched; set test_time.algorithm=best_of_n or mcts"


# -- run ---------------------------------------------------------------------------------------------------------


def run(inputs: EvaluationInputs, session: Evaluation) -> Mapping[str, Any]:
    """Play, search, compare, write; see `runner.pipeline.Command.run`."""
    one, parts = _played(inputs, session), inputs.parts
    played = {label: _ordered(one, label) for label, _ in inputs.players()}
    _write(one, played)
    return {**summary(session.config, parts, played, one.journal.openings, inputs.other), **one.figures()}


def _played(inputs: EvaluationInputs, session: Evaluation) -> EvaluationRun:
    """Play what is not played yet."""
    inputs.parts.spec.keep_in(session.run.path)
    gc.freeze()  # loaded objects live as long as the run: the collector need not visit them
    config, parts = session.config, inputs.parts
    if why := session.run.manifest.get("against_left_out"):
        session.say(f"evaluate: not compared with the policy that made the model's data: {why}")
    log = session.run.events()
    # that of a new run has what its shards played
    journal = Journal(log.append, log.read(), {t.task_id: t for t in parts.tasks})
    one = EvaluationRun(inputs, session, journal)
    searched = len(parts.tasks) if inputs.settings is not None else 0
    if config.policy.temperature == 0 and config.attempts > 1:
        session.say("evaluate: policy.temperature=0: the sampled attempts at a task are all the same; use attempts=1")
    players = inputs.players()
    session.progress.start(len(players) * (searched + len(attempts.asks(config, parts.tasks))), "attempts")
    try:
        for label, policy in players:
            engine, pool = policy.engine(), EnvPool(config.limits.workers, config.limits.step_seconds)
            try:
                attempts.play(one, label, policy, engine, pool)
                if inputs.settings is not None:
                    attempts.search(one, label, policy, engine, pool, inputs.settings)
            finally:
                engine.close()
                pool.close()
    finally:
        inputs.close()
    return one


def _ordered(one: EvaluationRun, label: str) -> list[Attempt]:
    """Return a policy's attempts in order of mode, task and number; those that best_of_n chose included."""
    config, parts, known = one.session.config, one.inputs.parts, one.journal.attempts
    played = [known[label, ask.mode, ask.task.task_id, ask.number] for ask in attempts.asks(config, parts.tasks)]
    modes = report.by_mode(played)
    out = modes.get("sampled", []) + modes.get("greedy", []) + modes.get(test_time.EXTRA, [])
    if config.test_time.algorithm == "best_of_n":
        of_task: dict[str, list[Attempt]] = {task.task_id: [] for task in parts.tasks}
        for attempt in played:
            if attempt.mode != "greedy" and attempt.number < config.test_time.simulations:
                of_task[attempt.task.task_id].append(attempt)
        judge = _chooser(config)
        out += [test_time.best_of_n(samples, judge) for samples in of_task.values()]
    if one.inputs.settings is not None:
        out += [known[label, "mcts", task.task_id, 0] for task in parts.tasks]
    return out


def _write(one: EvaluationRun, played: Mapping[str, Sequence[Attempt]]) -> None:
    run_dir = one.session.run
    every = (row(attempt) for of_policy in played.values() for attempt in of_policy)
    run_dir.write_rows("attempts", every, schema())
    for label, policy in one.inputs.players():
        known = policy.identity.get("model_hash")
        refusals: list[Refusal] = []
        done = [a.trajectory() for a in played[label] if a.mode != "best_of_n"]  # whose samples are all there
        kept = [trajectory for trajectory in done if trajectory is not None]
        table = "trajectories" if label == "candidate" else f"trajectories_{label}"
        rows = trajectory_rows(kept, policy.renderer, refusals, None if known is None else str(known))
        run_dir.write_rows(table, rows, table_schema("trajectories"))
        for refusal in refusals:
            run_dir.quarantine(refusal.kind, refusal.name, refusal.reason, **dict(refusal.facts))
        for attempt in played[label]:
            if attempt.success is None:
                run_dir.quarantine("attempt", "/".join(map(str, attempt.key)), str(attempt.verdict.error))


# -- shards ------------------------------------------------------------------------------------------------------


def _share(inputs: EvaluationInputs, session: Evaluation) -> Mapping[str, Any]:
    return {"tasks": len(inputs.parts.tasks), **_played(inputs, session).figures()}


def _gather(inputs: EvaluationInputs, session: Evaluation, shards: Sequence[Shard]) -> None:
    config, tasks = session.config, inputs.parts.tasks
    keys = [(ask.mode, ask.task.task_id, ask.number) for ask in attempts.asks(config, tasks)]
    keys += [("mcts", task.task_id, 0) for task in tasks] if inputs.settings is not None else []
    attempts.gather_attempts(session, shards, [(label, *key) for label, _ in inputs.players() for key in keys])


COMMAND: Command[EvaluateConfig, EvaluationInputs] = Command(
    name="evaluate",
    config=EvaluateConfig,
    prepare=prepare,
    run=run,
    show=show,
    complete=completed,
    spread=Spread(tasks=lambda inputs: len(inputs.parts.tasks), share=_share, gather=_gather),
)

if __name__ == "__main__":
    sys.exit(main(COMMAND))
