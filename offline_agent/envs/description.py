"""Description of an environment: what its class declares, the options of a run, what is open, what calls succeed."""

from __future__ import annotations

import inspect
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent import catalog, parameters
from offline_agent.envs.tools import ToolSet
from offline_agent.errors import ConfigError, OfflineAgentError, did_you_mean

if TYPE_CHECKING:
    from offline_agent.judges.judge import Judge


class Census:
    """Counts open environments of one class; thread-safe.

    Args:
        most: Number of environments that may be open at once.

    Attributes:
        open: Number of those that are open, copies included.
        peak: The largest number so far.
        most: See above.
        reserved: Part of `most` that states kept for later must leave free, for the environments in use.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.open = self.peak = 0
        self.reserved = 0
        self._lock = threading.Lock()

    @property
    def crowded(self) -> bool:
        """Whether so many are open that a tree keeps its last state alone; the others are restored by replay."""
        return self.open > max(0, self.most - self.reserved)

    def count(self, more: int) -> None:
        """Add to the number of open environments."""
        with self._lock:
            self.open += more
            self.peak = max(self.peak, self.open)

    def trees(self, most: int, workers: int, one_thread: bool) -> int:
        """Return how many trees may be searched at once, and reserve what they need at least.

        A tree keeps one environment, and uses one more while one thread makes its calls; else `workers` are used.

        Args:
            most: Number of trees that are asked for.
            workers: Number of calls made at once.
            one_thread: See `EnvSpec.one_thread`.
        """
        trees = max(1, min(most, self.most // 3 if one_thread else (self.most - workers) // 2))
        self.reserved = trees + (min(trees, workers) if one_thread else workers)
        return trees


class GivenUp(OfflineAgentError):
    """The check that makes this call ran out of time; nobody waits for it any more."""


class CallWatch:
    """Notes of each method of an environment whether its calls succeed; ends threads that were given up.

    Attributes:
        succeeded: Calls that returned, by method.
        failed: Calls that raised, by method.
        errors: The last error of each method that raised.
    """

    def __init__(self) -> None:
        self.succeeded: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.errors: dict[str, BaseException] = {}
        self._given_up: set[threading.Thread] = set()

    def give_up(self, thread: threading.Thread) -> None:
        """End a thread at its next call."""
        self._given_up.add(thread)

    def begin(self) -> None:
        """Take note that a call is about to be made; raises GivenUp in a thread that was given up."""
        if self._given_up and threading.current_thread() in self._given_up:
            raise GivenUp("the check was given up")

    def returned(self, method: str) -> None:
        """Note that a call succeeded."""
        self.succeeded[method] += 1

    def raised(self, method: str, error: BaseException) -> None:
        """Note that a call raised."""
        self.failed[method] += 1
        self.errors[method] = error


class EnvDescription:
    """What an environment is, and how it is run: its class and the arguments of its constructor, checked once.

    Args:
        cls: The class.
        args: Keyword arguments of its constructor.
        name: Short name; the class's own `name`, else the class's name, by default.
        sandboxed: Whether tools marked irreversible may be called.
        max_observation_chars: Longer observations are cut, with a note that says so.
        isolated: Open environments in processes of their own (`envs.isolation`).
        most_open: Number of environments that may be open at once; see `Census`.
        judge: Gives the verdicts; None = the class's own `get_reward`.

    Attributes:
        path: Name under which another process loads the class.
        python: The interpreter that runs it; None = this one.
        tools: The class's tools. A live episode may have fewer: the policy is shown `Episode.tools`.
        restarts: Tools that begin the task anew: what came before them is not imitated.
        max_steps: The class's own longest episode in actions; None = it names none (`envs.checks.trial`).
        demonstrate: The scripted expert `(task args, messages, rng, noise) -> message`; None where there is none.
        deterministic_verifier: The same end state always gets the same verdict.
        turn_rewards: The class has a `turn_reward`: a reward of each single call.
        runs_code: The class says, by `runs_code = True`, that it runs what a policy wrote.
        fingerprints: The class has a `fingerprint`: a hash of its state.
        census: Counts the environments that are open.
        watch: Told of each call; set by the conformance suite, None elsewhere.

    Raises:
        ConfigError: The class does not meet the contract: every fault found, one line each.
    """

    def __init__(
        self,
        cls: type,
        args: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        sandboxed: bool = False,
        max_observation_chars: int = 8000,
        isolated: bool = False,
        most_open: int = 4096,
        judge: Judge | None = None,
    ) -> None:
        self.cls = cls
        self.judge = judge
        self.path = f"{cls.__module__}:{cls.__qualname__}" if inspect.isclass(cls) else ""
        self.isolated = isolated
        self.python: str | None = None
        self.census = Census(most_open)
        self.args = dict(args or {})
        declared = inspect.getattr_static(cls, "name", None)
        self.name: str = declared if isinstance(declared, str) else name or cls.__name__
        self.version = str(getattr(cls, "version", "1"))
        self.sandboxed = sandboxed
        self.max_observation_chars = max_observation_chars
        if not inspect.isclass(cls):
            raise ConfigError(f"env: {cls!r} is no class")
        faults = [*_class_faults(cls), *parameters.argument_faults("env", cls, self.args)]
        try:
            self.tools = ToolSet.of(cls)
        except ConfigError as error:
            faults.extend(error.faults)
        if faults:
            raise ConfigError(faults)
        prompt = getattr(cls, "system_prompt", "")
        self.system_prompt: str = prompt if isinstance(prompt, str) else ""
        self.irreversible = frozenset(getattr(cls, "irreversible", ()))
        self.restarts = frozenset(getattr(cls, "restarts", ()))
        self.replay_only = bool(getattr(cls, "replay_only", False))
        self._one_thread = bool(getattr(cls, "one_thread", True))
        self.max_steps: int | None = getattr(cls, "max_steps", None)
        own = bool(getattr(cls, "deterministic_verifier", True))
        self.deterministic_verifier = own and (judge is None or judge.deterministic)
        self.turn_rewards = inspect.getattr_static(cls, "turn_reward", self) is not self
        self.runs_code = bool(getattr(cls, "runs_code", False))
        self.fingerprints = inspect.getattr_static(cls, "fingerprint", None) is not None
        self.watch: CallWatch | None = None
        self.demonstrate: Callable[..., Any] | None = getattr(cls, "demonstrate", None)
        for kind in ("irreversible", "restarts"):
            for tool in sorted(getattr(self, kind) - set(self.tools.names)):
                near = did_you_mean(tool, self.tools.names)
                faults.append(f"environment {self.name}: {kind} names {tool!r}, which is no tool.{near}")
        if faults:
            raise ConfigError(faults)

    @property
    def one_thread(self) -> bool:
        """Whether one thread opens, steps, copies and closes an environment and its copies.

        A class says `one_thread = False` where any thread may; an isolated one is called by its own process's thread.
        """
        return self._one_thread and not self.isolated

    @property
    def adapted(self) -> bool:
        """Whether the class is an adapter's, which its user cannot change."""
        point = catalog.entry_point("env", self.path)
        return point is not None and catalog.is_adapter(point)

    @property
    def identity(self) -> dict[str, Any]:
        """JSON-serialisable facts for the manifest."""
        point = catalog.entry_point("env", self.path)
        facts = {
            "name": self.name, "version": self.version,
            "class": self.path if self.adapted else f"{self.cls.__module__}:{self.cls.__qualname__}", "args": self.args,
            "distribution": None if point is None else catalog.distribution(point), "python": self.python,
            "judge": None if self.judge is None else self.judge.identity, "sandbox": self.sandbox,
        }  # fmt: skip
        return {name: fact for name, fact in facts.items() if fact is not None}

    @property
    def sandbox(self) -> str | None:
        """Level of the sandbox that its code runs in; None where neither class nor judge runs what a policy wrote."""
        judged = self.judge is not None and self.judge.name == "unit_tests"
        if not (judged or self.runs_code):
            return None
        from offline_agent.sandbox import shared

        return shared().level

    def keep_in(self, run: Path) -> None:
        """Keep what the judge is answered in a run directory, where it asks a model."""
        if self.judge is not None:
            self.judge.keep_in(run / "judge")


def _class_faults(cls: type) -> Iterator[str]:
    most = getattr(cls, "max_steps", None)
    if most is not None and (type(most) is not int or most < 1):
        yield (
            f"environment {cls.__name__}: its max_steps is {most!r}, allowed: None or a whole number from 1, the "
            "actions of its longest episode; call it otherwise where it means something else"
        )
    reply = inspect.getattr_static(cls, "_reply", None)
    if inspect.isfunction(reply):
        try:
            inspect.signature(reply).bind(None, text="")
        except TypeError:
            yield (
                f"environment {cls.__name__}: got _reply{inspect.signature(reply)}, allowed: _reply(self, text) -> str "
                "| None, the scripted user's next turn after an answer without a call; call it otherwise where it "
                "means something else"
            )
    if not inspect.isfunction(inspect.getattr_static(cls, "reset", None)):
        yield f"environment {cls.__name__} has no method reset(self, ...) -> str; that is how a task starts"
    if inspect.isfunction(inspect.getattr_static(cls, "tasks", None)):
        yield f"environment {cls.__name__}: tasks must be a @classmethod; as a plain method TRL takes it for a tool"
