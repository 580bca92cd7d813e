"""Forward and backward over preference pairs with shared histories computed once, against TRL's concatenated forward.

Run `python benchmarks/prefix_sharing.py` (on a GPU: `--device cuda`, a 0.5B-shaped model in bfloat16). The pairs of a
case are one batch: a pair of steps under a long history, the pairs of a node with eight children, of a tree of four
turns, and of a real tree of the shop with the embedded model. Every side computes the same sigmoid DPO loss with given
reference log-probabilities, alternating in one process; gradients are compared before anything is timed. On a CPU,
times are processor seconds of the one process (with `--threads 1`, what a quiet machine's clock would show); a ratio of
wall-clock medians stands beside them.

- TRL: `DPOTrainer`'s own loss on its own collated batch with agent masks, as it runs on this device.
- separate: one pass per sequence, the vocabulary head at scored positions only.
- shared: one packed pass, the same head.

"head alone" is TRL / separate, "sharing alone" separate / shared (equal heads), "both" TRL / shared.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from _common import machine, write_result
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedTokenizerBase

from offline_agent.policies.base import DEFAULT_MODEL
from offline_agent.store.columns import PAIR_TABLES, known
from offline_agent.training.prefix_sharing.log_probabilities import Scorer
from offline_agent.training.prefix_sharing.trie import Sequence, pack

GOALS = {"pair": 3.5, "node": 10.0, "tree": 5.0}
NAMES = {
    "pair": "a step pair: 1,500 + 60",
    "node": "a node's pairs: 1,500 + 8 x 60",
    "tree": "a tree's pairs: 4 turns, 16 leaves",
    "shop": "a real tree's pairs (shop, embedded model)",
}
SIDES = ("TRL", "separate", "shared")
BETA = 0.1
SMALL: dict[str, Any] = {"vocab_size": 16000, "hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 4,
                         "num_attention_heads": 8, "num_key_value_heads": 8, "tie_word_embeddings": True}  # fmt: skip
HALF_BILLION: dict[str, Any] = {"vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864,
                                "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
                                "tie_word_embeddings": True}  # fmt: skip


class Side(NamedTuple):
    """One side of a pair: ids after the prompt, and which of them the policy sampled."""

    ids: list[int]
    mask: list[int]


class Pair(NamedTuple):
    """A preference pair."""

    prompt: list[int]
    chosen: Side
    rejected: Side


def step_pairs(history: int, tail: int, children: int, vocabulary: int) -> list[Pair]:
    """Return the pairs of a node: its children two by two."""
    rng = random.Random(0)
    prompt = _some(rng, history, vocabulary)
    sides = [Side([10 + child, *_some(rng, tail - 1, vocabulary)], [1] * tail) for child in range(children)]
    return [Pair(prompt, a, b) for a, b in zip(sides[::2], sides[1::2], strict=True)]


def tree_pairs(
    vocabulary: int, prompt: int = 400, turns: int = 4, action: int = 60, observation: int = 40
) -> list[Pair]:
    """Return the pairs of a binary tree's leaves, neighbours together: whole trajectories, actions scored."""
    rng = random.Random(0)
    ways = [Side([], [])]
    for _ in range(turns):
        ways = [
            Side(
                [*way.ids, child + 10, *_some(rng, action + observation - 1, vocabulary)],
                [*way.mask, *[1] * action, *[0] * observation],
            )
            for way in ways
            for child in range(2)
        ]
    start = _some(rng, prompt, vocabulary)
    return [Pair(start, a, b) for a, b in zip(ways[::2], ways[1::2], strict=True)]


def _some(rng: random.Random, count: int, vocabulary: int) -> list[int]:
    return [rng.randrange(20, vocabulary) for _ in range(count)]


def search(run: Path) -> None:
    """Make a run directory of pairs: the embedded model in the shop."""
    keys = ["tasks.n=24", "search.simulations=32", "tracking.uri=null", f"run_dir={run}"]
    command = [sys.executable, "-m", "offline_agent.pipelines.build_prefs", *keys]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def shop_pairs(run: Path) -> list[Pair]:
    """Return the pairs of the tree that has most, from a run directory of `build_prefs`."""
    import pyarrow.parquet as pq

    trees: dict[str, list[Pair]] = {}
    for file in (file for table in PAIR_TABLES for file in sorted((run / table).glob("*.parquet"))):
        for row in map(known, pq.read_table(file).to_pylist()):
            if row["prompt_ids"] is None or row["kind"] not in ("step", "trajectory"):
                continue
            sides = [Side(row[f"{side}_ids"], row[f"{side}_mask"]) for side in ("chosen", "rejected")]
            trees.setdefault(row["tree_id"], []).append(Pair(row["prompt_ids"], *sides))
    return max(trees.values(), key=len)


