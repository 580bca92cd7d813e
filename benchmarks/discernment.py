"""Reading of the shop's product pages by a model, and whether it acts on what it reads; without roll-outs.

Run `python benchmarks/discernment.py MODEL [MODEL ...]` (folders; none = the embedded default). At each product page
that a careless demonstrator opens in validation tasks, the model is asked, in the demonstrator's own context: how
likely is the true remark (`mild yes, double no`), how often is the likelier of yes and no the true one, and, after the
true remark, how likely is `back`, where everything fits and where something lacks.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from _common import write_result
from default_model import MODEL
from transformers import AutoModelForCausalLM, AutoTokenizer

from offline_agent.envs.shop import Shop
from offline_agent.envs.tools import ToolSet
from tools.default_model.demonstrations import conversation
from tools.default_model.tokenizer import MARKS

BACK = {"type": "function", "function": {"name": "back", "arguments": {}}}


@dataclass(frozen=True)
class Page:
    """A product page that was just opened.

    Attributes:
        prompt: Token ids up to the model's turn.
        turn: Token ids of the turn that says the true remark and goes back.
        said: How many of them are the remark.
        marks: (place in `turn`, whether the page has it, "attribute" or "option") of each yes and no.
        fits: Whether the page has all that was asked for.
    """

    prompt: Sequence[int]
    turn: Sequence[int]
    said: int
    marks: Sequence[tuple[int, bool, str]]
    fits: bool


def pages(tokenizer: Any, tasks: int, noise: float) -> Iterator[Page]:
    """Yield the pages met by a demonstrator of this carelessness, from the first validation tasks."""
    tools = list(ToolSet.of(Shop).schemas)
    yes, no = mark_ids(tokenizer)
    for number, task in enumerate(Shop.tasks("validation")):
        if number == tasks:
            return
        messages = conversation(task, random.Random(number), noise, 15)
        for place, message in enumerate(messages):
            said = message["content"]
            if message["role"] != "assistant" or not said:
                continue
            before = list(messages[:place])
            prompt = _ids(tokenizer, before, tools, add_generation_prompt=True)
            turn = {"role": "assistant", "content": said, "tool_calls": [BACK]}
            whole = _ids(tokenizer, [*before, turn], tools)
            answer = whole[len(prompt) : -1]  # the template's last line break is nobody's
            marks = [(at, token == yes) for at, token in enumerate(answer) if token in (yes, no)]
            kinds = ["attribute"] * len(task["attributes"]) + ["option"] * len(task["options"])
            yield Page(
                prompt,
                answer,
                len(tokenizer(said, add_special_tokens=False)["input_ids"]),
                [(at, has, kind) for (at, has), kind in zip(marks, kinds, strict=True)],
                all(has for _, has in marks),
            )


def mark_ids(tokenizer: Any) -> tuple[int, int]:
    """Return the tokens of ` yes` and ` no`."""
    yes, no = (tokenizer.convert_tokens_to_ids(tokenizer.tokenize(mark)[0]) for mark in MARKS)
    return yes, no


def _ids(tokenizer: Any, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], **more: Any) -> list[int]:
    encoded = tokenizer.apply_chat_template(list(messages), tools=list(tools), return_dict=True, **more)
    ids: list[int] = encoded["input_ids"]
    return ids


@torch.no_grad()
def look(model: Any, found: Sequence[Page], tokenizer: Any) -> dict[str, Any]:
    """Return the figures of one model."""
    yes, no = mark_ids(tokenizer)
    right: dict[str, list[bool]] = defaultdict(list)
    back: dict[bool, list[float]] = defaultdict(list)
    remarks: list[float] = []
    for page in found:
        ids = torch.tensor([[*page.prompt, *page.turn]])
        logps = torch.log_softmax(model(ids).logits[0, len(page.prompt) - 1 : -1].float(), -1)
        taken = logps.gather(-1, ids[0, len(page.prompt) :, None])[:, 0]
        remarks.append(math.exp(float(taken[: page.said].sum())))
        back[page.fits].append(math.exp(float(taken[page.said :].sum())))
        for at, has, kind in page.marks:
            right[f"{kind} {'there' if has else 'lacking'}"].append(bool(logps[at, yes] > logps[at, no]) == has)
    return {
        "the true remark, probability": f"{_mean(remarks):.0%}",
        **{f"{name}: seen": f"{_mean(values):.0%}" for name, values in sorted(right.items())},
        "P(back), all fits": f"{_mean(back[True]):.0%}",
        "P(back), something lacks": f"{_mean(back[False]):.0%}",
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def main() -> None:
    """Look, and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", type=Path, default=[MODEL])
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--noise", type=float, default=0.5, help="carelessness of the demonstrator")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(options.models[0])
    found = list(pages(tokenizer, options.tasks, options.noise))
    rows = [
        {"model": path.name, **look(AutoModelForCausalLM.from_pretrained(path).eval(), found, tokenizer)}
        for path in options.models
    ]
    facts = {"validation tasks": options.tasks, "product pages": len(found), "carelessness": options.noise}
    write_result("discernment", rows, facts, options.out)


if __name__ == "__main__":
    main()
