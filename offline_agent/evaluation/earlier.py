"""An earlier evaluation's run directory, to compare with: the same environment, tasks, steps and temperature."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offline_agent.errors import ConfigError, DataError
from offline_agent.evaluation import report
from offline_agent.evaluation.statistics import Outcomes, recorded
from offline_agent.rollouts.attempts import Attempt
from offline_agent.store.files import read_json
from offline_agent.store.provenance import changed_sources, hash_path, sources
from offline_agent.store.tables import read_table

SEARCHES = ("best_of_n", "mcts")
EXTRA = "best_of_n_sample"
"""Mode of samples that best_of_n sees beyond the attempts that were asked for."""


@dataclass(frozen=True)
class Earlier:
    """An earlier evaluation.

    Attributes:
        path: Its run directory.
        hash: Of its table of attempts.
        policy: Its policy's identity.
        modes: Its figures by mode, from its summary.
        outcomes: (successes, rewards) by mode.
        left_out: Modes that cannot be compared, and why.
    """

    path: Path
    hash: str
    policy: Mapping[str, Any]
    modes: Mapping[str, Any]
    outcomes: Mapping[str, tuple[Outcomes, Outcomes]]
    left_out: Mapping[str, str]

    def about(self) -> dict[str, Any]:
        """Return its entry in the summary."""
        out = {"run": str(self.path), "policy": dict(self.policy), "modes": dict(self.modes)}
        return {**out, "modes_not_compared": dict(self.left_out)} if self.left_out else out

    def compare(self, candidate: Mapping[str, Sequence[Attempt]], *how: Any) -> dict[str, Any]:
        """Return the paired comparison by mode; see `evaluation.report.compare`."""
        return {
            mode: report.compare(report.results(candidate[mode]), theirs, *how)
            for mode, theirs in self.outcomes.items()
            if mode in candidate
        }


def read_earlier(path: Path, now: Mapping[str, Any], environment: Mapping[str, Any], task_set: str) -> Earlier:
    """Return the earlier evaluation in a run directory.

    Args:
        path: The run directory.
        now: The resolved configuration of what is asked for.
        environment: Identity of the environment.
        task_set: Hash of the tasks.

    Raises:
        ConfigError: It is none, is not finished, or cannot be compared with what is asked for: every reason.
        DataError: Its table is broken.
    """
    manifest = _json(path / "manifest.json")
    if manifest.get("command") != "evaluate":
        raise ConfigError(f"against.run: {path} is a run of {manifest.get('command')!r}; name a run of evaluate")
    if manifest.get("status") != "done":
        status = manifest.get("status")
        raise ConfigError(f"against.run: {path} is not finished (status {status!r}); go on with it first")
    summary = _json(path / "summary.json")
    left_out = dict(_search_differs(manifest["config"], now))
    wanted = [mode for mode in _modes(now) if mode in summary["modes"] and mode not in left_out]
    faults = list(_differences(manifest, now, wanted))
    if manifest.get("env") != json.loads(json.dumps(environment)):
        faults.append(f"against.run: its environment was {manifest.get('env')}, here it is {environment}; use the same")
    if manifest["hashes"].get("task_set") != task_set:
        faults.append(
            f"against.run: it played other tasks ({manifest['config'].get('tasks')}), here they are "
            f"{now['tasks']}; give the same tasks.split, tasks.n, tasks.offset and tasks.file"
        )
    if not wanted:
        had = ", ".join(summary["modes"])
        faults.append(
            f"against.run: {path} has attempts {had}; asked for {', '.join(_modes(now))}: none to compare"
            + "".join(f"; {mode}: {reason}" for mode, reason in left_out.items())
        )
    if faults:
        raise ConfigError(faults)
    table = path / "attempts" / "0000.parquet"
    rows = [row for row in read_table(table) if row["policy"] == "candidate"]
    of_mode = {mode: [row for row in rows if row["mode"] == mode] for mode in wanted}
    outcomes = {mode: (recorded(found, "success"), recorded(found, "reward")) for mode, found in of_mode.items()}
    return Earlier(path, hash_path(table), manifest.get("policy", {}), summary["modes"], outcomes, left_out)


def _modes(now: Mapping[str, Any]) -> list[str]:
    modes = [*(["sampled"] if now["attempts"] else []), *(["greedy"] if now["greedy"] else [])]
    algorithm = _algorithm(now)
    return modes if algorithm == "none" else [*modes, algorithm]


def _algorithm(now: Mapping[str, Any]) -> str:
    return str(_at(now, "test_time.algorithm"))


def _differences(manifest: Mapping[str, Any], now: Mapping[str, Any], modes: Sequence[str]) -> Iterator[str]:
    """Yield one line for each key and source that makes a comparison unfair."""
    then = manifest["config"]
    for change in changed_sources(manifest.get("sources", {}), sources({key: now[key] for key in ("env", "judge")})):
        yield f"against.run: {change} since then, so that two verifiers would be compared; evaluate that policy again"
    keys = ["max_steps", "limits.max_observation_chars", *(["policy.temperature"] if set(modes) - {"greedy"} else [])]
    for key in keys:
        if _at(then, key) != _at(now, key):
            yield f"against.run: it had {key}={_at(then, key)}, asked for {_at(now, key)}; set {key}={_at(then, key)}"


def _search_differs(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    mode = _algorithm(now)
    if mode in SEARCHES and _at(then, "test_time.algorithm") == mode:
        keys = ["test_time", "search", "reward"] if mode == "mcts" else ["test_time"]
        for key in keys:
            if then.get(key) != now[key]:
                yield mode, f"it had {key} {then.get(key)}, asked for {now[key]}"
                return


def _at(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _json(path: Path) -> dict[str, Any]:
    try:
        return dict(read_json(path, "Name a finished run of evaluate."))
    except (DataError, TypeError, ValueError) as error:
        raise ConfigError(f"against.run: {path}: {error}") from error
