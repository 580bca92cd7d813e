"""Generalisation of step pairs: preferences before and after DPO, on the pairs that were learnt from and on those of
other seeds, by the tools of the two sides.

Run `python benchmarks/what_pairs_teach.py --offline DIR` after `offline_loop.py --work DIR`, with two seeds at least.
Nothing is trained here: each seed's fine-tuned model, and the one that step DPO made of it, say which side they like.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from _common import RESULTS, write_result
from transformers import AutoModelForCausalLM

from offline_agent.store.columns import known
from offline_agent.store.tables import read_table

FEW = 10  # pairs of a seed, below which a row says nothing


def tool(side: Sequence[Any]) -> str:
    """Return the tool that a side calls."""
    calls = side[0].get("tool_calls")
    return str(calls[0]["function"]["name"]) if calls else "answer"


def step_pairs(run_dir: Path) -> list[dict[str, Any]]:
    """Return the step pairs of a run."""
    return [row for row in map(known, read_table(run_dir / "preferences" / "0000.parquet")) if row["kind"] == "step"]


@torch.inference_mode()
def likes(model: Any, row: dict[str, Any]) -> bool:
    """Return whether a model gives the agent tokens of the chosen side more log-probability."""
    sums = []
    for side in ("chosen", "rejected"):
        prompt, ids = row["prompt_ids"], row[f"{side}_ids"]
        logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].float()
        found = torch.log_softmax(logits, -1)[range(len(ids)), ids]
        sums.append(float((found * torch.tensor(row[f"{side}_mask"])).sum()))
    return sums[0] > sums[1]


def main() -> None:
    """Score, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--offline", type=Path, required=True, help="what offline_loop.py --work wrote")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=RESULTS / "what_pairs_teach.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    first = {seed: options.offline / f"seed-{seed}" / "iterate" / "iteration-0" for seed in options.seeds}
    pairs = {seed: step_pairs(folder / "build_prefs") for seed, folder in first.items()}
    shares: dict[tuple[str, str], dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for own, folder in first.items():
        for name in ("train_sft", "train_dpo"):
            model = AutoModelForCausalLM.from_pretrained(folder / name / "model").eval()
            for seed, rows in pairs.items():
                column = ("before" if name == "train_sft" else "after") + (", own" if seed == own else ", others'")
                for row in rows:
                    shares[tool(row["chosen"]), tool(row["rejected"])][column].append(likes(model, row))
    rows = []
    for (chosen, rejected), found in sorted(shares.items(), key=lambda entry: -len(entry[1]["before, own"])):
        if len(found["before, own"]) >= FEW * len(first):
            line: dict[str, Any] = {"chosen": chosen, "rejected": rejected, "pairs": len(found["before, own"])}
            for column in ("before, own", "after, own", "before, others'", "after, others'"):
                line[column] = f"{sum(found[column]) / len(found[column]):.0%}"
            rows.append(line)
    write_result("what_pairs_teach", rows, {"seeds": len(first)}, options.out)


if __name__ == "__main__":
    main()
