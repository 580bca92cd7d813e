"""Logs without actions: an inverse-dynamics model labels observations, and a policy learns from the labels.

Run `python benchmarks/inverse.py --work DIR` (shop) and `--suite browser` (MiniWoB's levels of several steps; needs
Chromium), about ten minutes of one core each. A scripted customer that errs plays a few tasks whose calls are logged,
and many others of which the observations alone are. The inverse-dynamics model learns from the few, with a fifth of
their tasks held out. Models of the same shape learn, from random weights, from the few alone; from the many with the
model's labels, all of them, and those of `label.least`; and from the many with their true calls. Calls are learnt
without the words beside them, which observations do not show. All play tasks that nobody learnt from. Intervals draw
seeds and tasks anew.

Predicted before the first run. Shop: the model names 85 to 90 % of the held-out calls; `search` is the worst, at 60 %,
since a page of results does not show its query; replays confirm half of the episodes, because one wrong query spoils
an episode; labels lose at most 5 points against true calls, and gain 10 or more over the few alone. Browser: 90 % of
the calls, but worse for the last one of an episode, after which the page is gone; labels lose at most 5 points against
true calls, and gain less over the few than in the shop, since few tasks teach short forms nearly as well as many.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _common import write_result
from _experiment import Seed, Stage, arguments, carry_out, interval, matrix, share_interval
from logs import Script

LEVELS = "enter-text,choose-list,click-checkboxes,login-user,enter-password,click-tab-2-easy"
SUITES: dict[str, dict[str, Any]] = {
    "shop": {"environment": ("env=shop",), "few": 100, "many": 400, "attempts": 2, "held_out": 200},
    "browser": {
        "environment": ("env=browser", "env.suite=miniwob", f"env.level=[{LEVELS}]", "limits.workers=1"),
        "few": 60, "many": 240, "attempts": 1, "held_out": 200,
    },
}  # fmt: skip
LEARNER = ("scratch.layers=2", "scratch.hidden_size=96", "scratch.vocabulary=800", "batch.rows=16",
           "optimizer.learning_rate=2e-3")  # fmt: skip
ROWS = {
    "few": "the few with calls, alone",
    "labels": "the many, labelled, all calls",
    "sure": "the many, labelled, label.least",
    "true": "the many with their true calls",
}
SHARES = {"right": "held-out calls named right", "sure": "that label.least takes", "right_of_sure": "right of these"}


def stages(seed: int, folder: Path, options: argparse.Namespace) -> Iterator[Stage]:
    """Yield the commands of one seed."""
    suite, own = SUITES[options.suite], f"seed={seed}"
    offset = seed * (suite["few"] + suite["many"])
    for name, tasks in (("few", suite["few"]), ("many", suite["many"])):
        yield Stage(f"played-{name}", "build_prefs", (
            own, *suite["environment"], f"tasks.n={tasks}", f"tasks.offset={offset}", "policy=noisy",
            "policy.noise=0.3", "search.algorithm=best_of_n", f"search.simulations={suite['attempts']}",
            "pairs.kinds=[trajectory]",
        ))  # fmt: skip
        yield Script(f"log-{name}", "_write_observations.py", (str(folder / f"played-{name}"),), (f"played-{name}",))
        offset += tasks
    few, many = folder / "log-few", folder / "log-many"
    yield Stage("model", "train_sft", (
        own, f"data.files=[{few}/inverse/inverse.jsonl]", "data.unknown=take", *LEARNER, "optimizer.epochs=8",
    ), ("log-few",))  # fmt: skip
    asked = (own, f"source={many}/seen.jsonl", f"label.model={folder}/model/model")
    asked += (f"label.held_out={few}/inverse/held_out.jsonl",)
    labelled = ("log-many", "log-few", "model")
    yield Stage("few", "import_logs", (own, f"source={few}/acted.jsonl"), ("log-few",))
    yield Stage("true", "import_logs", (own, f"source={many}/acted.jsonl"), ("log-many",))
    yield Stage("labels", "import_logs", (*asked, "label.least=0"), labelled)
    yield Stage("sure", "import_logs", asked, labelled)
    environment = [key for key in suite["environment"] if key.startswith("env")]
    yield Stage("replayed", "import_logs", (*asked, "label.least=0", *environment), labelled)
    for name in ROWS:
        data = (f"data.runs=[{folder / name}]", "optimizer.epochs=6")
        yield Stage(f"learnt-{name}", "train_sft", (own, *data, *LEARNER), (name,))
        yield Stage(f"test-{name}", "evaluate", (
            own, *suite["environment"], f"policy.model={folder}/learnt-{name}/model", "tasks.split=validation",
            f"tasks.n={options.held_out or suite['held_out']}", f"attempts={options.attempts}", "greedy=false",
            "against.run=null",
        ), (f"learnt-{name}",))  # fmt: skip


def facts(folder: Path) -> dict[str, Any]:
    """Return what the imports of a seed came to."""
    found = {name: json.loads((folder / name / "summary.json").read_text()) for name in (*ROWS, "replayed")}
    return {"imports": {
        name: {key: one[key] for key in ("episodes", "filtered", "labels", "labels_cut", "replays", "quarantined")}
        for name, one in found.items()
    }}  # fmt: skip


def table(seeds: list[Seed]) -> Iterator[dict[str, Any]]:
    """Yield the rows."""
    true = matrix(seeds, "test-true", "sampled")
    few = matrix(seeds, "test-few", "sampled")
    for name, title in ROWS.items():
        values = matrix(seeds, f"test-{name}", "sampled")
        low, high = share_interval(values)
        row = {"learnt from": title, "success": f"{values.mean():.1%}", "95 %": f"{low:.1%} to {high:.1%}"}
        for against, other, key in (("few", few, "against the few"), ("true", true, "against true calls")):
            gain = 100 * (values - other)
            low, high = interval(gain)
            row[key] = "" if name == against else f"{gain.mean():+.1f} ({low:+.1f} to {high:+.1f})"
        row["successes learnt"] = ", ".join(f"{seed.facts['imports'][name]['filtered']:,}" for seed in seeds)
        yield {**row, "each seed": ", ".join(f"{mean:.1%}" for mean in values.mean(1))}


def main() -> None:
    """Run, print, write."""
    parser = arguments(__doc__, SUITES)
    parser.set_defaults(seeds=[0, 1], attempts=1, jobs=1)
    options = parser.parse_args()
    name = f"inverse_{options.suite}"
    suite = SUITES[options.suite]
    settings = {
        "tasks with calls": suite["few"], "tasks without": suite["many"], "attempts of a task": suite["attempts"],
        "held-out tasks": options.held_out or suite["held_out"], "attempts": options.attempts,
    }  # fmt: skip
    seeds = carry_out(name, options, lambda seed, folder: stages(seed, folder, options), settings, facts)
    told: dict[str, Any] = {**settings, "seeds": len(seeds)}
    for key, label in SHARES.items():
        measured = [seed.facts["imports"]["sure"]["labels"]["held_out"] for seed in seeds]
        told[label] = ", ".join(f"{one[key]:.1%} of {one['calls']:,}" for one in measured)
    replays = [seed.facts["imports"]["replayed"]["replays"] for seed in seeds]
    told["episodes that replays confirm, all calls"] = ", ".join(
        f"{one['confirmed']:,} of {one['confirmed'] + one['disagreed']:,}" for one in replays
    )
    told["episodes cut by label.least, after a call or more"] = ", ".join(
        f"{seed.facts['imports']['sure']['labels_cut']:,}" for seed in seeds
    )
    told["command"] = f"python benchmarks/inverse.py --work DIR --suite {options.suite}"
    write_result(name, list(table(seeds)), told, options.results / f"{name}.json")


if __name__ == "__main__":
    main()
