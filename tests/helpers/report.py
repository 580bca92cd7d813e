"""Runs whose texts try to break a page: markup, scripts, terminal escapes, direction marks, odd names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from offline_agent.pipelines.entry import main
from offline_agent.store.run_directory import RunDirectory
from tests.helpers.bandit import QUIET, command

HOSTILE = (
    "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>\x1b[31mred\x1b[0m\x07\x00 "
    "</pre></details>{{ 7 * 7 }} \u202eabc &lt; \ud800 \"'"
)
"""Text as a tool may return it."""
SHOWN = (
    "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>\\x1b[31mred\\x1b[0m\\x07\\x00 "
    "</pre></details>{{ 7 * 7 }} \\u202eabc &lt; "
)
"""Its beginning as a page must show it."""


class Loud:
    """Right solves the task, left does not; both answer with hostile text."""

    system_prompt = "Choose. </script><script>window.hacked = 3</script>"
    max_steps = 3

    @classmethod
    def tasks(cls, split: str) -> Any:
        return ({"task_id": f"{split} <b>#{n}&node=9", "n": n} for n in range(6))

    def reset(self, n: int) -> str:
        self.n, self.way, self.terminated = n, [], False
        return f"Task {n}. {HOSTILE}"

    def look(self) -> str:
        """Look around."""
        self.way.append("look")
        return HOSTILE

    def left(self) -> str:
        """Go left."""
        self.way.append("left")
        self.terminated = True
        return HOSTILE

    def right(self) -> str:
        """Go right."""
        self.way.append("right")
        self.terminated = True
        return HOSTILE

    def get_reward(self) -> float:
        return float("right" in self.way)


ENV = "env=tests.helpers.report:Loud"


def searched(folder: Path, *keys: str) -> Path:
    """Search the hostile environment at random; return the run directory."""
    given = [ENV, "policy=random", "tasks.n=3", "search.simulations=8", QUIET, f"run_dir={folder}", *keys]
    assert main(command("build_prefs"), given) == 0
    return folder


def evaluated(folder: Path, *keys: str) -> Path:
    """Evaluate a random policy on the hostile environment; return the run directory."""
    given = [ENV, "policy=random", "tasks.n=4", "tasks.split=validation", "attempts=2", "greedy=false", QUIET,
             f"run_dir={folder}", *keys]  # fmt: skip
    assert main(command("evaluate"), given) == 0
    return folder


def page_of(run_dir: Path) -> str:
    """Return the page of a run; every part of it must have been made."""
    text = (run_dir / "report.html").read_text()
    assert "Not readable" not in text
    return text


def trained(folder: Path, updates: int = 40) -> Path:
    """Write the records of an online training that the watch marked; return the run directory."""
    with RunDirectory.open(folder, config={"seed": 0}, facts={}, command="refine_grpo") as run:
        for update in range(1, updates + 1):
            run.events().append({
                "update": update, "loss": 1 / update, "entropy": 0.5, "env_steps": 10 * update,
                "success_mean": update / updates, "reward_mean": None, "kl": 9.0 if update == 17 else 0.1,
            })  # fmt: skip
        ends = {"first": {"success_mean": 0.1}, "last": {"success_mean": 0.9}}
        run.write_summary({
            "pipeline": "refine_grpo", "environment": "loud", "environment_keys": [ENV],
            "training": {"updates": updates, "seconds": 1.5, "loss_first": 1.0, "loss_last": 0.02, "tokens": 9,
                         "raw_tokens": 12, "agent_tokens": 4, "agent_tokens_per_second": None, **ends},
            "rollouts": {"attempts": 4, "env_steps": 40, "unscored": 0}, "objective": {"name": "grpo"},
            "cuts": {"episodes": 4, "max_steps": 0, "tokens": 0, "context": 0, "limits": {
                "max_steps": ["rollouts.max_steps", 3], "tokens": ["rollouts.max_tokens", 0]}},
            "model": {"path": "model", "parameters": 10, "trained": 10}, "warnings": [],
            "findings": [["kl", 17, f"the policy left its reference {HOSTILE[:60]}"]], "checklist": [["mask", "0.2"]],
        })  # fmt: skip
        run.finish()
    return folder
