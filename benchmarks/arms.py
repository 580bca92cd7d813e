"""Held-out success over environment calls: recipes of data and training, from one warm start, at equal calls.

Run `python benchmarks/arms.py --suite shop --work DIR` (hours; `--jobs` commands at once). An arm is a chain of rounds;
a round collects attempts or searches on new train tasks with the model so far, and trains that model on them; or it
plays and learns online (GRPO) on train tasks. Arms that begin with the same rounds share them. All calls of a chain are
counted: attempts, searches, restored states, mining, judging again, and the episodes of online rounds. What is there is
not run again, so a stopped run goes on; `--plan` prints the commands.

Choose on validation tasks (the default); `--split test` is for the arms that were chosen. The table compares every arm
that has trees or preferences with the best chain of plain attempts and fine-tuning that takes no more calls, and every
arm that has offline rounds with the best chain of online rounds alone that takes no more.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from _common import write_result
from _experiment import Seed, Stage, arguments, carry_out, interval, matrix, share_interval

FIGURES = Path(__file__).parents[1] / "docs" / "figures"


@dataclass(frozen=True)
class Round:
    """One round of an arm.

    Attributes:
        collect: Name in `COLLECT` of the keys of `build_prefs`; "" = an online round, which collects nothing.
        sft: Keys of `train_sft` on the successes; None = no fine-tuning.
        dpo: Keys of `train_dpo` on the pairs, after the fine-tuning; None = none.
        again: Whether the warm start is fine-tuned anew on the successes of all rounds so far, in place of the model
            so far on those of this round.
        online: Keys of `refine_grpo`, in an online round.
        times: Factor of the fine-tuning's epochs; 3 on FrozenLake are the updates of 2 and the preferences of `_LONG`.
    """

    collect: str
    sft: tuple[str, ...] | None = ()
    dpo: tuple[str, ...] | None = None
    again: bool = False
    online: tuple[str, ...] | None = None
    times: int = 1


COLLECT: dict[str, tuple[str, ...]] = {
    "attempts": ("search.algorithm=best_of_n", "search.simulations=4"),
    "attempts16": ("search.algorithm=best_of_n", "search.simulations=16"),
    "retries": ("search.algorithm=best_of_n", "search.simulations=16", "search.until=success"),
    "tree": ("search.simulations=16",),
    "need": ("search.simulations=16", "search.until=success"),
    "need32": ("search.simulations=32", "search.until=success"),
    "states": (
        "search.simulations=16", "search.until=success", "search.repeated_states=close", "pairs.decisive=true",
        "pairs.per_node=4", "pairs.per_task=32", "pairs.per_depth=16",
    ),
}
"""Ways to collect. `need`: four attempts, and a tree from them where all four failed; `retries`: further plain attempts
there, the control of `need`; `states`: as `need`, over states in place of histories, with decisive pairs."""

_STEP = ("data.kinds=[step]",)
_BOTH = ("data.kinds=[step,trajectory]",)
_LONG = (*_BOTH, "optimizer.learning_rate=1e-4", "optimizer.epochs=4", "dpo.sft=0.3")

ROUNDS: dict[str, Round] = {
    "attempts": Round("attempts"),
    "attempts16": Round("attempts16"),
    "retries": Round("retries"),
    "tree": Round("tree"),
    "need": Round("need"),
    "need32": Round("need32"),
    "states": Round("states"),
    "states, all data": Round("states", again=True),
    "states+updates, all data": Round("states", times=2, again=True),
    "states+thrice, all data": Round("states", times=3, again=True),
    "states+updates+dpo, all data": Round("states", times=2, again=True, dpo=_LONG),
    "retries+thrice, all data": Round("retries", times=3, again=True),
    "attempts+updates": Round("attempts", times=2),
    "attempts+dpo": Round("attempts", dpo=_BOTH),
    "need+dpo": Round("need", dpo=_BOTH),
    "tree+dpo": Round("tree", dpo=_STEP),
    "attempts, all data": Round("attempts", again=True),
    "retries, all data": Round("retries", again=True),
    "attempts+updates, all data": Round("attempts", times=2, again=True),
    "retries+updates, all data": Round("retries", times=2, again=True),
    "need, all data": Round("need", again=True),
    "need+updates, all data": Round("need", times=2, again=True),
    "need+dpo, all data": Round("need", again=True, dpo=_BOTH),
    "grpo": Round("", sft=None, online=()),
}

ARMS: dict[str, tuple[str, ...]] = {
    "attempts": ("attempts",) * 5,
    "more updates": ("attempts", "attempts", "attempts+updates"),
    "attempts, all data": ("attempts", *("attempts, all data",) * 4),
    "retries, all data": ("retries", *("retries, all data",) * 3),
    "attempts, all data, more updates": ("attempts", *("attempts, all data",) * 3, "attempts+updates, all data"),
    "retries, all data, more updates": ("retries", "retries, all data", "retries+updates, all data"),
    "need": ("need",) * 3,
    "need, all data": ("need", "need, all data", "need, all data"),
    "need, more updates": ("need", "need, all data", "need+updates, all data"),
    "need, then dpo": ("need", "need, all data", "need+dpo, all data"),
    "need, dpo each round": ("need+dpo, all data",) * 3,
    "states, all data": ("states", "states, all data", "states, all data"),
    "states, more updates": ("states", "states, all data", "states+updates, all data"),
    "states, thrice the updates": ("states", "states, all data", "states+thrice, all data"),
    "states, then dpo": ("states", "states, all data", "states+updates+dpo, all data"),
    "retries, thrice the updates": ("retries", "retries, all data", "retries+thrice, all data"),
    "attempts then need": ("attempts", "need", "need"),
    "attempts+dpo": ("attempts", "attempts+dpo", "attempts+dpo"),
    "need+dpo": ("attempts", "need+dpo", "need+dpo"),
    "tree": ("tree",),
    "tree+dpo": ("tree+dpo",),
    "grpo": ("grpo",) * 4,
    "attempts, then grpo": ("attempts", "attempts, all data", "grpo", "grpo"),
    "states, then dpo, then grpo": ("states", "states, all data", "states+updates+dpo, all data", "grpo", "grpo"),
}
"""Rounds by arm."""

PLAIN = {
    name for name, one in ROUNDS.items() if one.collect in ("attempts", "attempts16", "retries") and one.dpo is None
}
"""Rounds without a tree and without preferences: the control."""
ONLINE = {name for name, one in ROUNDS.items() if one.online is not None}
"""Online rounds."""


@dataclass(frozen=True)
class Suite:
    """One environment.

    Attributes:
        environment: Keys that name it.
        collect: Keys of every `build_prefs`.
        sft: Keys of every `train_sft`.
        epochs: Of a `train_sft`.
        dpo: Keys of every `train_dpo`.
        online: Keys of every `refine_grpo`.
        evaluate: Keys of every `evaluate`.
        warm: Keys of the `train_sft` that makes the warm start; none = the embedded default.
        tasks: New train tasks of a round.
        first: The first seed's first train task; those before it made the warm start.
        fold: The first held-out task of each split; test tasks before it were looked at earlier.
        held_out: Held-out tasks.
    """

    environment: tuple[str, ...]
    collect: tuple[str, ...]
    sft: tuple[str, ...]
    dpo: tuple[str, ...]
    epochs: int
    online: tuple[str, ...] = ()
    evaluate: tuple[str, ...] = ()
    warm: tuple[str, ...] = ()
    tasks: int = 300
    first: int = 0
    fold: int = 0
    held_out: int = 200


_COMMON = ("pairs.kinds=[step,trajectory]", "pairs.rejudge=0", "filtered.origins=[search,rollout]")
_GENTLE = ("optimizer.learning_rate=5e-5", "optimizer.epochs=2", "dpo.sft=0.1", "anchor.weight=0.5")
_ONLINE = ("rollouts.reward=success", "objective.kl=0.0", "optimizer.learning_rate=2e-4", "watch.stop=[mask]")
_WIDE = (*_ONLINE, "rounds=10", "rollouts.tasks=16", "rollouts.size=8")
_COOKING = ("env=textworld", "env.game=cookingworld")
_COOKING += ("env.params=numLocations=1,numIngredients=1,numDistractorItems=2,includeDoors=0",)
_LAKE = ("env=examples.frozen_lake:FrozenLake",)

SUITES = {
    "shop": Suite(
        environment=("env=shop",),
        collect=(*_COMMON, "search.value=success", "filtered.per_task=6"),
        sft=("optimizer.learning_rate=5e-4",),
        epochs=2,
        dpo=_GENTLE,
        online=_WIDE,
        fold=200,
    ),
    "cookingworld": Suite(
        environment=_COOKING,
        collect=(*_COMMON, "search.max_steps=20", "filtered.per_task=4"),
        sft=("optimizer.learning_rate=5e-4", "batch.rows=4"),
        epochs=3,
        dpo=(*_GENTLE, "batch.rows=8"),
        online=(*_WIDE, "rollouts.max_steps=20"),
        evaluate=("max_steps=20",),
        warm=("--config", "configs/textworld/train_sft.yaml", *_COOKING, "tasks.n=350"),
        tasks=150,
        first=350,
        held_out=100,
    ),
    "frozenlake": Suite(
        environment=_LAKE,
        collect=(*_COMMON, "search.value=success", "filtered.per_task=6"),
        sft=("optimizer.learning_rate=5e-4", "batch.rows=8"),
        epochs=8,  # 16 are no better for attempts
        dpo=(*_GENTLE, "batch.rows=8"),
        online=(*_ONLINE, "rounds=20", "rollouts.tasks=8", "rollouts.size=8"),  # the best of nine on validation maps
        warm=(*_LAKE, "tasks.n=100", "scratch.layers=3", "scratch.hidden_size=96", "scratch.reading=2",
              "scratch.vocabulary=400", "optimizer.learning_rate=2e-3", "optimizer.epochs=6", "batch.rows=8"),
        first=100,
        held_out=130,
    ),  # fmt: skip
}

WARM = "../warm"
_POOL = 1500  # distance of the seeds' first train tasks


def chains(arms: Sequence[str]) -> list[tuple[str, ...]]:
    """Return every beginning of every arm, once, the shorter first."""
    found = {ARMS[arm][:length] for arm in arms for length in range(1, len(ARMS[arm]) + 1)}
    return sorted(found, key=lambda chain: (len(chain), chain))


def name_of(chain: Sequence[str], part: str) -> str:
    """Return the run directory of a part of the chain's last round."""
    return f"{'.'.join(chain)}-{part}".replace(", ", "_").replace(" ", "_")


