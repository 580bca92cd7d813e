"""The online stage: the policy plays, and is trained on what it played, round after round.

Run `python -m offline_agent.pipelines.refine_grpo --help` for the keys.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from offline_agent.config.refine_grpo import RefineGrpoConfig
from offline_agent.envs.base import EnvSpec
from offline_agent.errors import ConfigError, OfflineAgentError
from offline_agent.launch import torchrun
from offline_agent.pipelines.entry import main
from offline_agent.pipelines.stages import rounds as _rounds
from offline_agent.pipelines.stages.online_settings import (
    faults,
    group_settings,
    objective_of,
    online_settings,
    turn_judge,
    watch_settings,
)
from offline_agent.pipelines.stages.sampler import Sampler, absent, make_sampler
from offline_agent.records import Task
from offline_agent.report.refine_grpo import crowded, ends, show
from offline_agent.report.servers import of_servers
from offline_agent.runner import training as _training
from offline_agent.runner.components import make_environment, make_reward, make_tasks
from offline_agent.runner.pipeline import Command, Facts, Session
from offline_agent.store.provenance import hash_json
from offline_agent.training.collapse.checklist import checklist
from offline_agent.training.collapse.watch import Finding, Watch, WatchSettings
from offline_agent.training.online.groups import GroupSettings, RoundSampler
from offline_agent.training.settings import OnlineSettings

if TYPE_CHECKING:
    from offline_agent.envs.pool import EnvPool
    from offline_agent.judges.rewards import CompositeReward
    from offline_agent.rollouts.attempts import Attempt
    from offline_agent.rollouts.episodes import Episodes
    from offline_agent.training.data.rows import LoadReport, TrajectoryRow
    from offline_agent.training.online.objectives import Objective
    from offline_agent.training.online.round_batch import PlayedRound


@dataclass
class Parts:
    """What is trained, and where it plays.

    Attributes:
        spec, tasks: The environment and the pool of tasks.
        trainable: Model, tokenizer and renderer.
        objective: What is maximised.
        groups, online: How rounds are made, and how they become updates.
        watch: When to warn; None = never.
        reward: What an episode is worth, shaping included; None = as `groups.reward` says.
        sampler: Plays; None until everything else was found in order.
        anchors, replayed: Trajectories of earlier runs beside the roll-outs, and what was left out of them.
    """

    spec: EnvSpec
    tasks: list[Task]
    trainable: _training.Trainable
    objective: Objective
    groups: GroupSettings
    online: OnlineSettings
    watch: WatchSettings | None
    reward: CompositeReward | None = None
    sampler: Sampler | None = None
    anchors: list[TrajectoryRow] = field(default_factory=list)
    replayed: LoadReport | None = None


def prepare(config: RefineGrpoConfig) -> tuple[Parts, Facts]:
    """Load what can be found faulty; see `runner.pipeline.Command.prepare`."""
    found = faults(config)

    def collect(make: Callable[[], Any]) -> Any:
        try:
            return make()
        except ConfigError as error:
            found.extend(error.faults)
        except OfflineAgentError as error:
            found.append(str(error))
        return None

    spec = collect(lambda: make_environment(config))
    asks = config.rollouts.credit == "turn_reward" and config.rollouts.turn_judge is None
    if spec is not None and asks and not spec.turn_rewards:
        found.append(
            f"rollouts.credit: turn_reward needs what single calls earn, and environment {spec.name} does not say it: "
            "give its class an attribute or property turn_reward (a number in [0, 1] after each call), or name "
            "rollouts.turn_judge, or set "
            "rollouts.credit=trajectory, or rollouts.credit=turn with rollouts.branches=0.5"
        )
    tasks = collect(lambda: make_tasks(spec, config.tasks)) if spec else None
    trainable = collect(lambda: _training.load(config))
    if trainable is not None:
        collect(lambda: _training.max_length(config, trainable[0]))
    if found or spec is None or tasks is None:
        raise ConfigError(found)
    parts = Parts(
        spec, tasks, trainable, objective_of(config), group_settings(config), online_settings(config),
        watch_settings(config), make_reward(config),
    )  # fmt: skip
    if config.offline.rows:
        from offline_agent.training.data.rows import load_trajectories

        longest = _training.max_length(config, trainable[0])
        replayed = load_trajectories(config.offline.runs, (), trainable[2], max_length=longest, key="offline")
        parts.anchors, parts.replayed = replayed
    parts.sampler = absent() if torchrun.rank() else make_sampler(config, trainable[2], tasks[0])
    hashes: dict[str, Any] = dict(_training.hashes(trainable))
    hashes["task_set"] = hash_json([[task.task_id, task.split, dict(task.args)] for task in tasks])
    manifest: dict[str, Any] = {"hashes": hashes, "env": spec.identity, "objective": asdict(parts.objective)}
    manifest["policy"] = dict(parts.sampler.policy.identity)
    if parts.replayed is not None:
        manifest["data"] = dict(parts.replayed.hashes)
        hashes["data"] = hash_json(list(parts.replayed.hashes.values()))
    tags = {
        "model": config.model.path or "embedded default",
        "model_hash": str(hashes["model"]),
        "environment": spec.name,
        "objective": parts.objective.name,
    }
    return parts, Facts(manifest, tags)


# -- run ---------------------------------------------------------------------------------------------------------


def run(parts: Parts, session: Session[RefineGrpoConfig]) -> Mapping[str, Any]:
    """Play and train, round after round; see `runner.pipeline.Command.run`."""
    from offline_agent.envs.pool import EnvPool
    from offline_agent.rollouts.episodes import Episodes
    from offline_agent.training import checkpoints
    from offline_agent.training.models import add_adapters, set_threads
    from offline_agent.training.online.trainer import train_online

    config, folder = session.config, session.run.path
    model, tokenizer, renderer = parts.trainable
    set_threads(config.threads, model)
    if parts.replayed is not None:
        _training.tell(session, parts.replayed)
    begun, lora, rollouts = _training.hashes(parts.trainable), config.lora, config.rollouts
    assert parts.sampler is not None
    policy = parts.sampler.policy
    if lora.rank:
        model = add_adapters(model, lora.rank, lora.alpha, lora.dropout, lora.targets, config.seed)
    newest = checkpoints.newest(folder / "checkpoints")
    first = 0 if newest is None else checkpoints.number(newest) // parts.online.per_round
    log = _rounds.RoundLog(session.run, parts.tasks)
    engine, pool = policy.engine(), EnvPool(config.limits.workers, config.limits.step_seconds)
    session.progress.start(parts.online.rounds * parts.online.per_round, "updates")
    started = time.perf_counter()
    try:
        episodes = Episodes(
            parts.spec, engine, pool, seed=config.seed, max_steps=rollouts.max_steps,
            temperature=rollouts.temperature, max_tokens=rollouts.max_tokens, in_flight=rollouts.in_flight,
            reset_seconds=config.limits.reset_seconds,
        )  # fmt: skip
        player = _rounds.Player(episodes, log, parts.groups.size, first)
        groups = RoundSampler(parts.tasks, parts.groups, parts.objective, player, config.seed, parts.reward)
        steps = _rounds.remember(groups, log, first)
        stage = _Stage(parts, session, tokenizer, groups, episodes, pool, player, log, steps)
        result = train_online(
            model, tokenizer, stage.play, parts.anchors, _training.settings(config), parts.online, parts.objective,
            folder, log=stage.record, watch=stage.look, say=session.say,
        )  # fmt: skip
    finally:
        engine.close()
        pool.close()
        policy.close()
    seconds = time.perf_counter() - started
    saved = _training.save(model, tokenizer, folder)
    exported = _rounds.export(parts.trainable[2], session, log)
    return {
        "pipeline": session.run.manifest["command"],
        "environment": parts.spec.name,
        "tasks": len(parts.tasks),
        "objective": asdict(parts.objective),
        "model": {**saved, "begun": begun},
        "training": {**_training.of_result(result, seconds), **ends(result)},
        "filtered": exported.pop("filtered"),
        "rollouts": {**exported, "env_steps": stage.env_steps, "refused_rows": log.refused},
        **of_servers({"sampler": policy}),
        "data": None if parts.replayed is None else _training.of_report(parts.replayed),
        "findings": [[finding.rule, finding.update, finding.text] for finding in stage.findings],
        "checklist": [list(line) for line in checklist(session.run.events().read())],
        "warnings": [
            *(parts.replayed.notes() if parts.replayed else ()),
            *result.warnings,
            *crowded(result, config.limits.workers),
        ],
    }


@dataclass
class _Stage:
    """A run under way: plays rounds, takes records, looks for collapse."""

    parts: Parts
    session: Session[RefineGrpoConfig]
    tokenizer: Any
    groups: RoundSampler
    episodes: Episodes
    pool: EnvPool
    player: _rounds.Player
    log: _rounds.RoundLog
    env_steps: int

    def __post_init__(self) -> None:
        self._recorder = _training.Recorder(self.session)
        seen = list(self.session.run.events().read())
        self._watch = None if self.parts.watch is None else Watch(self.parts.watch)
        self._told: dict[int, list[Finding]] = {}
        for record in seen:
            if self._watch is not None:
                self._told[int(record["update"])] = self._watch(record)
        self._seen = max(self._told, default=0)

    @property
    def findings(self) -> list[Finding]:
        """What the watch said of the run, those sessions included that were stopped."""
        return [finding for update in sorted(self._told) for finding in self._told[update]]

    def play(self, number: int, model: Any) -> PlayedRound:
        """Play a round with the model's weights, and say what is trained on; see `online.Rounds`."""
        from offline_agent.training.online.credit import CreditAssignment
        from offline_agent.training.online.round_batch import PlayedRound
        from offline_agent.training.online.samples import sample

        assert self.parts.sampler is not None
        give = partial(self.parts.sampler.give, model, self.tokenizer, self.session.run.path)
        handed = give()
        self.player.renew = give
        before, busy = self.player.seconds, self.pool.busy_seconds
        prompt = self.episodes.prefilled, self.episodes.cached
        made = self.groups.make(number)
        self.parts.sampler.rest()
        seconds = self.player.seconds - before
        self.env_steps += made.env_steps
        refused: list[tuple[str, str]] = []
        config, parts = self.session.config, self.parts
        samples = sample(
            made,
            parts.trainable[2],
            parts.objective,
            max_length=_training.max_length(config, parts.trainable[0]),
            credit=CreditAssignment(
                config.rollouts.credit, config.rollouts.turn_discount, config.rollouts.outcome, turn_judge(config)
            ),
            refused=refused,
        )
        for name, reason in refused:
            self.session.run.quarantine("row", name, reason)
        for attempt, reward in made.rewarded:
            if reward is None:
                name = f"round {number}, {attempt.task.task_id}/{attempt.number}"
                self.session.run.quarantine("attempt", name, self._why_unscored(attempt))
        self.log.close_round(_rounds.record_of(made, seconds, len(refused)))
        figures = _rounds.figures(made, self.env_steps, seconds)
        figures |= _rounds.figures_of_sampler(
            self.episodes.prefilled - prompt[0], self.episodes.cached - prompt[1], handed
        )
        if seconds > 0:
            figures["tools_busy"] = (self.pool.busy_seconds - busy) / (self.pool.workers * seconds)
        if samples:
            whole = sum(len(s.input_ids) for s in samples)
            figures["trained_share"] = sum(s.tokens for s in samples) / whole
        return PlayedRound(samples, made.temperature, figures)

    def _why_unscored(self, attempt: Attempt) -> str:
        done = attempt.episode()
        if attempt.reward is None or self.parts.reward is None or done is None:
            return str(attempt.verdict.error)
        return str(self.parts.reward.judge(done).error)

    def record(self, record: Mapping[str, Any]) -> None:
        """Keep an update's record."""
        self._recorder(record)

    def look(self, record: Mapping[str, Any]) -> int | None:
        """Tell what is wrong; answer how many updates are sound where the run must stop."""
        if self._watch is None:
            return None
        update = int(record["update"])
        if update > self._seen:
            self._told[update] = self._watch(record)
        sound, findings = None, self._told.get(update, ())
        for finding in findings:
            self.session.say(f"{'stopping' if finding.stops else 'warning'}: update {finding.update}: {finding.text}")
            if finding.stops:
                sound = max(0, finding.since - 1)
        if findings:
            for name, line in checklist(self.session.run.events().read()):
                self.session.say(f"  {name}: {line}")
        return sound


COMMAND: Command[RefineGrpoConfig, Parts] = Command(
    name="refine_grpo",
    about="Refine a policy online: play rounds of episodes and train on them, by GRPO or another of its family.",
    config=RefineGrpoConfig,
    prepare=prepare,
    run=run,
    show=show,
)

if __name__ == "__main__":
    sys.exit(main(COMMAND))
