"""Together's fine-tuning files: token ids with labels for fine-tuning, and OpenAI's preferences as Together takes them.

Its documentation ("Data preparation", "Function calling") wants Parquet of `input_ids`, `attention_mask` and `labels`,
which the service shifts itself, and preferences of one assistant message a side with the tools inside `input`. The
client checked preferences up to together 2.14.0 (`lib/utils/files.py`, `validate_preference_openai`): a null content
and a prompt that ends with the assistant are refused. Since then the server checks them after the upload.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from offline_agent.errors import DataError
from offline_agent.formats import openai
from offline_agent.formats.row import NO_TOKENS, PAIRS, SUCCESSES, Export, ExportRow, Part
from offline_agent.store.columns import Column

IGNORED = -100


def labels(row: ExportRow) -> Iterator[Mapping[str, Any]]:
    """Yield ids and labels of each sequence of the trajectory; what the policy did not sample has the label -100."""
    for ids, mask in row.sequences:
        learnt = [token if on else IGNORED for token, on in zip(ids, mask, strict=True)]
        yield {"input_ids": list(ids), "attention_mask": [1] * len(ids), "labels": learnt}


def preference(row: ExportRow) -> Iterator[Mapping[str, Any]]:
    """Yield the pair."""
    (made,) = openai.preference(row)
    prompt, tools = made["input"]["messages"], made["input"].get("tools")
    if not prompt or prompt[-1]["role"] == "assistant":
        raise DataError("its prompt is empty or ends with a turn of the assistant, which Together refuses")
    for message in (*prompt, *made["preferred_output"], *made["non_preferred_output"]):
        if message.get("content") is None:
            message.pop("content", None)
    yield {**made, "input": {"messages": prompt, **({"tools": tools} if tools else {})}}


EXPORT = Export(
    about="Together: Parquet of token ids and labels, and JSON lines of preferences",
    parts=(
        Part("sft.parquet", SUCCESSES, labels, (
            Column("input_ids", "ids", True), Column("attention_mask", "mask", True), Column("labels", "ids", True),
        )),
        Part("preference.jsonl", PAIRS, preference),
    ),
    load="""\
```bash
together files upload sft.parquet          # fine-tuning: the base model must have the tokenizer of these ids
together files upload preference.jsonl     # training_method dpo
```""",
    trains="The ids whose `labels` are not -100: what the policy sampled. Every token of the two output messages of a "
    "preference, which the server renders with the chat template of the base model.",
    lost=f"{NO_TOKENS} (of preferences; `sft.parquet` has ids and masks); reasoning_content; keys of a tool's schema "
    "beyond name, description, parameters and strict; parallel_tool_calls, which Together does not name.",
    tokens=True,
)  # fmt: skip
