"""Cost of environments of another interpreter (`env.python`): a step, a snapshot and a reset over the pipe.

Run `python benchmarks/adapters.py [PYTHON]`: PYTHON is the other interpreter, by default a bare one made here. Three
environments, in process and elsewhere: `Tiny`, whose steps cost nothing, so that what is left is the way over the pipe;
the orders of `examples/`, over SQLite; and FrozenLake of Gymnasium where PYTHON has it. Medians over calls.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

from _common import write_result
from isolation import CALLS, median_us

from offline_agent.envs.base import EnvSpec, Episode
from offline_agent.errors import EnvironmentFault
from offline_agent.records import Action, Task, ToolCall

ROOT = Path(__file__).resolve().parents[1]
TINY = '''
class Tiny:
    terminated = False

    @classmethod
    def tasks(cls, split):
        return [{"task_id": split}]

    def reset(self) -> str:
        self.calls = 0
        return "go"

    def count(self) -> str:
        """Count."""
        self.calls += 1
        return str(self.calls)

    def get_reward(self) -> float:
        return 0.0
'''
CASES: dict[str, tuple[str, dict[str, Any], ToolCall]] = {
    "orders": (f"{ROOT}/examples/orders.py:Orders", {}, ToolCall("find_orders", {"customer": "Ada"})),
    "FrozenLake": ("gym:FrozenLake-v1", {"options": {"is_slippery": False}}, ToolCall("move_left", {})),
}


def stepped_us(spec: EnvSpec, task: Task, call: ToolCall) -> float:
    """Return the median microseconds of a step; episodes that end are begun again."""
    episode, action = spec.open(), Action(call.name, call=call)
    episode.reset(task)
    micros = []
    for _ in range(CALLS):
        if episode.terminated:
            episode.reset(task)
        micros.append(median_us(lambda: episode.step(action), 1))
    episode.close()
    return sorted(micros)[len(micros) // 2]


def row(name: str, path: str, args: dict[str, Any], call: ToolCall, python: str | None) -> dict[str, Any]:
    """Return the costs of one environment, in process or elsewhere."""
    spec = EnvSpec.load(path, args, python=python)
    task = next(iter(spec.tasks("train")))
    step = stepped_us(spec, task, call)
    episode: Episode = spec.open()
    episode.reset(task)
    try:
        copy: float | None = median_us(lambda: episode.copy().close(), 50)
    except EnvironmentFault:
        copy = None
    return {
        "environment": name,
        "way": "in process" if python is None else "other interpreter",
        "step_us": step,
        "snapshot_us": copy,
        "open_and_reset_us": median_us(lambda: spec.open().reset(task), 50),
    }


def main() -> None:
    """Measure and write."""
    with tempfile.TemporaryDirectory() as place:
        python = sys.argv[1] if len(sys.argv) > 1 else f"{place}/venv/bin/python"
        if len(sys.argv) == 1:
            venv.create(f"{place}/venv", symlinks=True, with_pip=False)
        Path(place, "tiny.py").write_text(TINY)
        cases = {"Tiny": (f"{place}/tiny.py:Tiny", {}, ToolCall("count", {})), **CASES}
        has = subprocess.run([python, "-c", "import gymnasium"], capture_output=True, check=False).returncode == 0
        if not has or importlib.util.find_spec("gymnasium") is None:
            del cases["FrozenLake"]
        rows = [row(name, *case, way) for name, case in cases.items() for way in (None, python)]
    steps = [one["step_us"] for one in rows]
    over = {f"{rows[n]['environment']}_step_over_in_process": round(steps[n] / steps[n - 1], 2)
            for n in range(1, len(rows), 2)}  # fmt: skip
    most = max(steps[n] - steps[n - 1] for n in range(1, len(rows), 2))
    write_result("adapters", rows, {"calls": CALLS, **over, "most_us_that_the_pipe_adds_to_a_step": round(most, 1),
                                    "goal": "under 1,000 us a step"})  # fmt: skip


if __name__ == "__main__":
    main()
