"""Preference pairs of the page: which are shown, both sides as messages and as tokens, and where they are from."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from offline_agent.report.html.reading import (
    RunFiles,
    Sample,
    choose,
    from_both_ends,
    in_turn,
    number,
    pretty,
    read,
    turn,
)

RULE = (
    "Pairs are taken in turn from the kinds, in each kind by turns the least sure and the surest (confidence, then the "
    "difference of the values), while they fit."
)
_STEPS = (-0.01, -0.1, -0.5, -1.0, -2.0, -4.0)
"""Log-probabilities (nats) at which the colour of a token changes."""
Decode = Callable[[int], str]


def order(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield light rows in the order of `RULE`."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        kinds.setdefault(row["kind"], []).append(row)
    return in_turn({kind: list(from_both_ends(sorted(of, key=_sure))) for kind, of in kinds.items()})


def _sure(row: Mapping[str, Any]) -> tuple[float, float]:
    sure = row["confidence"] if row["confidence"] is not None else row["rest_confidence"]
    return (0.5 if sure is None else sure), row["q_chosen"] - row["q_rejected"]


def sample(
    run: RunFiles,
    most_bytes: int,
    render: Callable[[dict[str, Any]], str],
    decode: Decode | None,
) -> Sample:
    """Return the pairs of the page, each with its rendered `html`.

    Args:
        run: The run that has them.
        most_bytes: Bytes that they may have.
        render: Renders one pair.
        decode: Returns the text of a token id; None = not known, and tokens are not shown.
    """
    counter = iter(range(len(run.pairs)))

    def make(both: tuple[Mapping[str, Any], Mapping[str, Any]]) -> tuple[dict[str, Any], int]:
        row = both[1]
        pair = view(row, next(counter), decode)
        html = render(pair)
        return {**pair, "html": html}, len(html.encode("utf-8", "replace"))

    return choose(run.each_whole(order(run.pairs)), len(run.pairs), most_bytes, make, RULE)


def view(row: Mapping[str, Any], number_: int, decode: Decode | None) -> dict[str, Any]:
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
            "tokens": None if decode is None else list(tokens(row, side, decode)),
            "logps": _sums(row, side),
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


def _sums(row: Mapping[str, Any], side: str) -> str:
    """Return the log-probability of all tokens of a side that the policy sampled."""
    logps, mask = row[f"ref_{side}_logps"], row[f"{side}_mask"]
    if logps is None or mask is None:
        return ""
    before = sum(value for value, sampled in zip(logps, mask, strict=True) if sampled)
    return f"log-probability {before:.2f}"


def tokens(row: Mapping[str, Any], side: str, decode: Decode) -> Iterator[dict[str, Any]]:
    """Yield the tokens of a side: text, `kind` (the class of its mask and log-probability), and a title.

    Tokens in a row that the policy did not sample are joined: they have no log-probability.
    """
    ids, mask, logps = row[f"{side}_ids"], row[f"{side}_mask"], row[f"ref_{side}_logps"]
    if ids is None or mask is None:
        return
    waiting = ""
    for at, (token, sampled) in enumerate(zip(ids, mask, strict=True)):
        if not sampled:
            waiting += decode(token)
            continue
        if waiting:
            yield {"text": waiting, "kind": "n"}
            waiting = ""
        out = {"text": decode(token), "kind": "s"}
        if logps is not None:
            out["kind"] += f" l{sum(logps[at] < step for step in _STEPS)}"
            out["title"] = f"log-probability {logps[at]:.2f}"
        yield out
    if waiting:
        yield {"text": waiting, "kind": "n"}


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


def decoder(run: RunFiles, others: Sequence[RunFiles] = ()) -> Decode | None:
    """Return the function that gives a token's text, from a tokenizer.json on this machine; None where there is none.

    Looked at are the tokenizer and the model that the configurations of the runs name, and the embedded default.

    Args:
        run: The run.
        others: Runs whose configuration is looked at too.
    """
    for one in (run, *others):
        for folder in _tokenizer_folders(one):
            file = folder / "tokenizer.json"
            if file.is_file():
                return _decode_with(file)
    return None


def _tokenizer_folders(run: RunFiles) -> Iterator[Path]:
    from offline_agent.policies.base import DEFAULT_MODEL

    if run.config.get("tokenizer"):
        yield Path(str(run.config["tokenizer"]))
    for section in ("policy", "model"):
        chosen = run.config.get(section)
        if not isinstance(chosen, Mapping) or chosen.get("name", "hf") != "hf":
            continue
        named = chosen.get("tokenizer") or chosen.get("model") or chosen.get("path")
        yield Path(str(named)) if named else Path(DEFAULT_MODEL)


def _decode_with(file: Path) -> Decode | None:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception:  # the library raises plain Exception for a broken file; tokens are then not shown
        return None
    known: dict[int, str] = {}

    def decode(token: int) -> str:
        if token not in known:
            text = str(tokenizer.decode([token], skip_special_tokens=False))
            whole = text and "\ufffd" not in text
            known[token] = text if whole else str(tokenizer.id_to_token(token) or f"[{token}]")
        return known[token]

    return decode
