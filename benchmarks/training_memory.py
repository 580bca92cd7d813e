"""Memory of `train_sft` by model size and processes: measured with 0.5 B weights here, on paper up to 8 B.

Run `python benchmarks/training_memory.py` (10 minutes, 19 GB, and disk for a checkpoint): a Llama-shaped model of
random float32 weights trains for two updates on a demo's rows, in one process and in two that share its weights
(FSDP2 over gloo, which is how a test shards on a CPU), all weights and adapters of rank 16. Measured is the largest
resident memory of a process. `--tiny` tries the script with a small model; `--paper` prints the table of the formula
alone.

The formula, per process of n, in bytes; P weights of W bytes each, T of them trained, B of a block, R of the rest:

- weights P W / n, gradients 4 T / n, AdamW's two moments 8 T / n, kept in float32
- what FSDP2 gathers (n > 1): two blocks and the rest, W (2 B + R), and gradients of as many trained weights, 4 each
- activations with checkpoints: W t h L kept for t tokens, and W t (12 h + 3 i) of the block that is computed anew
- logits of one chunk, three times in float32: 12 x 2^24 on a CPU, 12 x 2^28 on an accelerator

Python and its libraries take 0.35 GB beside that.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _common import write_result
from gpu import TINY
from prefix_sharing import HALF_BILLION

ROOT = Path(__file__).parents[1]
LLAMA_1B = {"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
            "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": True}  # fmt: skip
LLAMA_8B = {**LLAMA_1B, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
            "tie_word_embeddings": False}  # fmt: skip
SHAPES = {"0.5 B": HALF_BILLION, "1.2 B (Llama 3.2)": LLAMA_1B, "8 B (Llama 3.1)": LLAMA_8B}
RANK, ROWS, TOKENS = 16, 4, 8192
GIB = 2**30


def formula(shape: dict[str, Any], processes: int, rank: int, tokens: int, width: int, cpu: bool) -> float:
    """Return the bytes of a process; see the module."""
    h, i, layers = shape["hidden_size"], shape["intermediate_size"], shape["num_hidden_layers"]
    kv = h * shape["num_key_value_heads"] // shape["num_attention_heads"]
    block = 2 * h * h + 2 * h * kv + 3 * h * i
    rest = shape["vocab_size"] * h * (1 if shape.get("tie_word_embeddings") else 2)
    whole = layers * block + rest
    trained = layers * rank * (3 * (h + i) + 4 * h + 2 * (h + kv)) if rank else whole
    gathered = 0.0
    if processes > 1:
        gathered = width * (2 * block + rest) + 4 * (2 * block + rest) * (not rank)
    states = (width * whole + 12 * trained) / processes
    activations = width * tokens * h * layers + width * tokens * (12 * h + 3 * i)
    return states + gathered + activations + 12 * 2 ** (24 if cpu else 28)


def paper() -> Iterator[dict[str, Any]]:
    """Yield the formula's table on accelerators: weights in float32 where all are trained, else in bfloat16."""
    for name, shape in SHAPES.items():
        for rank in (0, RANK):
            row: dict[str, Any] = {"model": name, "trained": f"adapters of rank {rank}" if rank else "all weights"}
            for processes in (1, 2, 4, 8):
                size = formula(shape, processes, rank, TOKENS, 2 if rank else 4, False)
                row[f"GB a process of {processes}"] = round(size / GIB, 1)
            yield row


def train(shape: dict[str, Any], run: str, rank: int) -> None:
    """Train in this process, and print its memory and the tokens of its largest pass."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    from offline_agent.policies.base import DEFAULT_MODEL
    from offline_agent.rendering.renderer import Renderer
    from offline_agent.training import models
    from offline_agent.training.data.rows import load_trajectories
    from offline_agent.training.offline import sft
    from offline_agent.training.settings import TrainSettings
    from offline_agent.training.trainer import TrainRun

    renderer = Renderer.load(DEFAULT_MODEL)
    rows = load_trajectories([run], [], renderer, max_length=2048)[0][:ROWS]
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(LlamaConfig(**shape), dtype=torch.float32)
    models.use_checkpointing(model, True)
    if rank:
        from peft import LoraConfig, get_peft_model

        model.enable_input_require_grads()
        model = get_peft_model(model, LoraConfig(r=rank, target_modules="all-linear", task_type="CAUSAL_LM"))
    settings = TrainSettings(max_updates=2, epochs=1e6, rows=ROWS, every=10**6)
    with tempfile.TemporaryDirectory() as folder:
        done = sft.train_sft(model, renderer.tokenizer, rows, settings, TrainRun(Path(folder), lambda record: None))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found = {"bytes": peak, "tokens": done.tokens // 2, "loss": done.records[-1]["loss"]}
    print("FOUND", json.dumps(found), flush=True)


def measured(options: argparse.Namespace, run: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each number of processes and rank, beside the formula."""
    sys.path.insert(0, str(ROOT))
    from tests.helpers.sharding_processes import torchrun

    shape = TINY if options.tiny else HALF_BILLION
    script = (f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import json, training_memory as here\n"
              "here.train(json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3]))\n")  # fmt: skip
    for processes in (1, 2):
        for rank in (0, RANK):
            arguments = (json.dumps(shape), run, str(rank))
            with tempfile.TemporaryDirectory() as folder:
                if processes == 2:
                    found = torchrun(script, Path(folder), *arguments, sharded=True)
                else:
                    done = subprocess.run(
                        [sys.executable, "-c", script, *arguments], check=True, stdout=subprocess.PIPE, text=True,
                        env={**os.environ, "PYTHONPATH": str(ROOT)},
                    )  # fmt: skip
                    found = json.loads(done.stdout.split("FOUND ")[1])
            expected = formula(shape, processes, rank, found["tokens"], 4, True)
            yield {
                "processes": processes, "trained": f"adapters of rank {rank}" if rank else "all weights",
                "tokens a pass": found["tokens"], "loss": round(found["loss"], 3),
                "GB a process": round(found["bytes"] / GIB, 2), "formula": round(expected / GIB, 2),
            }  # fmt: skip


def main() -> None:
    """Measure, compute, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--paper", action="store_true")
    parser.add_argument("--out", type=Path, default=None, help="another file for the result")
    options = parser.parse_args()
    write_result("training_memory_paper", list(paper()), {"tokens a pass": TOKENS}, options.out)
    if options.paper:
        return
    with tempfile.TemporaryDirectory() as folder:
        run = f"{folder}/run"
        command = ["offline_agent.pipelines.build_prefs", "tasks.n=6", "tracking.uri=null", f"run_dir={run}"]
        subprocess.run([sys.executable, "-m", *command], check=True, stdout=subprocess.DEVNULL)
        rows = []
        for row in measured(options, run):
            print(row, file=sys.stderr, flush=True)
            rows.append(row)
    write_result("training_memory", rows, {}, options.out)


if __name__ == "__main__":
    main()
