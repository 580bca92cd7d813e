"""Status of the Slurm jobs of a run, from the record of submissions, from Slurm, and from the run directories.

The run directories decide: a run that is done there is done, whatever Slurm reports or has forgotten.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from offline_agent.launch.shards import SLURM_FOLDER, finished, is_whole, manifest_of, shards_of
from offline_agent.launch.slurm import batch as slurm
from offline_agent.launch.slurm.batch import JobState
from offline_agent.runner.pipeline import Shard

_ORDINARY = {"", "None", "Priority", "Resources", "Dependency", "JobArrayTaskLimit", "BeginTime", "Cleaning"}
_STOPPED = "Stopped"  # beginning of the error in the manifest of a run that a signal ended


@dataclass(frozen=True, slots=True)
class Submission:
    """One submission.

    Attributes:
        name: Unique name of its jobs at Slurm.
        kind: `shards`, `merge` or `job`.
        shards: Numbers of the shards of an array; empty for the others.
    """

    name: str
    kind: str
    shards: tuple[int, ...] = ()


class Ledger:
    """The record of the submissions of a run, `slurm/jobs.jsonl`; written under the lock of the run.

    Args:
        run_dir: The run directory.
    """

    def __init__(self, run_dir: Path) -> None:
        self.folder = run_dir / SLURM_FOLDER
        self.file = self.folder / "jobs.jsonl"

    def read(self) -> list[Submission]:
        """Return the submissions, oldest first; a torn last line is skipped."""
        try:
            lines = self.file.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        out = []
        for line in lines:
            try:
                entry = json.loads(line)
                out.append(Submission(entry["name"], entry["kind"], tuple(entry["shards"])))
            except (ValueError, KeyError, TypeError):
                continue
        return out

    def add(self, base: str, kind: str, shards: Sequence[int] = ()) -> Submission:
        """Record a submission before it is made: an unrecorded job would be submitted twice.

        Args:
            base: Beginning of the name; a number makes it unique.
            kind, shards: See `Submission`.

        Raises:
            DataError: The disk is full or not writable.
        """
        from offline_agent.store.files import write_atomic

        before = self.file.read_bytes() if self.file.exists() else b""
        one = Submission(f"{base}-{before.count(10)}", kind, tuple(shards))
        line = json.dumps({"name": one.name, "kind": one.kind, "shards": list(one.shards)})
        whole = before if before.endswith(b"\n") or not before else before + b"\n"
        write_atomic(self.file, whole + line.encode() + b"\n")
        return one


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Status of a shard, or of the single job of a run.

    Attributes:
        word: `done`, `running`, `pending`, `failed` (ended with an error), `lost` (cancelled, killed, or lost with its
            node), `new` (never submitted), `begun` (by no job of Slurm's) or `unknown` (Slurm does not answer).
        why: Details; may be empty.
        job: Slurm id of its newest job; None = not known.
        finished: Number of its trees or attempts.
    """

    word: str
    why: str = ""
    job: str | None = None
    finished: int = 0

    @property
    def active(self) -> bool:
        """Whether its job waits or runs."""
        return self.word in ("running", "pending")


@dataclass(frozen=True, slots=True)
class RunStatus:
    """Status of a run and its jobs.

    Attributes:
        command: The command.
        shards: The shards with their status; empty if the run has none.
        merge: Status of the newest merge; None = none was submitted.
        job: Status of the newest job of a run without shards; None = none was submitted.
        unheard: Why Slurm did not answer; None = it answered.
    """

    command: str
    shards: Sequence[tuple[Shard, JobStatus]]
    merge: JobStatus | None
    job: JobStatus | None
    unheard: str | None = None

    @property
    def active(self) -> bool:
        """Whether any job waits or runs."""
        others = [one for one in (self.merge, self.job) if one is not None]
        return any(one.active for one in (*others, *(standing for _, standing in self.shards)))

    def count(self) -> dict[str, int]:
        """Return the number of shards by status."""
        words = [standing.word for _, standing in self.shards]
        order = ("done", "running", "pending", "failed", "lost", "begun", "new")
        return {word: count for word in order if (count := words.count(word))}


def look(run_dir: Path, command: str, patient: bool = False) -> RunStatus:
    """Return the status of a run and its jobs.

    Args:
        run_dir: The run directory.
        command: The command of the run.
        patient: Whether a Slurm that does not answer is noted in `unheard` alone.

    Raises:
        SlurmError: Slurm did not answer.
        DataError: The file of the shards is broken.
    """
    submissions, unheard = Ledger(run_dir).read(), None
    known: Mapping[str, slurm.States] = {}
    try:
        known = slurm.states([one.name for one in submissions])
    except slurm.SlurmError as error:
        if not patient:
            raise
        unheard = str(error)
    shards = []
    for shard in shards_of(run_dir):
        mine = [one for one in submissions if one.kind == "shards" and shard.number in one.shards]
        state = next((s for one in reversed(mine) if (s := known.get(one.name, {}).get(shard.number))), None)
        shards.append((shard, standing(shard.path, command, state, bool(mine), unheard)))
    others: dict[str, JobStatus | None] = {"merge": None, "job": None}
    for one in submissions:
        if one.kind in others:
            state = known.get(one.name, {}).get(None)
            others[one.kind] = standing(run_dir, command, state, True, unheard)
    return RunStatus(command, shards, others["merge"], others["job"], unheard)


def standing(
    path: Path, command: str, state: JobState | None, submitted: bool, unheard: str | None = None
) -> JobStatus:
    """Return the status of the work of one job.

    Args:
        path: The run directory that it writes.
        command: The command.
        state: State of the job at Slurm; None = Slurm does not know it.
        submitted: Whether it was ever submitted.
        unheard: Why Slurm did not answer; None = it answered.
    """
    count, job = finished(path, command), None if state is None else state.id
    if is_whole(path):
        return JobStatus("done", "", job, count)
    if state is not None and state.waits:
        held = "" if state.reason in _ORDINARY else state.reason.strip("()")
        return JobStatus("pending", held, job, count)
    if state is not None and state.runs:
        return JobStatus("running", "" if state.word == "RUNNING" else state.word.lower(), job, count)
    manifest = manifest_of(path) or {}
    error = str(manifest.get("error") or "")
    failed = manifest.get("status") == "failed" and not error.startswith(_STOPPED)
    if not submitted and not failed:
        return JobStatus("begun" if manifest else "new", error, None, count)
    if submitted and unheard is not None:
        return JobStatus("unknown", "Slurm does not answer", job, count)
    if failed:
        return JobStatus("failed", error, job, count)
    word = "Slurm knows its job no more" if state is None else state.word
    if word == "FAILED" and not error.startswith(_STOPPED):
        return JobStatus("failed", "its log says why", job, count)
    return JobStatus("lost", word + (f", {error}" if error else ""), job, count)
