"""Files of trainers of which no logs are read: TRL, Axolotl, verl and Together.

TRL takes messages: preferences, fine-tuning, and single answers with a label (KTO). Axolotl takes text that the chat
template has written, cut where the mask changes: its own chat strategies copy role and content alone, so calls of tools
would be lost. verl takes token ids and masks, with the dataset class that reads them. Together takes token ids with
labels, and preferences of OpenAI's form with the tools inside `input` (docs.together.ai, Function calling).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from offline_agent.errors import DataError
from offline_agent.formats import openai
from offline_agent.formats.row import NO_TOKENS, PAIRS, SUCCESSES, Export, ExportRow, Part
from offline_agent.store.columns import Column

_PROMPT, _MESSAGES = Column("prompt", "messages", True), Column("messages", "messages", True)
_IGNORED = -100  # the label of what is not learnt
_COMMON = (Column("tools", "text", True), Column("task_id", "text", True))


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


TRL = Export(
    about="TRL 1.16: Parquet with messages that `datasets` reads as dicts",
    parts=(
        Part("preference.parquet", PAIRS, preference, (
            _PROMPT, Column("chosen", "messages", True), Column("rejected", "messages", True), *_COMMON,
        )),
        Part("kto.parquet", PAIRS, labelled, (
            _PROMPT, Column("completion", "messages", True), Column("label", "flag", True), *_COMMON,
        )),
        Part("sft.parquet", SUCCESSES, conversation, (_MESSAGES, *_COMMON)),
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
    lost=f"{NO_TOKENS}.",
)  # fmt: skip


def segments(row: ExportRow) -> Iterator[Mapping[str, Any]]:
    """Yield each sequence of the trajectory as texts, each with whether it is learnt."""
    for ids, mask in row.sequences:
        pieces = zip(ids, mask, strict=True)
        parts = [(bool(label), [token for token, _ in group]) for label, group in groupby(pieces, lambda one: one[1])]
        yield {"segments": [{"label": label, "text": _text(row, part)} for label, part in parts]}


def texts(row: ExportRow) -> Iterator[Mapping[str, Any]]:
    """Yield the pair as texts."""
    row.single_turns()
    prompt, chosen, rejected, chosen_mask, rejected_mask, *_ = row.tokens  # one turn a side is one sequence
    if not all(chosen_mask + rejected_mask):
        raise DataError("a side has tokens that the policy did not sample, and this trainer learns every token of it")
    yield {"prompt": _text(row, prompt), "chosen": _text(row, chosen), "rejected": _text(row, rejected)}


def _text(row: ExportRow, ids: Sequence[int]) -> str:
    """Return the text of ids.

    Raises:
        DataError: The tokenizer makes other ids of it.
    """
    assert row.renderer is not None
    tokenizer = row.renderer.tokenizer
    text = tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    if list(tokenizer(text, add_special_tokens=False)["input_ids"]) != list(ids):
        raise DataError("its text is tokenised to other ids than those of the run, so another text would be learnt")
    return str(text)


AXOLOTL = Export(
    about="Axolotl 0.19: rendered text; `input_output` segments, and a user-defined DPO set",
    parts=(Part("sft.jsonl", SUCCESSES, segments), Part("preference.jsonl", PAIRS, texts)),
    load="""\
```yaml
datasets:
  - {path: sft.jsonl, ds_type: json, type: input_output}
# or
rl: dpo
datasets:
  - path: preference.jsonl
    ds_type: json
    type: {field_prompt: prompt, field_chosen: chosen, field_rejected: rejected}
```""",
    trains="The segments with `label: true`, which are what the mask says; the whole text of `chosen` and `rejected`. "
    "A row is here only where its text is tokenised to the same ids; one whose prompts were rendered anew is one line "
    "for each of its sequences.",
    lost="Log-probabilities and certificates; weights and confidence of pairs; pairs with a side of several turns. The "
    "text belongs to one tokenizer and one chat template.",
    tokens=True,
)


def tokens(row: ExportRow) -> Iterator[Mapping[str, Any]]:
    """Yield ids and mask of each sequence of the trajectory."""
    for ids, mask in row.sequences:
        yield {"input_ids": list(ids), "loss_mask": list(mask), "messages": row.messages("messages"), **_common(row)}


VERL = Export(
    about="verl 0.9: Parquet of token ids and loss masks, with its dataset class",
    parts=(
        Part("sft.parquet", SUCCESSES, tokens, (
            Column("input_ids", "ids", True), Column("loss_mask", "mask", True), _MESSAGES, *_COMMON,
        )),
    ),
    load="""\
```bash
python -m verl.trainer.sft_trainer data.train_files=sft.parquet \\
    data.custom_cls.path=verl_dataset.py data.custom_cls.name=TokensDataset data.max_length=LONGEST …
```""",
    trains="The ids whose `loss_mask` is 1: what the policy sampled. verl's own MultiTurnSFTDataset renders each "
    "message by itself and reads messages through Arrow structs, which give every call the arguments of all others as "
    "nulls; it refuses these files. A row whose prompts were rendered anew is one row for each of its sequences.",
    lost="Pairs; log-probabilities and certificates. The class refuses rows longer than data.max_length; none is cut.",
    tokens=True,
    extra={"verl_dataset.py": Path("training/verl_dataset.py")},
)  # fmt: skip


def labels(row: ExportRow) -> Iterator[Mapping[str, Any]]:
    """Yield ids and labels of each sequence of the trajectory; what the policy did not sample has the label -100.

    The service shifts the labels itself (docs.together.ai, Data preparation, Tokenized data).
    """
    for ids, mask in row.sequences:
        learnt = [token if on else _IGNORED for token, on in zip(ids, mask, strict=True)]
        yield {"input_ids": list(ids), "attention_mask": [1] * len(ids), "labels": learnt}


def service_preference(row: ExportRow) -> Iterator[Mapping[str, Any]]:
    """Yield the pair, which `validate_preference_openai` of together 2.14.0 (`lib/utils/files.py`) takes.

    It refuses a null content, and a prompt that ends with the assistant. Later clients leave the check to the server.
    """
    (made,) = openai.preference(row)
    prompt, tools = made["input"]["messages"], made["input"].get("tools")
    if not prompt or prompt[-1]["role"] == "assistant":
        raise DataError("its prompt is empty or ends with a turn of the assistant, which Together refuses")
    for message in (*prompt, *made["preferred_output"], *made["non_preferred_output"]):
        if message.get("content") is None:
            message.pop("content", None)
    yield {**made, "input": {"messages": prompt, **({"tools": tools} if tools else {})}}


TOGETHER = Export(
    about="Together: Parquet of token ids and labels, and JSON lines of preferences",
    parts=(
        Part("sft.parquet", SUCCESSES, labels, (
            Column("input_ids", "ids", True), Column("attention_mask", "mask", True), Column("labels", "ids", True),
        )),
        Part("preference.jsonl", PAIRS, service_preference),
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
