"""Slurm jobs: batch scripts, submission and states. Only this module calls Slurm.

A job is a plain command line in a script that stays beside the run, not a pickled function of submitit's:
- A job reads a configuration file and leaves a run directory. A pickle would hold the same again, tied to one version
  of the code. If job ids restart from 1, submitit returns the results of an older job with the same id.
- Success is read from the run directory, which stays, and not from `sacct`, which many clusters lack: there, submitit
  waits for ever for the result of a cancelled job.
- A training job is `torchrun` on every node, which is a command line anyhow.

Only `sbatch`, `squeue` and `scontrol` are used. Jobs are found by the name of their run: Slurm may give the same id to
another job.

The script runs the command as a step (`srun`). Signals reach it whether they are sent to the steps, as a time limit
(`--signal`) and `scancel --signal` do, or to the script (`scancel --batch`), which passes them on. A command that a
signal stops creates the file `$OFFLINE_AGENT_STOPPED`. The script then asks Slurm: a job that still counts as running
was not cancelled, so it is requeued and resumes its run directory. A job whose step a signal ended before the command
had installed its handlers is requeued too: Slurm may announce the time limit up to a minute early.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from offline_agent.config.build_prefs import SlurmSection
from offline_agent.errors import ConfigError, OfflineAgentError

STOPPED = "OFFLINE_AGENT_STOPPED"
"""Environment variable: the file that a command creates when a signal stops it."""

_UNHEARD = " ".join(str(128 + number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2))
"""Exit statuses of srun where one of these signals ended the step."""

_PATIENCE = 60.0  # seconds to wait for an answer
_WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"}
_RUNNING = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
_KEPT = {"SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS"}


class SlurmError(OfflineAgentError):
    """Slurm refused, or did not answer."""


@dataclass(frozen=True, slots=True)
class BatchJob:
    """One submission.

    Attributes:
        name: Unique name.
        command: A shell line; in an array, `$SLURM_ARRAY_TASK_ID` is the number of the job.
        folder: Folder of the script and the logs.
        request: Resources and options; `nodes` has one task on each.
        array: Numbers of the jobs of an array; empty = a single job.
        at_once: Largest number of array jobs that run at once; None = all.
        after: Ids of jobs that must succeed first; if one of them fails, this job is cancelled.
    """

    name: str
    command: str
    folder: Path
    request: SlurmSection
    array: tuple[int, ...] = ()
    at_once: int | None = None
    after: tuple[str, ...] = ()

    @property
    def script(self) -> Path:
        """Path of the script."""
        return self.folder / f"{self.name}.sh"


@dataclass(frozen=True, slots=True)
class JobState:
    """State of a job at Slurm.

    Attributes:
        id: Its id, e.g. `17` or `17_3`.
        word: The state, e.g. `RUNNING`.
        reason: Why it waits or ended; empty if Slurm gives no reason.
    """

    id: str
    word: str
    reason: str = ""

    @property
    def number(self) -> int:
        """Its id as a number, without that of an array's element; later jobs have higher ones."""
        return int(self.id.partition("_")[0])

    @property
    def waits(self) -> bool:
        """Whether it waits for its start or restart."""
        return self.word in _WAITING

    @property
    def runs(self) -> bool:
        """Whether it runs or is ending."""
        return self.word in _RUNNING


def check() -> None:
    """Raise ConfigError if no job can be submitted from this machine."""
    missing = [program for program in ("sbatch", "squeue", "scontrol", "scancel") if shutil.which(program) is None]
    if missing:
        raise ConfigError(
            f"launcher: slurm, but there is no {', '.join(missing)} on this machine's PATH; allowed here: local, ray. "
            "Give the command on a machine of the cluster (Debian: slurm-client)"
        )


def submit(job: BatchJob, environment: Mapping[str, str] | None = None) -> str:
    """Write the job's script, submit it, and return its id.

    Args:
        job: The job.
        environment: Variables beside those of this process.

    Raises:
        SlurmError: Slurm refused, or is not installed.
        DataError: The script could not be written.
    """
    from offline_agent.store.files import write_atomic

    write_atomic(job.script, render(job).encode())
    said = _ask(["sbatch", "--parsable", str(job.script)], _without_jobs_own(environment or {}))
    found = re.match(r"(\d+)", said.strip().splitlines()[-1] if said.strip() else "")
    if found is None:
        raise SlurmError(f"sbatch said {said.strip()!r}, which is no job id. Look at `squeue --name={job.name}`.")
    return found[1]


