"""Status of the Slurm jobs of a run, from Slurm and from the run directories.

The run directories decide: a run that is done there is done, whatever Slurm reports or has forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from offline_agent.launch.shards import SLURM_FOLDER, finished, is_whole, manifest_of, shards_of
from offline_agent.launch.slurm import batch as slurm
from offline_agent.launch.slurm.batch import JobState
from offline_agent.runner.pipeline import Shard

_ORDINARY = {"", "None", "Priority", "Resources", "Dependency", "JobArrayTaskLimit", "BeginTime", "Cleaning"}
_STOPPED = "Stopped"  # beginning of the error in the manifest of a run that a signal ended


def job_name(run_dir: Path, command: str, kind: str) -> str:
    """Return the name at Slurm of a run's `shards`, `merge` or `job`; no other run has it."""
    return f"{command}-{str((manifest_of(run_dir) or {}).get('run_id'))[:8]}-{kind}"


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
        merge: Status of the merge; None = none was submitted.
        job: Status of the job of a run without shards; None = none was submitted.
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
    # the files are written before the submission: a job that nothing tells of would be submitted twice
    kinds = [kind for kind in ("merge", "job") if (run_dir / SLURM_FOLDER / f"{kind}.yaml").exists()]
    names = {kind: job_name(run_dir, command, kind) for kind in (*kinds, *(["shards"] if "merge" in kinds else []))}
    unheard: str | None = None
    known: Mapping[str, slurm.States] = {}
    try:
        known = slurm.states(list(names.values()))
    except slurm.SlurmError as error:
        if not patient:
            raise
        unheard = str(error)
    of = {kind: known.get(name, {}) for kind, name in names.items()}
    shards = []
    for shard in shards_of(run_dir):
        submitted, state = "shards" in of and shard.file.exists(), of.get("shards", {}).get(shard.number)
        shards.append((shard, standing(shard.path, command, state, submitted, unheard)))
    others = {kind: standing(run_dir, command, of[kind].get(None), True, unheard) for kind in kinds}
    return RunStatus(command, shards, others.get("merge"), others.get("job"), unheard)


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