def stages(suite: Suite, seed: int, folder: Path, options: argparse.Namespace) -> Iterator[Stage]:
    """Yield the commands of one seed."""
    own = (*suite.environment, f"seed={seed}")
    models: dict[tuple[str, ...], str | None] = {(): None}
    trained: dict[tuple[str, ...], tuple[str, ...]] = {(): ()}
    if suite.warm:
        yield Stage(WARM, "train_sft", suite.warm)
        models[()], trained[()] = str((folder / WARM / "model").resolve()), (WARM,)
    seen: set[str] = set()
    for chain in [(), *chains(options.arms)]:
        if chain:
            before, last = chain[:-1], ROUNDS[chain[-1]]
            if last.online is not None:
                place = name_of(chain, "online")
                pool = (f"tasks.n={_POOL}", f"tasks.offset={suite.first + seed * _POOL}")
                start = (f"model.path={models[before]}",) if models[before] else ()
                # another seed each round, so that it draws other tasks of the pool first
                keys = (*suite.environment, f"seed={seed + 1000 * len(chain)}", *pool, *suite.online, *last.online)
                yield Stage(place, "refine_grpo", (*keys, *start), trained[before])
                models[chain], trained[chain] = str(folder / place / "model"), (place, *trained[before])
                yield _test(suite, seed, chain, models[chain], trained[chain], options)
                continue
            # rounds that collect the same from the same model share it
            data = name_of((*before, last.collect), "data")
            if data not in seen:
                seen.add(data)
                offset = suite.first + seed * _POOL + len(before) * suite.tasks
                tasks = (f"tasks.n={suite.tasks}", f"tasks.offset={offset}")
                keys = (*own, *tasks, *suite.collect, *COLLECT[last.collect], *_policy(models[before]))
                yield Stage(data, "build_prefs", keys, trained[before])
            model, after = models[before], (data, *trained[before])
            sources = [data]
            if last.again:
                sources = [name_of((*chain[:i], ROUNDS[step].collect), "data") for i, step in enumerate(chain)]
            runs = f"data.runs=[{','.join(str(folder / source) for source in sources)}]"
            if last.sft is not None:
                # fine-tuning that differs in nothing is shared too
                epochs = f"optimizer.epochs={last.times * suite.epochs}"
                own_keys = (*last.sft, *(epochs,) * (last.times > 1))
                place = name_of((*before, last.collect, *own_keys, *("again",) * last.again), "sft").replace("=", "")
                if place not in seen:
                    seen.add(place)
                    begun = models[()] if last.again else model
                    start = (f"model.path={begun}",) if begun else ()
                    keys = (f"seed={seed}", *start, runs, *suite.sft, epochs, *last.sft)
                    yield Stage(place, "train_sft", keys, after)
                model, after = str(folder / place / "model"), (place, *after)
            if last.dpo is not None:
                place = name_of(chain, "dpo")
                keys = (f"seed={seed}", f"model.path={model}", runs, *suite.dpo, *last.dpo)
                yield Stage(place, "train_dpo", keys, after)
                model, after = str(folder / place / "model"), (place, *after)
            models[chain], trained[chain] = model, after
        yield _test(suite, seed, chain, models[chain], trained[chain], options)


