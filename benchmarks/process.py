"""Step models on Countdown, whose solver knows every action's true value: how right they are, and uses of them.

Run `python benchmarks/process.py --work DIR`. The policy is the solver, careless with probability 0.7. Each seed
searches train tasks with it, and trains a step model on the edges' values (`train_reward labels=steps`), beginning
with a small model that has learnt the solver's moves. On validation tasks: is a turn's value higher where the action
keeps the task solvable; does the model help as the critic of a search at test time, and as the chooser among samples.
Two tables: `process.json`, the uses; `process_quality.json`, the model. `--plan` prints the commands.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _common import write_result
from _experiment import Seed, Stage, arguments, carry_out, interval, share_interval
from _recipes import SUITES
from _solver import moved, state

from offline_agent.envs.countdown import shortest
from offline_agent.evaluation.agreement import auc
from offline_agent.evaluation.test_time import best_of_n
from offline_agent.records import Task
from offline_agent.rollouts.attempts import Attempt, Journal
from offline_agent.store.events import EventLog
from offline_agent.training.step_model import StepModel

SUITE = SUITES["countdown"]
PLAYS, TASKS, SIMULATIONS, SAMPLES = 4000, 200, 16, 8
POLICY = ("policy=noisy", "policy.noise=0.7")
ROUNDS = 10
MODELS = {"steps": "step model"}
_START = "../warm"
_TRAINED = ("epochs=2", "rows=16", "learning_rate=5e-4")


def stages(seed: int, folder: Path, held_out: int, warm: str | None) -> Iterator[Stage]:
    """Yield the commands of a seed; what a command reads stands before it.

    Args:
        seed: Its number.
        folder: Its folder.
        held_out: Validation tasks.
        warm: The warm start; None = it is trained first.
    """
    start, env = () if warm else (_START,), SUITE.environment
    mine = f"seed={seed}"
    first = PLAYS + 1500 * seed
    plays = (*(key for key in SUITE.warm if not key.startswith("tasks.n=")), f"tasks.n={PLAYS}")
    if warm is None:
        yield Stage(_START, "train_sft", plays)
        warm = f"{(folder / _START).resolve()}/model"
    searched = ("search.value=success", f"search.simulations={SIMULATIONS}", "pairs.kinds=[trajectory]", "audit=off")
    keys = (*env, *POLICY, *searched, mine, f"tasks.n={TASKS}", f"tasks.offset={first}")
    yield Stage("search", "build_prefs", keys)
    for labels in MODELS:
        keys = (f"source={folder / 'search'}", f"model={warm}", f"labels={labels}", mine, *_TRAINED)
        yield Stage(labels, "train_reward", keys, ("search", *start))
    tests = (*env, *POLICY, mine, f"tasks.n={held_out}", "greedy=false", "against.run=null")
    yield Stage("samples", "evaluate", (*tests, f"attempts={SAMPLES}"))
    led = (*tests, "attempts=0", "test_time.algorithm=mcts", f"test_time.simulations={SIMULATIONS}")
    yield Stage("mcts", "evaluate", (*led, "search.value=success"))
    for labels in MODELS:
        keys = (*led, "search.value=success", f"search.critic={folder / labels / 'model'}")
        yield Stage(f"mcts-{labels}", "evaluate", keys, (labels,))
    keys = (*led, "search.value=success", "search.critic=benchmarks/_solver.py:critic")
    yield Stage("mcts-solver", "evaluate", keys)
    recipe = (*(key for key in SUITE.online if not key.startswith("rounds=")), f"rounds={ROUNDS}")
    online = (*env, f"model.path={warm}", *recipe, mine, "tasks.n=1500", f"tasks.offset={first}")
    judged = ("rollouts.credit=turn_reward", f"rollouts.turn_judge={folder / 'steps' / 'model'}")
    yield Stage("online", "refine_grpo", online, start)
    yield Stage("online-steps", "refine_grpo", (*online, *judged), ("steps",))
    for name in ("online", "online-steps"):
        keys = (*env, mine, f"tasks.n={held_out}", "greedy=false", "against.run=null", "attempts=4")
        learnt = (f"policy.model={folder / name / 'model'}", "policy.temperature=1.0")
        yield Stage(f"{name}-eval", "evaluate", (*keys, *learnt), (name,))


def facts(folder: Path) -> dict[str, Any]:
    """Return what the models say of a seed's samples, whom they choose, and the costs of searches."""
    records = list(EventLog(folder / "samples" / "events" / "0000.jsonl").read())
    tasks = {one["attempt"][2]: Task(one["attempt"][2], "validation", {}) for one in records if "attempt" in one}
    of_task: dict[str, list[Attempt]] = {name: [] for name in sorted(tasks)}
    for attempt in Journal(lambda _: None, records, tasks).attempts.values():
        of_task[attempt.task.task_id].append(attempt)
    models = {labels: StepModel(str(folder / labels / "model"), labels).turns for labels in MODELS}
    judges: dict[str, Any] = {"verifier": "verifier", "agreement": "agreement", **models}
    chosen = {
        name: [float(bool(best_of_n(each, judge).success)) for each in of_task.values()]
        for name, judge in judges.items()
    }
    figures = {labels: json.loads((folder / labels / "summary.json").read_text())["held_out"] for labels in MODELS}
    calls = {name: _tool_calls(folder / name) for name in ("mcts", "mcts-steps", "mcts-solver")}
    quality = {name: _quality(of_task, told) for name, told in models.items()}
    return {"chosen": chosen, "held_out": figures, "calls": calls, "quality": quality}


