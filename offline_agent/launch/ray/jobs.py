"""Jobs spread over workers of a Ray cluster: bounded hand-out, streamed results, nothing lost when workers die.

A crew knows nothing of what its jobs are. The driver hands each worker a bounded number of them, drawn lazily, and
takes records and results back. When a worker dies, what it had goes to another one, as the driver knows it by then:
repeated is at most what the dead worker had not sent. Workers keep nothing that the driver lacks.

A job that kills whoever takes it is found by elimination: jobs that were with a worker when it died keep less company
the next time, an eighth after the first death and none after the second or so, and one that was alone with a worker
`deaths` times when it died is given up.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

from offline_agent.errors import ConfigError
from offline_agent.launch.ray.worker import DONE, RECORD, Feed, Hand, Handed, Place, Send, settle
from offline_agent.launch.ray.workers import Crew, CrewError, Event, Job, Terms

__all__ = [
    "DONE", "RECORD", "Crew", "CrewError", "Event", "Feed", "Hand", "Handed", "Job", "Place", "Send", "Terms", "check",
    "connected", "fitting", "settle",
]  # fmt: skip

_OBJECT_STORE = 200 << 20  # bytes; what passes through it is small
_PROBE_SECONDS = 5.0
_TRIES = 4


def check(address: str | None) -> None:
    """Look, without starting anything, whether Ray is installed and something answers at the address.

    Args:
        address: `host:port`, `auto`, or None for a Ray of one's own.

    Raises:
        ConfigError: With what to do.
    """
    _ray()
    if address in (None, "auto"):
        return
    assert address is not None
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PROBE_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"ray.address: nothing answers at {address} ({error}); start a cluster (`ray start --head --port=6379`, "
            "and on other machines `ray start --address=HOST:6379`), or set ray.address=null for a Ray on this machine"
        ) from error


@contextlib.contextmanager
def connected(address: str | None, cpus: float = 1.0) -> Iterator[None]:
    """Connect to a cluster, or start one on this machine and stop it in the end.

    Args:
        address: See `check`.
        cpus: CPUs that one's own must offer at least; they are places, not processors.

    Raises:
        ConfigError: Ray is not installed.
        CrewError: The cluster refused.
    """
    ray = _ray()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    _quiet()
    ours = {
        "num_cpus": max(os.cpu_count() or 1, math.ceil(cpus)), "include_dashboard": False,
        "object_store_memory": _OBJECT_STORE, "_node_ip_address": "127.0.0.1",
    }  # fmt: skip
    how = {"address": "local", **ours} if address is None else {"address": address}
    try:
        with _handlers_kept():
            _init(ray, {**how, "log_to_driver": False, "logging_level": "ERROR"}, _TRIES if address is None else 1)
    except Exception as error:  # Ray raises RuntimeError, ConnectionError, ValueError … for what is wrong there
        with contextlib.suppress(Exception):
            ray.shutdown()
        where = "could not be started on this machine" if address is None else f"at {address} refused"
        text = " ".join(str(error).split())
        raise CrewError(
            f"Ray {where}: {type(error).__name__}: {text}. The command must be given on a machine of the cluster, with "
            "the same versions of Python and Ray"
        ) from error
    try:
        yield
    finally:
        with _handlers_kept():
            ray.shutdown()


def _init(ray: Any, how: dict[str, Any], tries: int) -> None:
    """Call `ray.init`; it gives a new Ray half a minute to start, which is too short on a busy machine."""
    for left in reversed(range(tries)):
        try:
            ray.init(**how)
            return
        except Exception as error:
            if "timed out" not in str(error) or not left:
                raise
            with contextlib.suppress(Exception):
                ray.shutdown()


def fitting(cpus: float, gpus: float) -> int:
    """Return how many workers of this size fit into the cluster when it is idle."""
    count = 0
    for node in _ray().nodes():
        if node["Alive"]:
            has = node["Resources"]
            count += min(
                int(has.get("CPU", 0) // cpus) if cpus else 1 << 20, int(has.get("GPU", 0) // gpus) if gpus else 1 << 20
            )
    return min(count, 1 << 20)


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            f"launcher=ray needs Ray, which is not installed here ({error}): "
            "pip install -c constraints.txt 'offline-agent[ray]', or use launcher=local"
        ) from error
    return ray


def _quiet() -> None:
    """Keep Ray from printing what its daemons say to stdout: what matters comes back as an exception."""
    import ray._private.worker as inner

    if hasattr(inner, "_worker_logs_enabled"):  # no public switch for the daemons' own messages
        inner._worker_logs_enabled = False


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Put signal handlers back that Ray replaces by its own, which end the process without a word."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)