def _test(
    suite: Suite,
    seed: int,
    chain: Sequence[str],
    model: str | None,
    after: tuple[str, ...],
    options: argparse.Namespace,
) -> Stage:
    held_out = (f"tasks.split={options.split}", f"tasks.n={options.held_out or suite.held_out}")
    held_out += (f"tasks.offset={suite.fold if options.split == 'test' else 0}", f"attempts={options.attempts}")
    keys = (*suite.environment, f"seed={seed}", *held_out, "greedy=false", *suite.evaluate, *_policy(model))
    return Stage(f"{options.split}-{name_of(chain or ('warm',), 'test')}", "evaluate", keys, after)


def _policy(model: str | None) -> tuple[str, ...]:
    return (f"policy.model={model}",) if model else ()


def costs(folder: Path) -> dict[str, Any]:
    """Return what each collection of a seed cost and found: calls by part, tokens, successes."""
    found = {}
    for path in sorted(folder.glob("*-data/summary.json")):
        summary = json.loads(path.read_text())
        if summary["resumed"]:  # its restored states are counted for the last session alone
            raise SystemExit(f"{path.parent} was interrupted; remove it, so that its calls can be counted")
        found[path.parent.name] = {
            "calls": summary["tool_calls"],
            "restoring": summary["this_session"]["calls_replayed"],
            "mining": summary["replayed_calls"],
            "tokens": summary["generated"],
            "solved": summary["success"]["best_of_search"],
            "successes": summary["filtered"],
            "pairs": summary["pairs_total"],
        }
    online = {}
    for path in sorted(folder.glob("*-online/summary.json")):
        online[path.parent.name] = json.loads(path.read_text())["rollouts"]["env_steps"]
    updates = {}
    for path in sorted(folder.glob("*/summary.json")):
        summary = json.loads(path.read_text())
        if "updates" in summary:
            updates[path.parent.name] = summary["updates"]
    return {"data": found, "online": online, "updates": updates}


