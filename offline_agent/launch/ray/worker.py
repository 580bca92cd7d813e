"""Worker process of a Ray pool: takes items, returns their messages, and reports failures.

The driver calls `exchange` again and again. Each call brings new items and returns the messages of earlier ones. So the
driver has every result within a fraction of a second, and a slow driver slows its workers down instead of filling the
memory.
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
_LINGER = 0.02  # seconds that a first message waits for others: fewer and larger replies
_MOST = 4096  # messages in the queue at which the work waits for the driver
_NOT_PASSED = ("RAY_", "CUDA_", "SLURM_", "HOSTNAME", "OMP_", "PWD", "TMPDIR")


class Message(NamedTuple):
    """A message about an item: `record` = a part to be kept; `done` = the result, always the last message."""

    item: int
    kind: str
    value: Any


class HandedItem(NamedTuple):
    """An item in a worker: its number in the pool, and the work to do."""

    number: int
    payload: Any


class Failure(NamedTuple):
    """An exception in a worker: class name, text and traceback."""

    kind: str
    text: str
    trace: str


class Ready(NamedTuple):
    """The answer of a worker that is set up: its host and process id, and notes for the user."""

    host: str
    process: int
    notes: tuple[str, ...] = ()


class WorkerReply(NamedTuple):
    """The answer of a worker to `exchange`.

    Attributes:
        messages: New messages, in the order in which they were sent.
        figures: Counts since the phase began.
        over: The phase has ended; no more messages will come.
        failure: The exception that ended the phase; None = none.
    """

    messages: list[Message]
    figures: dict[str, Any]
    over: bool
    failure: Failure | None


class DriverContext(NamedTuple):
    """Working directory and environment variables of the driver."""

    folder: str
    variables: Mapping[str, str]


class ItemFeed:
    """The items of a worker: an iterator that stops when it is empty and can be iterated again when items arrive."""

    def __init__(self) -> None:
        self._items: deque[HandedItem] = deque()
        self._condition = threading.Condition()
        self._closed = False

    def __iter__(self) -> ItemFeed:
        """Return itself."""
        return self

    def __next__(self) -> HandedItem:
        """Return an item; raises StopIteration when there is none now."""
        with self._condition:
            if not self._items:
                raise StopIteration
            return self._items.popleft()

    def wait(self) -> bool:
        """Wait for an item; return False when the feed is closed and empty."""
        with self._condition:
            while not self._items and not self._closed:
                self._condition.wait()
            return bool(self._items)

    def put(self, items: Sequence[HandedItem]) -> None:
        """Add items."""
        with self._condition:
            self._items.extend(items)
            self._condition.notify_all()

    def close(self) -> None:
        """Close the feed: no more items will come."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()


