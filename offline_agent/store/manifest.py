"""Manifest of a run: its configuration, hashes and status, and the checks before a resume."""

from __future__ import annotations

import json
import shlex
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import offline_agent
from offline_agent.errors import ConfigError, DataError
from offline_agent.records import SCHEMA_VERSION
from offline_agent.store.files import read_json
from offline_agent.store.provenance import git_commit, machine

MANIFEST = "manifest.json"
ANEW = "Restore it from a copy, or name another run_dir; nothing was changed here."


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
    warnings: list[str],
) -> dict[str, Any]:
    """Return the manifest of a resumed run; notes for the user are appended to `warnings`.

    Raises:
        ConfigError: Command, configuration or hashes differ.
        DataError: The manifest or a log is missing, broken or of another schema version.
    """
    manifest = read_json(path / MANIFEST, ANEW)
    version = manifest.get("schema_version") if isinstance(manifest, dict) else None
    if version != SCHEMA_VERSION:
        raise DataError(
            f"{path / MANIFEST}: schema version {version!r}, this program reads {SCHEMA_VERSION}. Use the version of "
            f"offline_agent that wrote it, or name another run_dir; nothing was changed."
        )
    gone = sorted({"command", "config", "hashes", "logs", "started", "run_id"} - manifest.keys())
    if gone:
        raise DataError(f"{path / MANIFEST}: {', '.join(gone)} missing in it. {ANEW}")
    faults = list(_differences(manifest, config, facts, command, free))
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
    manifest.pop("error", None)
    manifest.update(status="running", ended=None, config=config)
    manifest["resumed"] = [*manifest.get("resumed", []), session]
    return dict(manifest)


def _differences(
    manifest: Mapping[str, Any],
    config: Mapping[str, Any],
    facts: Mapping[str, Any],
    command: str,
    free: tuple[str, ...],
) -> Iterator[str]:
    if manifest["command"] != command:
        yield f"the run was begun by {manifest['command']}, not by {command}"
    then, asked = dict(_flat(manifest["config"])), dict(_flat(config))
    for key in sorted(then.keys() | asked.keys()):
        loose = any(key == name or key.startswith(name + ".") for name in free)
        if not loose and then.get(key, _ABSENT) != asked.get(key, _ABSENT):
            yield f"{key}: the run has {_show(then, key)}, asked for {_show(asked, key)}"
    old, new = manifest["hashes"], facts["hashes"]
    for key in sorted((old.keys() & new.keys()) - {"code"}):
        if old[key] != new[key]:
            yield f"the {key} changed since the run was begun (hash {old[key]} then, {new[key]} now)"
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


def _flat(data: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(data, Mapping) and (data or not prefix):
        for key, value in data.items():
            yield from _flat(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        # as JSON, so that a tuple from memory equals the list from the file
        yield prefix, json.loads(json.dumps(data))


def now() -> str:
    """Return the time as ISO 8601, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
