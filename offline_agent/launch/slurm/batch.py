"""Jobs of Slurm: batch scripts, submission, states. Only this file talks to Slurm.

A job is a plain command line in a script that stays beside the run, not a pickled function of submitit's:
- what a job needs is a configuration file, and what it leaves is a run directory. A pickle would hold the same once
  more, tied to the objects of one version of the code; with job ids that begin anew, submitit hands out the results of
  another job of the same number from a folder that is used again.
- whether a job succeeded is read from its run directory, which stays, and not from `sacct`, which many clusters lack:
  submitit waits for ever for the result of a cancelled job there.
- a training job is `torchrun` on every node, which is a command line anyhow.

So `sbatch`, `squeue`, `scontrol` and, where it answers, `sacct` are all that is used. Every submission has a name of
its own, by which its jobs are found: a number may belong to another job by now.

A job's script runs the command as a step (`srun`), so that signals reach it whether they are sent to the steps, as a
time limit (`--signal`) and `scancel --signal` do, or to the script (`scancel --batch`), which passes them on. A
pipeline that a signal stops makes the file that `$OFFLINE_AGENT_STOPPED` names. The script then asks Slurm: a job that
still counts as running was not cancelled, so it is requeued, and goes on from its run directory. So is one whose step
a signal ended before the pipeline listened: Slurm may tell a job up to a minute early that its time is up.
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

from offline_agent.errors import ConfigError, OfflineAgentError

STOPPED = "OFFLINE_AGENT_STOPPED"
"""Environment variable: the file that a pipeline makes when a signal stops it."""

_UNHEARD = " ".join(str(128 + number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2))
"""What srun ends with where one of these signals ended the step."""

_PATIENCE = 60.0  # seconds for an answer of Slurm's
_WAITING = {
    "PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD",
}  # fmt: skip
_RUNNING = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
_KEPT = {"SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS"}


class SlurmError(OfflineAgentError):
    """Slurm refused, or did not answer."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a job asks for; see the section `slurm` of a configuration.

    Attributes:
        partition, account, qos, time, memory: As sbatch takes them; None = Slurm's default.
        cpus: Cores on each node.
        gpus: On each node; 0 = none.
        nodes: Nodes; one task on each.
        signal_seconds: How long before its time is up the job is told; 0 = never.
        requeues: Most times that it is requeued.
        setup: Shell lines before the command.
        arguments: More arguments of sbatch.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: str | None = None
    cpus: int = 1
    memory: str | None = None
    gpus: int = 0
    nodes: int = 1
    signal_seconds: int = 0
    requeues: int = 100
    setup: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """One submission.

    Attributes:
        name: Its own, which no other submission ever has.
        command: A line of shell; `$SLURM_ARRAY_TASK_ID` is the number of an array's job.
        folder: Where script and logs go.
        request: What it asks for.
        array: Numbers of the jobs of an array; empty = a single job.
        at_once: Most jobs of the array that run at once; None = all.
        after: Ids of jobs that must have succeeded before; it is cancelled when one of them has not.
    """

    name: str
    command: str
    folder: Path
    request: Request
    array: tuple[int, ...] = ()
    at_once: int | None = None
    after: tuple[str, ...] = ()

    @property
    def script(self) -> Path:
        """Where the script is."""
        return self.folder / f"{self.name}.sh"

    def log(self, number: int | None = None) -> Path:
        """Return where a job's output is, of all its starts one after another."""
        return self.folder / (f"{self.name}.log" if number is None else f"{self.name}-{number:04}.log")


@dataclass(frozen=True, slots=True)
class State:
    """What Slurm says of a job.

    Attributes:
        id: Its id, e.g. `17` or `17_3`.
        word: Slurm's, e.g. `RUNNING`.
        reason: Why it waits, or ended; empty where Slurm does not say.
    """

    id: str
    word: str
    reason: str = ""

    @property
    def waits(self) -> bool:
        """Whether it has yet to start, or to start again."""
        return self.word in _WAITING

    @property
    def runs(self) -> bool:
        """Whether it runs, or has not quite ended."""
        return self.word in _RUNNING


def available() -> str | None:
    """Return what is missing to submit jobs from here, None where nothing is."""
    missing = [program for program in ("sbatch", "squeue", "scontrol", "scancel") if shutil.which(program) is None]
    return f"there is no {', '.join(missing)} on this machine's PATH" if missing else None


def submit(job: Job, environment: Mapping[str, str] | None = None) -> str:
    """Write the job's script, submit it, and return its id.

    Args:
        job: The job.
        environment: Variables that it gets beside this process's.

    Raises:
        SlurmError: Slurm refused, or is not there.
        DataError: The script could not be written.
    """
    from offline_agent.store.files import write_atomic

    write_atomic(job.script, render(job).encode())
    said = _ask(["sbatch", "--parsable", str(job.script)], _without_jobs_own(environment or {}))
    found = re.match(r"(\d+)", said.strip().splitlines()[-1] if said.strip() else "")
    if found is None:
        raise SlurmError(f"sbatch said {said.strip()!r}, which is no job id. Look at `squeue --name={job.name}`.")
    return found[1]


