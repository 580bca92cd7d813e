"""Commands that closing tables print: complete, quoted for a shell, with the environment that the run was about."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from offline_agent.config.loading import escaped, read_value
from offline_agent.errors import DataError
from offline_agent.store.files import read_json

_DEFAULTS = {"env": {"isolate": "auto"}, "judge": {"name": "environment"}}  # left out of a command


def python() -> str:
    """Return how this interpreter is called from here: one in the current folder need not be on the PATH."""
    program = Path(sys.executable)
    try:
        here = Path.cwd()
    except FileNotFoundError:  # removed while the command ran, which must not cost its results
        return "python"
    return str(program.relative_to(here)) if program.is_relative_to(here) else "python"


def command(name: str, keys: Iterable[str]) -> str:
    """Return a command that can be copied into a shell.

    Args:
        name: The command's name.
        keys: Its arguments, `key=value` or plain.
    """
    return f"{python()} -m offline_agent.pipelines.{name} {shlex.join(keys)}"


def typed(value: Any) -> str:
    """Return a value as it is typed after `key=`, so that `config.loading.load` gives the same value again.

    Args:
        value: Text without control characters, finite number, truth value, None, or lists and dicts of them.
    """
    if isinstance(value, str) and "${" not in value and read_value(value) == value:
        return value
    return json.dumps(escaped(value), ensure_ascii=False)


def environment_keys(config: Mapping[str, Any]) -> list[str]:
    """Return the keys that choose the environment, its arguments and the judge.

    Args:
        config: A resolved configuration, as in a manifest; without an environment there are no keys of one.
    """
    if (config.get("env") or {}).get("name") in (None, "none"):  # import_logs says none where nothing is replayed
        return []
    keys = []
    for section, defaults in _DEFAULTS.items():
        given = dict(config.get(section) or {})
        name = given.pop("name", None)
        if name is None or defaults.get("name") == name:
            continue
        keys.append(f"{section}={name}")
        keys += [f"{section}.{key}={typed(value)}" for key, value in given.items() if defaults.get(key) != value]
    return keys


def keys_of_runs(runs: Sequence[str | Path]) -> list[str]:
    """Return `environment_keys` of the first of these run directories whose manifest names an environment."""
    for run in runs:
        if keys := environment_keys(_read(Path(run) / "manifest.json").get("config") or {}):
            return keys
    return []


def made_by(runs: Sequence[str | Path]) -> str | None:
    """Return the first search, among runs that data are from, whose policy can be played again; None without one."""
    for run in runs:
        manifest = _read(Path(run) / "manifest.json")
        config = manifest.get("config") or {}
        if manifest.get("command") == "build_prefs" and config.get("policy"):
            return str(run)
        if manifest.get("command") == "rejudge" and (found := made_by([config.get("source") or ""])):
            return found
    return None


def evaluation(model: Path, keys: Sequence[str]) -> str:
    """Return the lines that say how to evaluate a model that was trained.

    Args:
        model: Its folder.
        keys: Those of the environment that it was trained on.
    """
    if keys:
        return f"Next: {command('evaluate', [*keys, f'policy.model={model}'])}"
    return (
        f"Next: {command('evaluate', ['env=NAME', f'policy.model={model}'])}\n"
        "      with the environment that the data are from; their files do not name it"
    )


def single_turn_advice(trainer: str) -> str:
    """Return how to get pairs of one turn a side, which another trainer without masks needs."""
    return (
        f"{trainer} cannot take pairs of several turns a side, train_dpo can. For {trainer}: pairs.kinds=[step] makes "
        "pairs of one turn a side (of logs, with pairs.min_visits=1)"
    )


def _read(path: Path) -> dict[str, Any]:
    """Return a JSON object; {} where there is none."""
    try:
        found = read_json(path, "")
    except DataError:
        return {}
    return found if isinstance(found, dict) else {}
