"""Command lines: options, overrides and `--help` of commands with a run, and keys of those that look at runs."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offline_agent.config.build_prefs import RunConfig
from offline_agent.config.documentation import installed, key_help, topic_help
from offline_agent.config.loading import growing_keys, load
from offline_agent.errors import ConfigError, DataError, OfflineAgentError, did_you_mean
from offline_agent.outgoing import MASK, masked
from offline_agent.runner.pipeline import DONE, FAILED, WRONG, C, Command
from offline_agent.runner.terminal import is_file, say, show
from offline_agent.store.manifest import read_manifest

_OPTIONS = ("--config", "--help", "--merge", "--plan", "--print-config", "--shard", "--submit")
_PARTS = ("--merge", "--shard", "--submit")
_STOPS = ("--plan", "--print-config")
_HELP = ("--help", "-h")
_SHARDED = """
  --shard         do the work of one shard; jobs of launcher=slurm are started like this
  --merge         gather what the shards in run_dir made, and finish; can be repeated"""


def usage(name: str, config: type[RunConfig], spread: bool, topic: str | None = None) -> str:
    """Return the help text: examples and all keys, or the keys of a topic.

    Args:
        name: The name of the command.
        config: Its configuration.
        spread: Whether it can be divided into shards.
        topic: A section or a key; None = all.

    Raises:
        ConfigError: There is no such topic.
    """
    width = shutil.get_terminal_size((120, 24)).columns if sys.stdout.isatty() else 120
    if topic is not None:
        return "\n\n".join(filter(None, [topic_help(config, topic, width), installed(config, (topic,), width)]))
    more = f", or more of {', '.join(growing)}" if (growing := growing_keys(config, name)) else ""
    return f"""\
usage: python -m offline_agent.pipelines.{name} [--config FILE] [key=value ...]

{config.about}

  --config FILE   YAML with any of the keys; key=value takes precedence
  --print-config  print the resolved configuration and stop
  --submit        with launcher=slurm: submit, print the ids of the jobs, and return{_SHARDED if spread else ""}
  --plan          print the expected cost (time, disk, memory) and stop; see --help plan
  --help [TOPIC]  this text, or the keys of a section, e.g. plan

{key_help(name, config, width)}

{installed(config, ("env",), width)}

