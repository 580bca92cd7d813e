"""Data card of a run: the tables that it wrote, their source, the rules by which rows were made, and known limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from offline_agent.export import CARD, LIMITS, origin
from offline_agent.outgoing import code, without_html
from offline_agent.rendering import certificate
from offline_agent.store.columns import MULTITURN, PREFERENCES, stored_name
from offline_agent.store.files import write_text
from offline_agent.store.run_directory import RunDirectory

_TABLES = {
    PREFERENCES: "pairs whose sides are one turn each, as TRL's preference trainers take them",
    MULTITURN: "pairs with a side of several turns and tool results between them; for `train_dpo`",
    "filtered": "verified successes for fine-tuning",
    "trajectories": "finished branches, failures included: not to be learnt from as they are",
}
_IDS = stored_name("input_ids", "trajectories")
_AGENT = stored_name("action_mask", "trajectories")
_ROWS_AT_ONCE = 512
_CLAIMS = {
    "step": "the policy succeeds more often after the chosen action; `confidence` says how sure that is",
    "trajectory": "the rest of the chosen side succeeded, that of the rejected side failed",
    "hindsight": "likewise, under the request that a failure did reach",
    "minimal": "both sides succeed, the chosen one in fewer steps",
}


def write_card(run: RunDirectory, summary: Mapping[str, Any]) -> Path:
    """Write the card, README.md, into the run directory.

    Args:
        run: The run of `build_prefs` or `import_logs`, with its tables.
        summary: Its summary.

    Raises:
        DataError: The disk refused it.
    """
    return write_text(run.path / CARD, card(run.path, run.manifest, summary))


def card(path: Path, manifest: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """Return the card as Markdown, with the header by which `datasets` finds the tables.

    Args:
        path: The run directory.
        manifest: Its manifest.
        summary: Its summary.
    """
    rows = {table: count for table in _TABLES if (count := _rows(path / table))}
    lines = ["---", "configs:"] if rows else []
    for table in rows:
        lines += [f"- config_name: {table}", f"  data_files: {table}/*.parquet"]
    lines += ["---", ""] if rows else []
    lines += [f"# {path.resolve().name}", "", _about(manifest, summary), "", "## What is in it", ""]
    lines += ["| table | rows | what |", "|---|---|---|"]
    lines += [f"| `{table}/` | {rows.get(table, 0):,} | {what} |" for table, what in _TABLES.items()]
    if rows:
        first = next(iter(rows))
        lines += ["", f'`load_dataset("{path.resolve().name}", "{first}", split="train")` reads one of them.']
    if masks := _masks(path):
        lines += ["", "| tokens of `trajectories/` | number | marked by |", "|---|---|---|", *masks]
    if summary["pairs"]:
        lines += ["", "| pairs | number | a pair claims |", "|---|---|---|"]
        lines += [f"| {kind} | {count:,} | {_CLAIMS[kind]} |" for kind, count in summary["pairs"].items()]
    lines += ["", "## Where it is from", "", *origin(manifest)]
    lines += ["", "## By which rules", "", *(f"- {rule}" for rule in _rules(manifest["config"], summary))]
    lines += ["", "## Left out", "", *_left_out(summary)]
    limits = _limits(manifest["config"], summary, _bare(path))
    lines += ["", "## Known limits", "", *(f"- {limit}" for limit in limits), ""]
    return without_html("\n".join(lines))


def _rows(table: Path) -> int:
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(file).num_rows for file in sorted(table.glob("*.parquet")))


def _bare(path: Path) -> int:
    """Return the number of trajectories without token ids."""
    import pyarrow.parquet as pq

    files = sorted((path / "trajectories").glob("*.parquet"))
    return sum(pq.read_table(file, columns=[_IDS])[_IDS].null_count for file in files)


def _masks(path: Path) -> list[str]:
    """Return the line on what the mask of the trajectories counts; none where no row has token ids."""
    import pyarrow.parquet as pq

    agent = 0
    for file in sorted((path / "trajectories").glob("*.parquet")):
        for batch in pq.ParquetFile(file).iter_batches(_ROWS_AT_ONCE, columns=["certificate"]):
            for text in batch.column(0).to_pylist():
                entry = ({} if text is None else certificate.parse(text)).get("sequence")
                agent += 0 if entry is None else entry["trainable"]
    return [f"| the policy's own | {agent:,} | `{_AGENT}` |"] if agent else []


def _about(manifest: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    if manifest["command"] == "import_logs":
        return (
            f"Preference pairs and verified trajectories of {summary['episodes']:,} logged episodes of "
            f"{summary['tasks']:,} tasks, {summary['judged']:,} of them with an outcome."
        )
    return (
        f"Preference pairs and verified trajectories of a tree search: the policy {code(summary['policy'])} in the "
        f"environment {code(summary['environment'])}, {summary['tasks']:,} tasks of the split "
        f"{code(summary['split'])}, {summary['simulations']:,} simulations."
    )


def _rules(config: Mapping[str, Any], summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield the rules of verdicts, pairs, balance and trajectories that this run had."""
    pairs, filtered = config["pairs"], config["filtered"]
    if judged := summary.get("rejudged"):
        yield (
            f"Verdicts: replayed in a fresh episode and judged again, {judged['judged']:,} of {judged['verdicts']:,}; "
            f"{judged['disagreed']:,} differed, and trees in which one did give no data."
        )
    if summary["pairs"].get("step"):
        yield (
            f"Step pairs: each action has at least {pairs['min_visits']} roll-outs or ends the episode, the values "
            f"differ by at least {pairs['min_gap']}, and P(Q_chosen > Q_rejected) is at least {pairs['confidence']}."
        )
    if summary["pairs"].get("trajectory"):
        yield f"Trajectory pairs: the success is at most {pairs['max_extra_steps']} actions longer than the failure."
    bounds = {"per_task": "of a task", "per_depth": "of one depth in a task"}
    most = [f"{pairs[name]} {what}" for name, what in bounds.items() if pairs.get(name) is not None]
    if most:
        yield f"Balance: at most {' and '.join(most)}. Each pair has the weight 1/√(pairs of its task)."
    yield (
        f"Length: {summary['pairs_dropped_by_length_matching']:,} pairs were dropped so that chosen and rejected sides "
        f"are equally long, within {pairs['length_tolerance']} of a side's mean length."
    )
    origins = f", of the origins {', '.join(filtered['origins'])}" if filtered.get("origins") else ""
    yield f"Fine-tuning: at most {filtered['per_task']} successes of a task, the shortest first{origins}."


