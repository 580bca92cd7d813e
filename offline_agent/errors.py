"""One error class per boundary; errors of other libraries are wrapped once, with their cause."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from offline_agent.outgoing import masked


class OfflineAgentError(Exception):
    """Base of every error this package raises on purpose."""


class ConfigError(OfflineAgentError):
    """A request that cannot be executed as written. It lists every fault found, not only the first.

    Args:
        faults: One readable line per fault: the key, the value, the allowed values, and how to correct it.
    """

    def __init__(self, faults: str | Sequence[str]) -> None:
        self.faults: tuple[str, ...] = (faults,) if isinstance(faults, str) else tuple(faults)
        super().__init__("\n".join(self.faults))


def collect(faults: list[str], make: Callable[[], Any]) -> Any:
    """Return `make()`; where it refuses, its faults are appended and the answer is None."""
    try:
        return make()
    except OfflineAgentError as error:
        faults += error.faults if isinstance(error, ConfigError) else [str(error)]
    return None


class ToolError(Exception):
    """An error of a tool for bad input; the message goes to the policy. For environments: `offline_agent.ToolError`.

    Args:
        message: For the policy, which reads "Error: " before it: what is wrong, and what is allowed.
        fault: Class of the error for the records.
    """

    def __init__(self, message: str, fault: str = "tool_error") -> None:
        super().__init__(message)
        self.fault = fault


class Refusal(str):
    """An answer of a tool that refused the call; as a text it is read like any other answer.

    For environments (`offline_agent.Refusal`) whose class is used by TRL too: TRL tells the policy of a raised error in
    words of its own, so that the same policy would read other tokens there than here.
    """


class EnvironmentFault(OfflineAgentError):
    """The environment broke (raised, hung, answered differently on replay); it is no evidence about the policy."""


class PolicyError(OfflineAgentError):
    """The policy's back end broke; a badly formed action is not an error but an `Action` with a fault."""


class ContextFull(PolicyError):
    """A history leaves no room for another action in the model's context: a limit of the policy, not an outage."""


class PolicyMismatch(PolicyError):
    """What answers is not the policy that the run began with; the run ends, because no retry can mend it."""


class JudgeError(OfflineAgentError):
    """A scorer could not score. The score is None, never 0."""


class NoAnswer(Exception):
    """A judge's model gave no answer of the asked form; the text says why."""


class DataError(OfflineAgentError):
    """An artifact is missing, incomplete, corrupted, of another version, or fails its certificate."""


@contextmanager
def located(place: str) -> Iterator[None]:
    """Say at which place of a record a DataError was raised."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{place}: {error}") from error


class TrainingError(OfflineAgentError):
    """Training cannot continue without damage to the model."""


class Interruption(BaseException):
    """The run is being ended by a signal; boundaries around user code must not take it for an error of that code.

    A `BaseException`, so that `except Exception` does not catch it.
    """


def ends_the_run(error: BaseException) -> bool:
    """Return whether an error ends the run, as opposed to an error raised by user code.

    A KeyboardInterrupt comes from the user only in the main thread, and only while Python's own handler is installed.
    """
    if isinstance(error, KeyboardInterrupt):
        main = threading.current_thread() is threading.main_thread()
        return main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return isinstance(error, Interruption)


def in_words(error: BaseException) -> str:
    """Return class and message of an error, without secrets; the `__str__` of a class of user code may itself raise."""
    try:
        return str(masked(f"{type(error).__name__}: {error}"))
    except Exception as worse:
        return f"{type(error).__name__} (its message raised {type(worse).__name__})"


def did_you_mean(got: str, allowed: Iterable[str]) -> str:
    """Return ` Did you mean 'x'?` for the nearest allowed name, or an empty string when none is near."""
    near = get_close_matches(got, list(allowed), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""
