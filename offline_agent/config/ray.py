"""The keys of `launcher=ray`. Results depend on none of them."""

from __future__ import annotations

import re

from pydantic import field_validator

from offline_agent.config.base import Section, key

_ADDRESS = re.compile(r"auto|[^:/\s]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}")


class RaySection(Section):
    """Workers of launcher=ray."""

    address: str | None = key(
        None, "of a running cluster: host:port, or auto; null = a Ray on this machine, started and stopped with the "
        "command", free=True,
    )  # fmt: skip
    workers: int | None = key(
        None, "that build_prefs and evaluate are spread over; null = as many as fit into the cluster",
        ge=1, le=10**6, free=True,
    )  # fmt: skip
    cpus: float = key(1.0, "CPUs reserved for each worker", ge=0, free=True)
    gpus: float = key(0.0, "GPUs reserved for each worker; 0 = none (policy=server)", ge=0, free=True)
    in_flight: int | None = key(
        None, "tasks that one worker has at a time; null = search.trees_in_flight, or as many as fill in_flight of "
        "evaluate", ge=1, free=True,
    )  # fmt: skip
    command_cpus: float = key(1.0, "CPUs reserved for a pipeline that one node carries out (training)", ge=0, free=True)
    command_gpus: float = key(0.0, "GPUs reserved for such a pipeline", ge=0, free=True)
    deaths: int = key(
        3, "a task that was alone with this many workers when they died is given up; so is a worker that dies this "
        "often before it does anything", ge=1, free=True,
    )  # fmt: skip
    start_seconds: float = key(
        600.0, "longest wait until the cluster has room for a first worker and it has loaded its parts", gt=0, free=True
    )
    silent_seconds: float = key(120.0, "a worker that says nothing for so long counts as dead", gt=0, free=True)

    @field_validator("address")
    @classmethod
    def _an_address(cls, address: str | None) -> str | None:
        if address is not None and not _ADDRESS.fullmatch(address):
            raise ValueError(
                f"ray.address: got {address!r}, allowed: host:port of the head node (as `ray start` prints it), auto, "
                "or null; give the command on a machine of the cluster"
            )
        return address
