"""Training rows: preference pairs and trajectories as token ids and masks, every certificate checked again.

Knows files and certificates, not tensors.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from offline_agent.errors import ConfigError, DataError
from offline_agent.rendering.renderer import Renderer
from offline_agent.training.data.load_report import LoadReport
from offline_agent.training.data.reading import PAIR, SIDES, TRAJECTORY, Ids, SourceRow, TokenReader, read_rows
from offline_agent.training.data.selection import Selection, is_negative, select

__all__ = ["LoadReport", "PairRow", "Selection", "TrajectoryRow", "length", "load_pairs", "load_trajectories"]


@dataclass(frozen=True, slots=True)
class PairRow:
    """One preference pair.

    Attributes:
        name: For messages: `<file>:<row> task/kind/node`.
        kind: `step`, `trajectory`, `hindsight`, `minimal`; `foreign` where the file does not say.
        task_id: The task; the row's name where the file does not say.
        tree_id, node_id: Its tree and node; None where it is from no tree.
        prompt_ids: int [P].
        chosen_ids, rejected_ids: int [C], int [R]; each continues the prompt.
        chosen_mask, rejected_mask: int [C], int [R]; 1 = sampled by the policy.
        chosen_starts, rejected_starts: Where a sequence begins anew in a side, with a prompt of its own.
        ref_chosen, ref_rejected: float [C], float [R], stored log-probabilities of the reference at temperature 1, 0.0
            where the mask is 0; None = must be computed.
        weight: The row's; 1 where the file does not say.
        confidence: P(Q_w > Q_l) of the first differing action; None where the file does not say.
        rest_confidence: Probability that the whole rest of the chosen side is better; None where nothing is claimed.
        gap: Q_chosen − Q_rejected; 1 where the file does not say.
    """

    name: str
    kind: str
    task_id: str
    tree_id: str | None
    node_id: int | None
    prompt_ids: Ids
    chosen_ids: Ids
    rejected_ids: Ids
    chosen_mask: Ids
    rejected_mask: Ids
    ref_chosen: tuple[float, ...] | None
    ref_rejected: tuple[float, ...] | None
    weight: float = 1.0
    confidence: float | None = None
    gap: float = 1.0
    rest_confidence: float | None = None
    chosen_starts: Ids = ()
    rejected_starts: Ids = ()


@dataclass(frozen=True, slots=True)
class TrajectoryRow:
    """One trajectory.

    Attributes:
        name: For messages: `<file>:<row> task/origin`.
        task_id: The task; the row's name where the file does not say.
        origin: `search`, `rollout`, `demonstration`, `hindsight`, `pruned`,
            or `foreign` where the file does not say.
        input_ids: int [L].
        action_mask: int [L]; 1 = sampled by the policy (or written by the demonstrator).
        weight: Of its loss.
        starts: Where a sequence begins anew, with a prompt of its own.
    """

    name: str
    task_id: str
    origin: str
    input_ids: Ids
    action_mask: Ids
    weight: float = 1.0
    starts: Ids = ()


RECOVERY = "recovery"


def length(row: PairRow | TrajectoryRow) -> int:
    """Return the tokens of a row's longest sequence."""
    if isinstance(row, TrajectoryRow):
        return longest(row.input_ids, row.starts)
    sides = (row.chosen_ids, row.chosen_starts), (row.rejected_ids, row.rejected_starts)
    return max(longest(ids, starts, len(row.prompt_ids)) for ids, starts in sides)


def longest(ids: Ids, starts: Ids, prompt: int = 0) -> int:
    """Return the tokens of the longest sequence of a side whose first one goes on with a prompt of that length."""
    edges = (-prompt, *starts, len(ids))
    return max(end - start for start, end in pairwise(edges))