def sequences(pairs: list[Pair]) -> list[Sequence]:
    """Return chosen and rejected sequences in turn."""
    return [
        Sequence((*pair.prompt, *side.ids), (*[0] * len(pair.prompt), *side.mask))
        for pair in pairs
        for side in (pair.chosen, pair.rejected)
    ]


def make_model(case: str, device: str) -> Any:
    """Return the embedded model for the shop's tree, else a random one."""
    if case == "shop":
        return AutoModelForCausalLM.from_pretrained(DEFAULT_MODEL, dtype=torch.float32).to(device).train()
    torch.manual_seed(0)
    config = LlamaConfig(**(SMALL if device == "cpu" else HALF_BILLION), max_position_embeddings=4096)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    return AutoModelForCausalLM.from_config(config, dtype=dtype).to(device).train()


def make_pairs(case: str, device: str, run: Path | None) -> list[Pair]:
    """Return the pairs of a case."""
    vocabulary = (SMALL if device == "cpu" else HALF_BILLION)["vocab_size"]
    if case == "shop":
        return shop_pairs(run)
    return tree_pairs(vocabulary) if case == "tree" else step_pairs(1500, 60, 2 if case == "pair" else 8, vocabulary)


def trl_loss(model: Any, pairs: list[Pair], device: str) -> Callable[[], torch.Tensor]:
    """Return DPOTrainer's own loss over one batch, reference log-probabilities given (0)."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer
    from trl.trainer.dpo_trainer import DataCollatorForPreference

    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(DEFAULT_MODEL)
    folder = tempfile.mkdtemp()
    settings = DPOConfig(
        output_dir=folder, beta=BETA, max_length=None, precompute_ref_log_probs=True, report_to=[], bf16=False,
        use_cpu=device == "cpu", gradient_checkpointing=False, disable_tqdm=True, dataset_num_proc=None,
    )  # fmt: skip
    rows = Dataset.from_list([{"prompt": "a", "chosen": "b", "rejected": "c"}])
    trainer = DPOTrainer(model=model, args=settings, train_dataset=rows, processing_class=tokenizer)
    batch = DataCollatorForPreference(pad_token_id=tokenizer.pad_token_id)(
        [{"prompt_ids": p.prompt, "chosen_ids": p.chosen.ids, "rejected_ids": p.rejected.ids} for p in pairs]
    )
    masks = [[0] * len(p.prompt) + side.mask for which in (1, 2) for p in pairs for side in (p[which],)]
    agent = torch.zeros_like(batch["completion_mask"])
    for line, mask in enumerate(masks):
        agent[line, : len(mask)] = torch.tensor(mask)
    batch["completion_mask"] = agent
    batch = {name: value.to(device) for name, value in batch.items()}
    batch["ref_chosen_logps"] = batch["ref_rejected_logps"] = torch.zeros(len(pairs), device=device)
    return lambda: trainer.compute_loss(model, batch)


def own_loss(model: Any, pairs: list[Pair], device: str, share: bool) -> Callable[[], torch.Tensor]:
    """Return the same loss from this package's scores; packing is part of what is timed."""
    scorer = Scorer(model, share=share)
    if share and not scorer.shares:
        raise SystemExit(f"this model does not share prefixes: {scorer.reason}")
    items = sequences(pairs)

    def run() -> torch.Tensor:
        packed = pack(items).to(device)
        logps = scorer(model, packed).logps
        sums = torch.stack([logps[row].sum() for row in packed.rows])
        return -F.logsigmoid(BETA * (sums[0::2] - sums[1::2])).mean()

    return run


def make_side(side: str, model: Any, pairs: list[Pair], device: str) -> Callable[[], torch.Tensor]:
    """Return the loss of a side."""
    return trl_loss(model, pairs, device) if side == "TRL" else own_loss(model, pairs, device, side == "shared")


