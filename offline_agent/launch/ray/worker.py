"""What runs in a worker of a crew: takes jobs, gives what comes of them, and says when something broke.

The driver asks again and again (`exchange`): each time it brings jobs and takes what has come of earlier ones. So what
a worker has done is with the driver within a fraction of a second, and a slow driver slows its workers, not its memory.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

RECORD, DONE = "record", "done"
_LINGER = 0.02  # seconds in which more messages may join a first one
_MOST = 4096  # messages that wait to be fetched before the work has to wait
_NOT_PASSED = ("RAY_", "CUDA_", "SLURM_", "HOSTNAME", "OMP_", "PWD", "TMPDIR")


class Message(NamedTuple):
    """Something that came of a job: `record` = a part of it, to be kept; `done` = its result, the last message."""

    job: int
    kind: str
    value: Any


class Handed(NamedTuple):
    """A job in a worker: its number, and what has to be done."""

    number: int
    payload: Any


class Failure(NamedTuple):
    """An exception of a worker: name of its class, its text, and where it was raised."""

    kind: str
    text: str
    trace: str


class Hello(NamedTuple):
    """A worker that is ready: where it is, and what the user should be told."""

    host: str
    process: int
    notes: tuple[str, ...] = ()


class Reply(NamedTuple):
    """What a worker has to say.

    Attributes:
        messages: In the order in which they were sent.
        figures: Counts since its phase began.
        over: The phase is over; nothing more will come.
        failure: What ended the phase before its time; None = nothing did.
    """

    messages: list[Message]
    figures: dict[str, Any]
    over: bool
    failure: Failure | None


class Place(NamedTuple):
    """Where the driver is: its folder, and its environment variables."""

    folder: str
    variables: Mapping[str, str]


class Feed:
    """The jobs of a worker: an iterator that ends where it has none now, and may have more when it is asked again."""

    def __init__(self) -> None:
        self._jobs: deque[Handed] = deque()
        self._condition = threading.Condition()
        self._closed = False

    def __iter__(self) -> Feed:
        """Return itself."""
        return self

    def __next__(self) -> Handed:
        """Return a job; raises StopIteration where there is none now."""
        with self._condition:
            if not self._jobs:
                raise StopIteration
            return self._jobs.popleft()

    def wait(self) -> bool:
        """Wait until there is a job; return False when there will be none any more."""
        with self._condition:
            while not self._jobs and not self._closed:
                self._condition.wait()
            return bool(self._jobs)

    def put(self, jobs: Sequence[Handed]) -> None:
        """Add jobs."""
        with self._condition:
            self._jobs.extend(jobs)
            self._condition.notify_all()

    def close(self) -> None:
        """Say that no more will come."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()


class Outbox:
    """Messages that wait to be fetched; whoever sends waits while there are too many.

    Args:
        most: How many are too many.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._messages: list[Message] = []
        self._condition = threading.Condition()
        self._hurry = False

    def send(self, job: int, kind: str, value: Any) -> None:
        """Add a message."""
        with self._condition:
            while len(self._messages) >= self._most:
                self._condition.wait()
            self._messages.append(Message(job, kind, value))
            self._hurry |= kind == DONE
            self._condition.notify_all()

    def hurry(self) -> None:
        """Wake whoever waits for messages: there will be none."""
        with self._condition:
            self._hurry = True
            self._condition.notify_all()

    def take(self, seconds: float) -> list[Message]:
        """Return what is there; where nothing is, wait for it, no longer than `seconds`."""
        until = time.monotonic() + seconds
        with self._condition:
            while not self._messages and not self._hurry and (left := until - time.monotonic()) > 0:
                self._condition.wait(left)
            until = time.monotonic() + _LINGER
            while not self._hurry and (left := until - time.monotonic()) > 0:
                self._condition.wait(left)
            messages, self._messages, self._hurry = self._messages, [], False
            self._condition.notify_all()
        return messages


Send = Callable[[int, str, Any], None]
"""Sends a message: the job's number, its kind, its value."""


