"""Logs without actions: an inverse-dynamics model labels observations, and a policy learns from the labels.

Run `python benchmarks/inverse.py --work DIR` (about eight minutes a seed on a free core), `--suite browser` for pages
of six levels of MiniWoB++ in place of the shop (Chromium; more epochs of smaller batches, since the embedded model
knows no page). A scripted customer that errs plays a few tasks whose calls are logged, and more of which the
observations alone are. The embedded model becomes an inverse-dynamics model by the few, a fifth of whose tasks are held
out. It becomes a policy by the successes among the few; by those among the more, with the model's labels; and by these
with their true calls. All calls are learnt without the words beside them, which observations do not show. Validation
tasks, which nobody learnt from, are played. Intervals draw seeds and tasks anew.

Predicted before the first run, of the shop. The model names 85 to 90 % of the held-out calls; `search` is the worst,
at 60 %, since a page of results does not show its query. Replays confirm half of the episodes, because one wrong query
spoils one. Labels lose at most 5 points of success against true calls, and gain 5 or more over the few. All three may
lose against the embedded model as it is: it says what a product lacks before it decides, and turns without words
unteach that. (A first design, with models from random weights of a third of the size, was dropped before any policy
was trained: its inverse-dynamics model copied too badly, and named 68 % of the held-out calls and 4 % of the
searches.)

Predicted of the pages: 90 % of the held-out calls are named right, since a page shows what was typed and chosen;
replays confirm two thirds of the episodes; labels lose at most 5 points against true calls and gain 10 over the few.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from _common import write_result
from _experiment import Script, Seed, Stage, arguments, carry_out, interval, matrix, share_interval

SUITES = {
    "shop": ("env=shop",),
    "browser": (
        "env=browser",
        "env.level=[click-button,enter-text,choose-list,click-checkboxes,login-user,click-tab-2-easy]",
    ),
}
TUNING = {
    "shop": ("optimizer.learning_rate=5e-4", "optimizer.epochs=2"),
    "browser": ("optimizer.learning_rate=1e-3", "optimizer.epochs=20", "batch.rows=4"),
}
"""Keys of a policy's fine-tuning."""
FEW, MORE, ATTEMPTS, HELD_OUT = 40, 120, 2, 200
ROWS = {
    "base": "nothing: the embedded model",
    "few": "the few with calls, alone",
    "labels": "the more, labelled",
    "true": "the more with their true calls",
}


def stages(seed: int, folder: Path, options: argparse.Namespace) -> Iterator[Stage]:
    """Yield the commands of one seed."""
    own, offset, env = f"seed={seed}", seed * (FEW + MORE), SUITES[options.suite]
    for name, tasks in (("few", FEW), ("more", MORE)):
        yield Stage(f"played-{name}", "build_prefs", (
            own, *env, f"tasks.n={tasks}", f"tasks.offset={offset}", "policy=noisy", "policy.noise=0.3",
            "search.algorithm=best_of_n", f"search.simulations={ATTEMPTS}", "pairs.kinds=[trajectory]",
        ))  # fmt: skip
        yield Script(f"log-{name}", "_write_observations.py", (str(folder / f"played-{name}"),), (f"played-{name}",))
        offset += tasks
    few, more = folder / "log-few", folder / "log-more"
    yield Stage("model", "train_sft", (
        own, f"data.files=[{few}/inverse/inverse.jsonl]", "data.unknown=take", "optimizer.learning_rate=1e-3",
        f"optimizer.epochs={20 if options.suite == 'browser' else 4}", "batch.rows=8",
    ), ("log-few",))  # fmt: skip
    yield Stage("labels", "import_logs", (
        own, f"source={more}/seen.jsonl", f"label.model={folder}/model/model", "label.least=0",
        f"label.held_out={few}/inverse/held_out.jsonl",
    ), ("log-more", "model"))  # fmt: skip
    yield Stage("replayed", "import_logs", (own, f"source={folder}/labels/trajectories", *env), ("labels",))
    yield Stage("few", "import_logs", (own, f"source={few}/acted.jsonl"), ("log-few",))
    yield Stage("true", "import_logs", (own, f"source={more}/acted.jsonl"), ("log-more",))
    for name in ROWS:
        if name != "base":
            keys = (own, f"data.runs=[{folder / name}]", *TUNING[options.suite])
            yield Stage(f"learnt-{name}", "train_sft", keys, (name,))
        policy = () if name == "base" else (f"policy.model={folder}/learnt-{name}/model",)
        held_out = (f"tasks.n={options.held_out or HELD_OUT}", f"attempts={options.attempts}", "greedy=false")
        keys = (own, *env, *policy, "tasks.split=validation", *held_out, "against.run=null")
        yield Stage(f"test-{name}", "evaluate", keys, () if name == "base" else (f"learnt-{name}",))


