"""An episode whose verdicts are a judge's, in place of the environment's own (`judge=` of a configuration)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offline_agent.envs.episode import Episode, StepResult
from offline_agent.records import Action, Context, Step, Task, Trajectory, Verdict

if TYPE_CHECKING:
    from offline_agent.envs.base import EnvSpec
    from offline_agent.judges.judge import Judge


class JudgedEpisode(Episode):
    """An episode that keeps its history and shows it to a judge.

    Every place that asks for a verdict (search, roll-outs, evaluation, replays) asks an episode, so a judge put here
    reaches all of them.

    Args:
        spec: The environment.
        episode: The episode, in this process or in one of its own.
        judge: Gives the verdicts.
    """

    _counts = False  # the episode in it is counted

    def __init__(self, spec: EnvSpec, episode: Episode, judge: Judge) -> None:
        self.spec = spec
        self.tools = episode.tools
        self._episode = episode
        self._judge = judge
        self._context: Context | None = None
        self._steps: list[Step] = []

    @property
    def terminated(self) -> bool:
        """See `Episode.terminated`."""
        return self._episode.terminated

    @property
    def usable_here(self) -> bool:
        """See `Episode.usable_here`."""
        return self._episode.usable_here

    @property
    def system_prompt(self) -> str:
        """See `Episode.system_prompt`."""
        return self._episode.system_prompt

    def reset(self, task: Task) -> str:
        """See `Episode.reset`."""
        observation = self._episode.reset(task)
        self.tools = self._episode.tools
        self._context = Context(task, self._episode.system_prompt, self.tools.schemas, observation)
        self._steps = []
        return observation

    def step(self, action: Action) -> StepResult:
        """See `Episode.step`."""
        result = self._episode.step(action)
        assert self._context is not None  # an episode that was not reset refuses the step
        key = self.tools.canonical_key(action)
        self._steps.append(Step(action, key, result.observation, result.role, result.fault, result.reward))
        self._context = self._context.child(action, result.observation, result.role)
        return result

    def verdict(self) -> Verdict:
        """Return the judge's verdict on the history so far; an error of the judge is a verdict without a score."""
        own = self._episode.verdict()
        if self._context is None:
            return own
        return self._judge(Trajectory(self._context, tuple(self._steps), own, self.terminated, False, "rollout"))

    def copy(self) -> Episode:
        """See `Episode.copy`."""
        twin = JudgedEpisode(self.spec, self._episode.copy(), self._judge)
        twin._context, twin._steps = self._context, list(self._steps)
        return twin

    def fingerprint(self) -> str | None:
        """See `Episode.fingerprint`."""
        return self._episode.fingerprint()

    def achieved_goal(self) -> dict[str, Any] | None:
        """See `Episode.achieved_goal`."""
        return self._episode.achieved_goal()

    def turn_reward(self) -> float | None:
        """See `Episode.turn_reward`."""
        return self._episode.turn_reward()

    def undeclared_turn_reward(self) -> bool:
        """See `Episode.undeclared_turn_reward`."""
        return self._episode.undeclared_turn_reward()

    def close(self) -> None:
        """See `Episode.close`."""
        self._episode.close()
