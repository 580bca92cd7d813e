"""verl: token ids and masks for its fine-tuning, with the dataset class that reads them; prompts for its RL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from offline_agent.export.format import SUCCESSES, ExportRow, Format, Part
from offline_agent.store.columns import Column
from offline_agent.training import integrations

_CLASS = Path(integrations.__file__).with_name("verl_dataset.py")


def tokens(row: ExportRow) -> Iterator[Mapping[str, Any]]:
    """Yield the trajectory's ids and mask."""
    assert row.tokens is not None
    ids, mask = row.tokens
    yield {"input_ids": list(ids), "loss_mask": list(mask), "messages": row.messages("messages"),
           "tools": row.row["tools"], "task_id": row.row["task_id"]}  # fmt: skip


FORMAT = Format(
    about="verl 0.9: Parquet of token ids and loss masks, with its dataset class",
    parts=(
        Part("sft.parquet", SUCCESSES, tokens, (
            Column("input_ids", "ids", True), Column("loss_mask", "mask", True), Column("messages", "messages", True),
            Column("tools", "text", True), Column("task_id", "text", True),
        )),
    ),
    load="""\
```bash
python -m verl.trainer.sft_trainer data.train_files=sft.parquet \\
    data.custom_cls.path=verl_dataset.py data.custom_cls.name=TokensDataset data.max_length=LONGEST …
```""",
    trains="The ids whose `loss_mask` is 1: what the policy sampled. verl's own MultiTurnSFTDataset renders each "
    "message by itself and reads messages through Arrow structs, which give every call the arguments of all others as "
    "nulls; it refuses these files.",
    lost="Pairs; log-probabilities and certificates. The class refuses rows longer than data.max_length; none is cut.",
    tokens=True,
    extra={"verl_dataset.py": _CLASS.read_text(encoding="utf-8")},
)  # fmt: skip
