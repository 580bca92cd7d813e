"""Rounds of the online stage: a sampler that takes the trainer's weights, and the log of what was played."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.config.refine_grpo import RefineGrpoConfig
from offline_agent.errors import DataError
from offline_agent.policies.base import Policy
from offline_agent.records import Task
from offline_agent.rollouts.attempts import Attempt, Journal, from_record
from offline_agent.store.events import EventLog
from offline_agent.store.run_directory import RunDirectory
from offline_agent.training.online.groups import Round, RoundSampler

if TYPE_CHECKING:
    from offline_agent.policies.server.policy import ServerPolicy
    from offline_agent.policies.weights import WeightUpdate
    from offline_agent.rendering.renderer import Renderer
    from offline_agent.training.online.samples import TrainingSample

ATTEMPTS, ROUNDS, SERVING = "rollouts", "rounds", "serving-"
_PROBED = 64  # ids by which a sampler's new weights are compared with the trainer's
_TOLERANCE = {"float32": 0.01, "bfloat16": 0.5}


@dataclass(frozen=True)
class Sampler:
    """A policy that takes the trainer's weights.

    Attributes:
        policy: Samples.
        give: Takes the trained model, its tokenizer and a folder for files that the policy reads. Returns what hands
            its weights over, before they change: after that no answer is from older ones. That says what it was like;
            None where it is a copy in memory.
        rest: Called before training begins, until `give` is called again.
        lasting: Whether weights can be handed over again after they have changed in the model.
    """

    policy: Policy
    give: Callable[[Any, Any, Path], Callable[[], WeightUpdate | None]]
    rest: Callable[[], None] = lambda: None
    lasting: bool = False


def make_sampler(config: RefineGrpoConfig, renderer: Renderer, task: Task) -> Sampler:
    """Return the sampler that the configuration names.

    Args:
        config: The configuration.
        renderer: The trained model's.
        task: One of the tasks: its arguments are the text by which new weights are tried.

    Raises:
        ConfigError: It cannot be made, or cannot take weights; says what to do.
        PolicyError: The server does not answer.
    """
    model, rollouts, sampler = config.model, config.rollouts, config.sampler
    common = {"temperature": rollouts.temperature, "max_tokens": rollouts.max_tokens}
    tolerance = _TOLERANCE[model.compute_dtype] if sampler.tolerance is None else sampler.tolerance
    if sampler.name == "hf":
        from offline_agent.policies.hf.policy import HFPolicy

        own: Any = HFPolicy(model.path, dtype=model.compute_dtype, renderer=renderer, threads=config.threads, **common)  # type: ignore[arg-type]
        together = not rollouts.behind  # else training changes the weights while they answer
        return Sampler(own, lambda trained, tokenizer, folder: partial(own.take_weights, trained, together))
    if sampler.name == "colocated":
        from offline_agent.policies.vllm.policy import ColocatedPolicy
        from offline_agent.policies.weights import probe_of

        near: Any = ColocatedPolicy(
            model.path,
            renderer=renderer,
            dtype=model.compute_dtype,  # the trainer's: a coarser one would not say what the probe asks for
            memory=sampler.memory,
            sleep=sampler.sleep,
            **common,  # type: ignore[arg-type]
        )

        def hand_over(trained: Any, tokenizer: Any, folder: Path) -> Callable[[], WeightUpdate]:
            return partial(near.take_weights, trained, probe_of(trained, _ids(tokenizer, task), tolerance))

        return Sampler(near, hand_over, near.sleep)
    from offline_agent.policies.base import DEFAULT_MODEL
    from offline_agent.policies.server.policy import ServerPolicy

    served = ServerPolicy(
        sampler.url,
        sampler.served,
        tokenizer=model.tokenizer or model.path or str(DEFAULT_MODEL),
        chat_template=model.chat_template,
        concurrency=rollouts.in_flight,
        **common,  # type: ignore[arg-type]
    )
    adapters = served.check_takes_weights(adapters=config.lora.rank > 0)
    served.identity["handed_over"] = "adapters" if adapters else "whole weights"
    numbers, read = itertools.count(), set[Path]()

    def give(trained: Any, tokenizer: Any, folder: Path) -> Callable[[], WeightUpdate]:
        from offline_agent.policies.weights import probe_of
        from offline_agent.training.models import save_adapter, save_plain

        place = folder / f"{SERVING}{next(numbers)}"
        if adapters:
            save_adapter(trained, place)
        else:
            save_plain(trained, tokenizer, place)
        probe = probe_of(trained, _ids(tokenizer, task), tolerance)

        def hand_over() -> WeightUpdate:
            taken = served.take_weights(place.resolve(), probe)
            if place not in read:  # else they are given again, and newer ones may be there already
                read.add(place)
                forget_served(folder, place)
            return taken

        return hand_over

    return Sampler(served, give, lasting=True)


def scored_by(served: ServerPolicy, samples: Sequence[TrainingSample]) -> list[TrainingSample]:
    """Return samples with what a served teacher says of their agent tokens. Raises PolicyError."""
    from offline_agent.training.data.updates import policy_tokens

    sides = [policy_tokens(one.input_ids, one.action_mask, one.starts) for one in samples]
    rows = [(one.task_id, row.ids) for one, side in zip(samples, sides, strict=True) for row in side]
    told = iter(served.logps(rows))
    found = [[logp for row in side for logp in compress(next(told), row.scored[1:])] for side in sides]
    return [replace(one, teacher=tuple(logps)) for one, logps in zip(samples, found, strict=True)]


def forget_served(folder: Path, but: Path | None = None) -> None:
    """Delete the weights that servers were given from a run's folder, except those that they still read."""
    unfinished = folder.glob(f".{SERVING}*.tmp")  # `save_plain` was killed; it cleans up for the same name alone
    for place in (*folder.glob(f"{SERVING}*"), *unfinished):
        if place != but:
            shutil.rmtree(place, ignore_errors=True)


