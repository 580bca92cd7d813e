"""A pipeline of a few lines on the command frame: counts to `count`, one event each, and writes trees as it goes."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from offline_agent.config.build_prefs import RunConfig
from offline_agent.errors import ConfigError, DataError
from offline_agent.pipelines.entry import main
from offline_agent.runner.pipeline import Command, Facts, Session
from offline_agent.sections import Plugged, Section, key, section


class Env(Plugged):
    name: str = key("shop", "the environment")


class Tiny(RunConfig):
    about: ClassVar[str] = "Count, and keep what was counted."
    env: Env = section(Env, "the environment")
    count: int = key(3, "how far to count", ge=1)
    pause: float = key(0.0, "seconds before each step", ge=0)
    fail: str | None = key(None, "data, bug or config: raise that after the first step; exit, segfault or kill: die")
    work: Section = section(Section, "nothing in it")


def prepare(config: Tiny) -> tuple[int, Facts]:
    faults = [f"env.{name}: no such argument" for name in config.env.given()]
    if faults:
        raise ConfigError(faults)
    return config.count, Facts({"hashes": {"task_set": "abc"}}, {"env": config.env.name})


def run(count: int, session: Session[Tiny]) -> Mapping[str, Any]:
    log = session.run.events()
    done = [record["n"] for record in log.read()]
    session.progress.start(count, "counting")
    for n in range(len(done), count):
        time.sleep(session.config.pause)
        log.append({"n": n, "square": n * n})
        session.run.write_tree(f"tree {n}", {"n": n})
        session.run.quarantine("step", str(n), "odd") if n % 2 else None
        session.progress.update(n + 1)
        match session.config.fail:
            case "data":
                raise DataError("a/file: broken, mend it")
            case "bug":
                raise ZeroDivisionError("a bug")
            case "config":
                raise ConfigError("too late")
            case "exit":
                os._exit(0)
            case "segfault":
                ctypes.string_at(0)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
    session.tracker.metrics({"counted": count}, step=1)
    return {"counted": count, "by": {"parity": {"odd": count // 2}}, "repeated": 0}


def show(summary: Mapping[str, Any], path: Path) -> str:
    return f"counted {summary['counted']}, written to {path}"


COMMAND = Command("tiny", Tiny, prepare, run, show)

if __name__ == "__main__":
    sys.exit(main(COMMAND))
