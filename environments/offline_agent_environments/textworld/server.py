"""The Java machine of a process, and the many games in it."""

from __future__ import annotations

import importlib.util
import itertools
import json
import logging
import os
import shutil
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from offline_agent.errors import ConfigError, EnvironmentFault

# The package's eighth, `sorting`, is left out: two of its games in one Java machine share their objects.
GAMES = ("cookingworld", "twc", "coin", "mapreader", "arithmetic", "simonsays", "peckingorder")
FOLDS = {"train": "train", "validation": "dev", "test": "test"}
FIRST_SEED = {"train": 0, "dev": 10_000, "test": 20_000}
SEEDS_PER_FOLD = 1_000
INSTALL = "pip install textworld-express==1.1.0"

# The package draws the gold paths of these two from an unseeded generator; their agents take a seeded one.
_SEEDED_AGENTS = {"twc": "TWCGoldAgent", "coin": "CoinGoldAgent"}
_GOLD_TRIES, _GOLD_WINS = 30, 5
# A hundred games take about 130 MB; without a limit Java takes a quarter of the machine's memory.
_JAVA_OPTIONS = ["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
_KEPT = 64


def missing() -> str | None:
    """Return a text that says what is missing and how to install it; None when nothing is."""
    for package, command in (("textworld_express", INSTALL), ("py4j", "pip install py4j")):
        if importlib.util.find_spec(package) is None:
            return (
                f"env textworld needs the package {package.replace('_', '-')}, which is not installed; run: {command}"
            )
    if java() is None:
        return (
            "env textworld needs Java, and there is no `java` on the PATH; on Debian or Ubuntu run:"
            " apt-get install default-jre-headless (or openjdk-17-jre-headless)"
        )
    return None


def java() -> str | None:
    """Return the path of a Java runtime: on the PATH, or beside the running Python; None where there is none."""
    beside = os.path.join(os.path.dirname(sys.executable), "java")
    return shutil.which("java") or shutil.which(beside)


class JavaServer:
    """A Java machine and the games in it that are free to be used again. Safe to use from many threads."""

    def __init__(self) -> None:
        fault = missing()
        if fault is not None:
            raise ConfigError(fault)
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
        from textworld_express.constants import BASEPATH, JAR_PATH

        logging.getLogger("py4j").setLevel(logging.CRITICAL)  # errors reach us as exceptions
        try:
            port, self._process = launch_gateway(
                classpath=JAR_PATH,
                cwd=BASEPATH,
                javaopts=_JAVA_OPTIONS,
                die_on_exit=True,
                create_new_process_group=True,  # Ctrl-C is for Python; Java ends with it, or every thread's call breaks
                return_proc=True,
                java_path=java(),
            )
            parameters = GatewayParameters(port=port)
            self._gateway = JavaGateway(gateway_parameters=parameters, java_process=self._process)
        except Exception as error:
            raise EnvironmentFault(f"textworld: Java did not start ({type(error).__name__}: {error})") from error
        self._free: dict[tuple[str, str], list[Interface]] = defaultdict(list)
        self._lock = threading.Lock()

    @property
    def alive(self) -> bool:
        """Whether the Java machine still runs."""
        return bool(self._process.poll() is None)

    def take(self, game: str, params: str) -> Interface:
        """Return a game's interface with its generator loaded, for one user at a time, who closes it.

        Raises:
            ConfigError: The game's parameters are not understood.
            EnvironmentFault: Java failed.
        """
        with self._lock:
            if self._free[game, params]:
                return self._free[game, params].pop()
        with _java(f"load {game}"):
            interface = self._gateway.jvm.textworldexpress.runtime.PythonInterface()
            told = interface.load(game, params)
        if told:
            raise ConfigError(
                f"env.params: {game} does not take {params!r} ({told}); e.g. numLocations=5,includeDoors=0"
            )
        return Interface(self, game, params, interface)

    def keep(self, interface: Interface) -> None:
        """Keep an interface of this server's for the next user."""
        with self._lock:
            free = self._free[interface.game, interface.params]
            if self.alive and len(free) < _KEPT:
                free.append(interface)

    def gold(self, game: str, params: str, fold: str, seed: int) -> list[str]:
        """Return a winning path, the same whenever and wherever it is asked for.

        Raises:
            ConfigError: The game's parameters are not understood.
            EnvironmentFault: Java failed.
        """
        with self.take(game, params) as interface:
            if game not in _SEEDED_AGENTS:
                return interface.gold(fold, seed)
            walks = (self._walk(interface, game, fold, seed, i) for i in range(_GOLD_TRIES))
            won = list(itertools.islice(filter(None, walks), _GOLD_WINS))
            return min(won, key=len, default=[])

    def _walk(self, interface: Interface, game: str, fold: str, seed: int, attempt: int) -> list[str]:
        interface.begin(fold, seed)
        with interface.asked(f"find a way through {game}") as java:
            agent = getattr(self._gateway.jvm.textworldexpress.goldagent, _SEEDED_AGENTS[game])(java.game())
            found = agent.mkGoldPath(self._gateway.jvm.scala.util.Random(seed * _GOLD_TRIES + attempt))
            return list(found._2()) if found._1() else []


class Interface:
    """A game in a server's Java machine, for one user at a time; closed, or left as a context, it is that server's.

    Every method raises EnvironmentFault where Java fails or has died.
    """

    def __init__(self, home: JavaServer, game: str, params: str, java: Any) -> None:
        self.game = game
        self.params = params
        self._home = home
        self._java = java
        self._sound = True

    def begin(self, fold: str, seed: int, gold: bool = False) -> dict[str, Any]:
        """Begin a game, with its winning path where `gold`, and return its state."""
        with self.asked(f"begin a game of {self.game}") as java:
            return dict(json.loads(java.generateNewGameJSON(seed, fold, gold)))

    def task(self) -> str:
        """Return the task of the game."""
        with self.asked("tell the task") as java:
            return str(java.getTaskDescription())

    def step(self, command: str) -> dict[str, Any]:
        """Execute a command and return the state after it."""
        with self.asked(f"carry out {command!r}") as java:
            return dict(json.loads(java.stepJSON(command)))

    def gold(self, fold: str, seed: int) -> list[str]:
        """Return the package's own winning path."""
        self.begin(fold, seed, gold=True)
        with self.asked(f"find a way through {self.game}") as java:
            return list(java.getGoldActionSequence())

    @contextmanager
    def asked(self, what: str) -> Iterator[Any]:
        """Yield the Java object; an error of it becomes a fault, and it is not used again."""
        try:
            with _java(what):
                yield self._java
        except EnvironmentFault:
            self._sound = False
            raise

    def close(self) -> None:
        """Return it to its server."""
        if self._sound:
            self._home.keep(self)

    def __enter__(self) -> Interface:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def _java(what: str) -> Iterator[None]:
    """Raise a missing or incomplete answer as a fault of the environment: a ValueError would count as bad input."""
    try:
        yield
    except Exception as error:
        raise EnvironmentFault(
            f"textworld: Java failed to {what} ({type(error).__name__}: {error}); if it has died, the next game starts"
            " it again"
        ) from error


_servers: dict[int, JavaServer] = {}
_lock = threading.Lock()


def server() -> JavaServer:
    """Return this process's server; it is started on the first call, and again if Java has died.

    Raises:
        ConfigError: The package or Java is missing: what, and how to install it.
        EnvironmentFault: Java did not start.
    """
    with _lock:
        found = _servers.get(os.getpid())
        if found is None or not found.alive:
            found = _servers[os.getpid()] = JavaServer()
        return found


@lru_cache(maxsize=4096)
def gold_path(game: str, params: str, fold: str, seed: int) -> tuple[str, ...]:
    """Return a winning path of commands that ends with the win."""
    path = server().gold(game, params, fold, seed)
    for length, state in enumerate(replay(game, params, fold, seed, tuple(path)), start=1):
        if state["tasksuccess"]:
            return tuple(path[:length])
    return tuple(path)


def replay(game: str, params: str, fold: str, seed: int, commands: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the game's state after each command."""
    with server().take(game, params) as interface:
        interface.begin(fold, seed)
        return [interface.step(command) for command in commands]
