"""The online stage with playing and training one after the other, and at once: `rollouts.behind` 0, 1 and 2.

Run `python benchmarks/rounds_ahead.py`. Trajectories that are trained on per second, at tools that take 0, 0.5, 1 and 2
times what generating a turn takes, the ways one after the other in one process:

- An engine and a trainer of their own: the real player, with an engine of slots on a clock (`generator_idle`), tools
  and a trainer that wait. Slots are half of a round's episodes, and an update takes as long as the engine needs for the
  turns of a round at the least. Episodes take 2 to 8 turns, by their task.
- This machine: `refine_grpo` itself with `sampler.name=hf`. Generation and training share its cores, so only what tools
  wait can be gained.

Then reward by version of the weights, from one start model, for several seeds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from _common import write_result
from generator_idle import SlotEngine

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.pool import EnvPool
from offline_agent.pipelines import refine_grpo, train_sft
from offline_agent.pipelines.entry import main as command
from offline_agent.pipelines.stages.playing import RoundPlayer, RoundsAhead
from offline_agent.rollouts.attempts import Attempt
from offline_agent.rollouts.episodes import Episodes
from offline_agent.training.online.groups import RoundSampler
from offline_agent.training.online.objectives import objective
from offline_agent.training.online.settings import GroupSettings

LATENCIES = (0.0, 0.5, 1.0, 2.0)  # of the generation of a turn
TASKS, SIZE, MOST = 4, 4, 8  # groups of a round, episodes of a group, turns of the longest
MACHINES = "env=benchmarks._slow_machines:SlowMachines"


class Doors:
    """So many doors, and behind each a wait of `latency` seconds, give or take a half of it."""

    latency = 0.0

    @classmethod
    def tasks(cls, split: str) -> Iterator[dict[str, Any]]:
        """Return numbers of doors, 2 to `MOST`."""
        return ({"doors": 2 + n % (MOST - 1), "number": n} for n in range(28))

    def reset(self, doors: int, number: int) -> str:
        """Begin."""
        self._left, self.terminated = doors, False
        return f"{doors} doors."

    def door(self, number: int) -> str:
        """Go through a door.

        Args:
            number: Which.
        """
        time.sleep(self.latency * (0.5 + (self._left * 7 + number * 3) % 11 / 10))
        self._left -= 1
        self.terminated = not self._left
        return "On."

    def get_reward(self) -> float:
        """Return half."""
        return 0.5


class Log:
    """Keeps nothing."""

    def read(self, wanted: Any) -> list[Attempt]:
        """Know nothing."""
        return []

    def add(self, attempt: Attempt) -> None:
        """Forget it."""


def apart(behind: int, latency: float, options: argparse.Namespace) -> dict[str, Any]:
    """Return a row: an engine of its own, and a trainer that waits."""
    Doors.latency = latency * options.seconds
    spec, ahead = EnvSpec(Doors), None
    engine, pool = SlotEngine(TASKS * SIZE // 2, options.seconds), EnvPool(TASKS * SIZE * (behind + 1), None)
    gate = (lambda idle: ahead.gate(idle)) if behind else None  # noqa: B023
    episodes = Episodes(spec, engine, pool, max_steps=MOST + 1, in_flight=pool.workers, gate=gate)
    player = RoundPlayer(episodes, Log(), SIZE, 0)  # type: ignore[arg-type]
    chosen = GroupSettings(tasks=TASKS, size=SIZE, behind=behind, choice="uniform")
    groups = RoundSampler(list(spec.tasks("train")), chosen, objective("grpo"), player)
    ahead = RoundsAhead(groups, player, 0, options.rounds)
    update = TASKS * SIZE * (2 + MOST) / 2 * options.seconds / engine.slots
    started = time.perf_counter()
    engine.window = (started, float("inf"))
    for number in range(options.rounds):
        if behind:
            ahead.take(number, lambda: None)
        else:
            groups.make(number)
        time.sleep(update)
        if behind:
            ahead.settle()
    seconds = time.perf_counter() - started
    ahead.close()
    engine.close()
    pool.close()
    return {
        "trajectories/s": round(options.rounds * TASKS * SIZE / seconds, 3),
        "engine busy": f"{engine.slot_seconds / engine.slots / seconds:.0%}",
        "trainer busy": f"{update * options.rounds / seconds:.0%}",
    }


def refined(start: Path, folder: Path, *keys: str) -> list[dict[str, Any]]:
    """Run the command in this process; return its records."""
    given = [f"model.path={start}", f"run_dir={folder}", "tracking.uri=null", "threads=1", "watch.enabled=false",
             "checkpoints.every=1000", "tasks.n=200", "optimizer.learning_rate=1e-3", *keys]  # fmt: skip
    if command(refine_grpo.COMMAND, given):
        sys.exit("refine_grpo failed")
    lines = (folder / "events" / "0000.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if "update" in record]


def begun(folder: Path) -> Path:
    """Return a small model that pulls either arm as often as the other."""
    given = (
        "env=examples.machines:Machines", "tracking.uri=null", "scratch.layers=2", "scratch.hidden_size=64",
        "scratch.heads=2", "scratch.key_value_heads=2", "scratch.vocabulary=320", "scratch.max_positions=768",
        "tasks.n=64", "demonstrations.noise=[1.0]", "demonstrations.only_successes=false", "optimizer.epochs=12",
        "optimizer.learning_rate=5e-3", "optimizer.schedule=constant", "batch.rows=8", "threads=1",
    )  # fmt: skip
    if command(train_sft.COMMAND, [*given, f"run_dir={folder}"]):
        sys.exit("train_sft failed")
    return folder / "model"


def here(behind: int, seconds: float, start: Path, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of this machine: trajectories, seconds, and those of playing where nothing overlaps."""
    records = refined(
        start, folder, MACHINES, f"env.seconds={seconds}", "env.machines=6", "rollouts.max_steps=7", "seed=1",
        f"rounds={options.rounds}", f"rollouts.behind={behind}", "rollouts.in_flight=192", "limits.workers=192",
    )  # fmt: skip
    return {
        "seconds": sum(record["seconds"] for record in records),
        "playing": fmean(record["rollout_seconds"] for record in records[1:]),
        "steps": fmean(record["steps"] for record in records),
        "staleness": fmean(record.get("staleness", 0.0) for record in records),
    }


