"""On PYTHONPATH: a job's first start is told that its time is up before the pipeline listens."""

import os
import signal

if "SLURM_STEP_ID" in os.environ and os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
    os.kill(os.getpid(), signal.SIGUSR1)
