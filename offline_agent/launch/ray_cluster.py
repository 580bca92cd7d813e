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

from offline_agent.errors import ConfigError, OfflineAgentError

_OBJECT_STORE = 200 << 20  # bytes; only command lines go through it
_PROBE_SECONDS = 5.0


class ClusterError(OfflineAgentError):
    """The cluster refused, or a task failed on it."""


def check(address: str | None) -> None:
    """Check that Ray is installed and that something answers at the address; start nothing.

    Args:
        address: `host:port`, `auto`, or None for a Ray on this machine.

    Raises:
        ConfigError: Ray is not installed, or nothing answers.
    """
    try:
        import ray  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"launcher=ray needs Ray, which is not installed here ({error}): "
            "pip install -c constraints.txt 'offline-agent[ray]', or use launcher=local"
        ) from error
    if address is None or address == "auto":
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PROBE_SECONDS).close()
    except (OSError, OverflowError, ValueError) as error:
        raise ConfigError(
            f"ray.address: nothing answers at {address} ({error}); start a cluster (`ray start --head --port=6379`, "
            "and on other machines `ray start --address=HOST:6379`), or set ray.address=null for a Ray on this machine"
        ) from error


@contextlib.contextmanager
def connected(address: str | None, cpus: float) -> Iterator[None]:
    """Connect to a cluster, or start one on this machine and stop it at the end.

    Args:
        address: See `check`.
        cpus: Fewest CPUs that a Ray on this machine offers; Ray counts them and binds no processors.

    Raises:
        ClusterError: The cluster refused.
    """
    import ray
    import ray._private.worker as inner

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    inner._worker_logs_enabled = False  # keeps messages of its daemons from stdout; there is no public switch
    ours = {
        "address": "local", "num_cpus": max(os.cpu_count() or 1, math.ceil(cpus)), "include_dashboard": False,
        "object_store_memory": _OBJECT_STORE, "_node_ip_address": "127.0.0.1",
    }  # fmt: skip
    how: dict[str, Any] = {**(ours if address is None else {"address": address}), "log_to_driver": False}
    try:
        with _handlers_kept():
            ray.init(**how, logging_level="ERROR")
    except Exception as error:  # Ray raises RuntimeError, ConnectionError, ValueError …
        with contextlib.suppress(Exception):
            ray.shutdown()
        where = "could not be started on this machine" if address is None else f"at {address} refused"
        raise ClusterError(
            f"Ray {where}: {type(error).__name__}: {' '.join(str(error).split())}. The command must be given on a "
            "machine of the cluster, with the same versions of Python and Ray"
        ) from error
    try:
        yield
    finally:
        with _handlers_kept():
            ray.shutdown()


def _machines() -> list[dict[str, float]]:
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def has_room(cpus: float, gpus: float) -> bool:
    """Return whether a task of this size fits on one machine of the idle cluster."""
    return any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in _machines())


def fitting(cpus: float, gpus: float) -> int:
    """Return how many tasks of this size fit into the idle cluster; a task that needs nothing counts as one CPU."""
    sizes = [("CPU", cpus), ("GPU", gpus)] if cpus or gpus else [("CPU", 1.0)]
    return sum(min(int(node.get(name, 0) // size) for name, size in sizes if size) for node in _machines())


def no_room(cpus: float, gpus: float) -> str:
    """Return the message for a cluster without room for a task of this size."""
    has = "; ".join(f"{node.get('CPU', 0):g} CPUs, {node.get('GPU', 0):g} GPUs" for node in _machines()) or "no node"
    return (
        f"there is no room for a task: each needs {cpus:g} CPUs and {gpus:g} GPUs on one machine, the cluster has "
        f"{has}. Ask for less (ray.cpus, ray.gpus), or add machines"
    )


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
