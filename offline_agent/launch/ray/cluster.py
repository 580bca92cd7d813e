"""Connection to a Ray cluster, or a Ray started on this machine for the duration of a command."""

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
from offline_agent.launch.ray.work_items import PoolError

_OBJECT_STORE = 200 << 20  # bytes; items and messages are small
_PROBE_SECONDS = 5.0
_TRIES = 4


def check(address: str | None) -> None:
    """Check that Ray is installed and that something answers at the address; start nothing.

    Args:
        address: `host:port`, `auto`, or None for a Ray on this machine.

    Raises:
        ConfigError: Ray is not installed, or nothing answers.
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
    """Connect to a cluster, or start one on this machine and stop it at the end.

    Args:
        address: See `check`.
        cpus: Fewest CPUs that a Ray on this machine offers; Ray counts them and binds no processors.

    Raises:
        ConfigError: Ray is not installed.
        PoolError: The cluster refused.
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
    except Exception as error:  # Ray raises RuntimeError, ConnectionError, ValueError …
        with contextlib.suppress(Exception):
            ray.shutdown()
        where = "could not be started on this machine" if address is None else f"at {address} refused"
        text = " ".join(str(error).split())
        raise PoolError(
            f"Ray {where}: {type(error).__name__}: {text}. The command must be given on a machine of the cluster, with "
            "the same versions of Python and Ray"
        ) from error
    try:
        yield
    finally:
        with _handlers_kept():
            ray.shutdown()


def _init(ray: Any, how: dict[str, Any], tries: int) -> None:
    """Call `ray.init`, again after a time-out: Ray waits 30 s for its processes, too short on a busy machine."""
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
    """Return how many workers of this size fit into the idle cluster."""
    count = 0
    for has in _machines():
        count += min(
            int(has.get("CPU", 0) // cpus) if cpus else 1 << 20, int(has.get("GPU", 0) // gpus) if gpus else 1 << 20
        )
    return min(count, 1 << 20)


def fits(cpus: float, gpus: float) -> bool:
    """Return whether a worker of this size fits on one machine of the idle cluster."""
    return any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in _machines())


def no_room(cpus: float, gpus: float) -> str:
    """Return the message for a cluster without room for a worker of this size."""
    has = "; ".join(f"{node.get('CPU', 0):g} CPUs, {node.get('GPU', 0):g} GPUs" for node in _machines()) or "no node"
    free = _ray().available_resources()
    return (
        f"there is no room for a worker: each needs {cpus:g} CPUs and {gpus:g} GPUs on one machine, the cluster has "
        f"{has} (free now: {free.get('CPU', 0):g} CPUs, {free.get('GPU', 0):g} GPUs). Ask for less (ray.cpus, "
        "ray.gpus), add machines, or wait until others are done"
    )


def _machines() -> list[dict[str, float]]:
    return [node["Resources"] for node in _ray().nodes() if node["Alive"]]


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
    """Keep Ray from printing messages of its daemons to stdout; errors come back as exceptions."""
    import ray._private.worker as inner

    if hasattr(inner, "_worker_logs_enabled"):  # there is no public switch
        inner._worker_logs_enabled = False


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Restore the signal handlers that Ray replaces; its own end the process without a message."""
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


