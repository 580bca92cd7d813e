"""Proposed tasks of `iterate`: a source is asked before each iteration; what it proposes is checked, kept, recorded."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import Any

from offline_agent.config.iterate import IterateConfig
from offline_agent.envs.base import EnvSpec
from offline_agent.envs.play import ScriptedPlayer
from offline_agent.errors import ConfigError, DataError, EnvironmentFault, OfflineAgentError, in_words
from offline_agent.evaluation.curriculum import success_rates
from offline_agent.evaluation.proposer import pay
from offline_agent.evaluation.task_sources import History, history, load_source, plain
from offline_agent.preferences.pairs.hindsight import Hindsight, goal_key, held_out_tasks
from offline_agent.preferences.replayer import Replayer
from offline_agent.records import Task
from offline_agent.store.files import read_json, write_json

PROOFS = ("replay", "expert", "unproven")
"""What shows that a task can be solved: the actions of a failed attempt, the expert, or nothing yet."""


class Proposing:
    """Proposes tasks: new, none of the evaluation's, and solvable as shown by execution, whatever the source.

    Every task of the validation and test splits, and every known one, is reset once, to compare how they begin. What is
    proposed for an iteration is kept in its `proposed.json`, so a source is asked once, resumed or not.

    Args:
        spec: The environment.
        tasks: The split's tasks that the iterations choose from.
        config: Of the loop.
        quarantine: Records a refused task: kind, name, reason and facts.
    """

    def __init__(
        self, spec: EnvSpec, tasks: Sequence[Task], config: IterateConfig, quarantine: Callable[..., object]
    ) -> None:
        self.spec, self.tasks, self.config, self._quarantine = spec, tasks, config, quarantine
        self.proposed: dict[str, dict[str, Any]] = {}  # by id, as in the files
        self._resets = 0

    def pool(self, folder: Path, built: Sequence[Path], play: Callable[[int], Path]) -> list[Task]:
        """Return what an iteration chooses from: the proposed tasks, those of this iteration first, and the split's.

        A proposed task that nothing proved solvable is left out once it was searched and no attempt solved it.

        Args:
            folder: Of the iteration.
            built: Run directories of the searches so far.
            play: Has the policy propose where so many tasks are wanted; returns the run directory. For `proposer`.

        Raises:
            DataError: The source raised, or a tree cannot be read.
        """
        past, file, kept = history(self.spec, built), folder / "proposed.json", []
        if not file.exists():
            write_json(file, self._ask(past, play))
        self.proposed |= {entry["task_id"]: entry for entry in read_json(file)["tasks"]}
        for name, one in self.proposed.items():
            tried = past.known.get(name)
            if one["proof"] == "unproven" and tried is not None and tried.attempts and name not in past.solved:
                self._quarantine("task", name, "unproven, and no attempt solved it", args=one["args"])
            else:
                kept.append(Task(name, "train", one["args"]))
        return [*reversed(kept), *self.tasks]

    def figures(self, folder: Path, built: Path) -> dict[str, Any]:
        """Return what an iteration's record tells of its proposals, and of the tasks that its search then played."""
        file, results = folder / "proposed.json", success_rates([built])
        told = read_json(file)
        if self.config.curriculum.source == "proposer":
            pay(told, results)
            write_json(file, told)
        told.pop("dropped", None)
        proofs = Counter(entry["proof"] for entry in told.pop("tasks"))
        for label, mine in (("searched", True), ("others", False)):
            known = [one for name, one in results.items() if (name in self.proposed) is mine]
            rates = [one.successes / one.attempts for one in known if one.attempts]
            means = [fmean(each) if rates else None for each in (rates, [p * (1 - p) for p in rates])]
            told[label] = {"tasks": len(known), "success": means[0], "learnability": means[1]}
        return {"source": self.config.curriculum.source, "proofs": proofs, **told}

    def _ask(self, past: History, play: Callable[[int], Path]) -> dict[str, Any]:
        """Return what the source proposes: half of an iteration's new tasks, more where the split has too few."""
        limits, new = self.config.limits, self.config.curriculum.new_share * (self.config.tasks.n or len(self.tasks))
        wanted = round(new) - min(round(new) // 2, sum(task.task_id not in past.known for task in self.tasks))
        accepted, dropped, self._resets = list[dict[str, Any]](), list[dict[str, Any]](), 0
        replayer = Replayer(self.spec, limits.step_seconds, limits.reset_seconds, live_states=0)
        with contextlib.closing(replayer):
            given = partial(play, wanted) if self.config.curriculum.source == "proposer" else lambda: past.played
            for candidate in itertools.islice(self._candidates(given), 10 * wanted):  # a source may have no end
                entry = self.check(candidate, past, replayer)
                if entry["proof"] in PROOFS:
                    accepted.append(entry)
                else:
                    dropped.append(entry)
                    self._quarantine("task", entry["task_id"], entry["proof"], args=entry["args"])
                if len(accepted) == wanted:
                    break
        refused = Counter(entry["proof"].partition(":")[0] for entry in dropped)
        counts = {"refused": refused, "calls": replayer.tool_calls, "resets": self._resets}
        return {**counts, "tasks": accepted, "dropped": dropped}

    def _candidates(self, given: Callable[[], Any]) -> Iterator[Any]:
        name = str(self.config.curriculum.source)
        try:
            yield from load_source(name, self.spec)(given())
        except OfflineAgentError:  # of a stage, with its own words
            raise
        except Exception as error:
            raise DataError(f"curriculum.source: {name} raised {in_words(error)}; mend it, and resume") from error

    def check(self, candidate: Any, past: History, replayer: Replayer) -> dict[str, Any]:
        """Return a candidate's `task_id`, `args` and `proof`: one of `PROOFS`, or why it is refused."""
        try:
            args = self.spec.task(plain(self.spec, candidate), "train", 0).args
            key = goal_key(args)
        except (ConfigError, AttributeError, TypeError) as error:
            return {"task_id": f"{candidate!r:.200}", "args": None, "proof": f"no dict of reset's arguments: {error}"}
        name = f"proposed-{hashlib.blake2b(key.encode('utf-8', 'surrogatepass'), digest_size=6).hexdigest()}"
        goals = self._compared
        if str(args.get("task_id")) in self._ids:
            args = {**args, "task_id": name}  # two tasks of one name would be one tree
        task = Task(str(args.get("task_id", name)), "train", args)
        goal, actions = past.reached.get(key, (None, []))
        refused = "known" if key in self._keys else ""
        if key in self._held_out_keys or (goal is not None and goals.is_evaluation_goal(goal)):
            refused = "a task of the evaluation"
        proof = refused or self._proof(task, actions, replayer)
        if proof in PROOFS:
            self._keys.add(key)
            self._ids.add(task.task_id)
        return {"task_id": task.task_id, "args": args, "proof": proof}

    def _proof(self, task: Task, actions: Sequence[Any], replayer: Replayer) -> str:
        try:
            if self.spec.judge is not None:
                self.spec.judge.check(task)
            self._resets += 1
            start = replayer.run(task, [])
        except (ConfigError, EnvironmentFault) as error:
            return f"it cannot begin: {error}"
        opening = str(start.start.observation), start.start.fingerprint
        alike = self._held_out_begun.get(opening[0], ())
        if opening[1] in alike or len(alike) == 1:  # what several begin with does not tell which one it is
            return "begins as a task of the evaluation"
        if opening in self._begun or start.verified:
            return "it holds at reset" if start.verified else "begins as a known one"
        solved = self._solved(task, actions, replayer)
        if solved in PROOFS:
            self._begun.add(opening)
        return solved

    def _solved(self, task: Task, actions: Sequence[Any], replayer: Replayer) -> str:
        with contextlib.suppress(EnvironmentFault):  # the expert may still solve it
            if actions and replayer.run(task, actions).verified:
                return "replay"
        if self.spec.demonstrate is None:
            return "the actions that reached it do not solve it" if actions else "unproven"
        self._resets += 1
        try:
            played = ScriptedPlayer(self.spec, self.config.search.max_steps).expert(task)
        except Exception:  # an expert may know none but the split's tasks
            return "unproven"
        replayer.tool_calls += len(played.steps)
        return "expert" if played.verdict and played.verdict.success else "the expert does not solve it"

    @cached_property
    def _compared(self) -> Hindsight:
        """The goals of the evaluation; beside them all tasks are noted that proposed ones are compared with."""
        held_out = held_out_tasks(self.spec)
        old = [*self.tasks, *(Task(name, "train", one["args"]) for name, one in self.proposed.items())]
        self._held_out_keys, self._keys = ({goal_key(plain(self.spec, task.args)) for task in some}
                                           for some in (held_out, old))  # fmt: skip
        self._ids, self._begun = {task.task_id for task in old}, set(self._openings(old))
        self._held_out_begun: dict[str, set[str | None]] = {}
        for first, fingerprint in self._openings(held_out):
            self._held_out_begun.setdefault(first, set()).add(fingerprint)
        return Hindsight(self.spec, [task.args for task in held_out])

    def _openings(self, tasks: Iterable[Task]) -> Iterator[tuple[str, str | None]]:
        """Yield how tasks begin: first observation and fingerprint; a task that cannot begin is left out."""
        with contextlib.suppress(EnvironmentFault), contextlib.ExitStack() as stack:  # one that closes badly began well
            episode = None
            for task in tasks:
                self._resets += 1
                try:
                    episode = episode or stack.enter_context(contextlib.closing(self.spec.open()))
                    yield episode.reset(task), episode.fingerprint()
                except EnvironmentFault:
                    episode = None  # what broke is not used again
