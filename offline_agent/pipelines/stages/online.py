"""The online stage: checks of its keys, its settings, its inputs, and a run of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from offline_agent.config.refine_grpo import RefineGrpoConfig
from offline_agent.envs.base import EnvSpec
from offline_agent.errors import ConfigError
from offline_agent.pipelines.stages.credit import credit_of, shared_states, turn_judge
from offline_agent.pipelines.stages.rounds import RoundLog, RoundPlayer, record_of
from offline_agent.pipelines.stages.sampler import Sampler
from offline_agent.records import Task
from offline_agent.report.refine_grpo import round_figures, sampler_figures
from offline_agent.runner.components import make_ranking, make_reward
from offline_agent.runner.training import Recorder, Trainable, max_length
from offline_agent.training.collapse.watch import Finding, Watch, WatchSettings, checklist
from offline_agent.training.online.groups import GroupSettings, RoundSampler
from offline_agent.training.settings import OnlineSettings

if TYPE_CHECKING:
    from offline_agent.envs.pool import EnvPool
    from offline_agent.judges.rewards import CompositeReward
    from offline_agent.rollouts.attempts import Attempt
    from offline_agent.rollouts.episodes import Episodes
    from offline_agent.runner.pipeline import Session
    from offline_agent.training.data.rows import LoadReport, TrajectoryRow
    from offline_agent.training.online.objectives import Objective
    from offline_agent.training.online.ranked import RankingReward
    from offline_agent.training.online.round_batch import PlayedRound

def faults(config: RefineGrpoConfig) -> list[str]:
    """Return contradictions between the keys, before anything is loaded."""
    found = [*_conflicts(config)]
    watch = watch_settings(config)
    reward = make_reward if config.reward.ranking.name == "none" else make_ranking
    checks = lambda: objective_of(config), lambda: reward(config), lambda: turn_judge(config)
    for check in (*checks, group_settings(config).check, *([watch.check] if watch else [])):
        try:
            check()
        except ConfigError as error:
            found += error.faults
    return found


def _conflicts(config: RefineGrpoConfig) -> Iterator[str]:
    sampler, rollouts, correction = config.sampler, config.rollouts, _correction(config)
    hot = sorted({t for t in (rollouts.temperature, rollouts.last_temperature) if t not in (1.0, None)}, key=float)  # type: ignore[arg-type]
    if correction != "off" and hot:
        yield (
            f"sampler.correction: {correction} compares log-probabilities, which {sampler.name} gives at "
            f"temperature 1, but rollouts.temperature is {', '.join(map(str, hot))}; set it to 1, or "
            "sampler.correction=off"
        )
    yield from _reward_conflicts(config)
    if rollouts.credit == "turn" and not rollouts.branches:
        yield "rollouts.credit: turn needs branches to compare with; set rollouts.branches=0.5, or credit=trajectory"
    if rollouts.credit == "state" and rollouts.branches:
        yield (
            "rollouts.credit: state compares episodes that begin at the beginning; set rollouts.branches=0, or "
            "rollouts.credit=turn"
        )
    if rollouts.credit in ("turn", "state"):
        try:
            chosen = objective_of(config)
        except ConfigError:
            return  # `faults` reports it
        if rollouts.credit == "state":
            if chosen.baseline not in ("mean", "leave_one_out"):
                yield (
                    f"rollouts.credit: state takes means of states off, and objective {chosen.name} has baseline "
                    f"{chosen.baseline}; set rollouts.credit=trajectory, or objective.baseline=mean or leave_one_out"
                )
            return
        if chosen.baseline == "value":
            yield (
                f"rollouts.credit: turn compares branches, and objective {chosen.name} asks its critic; set "
                "rollouts.credit=trajectory, or an objective without a critic"
            )
        if chosen.overlong_soft is not None:
            yield (
                "rollouts.credit: turn takes its advantages from what the branches came to, which overlong shaping "
                "does not change; set rollouts.credit=trajectory, or leave out objective.overlong_soft and _hard"
            )


def _correction(config: RefineGrpoConfig) -> str:
    default = "off" if config.sampler.name == "hf" else "token_truncate"
    return config.sampler.correction or default


def objective_of(config: RefineGrpoConfig) -> Objective:
    """Return the objective; raises ConfigError."""
    from offline_agent.training.online.objectives import OBJECTIVES, objective

    given = config.objective.model_dump(exclude={"name", "passes", "minibatches"}, exclude_none=True)
    known = OBJECTIVES.get(config.objective.name)
    average = given.get("average") or (known.average if known is not None else None)
    if average == "budget" and "budget" not in given:
        given["budget"] = config.rollouts.max_steps * config.rollouts.max_tokens
    try:
        return objective(config.objective.name, **given)
    except ConfigError as error:
        raise ConfigError([f"objective: {fault}" for fault in error.faults]) from error


def group_settings(config: RefineGrpoConfig) -> GroupSettings:
    """Return the settings of the rounds."""
    names = (
        "tasks", "size", "temperature", "last_temperature", "choice", "rest", "redraws", "branches", "epsilon",
        "last_epsilon", "reward",
    )  # fmt: skip
    return GroupSettings(rounds=config.rounds, **{name: getattr(config.rollouts, name) for name in names})


def online_settings(config: RefineGrpoConfig) -> OnlineSettings:
    """Return the settings of the updates made of rounds."""
    critic, rate = config.critic, config.critic.learning_rate
    return OnlineSettings(
        rounds=config.rounds,
        passes=config.objective.passes,
        minibatches=config.objective.minibatches,
        correction=_correction(config),  # type: ignore[arg-type]  # one of CORRECTIONS
        cap=config.sampler.cap,
        gamma=critic.gamma,
        lam=critic.lam,
        value_weight=critic.coefficient,
        value_clip=critic.clip,
        value_rate=rate if rate is not None else 10 * config.optimizer.learning_rate,
        trunk=critic.trunk,
        anchor_rows=config.offline.rows,
        anchor_weight=config.offline.weight,
    )


def watch_settings(config: RefineGrpoConfig) -> WatchSettings | None:
    """Return the settings of the collapse watch; None = off."""
    if not config.watch.enabled:
        return None
    return WatchSettings(**config.watch.model_dump(exclude={"enabled"}, exclude_none=True))


def _reward_conflicts(config: RefineGrpoConfig) -> Iterator[str]:
    """Yield contradictions between the keys of the reward and of the judge of turns."""
    rollouts, shaped = config.rollouts, dict(config.reward.model_extra or {})
    if shaped and rollouts.reward == "success":
        yield (
            f"reward: {', '.join(sorted(shaped))} and rollouts.reward=success both say what an episode is worth; leave "
            "one of them out (reward.failure_ceiling=0 gives no partial credit either)"
        )
    if shaped.get("length_rule") == "dapo" and config.objective.overlong_soft is not None:
        yield (
            "reward.length_rule: dapo is the punishment that objective.overlong_soft and _hard add; name one of the two"
        )
    if rollouts.turn_judge is None:
        return
    if rollouts.credit != "turn_reward":
        yield f"rollouts.turn_judge: credit={rollouts.credit} does not ask it; set rollouts.credit=turn_reward"
    if rollouts.outcome < 1:
        yield (
            f"rollouts.outcome: got {rollouts.outcome:g}, with rollouts.turn_judge at least 1: what a judge says of "
            "turns adds up to 1 at most, and must not outweigh the outcome"
        )


# -- a run -------------------------------------------------------------------------------------------------------------


@dataclass
class OnlineInputs:
    """The inputs of the online stage, made from the configuration.

    Attributes:
        spec, tasks: The environment and the pool of tasks.
        trainable: Model, tokenizer and renderer.
        objective: The objective.
        groups, online: Settings of the rounds, and of the updates made of them.
        watch: Settings of the collapse watch; None = off.
        reward: The composite reward of an episode; None = as `groups.reward` says.
        ranking: Ranks the attempts of a group; None = they are not ranked.
        sampler: Plays the roll-outs; None until everything else is checked.
        anchors, replayed: Trajectories of earlier runs trained on beside the roll-outs, and the report of loading.
    """

    spec: EnvSpec
    tasks: list[Task]
    trainable: Trainable
    objective: Objective
    groups: GroupSettings
    online: OnlineSettings
    watch: WatchSettings | None
    reward: CompositeReward | None = None
    ranking: RankingReward | None = None
    sampler: Sampler | None = None
    anchors: list[TrajectoryRow] = field(default_factory=list)
    replayed: LoadReport | None = None


@dataclass
class OnlineRun:
    """A run of the online stage: plays rounds, keeps records, watches for collapse."""

    inputs: OnlineInputs
    session: Session[RefineGrpoConfig]
    tokenizer: Any
    groups: RoundSampler
    episodes: Episodes
    pool: EnvPool
    player: RoundPlayer
    log: RoundLog
    env_steps: int

    def __post_init__(self) -> None:
        self._recorder = Recorder(self.session)
        seen = list(self.session.run.events().read())
        self._watch = None if self.inputs.watch is None else Watch(self.inputs.watch)
        self._told: dict[int, list[Finding]] = {}
        for record in seen:
            if self._watch is not None:
                self._told[int(record["update"])] = self._watch(record)
        self._seen = max(self._told, default=0)

    @property
    def findings(self) -> list[Finding]:
        """All findings of the watch, those of stopped sessions included."""
        return [finding for update in sorted(self._told) for finding in self._told[update]]

    def play(self, number: int, model: Any) -> PlayedRound:
        """Play a round with the weights of the model; return its samples; see `online.trainer.Rounds`."""
        from offline_agent.training.online.round_batch import PlayedRound
        from offline_agent.training.online.samples import sample

        assert self.inputs.sampler is not None
        give = partial(self.inputs.sampler.give, model, self.tokenizer, self.session.run.path)
        handed = give()
        self.player.renew = give
        before, busy = self.player.seconds, self.pool.busy_seconds
        prompt = self.episodes.prefilled, self.episodes.cached
        made = self.groups.make(number)
        self.inputs.sampler.rest()
        seconds = self.player.seconds - before
        self.env_steps += made.env_steps
        shared = shared_states(self.session.config, self.inputs.spec.name, made)
        refused: list[tuple[str, str]] = []
        config, inputs = self.session.config, self.inputs
        samples = sample(
            made,
            inputs.trainable[2],
            inputs.objective,
            max_length=max_length(config, inputs.trainable[0]),
            credit=credit_of(config),
            refused=refused,
        )
        for name, reason in refused:
            self.session.run.quarantine("row", name, reason)
        for group in made.groups:
            unranked = group.unranked or [None] * len(group.attempts)
            for attempt, reward, why in zip(group.attempts, group.rewards, unranked, strict=True):
                if reward is None:
                    name = f"round {number}, {attempt.task.task_id}/{attempt.number}"
                    self.session.run.quarantine("attempt", name, why or self._why_unscored(attempt))
        self.log.close_round(record_of(made, seconds, len(refused)))
        figures = round_figures(made, self.env_steps, seconds)
        figures |= {} if shared is None else {"shared_states": shared}
        figures |= sampler_figures(
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
        if attempt.reward is None or self.inputs.reward is None or done is None:
            return str(attempt.verdict.error)
        return str(self.inputs.reward.judge(done).error)

    def record(self, record: Mapping[str, Any]) -> None:
        """Keep the record of an update."""
        self._recorder(record)

    def look(self, record: Mapping[str, Any]) -> int | None:
        """Report findings; return the number of sound updates if the run must stop, else None."""
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
