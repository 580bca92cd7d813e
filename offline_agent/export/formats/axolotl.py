"""Axolotl: text that the chat template has written, cut where the mask changes.

Its own chat strategies copy role and content alone, so calls of tools would be lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from offline_agent.export.format import PAIRS, SUCCESSES, ExportRow, Format, Part, Unfit


def segments(row: ExportRow) -> Iterator[Mapping[str, Any]]:
    """Yield the trajectory as texts, each with whether it is learnt."""
    assert row.tokens is not None
    ids, mask = row.tokens
    pieces = zip(ids, mask, strict=True)
    parts = [(bool(label), [token for token, _ in group]) for label, group in groupby(pieces, lambda one: one[1])]
    yield {"segments": [{"label": label, "text": _text(row, part)} for label, part in parts]}


def preference(row: ExportRow) -> Iterator[Mapping[str, Any]]:
    """Yield the pair as texts."""
    row.single_turns()
    assert row.tokens is not None
    prompt, chosen, rejected, *masks = row.tokens
    if not all(all(mask) for mask in masks):
        raise Unfit("a side has tokens that the policy did not sample, and this trainer learns every token of it")
    yield {"prompt": _text(row, prompt), "chosen": _text(row, chosen), "rejected": _text(row, rejected)}


def _text(row: ExportRow, ids: Sequence[int]) -> str:
    """Return the text of ids.

    Raises:
        Unfit: The tokenizer makes other ids of it.
    """
    assert row.renderer is not None
    tokenizer = row.renderer.tokenizer
    text = tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    if list(tokenizer(text, add_special_tokens=False)["input_ids"]) != list(ids):
        raise Unfit("its text is tokenised to other ids than those of the run, so another text would be learnt")
    return str(text)


FORMAT = Format(
    about="Axolotl 0.19: rendered text; `input_output` segments, and a user-defined DPO set",
    parts=(Part("sft.jsonl", SUCCESSES, segments), Part("preference.jsonl", PAIRS, preference)),
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
    "A row is here only where its text is tokenised to the same ids.",
    lost="Log-probabilities and certificates; weights and confidence of pairs; pairs with a side of several turns. The "
    "text belongs to one tokenizer and one chat template.",
    tokens=True,
)