def render(job: Job) -> str:
    """Return the job's script."""
    array = job.array
    log = str(job.log()).removesuffix(".log").replace("%", "%%") + ("-%4a.log" if array else ".log")
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
        # a signal ends `wait`, not the step
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


def spread(
    module: str, arguments: Sequence[str], python: str, nodes: int, processes: int, gpus: int, sharded: bool = False
) -> str:
    """Return the command of a pipeline that trains: `torchrun` on every node, which meet on the first.

    Args:
        module: The pipeline's.
        arguments: Its arguments.
        python: The interpreter.
        nodes: How many nodes there are.
        processes: How many processes run on each.
        gpus: How many GPUs there are on each; without any, the processes talk through gloo.
        sharded: Shard the weights over all processes.
    """
    plain = shlex.join(["-m", module, *arguments])
    if nodes * processes == 1:
        return f"{shlex.quote(python)} {plain}"
    if nodes == 1:
        where = "--standalone"
    else:
        first = '"$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"'
        port = "$((20000 + SLURM_JOB_ID % 20000))"
        where = f"--rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID --rdzv-endpoint={first}:{port}"
    # torchrun passes on the signals that it is told of, and gives its processes half a minute
    told = "TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2"
    if not gpus:
        told += " ACCELERATE_USE_CPU=true"  # else accelerate takes each process for the only one
    if sharded:  # what `accelerate launch --use_fsdp --fsdp_version 2` sets
        told += " ACCELERATE_USE_FSDP=true FSDP_VERSION=2 FSDP_AUTO_WRAP_POLICY=TRANSFORMER_BASED_WRAP"
        told += " FSDP_RESHARD_AFTER_FORWARD=true"
    return (
        f"env {told} {shlex.quote(python)} -m torch.distributed.run --nnodes={nodes} "
        f"--nproc-per-node={processes} {where} {plain}"
    )


States = dict[int | None, State]
"""States of the jobs of a submission, by their number in the array; None: a single job."""


def states(names: Sequence[str]) -> dict[str, States]:
    """Return what Slurm says of the jobs of submissions, by name; one that it does not know is not in it.

    Ended jobs are there only as long as Slurm remembers them, which may be minutes.

    Raises:
        SlurmError: It did not answer.
    """
    asked = ["squeue", "--noheader", "--array", "--states=all", f"--name={','.join(names)}", "--format=%j|%i|%K|%T|%r"]
    found: dict[str, States] = {}
    for line in _ask(asked).splitlines() if names else ():
        parts = line.strip().split("|", 4)
        if len(parts) == 5 and parts[0] in names:
            name, id_, number, word, reason = parts
            state = State(id_, word, "" if reason == "None" else reason)
            found.setdefault(name, {})[int(number) if number.isdigit() else None] = state
    return found


def remembered(names: Sequence[str]) -> dict[str, States]:
    """Return how jobs ended, as `states`, from `sacct`; empty where there is no accounting."""
    asked = ["sacct", "--allocations", "--noheader", "--parsable2", f"--name={','.join(names)}",
             "--starttime=now-30days", "--format=JobName%200,JobID%40,State%40"]  # fmt: skip
    try:
        lines = _ask(asked).splitlines() if names else []
    except SlurmError:
        return {}
    found: dict[str, States] = {}
    for line in lines:
        parts = line.strip().split("|")
        if len(parts) == 3 and parts[0] in names and parts[2]:
            number = parts[1].partition("_")[2]
            state = State(parts[1], parts[2].split()[0])  # "CANCELLED by 1000"
            found.setdefault(parts[0], {})[int(number) if number.isdigit() else None] = state
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


def _requested(request: Request) -> list[str]:
    named = {
        "partition": request.partition, "account": request.account, "qos": request.qos, "time": request.time,
        "mem": request.memory, "nodes": request.nodes, "ntasks-per-node": 1, "cpus-per-task": request.cpus,
        "gpus-per-node": request.gpus or None,
        "signal": f"USR1@{request.signal_seconds}" if request.signal_seconds else None,
    }  # fmt: skip
    return [f"--{name}={value}" for name, value in named.items() if value is not None]


def _directive(option: str) -> str:
    """Quote an option for an #SBATCH line where it needs that."""
    return f'"{option}"' if re.search(r"\s", option) else option


def _without_jobs_own(more: Mapping[str, str]) -> dict[str, str]:
    """Return this environment for a new job: what describes the job we are in would be taken for requests."""
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


def check() -> None:
    """Raise ConfigError where no job can be submitted from here."""
    missing = available()
    if missing:
        raise ConfigError(
            f"launcher: slurm, but {missing}; allowed here: local, ray. Give the command on a machine of the cluster "
            "(Debian: slurm-client)"
        )
