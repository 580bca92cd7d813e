"""Counts of the rows that were read, kept and left out of the data of a training run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from offline_agent.errors import ConfigError

REASONS = (
    "too_long", "duplicates", "contradictory", "no_agent_tokens", "capped", "negatives", "unverified", "unusable",
    "other_kinds",
)  # fmt: skip
"""Why rows are left out: more than `max_length` tokens (none is ever cut); the same one was kept before; the same two
sides are in the data the other way round; a side has nothing that the policy sampled; more than `per_task` of their
task; they teach to refuse, which was not asked for; they failed, or their outcome is unknown; messages that cannot be
encoded; pairs of a kind that was not asked for."""


@dataclass
class LoadReport:
    """Counts of rows read, kept and left out.

    Attributes:
        files: Paths of the files read.
        hashes: Content hash of each.
        read, kept: Rows.
        left: Rows left out, by one of `REASONS`; `left_out` has the name of each and why, `examples` the first of each.
        unknown: Trajectories of unknown outcome that are learnt from, as was asked for.
        labelled: Rows read with turns that a model named (`logs.labels`).
        foreign: Rows read whose ids were made here from messages.
        differing: Of these, those that as one text, as servers of chat completions tokenise, have other ids.
        one_text: Of these, those that no search has, so that they are tokenised as one text.
        with_ids: Rows read that have ids; of these `with_logps` have the log-probabilities of all their tokens.
        uncertified: Rows kept with ids of their own and no certificate: nothing proves that they are this tokenizer's.
        tasks: Distinct tasks of the kept rows.
        kinds: Kept rows by kind (pairs) or origin (trajectories).
        longest: Tokens of the longest kept row.
        reference_stored, reference_computed: Pairs with stored log-probabilities of the reference, and without.
        reference_reason: Why they are computed, for how many; "" where none is.
    """

    files: list[str] = field(default_factory=list)
    hashes: dict[str, str] = field(default_factory=dict)
    read: int = 0
    kept: int = 0
    left: Counter[str] = field(default_factory=Counter)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    examples: dict[str, str] = field(default_factory=dict)
    unknown: int = 0
    labelled: int = 0
    foreign: int = 0
    differing: int = 0
    one_text: int = 0
    with_ids: int = 0
    with_logps: int = 0
    uncertified: int = 0
    tasks: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    longest: int = 0
    reference_stored: int = 0
    reference_computed: int = 0
    reference_reason: str = ""

    def leave(self, reason: str, name: str, why: str) -> None:
        """Count a row that is left out, and keep why."""
        self.left[reason] += 1
        self.left_out.append((name, why))
        self.examples.setdefault(reason, f"{name}: {why}")

    def dropped(self) -> dict[str, int]:
        """Return the counts of rows left out that are not 0."""
        return {reason: self.left[reason] for reason in REASONS if self.left[reason]}

    @property
    def levels(self) -> dict[str, int]:
        """Rows read by what their tokens prove (docs/logs.md): `tokens`, `ids`, `text`; those that there are."""
        counts = {"tokens": self.with_logps, "ids": self.with_ids - self.with_logps, "text": self.foreign}
        return {level: count for level, count in counts.items() if count}

    def notes(self) -> list[str]:
        """Return notes for the user, shown before training begins: one sentence each."""
        left, example = self.left, self.examples.get
        told = (
            (self.tasks == 1 and self.kept > 1,
             f"all {self.kept} rows are of one task: what is learnt is that task, not the environment"),
            (left["too_long"],
             f"{left['too_long']} of {self.read} rows are longer than batch.max_length allows and are left out, e.g. "
             f"{example('too_long')}"),
            (left["other_kinds"],
             f"{left['other_kinds']} of {self.read} pairs are of kinds that data.kinds does not name"),
            (left["contradictory"],
             f"{left['contradictory']} pairs contradict one another (the same two sides both ways) and are out"),
            (left["unusable"], f"{left['unusable']} rows of messages cannot be used, e.g. {example('unusable')}"),
            (self.unknown,
             f"{self.unknown} rows of unknown outcome are learnt from as if they were successes (data.unknown=take)"),
            (self.labelled,
             f"{self.labelled} rows have turns that a model named, which saw what followed (label.model of "
             "import_logs): nobody logged them, and no policy sampled them"),
            (self.foreign,
             f"{self.foreign} rows have messages and no token ids (level: text): they are rendered with this "
             "model's chat template, and nothing proves that the policy sampled just these tokens"),
            (self.differing,
             f"{self.differing} of these have the ids that search and evaluation have of them, and other ids where "
             "a server of chat completions tokenises the whole text at once"),
            (self.one_text,
             f"{self.one_text} of these are conversations that no search has (several calls in a turn, several "
             "messages in a row): the whole text is tokenised at once, as a server of chat completions does it"),
            (self.uncertified,
             f"{self.uncertified} rows have ids and no certificate: their tokenizer is taken on trust"),
        )  # fmt: skip
        return [text for count, text in told if count]

    def finish(self, rows: Iterable[tuple[str, str, int]], what: str) -> None:
        """Fill in what the kept rows say.

        Args:
            rows: Task, kind (or origin) and length in tokens of each.
            what: Name of a row, for the text.

        Raises:
            ConfigError: None was kept.
        """
        tasks: set[str] = set()
        for task, kind, size in rows:
            self.kept += 1
            tasks.add(task)
            self.kinds[kind] = self.kinds.get(kind, 0) + 1
            self.longest = max(self.longest, size)
        self.tasks = len(tasks)
        if not self.kept:
            reasons = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in self.dropped().items())
            told = [self.examples[name] for name in ("unusable", "too_long") if name in self.examples]
            example = f"; e.g. {told[0]}" if told else ""
            raise ConfigError(
                f"data: no {what} left of {self.read} read from {', '.join(self.files)} "
                f"({reasons or 'they are empty'}{example})"
            )
