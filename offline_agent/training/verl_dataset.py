"""Dataset of token ids and loss masks for verl's fine-tuning (`data.custom_cls`).

`export format=verl` copies this file. It needs torch and pyarrow alone, not `offline_agent`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset


class TokensDataset(Dataset):  # type: ignore[type-arg]
    """Rows of `input_ids` and `loss_mask`, each int [n], as they were sampled.

    Args:
        parquet_files: Files of `export format=verl`.
        tokenizer: Its padding id is used; nothing is tokenised.
        config: verl's `data` section: `max_length` (1024), `pad_mode` (`right` or `no_padding`).
        processor: Ignored.
        max_samples: Only the first so many rows; -1 = all.

    Raises:
        ValueError: A row is longer than `max_length`: none is cut.
    """

    def __init__(
        self,
        parquet_files: str | Sequence[str],
        tokenizer: Any,
        config: Mapping[str, Any] | None = None,
        processor: Any = None,
        max_samples: int = -1,
    ) -> None:
        import pyarrow.parquet as pq

        options = config or {}
        self.max_length = int(options.get("max_length", 1024))
        self.padded = str(options.get("pad_mode", "right")) == "right"
        self.pad = tokenizer.pad_token_id or 0
        files = [parquet_files] if isinstance(parquet_files, str) else list(parquet_files)
        self.rows: list[tuple[list[int], list[int]]] = []
        for file in files:
            table = pq.read_table(file, columns=["input_ids", "loss_mask"])
            self.rows += zip(table["input_ids"].to_pylist(), table["loss_mask"].to_pylist(), strict=True)
        if max_samples > 0:
            del self.rows[max_samples:]
        longest = max((len(ids) for ids, _ in self.rows), default=0)
        if longest > self.max_length:
            raise ValueError(f"data.max_length: got {self.max_length}, but a row has {longest} tokens; none is cut")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, item: int) -> dict[str, torch.Tensor]:
        """Return `input_ids`, `position_ids` and `loss_mask`, padded with `attention_mask` where verl wants that."""
        ids, mask = (torch.tensor(values) for values in self.rows[item])
        row = {"input_ids": ids, "position_ids": torch.arange(len(ids)), "loss_mask": mask}
        if not self.padded:
            return row
        row["attention_mask"] = torch.ones_like(ids)
        missing = self.max_length - len(ids)
        fill = {"input_ids": self.pad}
        return {
            name: torch.nn.functional.pad(values, (0, missing), value=fill.get(name, 0)) for name, values in row.items()
        }
