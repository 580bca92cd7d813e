"""The command line of every command: what it may hold, and the text of `--help`."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from offline_agent.config import loading as configuration
from offline_agent.config.base import masked
from offline_agent.config.build_prefs import RunConfig
from offline_agent.errors import ConfigError, did_you_mean

_OPTIONS = ("--config", "--help", "--merge", "--plan", "--print-config", "--shard", "--submit")
_PARTS = ("--merge", "--shard", "--submit")
_STOPS = ("--plan", "--print-config")
_SHARDED = """
  --shard         do only what a shard does; the jobs of launcher=slurm are called so
  --merge         gather what the shards in run_dir made, and finish; can be repeated"""


def usage(name: str, about: str, config: type[RunConfig], spread: bool) -> str:
    """Return the help text: how to call it, and every key with its type, default and meaning.

    Args:
        name: The pipeline's.
        about: What it does, in a sentence.
        config: Its keys.
        spread: Whether it can be cut into shards.
    """
    width = shutil.get_terminal_size((120, 24)).columns if sys.stdout.isatty() else 120
    return f"""\
usage: python -m offline_agent.pipelines.{name} [--config FILE] [key=value ...]

{about}

  --config FILE   YAML with any of the keys below; key=value goes over it
  --print-config  print the resolved configuration and stop
  --submit        with launcher=slurm: submit, print the ids of the jobs, and return{_SHARDED if spread else ""}
  --plan          print what the run is expected to cost (tokens, calls, time, disk, rows), and stop; see plan.*
  --help          this

{configuration.help_text(config, width)}

Exit status: 0 done, 1 failed while running, 2 the request was wrong (nothing was written).
Naming an existing run_dir with the same configuration goes on with that run."""


@dataclass(frozen=True)
class Asked:
    """What a command line asks for.

    Attributes:
        file: Of the configuration.
        overrides: The key=value.
        print_config: Print the resolved configuration, and stop.
        plan: Print what it would cost, and stop.
        part: `--merge`, `--shard` or `--submit`; None = the whole.
    """

    file: str | None
    overrides: tuple[str, ...]
    print_config: bool
    plan: bool
    part: str | None


def parse(arguments: Sequence[str]) -> Asked:
    """Return what is asked for; raises ConfigError with every fault."""
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
    return Asked(file, tuple(overrides), "--print-config" in arguments, "--plan" in arguments, part)


def again(name: str, arguments: Sequence[str], run_dir: object) -> str:
    """Return the command that goes on with a run; secrets in it are `***`, and it says that they must be given again.

    Args:
        name: The pipeline's.
        arguments: Of the command that began or went on with the run.
        run_dir: The run directory.
    """
    shown = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if key != "run_dir":
            shown.append(f"{key}={masked(value, key.rpartition('.')[2])}" if equals else argument)
    line = f"python -m offline_agent.pipelines.{name} {shlex.join([*shown, f'run_dir={run_dir}'])}"
    return line + (" (give what is shown as *** again)" if "***" in line else "")
