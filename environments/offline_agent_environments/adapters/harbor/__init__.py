"""Tasks of Harbor's and Terminal-Bench's folder format, played in the sandbox: `env=harbor:FOLDER`.

FOLDER is a task, or holds tasks: `instruction.md, task.toml, environment/Dockerfile, tests/test.sh, solution/solve.sh`.
No container is built or started. The steps of the Dockerfile that need none are carried out, other tasks are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offline_agent.errors import ConfigError
from offline_agent_environments.adapters.harbor import tasks as folders
from offline_agent_environments.adapters.harbor.env import HarborEnvironment


def adapt(rest: str, args: Mapping[str, Any]) -> type:
    """Return the class of the tasks of a folder; see `envs.base.environment_class`."""
    found = folders.found(rest)
    images = frozenset(_names("env.images", args.get("images")))
    splits = args.get("splits")
    if splits is not None and not isinstance(splits, Mapping):
        raise ConfigError(f"env.splits: got {splits!r}, allowed: lists of names for {', '.join(folders.SPLITS)}")
    splits = None if splits is None else {key: _names(f"env.splits.{key}", one) for key, one in splits.items()}
    how = args.get("unplayable", "refuse")
    if how not in ("refuse", "leave_out"):
        raise ConfigError(f"env.unplayable: got {how!r}, allowed: refuse, leave_out")
    refused = dict(folders.unplayable(found, found, images))
    if refused and (how == "refuse" or len(refused) == len(found)):
        faults = [fault for reasons in refused.values() for fault in reasons]
        some = len(refused) < len(found)
        more = [f"{len(refused)} of {len(found)} tasks cannot be played here; the others can: env.unplayable=leave_out"]
        raise ConfigError([*faults, *(more if some else [])])
    playable = {name: place for name, place in found.items() if name not in refused}
    for split in folders.SPLITS:
        folders.in_split(split, playable, splits)
    return type(
        "HarborEnvironment", (HarborEnvironment,),
        {"name": "harbor", "_found": playable, "_images": images, "_splits": splits, "__module__": __name__},
    )  # fmt: skip


def _names(key: str, given: Any) -> list[str]:
    if given is None:
        return []
    if not isinstance(given, list | tuple) or not all(isinstance(one, str) for one in given):
        raise ConfigError(f"{key}: got {given!r}, allowed: a list of names, [NAME]")
    return list(given)
