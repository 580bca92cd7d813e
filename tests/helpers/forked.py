"""Commands as processes of their own that need no start: each is forked from one process that has imported everything.

Starting an interpreter and importing this package takes a second of processor time, with PyTorch five. A process that
is made here has its own arguments, folder, environment and signals, and dies of `kill -9`, as any other. What it shares
with the others is the seed of hashes: a run that others must equal is made by an interpreter of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from offline_agent.crash_notes import end_with

ROOT = Path(__file__).parents[2]
IMPORTED = (
    "torch", "transformers.trainer", "transformers.models.llama.modeling_llama", "transformers.models.auto", "peft",
    "accelerate", "pyarrow.parquet", "scipy.stats", "openai", "libcst", "offline_agent.envs.shop",
    "offline_agent.judges.verifiers", "offline_agent.report.html.page", "offline_agent.envs.conformance",
    "offline_agent.pipelines.build_prefs", "offline_agent.pipelines.train_sft", "offline_agent.pipelines.train_dpo",
    "offline_agent.pipelines.evaluate", "offline_agent.pipelines.refine_grpo",
)  # fmt: skip
"""What the forking process imports first, with all that it leads to."""
TRACKING = "offline_agent.store.mlflow_worker"
CLIENT = """#!{python} -SE
import json, os, signal, socket, sys
words = sys.argv[1:]
if words[:1] != ["-m"] or not words[1].startswith("offline_agent."):
    os.execv({python!r}, [{python!r}, *words])
line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
line.connect({address!r})
asked = dict(words=words, cwd=os.getcwd(), env=dict(os.environ))
socket.send_fds(line, [json.dumps(asked).encode()], [0, 1, 2])
pid = int(line.recv(16))
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda number, frame: os.kill(pid, number))
status = int(line.recv(16))
if status < 0:
    signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
"""


class Process:
    """A Python process that runs beside the test, with the methods of `subprocess.Popen`.

    Args:
        command: An interpreter and its arguments: `-m MODULE`, `-c CODE` or a file first.
        cwd: The folder in which it runs; None for this process's.
        env: Its environment; None for this process's.
    """

    def __init__(
        self, command: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        self._said = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line.connect(_address())
        asked = {
            "words": list(command[1:]),
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
        }
        with open(os.devnull) as nothing:
            files = [nothing.fileno(), *(file.fileno() for file in self._said)]
            socket.send_fds(self._line, [json.dumps(asked).encode()], files)
        self.pid = int(self._line.recv(16))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return its status, None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return its status; that of a signal is negative."""
        if self.returncode is None:
            self._line.settimeout(timeout)
            try:
                self.returncode = int(self._line.recv(16))
            except (BlockingIOError, TimeoutError):
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0) from None
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for its end and return both outputs."""
        self.wait(timeout)
        return self.said()

    def said(self) -> tuple[str, str]:
        """Return both outputs so far."""
        # the process writes where these files' position is
        out, err = (os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode() for file in self._said)
        return out, err

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it as `kill -9` does."""
        self.send_signal(signal.SIGKILL)


def run(
    command: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a Python process to its end; see `Process`."""
    process = Process(command, cwd=cwd, env=env)
    out, err = process.communicate(timeout)
    return subprocess.CompletedProcess(list(command), process.wait(), out, err)


@functools.cache
def python() -> Path:
    """Return a program that forks this package's commands, passes signals on to them, and executes everything else."""
    file = Path(_address()).parent / "python"
    file.write_text(CLIENT.format(python=sys.executable, address=_address()))
    file.chmod(0o755)
    return file


def path() -> str:
    """Return a search path for scripts, with this `python`."""
    return os.pathsep.join([str(python().parent), str(Path(sys.executable).parent), os.environ["PATH"]])


@functools.cache
def _address() -> str:
    """Start the process that forks, which ends with this one; return its address."""
    folder = tempfile.TemporaryDirectory(prefix="forked-")
    atexit.register(folder.cleanup)
    address = f"{folder.name}/socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen()
        words = [sys.executable, "-m", "tests.helpers.forked", str(listener.fileno()), str(os.getpid())]
        process = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL, pass_fds=[listener.fileno()])
    atexit.register(process.wait)
    atexit.register(process.kill)
    return address


def _serve(listener: socket.socket) -> None:
    """Fork a process for each connection."""
    for name in IMPORTED:
        importlib.import_module(name)
    list(importlib.import_module("offline_agent.envs.shop").Shop.tasks("train"))  # kept in memory
    gc.freeze()
    while True:
        line, _ = listener.accept()
        asked = line.recv(1 << 20, socket.MSG_PEEK)
        if not asked:  # its client was killed before it asked
            line.close()
            continue
        words = json.loads(asked)["words"]
        if words[:2] == ["-m", TRACKING] and TRACKING not in sys.modules:  # MLflow's import takes two seconds
            importlib.import_module("mlflow.store.tracking.sqlalchemy_store")
            importlib.import_module(TRACKING)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # those who have waited below
                pass
        if os.fork() == 0:
            listener.close()
            return _start(line)
        line.close()


def _start(line: socket.socket) -> None:
    """Read what is asked, start it in a child, tell its process id, wait for it and tell its status."""
    message, files, *_ = socket.recv_fds(line, 1 << 20, 3)
    child = os.fork()
    if child == 0:
        line.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        # the objects that are there would go on as for the files that these were
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", closefd=False, errors="backslashreplace")  # noqa: SIM115
        os._exit(_ended(lambda: _execute(**json.loads(message))))
    line.send(b"%d" % child)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(OSError):  # nobody asks any more
        line.send(b"%d" % status)
    os._exit(0)


def _ended(work: Callable[[], None]) -> int:
    """Do the work and what an interpreter does at its end, but for freeing every object, which takes a second."""
    status: Any = 0
    try:
        work()
    except SystemExit as end:
        status = end.code or 0
        if not isinstance(status, int):
            print(status, file=sys.stderr)
            status = 1
    except BaseException:
        traceback.print_exc()
        status = 1
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    return status


def _execute(words: list[str], cwd: str, env: Mapping[str, str]) -> None:
    """Do in this process what an interpreter with these arguments does."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.path[1:1] = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    if words[0] == "-m":
        sys.path[0], sys.argv = cwd, words[1:]
        sys.modules.pop(words[1], None)
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.path[0], sys.argv = "", ["-c", *words[2:]]
        main: Any = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        exec(compile(words[1], "<string>", "exec"), vars(main))
    else:
        sys.path[0], sys.argv = str(Path(words[0]).parent.resolve()), words
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    end_with(int(sys.argv[2]))
    _serve(socket.socket(fileno=int(sys.argv[1])))
