"""Held-out success over environment calls: recipes of data and training, from one warm start, at equal calls.

Run `python benchmarks/arms.py --suite shop --work DIR` (hours; `--jobs` commands at once). An arm is a chain of rounds;
a round collects attempts or searches on new train tasks with the model so far, and trains that model on them; or it
plays and learns online (GRPO) on train tasks. Arms that begin with the same rounds share them. The calls of a chain are
those of attempts, searches, restored states, mining, judging again, and the episodes of online rounds; a call that
several attempts at a task make after the same history counts once, as in a tree, which makes it once. `calls executed`
counts it each time; seeds that were kept before 2026-11-29 have no note of it. What is there is not run again, so a
stopped run goes on; `--plan` prints the commands.

Choose on validation tasks (the default); `--split test` is for the arms that were chosen. The table compares every arm
that has trees or preferences with the best chain of plain attempts and fine-tuning that takes no more calls, and every
arm that has offline rounds with the best chain of online rounds alone that takes no more, among those of `--arms`. A
round that tries one idea is also compared with the round that differs in that idea alone (`against` in `_recipes.py`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from _common import write_result
from _experiment import Script, Seed, Stage, arguments, carry_out, interval, matrix, share_interval
from _recipes import ARMS, COLLECT, MANY, ONLINE, ORDER, PLAIN, ROUNDS, SUITES, Round, Suite

FIGURES = Path(__file__).parents[1] / "docs" / "figures"


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
        place, keys = suite.start(seed)
        yield Stage(place, "train_sft", keys)
        models[()], trained[()] = str((folder / place / "model").resolve()), (place,)
    seen: set[str] = set()
    for chain in [(), *chains(options.arms)]:
        play: tuple[str, ...] = ()
        if chain:
            before, last = chain[:-1], ROUNDS[chain[-1]]
            if last.online is not None:
                place = name_of(chain, "online")
                pool = (f"tasks.n={suite.pool}", f"tasks.offset={suite.first + seed * suite.apart}")
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
                offset = suite.first + seed * suite.apart + len(before) * suite.tasks
                tasks = (f"tasks.n={suite.tasks}", f"tasks.offset={offset}")
                keys = (*own, *tasks, *suite.collect, *COLLECT[last.collect], *_policy(models[before]))
                yield Stage(data, "build_prefs", keys, trained[before])
            model, after = models[before], (data, *trained[before])
            sources = [data]
            if last.again:
                sources = [name_of((*chain[:i], ROUNDS[step].collect), "data") for i, step in enumerate(chain)]
            runs = f"data.runs=[{','.join(str(folder / source) for source in sources)}]"
            if last.times:
                place = _tuned(suite, before, last)
                if place not in seen:
                    seen.add(place)
                    begun = models[()] if last.again else model
                    start = (f"model.path={begun}",) if begun else ()
                    keys = (f"seed={seed}", *start, runs, *suite.sft(last.times))
                    yield Stage(place, "train_sft", keys, after)
                model, after = str(folder / place / "model"), (place, *after)
            if last.further:
                place = name_of(chain, "sft")
                keys = (f"seed={seed}", f"model.path={model}", runs, *suite.tuning, MANY)
                yield Stage(place, "train_sft", (*keys, f"optimizer.max_updates={suite.alone}"), after)
                model, after = str(folder / place / "model"), (place, *after)
            if last.dpo is not None:
                place = name_of((*before, _trained(chain[-1])), "dpo")  # rounds that are trained alike share it
                if place not in seen:
                    seen.add(place)
                    source = (runs,)
                    if last.pairs not in ("", "step"):
                        written = name_of((*before, f"{last.collect}-{last.pairs}"), "pairs")
                        given = (last.pairs, " ".join(suite.environment), str(folder / data))
                        yield Script(written, "_pairs.py", given, after)
                        after = (written, *after)
                        beside = "anchor." + runs.removeprefix("data.")
                        source = (f"data.files=[{folder / written}/pairs.jsonl]", beside)
                    keys = (f"seed={seed}", f"model.path={model}", *source, *suite.dpo, *last.dpo)
                    if last.pairs:
                        keys += (f"optimizer.max_updates={suite.alone}", *suite.kind)
                    yield Stage(place, "train_dpo", keys, after)
                after = (place, *after)
                model = str(folder / place / "model")
            if last.agree:
                play = ("test_time.algorithm=best_of_n", "test_time.judge=agreement")
                play += (f"test_time.simulations={last.agree}",)
            models[chain], trained[chain] = model, after
        yield _test(suite, seed, chain, models[chain], trained[chain], options, play)


def _test(
    suite: Suite,
    seed: int,
    chain: Sequence[str],
    model: str | None,
    after: tuple[str, ...],
    options: argparse.Namespace,
    play: tuple[str, ...] = (),
) -> Stage:
    held_out = (f"tasks.split={options.split}", f"tasks.n={options.held_out or suite.held_out}")
    first = (suite.fold if options.split == "test" else 0) if options.first is None else options.first
    held_out += (f"tasks.offset={first}",)
    held_out += (f"attempts={options.attempts}", "greedy=false", "against.run=null")
    keys = (*suite.environment, f"seed={seed}", *held_out, *suite.evaluate, *_policy(model), *play)
    return Stage(f"{options.split}-{name_of(chain or ('warm',), 'test')}", "evaluate", keys, after)


def _trained(name: str) -> str:
    """Return the name of the round that is trained as this one is, and where the trained model plays alone."""
    return next(other for other, one in ROUNDS.items() if one == replace(ROUNDS[name], agree=0))


def _policy(model: str | None) -> tuple[str, ...]:
    return (f"policy.model={model}",) if model else ()


def costs(folder: Path) -> dict[str, Any]:
    """Return what each collection of a seed cost and found (calls by part, tokens, successes), and the updates."""
    found = {}
    for path in sorted(folder.glob("*-data/summary.json")):
        summary = json.loads(path.read_text())
        if summary["resumed"]:  # its restored states are counted for the last session alone
            raise SystemExit(f"{path.parent} was interrupted; remove it, so that its calls can be counted")
        found[path.parent.name] = {
            "calls": summary["nodes"] - summary["tasks"],  # all but the roots
            "executed": summary["tool_calls"],
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
        training = json.loads(path.read_text()).get("training")
        if training is not None:
            updates[path.parent.name] = training["updates"]
    pairs = {path.parent.name: json.loads(path.read_text()) for path in sorted(folder.glob("*-pairs/manifest.json"))}
    return {"data": found, "online": online, "updates": updates, "pairs": pairs}


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


def executed(seed: Seed, chain: Sequence[str]) -> int | None:
    """Return `calls` with those that attempts had in common counted each time; None where it is not noted."""
    total = calls(seed, chain)
    for length, step in enumerate(chain, 1):
        data = seed.facts["data"].get(name_of((*chain[: length - 1], ROUNDS[step].collect), "data"), {})
        if step not in ONLINE:
            if "executed" not in data:
                return None
            total += data["executed"] - data["calls"]
    return total


def tokens(seed: Seed, chain: Sequence[str]) -> int | None:
    """Return all tokens that the collections of a chain sampled; None where a round is online, which notes none."""
    if set(chain) & ONLINE:
        return None
    places = (name_of((*chain[:n], ROUNDS[step].collect), "data") for n, step in enumerate(chain))
    return sum(seed.facts["data"][place]["tokens"] for place in places)


def updates(suite: Suite, seed: Seed, chain: Sequence[str]) -> int | None:
    """Return the updates of the model after a chain, from the warm start on; None where they are not noted."""
    places: list[str] = []
    for n, step in enumerate(chain):
        last, before = ROUNDS[step], chain[:n]
        if last.again:  # the warm start is fine-tuned anew
            places = []
        places += [_tuned(suite, before, last)] if last.times else []
        places += [name_of(chain[: n + 1], "sft")] if last.further else []
        places += [name_of((*before, _trained(step)), "dpo")] if last.dpo is not None else []
    noted = seed.facts.get("updates", {})
    return None if set(chain) & ONLINE or set(places) - noted.keys() else sum(noted[place] for place in places)


def _tuned(suite: Suite, before: Sequence[str], last: Round) -> str:
    """Return the run directory of a round's fine-tuning; what differs in nothing is shared."""
    longer = (f"optimizer.epochs{last.times * suite.epochs}",) * (last.times > 1)
    return name_of((*before, last.collect, *longer, *("again",) * last.again), "sft")