def facts(folder: Path) -> dict[str, Any]:
    """Return what the imports of a seed came to."""
    names = ("few", "labels", "true", "replayed")
    found = {name: json.loads((folder / name / "summary.json").read_text()) for name in names}
    keys = ("episodes", "filtered", "labels", "replays")
    imports = {name: {key: one[key] for key in keys} for name, one in found.items()}
    return {"imports": imports, "calls": compared(folder)}


def compared(folder: Path) -> list[tuple[str, float, bool]]:
    """Return of each labelled call the tool that was called, the label's probability, and whether it is right."""
    acted = (folder / "log-more" / "acted.jsonl").read_text().splitlines()
    found = []
    for row in pq.read_table(folder / "labels" / "trajectories").to_pylist():
        facts = json.loads(row["verdict"])["evidence"]
        if "logs" not in facts:  # cut before an observation that repeats; it names no line
            continue
        true = json.loads(acted[int(facts["logs"][0].rpartition(":")[2]) - 1])["messages"]
        named = map(json.loads, row["messages"])
        calls = [[m["tool_calls"][0]["function"] for m in one if m.get("tool_calls")] for one in (true, named)]
        for wanted, call, probability in zip(*calls, facts["labels"]["probabilities"], strict=True):
            found.append((wanted["name"], probability, wanted == call))
    return found


def shares(calls: list[Any]) -> Iterator[dict[str, Any]]:
    """Yield the share of the calls that are named right: of all, of each tool's, of those of some probability."""
    groups = {"all": calls}
    groups |= {f"`{tool}`": [one for one in calls if one[0] == tool] for tool in sorted({one[0] for one in calls})}
    for least in (0.5, 0.7, 0.9):
        groups[f"probability {least:g} or more"] = [one for one in calls if one[1] >= least]
    for name, those in groups.items():
        yield {"calls": name, "number": len(those), "named right": f"{sum(one[2] for one in those) / len(those):.1%}"}


def write_labels(name: str, imports: list[Any], calls: list[Any], results: Path) -> None:
    """Write what the labels are worth, of what each seed's imports came to and the calls of all."""
    measured = [one["labels"]["labels"]["held_out"] for one in imports]
    replays = [one["replayed"]["replays"] for one in imports]
    told = {
        "seeds": len(imports), "tasks with calls": FEW, "tasks without": MORE, "attempts of a task": ATTEMPTS,
        "right of held_out.jsonl": ", ".join(f"{one['right']:.1%} of {one['calls']:,}" for one in measured),
        "episodes that replays confirm": ", ".join(
            f"{one['confirmed']:,} of {one['confirmed'] + one['disagreed']:,}" for one in replays
        ),
    }  # fmt: skip
    write_result(f"{name}_labels", list(shares(calls)), told, results / f"{name}_labels.json")


def table(seeds: list[Seed]) -> Iterator[dict[str, Any]]:
    """Yield the rows."""
    for name, title in ROWS.items():
        values = matrix(seeds, f"test-{name}", "sampled")
        low, high = share_interval(values)
        row = {"learnt from": title, "success": f"{values.mean():.1%}", "95 %": f"{low:.1%} to {high:.1%}"}
        for other, key in (("few", "against the few"), ("true", "against true calls")):
            gain = 100 * (values - matrix(seeds, f"test-{other}", "sampled"))
            low, high = interval(gain)
            row[key] = "" if name == other else f"{gain.mean():+.1f} ({low:+.1f} to {high:+.1f})"
        imports = [seed.facts["imports"].get(name) for seed in seeds]
        row["successes learnt"] = ", ".join(f"{one['filtered']:,}" for one in imports if one)
        yield {**row, "each seed": ", ".join(f"{mean:.1%}" for mean in values.mean(1))}


def main() -> None:
    """Run, print, write."""
    parser = arguments(__doc__, SUITES)
    parser.set_defaults(attempts=1, jobs=1)
    options = parser.parse_args()
    settings = {
        "tasks with calls": FEW, "tasks without": MORE, "attempts of a task": ATTEMPTS,
        "held-out tasks": options.held_out or HELD_OUT, "attempts": options.attempts,
    }  # fmt: skip
    name = "inverse" if options.suite == "shop" else f"inverse_{options.suite}"
    seeds = carry_out(name, options, lambda seed, folder: stages(seed, folder, options), settings, facts)
    calls = [one for seed in seeds for one in seed.facts["calls"]]
    write_labels(name, [seed.facts["imports"] for seed in seeds], calls, options.results)
    command = f"python benchmarks/inverse.py --suite {options.suite} --work DIR"
    told = {**settings, "seeds": len(seeds), "command": command}
    write_result(name, list(table(seeds)), told, options.results / f"{name}.json")


if __name__ == "__main__":
    main()