def calls(seed: Seed, chain: Sequence[str]) -> int:
    """Return all environment calls of a chain."""
    total = 0
    for length in range(1, len(chain) + 1):
        if chain[length - 1] in ONLINE:
            total += seed.facts["online"][name_of(chain[:length], "online")]
            continue
        data = name_of((*chain[: length - 1], ROUNDS[chain[length - 1]].collect), "data")
        total += sum(seed.facts["data"][data][part] for part in ("calls", "restoring", "mining"))
    return total


def measured(seeds: Sequence[Seed], split: str, chain: Sequence[str]) -> Any:
    """Return the success [seed, task] of a chain's model."""
    return matrix(seeds, f"{split}-{name_of(chain or ('warm',), 'test')}", "sampled")


def control(
    seeds: Sequence[Seed], chain: Sequence[str], options: argparse.Namespace, of: set[str]
) -> tuple[str, ...]:
    """Return the best chain of only such rounds that takes at most the calls of this chain, 5 % over allowed."""
    most = 1.05 * np.mean([calls(seed, chain) for seed in seeds])
    plain = chains([arm for arm in options.arms if set(ARMS[arm]) <= of])
    allowed = [one for one in plain if np.mean([calls(seed, one) for seed in seeds]) <= most]
    return max(allowed, key=lambda one: float(measured(seeds, options.split, one).mean()), default=())


