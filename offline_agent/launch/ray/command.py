"""A whole command run on one node of a Ray cluster; its output and exit status come back.

The process on the node dies with the worker that started it. When the node is lost, the command is started on another
node and resumes its run directory, which all nodes must see.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from offline_agent.config.build_prefs import BuildPrefsConfig, RunConfig
from offline_agent.config.evaluate import EvaluateConfig
from offline_agent.errors import OfflineAgentError
from offline_agent.launch.stages import bound_to
from offline_agent.runner import terminal
from offline_agent.runner.opening import place
from offline_agent.runner.pipeline import FAILED, Command, Facts
from offline_agent.runner.signals import Stopped

if TYPE_CHECKING:
    from offline_agent.launch.ray.worker import ItemFeed, Send

INSIDE = "OFFLINE_AGENT_INSIDE_RAY"
"""Environment variable: this process runs on a node already."""

_PACKAGE = Path(__file__).resolve().parents[3]
_BEGIN = (
    "import json, runpy, sys; sys.argv[1:] = json.load(sys.stdin); "
    "runpy.run_module({!r}, run_name='__main__', alter_sys=True)"
)
_SAID, _SHOWN = "stderr", "stdout"
_PATIENCE = 60.0  # seconds that a stopped command has to end


def launcher(command: Command[Any, Any], config: RunConfig, arguments: Sequence[str]) -> Callable[..., int] | None:
    """Return the function that runs the command on a node; None where it runs here and spreads its tasks or stages.

    Args:
        command: The command.
        config: Its configuration.
        arguments: The arguments of the command line.

    Raises:
        ConfigError: Ray is not installed, or nothing answers at its address.
    """
    from offline_agent.launch.ray import cluster

    cluster.check(config.ray.address)
    if isinstance(config, BuildPrefsConfig | EvaluateConfig):  # IterateConfig is a BuildPrefsConfig
        return None
    return partial(_launch, arguments=arguments)


def _launch(
    command: Command[Any, Any], config: RunConfig, prepared: Any, facts: Facts, *, arguments: Sequence[str]
) -> int:
    path = place(command.name, config.run_dir).resolve()
    same = [argument for argument in arguments if not argument.startswith("run_dir=")]
    factory = CommandExecutorFactory(f"offline_agent.pipelines.{command.name}", (*same, f"run_dir={path}"))
    again = f"run the same command again with {shlex.quote(f'run_dir={path}')} to go on"
    try:
        with _Signals() as signals:
            status = _watch(command.name, config, factory, signals)
        if not signals.told:
            return status
        terminal.say(f"{command.name}: stopped by {signals.told}; {again}")
    except OfflineAgentError as error:
        terminal.say(f"{command.name}: {error}; {again}")
    except Stopped as stop:
        terminal.say(f"{command.name}: stopped by {stop}; {again}")
    return FAILED


class _Signals:
    """Handlers of SIGTERM and SIGINT: the first signal is passed on to the node, the second ends this process.

    Attributes:
        told: Name of the first signal; None = none.
    """

    def __init__(self) -> None:
        self.told: str | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *details: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: object) -> None:
        if self.told is not None:
            raise Stopped(signal.Signals(number).name)
        self.told = signal.Signals(number).name


def _watch(name: str, config: RunConfig, factory: CommandExecutorFactory, signals: _Signals) -> int:
    """Give the command to a worker, print its output, and return its exit status."""
    from offline_agent.launch.ray import cluster
    from offline_agent.launch.ray.pool import WorkerPool
    from offline_agent.launch.ray.work_items import PoolError, PoolSettings, WorkItem
    from offline_agent.launch.ray.worker import DONE, RECORD

    asked, passed_on = config.ray, False
    settings = PoolSettings.of(asked, workers=1, in_flight=1)

    def say(text: str) -> None:
        terminal.say(f"{name}: {text}")

    def tick() -> None:
        nonlocal passed_on
        if signals.told is not None and not passed_on:
            passed_on = True
            if not pool.stop():  # no worker is set up yet
                raise Stopped(signals.told)

    with cluster.connected(asked.address, asked.cpus), WorkerPool(factory, settings, say, True) as pool:
        for _, kind, value in pool.run("command", [WorkItem(name, None)], tick):
            if kind == DONE:
                return int(value)
            if kind != RECORD:
                raise PoolError(str(value))
            stream, line = value
            print(line, end="", file=sys.stderr if stream == _SAID else sys.stdout, flush=True)
    raise PoolError("the command ended without a status")


@dataclass(frozen=True, slots=True)
class CommandExecutorFactory:
    """Makes a `CommandExecutor` in a worker.

    Attributes:
        module: The command's module.
        arguments: Its arguments.
    """

    module: str
    arguments: tuple[str, ...]

    def __call__(self) -> CommandExecutor:
        """Return it."""
        return CommandExecutor(self.module, self.arguments)


class CommandExecutor:
    """Runs a command in a worker; see `Executor`. Records are (stream, line), the result is the exit status.

    Args:
        module: The command's module.
        arguments: Its arguments; they may hold secrets, and go to its standard input, which no other user can see.
    """

    def __init__(self, module: str, arguments: Sequence[str]) -> None:
        self.notes: tuple[str, ...] = ()
        self._program, self._arguments = _BEGIN.format(module), arguments
        self._process: subprocess.Popen[str] | None = None
        self._stopped = False

    def work(self, phase: str, feed: ItemFeed, send: Send, elapsed: float) -> None:
        """See `Executor.work`."""
        while feed.wait():
            for item in feed:
                send(item.number, "done", self._run(partial(send, item.number, "record")))

    def figures(self, last: bool) -> dict[str, Any]:
        """Return nothing: all figures are in the run directory."""
        return {}

    def stop(self) -> None:
        """Send SIGTERM to the command; kill it after a minute."""
        self._stopped = True
        process = self._process
        if process is not None:
            process.terminate()
            killer = threading.Timer(_PATIENCE, process.kill)
            killer.daemon = True
            killer.start()

    def _run(self, send: Callable[[Any], None]) -> int:
        paths = os.pathsep.join(filter(None, [str(_PACKAGE), os.environ.get("PYTHONPATH")]))
        process = self._process = subprocess.Popen(
            [sys.executable, "-c", self._program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, encoding="utf-8", errors="replace",
            env={**os.environ, "PYTHONPATH": paths, INSIDE: "1"}, start_new_session=True,
            preexec_fn=bound_to(os.getpid()),
        )  # fmt: skip
        if self._stopped:  # `stop` was called before the process existed
            process.terminate()
        assert process.stdin and process.stdout and process.stderr  # they are pipes
        with contextlib.suppress(BrokenPipeError), process.stdin:  # it has ended already
            json.dump(self._arguments, process.stdin)
        lines: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()
        for name, stream in ((_SHOWN, process.stdout), (_SAID, process.stderr)):
            threading.Thread(target=_read, args=(name, stream, lines), daemon=True).start()
        ended = 0
        while ended < 2:
            line = lines.get()
            if line is None:
                ended += 1
            else:
                send(line)
        status = process.wait()
        if status < 0:
            send((_SAID, f"ended by signal {signal.Signals(-status).name}\n"))
        return status if status >= 0 else 1


def _read(name: str, stream: IO[str], lines: queue.SimpleQueue[tuple[str, str] | None]) -> None:
    with contextlib.suppress(OSError, ValueError):
        for line in stream:
            lines.put((name, line))
    lines.put(None)
