"""TRL's conversational formats: preferences, fine-tuning, and single answers with a label (KTO)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from offline_agent.export.format import PAIRS, SUCCESSES, ExportRow, Format, Part
from offline_agent.store.columns import Column

_PROMPT = Column("prompt", "messages", True)
_TOOLS = (Column("tools", "text", True), Column("task_id", "text", True))


def preference(row: ExportRow) -> Iterator[Mapping[str, Any]]:
    """Yield the pair."""
    chosen, rejected = row.single_turns()
    yield {"prompt": row.messages("prompt"), "chosen": [chosen], "rejected": [rejected], **_common(row)}


def labelled(row: ExportRow) -> Iterator[Mapping[str, Any]]:
    """Yield both sides of the pair as answers of their own."""
    for side, label in zip(row.single_turns(), (True, False), strict=True):
        yield {"prompt": row.messages("prompt"), "completion": [side], "label": label, **_common(row)}


def conversation(row: ExportRow) -> Iterator[Mapping[str, Any]]:
    """Yield the trajectory."""
    yield {"messages": row.messages("messages"), **_common(row)}


def _common(row: ExportRow) -> dict[str, Any]:
    return {"tools": row.row["tools"], "task_id": row.row["task_id"]}


FORMAT = Format(
    about="TRL 1.16: Parquet with messages that `datasets` reads as dicts",
    parts=(
        Part("preference.parquet", PAIRS, preference, (
            _PROMPT, Column("chosen", "messages", True), Column("rejected", "messages", True), *_TOOLS,
        )),
        Part("kto.parquet", PAIRS, labelled, (
            _PROMPT, Column("completion", "messages", True), Column("label", "flag", True), *_TOOLS,
        )),
        Part("sft.parquet", SUCCESSES, conversation, (Column("messages", "messages", True), *_TOOLS)),
    ),
    load="""\
```python
from datasets import load_dataset
pairs = load_dataset("parquet", data_files="preference.parquet", split="train")  # DPOTrainer, RewardTrainer
answers = load_dataset("parquet", data_files="kto.parquet", split="train")       # KTOTrainer
successes = load_dataset("parquet", data_files="sft.parquet", split="train")     # SFTTrainer, assistant_only_loss=True
```""",
    trains="Every token of `chosen`, `rejected` and `completion`, which hold one turn of the policy each; with "
    "`assistant_only_loss=True` and a chat template with generation markers, the assistant's turns of `messages`. "
    "Without that option SFTTrainer trains on tool results, too. `max_length` is 1024 in TRL unless it is set.",
    lost="Token ids, masks, log-probabilities and certificates; weights and confidence of pairs; pairs with a side of "
    "several turns.",
)  # fmt: skip
