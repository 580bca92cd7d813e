"""Proposed tasks of `iterate`: a source is asked before each iteration, its tasks are checked, kept and recorded."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from offline_agent.config.iterate import IterateConfig
from offline_agent.envs.base import EnvSpec
from offline_agent.errors import DataError, ends_the_run, in_words
from offline_agent.evaluation.curriculum import success_rates
from offline_agent.evaluation.task_sources import Accepted, Checked, History, TaskChecks, history, load_source
from offline_agent.launch.loop_stages import LoopStages
from offline_agent.records import Task
from offline_agent.rollouts.attempts import Known
from offline_agent.runner.pipeline import Session
from offline_agent.store.files import read_json, write_json

_NOTHING = Checked([], [], 0, 0)
_LOOKED_AT = 10  # candidates for each task that is wanted: a source may have no end


@dataclass
class Proposing:
    """The tasks of the split together with the proposed ones.

    What a source proposed for an iteration is kept in its `proposed.json`, so it is asked once, resumed or not.

    Args:
        spec: The environment.
        tasks: The split's tasks that the iterations choose from.
        session: The run.
        plan: Names the folders of the iterations.
    """

    spec: EnvSpec
    tasks: Sequence[Task]
    session: Session[IterateConfig]
    plan: LoopStages
    proposed: dict[str, Accepted] = field(default_factory=dict)
    records: dict[int, dict[str, Any]] = field(default_factory=dict)

    def pool(self, number: int, built: Sequence[Path]) -> list[Task]:
        """Return what an iteration chooses from: known tasks, then new ones, a proposed and one of the split in turn.

        A proposed task that nothing proved solvable is left out once it was searched and no attempt solved it.

        Args:
            number: The iteration.
            built: Run directories of the searches so far.

        Raises:
            DataError: The source raised, or a tree cannot be read.
        """
        past = history(self.spec, built)
        file = self.plan.folder(number) / "proposed.json"
        if not file.exists():
            write_json(file, self._ask(past))
        record = self.records[number] = read_json(file)
        for entry in record["tasks"]:
            task = Task(entry["task_id"], "train", entry["args"])
            self.proposed[task.task_id] = Accepted(task, entry["proof"])
        kept = []
        for one in self.proposed.values():
            name = one.task.task_id
            tried = name in past.known and past.known[name].attempts > 0
            if one.proof == "unproven" and tried and name not in past.solved:
                reason = "unproven, and no attempt solved it"
                self.session.run.quarantine("task", name, reason, args=one.task.args)
                continue
            kept.append(one.task)
        old = [task for task in (*self.tasks, *kept) if task.task_id in past.known]
        new = [[task for task in some if task.task_id not in past.known] for some in (kept[::-1], self.tasks)]
        return old + [task for pair in itertools.zip_longest(*new) for task in pair if task is not None]

    def figures(self, number: int, built: Path) -> dict[str, Any]:
        """Return what the record of an iteration tells of its proposals and of the tasks that it searched."""
        groups: dict[bool, list[Known]] = {True: [], False: []}
        for name, known in success_rates([built]).items():
            groups[name in self.proposed].append(known)
        record = {name: value for name, value in self.records[number].items() if name != "tasks"}
        return {**record, "searched": _mean(groups[True]), "others": _mean(groups[False])}

    def _ask(self, past: History) -> dict[str, Any]:
        """Return the record of what the source proposes, each checked; refusals go to quarantine.jsonl."""
        wanted = self._wanted(past)
        candidates = itertools.islice(self._candidates(past), _LOOKED_AT * wanted)
        first = list(itertools.islice(candidates, 1))  # without one nothing needs to be compared
        found = self.checks.check(itertools.chain(first, candidates), past, wanted) if first else _NOTHING
        for refusal in found.refused:
            self.session.run.quarantine(refusal.kind, refusal.name, refusal.reason, **refusal.facts)
        return {
            "source": self.session.config.curriculum.source, "candidates": len(found.accepted) + len(found.refused),
            "accepted": len(found.accepted), "proofs": Counter(one.proof for one in found.accepted),
            "refused": Counter(one.reason for one in found.refused), "calls": found.calls, "resets": found.resets,
            "tasks": [{"task_id": one.task.task_id, "args": one.task.args, "proof": one.proof}
                      for one in found.accepted],
        }  # fmt: skip

    def _candidates(self, past: History) -> Iterator[Any]:
        name = str(self.session.config.curriculum.source)
        try:
            yield from load_source(name, self.spec)(past.played)
        except BaseException as error:
            if ends_the_run(error) or isinstance(error, GeneratorExit):
                raise
            raise DataError(f"curriculum.source: {name} raised {in_words(error)}; mend it and give the same command "
                            "again with this run_dir") from error  # fmt: skip

    def _wanted(self, past: History) -> int:
        """Return how many are asked for: half of the new tasks of an iteration, and what the split lacks."""
        config = self.session.config
        new = round((config.tasks.n or len(self.tasks)) * config.curriculum.new_share)
        return new - min(new // 2, sum(task.task_id not in past.known for task in self.tasks))

    @cached_property
    def checks(self) -> TaskChecks:
        """The checks, which reset all tasks that proposals are compared with."""
        config = self.session.config
        known = [*self.tasks, *(one.task for one in self.proposed.values())]
        checks = TaskChecks(self.spec, known, config.limits, config.search.max_steps)
        for split, error in checks.unlisted.items():
            self.session.say(f"iterate: proposed tasks are compared with no {split} tasks: {error}")
        return checks


def _mean(known: Sequence[Known]) -> dict[str, Any]:
    """Return number, mean success and mean learnability p(1 - p) of tasks; None where no attempt was judged."""
    rates = [one.successes / one.attempts for one in known if one.attempts]
    means = [sum(values) / len(rates) if rates else None for values in (rates, [p * (1 - p) for p in rates])]
    return {"tasks": len(known), "success": means[0], "learnability": means[1]}
