"""Useful (agent) tokens trained per second, against TRL's trainers on the same rows.

Run `python benchmarks/training_throughput.py [--run RUN_DIR] [--model FOLDER] [--lora RANK] [--mixed]`; without a run
directory of `build_prefs` it makes one with the embedded model. Every side trains the same model, with the folder's
chat template, on the same rows, 32 (`--rows`) to an update, for the same number of updates; the first is left out of
the clock. Useful tokens are those the policy sampled, counted from the rows' masks.

- TRL's defaults: `SFTTrainer(assistant_only_loss=True)` and `DPOTrainer` on the message columns, batches of 8, gradient
  checkpointing as they have it; float32, or with `--mixed` bf16=True.
- TRL without gradient checkpointing: padded, with each batch size of `BATCHES` (an update stays 32 rows), and for SFT
  padding-free. The best of all of TRL's rows is what ours is compared with.
- ours: `train_sft` and `train_dpo`'s trainers; with `share_prefixes=off` beside it, and with `--mixed` float32, too.

TRL's DPOTrainer also scores the tokens that tools wrote; its useful tokens are counted as ours are.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _common import write_result
from accelerate.state import AcceleratorState
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from offline_agent.policies.base import DEFAULT_MODEL
from offline_agent.rendering.renderer import Renderer
from offline_agent.store.columns import PAIR_TABLES, SUCCESS_TABLES, known_name
from offline_agent.training.data.rows import load_pairs, load_trajectories
from offline_agent.training.offline import dpo, sft
from offline_agent.training.settings import DpoSettings, TrainSettings
from offline_agent.training.trainer import TrainRun

SIZE = 32
BATCHES = (4, 8, 16, 32)
DEFAULTS: dict[str, Any] = {"per_device_train_batch_size": 8}
KINDS = ("step", "trajectory", "hindsight", "minimal")


class Clock(TrainerCallback):
    """Seconds from the end of the first update to the end of the last, wall and processor."""

    def __init__(self) -> None:
        self.ends: list[tuple[float, float]] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Take the times of an update's end."""
        self.ends.append((time.perf_counter(), time.process_time()))

    @property
    def seconds(self) -> tuple[float, float]:
        """Wall and processor seconds between the first update's end and the last's."""
        (wall, processor), (wall_end, processor_end) = self.ends[0], self.ends[-1]
        return wall_end - wall, processor_end - processor


def fresh(options: argparse.Namespace) -> tuple[Any, Any]:
    """Return model and tokenizer, loaded anew, with low-rank adapters on all linear layers where a rank is given."""
    AcceleratorState._reset_state(reset_partial_state=True)  # or else the number format of the side before it stays
    model: Any = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    if options.lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=options.lora, target_modules="all-linear", task_type="CAUSAL_LM"))
    return model, AutoTokenizer.from_pretrained(options.model)


def ours(
    task: str, rows: Sequence[Any], options: argparse.Namespace, keys: dict[str, Any], folder: Path
) -> tuple[float, float]:
    """Return the seconds of all updates but the first."""
    model, tokenizer = fresh(options)
    settings = TrainSettings(
        **{"max_updates": options.updates, "epochs": 1e6, "rows": options.rows, "every": 10**6,
           "mixed": options.mixed, **keys}
    )  # fmt: skip
    ends: list[tuple[float, float]] = []

    def log(record: dict[str, Any]) -> None:
        ends.append((time.perf_counter(), time.process_time()))

    if task == "sft":
        sft.train_sft(model, tokenizer, rows, settings, TrainRun(folder, log))
    else:
        plain = DpoSettings(anchor_rows=0, sft=0.0)
        dpo.train_dpo(model, tokenizer, rows, [], settings, plain, TrainRun(folder, log))
    return ends[-1][0] - ends[0][0], ends[-1][1] - ends[0][1]


def rivals(task: str, rows: int) -> dict[str, dict[str, Any]]:
    """Return TRL's configurations by name."""
    plain = {"gradient_checkpointing": False}
    found = {"TRL's defaults": DEFAULTS}
    for size in (size for size in BATCHES if rows % size == 0):
        found[f"TRL, batches of {size}"] = {**plain, "per_device_train_batch_size": size}
    if task == "sft":
        found["TRL, padding-free"] = {**plain, **DEFAULTS, "padding_free": True}
    return found


def theirs(
    task: str, table: Any, options: argparse.Namespace, keys: dict[str, Any], folder: Path
) -> tuple[float, float]:
    """Return the seconds of all updates but the first, in TRL's own trainer with these arguments."""
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

    model, tokenizer = fresh(options)
    common: dict[str, Any] = {
        "output_dir": str(folder), "max_steps": options.updates, "bf16": options.mixed, "report_to": "none",
        "save_strategy": "no", "disable_tqdm": True, "logging_strategy": "no", "max_length": None, "seed": 0,
        "gradient_accumulation_steps": options.rows // keys["per_device_train_batch_size"],
        "use_cpu": not torch.cuda.is_available(), **keys,
    }  # fmt: skip
    clock = Clock()
    if task == "sft":
        config: Any = SFTConfig(**common, assistant_only_loss=True)
        kind: Any = SFTTrainer
    else:
        config, kind = DPOConfig(**common, precompute_ref_log_probs=True), DPOTrainer
    kind(model, args=config, train_dataset=table, processing_class=tokenizer, callbacks=[clock]).train()
    return clock.seconds