class Hand(Protocol):
    """What does the work in a worker. Made once in each worker, by the crew's factory.

    Attributes:
        notes: What the user should be told about this worker.
    """

    notes: tuple[str, ...]

    def work(self, phase: str, feed: Feed, send: Send, elapsed: float) -> None:
        """Do jobs until the feed will have no more.

        Args:
            phase: What kind of jobs they are.
            feed: The jobs.
            send: Takes records and, as the last message of each job, its result.
            elapsed: Seconds since the driver began the phase.
        """
        ...

    def figures(self, last: bool) -> dict[str, Any]:
        """Return counts since the present phase began; called from another thread than `work`, and often.

        Args:
            last: For the last time: what takes a while to find out may be left for this.
        """
        ...

    def stop(self) -> None:
        """Make `work` return soon, in good order; called from another thread."""
        ...


class Worker:
    """The process of a crew's worker, as Ray's actor."""

    def __init__(self) -> None:
        self._hand: Hand | None = None
        self._phase: str | None = None
        self._feed = Feed()
        self._outbox = Outbox()
        self._thread: threading.Thread | None = None
        self._failure: Failure | None = None

    def set_up(self, factory: Callable[[], Hand], place: Place) -> Hello | Failure:
        """Make what does the work; to be called first."""
        try:
            settle(place)
            self._hand = factory()
        except Exception as error:
            return failure(error)
        gc.freeze()  # what is loaded by now lives as long as the worker
        return Hello(socket.gethostname(), os.getpid(), self._hand.notes)

    def exchange(
        self, phase: str, elapsed: float, jobs: Sequence[Handed], last: bool = False, seconds: float = 0.5
    ) -> Reply:
        """Take jobs of a phase and return what has come of those taken earlier.

        Args:
            phase: A new one begins when the one before is over.
            elapsed: Seconds since the driver began it.
            jobs: More of them.
            last: No more jobs of this phase will come.
            seconds: Longest wait for something to say.
        """
        if phase != self._phase:
            self._begin(phase, elapsed)
        self._feed.put(jobs)
        if last:
            self._feed.close()
        messages = self._outbox.take(seconds)
        assert self._thread is not None and self._hand is not None  # the phase has begun
        over = not self._thread.is_alive()
        if over:
            messages += self._outbox.take(0)
        return Reply(messages, self._hand.figures(last), over, self._failure)

    def stop(self) -> None:
        """Ask what does the work to end in good order."""
        if self._hand is not None:
            self._hand.stop()

    def _begin(self, phase: str, elapsed: float) -> None:
        self._phase, self._feed, self._outbox, self._failure = phase, Feed(), Outbox(), None
        hand, feed, outbox = self._hand, self._feed, self._outbox
        assert hand is not None  # set up first

        def work() -> None:
            try:
                hand.work(phase, feed, outbox.send, elapsed)
            except BaseException as error:  # noqa: B036  # whatever it is, the driver must hear of it
                self._failure = failure(error)
            outbox.hurry()

        self._thread = threading.Thread(target=work, name=f"crew-{phase}", daemon=True)
        self._thread.start()


def here() -> Place:
    """Return where this process is, for `settle`."""
    return Place(os.getcwd(), {k: v for k, v in os.environ.items() if not k.startswith(_NOT_PASSED)})


def settle(place: Place) -> None:
    """Go where the driver is; variables that are not set here get the driver's values.

    Raises:
        ConfigError: The folder is not there.
    """
    from offline_agent.errors import ConfigError

    if not Path(place.folder).is_dir():
        raise ConfigError(
            f"{socket.gethostname()} has no folder {place.folder}, where the command was given; workers need the same "
            "code and the same paths"
        )
    os.chdir(place.folder)
    if place.folder not in sys.path:
        sys.path.insert(0, place.folder)  # a module of one's own that is named as module:Class
    for name, value in place.variables.items():
        os.environ.setdefault(name, value)


def failure(error: BaseException) -> Failure:
    """Return an exception as data that any process can read."""
    return Failure(type(error).__name__, str(error), "".join(traceback.format_exception(error)))

