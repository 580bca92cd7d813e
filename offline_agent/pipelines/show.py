"""Look at the pairs of a run: `python -m offline_agent.pipelines.show RUN_DIR [kind=KIND] [n=3]`.

Prints pairs as a person reads them: the end of the shared history, both continuations, and why one is better.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from offline_agent.errors import ConfigError, DataError
from offline_agent.runner.terminal import say, show

_KINDS = ("step", "trajectory", "hindsight", "minimal")


def main(arguments: Sequence[str]) -> int:
    """Print pairs; 0 done, 1 a file cannot be read, 2 wrong request."""
    if "--help" in arguments or "-h" in arguments:
        print(__doc__)
        return 0
    try:
        run_dir, kind, n = _parse(arguments)
    except ConfigError as error:
        say(f"show: {error}\n\n{__doc__}")
        return 2
    try:
        rows = _pick(_rows(run_dir), kind, n)
    except DataError as error:
        say(f"show: {error}")
        return 1
    show("\n".join(map(describe, rows)) or "no such pairs; quarantine.jsonl says what was refused and why")
    return 0


def _parse(arguments: Sequence[str]) -> tuple[Path, str | None, int]:
    options = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    places = [argument for argument in arguments if "=" not in argument]
    kind, n = options.pop("kind", None), options.pop("n", "3")
    faults = [f"{name}: unknown key, allowed: kind, n" for name in options]
    if len(places) != 1:
        faults.append(f"name one run directory, got {len(places)}")
    if kind is not None and kind not in _KINDS:
        faults.append(f"kind: got {kind!r}, allowed: {', '.join(_KINDS)}")
    if not n.isdigit() or not int(n):
        faults.append(f"n: got {n!r}, must be a whole number of at least 1")
    if faults:
        raise ConfigError(faults)
    return Path(places[0]), kind, int(n)


def _rows(run_dir: Path) -> Iterator[Mapping[str, Any]]:
    from offline_agent.store.columns import PAIR_TABLES, known
    from offline_agent.store.tables import read_table

    try:
        files = [file for table in PAIR_TABLES for file in sorted((run_dir / table).glob("*.parquet"))]
    except (OSError, ValueError) as error:  # a path that the system cannot even ask for
        raise DataError(f"{str(run_dir)!r:.80}: cannot be read: {error}") from error
    if not files:
        raise DataError(f"{run_dir}/preferences holds no table: is this the directory of a finished build_prefs?")
    for file in files:
        yield from map(known, read_table(file))


def _pick(rows: Iterable[Mapping[str, Any]], kind: str | None, n: int) -> list[Mapping[str, Any]]:
    """Return n pairs of the kind, or n of different kinds as far as there are; reads and holds no more than it must."""
    first: dict[str, Mapping[str, Any]] = {}
    others: list[Mapping[str, Any]] = []
    kinds = min(n, len(_KINDS) if kind is None else 1)
    for row in rows:
        if kind not in (None, row["kind"]):
            continue
        if row["kind"] not in first:
            first[row["kind"]] = row
        elif len(others) < n:
            others.append(row)
        if len(first) >= kinds and len(first) + len(others) >= n:
            break
    return [*first.values(), *others][:n]


def describe(row: Mapping[str, Any]) -> str:
    """Return one pair as text."""
    prompt = row["prompt"]
    task = next((m["content"] for m in prompt if m["role"] == "user"), "")
    lines = [
        f"== {row['kind']} pair of task {row['task_id']}, tree {row['tree_id']}, node {row['node_id']}",
        f"task      {_short(task)}",
        f"history   {len(prompt)} messages, the last: {_short(_text(prompt[-1]))}",
        *[f"chosen    {_short(_text(m))}" for m in row["chosen"]],
        *[f"rejected  {_short(_text(m))}" for m in row["rejected"]],
        f"why       value {row['q_chosen']:.2f} of {row['visits_chosen']} rollouts against {row['q_rejected']:.2f} of "
        f"{row['visits_rejected']}; P(first action better) {_sure(row['confidence'])}, "
        f"P(rest better) {_sure(row.get('rest_confidence'))}; weight {row['weight']:.2f}",
    ]
    for side in ("chosen", "rejected"):
        if row[f"verdict_{side}"]:
            verdict = json.loads(row[f"verdict_{side}"])
            lines.append(f"verdict   {side}: {verdict['verifier']} gives {verdict['score']}")
    if row["chosen_mask"] is not None:
        trained, total = sum(row["chosen_mask"]), len(row["chosen_mask"])
        prompt_length = len(row["prompt_ids"])
        lines.append(f"tokens    prompt {prompt_length}; chosen {total}, of which the policy sampled {trained}")
    return "\n".join(lines) + "\n"


def _sure(probability: float | None) -> str:
    return "not known" if probability is None else f"{probability:.3f}"


def _text(message: Mapping[str, Any]) -> str:
    calls = [call if isinstance(call, Mapping) else json.loads(call) for call in message.get("tool_calls") or ()]
    shown = [f"{c['function']['name']}({json.dumps(c['function']['arguments'], ensure_ascii=False)})" for c in calls]
    content = message.get("content") or ""
    return f"[{message['role']}] {' '.join([content, *shown]).strip()}"


def _short(text: str, most: int = 200) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= most else f"{flat[:most]} …"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
