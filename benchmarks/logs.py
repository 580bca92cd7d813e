"""Learning from a policy's logs alone, without its environment, beside learning from a search in the environment.

Run `python benchmarks/logs.py --work DIR` (half an hour with two processors; `--jobs` commands at once). The embedded
model plays 300 train tasks of the shop eight times each; what it wrote and what came back is a log of OpenAI messages
(`_write_logs.py`). `import_logs` makes pairs and verified trajectories of it; the same model learns from them. Beside
it the same model learns from a tree search with as many simulations on the same tasks. All are played on held-out
tasks. The settings are those of `arms.py`; nothing was chosen here.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _common import write_result
from _experiment import Script, Seed, Stage, arguments, carry_out, interval, matrix, share_interval
from _recipes import SUITES

ATTEMPTS = 8
KINDS = "data.kinds=[step,trajectory]"

ROWS = {
    "base": "the embedded model",
    "log-dpo": "the log: preferences alone",
    "log-sft": "the log: fine-tuning",
    "log-sft-dpo": "the log: fine-tuning, then preferences",
    "search-dpo": "the search: preferences alone",
    "search-sft": "the search: fine-tuning",
    "search-sft-dpo": "the search: fine-tuning, then preferences",
}


def stages(seed: int, folder: Path, options: argparse.Namespace) -> Iterator[Stage]:
    """Yield the commands of one seed."""
    suite = SUITES["shop"]
    own, tasks = f"seed={seed}", (f"tasks.n={suite.tasks}", f"tasks.offset={seed * suite.tasks}")
    collect = (own, *suite.environment, *tasks, *suite.collect, f"search.simulations={ATTEMPTS}")
    yield Stage("attempts", "build_prefs", (*collect, "search.algorithm=best_of_n"))
    yield Script("written", "_write_logs.py", (str(folder / "attempts"),), ("attempts",))
    per_task = next(key for key in suite.collect if key.startswith("filtered.per_task"))
    read = (own, f"source={folder / 'written'}", per_task)
    yield Stage("log", "import_logs", read, ("written",))
    yield Stage("search", "build_prefs", collect)
    models: dict[str, tuple[str, ...]] = {"base": ()}
    for data in ("log", "search"):
        run = f"data.runs=[{folder / data}]"
        yield Stage(f"{data}-dpo", "train_dpo", (own, run, KINDS, *suite.dpo), (data,))
        yield Stage(f"{data}-sft", "train_sft", (own, run, *suite.sft()), (data,))
        begun = f"model.path={folder / data}-sft/model"
        yield Stage(f"{data}-sft-dpo", "train_dpo", (own, begun, run, KINDS, *suite.dpo), (f"{data}-sft", data))
        models |= {name: (name,) for name in (f"{data}-dpo", f"{data}-sft", f"{data}-sft-dpo")}
    held_out = (f"tasks.n={options.held_out or suite.held_out}", f"tasks.offset={suite.fold}", "tasks.split=test")
    held_out += (f"attempts={options.attempts}", "greedy=false", "against.run=null")
    for name, after in models.items():
        policy = (f"policy.model={folder / name}/model",) if after else ()
        keys = (own, *suite.environment, *held_out, *policy)
        yield Stage(f"test-{name}", "evaluate", keys, after)


def facts(folder: Path) -> dict[str, Any]:
    """Return what each of a seed's sources has."""
    found = {}
    for name in ("log", "search"):
        summary = json.loads((folder / name / "summary.json").read_text())
        found[name] = {"pairs": summary["pairs"], "filtered": summary["filtered"]}
    found["search"]["calls"] = sum(
        json.loads((folder / "search" / "summary.json").read_text())[key] for key in ("tool_calls", "replayed_calls")
    )
    found["log"]["episodes"] = json.loads((folder / "log" / "summary.json").read_text())["episodes"]
    return {"data": found}


def table(seeds: list[Seed]) -> list[dict[str, Any]]:
    """Return the rows."""
    base = matrix(seeds, "test-base", "sampled")
    rows = []
    for name, title in ROWS.items():
        values = matrix(seeds, f"test-{name}", "sampled")
        low, high = share_interval(values)
        row = {"learnt from": title, "success": f"{values.mean():.1%}", "95 %": f"{low:.1%} to {high:.1%}"}
        row["against the model"] = "" if name == "base" else _difference(values - base)
        before = matrix(seeds, f"test-{name.removesuffix('-dpo')}", "sampled") if name.endswith("-sft-dpo") else None
        row["against fine-tuning"] = "" if before is None else _difference(values - before)
        data = name.split("-")[0]
        row["pairs"] = row["trajectories"] = ""
        if name != "base":
            each = [seed.facts["data"][data] for seed in seeds]
            counts = {kind: np.mean([one["pairs"].get(kind, 0) for one in each]) for kind in ("step", "trajectory")}
            row["pairs"] = ", ".join(f"{kind} {count:,.0f}" for kind, count in counts.items()) if "dpo" in name else ""
            row["trajectories"] = f"{np.mean([one['filtered'] for one in each]):,.0f}" if "sft" in name else ""
        row["each seed"] = ", ".join(f"{mean:.1%}" for mean in values.mean(1))
        rows.append(row)
    return rows


def _difference(gain: Any) -> str:
    low, high = interval(gain)
    return f"{100 * gain.mean():+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def main() -> None:
    """Run, print, write."""
    parser = arguments(__doc__, ("shop",))
    options = parser.parse_args()
    suite = SUITES["shop"]
    settings = {
        "train tasks": suite.tasks,
        "attempts of a train task": ATTEMPTS,
        "held-out tasks": options.held_out or suite.held_out,
        "attempts": options.attempts,
    }
    seeds = carry_out("logs", options, lambda seed, folder: stages(seed, folder, options), settings, facts)
    command = {"command": "python benchmarks/logs.py --work DIR"}
    write_result("logs", table(seeds), {**settings, "seeds": len(seeds), **command}, options.results / "logs.json")


if __name__ == "__main__":
    main()
