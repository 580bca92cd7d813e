"""The figures of an `import_logs` run: collected while it runs, kept in summary.json, shown as a table at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.config.import_logs import ImportLogsConfig
from offline_agent.logs.linking import Linked
from offline_agent.logs.replays import Replays
from offline_agent.preferences.records import Refusal
from offline_agent.report.closing import (
    closing,
    commonest,
    counted,
    figure_rows,
    mined_rows,
    percent,
    table,
    tables_written,
)
from offline_agent.report.mining import Figures
from offline_agent.runner.next_steps import command, single_turn_advice
from offline_agent.store.columns import PREFERENCES
from offline_agent.store.tables import count_rows

if TYPE_CHECKING:
    from rich.console import RenderableType

_READ = ("records", "episodes_read", "outcomes_apart", "unread_outcomes", "results_by_place", "left_out",
         "without_tools", "without_conversation", "labelled", "labels_cut")  # fmt: skip
_LINKED = ("parts", "episodes", "judged", "ruled", "replayed", "rules_contradict", "tasks", "trees")
_NAMED = 5  # outcomes of no episode that the closing words name


class ImportFigures:
    """Counts what an import found.

    Args:
        mined: The counts of trees and tables.

    Attributes:
        counts: Of `records`, damaged ones included; `episodes_read` in them; `outcomes_apart`: sessions whose outcome
            has a record of its own; `unread_outcomes`: episodes whose outcome is a text that is not read;
            `results_by_place`, which name no call; `left_out`: episodes of which a part could not be kept;
            `without_tools`: episodes that call tools of which the log has no schema; `without_conversation`: records
            of a known format that are no call of a model, such as spans of tools; `labelled`: turns that a model named,
            and episodes that are cut where it was not sure (`labels_cut`).
        unmatched: Records of outcomes whose session has no episode.
        labels: The hash of that model, `by`, and its accuracy (`labels.Labels.measured`), `held_out`; None = none.
        formats: Records by format, and why they were taken for it.
    """

    def __init__(self, mined: Figures) -> None:
        self.mined = mined
        self.counts: Counter[str] = Counter()
        self.unmatched: list[Refusal] = []
        self.labels: dict[str, Any] | None = None
        self.formats: Counter[tuple[str, str]] = Counter()
        self._linked = Linked()  # its counts are those of all tasks; trees and refusals stay empty
        self._with_ids = self._with_logps = 0
        self._replays: dict[str, Any] | None = None

    def linked(self, linked: Linked) -> None:
        """Take the trees of one task."""
        every = self._linked
        every.counts.update(linked.counts, tasks=1, trees=len(linked.trees))
        every.doubts.update(linked.doubts)
        every.drift.update(linked.drift)
        every.rendered.update(linked.rendered)

    def replayed(self, replays: Replays) -> None:
        """Take what replays found."""
        self._replays = {
            "confirmed": replays.confirmed, "disagreed": replays.disagreed, "calls": replays.calls,
            "not_replayed": dict(replays.unplayable.most_common(5)),
        }  # fmt: skip

    def rows(self, trajectories: Iterable[Mapping[str, Any]]) -> None:
        """Take the trajectories of one tree."""
        for row in trajectories:
            self._with_ids += row["input_ids"] is not None
            self._with_logps += row["logps"] is not None

    def _level(self) -> str:
        """Return what the rows prove: `tokens` (ids and log-probabilities), `ids`, `text`, or `mixed`."""
        count = self.mined.rows["trajectories"]
        if not self._with_ids:
            return "text"
        if self._with_ids < count:
            return "mixed"
        return "tokens" if self._with_logps == count else "ids"

    def summary(self, config: ImportLogsConfig) -> dict[str, Any]:
        """Return everything as JSON."""
        mined, linked = self.mined, self._linked
        first = [f"{one.name} ({', '.join(one.facts['fields'])})" for one in self.unmatched[:_NAMED]]
        formats: Counter[str] = Counter()
        for (name, _), count in self.formats.items():
            formats[name] += count
        return {
            "seed": config.seed,
            "resumed": mined.resumed,
            "level": self._level(),
            "tokens": {
                "episodes": linked.counts["exact"],
                "doubts": dict(linked.doubts.most_common(5)),
                "trajectories": self._with_ids,
                "with_logps": self._with_logps,
                "drift": dict(linked.drift),
                "rendered": dict(linked.rendered),
            },
            "formats": dict(sorted(formats.items())),
            **{name: self.counts[name] for name in _READ},
            "outcomes_of_no_episode": {"count": len(self.unmatched), "first": first},
            **{name: linked.counts[name] for name in _LINKED},
            "labels": self.labels,
            "replays": self._replays,
            "success": {"attempts": mined.mean("plain"), "tasks": mined.mean("best")},
            **mined.mined("logs", mined.refusals["log"]),
        }


def show(summary: Mapping[str, Any], path: Path) -> RenderableType:
    """Return the closing table."""
    return closing(
        table(f"import_logs: {', '.join(summary['formats'])}", _table_rows(summary)),
        f"\nWritten to {path}\n" + tables_written(summary, path, f"episodes; trees/ {summary['trees']} trees"),
        *(f"{text}\n" for text in findings(summary)),
        "\n".join(next_steps(summary, path)),
    )


_ROWS = (
    ("episodes", "episodes", "and {parts:,} that are a part of a longer one"),
    ("with an outcome", "judged", "{outcomes_apart:,} sessions have a record of their outcome"),
    ("with one by rules", "ruled", "docs/logs.md has the rules; quarantine.jsonl where two contradict each other"),
    ("with one by a replay", "replayed", "of those; quarantine.jsonl says why others were not replayed"),
    ("rules that contradict", "rules_contradict", "these episodes have no outcome; see quarantine.jsonl"),
    ("outcomes that could not be read", "unread_outcomes", "write true, false or a number; see quarantine.jsonl"),
    ("results without tool_call_id", "results_by_place", "each is taken for the first open call; see quarantine.jsonl"),
    ("episodes with parts left out", "left_out", "the model read or wrote more than they say; see quarantine.jsonl"),
    ("records without a conversation", "without_conversation", "spans and runs of tools, chains and agents"),
    ("calls named by a model", "labelled", "nobody logged them; the verdict of each row has the model's hash"),
    ("calls held out", "labels.held_out.calls", "{labels[held_out][right]:.1%} are named right; "
     "{labels[held_out][right_of_sure]:.1%} of the {labels[held_out][sure]:,} that label.least takes"),
    ("episodes cut", "labels_cut", "before the first call below label.least; see quarantine.jsonl"),
    ("episodes without schemas", "without_tools", "they call tools: they are learnt without a schema of them"),
    ("confirmed by replays", "replays.confirmed", "ends of trees; {replays[disagreed]:,} differ and are in quarantine"),
    ("tasks", "tasks", "in {trees:,} trees; {tasks_with_pairs:,} with pairs"),
)


def _table_rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    yield "records", f"{summary['records']:,}", counted(summary["formats"])
    yield from figure_rows(summary, _ROWS)
    success = {name: percent(share) for name, share in summary["success"].items()}
    yield "success", success["attempts"], f"of the episodes with an outcome; {success['tasks']} of the tasks have one"
    yield from mined_rows(summary)
    yield "tokens", summary["level"], _LEVELS[summary["level"]]
    for reason, count in summary["tokens"]["doubts"].items():
        yield "ids that prove nothing", f"{count:,}", reason


_LEVELS = {
    "text": "messages alone: a trainer renders them with its own template, and nothing proves what was sampled",
    "ids": "every trajectory has the ids that were sampled, and a certificate of them",
    "tokens": "every trajectory has the ids that were sampled, their log-probabilities, and a certificate of both",
    "mixed": "some trajectories have ids and certificates, the others messages alone",
}


def findings(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each reason why there is little to learn from, with the remedy."""
    lost = summary["quarantined"]["logs"]
    if 2 * lost > summary["records"]:
        yield f"{lost:,} of {summary['records']:,} records are not used{commonest(summary['refusal_reasons'])}"
    if count := summary["outcomes_of_no_episode"]["count"]:
        first = summary["outcomes_of_no_episode"]["first"]
        yield (
            f"{count:,} outcomes belong to no episode, and are in quarantine: {'; '.join(first)}"
            f"{'; ...' if count > len(first) else ''}. If these records are the episodes, their shape is none of "
            "docs/logs.md; else look whether log.session names the same id in both"
        )
    if not summary["judged"]:
        yield (
            "No episode has an outcome, so nothing says which attempts are right. Name the field that has it "
            "(log.outcome=FIELD), a judge (judge=NAME, docs/verifiers.md), or for coding sessions rules "
            "(log.rules=[tests], docs/logs.md)"
        )
    elif not summary["pairs_total"] and summary["episodes"] == summary["tasks"]:
        yield (
            "Every episode is the only one of its task, so there is nothing to compare. If several are attempts at one "
            "task, name the field that says so: log.task=FIELD"
        )
    elif not summary["pairs_total"]:
        yield (
            "No pair: no task has a success and a failure that differ after common messages"
            f"{commonest(summary['refusal_reasons'])}. quarantine.jsonl has every reason"
        )


def next_steps(summary: Mapping[str, Any], path: Path) -> Iterator[str]:
    """Yield the lines on how to go on."""
    data = f"data.runs=[{path}]"
    if summary["pairs_total"] or summary["filtered"]:
        yield "Next:"
    if summary["pairs_total"]:
        yield f"  {command('inspect', [str(path), 'pair=0'])}"
    if summary["filtered"]:
        yield f"  {command('train_sft', [data, 'model.path=MODEL', 'run_dir=runs/sft'])}"
    if summary["pairs_total"]:
        kinds = f"data.kinds=[{','.join(summary['pairs'])}]"
        model = "runs/sft/model" if summary["filtered"] else "MODEL"
        yield f"  {command('train_dpo', [data, kinds, f'model.path={model}'])}"
        if not count_rows(path, PREFERENCES):
            yield f"  export: {single_turn_advice('TRL (and llama_factory, axolotl, openai)')}"