def two_devices(options: argparse.Namespace) -> None:
    """Measure an engine and a trainer of their own, and write it."""
    rows: list[dict[str, Any]] = []
    for latency in LATENCIES:
        found = {behind: apart(behind, latency, options) for behind in (0, 1, 2)}
        for behind, row in found.items():
            ratio = round(row["trajectories/s"] / found[0]["trajectories/s"], 2)
            rows.append({"tool / turn": latency, "behind": behind, **row, "to behind=0": ratio})
        print(rows[-3:], file=sys.stderr)
    write_result(
        "rounds_ahead", rows,
        {
            "behind=1 to behind=0": {f"tools at {r['tool / turn']:g}": r["to behind=0"] for r in rows[1::3]},
            "a round": f"{TASKS * SIZE} episodes, {TASKS * SIZE // 2} slots, {options.seconds} s a turn",
            "rounds": options.rounds,
        },
        options.out and options.out / "rounds_ahead.json",
    )  # fmt: skip


def one_device(start: Path, folder: Path, options: argparse.Namespace) -> None:
    """Measure this machine, and write it."""
    rows: list[dict[str, Any]] = []
    turn = 0.0
    for latency in LATENCIES:
        sides: dict[int, list[dict[str, Any]]] = {0: [], 1: []}
        for repeat in range(options.repeats):
            for behind in sides:
                place = folder / f"here-{latency}-{repeat}-{behind}"
                sides[behind].append(here(behind, latency * turn, start, place, options))
        took = {behind: median(one["seconds"] for one in runs) for behind, runs in sides.items()}
        if latency == 0.0:  # all episodes of a round are in flight, so a turn takes what a round takes for each
            turn = median(one["playing"] / one["steps"] for one in sides[0])
        for behind, seconds in took.items():
            rates = [64 * options.rounds / one["seconds"] for one in sides[behind]]
            rows.append({
                "tool / turn": latency, "behind": behind, "trajectories/s": round(64 * options.rounds / seconds, 2),
                "least and most": f"{min(rates):.1f} to {max(rates):.1f}", "to behind=0": round(took[0] / seconds, 2),
            })  # fmt: skip
        print(rows[-2:], file=sys.stderr)
    write_result(
        "rounds_ahead_here", rows,
        {
            "behind=1 to behind=0": {f"tools at {r['tool / turn']:g}": r["to behind=0"] for r in rows[1::2]},
            "a round": f"64 episodes, {turn:.3g} s a turn of all of them together",
            "rounds": options.rounds, "repeats (medians)": options.repeats,
        },
        options.out and options.out / "rounds_ahead_here.json",
    )  # fmt: skip


def learning(start: Path, folder: Path, options: argparse.Namespace) -> None:
    """Measure reward by the version of the weights that played, and write it.

    Round n is played with version n - behind, so by round the curves would differ by that much. The figure `staleness`
    says of each round which version it was.
    """
    rows: list[dict[str, Any]] = [{"version": number} for number in range(options.learning_rounds - 2)]
    whole: dict[str, list[float]] = {}
    for behind in (0, 1, 2):
        name, curves = f"behind={behind}", []
        for seed in range(options.seeds):
            keys = ("env=examples.machines:Machines", "rollouts.max_steps=4", "rollouts.tasks=8", "rollouts.size=8",
                    f"seed={seed}", f"rounds={options.learning_rounds}", f"rollouts.behind={behind}")  # fmt: skip
            played: dict[int, list[float]] = {}
            for number, record in enumerate(refined(start, folder / f"learnt-{behind}-{seed}", *keys)):
                played.setdefault(round(number - record.get("staleness", 0.0)), []).append(record["reward_mean"])
            curves.append({version: fmean(rewards) for version, rewards in played.items()})
        for row in rows:
            values = [curve[row["version"]] for curve in curves if row["version"] in curve]
            row[name] = f"{fmean(values):.2f} ± {stdev(values):.2f}" if len(values) > 1 else None
        least = len(rows) - 1
        whole[name] = [round(fmean(x for n, x in curve.items() if n <= least), 3) for curve in curves]
    write_result(
        "rounds_ahead_learning", rows,
        {"mean over these versions, of each seed": whole, "seeds": options.seeds,
         "environment": "examples.machines:Machines, 64 episodes a round, learning rate 1e-3"},
        options.out and options.out / "rounds_ahead_learning.json",
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a turn of the engine on a clock")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3, help="on this machine")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--learning-rounds", type=int, default=16)
    parser.add_argument("--only", choices=("apart", "here", "learning"), default=None)
    parser.add_argument("--out", type=Path, default=None, help="folder")
    options = parser.parse_args(arguments)
    if options.only in (None, "apart"):
        two_devices(options)
    with tempfile.TemporaryDirectory() as folder:
        start = begun(Path(folder) / "start") if options.only != "apart" else Path()
        if options.only in (None, "here"):
            one_device(start, Path(folder), options)
        if options.only in (None, "learning"):
            learning(start, Path(folder), options)


if __name__ == "__main__":
    main()