def measured(seeds: Sequence[Seed], split: str, chain: Sequence[str]) -> Any:
    """Return the success [seed, task] of a chain's model."""
    last = ROUNDS[chain[-1]] if chain else Round("")
    mode = "best_of_n" if last.agree else "sampled"
    return matrix(seeds, f"{split}-{name_of(chain or ('warm',), 'test')}", mode)


def control(
    seeds: Sequence[Seed], chain: Sequence[str], options: argparse.Namespace, of: set[str]
) -> tuple[str, ...]:
    """Return the best chain of only such rounds that takes at most the calls of this chain, 5 % over allowed."""
    most = 1.05 * np.mean([calls(seed, chain) for seed in seeds])
    plain = chains([arm for arm in options.arms if set(ARMS[arm]) <= of])
    allowed = [one for one in plain if np.mean([calls(seed, one) for seed in seeds]) <= most]
    return max(allowed, key=lambda one: float(measured(seeds, options.split, one).mean()), default=())


def alike(chain: Sequence[str], options: argparse.Namespace) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the controls of a chain with preferences: fine-tuning alone, a longer one, a further one, and no vote."""
    if not chain or ROUNDS[chain[-1]].dpo is None:
        return
    last, there = ROUNDS[chain[-1]], chains(options.arms)
    more: list[tuple[str, dict[str, Any]]] = [
        ("fine-tuning alone", {}), ("longer fine-tuning", {"times": last.times + last.longer}),
        *[("further fine-tuning", {"further": True})] * bool(last.pairs),
    ]  # fmt: skip
    for title, changes in more:
        for name, one in ROUNDS.items():
            other = (*chain[:-1], name)
            wanted = replace(last, dpo=None, pairs="", longer=1, agree=0, against="", **changes)
            if other in there and replace(one, against="") == wanted:
                yield title, other
    alone = (*chain[:-1], _trained(chain[-1]))
    if last.agree and alone in there:
        yield "one attempt", alone


def points(gain: Any) -> str:
    """Return the mean of gain[seed, task] and its 95 % interval, in points."""
    low, high = interval(gain)
    return f"{100 * gain.mean():+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def named(seeds: Sequence[Seed], chain: Sequence[str]) -> str:
    """Return a chain's rounds and its calls."""
    return f"{', '.join(chain)}; {np.mean([calls(seed, chain) for seed in seeds]):,.0f} calls"


