"""Preference pairs of the page: which are shown, both sides as messages, and where they are from."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from offline_agent.report.html.reading import RunFiles, Sample, choose, in_turn
from offline_agent.report.html.text import number, pretty, read, turn

RULE = (
    "Pairs are taken in turn from the kinds, in each kind the least sure first (confidence, then the difference of the "
    "values), while they fit."
)


def order(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield light rows in the order of `RULE`."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        kinds.setdefault(row["kind"], []).append(row)
    return in_turn({kind: sorted(of, key=_sure) for kind, of in kinds.items()})


def _sure(row: Mapping[str, Any]) -> tuple[float, float]:
    sure = row["confidence"] if row["confidence"] is not None else row["rest_confidence"]
    return (0.5 if sure is None else sure), row["q_chosen"] - row["q_rejected"]


def sample(run: RunFiles, most_bytes: int, render: Callable[[dict[str, Any]], str]) -> Sample:
    """Return the pairs of the page, each with its rendered `html`.

    Args:
        run: The run that has them.
        most_bytes: Bytes that they may have.
        render: Renders one pair.
    """
    return choose(run.each_whole(order(run.pairs)), len(run.pairs), most_bytes, view, render, RULE)


def view(row: Mapping[str, Any], number_: int) -> dict[str, Any]:
    """Return what the template of a pair needs, from a whole row by known names."""
    sides = []
    for side in ("chosen", "rejected"):
        verdict = read(row[f"verdict_{side}"])
        sides.append({
            "name": side,
            "turns": [turn(message) for message in row[side]],
            "value": number(row[f"q_{side}"]),
            "visits": row[f"visits_{side}"],
            "verdict": None if verdict is None else f"{verdict['verifier']}: {number(verdict['score'])}",
            "evidence": "" if verdict is None else pretty(verdict.get("evidence") or verdict.get("error") or ""),
        })  # fmt: skip
    certificate = read(row["certificate"]) if row.get("certificate") else None
    return {
        "number": number_,
        "kind": row["kind"],
        "task": row["task_id"],
        "tree": row["tree_id"],
        "node": row["node_id"],
        "margin": round(row["q_chosen"] - row["q_rejected"], 3),
        "confidence": number(row["confidence"], 3),
        "rest": number(row.get("rest_confidence"), 3),
        "weight": number(row["weight"], 3),
        "prompt": [turn(message) for message in row["prompt"]],
        "sides": sides,
        "provenance": [
            f"tree {row['tree_id']}, node {row['node_id']}, edges {row['chosen_edge']} and {row['rejected_edge']}"
            if row["tree_id"] is not None else "from no tree",
            f"split {row['split']}",
            *([] if not certificate else [f"certificate {json.dumps(certificate.get('digest') or 'present')}"]),
        ],
    }  # fmt: skip


def counts(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, int, str, str]]:
    """Return (kind, number, median margin, number below 0.9 confidence) of all pairs."""
    from statistics import median

    kinds = Counter(row["kind"] for row in rows)
    out = []
    for kind, count in kinds.most_common():
        of = [row for row in rows if row["kind"] == kind]
        known = [row["confidence"] for row in of if row["confidence"] is not None]
        doubtful = f"{sum(sure < 0.9 for sure in known):,} of {len(known):,}" if known else "not known"
        out.append((kind, count, number(median(row["q_chosen"] - row["q_rejected"] for row in of)), doubtful))
    return out