class MessageQueue:
    """Messages that wait for the driver; `send` blocks while the queue is full.

    Args:
        most: Capacity.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._messages: list[Message] = []
        self._condition = threading.Condition()
        self._hurry = False  # a result is there, or nothing more will come: `take` must not wait for more

    def send(self, item: int, kind: str, value: Any) -> None:
        """Add a message."""
        with self._condition:
            while len(self._messages) >= self._most:
                self._condition.wait()
            self._messages.append(Message(item, kind, value))
            self._hurry |= kind == DONE
            self._condition.notify_all()

    def hurry(self) -> None:
        """Wake up `take`: no more messages will come."""
        with self._condition:
            self._hurry = True
            self._condition.notify_all()

    def take(self, seconds: float) -> list[Message]:
        """Return all messages; if there are none, wait for one up to `seconds`."""
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
"""Sends a message: number of the item, kind, value."""


class Executor(Protocol):
    """The work of a pool, as each worker does it. The factory of the pool makes one in every worker.

    Attributes:
        notes: Notes about this worker for the user.
    """

    notes: tuple[str, ...]

    def work(self, phase: str, feed: ItemFeed, send: Send, elapsed: float) -> None:
        """Process items until the feed is closed.

        Args:
            phase: The kind of items.
            feed: The items.
            send: Takes records and, as the last message of each item, its result.
            elapsed: Seconds since the driver began the phase.
        """
        ...

    def figures(self, last: bool) -> dict[str, Any]:
        """Return counts since the phase began. Called often, from another thread than `work`.

        Args:
            last: This is the last call of the phase: slow figures may be left for it.
        """
        ...

    def stop(self) -> None:
        """Make `work` return soon and cleanly; called from another thread."""
        ...


class RayWorker:
    """The Ray actor of a pool's worker."""

    def __init__(self) -> None:
        self._executor: Executor | None = None
        self._phase: str | None = None
        self._feed = ItemFeed()
        self._messages = MessageQueue()
        self._thread: threading.Thread | None = None
        self._failure: Failure | None = None

    def set_up(self, factory: Callable[[], Executor], context: DriverContext) -> Ready | Failure:
        """Make the executor. The pool calls this first."""
        try:
            enter(context)
            self._executor = factory()
        except Exception as error:
            return failure(error)
        gc.freeze()  # loaded modules and weights live as long as the worker: the collector need not visit them
        return Ready(socket.gethostname(), os.getpid(), self._executor.notes)

    def exchange(
        self, phase: str, elapsed: float, items: Sequence[HandedItem], last: bool = False, seconds: float = 0.5
    ) -> WorkerReply:
        """Take items of a phase and return the messages of earlier ones.

        Args:
            phase: The phase; another name than before begins a new one.
            elapsed: Seconds since the driver began the phase.
            items: New items.
            last: No more items of this phase will come.
            seconds: Longest wait for a message.
        """
        if phase != self._phase:
            self._begin(phase, elapsed)
        self._feed.put(items)
        if last:
            self._feed.close()
        messages = self._messages.take(seconds)
        assert self._thread is not None and self._executor is not None  # the phase has begun
        over = not self._thread.is_alive()
        if over:
            messages += self._messages.take(0)
        return WorkerReply(messages, self._executor.figures(last), over, self._failure)

    def stop(self) -> None:
        """Ask the executor to end cleanly."""
        if self._executor is not None:
            self._executor.stop()

    def _begin(self, phase: str, elapsed: float) -> None:
        self._phase, self._feed, self._messages, self._failure = phase, ItemFeed(), MessageQueue(), None
        executor, feed, messages = self._executor, self._feed, self._messages
        assert executor is not None  # set up first

        def work() -> None:
            try:
                executor.work(phase, feed, messages.send, elapsed)
            except BaseException as error:  # noqa: B036  # the driver must see every exception
                self._failure = failure(error)
            messages.hurry()

        self._thread = threading.Thread(target=work, name=f"pool-{phase}", daemon=True)
        self._thread.start()


def driver_context() -> DriverContext:
    """Return the context of this process, for `enter` in a worker."""
    return DriverContext(os.getcwd(), {k: v for k, v in os.environ.items() if not k.startswith(_NOT_PASSED)})


def enter(context: DriverContext) -> None:
    """Change to the directory of the driver, and set its variables where they are not set here.

    Raises:
        ConfigError: This machine has no such directory.
    """
    from offline_agent.errors import ConfigError

    if not Path(context.folder).is_dir():
        raise ConfigError(
            f"{socket.gethostname()} has no folder {context.folder}, where the command was given; workers need the "
            "same code and the same paths"
        )
    os.chdir(context.folder)
    if context.folder not in sys.path:
        sys.path.insert(0, context.folder)  # for classes of the user named as module:Class
    for name, value in context.variables.items():
        os.environ.setdefault(name, value)


def failure(error: BaseException) -> Failure:
    """Return an exception as plain data: its class may not exist in the driver."""
    return Failure(type(error).__name__, str(error), "".join(traceback.format_exception(error)))

