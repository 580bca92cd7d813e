"""`evaluate` as a user runs it: its files, known policies, kill -9, comparisons, test time, foreign environments."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from offline_agent.pipelines.build_prefs import COMMAND as BUILD_PREFS
from offline_agent.pipelines.entry import main
from offline_agent.pipelines.evaluate import COMMAND
from offline_agent.rollouts.attempts import COLUMNS
from offline_agent.store.columns import TRAJECTORY_COLUMNS, known_name
from offline_agent.store.files import write_json
from offline_agent.store.manifest import read_manifest
from tests.helpers import forked
from tests.helpers.fake_server import FakeServer, serving

ROOT = Path(__file__).parents[2]
DEFAULT_MODEL = ROOT / "offline_agent" / "assets" / "default_model"
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
FREE = ["tracking.uri=null", "resamples=500", "limits.workers=2"]


def evaluate(run_dir: Path, *keys: str) -> int:
    return main(COMMAND, [*FREE, *keys, f"run_dir={run_dir}"])


def summary(run_dir: Path) -> dict[str, Any]:
    return dict(json.loads((run_dir / "summary.json").read_text()))


def rows(run_dir: Path, table: str = "attempts") -> list[dict[str, Any]]:
    return list(pq.read_table(run_dir / table).to_pylist())


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("noisy") / "run"
    assert evaluate(run_dir, "policy=noisy", "tasks.n=12") == 0
    return run_dir


def test_it_writes_what_was_agreed(noisy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    got = summary(noisy)
    assert got["environment"] == "shop" and got["policy"] == "noisy" and got["tasks"] == 12
    assert got["split"] == "validation" and set(got["modes"]) == {"sampled", "greedy"}
    for mode, n in (("sampled", 48), ("greedy", 12)):
        figures = got["modes"][mode]
        assert figures["success"]["low"] <= figures["success"]["mean"] <= figures["success"]["high"]
        assert figures["attempts"] == n == sum(row["mode"] == mode for row in rows(noisy))
    assert set(got["modes"]["sampled"]["pass_at"]) == {"1", "2", "4"}
    first = rows(noisy)[0]
    assert tuple(first) == COLUMNS and json.loads(first["verdict"])["verifier"] in ("shop", "max_steps")
    trajectories = rows(noisy, "trajectories")
    assert len(trajectories) == 60 and tuple(map(known_name, trajectories[0])) == TRAJECTORY_COLUMNS
    assert {row["origin"] for row in trajectories} == {"rollout"}
    assert {row["split"] for row in trajectories} == {"validation"}
    won = [row["success"] for row in rows(noisy)]
    assert won == [row["success"] for row in trajectories] and {True, False} == set(won)
    assert json.loads((noisy / "manifest.json").read_text())["status"] == "done"


def test_everything_a_result_must_say_stands_in_the_output(noisy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert evaluate(noisy, "policy=noisy", "tasks.n=12") == 0  # nothing is left to play
    out = " ".join(capsys.readouterr().out.split())
    for words in (
        "shop version 2", "at most 15 steps", "temperature 0.7", "system prompt", "judged by shop (version 2)",
        "seed 0", "12 tasks (validation)", "clustered by task", "failure_recovery",
    ):  # fmt: skip
        assert words in out, words
    protocol = summary(noisy)["protocol"]
    assert protocol["environment"]["version"] == "2" and protocol["tool_budget"] == {"max_steps": 15}
    assert protocol["evaluator"][0] == {
        "verifier": "shop",
        "version": "2",
        "attempts": protocol["evaluator"][0]["attempts"],
    }
    assert protocol["scaffold"]["prompts"][0]["system_prompt_hash"] and protocol["failure_recovery"]["max_steps"]


def test_the_oracle_always_succeeds_and_chance_never(tmp_path: Path) -> None:
    assert evaluate(tmp_path / "oracle", "policy=oracle", "tasks.n=10") == 0
    modes = summary(tmp_path / "oracle")["modes"]
    assert modes["sampled"]["success"]["mean"] == modes["greedy"]["success"]["mean"] == 1.0
    assert 0.6 < modes["greedy"]["success"]["low"] < 0.9  # ten tasks prove no more
    assert evaluate(tmp_path / "random", "policy=random", "tasks.n=10") == 0
    assert summary(tmp_path / "random")["modes"]["sampled"]["success"]["mean"] <= 0.05


# -- kill -9 -----------------------------------------------------------------------------------------------------

KEYS = ["policy=noisy", "tasks.n=40", "test_time.algorithm=mcts", "test_time.simulations=6", "in_flight=8"]


def command(run_dir: Path) -> list[str]:
    return [sys.executable, "-m", "offline_agent.pipelines.evaluate", *FREE, *KEYS, f"run_dir={run_dir}"]


def kill_at(run_dir: Path, log: str, size: float) -> None:
    process = forked.Process(command(run_dir), env=ENV)
    file = run_dir / "events" / log
    while process.poll() is None:
        if file.exists() and file.stat().st_size > size:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return
        time.sleep(0.001)
    raise AssertionError(f"it ended (status {process.returncode}) before {log} had {size:.0f} bytes")


def test_kill_9_changes_neither_figures_nor_rows(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert evaluate(whole, *KEYS) == 0
    sizes = {log: (whole / "events" / log).stat().st_size for log in ("0000.jsonl", "search.jsonl")}
    kill_at(killed, "0000.jsonl", 0.2 * sizes["0000.jsonl"])
    kill_at(killed, "0000.jsonl", 0.6 * sizes["0000.jsonl"])
    kill_at(killed, "search.jsonl", 0.5 * sizes["search.jsonl"])
    assert evaluate(killed, *KEYS) == 0
    for table in ("attempts", "trajectories"):
        one, other = ((run / table / "0000.parquet").read_bytes() for run in (whole, killed))
        assert hashlib.sha256(one).hexdigest() == hashlib.sha256(other).hexdigest(), table
    once, again = summary(whole), summary(killed)
    for figures in (once, again):
        del figures["seconds"], figures["this_session"], figures["checksum"]
    assert once == again
    keys = [row["policy"] + row["mode"] + row["task_id"] + str(row["attempt"]) for row in rows(killed)]
    assert len(keys) == len(set(keys)) == 40 * 6


# -- comparisons -------------------------------------------------------------------------------------------------


def test_against_the_policy_of_the_search_that_made_the_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search = ["env=shop", "policy=oracle", "tasks.n=2", "search.simulations=2", f"run_dir={tmp_path / 'search'}"]
    assert main(BUILD_PREFS, ["tracking.uri=null", *search]) == 0
    given = ["policy=random", "tasks.n=4", "attempts=2", "greedy=false", f"against.run={tmp_path / 'search'}"]
    assert evaluate(tmp_path / "run", *given) == 0
    got, out = summary(tmp_path / "run"), capsys.readouterr().out
    assert got["comparison"]["sampled"]["difference"]["mean"] == -1.0 and "100.0 points below the other policy" in out
    assert got["against"]["made_data"] == str(tmp_path / "search")
    assert {row["policy"] for row in rows(tmp_path / "run")} == {"candidate", "against"}
    page = (tmp_path / "run" / "report.html").read_text()
    assert "100.0 points below the other policy" in page and "against: oracle" in page and "could not be" not in page
    trained = tmp_path / "trained" / "model"  # a training's folder names the search; a server's policy is not played
    shutil.copytree(DEFAULT_MODEL, trained)
    write_json(trained.parent / "summary.json", {"made_by": str(tmp_path / "search")})
    by_itself = [f"policy.model={trained}", "tasks.n=2", "attempts=1", "greedy=false"]
    assert evaluate(tmp_path / "itself", *by_itself) == 0
    assert summary(tmp_path / "itself")["against"]["made_data"] == str(tmp_path / "search")
    assert evaluate(tmp_path / "nobody", *by_itself, "against.run=null") == 0
    assert "against" not in summary(tmp_path / "nobody")
    manifest = read_manifest(tmp_path / "search")
    manifest["config"]["policy"]["api_key"] = "***"
    write_json(tmp_path / "search" / "manifest.json", manifest)
    assert evaluate(tmp_path / "again", *given) == 2 and "had a secret key" in capsys.readouterr().err
    assert evaluate(tmp_path / "no", *given[:-1], f"against.run={tmp_path / 'run'}") == 2
    assert "is no search" in capsys.readouterr().err


# -- test time ---------------------------------------------------------------------------------------------------


def test_best_of_n_uses_the_attempts_there_are_and_says_who_was_asked(
    noisy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = ["policy=noisy", "tasks.n=12", "test_time.algorithm=best_of_n", "test_time.simulations=6"]
    assert evaluate(tmp_path / "run", *keys) == 0
    assert "The verifier that scores the tasks was asked at test time" in " ".join(capsys.readouterr().out.split())
    got, before = summary(tmp_path / "run"), summary(noisy)
    assert got["modes"]["sampled"] == before["modes"]["sampled"]  # the first four of the six
    best = got["modes"]["best_of_n"]
    assert best["success"]["mean"] >= got["modes"]["sampled"]["pass_at"]["4"]["mean"]
    assert best["test_time"]["simulations"] == 72 and best["test_time"]["tool_calls"] > 72
    assert got["gain_of_search"]["difference"]["mean"] > 0 and set(got["modes"]) == {"sampled", "greedy", "best_of_n"}
    modes = [row["mode"] for row in rows(tmp_path / "run")]
    assert (modes.count("sampled"), modes.count("best_of_n_sample"), modes.count("best_of_n")) == (48, 24, 12)
    assert len(rows(tmp_path / "run", "trajectories")) == 12 * 7


def test_mcts_in_an_environment_without_copies(tmp_path: Path) -> None:
    keys = ["env=examples.orders:Orders", "policy=noisy", "tasks.n=6", "attempts=2"]
    assert evaluate(tmp_path / "run", *keys, "test_time.algorithm=mcts", "test_time.simulations=12") == 0
    got = summary(tmp_path / "run")
    assert got["modes"]["mcts"]["success"]["mean"] == 1.0
    assert {row["origin"] for row in rows(tmp_path / "run", "trajectories")} == {"rollout", "search"}
    assert got["protocol"]["tool_budget"]["test_time"]["simulations"] == 12


# -- others' environments, others' models ------------------------------------------------------------------------

BROKEN = '''
class Coin:
    """Call a coin; every third task does not open, and nobody can judge the fourth."""

    @classmethod
    def tasks(cls, split):
        return ({"n": n} for n in range(8))

    def reset(self, n: int) -> str:
        if n % 3 == 2:
            raise OSError("no coin")
        self.n, self.terminated = n, False
        return "heads or tails?"

    def heads(self) -> str:
        """Say heads."""
        self.terminated = True
        return "it is"

    def get_reward(self):
        return None if self.n == 4 else 1.0
'''


def test_an_environment_that_breaks_leaves_attempts_unscored_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "coin.py").write_text(BROKEN)
    assert evaluate(tmp_path / "run", f"env={tmp_path / 'coin.py'}:Coin", "policy=random", "attempts=2") == 0
    assert "unscored attempts" in capsys.readouterr().out
    figures = summary(tmp_path / "run")["modes"]["sampled"]
    assert figures["success"]["mean"] == 1.0 and figures["success_if_unscored_failed"] == pytest.approx(5 / 8)
    assert (figures["unscored"], figures["unscored_tasks"], figures["cut_by"]) == (6, 3, {"fault": 4})
    refused = [json.loads(line) for line in (tmp_path / "run" / "quarantine.jsonl").read_text().splitlines()]
    assert len(refused) == 9 and any("no coin" in line["reason"] for line in refused)


def test_the_embedded_model_against_itself_with_another_number_in_flight(tmp_path: Path) -> None:
    keys = ["policy=hf", "tasks.n=2", "attempts=2", "max_steps=4"]
    assert evaluate(tmp_path / "one", *keys, f"against.model={DEFAULT_MODEL}") == 0
    got = summary(tmp_path / "one")
    assert got["comparison"]["sampled"]["tasks_that_differ"] == 0 == got["comparison"]["sampled"]["difference"]["mean"]
    ours, theirs = (
        [{**row, "policy": ""} for row in rows(tmp_path / "one") if row["policy"] == label]
        for label in ("candidate", "against")
    )
    assert ours == theirs and len(ours) == 6
    assert evaluate(tmp_path / "two", *keys, "in_flight=1") == 0
    assert [{**row, "policy": ""} for row in rows(tmp_path / "two")] == ours
    for table in ("trajectories", "trajectories_against"):
        for row in rows(tmp_path / "one", table):
            assert len(row["tokens_logps"]) == len(row["tokens_action_mask"]) > sum(row["tokens_action_mask"]) > 0
            assert json.loads(row["certificate"])["model_hash"]
    assert rows(tmp_path / "one")[0]["generated_tokens"] > 0 < rows(tmp_path / "one")[0]["prefilled_tokens"]


def test_a_model_behind_a_server_and_an_outage_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def complete(path: str, body: dict[str, Any]) -> dict[str, Any]:
        message = {"role": "assistant", "content": f"I would rather not ({body['temperature']})."}
        usage = {"prompt_tokens": 50, "completion_tokens": 6}
        return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}

    with serving(FakeServer(complete)) as fake:
        keys = ["policy=server", f"policy.url={fake.url}", "policy.retries=0", "attempts=2", "in_flight=1"]
        fake.misbehave = lambda path, body, count: (400, {"error": "gone"}) if count >= 4 else None
        assert evaluate(tmp_path / "run", *keys, "tasks.n=12") == 1
        assert "Nothing is lost" in capsys.readouterr().err and not (tmp_path / "run" / "attempts").exists()
        fake.misbehave = lambda path, body, count: None
        assert evaluate(tmp_path / "run", *keys, "tasks.n=12") == 0
    figures = summary(tmp_path / "run")["modes"]
    assert figures["sampled"]["success"]["mean"] == 0.0 and figures["greedy"]["unscored"] == 0
    assert figures["sampled"]["tokens"] == {"generated": 24 * 6, "prefilled": 24 * 50, "generated_per_attempt": 6}
    assert {row["tokens_input_ids"] for row in rows(tmp_path / "run", "trajectories")} == {None}
    assert summary(tmp_path / "run")["protocol"]["policy"]["kind"] == "server"


def test_what_a_command_froze_can_be_collected_after_it(tmp_path: Path) -> None:
    """Alone catches trees and models of a process's earlier commands that stay for good."""
    gc.freeze()
    assert evaluate(tmp_path / "run", "env=countdown", "policy=random", "tasks.n=2") == 0
    assert gc.get_freeze_count() == 0