def table(seeds: Sequence[Seed], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows: every arm after each of its rounds, and its difference from plain attempts."""
    rows = []
    for chain in [(), *chains(options.arms)]:
        values = measured(seeds, options.split, chain)
        low, high = share_interval(values)
        row: dict[str, Any] = {
            "rounds": ", ".join(chain) or "warm start",
            "calls": round(float(np.mean([calls(seed, chain) for seed in seeds]))) if chain else 0,
            "success": f"{values.mean():.1%}",
            "95 %": f"{low:.1%} to {high:.1%}",
            "each seed": ", ".join(f"{mean:.1%}" for mean in values.mean(1)),
            f"one of {options.attempts} succeeds": f"{(values > 0).mean():.1%}",
        }
        noted = [executed(seed, chain) for seed in seeds]
        if chain and None not in noted:
            row["calls executed"] = round(float(np.mean(noted)))  # type: ignore[arg-type]  # none is None
        for title, of in (("attempts", PLAIN), ("grpo", ONLINE)):
            plain = control(seeds, chain, options, of) if chain and not set(chain) <= of else ()
            if plain:
                row[f"against {title}"] = points(values - measured(seeds, options.split, plain))
                row[f"of {title}"] = named(seeds, plain)
        for title, other in alike(chain, options):
            row[f"against {title}"] = points(values - measured(seeds, options.split, other))
        other = (*chain[:-1], ROUNDS[chain[-1]].against) if chain else ()
        if other in chains(options.arms):
            row["against another round"] = points(values - measured(seeds, options.split, other))
            row["of another round"] = named(seeds, other)
        rows.append(row)
    return rows


def order(seeds: Sequence[Seed], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows of `ORDER`, each with its difference from the one before; none where an arm of it is missing."""
    if not set(ORDER[1:]) <= set(chains(options.arms)):
        return []
    rows: list[dict[str, Any]] = []
    before = None
    for chain in ORDER:
        values = measured(seeds, options.split, chain)
        row: dict[str, Any] = {"rounds": ", ".join(chain) or "warm start", "success": f"{values.mean():.1%}"}
        if before is not None:
            row["over the row before"] = points(values - before)
        rows.append(row)
        before = values
    return rows


def draw(name: str, seeds: Sequence[Seed], options: argparse.Namespace) -> Path:
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
    axes.set_xlabel("environment calls; one that attempts at a task have in common counts once")
    axes.set_ylabel(f"success on {options.split} tasks, sampled, %")
    axes.set_title(f"{options.suite}: {len(seeds)} seeds, mean and 95 % intervals over seeds and tasks")
    axes.legend(fontsize=8)
    FIGURES.mkdir(parents=True, exist_ok=True)
    path = FIGURES / f"{name}.svg"
    figure.savefig(path, metadata={"Date": None})
    return path


def main() -> None:
    """Run, print, draw, write."""
    parser = arguments(__doc__, SUITES)
    parser.add_argument("--split", choices=("validation", "test"), default="validation", help="held-out tasks")
    parser.add_argument("--arms", nargs="*", default=list(ARMS), choices=list(ARMS), help="none: the warm start alone")
    parser.add_argument("--first", type=int, help="the first held-out task; default: the suite's")
    parser.add_argument("--float32", action="store_true", help="for processors without instructions for bfloat16")
    parser.add_argument("--name", default="", help="added to the results, beside those of other seeds")
    options = parser.parse_args()
    options.arms = list(dict.fromkeys(options.arms))
    name = "_".join(filter(None, ("arms", options.suite, options.split, options.name)))
    suite = SUITES[options.suite].in_float32() if options.float32 else SUITES[options.suite]
    settings: dict[str, Any] = {
        "train tasks a round": suite.tasks,
        "held-out tasks": options.held_out or suite.held_out,
        "attempts": options.attempts,
    }
    if options.float32:
        settings["number format"] = "float32"
    if options.first is not None:
        settings["first held-out task"] = options.first
    seeds = carry_out(name, options, lambda seed, folder: stages(suite, seed, folder, options), settings, costs)
    rows = table(seeds, options)
    picture = draw(name, seeds, options)
    facts = {**settings, "seeds": len(seeds), "figure": picture.name}
    command = f"python benchmarks/arms.py --suite {options.suite} --split {options.split} --work DIR"
    command += " --float32" * options.float32
    given = {"--name": options.name or None, "--first": options.first, "--held-out": options.held_out}
    given["--attempts"] = None if options.attempts == parser.get_default("attempts") else options.attempts
    facts["command"] = " ".join([command, *(f"{key} {value}" for key, value in given.items() if value is not None)])
    write_result(name, rows, facts, options.results / f"{name}.json")
    if ladder := order(seeds, options):
        write_result(f"{name}_order", ladder, {"seeds": len(seeds)}, options.results / f"{name}_order.json")


if __name__ == "__main__":
    main()
