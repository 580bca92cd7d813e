"""Measurements: what repeats of the same actions show, seconds against the limits of a run, memory, sizes of texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean, median, pstdev

from offline_agent.envs.base import EnvSpec, Episode
from offline_agent.envs.checks.registry import Doubt, NotApplicable
from offline_agent.envs.checks.tools import ToolChecks
from offline_agent.envs.checks.trial import holding_of_one
from offline_agent.envs.play import begin, difference, faulty, play
from offline_agent.envs.play import script as script_of
from offline_agent.errors import ConfigError, EnvironmentFault
from offline_agent.records import Action, Task

NEARLY = 0.25  # share of a limit from which the audit warns
MOST_MEMORY = 2**30  # bytes of one instance from which it warns: a search keeps dozens


class Measurements(ToolChecks):
    """Checks by repetition, and of time and size on the plays that the other checks made."""

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
                mend = self.spec.mend(
                    "do not depend on the order of sets, hash(), id(), the time or the working directory",
                    "what is adapted depends on chance, the time or the working directory",
                )
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

    def noise(self) -> Iterator[str]:
        """Repeats of the same actions break nowhere, and earn the same."""
        spreads: list[float] = []
        means: list[float] = []
        faults: list[str] = []
        differing: list[str] = []  # where the runs of a task differ
        plays = 0
        for task in self.some():
            script, scores, first, detail = self.player.script(task), [], None, None
            for _ in range(self.settings.repeats):
                plays += 1
                try:
                    played = self.player.run(task, script)
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

    def bounds(self) -> Iterator[str]:
        """No reset, call or verdict takes longer than a run waits for it."""
        self._play()
        timings, limits = self.plays.timings, self.settings.limits
        for what, seconds, limit in (
            ("reset", timings.resets, limits.reset_seconds), ("call", timings.calls, limits.step_seconds),
            ("verdict", timings.verdicts, limits.step_seconds),
        ):  # fmt: skip
            if not seconds:
                continue
            most = max(seconds)
            self.measured[what] = _spread([1000 * one for one in seconds], "ms")
            detail = f"a {what} took {most:.3g} s, the limit of a run is {limit:g} s"
            if most > limit:
                yield detail
            elif most > NEARLY * limit:
                yield Doubt(detail)

    def envelope(self) -> Iterator[str]:
        """The costs of one instance are known, and it is small enough to keep many."""
        self._play()
        costs, calls = self.costs, self.plays.timings.calls
        if costs is not None:
            self.measured |= {
                "opening_ms": _ms(costs.opening), "reset_ms": _ms(costs.reset), "call_ms": _ms(costs.call),
                "copy_ms": None if costs.copy is None else _ms(costs.copy),
            }  # fmt: skip
        if calls and sum(calls):
            self.measured["steps_per_second"] = round(len(calls) / sum(calls))
        for task in self.some():
            holding = holding_of_one(self.spec, task)
            self.measured |= {"memory_bytes": holding.memory, "handles": holding.handles,
                              "processes": holding.processes}  # fmt: skip
            if holding.memory > MOST_MEMORY:
                yield Doubt(f"one instance holds {holding.memory / 2**20:.0f} MiB, so few states can be kept")
            break

    def sizes(self) -> Iterator[str]:
        """No observation of the expert or of random calls is cut."""
        texts = [
            context.observation
            for task in self.some()
            for play in (self.plays.expert(task), *self.plays.chance(task)) if play is not None
            for context in play.context.lineage() if context.observation is not None
        ]  # fmt: skip
        cut = sum("\n[cut here: " in text[-120:] for text in texts)
        self.measured |= {"observations": len(texts), "cut": cut, "characters": _spread(list(map(len, texts)), "chars")}
        if cut:
            limit = self.spec.max_observation_chars
            yield (
                f"{cut} of {len(texts)} observations are longer than limits.max_observation_chars={limit:,} and were "
                "cut: the policy does not see the rest"
            )

    def _play(self) -> None:
        """Make some plays where no other check did."""
        if not self.plays.timings.calls:
            for task in self.some():
                self.plays.chance(task)


def _spread(values: Sequence[float], unit: str) -> dict[str, float]:
    ordered = sorted(values)
    return {
        f"median_{unit}": round(median(ordered), 3), f"p95_{unit}": round(ordered[int(0.95 * (len(ordered) - 1))], 3),
        f"most_{unit}": round(ordered[-1], 3),
    }  # fmt: skip


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)