def absent() -> Sampler:
    """Return a stand-in for the sampler in processes that do not play; only the first process plays."""
    nobody: Any = _Nobody()
    return Sampler(nobody, lambda trained, tokenizer, folder: lambda: None)


class _Nobody:
    """Holds no weights and answers nothing."""

    identity: Mapping[str, object] = {}

    def engine(self) -> _Nobody:
        return self

    def close(self) -> None:
        """Nothing is open."""


def _ids(tokenizer: Any, task: Task) -> list[int]:
    text = json.dumps({"task": task.task_id, **dict(task.args)}, default=str)
    return [int(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]][:_PROBED]


class RoundLog:
    """Event logs of roll-outs: one record for each attempt, and one for each finished round.

    Args:
        run: The run directory.
        tasks: The pool.

    Raises:
        DataError: A record is malformed, or of a task that is not the run's.
    """

    def __init__(self, run: RunDirectory, tasks: Sequence[Task]) -> None:
        self._attempts: EventLog = run.events(ATTEMPTS)
        self._rounds: EventLog = run.events(ROUNDS)
        self._tasks = {task.task_id: task for task in tasks}
        self._journal = Journal(self._attempts.append, (), self._tasks)
        self.rounds: dict[int, dict[str, Any]] = {record["round"]: record for record in self._rounds.read()}

    def add(self, attempt: Attempt) -> None:
        """Log a finished attempt."""
        self._journal.add(attempt)
        self._journal.attempts.clear()  # not kept in memory: `read` reads them from the log

    def close_round(self, made: Round, seconds: float, refused: int) -> None:
        """Log a finished round, unless an earlier session logged it.

        Args:
            made: The round.
            seconds: Seconds of playing it.
            refused: Number of its rows that could not be trained on.
        """
        if made.number not in self.rounds:
            self.rounds[made.number] = {
                "round": made.number,
                "temperature": made.temperature,
                "env_steps": made.env_steps,
                "seconds": round(seconds, 3),
                "refused": refused,
                "outcomes": [[g.task.task_id, sum(g.successes), len(g.successes)] for g in made.groups],
                "kept": [g.task.task_id for g in made.kept],
            }
            self._rounds.append(self.rounds[made.number])

    def remind(self, groups: RoundSampler, first: int) -> int:
        """Give the outcomes of the rounds before `first` to the groups; return the environment steps of those rounds.

        Raises:
            DataError: A round is missing in the log.
        """
        steps = 0
        for number in range(first):
            record = self.rounds.get(number)
            if record is None:
                raise DataError(f"the event log has no round {number}, but a checkpoint comes after it")
            groups.note(number, {task: (done, judged) for task, done, judged in record["outcomes"]})
            steps += record["env_steps"]
        return steps

    @property
    def refused(self) -> int:
        """Number of rows that could not be trained on."""
        return sum(record.get("refused", 0) for record in self.rounds.values())

    def read(self, wanted: Callable[[int], bool]) -> Iterator[Attempt]:
        """Yield the logged attempts with a wanted number, in the order in which they ended."""
        openings: dict[str, tuple[str, Sequence[Any]]] = {}
        for record in self._attempts.read():
            if "attempt" not in record:
                openings[record["name"]] = (record["system"], record["tools"])
                continue
            _, _, task_id, number = record["attempt"]
            if task_id not in self._tasks:
                raise DataError(f"the event log's attempt {record['attempt']} is of no task of this run")
            if wanted(number):
                yield from_record(record, self._tasks[task_id], openings)
        self._journal.openings |= openings

    def ordered(self, size: int, behind: int) -> Iterator[Attempt]:
        """Yield all logged attempts by round, position of the task in the pool, and number.

        The order of the log depends on how fast each attempt went. 1 + `behind` rounds are in memory at a time.

        Args:
            size: Attempts of one task in a round: attempt `n` belongs to round n // size.
            behind: Rounds that may have begun while an earlier one was played.
        """
        places = {task_id: place for place, task_id in enumerate(self._tasks)}
        played: dict[int, list[Attempt]] = {}

        def over(before: float) -> Iterator[Attempt]:
            for number in sorted(number for number in played if number < before):
                yield from sorted(played.pop(number), key=lambda one: (places[one.task.task_id], one.number))

        for attempt in self.read(lambda number: True):
            yield from over(attempt.number // size - behind)
            played.setdefault(attempt.number // size, []).append(attempt)
        yield from over(float("inf"))