Exit status: 0 done, 1 failed while running, 2 the request was wrong (nothing was written).
run_dir=X goes on with the run in X, with its configuration; keys that are given must be those of the
run{more}."""


def help_topic(arguments: Sequence[str]) -> str | None:
    """Return the topic after `--help` or `-h`; None where the next argument is no topic."""
    place = min(arguments.index(word) for word in _HELP if word in arguments)
    after = arguments[place + 1] if place + 1 < len(arguments) else ""
    return after if after and not after.startswith("-") and "=" not in after else None


def asks_help(arguments: Sequence[str]) -> bool:
    """Return whether the help text is asked for."""
    return any(word in arguments for word in _HELP)


@dataclass(frozen=True)
class CommandLine:
    """A parsed command line.

    Attributes:
        file: The configuration file; None = none.
        overrides: The `key=value` arguments.
        print_config: Print the resolved configuration and stop.
        plan: Print the expected cost and stop.
        part: `--merge`, `--shard` or `--submit`; None = the whole run.
    """

    file: str | None
    overrides: tuple[str, ...]
    print_config: bool
    plan: bool
    part: str | None


def parse(arguments: Sequence[str]) -> CommandLine:
    """Return the parsed command line; raises ConfigError with every fault."""
    file: str | None = None
    overrides, faults = [], []
    parts = [argument for argument in arguments if argument in _PARTS]
    rest = iter([argument for argument in arguments if argument not in (*_PARTS, *_STOPS)])
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name == "--config":
            found = value if equals else next(rest, "")
            if not found:
                faults.append("--config: name a file")
            elif file is not None:
                faults.append("--config: give one file")
            file = found or file
        elif argument.startswith("-"):
            near = did_you_mean(name, _OPTIONS)
            faults.append(f"{argument}: unknown option, allowed: {', '.join(_OPTIONS)}, and key=value.{near}")
        else:
            overrides.append(argument)
    if len(parts) > 1:
        faults.append(f"{', '.join(parts)}: give one of them")
    if faults:
        raise ConfigError(faults)
    part = parts[0] if parts else None
    return CommandLine(file, tuple(overrides), "--print-config" in arguments, "--plan" in arguments, part)


def resume_line(name: str, arguments: Sequence[str], run_dir: object) -> str:
    """Return the command that resumes a run; secrets in it are masked as `***`, with a note to give them again.

    Args:
        name: The name of the command.
        arguments: The arguments of the command that wrote the run directory.
        run_dir: The run directory.
    """
    shown = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if key != "run_dir":
            shown.append(f"{key}={masked(value, key.rpartition('.')[2])}" if equals else argument)
    line = f"python -m offline_agent.pipelines.{name} {shlex.join([*shown, f'run_dir={run_dir}'])}"
    return line + (" (give what is shown as *** again)" if "***" in line else "")


def stored_config(command: Command[C, Any], overrides: Sequence[str]) -> C | None:
    """Return the configuration of the run that `run_dir` holds, with the keys that are given; None where it holds none.

    Args:
        command: The command.
        overrides: The `key=value` arguments.

    Raises:
        ConfigError: `run_dir` is given alone and holds no run of this command; or its run's configuration cannot be
            used without further keys.
    """
    run_dir = next((text.removeprefix("run_dir=") for text in overrides if text.startswith("run_dir=")), "")
    file = Path(run_dir) / "manifest.json"
    alone = len(overrides) == 1 and bool(run_dir)
    if not run_dir or not is_file(file):
        if alone:
            load(command.config, overrides=overrides)  # says what no run_dir may be
            raise ConfigError(_no_run(command, Path(run_dir)))
        return None
    try:
        manifest = read_manifest(Path(run_dir))
        name, data = manifest["command"], dict(manifest["config"])
    except (DataError, ValueError, TypeError, KeyError):
        return None  # opening the run says what is wrong with it
    if name != command.name:
        if alone:
            raise ConfigError(
                f"run_dir: {run_dir} holds a run of {name}, not of {command.name}. To go on with it: "
                f"python -m offline_agent.pipelines.{name} {shlex.quote(overrides[0])}"
            )
        return None
    secrets = f"run_dir: the configuration in {file} is without its secrets (***): give the keys that hold them again"
    try:
        config = load(command.config, overrides=overrides, stored=data)
    except ConfigError as error:
        older = f"run_dir: where {file} is of another version of the program, name another run_dir"
        raise ConfigError([*error.faults, secrets if _masked(data) else older]) from error
    if _masked(config.model_dump(mode="json")):
        raise ConfigError(secrets)
    return config


def _no_run(command: Command[Any, Any], run_dir: Path) -> str:
    """Return the fault of a `run_dir` that is given alone and holds no run."""
    beside = [path.parent.name for path in run_dir.parent.glob("*/manifest.json")]
    key = "env=shop" if "env" in command.config.model_fields else "seed=0"
    return (
        f"run_dir: {run_dir} holds no run (it has no manifest.json), and run_dir alone goes on with a run."
        f"{did_you_mean(run_dir.name, beside)} To begin one there, give another key too, such as {key}"
    )


def _masked(value: Any) -> bool:
    """Return whether a secret was masked anywhere in a configuration."""
    return MASK in json.dumps(value)


TEXT, WHOLE, FLAG = "a text", "a whole number, 0 or more", ("true", "false")
"""What a key of a tool takes; others take one of some words."""


def _value(text: str, allowed: str | tuple[str, ...]) -> str | int:
    """Return the value of a text; raises ValueError where it is not allowed."""
    if allowed == WHOLE and text.isascii() and text.isdigit():
        return int(text)
    if text and (allowed == TEXT or text in allowed and allowed != WHOLE):
        return text
    raise ValueError


def tool(name: str, about: str, arguments: Sequence[str], work: Callable[[Sequence[str]], int | None]) -> int:
    """Run a command that makes no run, and return its exit status.

    Args:
        name: Its name.
        about: Its help text.
        arguments: Its arguments.
        work: Does the work; None = done.
    """
    if asks_help(arguments):
        show(about)
        return DONE
    try:
        return work(arguments) or DONE
    except ConfigError as error:
        say(f"{name}: {error}")
        return WRONG
    except OfflineAgentError as error:
        say(f"{name}: {error}")
        return FAILED


def read_keys(
    arguments: Sequence[str], allowed: Mapping[str, str | tuple[str, ...]], least: int = 1, most: int | None = 1
) -> tuple[list[Path], dict[str, Any]]:
    """Return the run directories (each alone or after `run_dir=`) and the values of the other keys of a tool.

    Args:
        arguments: The command line.
        allowed: The keys and what they take.
        least, most: How many run directories are to be named; None = any number.

    Raises:
        ConfigError: With every fault.
    """
    runs, found, faults = list[Path](), dict[str, Any](), list[str]()
    for argument in arguments:
        name, equals, text = argument.partition("=")
        if name == "run_dir" and equals:
            runs.append(Path(text))
        elif not equals or os.path.exists(argument):  # unlike Path.exists, False for a text too long for a name
            runs.append(Path(argument))
        elif name not in allowed:
            keys = ("run_dir", *allowed)
            faults.append(f"{name}: unknown key, allowed: {', '.join(keys)}.{did_you_mean(name, keys)}")
        else:
            try:
                found[name] = _value(text, allowed[name])
            except ValueError:
                words = allowed[name] if isinstance(allowed[name], tuple) else ()
                told = ", ".join(words) or allowed[name]
                faults.append(f"{name}: got {text!r}, allowed: {told}.{did_you_mean(text, words)}")
    if len(runs) < least or (most is not None and len(runs) > most):
        wanted = "the run directory" if most == 1 else f"{least} run directories or more"
        faults.append(f"run_dir: name {wanted}, got {len(runs)}")
    none = [run for run in runs if not is_file(run / "manifest.json")]
    faults += [f"{run}: no run directory: it has no manifest.json" for run in none]
    if faults:
        raise ConfigError(faults)
    return runs, found