def render(job: BatchJob) -> str:
    """Return the script of a job."""
    array = job.array
    log = str(job.folder / job.name).replace("%", "%%") + ("-%4a.log" if array else ".log")
    options = [
        f"--job-name={job.name}", f"--output={log}", "--open-mode=append", "--requeue", f"--chdir={Path.cwd()}",
        *_requested(job.request),
    ]  # fmt: skip
    if array:
        most = "" if job.at_once is None else f"%{job.at_once}"
        options.append(f"--array={ranges(array)}{most}")
    if job.after:
        options += [f"--dependency=afterok:{':'.join(job.after)}", "--kill-on-invalid-dep=yes"]
    options += job.request.arguments
    stopped = shlex.quote(str(job.folder / ".stopped-")) + '"$SLURM_JOB_ID"'
    # srun does not take over sbatch's --cpus-per-task (since 22.05)
    step = f"srun --kill-on-bad-exit=1 --cpus-per-task={job.request.cpus} {job.command}"
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {_directive(option)}" for option in options),
        *job.request.setup,
        f"export {STOPPED}={stopped}",
        f'rm -f "${STOPPED}"',
        f"{step} &",
        "step=$!",
        'for signal in TERM USR1 USR2; do trap "kill -$signal $step 2>/dev/null" $signal; done',
        # a signal interrupts `wait`, but the step still runs
        'while :; do wait "$step"; status=$?; kill -0 "$step" 2>/dev/null || break; done',
        f'if [ -e "${STOPPED}" ] || [[ " {_UNHEARD} " == *" $status "* ]]; then',
        f'    rm -f "${STOPPED}"',
        '    state=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T)',
        f'    if [ "$state" = RUNNING ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {job.request.requeues} ]; then',
        '        echo "stopped by a signal: requeued"',
        '        scontrol requeue "$SLURM_JOB_ID"',
        "    else",
        '        echo "stopped by a signal, not requeued: Slurm calls it ${state:-gone}, '
        'it was requeued ${SLURM_RESTART_COUNT:-0} times"',
        "    fi",
        "fi",
        'exit "$status"',
    ]
    return "\n".join(lines) + "\n"


States = dict[int | None, JobState]
"""States of the jobs of a name, by number in the array; the key None is a single job. Of several, the one that waits or
runs, else the newest."""


def states(names: Sequence[str]) -> dict[str, States]:
    """Return the states of the jobs of submissions, by name; unknown submissions are left out.

    Slurm forgets ended jobs, maybe after minutes.

    Raises:
        SlurmError: Slurm did not answer.
    """
    asked = ["squeue", "--noheader", "--array", "--states=all", f"--name={','.join(names)}", "--format=%j|%i|%K|%T|%r"]
    found: dict[str, States] = {}
    for line in _ask(asked).splitlines() if names else ():
        parts = line.strip().split("|", 4)
        if len(parts) == 5 and parts[0] in names:
            name, id_, number, word, reason = parts
            state = JobState(id_, word, "" if reason == "None" else reason)
            of, key = found.setdefault(name, {}), int(number) if number.isdigit() else None
            of[key] = max(state, of.get(key, state), key=lambda one: (one.waits or one.runs, one.number))
    return found


def ranges(numbers: Sequence[int]) -> str:
    """Return numbers as sbatch writes arrays, e.g. `0-3,7`."""
    out: list[list[int]] = []
    for number in sorted(numbers):
        if out and number == out[-1][1] + 1:
            out[-1][1] = number
        else:
            out.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in out)


def _requested(request: SlurmSection) -> list[str]:
    named = {
        "partition": request.partition, "time": request.time,
        "mem": request.memory, "nodes": request.nodes, "ntasks-per-node": 1, "cpus-per-task": request.cpus,
        "gpus-per-node": request.gpus or None,
        "signal": f"USR1@{request.signal_seconds}" if request.signal_seconds else None,
    }  # fmt: skip
    return [f"--{name}={value}" for name, value in named.items() if value is not None]


def _directive(option: str) -> str:
    """Quote an option for an #SBATCH line where it needs that."""
    return f'"{option}"' if re.search(r"\s", option) else option


def _without_jobs_own(more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a new job. Variables of the job that this process is in would count as requests."""
    inside = "SLURM_JOB_ID" in os.environ
    plain = {
        name: value for name, value in os.environ.items()
        if name != STOPPED and not (inside and name.startswith(("SLURM_", "SRUN_")) and name not in _KEPT)
    }  # fmt: skip
    return {**plain, **more}


def _ask(command: list[str], environment: Mapping[str, str] | None = None) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PATIENCE, check=False, stdin=subprocess.DEVNULL,
            env=None if environment is None else dict(environment),
        )  # fmt: skip
    except FileNotFoundError as error:
        raise SlurmError(f"launcher=slurm: no {command[0]} here; submit from a machine of the cluster") from error
    except subprocess.TimeoutExpired as error:
        raise SlurmError(f"{command[0]} gave no answer within {_PATIENCE:.0f} s; try again later") from error
    if done.returncode:
        told = " ".join((done.stderr or done.stdout).split()) or f"status {done.returncode}"
        raise SlurmError(f"{command[0]} refused: {told}")
    return done.stdout
