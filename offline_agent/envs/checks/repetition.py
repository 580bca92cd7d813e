"""Checks by repetition: the same verdicts, the same answers in another process, and nothing left of an episode."""

from __future__ import annotations

from collections.abc import Iterator

from offline_agent.envs.base import EnvSpec, Episode
from offline_agent.envs.checks.registry import NotApplicable
from offline_agent.envs.checks.tools import ToolChecks
from offline_agent.envs.play import begin, difference, faulty, play
from offline_agent.envs.play import script as script_of
from offline_agent.errors import ConfigError, EnvironmentFault
from offline_agent.records import Action, Task


class RepetitionChecks(ToolChecks):
    """Checks that play the same actions several times."""

    def verdicts(self) -> Iterator[str]:
        """The same end state gets the same verdict, asked again and reached again."""
        if not self.spec.deterministic_verifier:
            raise NotApplicable("the verifier says that it is not deterministic")
        for task in self.some():
            script = self.player.script(task)
            given = set()
            for _ in range(2):
                with self.opened() as episode:
                    self.player.run_on(episode, task, script)
                    for _ in range(self.settings.repeats):
                        verdict = episode.verdict()
                        given.add((verdict.score, verdict.success, str(dict(verdict.evidence)), verdict.error))
            if len(given) > 1:
                scores = sorted({str(score) for score, *_ in given})
                yield f"{task.task_id}: one end state got {len(given)} verdicts, with scores {', '.join(scores)}"

    def new_process(self) -> Iterator[str]:
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
        for task in self.some():
            script = self.player.script(task)
            here = self.player.run(task, script)
            episode = other.open()
            try:
                there = self.player.run_on(episode, task, script)
            finally:
                episode.close()
            if (detail := difference(here, there)) is not None:
                mend = "do not depend on the order of sets, hash(), id(), the time or the working directory"
                yield f"{task.task_id}: a new process answers the same actions differently; {mend}; {detail}"

    def isolation(self) -> Iterator[str]:
        """After every kind of episode a reset begins anew, and two instances do not disturb one another."""
        for task in self.some():
            script = self.player.script(task)
            expected = self.player.run(task, script)
            with self.opened() as episode:
                for kind, actions in self._kinds(episode, task, script):
                    play(episode, task, script_of(actions), len(actions), judge=False)
                    if (detail := difference(expected, self.player.run_on(episode, task, script))) is not None:
                        yield f"{task.task_id}: after an episode that was {kind}, reset did not begin anew: {detail}"
                        break
            with self.opened() as one, self.opened() as other:
                start = begin(one, task)
                self.player.run_on(other, task, script)
                played = self.player.run_on(one, task, script, after=start)
                if (detail := difference(expected, played)) is not None:
                    mend = "share no state, or set env.isolate=process"
                    yield f"{task.task_id}: an episode of another instance changed this one; {mend}; {detail}"

    def _kinds(self, episode: Episode, task: Task, script: list[Action]) -> Iterator[tuple[str, list[Action]]]:
        """Yield kinds of episodes with their actions."""
        yield "not begun", []
        yield "left in the middle", script[: len(script) // 2]
        yield "played to its end", script
        yield "ended by an answer", [Action("")]
        episode.reset(task)
        yield "full of faulty turns", list(faulty(episode))
