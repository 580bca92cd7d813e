"""Manifest of a run: its configuration, hashes and status, and the checks before a resume."""

from __future__ import annotations

import json
import shlex
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import offline_agent
from offline_agent.errors import ConfigError, DataError
from offline_agent.records import SCHEMA_VERSION
from offline_agent.store.files import read_json
from offline_agent.store.provenance import changed_sources, git_commit, machine

MANIFEST = "manifest.json"
ANEW = "Restore it from a copy, or name another run_dir; nothing was changed here."


@dataclass(frozen=True)
class Growth:
    """Keys of which a run may be resumed with more.

    Attributes:
        keys: Dotted keys of numbers; null is more than any.
        fixed: Why some of them cannot grow in this run.
        task_set: Returns the hash of the first so many tasks, which `tasks.n` adds to.
    """

    keys: tuple[str, ...] = ()
    fixed: Mapping[str, str] = field(default_factory=dict)
    task_set: Callable[[int], str] | None = None

    def grown(self, then: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
        """Return the keys that grew between two flat configurations."""
        return [
            key for key in self.keys
            if key not in self.fixed and then.get(key) is not None
            and (asked.get(key) is None or asked[key] > then[key])
        ]  # fmt: skip


def read_manifest(path: Path, mend: str = "Restore it from a copy.") -> dict[str, Any]:
    """Return the manifest of a run directory.

    Args:
        path: The run directory.
        mend: Instruction for the user where the manifest is missing or broken.

    Raises:
        DataError: It is missing, unreadable, no JSON object, or not as it was written.
    """
    found = read_json(path / MANIFEST, mend)
    if not isinstance(found, dict):
        raise DataError(f"{path / MANIFEST}: got {type(found).__name__}, allowed: a JSON object. {mend}")
    return found


def begin(config: dict[str, Any], facts: Mapping[str, Any], command: str) -> dict[str, Any]:
    """Return the manifest of a run that starts now."""
    return {
        "schema_version": SCHEMA_VERSION,
        "version": offline_agent.__version__,
        "run_id": uuid.uuid4().hex,
        "command": command,
        "status": "running",
        "started": now(),
        "ended": None,
        "config": config,
        "git_commit": git_commit(),
        "machine": machine(),
        "logs": [],
        **facts,
    }


def resume(
    path: Path,
    config: dict[str, Any],
    facts: Mapping[str, Any],
    command: str,
    free: tuple[str, ...],
    growth: Growth,
    warnings: list[str],
) -> dict[str, Any]:
    """Return the manifest of a resumed run; notes for the user are appended to `warnings`.

    Raises:
        ConfigError: Command, configuration or hashes differ.
        DataError: The manifest or a log is missing, broken or of another schema version.
    """
    manifest = read_manifest(path, ANEW)
    version = manifest.get("schema_version")
    if version != SCHEMA_VERSION:
        raise DataError(
            f"{path / MANIFEST}: schema version {version!r}, this program reads {SCHEMA_VERSION}. Use the version of "
            f"offline_agent that wrote it, or name another run_dir; nothing was changed."
        )
    gone = sorted({"command", "config", "hashes", "logs", "started", "run_id"} - manifest.keys())
    if gone:
        raise DataError(f"{path / MANIFEST}: {', '.join(gone)} missing in it. {ANEW}")
    then, asked = dict(flat(manifest["config"])), dict(flat(config))
    grown = growth.grown(then, asked)
    hashes = dict(facts["hashes"])
    if "tasks.n" in grown and growth.task_set is not None:
        hashes["task_set"] = growth.task_set(then["tasks.n"])
    faults = list(_differences(manifest, config, {**facts, "hashes": hashes}, command, (*free, *grown)))
    faults += [f"{key} cannot grow here: {why}" for key, why in growth.fixed.items() if then.get(key) != asked.get(key)]
    if faults:
        again = f"python -m offline_agent.pipelines.{manifest['command']} {shlex.quote(f'run_dir={path}')}"
        raise ConfigError([
            *faults,
            f"run_dir: {path} holds that run. Name another run_dir, or go on with its own configuration: {again} "
            "(with --print-config to see it)",
        ])
    for name in manifest["logs"]:
        if not (path / "events" / name).exists():
            raise DataError(f"{path / 'events' / name}: missing, though the manifest lists it. {ANEW}")
    before, code = manifest["hashes"].get("code"), facts["hashes"]["code"]
    if before != code:
        warnings.append(
            "the code differs from the code that started this run: unfinished work may have other results "
            f"(code {str(before)[:12]} then, {code[:12]} now; both are in the manifest)"
        )
    session = {
        "at": now(), "after": manifest.get("status"), "last_ended": manifest.get("ended"),
        "git_commit": git_commit(), "machine": machine(), "code": code,
    }  # fmt: skip
    if grown:
        changes = ", ".join(f"{key} from {_show(then, key)} to {_show(asked, key)}" for key in grown)
        warnings.append(f"more of the same: {changes}; what is done stays as it is")
        if "task_set" in hashes:
            manifest["hashes"]["task_set"] = facts["hashes"]["task_set"]
    manifest.pop("error", None)
    manifest.update(status="running", ended=None, config=config)
    manifest["resumed"] = [*manifest.get("resumed", []), session]
    return manifest


def _differences(
    manifest: Mapping[str, Any],
    config: Mapping[str, Any],
    facts: Mapping[str, Any],
    command: str,
    free: tuple[str, ...],
) -> Iterator[str]:
    if manifest["command"] != command:
        yield f"the run was begun by {manifest['command']}, not by {command}"
    then, asked = dict(flat(manifest["config"])), dict(flat(config))
    for key in sorted(then.keys() | asked.keys()):
        loose = any(key == name or key.startswith(name + ".") for name in free)
        if not loose and then.get(key, _ABSENT) != asked.get(key, _ABSENT):
            yield f"{key}: the run has {_show(then, key)}, asked for {_show(asked, key)}"
    old, new = manifest["hashes"], facts["hashes"]
    for key in sorted((old.keys() & new.keys()) - {"code"}):
        if old[key] != new[key]:
            yield f"the {key} changed since the run was begun (hash {old[key]} then, {new[key]} now)"
    for change in changed_sources(manifest.get("sources", {}), facts.get("sources", {})):
        yield (
            f"{change} since the run was begun: what is done was made by the earlier source, what is left would be "
            "made by the present one. Put the earlier one back"
        )
    for label, now_served in facts.get("served", {}).items():
        then_served = {**manifest.get(label, {}), **manifest.get("served", {}).get(label, {})}
        yield from _another_model(label, then_served, now_served)


def _another_model(label: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences between a server's model and the model that the run was started with, where known."""
    mend = "Go on with servers of the model that it was begun with (policy.url)"
    if then.get("model", now["model"]) != now["model"]:
        yield f"{label}: the run was begun with the model {then['model']!r}, the server has {now['model']!r}. {mend}"
    before, after, most = then.get("logps"), now["logps"], now["tolerance"]
    if before is None or after is None:
        return
    gap = max(abs(a - b) for a, b in zip(before, after, strict=True)) if len(before) == len(after) else float("inf")
    if gap > most:
        yield (
            f"{label}: the server has another model, or other weights, than the one that the run was begun with: its "
            f"log-probs of a fixed text differ by up to {gap:.3g}, allowed: {most:g} (policy.probe_tolerance). {mend}"
        )


_ABSENT = object()


def _show(flat: Mapping[str, Any], key: str) -> str:
    return json.dumps(flat[key], ensure_ascii=False) if key in flat else "nothing"


def flat(data: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of nested keys, values as JSON."""
    if isinstance(data, Mapping) and (data or not prefix):
        for key, value in data.items():
            yield from flat(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        # as JSON, so that a tuple from memory equals the list from the file
        yield prefix, json.loads(json.dumps(data))


def now() -> str:
    """Return the time as ISO 8601, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def data_policy(model: str | None) -> str | None:
    """Return the search whose policy made the data that a model was trained on; None where its folder does not say."""
    if model is None or not Path(model).is_dir():
        return None
    try:
        return read_json(Path(model).resolve().parent / "summary.json").get("made_by")
    except (DataError, AttributeError):  # the folder of something else
        return None
