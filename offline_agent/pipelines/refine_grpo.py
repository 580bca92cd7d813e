"""The online stage: rounds of roll-outs, and training on them.

Run `python -m offline_agent.pipelines.refine_grpo --help` for the keys.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from offline_agent.config.refine_grpo import RefineGrpoConfig
from offline_agent.errors import ConfigError, collect
from offline_agent.launch import torchrun
from offline_agent.pipelines.entry import main
from offline_agent.pipelines.stages.copy_check import bound_environments
from offline_agent.pipelines.stages.online import NO_STATES, OnlineInputs, OnlineRun, faults, objective_of, turn_judge
from offline_agent.pipelines.stages.rounds import absent, forget_served, make_sampler
from offline_agent.records import POLICY_CUTS
from offline_agent.report.closing import count_cuts, of_servers
from offline_agent.report.refine_grpo import checklist, export, show
from offline_agent.runner import teachers, training
from offline_agent.runner.components import (
    check_sandbox,
    completed,
    hash_tasks,
    make_environment,
    make_reward,
    make_tasks,
)
from offline_agent.runner.next_steps import environment_keys
from offline_agent.runner.pipeline import Command, Facts, Session
from offline_agent.training.online.settings import GroupSettings, OnlineSettings

if TYPE_CHECKING:
    from offline_agent.training.settings import TrainResult


def prepare(config: RefineGrpoConfig) -> tuple[OnlineInputs, Facts]:
    """Load what can be found faulty; see `runner.pipeline.Command.prepare`."""
    found = faults(config)

    spec = collect(found, lambda: make_environment(config))
    asks = config.rollouts.credit == "turn_reward" and config.rollouts.turn_judge is None
    if spec is not None and asks and not spec.turn_rewards:
        found.append(
            f"rollouts.credit: turn_reward needs what single calls earn, and environment {spec.name} does not say it: "
            "give its class an attribute or property turn_reward (a number in [0, 1] after each call), or name "
            "rollouts.turn_judge, or set rollouts.credit=trajectory"
        )
    if spec is not None and config.rollouts.credit == "state" and not spec.fingerprints:
        found.append(NO_STATES.format(name=spec.name, what="has none"))
    if spec is not None:
        collect(found, lambda: check_sandbox(spec, trusted=False))
    tasks = collect(found, lambda: make_tasks(spec, config.tasks)) if spec else None
    trainable = collect(found, lambda: training.load(config))
    if trainable is not None:
        collect(found, lambda: training.max_length(config, trainable.model))
    teacher = None if trainable is None else collect(found, lambda: teachers.load_teacher(config, trainable))
    served = collect(found, lambda: teachers.serve_teacher(config))
    if found or spec is None or tasks is None:
        raise ConfigError(found)
    sampler = absent() if torchrun.rank() else make_sampler(config, trainable.renderer, tasks[0])
    groups = GroupSettings(**dict(config.rollouts), judge=turn_judge(config))
    online = OnlineSettings(config.rounds, config.objective, config.critic, config.sampler, config.rollouts.behind)
    inputs = OnlineInputs(
        spec, tasks, trainable, sampler, objective_of(config), groups, online,
        config.watch if config.watch.enabled else None, make_reward(config), teacher, served,
    )  # fmt: skip
    manifest, tags = training.facts(config, trainable)
    manifest["hashes"]["task_set"] = hash_tasks(tasks)
    if teacher is not None:
        from offline_agent.policies.hf.loading import model_hash

        manifest["hashes"]["teacher"] = model_hash(teacher)
    manifest |= {"env": spec.identity, "objective": asdict(inputs.objective), "policy": dict(sampler.policy.identity)}
    tags |= {"environment": spec.name, "objective": inputs.objective.name}
    return inputs, Facts(manifest, tags)


# -- run ---------------------------------------------------------------------------------------------------------


def run(inputs: OnlineInputs, session: Session[RefineGrpoConfig]) -> Mapping[str, Any]:
    """Play and train, round after round; see `runner.pipeline.Command.run`."""
    from offline_agent.envs.pool import EnvPool
    from offline_agent.training.models import add_adapters, set_threads
    from offline_agent.training.online.round_batch import Algorithm
    from offline_agent.training.online.trainer import train_online
    from offline_agent.training.trainer import TrainRun

    config, folder = session.config, session.run.path
    inputs.spec.keep_in(folder)
    model, tokenizer, _ = inputs.trainable
    set_threads(config.threads, model)
    begun, lora = training.hashes(inputs.trainable), config.lora
    policy = inputs.sampler.policy
    if lora.rank:
        model = add_adapters(model, lora, config.seed)
    engine, pool = policy.engine(), EnvPool(config.limits.workers, config.limits.step_seconds)
    session.progress.start(inputs.online.rounds * inputs.online.per_round, "updates")
    started = time.perf_counter()
    try:
        bound_environments(config.limits, inputs.spec, inputs.tasks)
        online = OnlineRun(inputs, session, engine, pool)
        with closing(online.ahead):
            result = train_online(
                model, tokenizer, online.play, training.settings(config),
                Algorithm(inputs.objective, inputs.online, inputs.teacher),
                TrainRun(folder, training.Recorder(session), session.say, online.look, online.ahead.settle),
            )  # fmt: skip
    finally:
        engine.close()
        pool.close()
        for each in (policy, inputs.served):
            if each is not None:
                each.close()
        forget_served(folder)
    seconds = time.perf_counter() - started
    saved = training.save(model, tokenizer, folder, begun)
    return _summary(online, result, seconds, {**saved, "begun": begun})


def _summary(online: OnlineRun, result: TrainResult, seconds: float, model: Mapping[str, Any]) -> dict[str, Any]:
    """Write the tables; return the summary."""
    inputs, session = online.inputs, online.session
    config, rollouts = session.config, session.config.rollouts
    played = online.log.ordered(rollouts.size, rollouts.behind)
    exported = export(inputs.trainable.renderer, session, played, inputs.spec.restarts)
    return {
        "pipeline": session.run.manifest["command"],
        "environment": inputs.spec.name,
        **({} if inputs.spec.sandbox is None else {"sandbox": inputs.spec.sandbox}),
        "environment_keys": environment_keys(config.resolved()),
        "tasks": len(inputs.tasks),
        "objective": asdict(inputs.objective),
        "model": model,
        "training": training.of_result(result, seconds),
        "filtered": exported.pop("filtered"),
        "cuts": count_cuts(
            exported["attempts"],
            {kind: exported.pop(kind) for kind in POLICY_CUTS},
            rollouts.max_steps,
            rollouts.max_tokens,
            ("rollouts.max_steps", "rollouts.max_tokens"),
        ),
        "rollouts": {**exported, "env_steps": online.env_steps, "refused_rows": online.log.refused},
        **of_servers({"sampler": inputs.sampler.policy}),
        "findings": [[finding.rule, finding.update, finding.text] for finding in online.findings],
        "checklist": checklist(session.run.events().read()),
        "warnings": list(result.warnings),
    }


COMMAND: Command[RefineGrpoConfig, OnlineInputs] = Command(
    name="refine_grpo", config=RefineGrpoConfig, prepare=prepare, run=run, show=show, complete=completed
)

if __name__ == "__main__":
    sys.exit(main(COMMAND))