def messages(run: Path, task: str, count: int) -> Any:
    """Return TRL's view of the first rows: message columns and tools."""
    from datasets import concatenate_datasets, load_dataset

    folders, columns = (SUCCESS_TABLES, ["messages", "tools"]) if task == "sft" else (
        PAIR_TABLES, ["prompt", "chosen", "rejected", "tools"],
    )  # fmt: skip
    tables = []
    for folder in folders:  # names that plain trainers do not know are taken away: TRL is to do the same work
        table = load_dataset("parquet", data_files=f"{run}/{folder}/*.parquet", split="train")
        table = table.rename_columns({name: known_name(name) for name in table.column_names if name.endswith("_turns")})
        tables.append(table.select_columns(columns))
    return concatenate_datasets(tables).select(range(count))


def useful(task: str, rows: Sequence[Any]) -> int:
    """Return the number of tokens that the loss counts."""
    if task == "sft":
        return sum(sum(row.action_mask) for row in rows)
    return sum(sum(row.chosen_mask) + sum(row.rejected_mask) for row in rows)


def sides(
    task: str, rows: Sequence[Any], run: Path, options: argparse.Namespace
) -> Iterator[tuple[str, Callable[[Path], Any]]]:
    """Yield each side's name and the function that trains it in a folder."""
    def table() -> Any:
        return messages(run, task, len(rows))

    for name, keys in rivals(task, options.rows).items():
        yield name, partial(theirs, task, table(), options, keys)
    sides: dict[str, dict[str, Any]] = {"ours": {}, "ours, prefixes not shared": {"share_prefixes": "off"}}
    if options.mixed:
        sides["ours, float32"] = {"mixed": False}
    if options.model != DEFAULT_MODEL:
        sides["ours, activations kept"] = {"gradient_checkpointing": False, "tokens": 2048}
    for name, keys in sides.items():
        yield name, partial(ours, task, rows, options, keys)


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=None, help="a run directory of build_prefs")
    parser.add_argument("--updates", type=int, default=5, help="optimizer updates of each side, the first not timed")
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="a model's folder; --run is a run with it")
    parser.add_argument("--lora", type=int, default=0, help="rank of adapters on all linear layers; 0 = full training")
    parser.add_argument("--mixed", action="store_true", help="weights in float32, multiplied in bfloat16")
    parser.add_argument("--rows", type=int, default=SIZE, help="rows of an update")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    renderer = Renderer.load(options.model)
    with tempfile.TemporaryDirectory() as scratch:
        run = options.run
        if run is None:
            run = Path(scratch) / "run"
            keys = ["tasks.n=24", "filtered.per_task=6", "tracking.uri=null", f"run_dir={run}"]
            command = [sys.executable, "-m", "offline_agent.pipelines.build_prefs", *keys]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        count = options.rows * options.updates
        table: list[dict[str, Any]] = []
        for task in ("sft", "dpo"):
            if task == "sft":
                rows: Sequence[Any] = load_trajectories([run], [], renderer, max_length=2048)[0]
            else:
                rows = load_pairs(
                    [run], [], renderer, model_hash=None, kinds=KINDS, max_length=2048, reference="computed"
                )[0]
            rows = rows[:count]
            # every side goes through the same rows, over and over where there are few; the mean row stands for each
            tokens = useful(task, rows) / len(rows) * options.rows * (options.updates - 1)
            best = 0.0
            for name, play in sides(task, rows, run, options):
                with tempfile.TemporaryDirectory() as folder:
                    wall, processor = play(Path(folder))
                best = max(best, tokens / processor) if name.startswith("TRL") else best
                table.append(
                    {
                        "trainer": task, "side": name, "rows": len(rows), "useful tokens": round(tokens),
                        "seconds": round(wall, 1), "processor seconds": round(processor, 1),
                        "useful tokens/processor s": round(tokens / processor, 1),
                    }
                )  # fmt: skip
                print(json.dumps(table[-1]), flush=True)
            for row in table:
                if row["trainer"] == task:
                    row["times TRL's best"] = round(row["useful tokens/processor s"] / best, 2)
    settings = {"updates": options.updates, "rows an update": options.rows, "LoRA rank": options.lora}
    settings |= {"mixed precision": options.mixed}
    name = "training_throughput" if options.model == DEFAULT_MODEL else "training_throughput_pretrained"
    write_result(name + "_lora" * bool(options.lora), table, settings, options.out)


if __name__ == "__main__":
    main()
