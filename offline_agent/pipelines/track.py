"""Send to MLflow what a run could not: `python -m offline_agent.pipelines.track run_dir=RUN_DIR [tracking.uri=URI]`.

Sends what the run keeps in tracking.jsonl, to the store that it was to go to, or to another one, and removes the file
once everything has arrived. A run that is gone on with does the same by itself. What arrives twice is there once. Where
a store refuses a message for good, remove tracking.jsonl: the figures are in events/ and summary.json too.

Exit status: 0 everything is sent, 1 it could not be, 2 the request was wrong.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from offline_agent.errors import ConfigError
from offline_agent.runner.arguments import TEXT, read_keys, tool
from offline_agent.runner.pipeline import DONE, FAILED
from offline_agent.runner.terminal import say, show
from offline_agent.store.lock import acquire
from offline_agent.store.manifest import read_manifest


def main(arguments: Sequence[str]) -> int:
    """Send what a run keeps; returns the exit status."""
    return tool("track", __doc__ or "", arguments, _send)


def _send(arguments: Sequence[str]) -> int:
    from offline_agent.store.tracking.client import send

    (run_dir,), keys = read_keys(arguments, {"tracking.uri": TEXT})
    tracking = {"experiment": "offline_agent", **read_manifest(run_dir).get("config", {}).get("tracking", {})}
    uri = keys.get("tracking.uri") or tracking.get("uri")
    if not uri:
        raise ConfigError("tracking.uri: the run had none (null); name one, tracking.uri=URI")
    if "***" in uri:
        raise ConfigError(f"tracking.uri: the run kept {uri} without its login; name it whole, tracking.uri=URI")
    lock = acquire(run_dir)
    try:
        sent = send(run_dir, uri, str(tracking["experiment"]), lambda text: say(f"track: {text}"))
    finally:
        os.close(lock)
    if sent is None:
        return FAILED
    show(f"{run_dir}: {sent} messages sent to {uri}" if sent else f"{run_dir}: there is nothing to send")
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