def _left_out(summary: Mapping[str, Any]) -> list[str]:
    """Return what was quarantined and refused, with the commonest reasons."""
    counts = {"quarantined": summary["quarantined"], "refused": summary["refused"]}
    told = [f"- {name}: {', '.join(f'{what} {count:,}' for what, count in found.items() if count) or 'none'}"
            for name, found in counts.items()]  # fmt: skip
    reasons = {**summary["quarantine_reasons"], **summary["refusal_reasons"]}
    told += [f"- {count:,} times: {code(reason)}" for reason, count in reasons.items()]
    return [*told, "", "`quarantine.jsonl` has each with its reason."]


def _limits(config: Mapping[str, Any], summary: Mapping[str, Any], bare: int) -> Iterator[str]:
    """Yield the limits that every run has, and those that this one's figures show; `bare` rows have no token ids."""
    split = summary.get("split") or config.get("split")
    if split != "train":
        yield f"**The tasks are of the split {code(split)}: the training commands refuse these rows.**"
    yield LIMITS
    yield (
        "The share of successes is that of what was kept, and not the policy's success rate. Tasks that nothing solved "
        "have no pairs, so easy tasks are over-represented."
    )
    if bare:
        yield (
            f"{bare:,} trajectories have messages and no token ids: a trainer renders them with its own template, and "
            "nothing proves which tokens were sampled."
        )
    if summary.get("policy") in ("random", "noisy", "oracle"):
        yield f"The actions are those of the policy {code(summary['policy'])}, and not of a language model."
    if summary.get("level") in ("ids", "mixed", "tokens"):
        yield f"Tokens: level `{summary['level']}`. What was sampled is what the log says."
    if summary["kept_unmatched"]:
        yield (
            f"Length tells the sides apart: matching would have dropped {summary['kept_unmatched']:,} pairs, so all "
            "are kept. A loss that sums over tokens may learn the length."
        )
    if set(summary["pairs"]) - {"step"}:
        yield (
            "Pairs of whole rests do not say that their first action is the better one; `confidence` estimates that, "
            "and may be below 0.5 or null."
        )
    if not summary["pairs"] and not summary["filtered"]:
        yield "There is nothing to learn from in it."
