"""MiniWoB++ by pixels: a new tiny model with a vision tower learns ten levels from the expert's clicks.

Run `python benchmarks/pixels.py --work DIR` (hours on one core: pages, pictures and training). For each seed the expert
plays train tasks, ten levels in turn; a model of random weights learns from them (`train_sft`, `scratch.pictures`), and
plays held-out seeds of the same levels. Beside it stands a model whose training has one update. A seed that is finished
is kept under `results/`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _common import write_result
from _experiment import Stage, arguments, carry_out, ending_columns, endings, matrix, share_interval

CONFIG = ("--config", "environments/offline_agent_environments/browser/configs/pixels.yaml")
ENV = "env=offline_agent_environments.browser.pixels:Pixels"
MODELS = {"one update": "chance", "demonstrations": "sft"}
_STEPS = 6


def stages(seed: int, folder: Path, options: argparse.Namespace) -> Iterator[Stage]:
    """Yield the commands of one seed."""
    offset = seed * options.demonstrations
    tasks = (f"tasks.n={options.demonstrations}", f"tasks.offset={offset}", f"seed={seed}", "threads=1")
    yield Stage("sft", "train_sft", (*CONFIG, *tasks, f"optimizer.epochs={options.epochs}"))
    yield Stage("chance", "train_sft", (*CONFIG, *tasks[1:], "tasks.n=20", "optimizer.max_updates=1"))
    for model in MODELS.values():
        keys = (ENV, f"policy.model={(folder / model / 'model').resolve()}", "policy=hf", f"seed={seed}")
        keys += (f"tasks.split={options.split}", f"tasks.n={options.held_out}", f"attempts={options.attempts}")
        yield Stage(f"{options.split}-{model}", "evaluate", (*keys, "greedy=false", f"max_steps={_STEPS}"), (model,))


def told(folder: Path) -> dict[str, Any]:
    """Return what is kept of a seed beside its evaluations."""
    found = json.loads((folder / "sft" / "summary.json").read_text())
    return {**endings(folder), "demonstrations": f"{found['data']['kept']} of {found['demonstrations']['attempts']}"}


def main() -> None:
    """Run, print, write."""
    parser = arguments(__doc__, ("pixels",))
    parser.set_defaults(suite="pixels", held_out=100, attempts=2, jobs=1, seeds=[0, 1])
    parser.add_argument("--demonstrations", type=int, default=240, help="tasks that the expert plays, for each seed")
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--split", choices=("validation", "test"), default="test", help="held-out tasks")
    options = parser.parse_args()
    settings = {name: getattr(options, name) for name in ("demonstrations", "epochs", "held_out", "attempts", "split")}
    settings["longest episode, calls"] = _STEPS
    seeds = carry_out("pixels", options, lambda seed, folder: stages(seed, folder, options), settings, told)
    rows = []
    for title, model in MODELS.items():
        values = matrix(seeds, f"{options.split}-{model}", "sampled")
        low, high = share_interval(values)
        row: dict[str, Any] = {"learnt from": title, "success": f"{values.mean():.1%}"}
        row |= {"95 %": f"{low:.1%} to {high:.1%}", "each seed": ", ".join(f"{mean:.1%}" for mean in values.mean(1))}
        rows.append(row | ending_columns(seeds, f"{options.split}-{model}"))
    facts = {**settings, "seeds": len(options.seeds), "kept": ", ".join(str(s.facts["demonstrations"]) for s in seeds)}
    given = f"--demonstrations {options.demonstrations} --epochs {options.epochs} --held-out {options.held_out}"
    seen = " ".join(map(str, options.seeds))
    facts["command"] = f"python benchmarks/pixels.py --work DIR --seeds {seen} {given} --attempts {options.attempts}"
    write_result("pixels", rows, facts, options.results / "pixels.json")


if __name__ == "__main__":
    main()
