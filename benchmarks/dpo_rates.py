"""Effect of step DPO on a fine-tuned policy at different learning rates: success, and other changes of behaviour.

Run `python benchmarks/dpo_rates.py --offline DIR --work DIR` after `offline_loop.py --work DIR` (its first iterations
are read). Every `train_dpo` begins from the same fine-tuned model of its seed and learns from the same step pairs; all
are measured on validation goals, since this is where a rate is chosen. `--plan` prints the commands and stops.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from _common import write_result
from _experiment import Seed, Stage, arguments, carry_out, ending_columns, endings, interval, matrix
from offline_loop import SUITES, Suite

START = "fine-tuned"
"""The evaluation of where everything begins."""


def trials(options: argparse.Namespace) -> Iterator[tuple[str, float, float]]:
    """Yield name, learning rate and passes of each training."""
    for epochs in options.epochs:
        for rate in options.rates:
            yield f"rate-{rate:g}-epochs-{epochs:g}", rate, epochs


def stages(suite: Suite, seed: int, folder: Path, options: argparse.Namespace) -> Iterator[Stage]:
    """Yield the commands of one seed."""
    first = (options.offline / f"seed-{seed}" / "iterate" / "iteration-0").resolve()
    own = (
        *suite.environment,
        f"seed={seed}",
        "tasks.split=validation",
        f"tasks.n={options.held_out or suite.held_out}",
    )
    own += (f"attempts={options.attempts}", *suite.evaluate)
    begin = first / "train_sft" / "model"
    yield Stage(START, "evaluate", (*own, f"policy.model={begin}"))
    data = (f"seed={seed}", f"model.path={begin}", f"data.runs=[{first / 'build_prefs'}]", "data.kinds=[step]")
    for name, rate, epochs in trials(options):
        keys = (*data, *suite.dpo, f"optimizer.learning_rate={rate:g}", f"optimizer.epochs={epochs:g}")
        yield Stage(f"train-{name}", "train_dpo", keys)
        model = f"policy.model={folder / f'train-{name}' / 'model'}"
        yield Stage(name, "evaluate", (*own, model), (f"train-{name}",))


def table(seeds: Sequence[Seed], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for the beginning and for each training."""
    rows = []
    begin = matrix(seeds, START, "sampled")
    for name, rate, epochs in ((START, None, None), *trials(options)):
        values = matrix(seeds, name, "sampled")
        row: dict[str, Any] = {"learning rate": rate, "passes": epochs, "sampled at 0.7": f"{values.mean():.1%}"}
        row["each seed"] = ", ".join(f"{mean:.1%}" for mean in values.mean(1))
        if name != START:
            low, high = interval(100 * (values - begin))
            row["gain, points"] = f"{100 * (values - begin).mean():+.1f} ({low:.1f} to {high:.1f})"
        row["greedy"] = f"{matrix(seeds, name, 'greedy').mean():.1%}"
        rows.append(row | ending_columns(seeds, name))
    return rows


def main() -> None:
    """Run, print, write."""
    parser = arguments(__doc__, SUITES)
    parser.add_argument("--offline", type=Path, required=True, help="what offline_loop.py --work wrote")
    parser.add_argument("--rates", type=float, nargs="+", default=[5e-5, 5e-4])
    parser.add_argument("--epochs", type=float, nargs="+", default=[2.0, 6.0])
    options = parser.parse_args()
    suite = SUITES[options.suite]
    settings = {"rates": options.rates, "passes": options.epochs, "attempts": options.attempts}
    settings |= {"validation tasks": options.held_out or suite.held_out}
    seeds = carry_out(
        "dpo_rates", options, lambda seed, folder: stages(suite, seed, folder, options), settings, endings
    )
    facts = {"seeds": len(seeds), **settings}
    write_result("dpo_rates", table(seeds, options), facts, options.results / "dpo_rates.json")


if __name__ == "__main__":
    main()
