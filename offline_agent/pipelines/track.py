"""Send to MLflow what a run could not: `python -m offline_agent.pipelines.track run_dir=RUN_DIR [tracking.uri=URI]`.

Sends what the run keeps in tracking.jsonl, to the store that it was to go to, or to another one, and removes the file
once everything has arrived. A run that is gone on with does the same by itself. What arrives twice is there once. Where
a store refuses a message for good, remove tracking.jsonl: the figures are in events/ and summary.json too.

Exit status: 0 everything is sent, 1 it could not be, 2 the request was wrong.
"""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from offline_agent.errors import ConfigError, DataError, did_you_mean
from offline_agent.runner.terminal import say, show

_KEYS = ("run_dir", "tracking.uri")


def main(arguments: Sequence[str]) -> int:
    """Send what a run keeps; returns the exit status."""
    from offline_agent.store.tracking.client import send

    if "--help" in arguments or "-h" in arguments:
        print(__doc__)
        return 0
    try:
        run_dir, uri, experiment = _parse(arguments)
        with _locked(run_dir):
            sent = send(run_dir, uri, experiment, lambda text: say(f"track: {text}"))
    except ConfigError as error:
        say(f"track: {error}\n\n{__doc__}")
        return 2
    except DataError as error:
        say(f"track: {error}")
        return 1
    if sent is None:
        return 1
    show(f"{run_dir}: {sent} messages sent to {uri}" if sent else f"{run_dir}: there is nothing to send")
    return 0


def _parse(arguments: Sequence[str]) -> tuple[Path, str, str]:
    """Return the run directory, the store and the experiment; raises ConfigError."""
    from offline_agent.launch.shards import manifest_of

    given = {name: value for name, _, value in (argument.partition("=") for argument in arguments)}
    faults = [
        f"{name}: unknown, allowed: {', '.join(_KEYS)}.{did_you_mean(name, _KEYS)}" for name in given.keys() - {*_KEYS}
    ]
    run_dir = Path(given.get("run_dir") or "")
    manifest = manifest_of(run_dir) if given.get("run_dir") else None
    if not given.get("run_dir"):
        faults.append("run_dir: name the run directory, run_dir=RUN_DIR")
    elif manifest is None:
        faults.append(f"run_dir: {run_dir} is no run directory: it has no manifest.json")
    tracking = {"experiment": "offline_agent", **(manifest or {}).get("config", {}).get("tracking", {})}
    uri = given.get("tracking.uri") or tracking.get("uri")
    if manifest is not None and not uri:
        faults.append("tracking.uri: the run had none (null); name one, tracking.uri=URI")
    elif uri and "***" in uri:
        faults.append(f"tracking.uri: the run kept {uri} without its login; name it whole, tracking.uri=URI")
    if faults:
        raise ConfigError(faults)
    return run_dir, str(uri), str(tracking["experiment"])


@contextmanager
def _locked(run_dir: Path) -> Iterator[None]:
    """Keep others from the run inside the block; raises ConfigError where somebody works in it."""
    with open(run_dir / ".lock", "a+b") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"run_dir: {run_dir} is in use; a run that goes on sends what it keeps") from error
        yield


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