def alike(chain: Sequence[str], options: argparse.Namespace) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the chains that differ from one with preferences in having none: as it is, and with more updates."""
    if not chain or ROUNDS[chain[-1]].dpo is None:
        return
    last, there = ROUNDS[chain[-1]], chains(options.arms)
    more = (("fine-tuning alone", last.times), ("fine-tuning with as many updates", last.times + 1))
    for title, times in more:
        for name, one in ROUNDS.items():
            other = (*chain[:-1], name)
            if other in there and one == replace(last, dpo=None, times=times):
                yield title, other


def table(seeds: Sequence[Seed], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows: every arm after each of its rounds, and its difference from plain attempts."""
    rows = []
    for chain in [(), *chains(options.arms)]:
        values = measured(seeds, options.split, chain)
        low, high = share_interval(values)
        row: dict[str, Any] = {
            "rounds": ", ".join(chain) or "warm start",
            "calls, all counted": round(float(np.mean([calls(seed, chain) for seed in seeds]))) if chain else 0,
            "success": f"{values.mean():.1%}",
            "95 %": f"{low:.1%} to {high:.1%}",
            "each seed": ", ".join(f"{mean:.1%}" for mean in values.mean(1)),
        }
        for title, of in (("attempts", PLAIN), ("grpo", ONLINE)):
            plain = control(seeds, chain, options, of) if chain and not set(chain) <= of else ()
            if plain:
                gain = values - measured(seeds, options.split, plain)
                low, high = interval(gain)
                row[f"against {title}"] = f"{100 * gain.mean():+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
                row[f"of {title}"] = f"{', '.join(plain)}; {np.mean([calls(seed, plain) for seed in seeds]):,.0f} calls"
        for title, other in alike(chain, options):
            gain = values - measured(seeds, options.split, other)
            low, high = interval(gain)
            row[f"against {title}"] = f"{100 * gain.mean():+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
        rows.append(row)
    return rows


def draw(suite: str, seeds: Sequence[Seed], options: argparse.Namespace) -> Path:
    """Draw success over calls, one line for each arm, with 95 % bands, as an SVG."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "arms"  # the same figures give the same file
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    for arm in options.arms:
        points = [ARMS[arm][:length] for length in range(len(ARMS[arm]) + 1)]
        xs = [np.mean([calls(seed, point) for seed in seeds]) if point else 0 for point in points]
        values = [measured(seeds, options.split, point) for point in points]
        bands = [share_interval(value) for value in values]
        (line,) = axes.plot(xs, [100 * value.mean() for value in values], marker="o", label=arm)
        low, high = [100 * np.array(ends) for ends in zip(*bands, strict=True)]
        axes.fill_between(xs, low, high, alpha=0.08, color=line.get_color())
    axes.set_xlabel("environment calls, all counted")
    axes.set_ylabel(f"success on {options.split} tasks, sampled, %")
    axes.set_title(f"{suite}: {len(seeds)} seeds, mean and 95 % intervals over seeds and tasks")
    axes.legend(fontsize=8)
    FIGURES.mkdir(parents=True, exist_ok=True)
    path = FIGURES / f"arms_{suite}_{options.split}.svg"
    figure.savefig(path, metadata={"Date": None})
    return path


def main() -> None:
    """Run, print, draw, write."""
    parser = arguments(__doc__, SUITES)
    parser.add_argument("--split", choices=("validation", "test"), default="validation", help="held-out tasks")
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS), help="which arms")
    options = parser.parse_args()
    options.arms = list(dict.fromkeys(["attempts", *options.arms]))
    suite, name = SUITES[options.suite], f"arms_{options.suite}_{options.split}"
    settings = {
        "train tasks a round": suite.tasks,
        "held-out tasks": options.held_out or suite.held_out,
        "attempts": options.attempts,
    }
    seeds = carry_out(name, options, lambda seed, folder: stages(suite, seed, folder, options), settings, costs)
    rows = table(seeds, options)
    picture = draw(options.suite, seeds, options)
    facts = {**settings, "seeds": len(seeds), "figure": picture.name}
    facts |= {"command": f"python benchmarks/arms.py --suite {options.suite} --split {options.split} --work DIR"}
    write_result(name, rows, facts, options.results / f"{name}.json")


if __name__ == "__main__":
    main()
