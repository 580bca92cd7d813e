"""Stages of a loop: commands in processes of their own, each with its configuration in a file beside its run.

A finished stage is not run again; a stopped one is resumed. A stage is killed when the process that started it dies.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from offline_agent.config.build_prefs import RunConfig
from offline_agent.config.loading import escaped, free_keys
from offline_agent.crash_notes import end_with
from offline_agent.errors import TrainingError
from offline_agent.launch.shards import manifest_of
from offline_agent.outgoing import masked, shown
from offline_agent.runner import terminal
from offline_agent.runner.pipeline import Command
from offline_agent.store.files import read_json, write_atomic
from offline_agent.store.manifest import flat
from offline_agent.store.provenance import python_path

_LAST_LINES = 12
_PATIENCE = 30.0  # seconds that a stopped stage has to end

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage.

    Attributes:
        name: Name of its folder.
        pipeline: As in `python -m offline_agent.pipelines.<pipeline>`.
        config: Its configuration; `run_dir` is an absolute path that ends with the name.
    """

    name: str
    pipeline: str
    config: RunConfig

    @property
    def path(self) -> Path:
        """Its run directory."""
        return Path(self.config.run_dir or "")

    @property
    def file(self) -> Path:
        """Its configuration file, with which it can be run by hand."""
        return self.path.with_name(f"{self.name}.yaml")

    @property
    def label(self) -> str:
        """Its name on the terminal, e.g. `iteration-0/train_sft`."""
        return f"{self.path.parent.name}/{self.name}"

    @property
    def command(self) -> list[str]:
        """The command that runs it."""
        return [sys.executable, "-m", f"offline_agent.pipelines.{self.pipeline}", "--config", str(self.file)]


def run_stage(stage: Stage, say: Say, again: str) -> dict[str, Any]:
    """Run or resume a stage, and return its summary; a finished stage is not run again.

    Its stderr is passed on line by line; stdout and stderr are appended to `<name>.log` beside its run directory.

    Args:
        stage: The stage.
        say: Called with each line for the user.
        again: The command that resumes the loop, for the message if the stage fails.

    Raises:
        TrainingError: The stage failed; the message has its last lines, and how to go on.
        DataError: The stage is done, but its summary is not readable.
    """
    if not is_done(stage):
        _run(stage, say, again)
    mend = f"The stage is marked as done. Remove {stage.path} and give the same command again: {again}"
    return dict(read_json(stage.path / "summary.json", mend))


def is_done(stage: Stage) -> bool:
    """Return whether the stage finished with this configuration, apart from keys that may differ on resume."""
    manifest = manifest_of(stage.path)
    if manifest is None or manifest.get("status") != "done" or manifest.get("command") != stage.pipeline:
        return False
    free = free_keys(type(stage.config))
    return _without(manifest.get("config", {}), free) == _without(stage.config.resolved(), free)


def portable(config: RunConfig) -> tuple[str, dict[str, str]]:
    """Return the configuration as YAML that `load` reads back, and its secrets by environment variable.

    In the file, API keys and logins are replaced by `${oc.env:NAME}`.
    """
    secrets: dict[str, str] = {}

    def walk(plain: Any, shown: Any, path: tuple[str, ...]) -> Any:
        if isinstance(plain, dict):
            others = zip(plain.items(), shown.values(), strict=True)
            return {name: walk(value, other, (*path, str(name))) for (name, value), other in others}
        if isinstance(plain, list):
            pairs = enumerate(zip(plain, shown, strict=True))
            return [walk(value, masked_value, (*path, str(number))) for number, (value, masked_value) in pairs]
        if plain != shown:
            name = "OFFLINE_AGENT_" + re.sub(r"\W", "_", "_".join(path)).upper()
            secrets[name] = str(plain)
            return f"${{oc.env:{name}}}" if isinstance(plain, str) else f"${{oc.decode:${{oc.env:{name}}}}}"
        return escaped(plain)

    data = config.model_dump(mode="json")
    data = walk(data, masked(data, numbers=True), ())
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120), secrets


def write_config(file: Path, config: RunConfig, command: str, options: Sequence[str]) -> dict[str, str]:
    """Write the configuration of a job or stage, with which it can also be run by hand; return its secrets.

    Args:
        file: The file.
        config: The configuration.
        command: Name of the command.
        options: Its arguments, which name the file.
    """
    text, secrets = portable(config)
    by_hand = shlex.join(["python", "-m", f"offline_agent.pipelines.{command}", *options])
    write_atomic(file, f"# {by_hand}\n{text}".encode())
    return secrets


def show_summary(command: Command[Any, Any], path: Path) -> None:
    """Print what a command that another process carried out would have printed at its end."""
    summary = read_json(path / "summary.json", "The run is marked as done. Restore it from a copy.")
    terminal.show(command.show(summary, path))
    if terminal.is_file(path / "report.html"):
        terminal.show(f"report: {path / 'report.html'}")


def _without(config: Mapping[str, Any], free: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in flat(config) if not any(f"{name}.".startswith(f"{key}.") for key in free)}


def _run(stage: Stage, say: Say, again: str) -> None:
    secrets = write_config(stage.file, stage.config, stage.pipeline, ["--config", str(stage.file)])
    last: deque[str] = deque(maxlen=_LAST_LINES)
    with open(stage.path.with_name(f"{stage.name}.log"), "a", encoding="utf-8", buffering=1) as log:
        process = subprocess.Popen(
            stage.command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.PIPE, text=True, encoding="utf-8",
            errors="replace", env={**os.environ, **secrets, "PYTHONPATH": python_path()},
            start_new_session=True,  # so that Ctrl-C reaches it once, through us
            preexec_fn=partial(end_with, os.getpid()),
        )  # fmt: skip
        assert process.stderr is not None  # it is a pipe
        try:
            for line in process.stderr:
                with suppress(OSError, ValueError):  # a full disk must not hide the messages of the stage
                    log.write(shown(line))
                if line.strip():
                    last.append(line.rstrip())
                    say(f"{stage.label}: {line.rstrip().removeprefix(stage.pipeline + ': ')}")
            status = process.wait()
        except BaseException:
            end(process)
            raise
    if status:
        told = "\n".join(f"  {line}" for line in last) or "  (it said nothing)"
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        raise TrainingError(
            f"{stage.label} ended with {how}. Its last lines:\n{told}\n"
            f"All of it: {stage.path.with_name(stage.name + '.log')}. To go on: {again}\n"
            f"This stage alone: {shlex.join(['python', *stage.command[1:]])}"
        )


def end(process: subprocess.Popen[Any], patience: float = _PATIENCE) -> None:
    """Terminate a process, and kill it if it does not end within so many seconds."""
    with suppress(OSError):
        process.terminate()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    except BaseException:  # a second signal: kill at once
        process.kill()
        process.wait()
        raise