def load_pairs(
    runs: Sequence[str],
    files: Sequence[str],
    renderer: Renderer,
    *,
    model_hash: str | None,
    kinds: Sequence[str],
    max_length: int,
    reference: str = "auto",
) -> tuple[list[PairRow], LoadReport]:
    """Return the pairs of runs and files, in order, and what was left out.

    Args:
        runs: Finished run directories; their `preferences/` and `multiturn_preferences/` are read.
        files: Parquet or JSON-lines files of preference rows, or of `prompt`, `chosen` and `rejected` messages.
        renderer: Of the tokenizer that is trained with.
        model_hash: Of the reference (`policies.hf.loading.model_hash`); None = unknown.
        kinds: The kinds that are used; foreign rows without a kind always are.
        max_length: Longer rows are left out.
        reference: `auto` = stored log-probabilities where the row's certificate names `model_hash`; `computed` = none.

    Raises:
        ConfigError: A path is wrong, a run is unfinished, or no pair is left; where all are of other kinds than those
            asked for, the message says of which.
        DataError: A file is broken; a row fails its certificate, is of another tokenizer or template, or is not of the
            train split. The message names file, row and reason.
    """
    report = LoadReport()
    kept: dict[tuple[Ids, Ids, Ids], PairRow] = {}
    contradicted: set[tuple[Ids, Ids, Ids]] = set()
    computed: dict[str, str] = {}
    others: Counter[str] = Counter()
    reader = TokenReader(renderer, report, PAIR)
    for found in read_rows(runs, files, PAIR, report, "data"):
        kind = found.row.get("kind") or "foreign"
        if not isinstance(kind, str):
            raise DataError(f"{found.name}: its kind is {kind!r:.60}, allowed: a text, or null")
        if kind != "foreign" and kind not in kinds:
            others[kind] += 1
            report.leave("other_kinds", found.name, f"its kind, {kind}, was not asked for")
            continue
        pair = _pair(found, reader.tokens(found), kind, max_length, report)
        if pair is None:
            continue
        this = pair.prompt_ids, pair.chosen_ids, pair.rejected_ids
        if this in kept or pair.chosen_ids == pair.rejected_ids:
            report.leave("duplicates", pair.name, "the same pair was kept before, or both its sides are the same")
            continue
        if (other := (pair.prompt_ids, pair.rejected_ids, pair.chosen_ids)) in kept:
            contradicted |= {this, other}
        why = "asked for" if reference == "computed" else _unfit(found, pair, model_hash)
        if why:
            computed[pair.name] = why
            pair = replace(pair, ref_chosen=None, ref_rejected=None)
        kept[this] = pair
    for this in [this for this in kept if this in contradicted]:
        report.leave("contradictory", kept.pop(this).name, "its two sides are in the data the other way round, too")
    pairs = list(kept.values())
    if others and others.total() == report.read:
        there = ", ".join(f"{count} of kind {kind}" for kind, count in sorted(others.items()))
        raise ConfigError(
            f"data.kinds: got {', '.join(kinds)}, but {', '.join(report.files)} has {there}. Name the kinds to train "
            f"on, e.g. data.kinds=[{','.join(sorted(others))}], or build pairs of the kinds asked for"
        )
    whys = Counter(computed[pair.name] for pair in pairs if pair.name in computed)
    report.reference_computed = whys.total()
    report.reference_stored = len(pairs) - whys.total()
    report.reference_reason = "; ".join(f"{why}: {count}" for why, count in whys.items())
    report.finish(((pair.task_id, pair.kind, length(pair)) for pair in pairs), "pair")
    return pairs, report


