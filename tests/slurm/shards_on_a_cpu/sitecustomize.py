"""On PYTHONPATH: lets the processes of a job shard their weights on a CPU, which accelerate does on GPUs alone."""

import os

if "RANK" in os.environ and "ACCELERATE_USE_FSDP" in os.environ:
    from tests.helpers.sharding_processes import shard_on_a_cpu

    shard_on_a_cpu()
