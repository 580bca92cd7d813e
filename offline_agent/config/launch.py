"""The keys of `launcher=ray` and `launcher=slurm`. No result depends on them."""

from __future__ import annotations

from offline_agent.sections import Section, key


class RaySection(Section):
    """Tasks of launcher=ray."""

    address: str | None = key(
        None, "of a running cluster: host:port, or auto; null = a Ray on this machine, started and stopped with the "
        "command", free=True,
    )  # fmt: skip
    workers: int | None = key(
        None, "shards that build_prefs and evaluate are cut into (what was cut first holds), and most of them at once; "
        "null = as many as fit into the cluster at the first start",
        ge=1, le=10**6, free=True,
    )  # fmt: skip
    cpus: float = key(1.0, "CPUs reserved for each shard", ge=0, free=True)
    gpus: float = key(0.0, "GPUs reserved for it; 0 = none (policy=server)", ge=0, free=True)
    deaths: int = key(
        3, "how often a task of Ray's is started again, in its run directory, whose node or process is gone", ge=0,
        free=True,
    )  # fmt: skip


class SlurmSection(Section):
    """Jobs of launcher=slurm."""

    shards: int = key(
        8, "jobs that the tasks of build_prefs and evaluate are cut into; what was submitted first holds", ge=1,
        free=True,
    )  # fmt: skip
    at_once: int | None = key(None, "most shards that run at once; null = as many as Slurm starts", ge=1, free=True)
    partition: str | None = key(None, "null = Slurm's default", free=True)
    time: str | None = key(
        None, "limit of one job: minutes, H:MM:SS or D-H:MM:SS (in quotes in YAML); null = the partition's", free=True
    )
    cpus: int = key(2, "cores of a job", ge=1, free=True)
    memory: str | None = key(None, "of a job, on each node, e.g. 32G; null = the partition's default", free=True)
    gpus: int = key(0, "of a job", ge=0, free=True)
    nodes: int = key(1, "of a training job", ge=1, free=True)
    train_cpus: int | None = key(None, "cores of a training job on each node; null = slurm.cpus", ge=1, free=True)
    train_memory: str | None = key(None, "of a training job on each node; null = slurm.memory", free=True)
    train_gpus: int | None = key(None, "of a training job on each node; null = slurm.gpus", ge=0, free=True)
    processes: int | None = key(
        None, "of a training job on each node; null = one for each of its GPUs, or a single one", ge=1, free=True
    )
    sharded: bool = key(
        False, "a training job shards the weights over its processes (FSDP2) in place of a copy in each", free=True
    )
    setup: tuple[str, ...] = key((), "shell lines before the command, e.g. [module load cuda]", strict=False, free=True)
    arguments: tuple[str, ...] = key(
        (), "more arguments of sbatch, e.g. [--account=LAB,--qos=high]", strict=False, free=True
    )
    signal_seconds: int = key(
        120, "this long before its time is up a job is told, ends in good order and is requeued", ge=0, le=65535,
        free=True,
    )  # fmt: skip
    requeues: int = key(100, "most times one job is requeued", ge=0, free=True)
    poll_seconds: float = key(5.0, "between two looks at the jobs that are waited for", gt=0, free=True)
    python: str | None = key(None, "the interpreter on the nodes; null = the one that submits", free=True)
