"""Repeats of the same actions: in new instances, in a new process, after other episodes; and the noise they show."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean, pstdev
from typing import Any

from offline_agent.envs.base import EnvSpec, Episode
from offline_agent.envs.checks.suite import Checks
from offline_agent.envs.checks.tools import NotApplicable
from offline_agent.envs.play import begin, extend, to_step
from offline_agent.envs.scripted_play import difference, faulty
from offline_agent.errors import ConfigError, EnvironmentFault
from offline_agent.records import Action, Context, Task


class Repeats:
    """Checks by repetition.

    Args:
        spec: The environment.
        checks: Tasks and player.
        times: Times that the same actions are played.
        measured: Figures of the present check are put here.
    """

    def __init__(self, spec: EnvSpec, checks: Checks, times: int, measured: dict[str, Any]) -> None:
        self.spec = spec
        self.checks = checks
        self.times = times
        self.measured = measured

    def verdicts(self) -> Iterator[str]:
        """The same end state gets the same verdict, asked again and reached again."""
        if not self.spec.deterministic_verifier:
            raise NotApplicable("the verifier says that it is not deterministic")
        for task in self.checks.some():
            script = self.checks.player.script(task)
            given = set()
            for _ in range(2):
                with self.checks.opened() as episode:
                    self.checks.player.run_on(episode, task, script)
                    for _ in range(self.times):
                        verdict = episode.verdict()
                        given.add((verdict.score, verdict.success, str(dict(verdict.evidence)), verdict.error))
            if len(given) > 1:
                scores = sorted({str(score) for score, *_ in given})
                yield f"{task.task_id}: one end state got {len(given)} verdicts, with scores {', '.join(scores)}"

    def process(self) -> Iterator[str]:
        """The same actions in a process of a new interpreter are answered alike."""
        if self.spec.isolated:
            raise NotApplicable("the environment runs in processes of its own as it is")
        try:
            other = EnvSpec.load(
                self.spec.path, self.spec.args, isolated=True, judge=self.spec.judge, sandboxed=self.spec.sandboxed,
                max_observation_chars=self.spec.max_observation_chars,
            )  # fmt: skip
            other.open().close()
        except (ConfigError, EnvironmentFault) as error:
            raise NotApplicable(f"no other process can load it: {error}") from error
        for task in self.checks.some():
            script = self.checks.player.script(task)
            here = self.checks.player.run(task, script)
            episode = other.open()
            try:
                there = self.checks.player.run_on(episode, task, script)
            finally:
                episode.close()
            if (detail := difference(here, there)) is not None:
                mend = self.spec.mend(
                    "do not depend on the order of sets, hash(), id(), the time or the working directory",
                    "what is adapted depends on chance, the time or the working directory",
                )
                yield f"{task.task_id}: a new process answers the same actions differently; {mend}; {detail}"

    def isolation(self) -> Iterator[str]:
        """After every kind of episode a reset begins anew, and two instances do not disturb one another."""
        for task in self.checks.some():
            script = self.checks.player.script(task)
            expected = self.checks.player.run(task, script)
            with self.checks.opened() as episode:
                for kind, actions in self._kinds(episode, task, script):
                    self._act(episode, begin(episode, task), actions)
                    if (detail := difference(expected, self.checks.player.run_on(episode, task, script))) is not None:
                        yield f"{task.task_id}: after an episode that was {kind}, reset did not begin anew: {detail}"
                        break
            with self.checks.opened() as one, self.checks.opened() as other:
                start = begin(one, task)
                self.checks.player.run_on(other, task, script)
                played = self.checks.player.run_on(one, task, script, after=start)
                if (detail := difference(expected, played)) is not None:
                    mend = self.spec.mend("share no state", "set env.isolate=process")
                    yield f"{task.task_id}: an episode of another instance changed this one; {mend}; {detail}"

    def _kinds(self, episode: Episode, task: Task, script: list[Action]) -> Iterator[tuple[str, list[Action]]]:
        """Yield kinds of episodes with their actions."""
        yield "not begun", []
        yield "left in the middle", script[: len(script) // 2]
        yield "played to its end", script
        yield "ended by an answer", [Action("")]
        episode.reset(task)
        yield "full of faulty turns", list(faulty(episode))

    @staticmethod
    def _act(episode: Episode, context: Context, actions: list[Action]) -> None:
        for action in actions:
            if episode.terminated:
                return
            context = extend(context, to_step(episode.tools, action, episode.step(action)))

    def noise(self) -> Iterator[str]:
        """Repeats of the same actions break nowhere, and earn the same."""
        spreads: list[float] = []
        means: list[float] = []
        faults: list[str] = []
        differing: list[str] = []  # where the runs of a task differ
        plays = 0
        for task in self.checks.some():
            script, scores, first, detail = self.checks.player.script(task), [], None, None
            for _ in range(self.times):
                plays += 1
                try:
                    played = self.checks.player.run(task, script)
                except EnvironmentFault as fault:
                    faults.append(f"{task.task_id}: {fault}")
                    continue
                first = first or played
                detail = detail or difference(first, played)
                if played.verdict is not None and played.verdict.score is not None:
                    scores.append(played.verdict.score)
            differing += [f"{task.task_id}, {detail}"] if detail else []
            if scores:
                spreads.append(pstdev(scores))
                means.append(fmean(scores))
        noise = fmean(spreads) if spreads else 0.0
        between = pstdev(means) if len(means) > 1 else 0.0
        self.measured |= {
            "plays": plays, "faults": len(faults), "flakiness": round(len(faults) / plays, 4) if plays else None,
            "tasks_that_differ": len(differing), "reward_noise": round(noise, 4), "reward_spread": round(between, 4),
        }  # fmt: skip
        if faults:
            yield f"{len(faults)} of {plays} plays of actions that worked before broke: {faults[0]}"
        if noise:
            detail = "repeats of the same actions differ in reward by a standard deviation of"
            yield f"{detail} {noise:.3g} within a task{'; ' * bool(differing)}{''.join(differing[:1])}"
        elif differing:
            yield f"repeats of the same actions were answered differently in {len(differing)} tasks; {differing[0]}"