def _tool_calls(run_dir: Path) -> int:
    summary = json.loads((run_dir / "summary.json").read_text())
    calls: int = summary["modes"]["mcts"]["test_time"]["tool_calls"]
    return calls


def _quality(of_task: dict[str, list[Attempt]], told: Callable[[Any], Sequence[float]]) -> dict[str, Any]:
    """Return how well values tell turns that keep a solvable task solvable from those that do not.

    Args:
        of_task: Attempts by task.
        told: Says the value of each turn.
    """
    rows: list[tuple[str, int, float, bool]] = []
    for name, attempts in of_task.items():
        for attempt in attempts:
            if (trajectory := attempt.trajectory()) is not None:
                for turn, (value, kept) in enumerate(zip(told(trajectory), _solvable(attempt), strict=True)):
                    if kept is not None:
                        rows.append((name, turn, value, kept))
    by_turn = [[row for row in rows if row[1] == turn] for turn in range(3)]
    one_task = [auc(_masses([row for row in by_turn[0] if row[0] == name])) for name in of_task]
    known = [one for one in one_task if one is not None]
    return {
        "turns": len(rows),
        "kept": sum(row[3] for row in rows) / len(rows),
        "AUC": auc(_masses(rows)),
        **{f"AUC, turn {turn + 1}": auc(_masses(each)) for turn, each in enumerate(by_turn)},
        "AUC, turn 1, within tasks": sum(known) / len(known),
    }


def _masses(rows: Sequence[tuple[str, int, float, bool]]) -> list[tuple[float, float, float]]:
    return [(value, float(kept), float(not kept)) for _, _, value, kept in rows]


def _solvable(attempt: Attempt) -> Iterator[bool | None]:
    """Yield for each turn whether the task can be solved after it; None where it could not be before."""
    assert attempt.context is not None
    left, target = state(attempt.context.lineage()[0])
    before = True
    for step in attempt.steps:
        left = moved(left, step.action)
        now = shortest(left, target) is not None
        yield now if before else None
        before = now