def _pair(
    found: SourceRow, tokens: tuple[Ids, ...] | None, kind: str, max_length: int, report: LoadReport
) -> PairRow | None:
    """Return the row, or None where it is left out."""
    row, name = found.row, found.name
    if tokens is None:
        return None
    prompt, chosen, rejected, chosen_mask, rejected_mask, *starts = tokens
    if not prompt or not any(chosen_mask) or not any(rejected_mask):
        report.leave("no_agent_tokens", name, "a side has no token that the policy sampled, or the prompt is empty")
        return None
    size = max(longest(ids, new, len(prompt)) for ids, new in zip((chosen, rejected), starts, strict=True))
    if size > max_length:
        report.leave("too_long", name, f"{size} tokens, at most {max_length} are allowed")
        return None
    gap = 1.0
    if row.get("q_chosen") is not None and row.get("q_rejected") is not None:
        gap = float(row["q_chosen"]) - float(row["q_rejected"])
    ref_chosen, ref_rejected = (_floats(row.get(f"ref_{side}_logps")) for side in SIDES)
    weight = 1.0 if row.get("weight") is None else float(row["weight"])
    sure = {name: None if row.get(name) is None else float(row[name]) for name in ("confidence", "rest_confidence")}
    return PairRow(
        name, kind, str(row.get("task_id") or name), row.get("tree_id"), row.get("node_id"), prompt, chosen, rejected,
        chosen_mask, rejected_mask, ref_chosen, ref_rejected, weight, gap=gap, chosen_starts=starts[0],
        rejected_starts=starts[1], **sure,
    )  # fmt: skip


def _floats(values: Sequence[float] | None) -> tuple[float, ...] | None:
    return None if values is None else tuple(math.nan if value is None else float(value) for value in values)


def _unfit(found: SourceRow, pair: PairRow, model_hash: str | None) -> str:
    """Return why the row's stored log-probabilities are not the reference's; "" where they are."""
    if pair.ref_chosen is None or pair.ref_rejected is None:
        return "the row stores none"
    if not all(map(math.isfinite, (*pair.ref_chosen, *pair.ref_rejected))):
        return "the stored ones are not finite"
    theirs = found.certificate.get("model_hash")
    if theirs is None:
        return "nobody knows whose the stored ones are"
    if theirs != model_hash:
        return f"the stored ones are of model {theirs}, the reference is {model_hash or 'unknown'}"
    return ""


def load_trajectories(
    runs: Sequence[str],
    files: Sequence[str],
    renderer: Renderer,
    *,
    max_length: int,
    rules: Selection = Selection(),  # noqa: B008  # frozen
    key: str = "data",
) -> tuple[list[TrajectoryRow], LoadReport]:
    """Return the trajectories of runs and files, in order, and what was left out.

    Args:
        runs: Finished run directories; their `filtered/` is read.
        files: Parquet or JSON-lines files with `messages`, or with `input_ids` and `action_mask`.
        renderer: Of the tokenizer that is trained with.
        max_length: Longer rows are left out.
        rules: Which are learnt from.
        key: The configuration section the paths are from, for messages.

    Raises:
        ConfigError, DataError: As `load_pairs`; or a row's outcome is unknown, or no outcome.
    """
    report = LoadReport()
    kept: dict[tuple[Ids, Ids], TrajectoryRow] = {}
    of_task: Counter[str] = Counter()
    reader = TokenReader(renderer, report, TRAJECTORY, rules.from_messages)
    for found in select(runs, files, report, rules, key):
        row, name = found.row, found.name
        if row.get("origin") == RECOVERY and (rules.from_messages or row.get("input_ids") is None):
            why = "its first turns failed and are not to be learnt, which its ids say and its messages do not"
            report.leave("unusable", name, why)
            continue
        tokens = reader.tokens(found)
        if tokens is None:
            continue
        ids, mask, starts = tokens
        size = longest(ids, starts)
        task = str(row.get("task_id") or name)
        if not any(mask[1:]):
            report.leave("no_agent_tokens", name, "it has no token that the policy sampled")
        elif size > max_length:
            report.leave("too_long", name, f"{size} tokens, at most {max_length} are allowed")
        elif (ids, mask) in kept:
            report.leave("duplicates", name, f"the same tokens as {kept[ids, mask].name}")
        elif not is_negative(row) and rules.per_task is not None and of_task[task] >= rules.per_task:
            report.leave("capped", name, f"more than {rules.per_task} of its task")
        else:
            of_task[task] += not is_negative(row)
            kept[ids, mask] = TrajectoryRow(name, task, row.get("origin") or "foreign", ids, mask, starts=starts)
    rows = list(kept.values())
    report.finish(((row.task_id, row.origin, length(row)) for row in rows), "trajectory")
    return rows, report

