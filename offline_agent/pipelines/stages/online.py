"""The online stage: its inputs, and a run of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from offline_agent.config.refine_grpo import RefineGrpoConfig
from offline_agent.envs.base import EnvSpec
from offline_agent.errors import ConfigError, collect
from offline_agent.pipelines.stages.playing import RoundPlayer, RoundsAhead
from offline_agent.pipelines.stages.rounds import RoundLog, Sampler, scored_by
from offline_agent.records import Task, Trajectory
from offline_agent.report.refine_grpo import checklist, round_figures, sampler_figures, staleness
from offline_agent.runner.components import judge_of_turns, make_reward
from offline_agent.runner.training import max_length
from offline_agent.training.collapse import Finding, Watch, WatchSection
from offline_agent.training.online import credit
from offline_agent.training.online.groups import Round, RoundSampler
from offline_agent.training.online.objectives import Objective
from offline_agent.training.online.settings import GroupSettings, OnlineSettings

if TYPE_CHECKING:
    from offline_agent.envs.pool import EnvPool
    from offline_agent.judges.rewards import CompositeReward
    from offline_agent.policies.base import Engine
    from offline_agent.policies.server.policy import ServerPolicy
    from offline_agent.rollouts.attempts import Attempt
    from offline_agent.runner.pipeline import Session
    from offline_agent.training.models import Trainable
    from offline_agent.training.online.round_batch import PlayedRound

NO_STATES = (
    "rollouts.credit: state compares turns in states of an equal fingerprint, and environment {name} {what}: give its "
    "class a property fingerprint (a hash of the state), or set rollouts.credit=trajectory"
)


def turn_judge(config: RefineGrpoConfig) -> Callable[[Trajectory], Sequence[float]] | None:
    """Return the judge of turns; None = the environment rewards turns. Raises ConfigError."""
    name = config.rollouts.turn_judge
    return None if name is None else judge_of_turns("rollouts.turn_judge", name)


def faults(config: RefineGrpoConfig) -> list[str]:
    """Return contradictions between the keys, before anything is loaded."""
    found = [*_conflicts(config)]
    collect(found, lambda: make_reward(config))
    collect(found, lambda: turn_judge(config))
    return found


def _conflicts(config: RefineGrpoConfig) -> Iterator[str]:
    sampler, rollouts = config.sampler, config.rollouts
    correction = sampler.weights(rollouts.behind)
    if rollouts.behind:
        yield from _overlap_conflicts(config)
    elif correction != "off" and rollouts.temperature != 1.0:
        yield (
            f"sampler.correction: {correction} compares log-probabilities, which {sampler.name} gives at temperature "
            f"1, but rollouts.temperature is {rollouts.temperature}; set it to 1, or sampler.correction=off"
        )
    yield from _reward_conflicts(config)
    chosen = objective_of(config)
    if rollouts.credit == "state" and chosen.baseline not in ("mean", "leave_one_out"):
        yield (
            f"rollouts.credit: state takes means of states off, and objective {chosen.name} has baseline "
            f"{chosen.baseline}; set rollouts.credit=trajectory, or objective.baseline=mean or leave_one_out"
        )


def _overlap_conflicts(config: RefineGrpoConfig) -> Iterator[str]:
    """Yield what keeps playing and training from going on at once."""
    sampler, rollouts = config.sampler, config.rollouts
    what = f"rollouts.behind: got {rollouts.behind}"
    if sampler.name == "colocated":
        yield (
            f"{what}, and sampler.name=colocated computes on the trainer's device, in the memory that training leaves "
            "it; set sampler.name=server (or hf), or rollouts.behind=0"
        )
    if sampler.correction == "off" or rollouts.temperature != 1.0:
        yield (
            f"{what}, so tokens are weighed by what the trainer's probability is to that of older weights, which is "
            f"known at temperature 1; got sampler.correction={sampler.correction or 'null'} and "
            f"rollouts.temperature={rollouts.temperature:g}: leave both out, or set rollouts.behind=0"
        )


def objective_of(config: RefineGrpoConfig) -> Objective:
    """Return the objective."""
    return config.objective.chosen(config.rollouts.max_steps * config.rollouts.max_tokens)


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


@dataclass(frozen=True)
class OnlineInputs:
    """The inputs of the online stage, made from the configuration.

    Attributes:
        spec, tasks: The environment and the pool of tasks.
        trainable: Model, tokenizer and renderer.
        sampler, objective: What plays the roll-outs, and what is maximised.
        groups, online: Settings of the rounds, and of the updates made of them.
        watch: Settings of the collapse watch; None = off.
        reward: The composite reward of an episode; None = as `groups.reward` says.
        teacher, served: The model, or the servers, that `objective.teacher` names; None = others.
    """

    spec: EnvSpec
    tasks: list[Task]
    trainable: Trainable
    sampler: Sampler
    objective: Objective
    groups: GroupSettings
    online: OnlineSettings
    watch: WatchSection | None
    reward: CompositeReward | None
    teacher: Any = None
    served: ServerPolicy | None = None


class OnlineRun:
    """A run of the online stage: plays rounds, logs them, watches for collapse.

    It goes on after the rounds that an earlier session trained on.

    Args:
        inputs, session: The stage's inputs and the run.
        engine, pool: Of the policy, and of the environments.

    Attributes:
        log: The event logs of rounds and attempts.
        ahead: Plays ahead; does nothing with `rollouts.behind=0`.
        env_steps: Steps of the environment in all rounds so far.

    Raises:
        DataError: The log has not all rounds that a checkpoint was made of.
    """

    def __init__(
        self, inputs: OnlineInputs, session: Session[RefineGrpoConfig], engine: Engine, pool: EnvPool
    ) -> None:
        from offline_agent.rollouts.episodes import Episodes
        from offline_agent.training import checkpoints

        config, rollouts, census = session.config, session.config.rollouts, inputs.spec.census
        newest = checkpoints.newest(session.run.path / "checkpoints")
        first = 0 if newest is None else checkpoints.number(newest) // inputs.online.per_round
        self.inputs, self.session, self._pool = inputs, session, pool
        self.log = RoundLog(session.run, inputs.tasks)
        self._episodes = Episodes(
            inputs.spec, engine, pool, seed=config.seed, max_steps=rollouts.max_steps,
            temperature=rollouts.temperature, max_tokens=rollouts.max_tokens,
            in_flight=min(rollouts.in_flight, census.most),
            reset_seconds=config.limits.reset_seconds, states=rollouts.credit == "state",
            gate=(lambda idle: self.ahead.gate(idle)) if rollouts.behind else None,
            tick=lambda: session.progress.update(
                session.progress.done, round_episodes=self._player.standing
            ),
        )  # fmt: skip
        self._player = RoundPlayer(self._episodes, self.log, inputs.groups.size, first)
        self._groups = RoundSampler(
            inputs.tasks, inputs.groups, inputs.objective, self._player, config.seed, inputs.reward
        )
        rounds = inputs.online.rounds
        self.ahead = RoundsAhead(self._groups, self._player, first, rounds, inputs.sampler.lasting)
        self.env_steps = self.log.remind(self._groups, first)
        self._before = self._spent()
        self._watch = None if inputs.watch is None else Watch(inputs.watch)
        self._told: dict[int, list[Finding]] = {}
        if self._watch is not None:
            self._told = {int(record["update"]): self._watch(record) for record in session.run.events().read()}
        self._seen = max(self._told, default=0)

    @property
    def findings(self) -> list[Finding]:
        """All findings of the watch, those of stopped sessions included."""
        return [finding for update in sorted(self._told) for finding in self._told[update]]

    def play(self, number: int, model: Any) -> PlayedRound:
        """Return the samples of a round; see `online.trainer.Rounds`.

        It is played now, with the weights of the model, or was begun before, as `rollouts.behind` says.
        """
        from offline_agent.training.online.round_batch import PlayedRound
        from offline_agent.training.online.samples import sample

        config, inputs, refused = self.session.config, self.inputs, list[tuple[str, str]]()
        give = partial(inputs.sampler.give, model, inputs.trainable.tokenizer, self.session.run.path)
        if config.rollouts.behind:
            made = self.ahead.take(number, give())
            handed = self.ahead.handed
        else:
            handed, self._player.renew = give()(), lambda: give()()
            made = self._groups.make(number)
        inputs.sampler.rest()
        before, self._before = self._before, self._spent()
        spent = [now - then for now, then in zip(self._before, before, strict=True)]
        seconds, busy, prefilled, cached, waited, idle = spent
        self.env_steps += made.env_steps
        shared = self._shared_states(made)  # before the round counts as played: it may raise
        samples = sample(
            made, inputs.trainable.renderer, inputs.objective,
            max_length=max_length(config, inputs.trainable.model), settings=inputs.groups, refused=refused,
        )  # fmt: skip
        samples = samples if inputs.served is None else scored_by(inputs.served, samples)
        self._quarantine(made, refused)
        self.log.close_round(made, seconds, len(refused))
        figures = round_figures(made, self.env_steps, seconds)
        figures |= {} if shared is None else {"shared_states": shared}
        figures |= sampler_figures(int(prefilled), int(cached), handed)
        if config.rollouts.behind:
            figures |= {"trainer_idle": waited, "player_idle": idle, **staleness(number, samples)}
        if seconds > 0:
            figures["tools_busy"] = busy / (self._pool.workers * seconds)
        if samples:
            figures["trained_share"] = sum(s.tokens for s in samples) / sum(len(s.input_ids) for s in samples)
        return PlayedRound(samples, made.temperature, figures)

    def _spent(self) -> tuple[float, float, int, int, float, float]:
        """Return what was spent so far.

        Seconds of playing, busy seconds of the pool, prompt tokens computed and found in the cache, and, of rounds that
        are played ahead, seconds in which the trainer and the player waited.
        """
        ahead, episodes = self.ahead, self._episodes
        seconds = self._player.seconds + ahead.seconds  # one of them plays
        return seconds, self._pool.busy_seconds, episodes.prefilled, episodes.cached, ahead.waited, ahead.idle

    def _shared_states(self, made: Round) -> float | None:
        """Return the share of a round's turns in states that another turn of their group has too.

        None where credit is not given by states, or nothing was judged.

        Raises:
            ConfigError: The environment gave no fingerprint in the whole round.
        """
        if self.session.config.rollouts.credit != "state":
            return None
        states = [state for attempt in made.attempts for state in attempt.states]
        if states and not any(state is not None for state in states):
            raise ConfigError(NO_STATES.format(name=self.inputs.spec.name, what="gave None in a whole round"))
        counts = [credit.shared_states(group) for group in made.groups]
        turns = sum(every for _, every in counts)
        return sum(shared for shared, _ in counts) / turns if turns else None

    def _quarantine(self, made: Round, refused: Sequence[tuple[str, str]]) -> None:
        """Note the rows that cannot be trained on, and the attempts without a reward."""
        for name, reason in refused:
            self.session.run.quarantine("row", name, reason)
        for group in made.groups:
            for attempt, reward in zip(group.attempts, group.rewards, strict=True):
                if reward is None:
                    name = f"round {made.number}, {attempt.task.task_id}/{attempt.number}"
                    self.session.run.quarantine("attempt", name, self._why_unscored(attempt))

    def _why_unscored(self, attempt: Attempt) -> str:
        done, reward = attempt.episode(), self.inputs.reward
        verdict = attempt.verdict if attempt.reward is None or reward is None or done is None else reward.judge(done)
        return str(verdict.error)

    def look(self, record: Mapping[str, Any]) -> int | None:
        """Report findings; return the number of sound updates if the run must stop, else None."""
        if self._watch is None:
            return None
        update = int(record["update"])
        if update > self._seen:
            self._told[update] = self._watch(record)
        sound, findings, say = None, self._told.get(update, ()), self.session.say
        for finding in findings:
            say(f"{'stopping' if finding.stops else 'warning'}: update {finding.update}: {finding.text}")
            before = max(0, finding.since - 1)
            if finding.stops:
                sound = before if sound is None else min(sound, before)
        for name, line in checklist(self.session.run.events().read()) if findings else ():
            say(f"  {name}: {line}")
        return sound