USES = (
    ("one sample", "none", "samples", "sampled"),
    (f"search of {SIMULATIONS} simulations, verified", "none", "mcts", "mcts"),
    (f"search of {SIMULATIONS} simulations, verified", "step model as critic", "mcts-steps", "mcts"),
    (f"search of {SIMULATIONS} simulations, verified", "the exact solver as critic", "mcts-solver", "mcts"),
    (f"{ROUNDS} online rounds of a small model", "none", "online-eval", "sampled"),
    (f"{ROUNDS} online rounds of a small model", "step model as judge of turns", "online-steps-eval", "sampled"),
)


def uses(seeds: Sequence[Seed]) -> Iterator[dict[str, Any]]:
    """Yield the table of the uses; differences are paired by seed and task."""
    base: dict[str, Any] = {}
    for use, model, run, mode in USES:
        values = np.array([seed.runs[run][mode]["success"] for seed in seeds], dtype=float)
        row = _row(use, model, values, base.setdefault(use, values))
        if mode == "mcts":
            row["calls"] = round(sum(seed.facts["calls"][run] for seed in seeds) / len(seeds))
        yield row
    for name, who in (("agreement", "none: the commonest end"), *MODELS.items(), ("verifier", "the verifier itself")):
        values = np.array([seed.facts["chosen"][name] for seed in seeds])
        use = f"best of {SAMPLES} samples"
        yield _row(use, who, values, base.setdefault(use, values))


def _row(use: str, model: str, values: Any, base: Any) -> dict[str, Any]:
    low, high = share_interval(values)
    row = {"use": use, "model": model, "success": f"{values.mean():.1%}", "95 %": f"{low:.1%} to {high:.1%}"}
    row["each seed"] = ", ".join(f"{one.mean():.1%}" for one in values)
    if base is not values:
        low, high = interval(values - base)
        gain = 100 * (values - base).mean()
        row["against none"] = f"{gain:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
    return row


def quality(seeds: Sequence[Seed]) -> Iterator[dict[str, Any]]:
    """Yield the table of what is told of the samples' turns, each seed's figure."""
    for name in seeds[0].facts["quality"]:
        each = [seed.facts["quality"][name] for seed in seeds]
        yield {
            "told by": MODELS.get(name, name),
            **{key: ", ".join(f"{one[key]:.2f}" for one in each) for key in each[0] if key.startswith("AUC")},
        }


def main() -> None:
    """Run, print, write."""
    parser = arguments(__doc__, ["countdown"])
    parser.set_defaults(suite="countdown", held_out=100)
    parser.add_argument("--warm", type=Path, help="a warm start, in place of one that is trained first")
    options = parser.parse_args()
    settings = {"train tasks searched": TASKS, "held-out tasks": options.held_out, "samples": SAMPLES}
    warm = None if options.warm is None else str(options.warm.resolve())
    plan = partial(stages, held_out=options.held_out, warm=warm)
    seeds = carry_out("process", options, plan, settings, facts)
    numbers = " ".join(map(str, options.seeds))
    told = {**settings, "seeds": len(seeds), "command": f"python benchmarks/process.py --work DIR --seeds {numbers}"}
    write_result("process", list(uses(seeds)), told, options.results / "process.json")
    each = [seed.facts["quality"]["steps"] for seed in seeds]
    more = {
        "turns in solvable states": ", ".join(f"{one['turns']:,}" for one in each),
        "of them keep it so": ", ".join(f"{one['kept']:.1%}" for one in each),
        "the step model's held-out figures": "; ".join(_told(seed.facts["held_out"]["steps"]) for seed in seeds),
    }
    write_result("process_quality", list(quality(seeds)), more, options.results / "process_quality.json")


def _told(found: dict[str, Any]) -> str:
    brier = f"Brier {found['brier']:.3f} (of the mean {found['brier_of_mean']:.3f})"
    within = found["auc_within_tasks"]["mean"]
    return f"{brier}, calibration {found['calibration']:.3f}, AUC {found['auc']:.2f}, within tasks {within:.2f}"


if __name__ == "__main__":
    main()
