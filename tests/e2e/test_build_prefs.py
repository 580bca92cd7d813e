"""The main job as a user runs it: what it writes, kill -9, two at once, a foreign environment, plain TRL."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from offline_agent.store.columns import PAIR_TABLES, known
from tests.helpers import forked

ROOT = Path(__file__).parents[2]
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
KEYS = ["env=shop", "policy=noisy", "tasks.n=6", "search.simulations=24", "tracking.uri=null", "limits.workers=2"]
KEYS += ["pairs.replay_budget=4"]  # small searches leave little for hindsight otherwise


def command(run_dir: Path, *keys: str) -> list[str]:
    return [sys.executable, "-m", "offline_agent.pipelines.build_prefs", *KEYS, *keys, f"run_dir={run_dir}"]


def build(run_dir: Path, *keys: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return forked.run(command(run_dir, *keys), env=ENV, cwd=cwd or run_dir.parent)


def built(run_dir: Path, *keys: str) -> Path:
    done = build(run_dir, *keys)
    assert done.returncode == 0, done.stderr
    return run_dir


def digests(run_dir: Path, *folders: str) -> dict[str, str]:
    files = [f for folder in folders for f in sorted((run_dir / folder).rglob("*")) if f.is_file()]
    return {str(f.relative_to(run_dir)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


ALL = ("trees", *PAIR_TABLES, "filtered", "trajectories")


def pairs_of(run_dir: Path) -> list[dict[str, Any]]:
    """Return the rows of both tables of pairs, by the program's own names."""
    return [known(row) for table in PAIR_TABLES for row in pq.read_table(run_dir / table).to_pylist()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    subprocess.run(command(run_dir), env=ENV, check=True)  # by an interpreter of its own
    return run_dir


def test_it_writes_what_the_contract_lists(whole: Path) -> None:
    assert {p.name for p in whole.iterdir()} >= {
        "manifest.json", "events", "trees", "trajectories", *PAIR_TABLES, "filtered", "quarantine.jsonl",
        "summary.json",
    }  # fmt: skip
    summary = json.loads((whole / "summary.json").read_text())
    rows = pairs_of(whole)
    assert len(rows) == summary["pairs_total"] > 20
    assert summary["stopped"] == {"simulations": 6}, "a policy that repeats itself gets its simulations"
    assert {row["kind"] for row in rows} >= {"trajectory", "hindsight"}
    assert len({(str(r["prompt"]), str(r["chosen"]), str(r["rejected"])) for r in rows}) == len(rows)
    for row in rows:
        assert row["q_chosen"] > row["q_rejected"] or row["kind"] == "minimal"
        assert row["confidence"] is None or 0.5 * (row["kind"] == "step") <= row["confidence"] <= 1
    filtered = pq.read_table(whole / "filtered").to_pylist()
    assert filtered and all(row["success"] and row["reward"] == 1.0 for row in filtered)
    for line in (whole / "quarantine.jsonl").read_text().splitlines():
        assert json.loads(line)["reason"]


def kill_at(run_dir: Path, size: float, seconds: float, *keys: str) -> bool:
    """Start the job and kill it when its log has that size or so many seconds have passed; return whether it was."""
    process = forked.Process(command(run_dir, *keys), env=ENV)
    log, started = run_dir / "events" / "0000.jsonl", time.monotonic()
    while process.poll() is None:
        if time.monotonic() - started > seconds or (log.exists() and log.stat().st_size > size):
            process.send_signal(signal.SIGKILL)
            process.wait()
            return True
        time.sleep(0.002)
    assert process.returncode == 0, process.communicate()
    return False


def test_kill_9_at_random_points_changes_nothing(whole: Path, tmp_path: Path) -> None:
    rng = random.Random(11)
    final = (whole / "events" / "0000.jsonl").stat().st_size
    kills, run_dir = 0, tmp_path / "run"
    points = sorted(rng.random() for _ in range(4))
    for point in points:
        late = point == points[-1]  # killed by the clock: after the search, while pairs are built
        kills += kill_at(run_dir, 1e12 if late else point * final, 0.2 + rng.random() if late else 60)
    assert not kill_at(run_dir, 1e12, 1e6)
    assert digests(run_dir, *ALL) == digests(whole, *ALL)
    lines = [json.loads(line) for line in (run_dir / "quarantine.jsonl").read_text().splitlines()]
    assert len({json.dumps(line, sort_keys=True) for line in lines}) == len(lines)
    assert kills >= 3


def test_neither_workers_nor_how_states_are_restored_change_anything(whole: Path, tmp_path: Path) -> None:
    run_dir = built(tmp_path / "run", "limits.workers=5", "search.trees_in_flight=2", "search.state_cache=0")
    assert digests(run_dir, *ALL) == digests(whole, *ALL)
    assert json.loads((run_dir / "summary.json").read_text())["this_session"]["states_copied"] == 0


def test_without_copies_of_states_the_trees_are_the_same(whole: Path, tmp_path: Path) -> None:
    built(tmp_path / "run", "search.state_cache=0")
    copied = [json.loads((run / "summary.json").read_text())["this_session"]["states_copied"]
              for run in (whole, tmp_path / "run")]  # fmt: skip
    assert copied[0] > copied[1] == 0
    assert digests(tmp_path / "run", *ALL) == digests(whole, *ALL)


def test_two_runs_into_one_directory(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    long = command(run_dir, "tasks.n=2000")
    first = forked.Process(long, env=ENV)
    while not (run_dir / "manifest.json").exists():
        time.sleep(0.01)
    second = build(run_dir, "tasks.n=2000")
    first.kill()
    first.wait()
    assert second.returncode == 2 and "is in use by process" in second.stderr


def test_more_tasks_are_the_same_run_as_if_it_had_begun_with_them(whole: Path, tmp_path: Path) -> None:
    more = shutil.copytree(whole, tmp_path / "more")
    again = [sys.executable, "-m", "offline_agent.pipelines.build_prefs", f"run_dir={more}"]
    done = forked.run([*again, "tasks.n=8"], env=ENV, cwd=tmp_path)
    assert done.returncode == 0 and "tasks.n from 6 to 8" in done.stderr, done.stderr
    assert digests(more, *ALL) == digests(built(tmp_path / "fresh", "tasks.n=8"), *ALL)
    for key, says in (("tasks.n=7", "has 8, asked for 7"), ("search.simulations=30", "is not searched on"),
                      ("tasks.split=test", "asked for \"test\"")):  # fmt: skip
        refused = forked.run([*again, key], env=ENV, cwd=tmp_path)
        assert refused.returncode == 2 and says in refused.stderr


MINE = '''
class Locks:
    """Open a lock of three digits; the display says how many digits are right."""

    @classmethod
    def tasks(cls, split):
        for i in range(8):
            yield {"code": f"{(i * 37 + len(split)) % 1000:03d}"}

    def reset(self, code: str) -> str:
        self.code, self.terminated, self.right = code, False, 0
        return f"The note says {code[0]}, {code[1]} and {code[2]}."

    def dial(self, number: int) -> str:
        """Dial a number.

        Args:
            number: Three digits.
        """
        self.right = sum(a == b for a, b in zip(f"{number:03d}", self.code))
        self.terminated = self.right == 3
        return f"{self.right} right."

    def give_up(self) -> str:
        """Walk away."""
        self.terminated = True
        return "You leave."

    def get_reward(self) -> float:
        return self.right / 3
'''


def test_an_environment_of_ones_own_with_the_random_policy(tmp_path: Path) -> None:
    (tmp_path / "my_env.py").write_text(MINE)
    keys = ["env=my_env:Locks", "policy=random", "search.max_steps=6", "tasks.n=4"]
    done = build(tmp_path / "run", *keys, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = pairs_of(tmp_path / "run")
    assert rows and {row["prompt_ids"] for row in rows} == {None}


def test_a_corrupted_tree_and_log_are_named_and_left_alone(whole: Path, tmp_path: Path) -> None:
    import shutil

    run_dir = tmp_path / "run"
    shutil.copytree(whole, run_dir)
    tree = next((run_dir / "trees").glob("*.gz"))
    tree.write_bytes(tree.read_bytes()[:50])
    done = build(run_dir)
    assert done.returncode == 1 and tree.name in done.stderr and "Remove it" in done.stderr
    assert len(tree.read_bytes()) == 50
    tree.unlink()
    built(run_dir)
    assert digests(run_dir, *ALL) == digests(whole, *ALL)
    log = run_dir / "events" / "0000.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:3], lines[3][:40] + b"\n", *lines[4:]]))
    done = build(run_dir)
    assert done.returncode == 1 and "0000.jsonl" in done.stderr and "line 4" in done.stderr


def test_kill_9_with_the_embedded_model(tmp_path: Path) -> None:
    keys = ["policy=hf", "tasks.n=2", "search.simulations=8"]
    reference, run_dir = tmp_path / "whole", tmp_path / "killed"
    built(reference, *keys)
    manifest = json.loads((reference / "manifest.json").read_text())
    assert manifest["batch_invariant"] is True, "then only finished trees would be the same"
    final = (reference / "events" / "0000.jsonl").stat().st_size
    assert kill_at(run_dir, 0.6 * final, 600, *keys)  # in the second tree
    assert not kill_at(run_dir, 1e12, 1e6, *keys)
    assert digests(run_dir, *ALL) == digests(reference, *ALL)
    for row in pairs_of(run_dir):
        assert len(row["chosen_mask"]) == len(row["chosen_ids"]) and sum(row["chosen_mask"]) > 0
        assert json.loads(row["certificate"])


@pytest.mark.parametrize("start", ["raise OSError('no world')", "import time; time.sleep(100)"])
def test_a_first_task_that_does_not_open_does_not_end_the_run(tmp_path: Path, start: str) -> None:
    body = MINE.replace("        self.code, self", f"        if code[-1] == '5': {start}\n        self.code, self")
    (tmp_path / "my_env.py").write_text(body)  # the first code of `train` is 005
    keys = ["env=my_env:Locks", "policy=random", "tasks.n=3", "limits.reset_seconds=0.5", "limits.step_seconds=0.5"]
    done = build(tmp_path / "run", *keys, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["quarantined"]["trees"] == 1 and summary["simulations"] > 0


def test_the_readmes_environment_and_the_commands_beside_it(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    code = text[text.index("# my_env.py") : text.index("```", text.index("# my_env.py"))]
    (tmp_path / "my_env.py").write_text(code)
    fit = forked.run([sys.executable, "-m", "offline_agent.envs.conformance", "my_env:Reach"], env=ENV, cwd=tmp_path)
    assert fit.returncode == 0 and "passed" in fit.stdout, fit.stdout + fit.stderr
    done = build(tmp_path / "run", "env=my_env:Reach", "policy=random", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    inspect = [sys.executable, "-m", "offline_agent.pipelines.inspect", "run"]
    shown = forked.run([*inspect, "pair=0"], env=ENV, cwd=tmp_path)
    assert "chosen: value" in shown.stdout or "the run has no such pair" in shown.stderr
    enough = subprocess.Popen(inspect, stdout=-1, stderr=-1, text=True, env=ENV, cwd=tmp_path)
    enough.stdout.close()  # as `head` does
    assert enough.stderr.read() == "" and enough.wait() == 0