def step(model: Any, loss: Callable[[], torch.Tensor], device: str) -> tuple[float, float]:
    """Return the seconds of one forward and backward pass: the processor's on a CPU, else the clock's; the clock's."""
    model.zero_grad(set_to_none=True)
    if device != "cpu":
        torch.cuda.synchronize()
    clock, processor = time.perf_counter(), time.process_time()
    loss().backward()
    if device != "cpu":
        torch.cuda.synchronize()
    wall = time.perf_counter() - clock
    return (time.process_time() - processor if device == "cpu" else wall), wall


def difference(model: Any, losses: dict[str, Callable[[], torch.Tensor]]) -> float:
    """Return the largest relative difference of any side's gradient from TRL's, as one vector; warms up as well."""
    found = {}
    for side, loss in losses.items():
        model.zero_grad(set_to_none=True)
        loss().backward()
        found[side] = torch.cat([p.grad.flatten().float() for p in model.parameters() if p.grad is not None])
    known = found["TRL"]
    return max(float((grad - known).norm() / known.norm()) for side, grad in found.items() if side != "TRL")


def memory(case: str, side: str, options: argparse.Namespace) -> float:
    """Return the peak memory, in MiB, that one step adds to a loaded model; in a process of its own on a CPU."""
    command = [sys.executable, __file__, "--device", options.device, "--threads", str(options.threads),
               "--child", case, side]  # fmt: skip
    if options.run is not None:
        command += ["--run", str(options.run)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(json.loads(out.strip().splitlines()[-1])["mib"])


def resident(reset: bool = False) -> float:
    """Return the process's peak memory in MiB since the last reset; getrusage would tell of the parent's as well."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 2**10


def child(case: str, side: str, options: argparse.Namespace) -> None:
    """Measure one side's memory and print it."""
    model = make_model(case, options.device)
    pairs = make_pairs(case, options.device, options.run)
    loss = make_side(side, model, pairs, options.device)
    if options.device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step(model, loss, options.device)
        mib = (torch.cuda.max_memory_allocated() - before) / 2**20
    else:
        before = resident(reset=True)
        step(model, loss, options.device)
        mib = resident() - before
    print(json.dumps({"mib": mib}))


def measure(case: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return a case's line of the table."""
    model, pairs = make_model(case, options.device), make_pairs(case, options.device, options.run)
    packed = pack(sequences(pairs))
    losses = {side: make_side(side, model, pairs, options.device) for side in SIDES}
    gradient = difference(model, losses)
    times: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
    for _ in range(options.repeats):
        for side, loss in losses.items():
            times[side].append(step(model, loss, options.device))
    median, wall = ({side: statistics.median(t[i] for t in times[side]) for side in SIDES} for i in (0, 1))
    peak = {side: memory(case, side, options) for side in SIDES}
    return {
        "case": NAMES[case],
        "pairs": len(pairs),
        "tokens": packed.raw_tokens,
        "unique": packed.tokens,
        "scored": packed.scored,
        **{f"{side} s": median[side] for side in SIDES},
        "head alone": median["TRL"] / median["separate"],
        "sharing alone": median["separate"] / median["shared"],
        "both": median["TRL"] / median["shared"],
        "goal": GOALS.get(case),
        "both, by the clock": wall["TRL"] / wall["shared"],
        **{f"{side} MiB": round(peak[side]) for side in SIDES},
        "gradient differs by": gradient,
    }


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--cases", nargs="+", choices=list(NAMES), default=list(NAMES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--run", type=Path, default=None, help="run directory of build_prefs; default: one is made")
    parser.add_argument("--child", nargs=2, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.child:
        child(*options.child, options)
        return
    load = machine()["load"]
    with tempfile.TemporaryDirectory() as folder:
        if "shop" in options.cases and options.run is None:
            options.run = Path(folder, "run")
            search(options.run)
        rows = []
        for case in options.cases:
            rows.append(measure(case, options))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)  # it takes long: show what is there
    write_result(
        "prefix_sharing" if options.device == "cpu" else f"prefix_sharing_{options.device}",
        rows,
        {
            "reached": all(row["both"] >= row["goal"] for row in rows if row["goal"]),
            "model": "Llama-shaped, random, " + ("21M, float32" if options.device == "cpu" else "0.5B, bfloat16"),
            "threads": options.threads,
            "repeats (alternating, medians)": options.repeats,
            "load before the start": load,
            "memory": "what one step adds to a loaded model at its peak, gradients included",
        },
        options.out,
    )


if __name__ == "__main__":
    main()
