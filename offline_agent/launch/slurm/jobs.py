"""What has become of the jobs of a run: from a note of every submission, from Slurm, and from the run directories.

The run directories have the last word: what is done there is done, whatever Slurm says or has forgotten.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from offline_agent.launch.shards import finished, is_whole, manifest_of, shards_of
from offline_agent.launch.slurm import batch as slurm
from offline_agent.launch.slurm.batch import State
from offline_agent.launch.slurm.resuming import FOLDER
from offline_agent.runner.pipeline import Shard

_ORDINARY = {"", "None", "Priority", "Resources", "Dependency", "JobArrayTaskLimit", "BeginTime", "Cleaning"}
_STOPPED = "Stopped"  # how a manifest begins to say that a signal ended a run


@dataclass(frozen=True, slots=True)
class Submission:
    """One submission.

    Attributes:
        name: Its jobs' name at Slurm, which nothing else has.
        kind: `shards`, `merge` or `job`.
        shards: Numbers of the shards of an array; empty for the others.
    """

    name: str
    kind: str
    shards: tuple[int, ...] = ()


class Ledger:
    """The note of a run's submissions, `slurm/jobs.jsonl`; written by who holds the run's lock.

    Args:
        run_dir: The run directory.
    """

    def __init__(self, run_dir: Path) -> None:
        self.folder = run_dir / FOLDER
        self.file = self.folder / "jobs.jsonl"

    def read(self) -> list[Submission]:
        """Return the submissions, oldest first; a torn last line is passed over."""
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
        """Note a submission before it is made: a job that nobody knows of would be submitted twice.

        Args:
            base: What the name begins with; a number makes it the only one.
            kind, shards: See `Submission`.

        Raises:
            DataError: The disk refused.
        """
        from offline_agent.store.files import write_atomic

        before = self.file.read_bytes() if self.file.exists() else b""
        one = Submission(f"{base}-{before.count(10)}", kind, tuple(shards))
        line = json.dumps({"name": one.name, "kind": one.kind, "shards": list(one.shards)})
        whole = before if before.endswith(b"\n") or not before else before + b"\n"
        write_atomic(self.file, whole + line.encode() + b"\n")
        return one


@dataclass(frozen=True, slots=True)
class Standing:
    """What has become of a shard, or of a run's one job.

    Attributes:
        word: `done`, `running`, `pending`, `failed` (it ended with an error), `lost` (cancelled, killed, or gone with
            its node) or `new` (never submitted).
        why: More about it; may be empty.
        job: Slurm's id of its newest job; None where that is not known.
        finished: Trees or attempts that it has.
    """

    word: str
    why: str = ""
    job: str | None = None
    finished: int = 0

    @property
    def active(self) -> bool:
        """Whether a job of it waits or runs."""
        return self.word in ("running", "pending")


@dataclass(frozen=True, slots=True)
class View:
    """A run and its jobs at one moment.

    Attributes:
        command: The pipeline.
        shards: Each with what has become of it; empty where the run is one piece.
        merge: Of the newest merge; None where none was submitted.
        job: Of the newest job of a run in one piece; None where none was submitted.
        unheard: Why Slurm could not be asked; None where it answered.
    """

    command: str
    shards: Sequence[tuple[Shard, Standing]]
    merge: Standing | None
    job: Standing | None
    unheard: str | None = None

    @property
    def active(self) -> bool:
        """Whether any job waits or runs."""
        others = [one for one in (self.merge, self.job) if one is not None]
        return any(one.active for one in (*others, *(standing for _, standing in self.shards)))

    def count(self) -> dict[str, int]:
        """Return how many shards are what."""
        words = [standing.word for _, standing in self.shards]
        return {word: words.count(word) for word in ("done", "running", "pending", "failed", "lost", "new")}


def look(run_dir: Path, command: str) -> View:
    """Return what has become of a run's jobs.

    Args:
        run_dir: The run directory.
        command: The pipeline that made it.

    Raises:
        SlurmError: Slurm did not answer.
        DataError: The note of the shards is broken.
    """
    submissions = Ledger(run_dir).read()
    names = [one.name for one in submissions]
    told = slurm.states(names)
    return view(run_dir, command, submissions, told)


def view(
    run_dir: Path,
    command: str,
    submissions: Sequence[Submission],
    told: Mapping[str, slurm.States],
    unheard: str | None = None,
) -> View:
    """Return what has become of a run's jobs, given what Slurm told of them; see `look`."""
    forgotten = [one.name for one in submissions if one.name not in told]
    remembered = slurm.remembered(forgotten) if forgotten and unheard is None else {}
    known = {**remembered, **told}
    shards = []
    for shard in shards_of(run_dir):
        mine = [one for one in submissions if one.kind == "shards" and shard.number in one.shards]
        state = next((s for one in reversed(mine) if (s := known.get(one.name, {}).get(shard.number))), None)
        shards.append((shard, standing(shard.path, command, state, bool(mine), unheard)))
    others: dict[str, Standing | None] = {"merge": None, "job": None}
    for one in submissions:
        if one.kind in others:
            state = known.get(one.name, {}).get(None)
            others[one.kind] = standing(run_dir, command, state, True, unheard)
    return View(command, shards, others["merge"], others["job"], unheard)


def standing(path: Path, command: str, state: State | None, submitted: bool, unheard: str | None = None) -> Standing:
    """Return what has become of the work of one job.

    Args:
        path: The run directory that it writes.
        command: The pipeline.
        state: What Slurm says of the job; None where it does not know it.
        submitted: Whether it ever was submitted.
        unheard: Why Slurm could not be asked; None where it was.
    """
    count, job = finished(path, command), None if state is None else state.id
    if is_whole(path):
        return Standing("done", "", job, count)
    if state is not None and state.waits:
        held = "" if state.reason in _ORDINARY else state.reason.strip("()")
        return Standing("pending", held, job, count)
    if state is not None and state.runs:
        return Standing("running", "" if state.word == "RUNNING" else state.word.lower(), job, count)
    if not submitted:
        return Standing("new", "", None, count)
    manifest = manifest_of(path) or {}
    error = str(manifest.get("error") or "")
    if unheard is not None:
        return Standing("unknown", "Slurm does not answer", job, count)
    if manifest.get("status") == "failed" and not error.startswith(_STOPPED):
        return Standing("failed", error, job, count)
    word = "Slurm knows its job no more" if state is None else state.word
    if word == "FAILED" and not error.startswith(_STOPPED):
        return Standing("failed", "its log says why", job, count)
    return Standing("lost", word + (f", {error}" if error else ""), job, count)
