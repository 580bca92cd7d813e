"""Mining that is killed: in every phase, with what waits on disk half written."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from tests.e2e.test_build_prefs import ALL, ENV, built, digests
from tests.helpers import forked

KEYS = ["tasks.n=4", "search.simulations=12"]

KILLED = """
import itertools, os, signal, sys
from offline_agent.pipelines import build_prefs
from offline_agent.pipelines.entry import main
from offline_agent.pipelines.stages import tables
from offline_agent.preferences.dataset.balance import Balance
from offline_agent.preferences.dataset.candidates import CandidateStore
from offline_agent.store.run_directory import RunDirectory

phase, *arguments = sys.argv[1:]
count = itertools.count()

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def after(owner, name, number, last=None):
    real = getattr(owner, name)
    def call(*args, **kwargs):
        if next(count) == number:
            last(*args) if last else None
            die()
        return real(*args, **kwargs)
    setattr(owner, name, call)

def tear(store, *rest):
    spill = store._pairs
    spill._file.flush()
    os.truncate(spill.path, spill.path.stat().st_size - 5)

if phase == "trees":
    after(CandidateStore, "add", 3, tear)
elif phase == "filtered":
    after(RunDirectory, "write_rows", 1)
elif phase == "choosing":
    after(Balance, "choose", 0)
elif phase == "refusing":
    real = tables.RefusalLog.append
    def append(self, refusal):
        real(self, refusal)
        if refusal.kind == "pair":
            die()
    tables.RefusalLog.append = append
elif phase == "preferences":
    after(tables, "table_of", 20)
elif phase == "keeping":
    after(RunDirectory, "write_summary", 0)
sys.exit(main(build_prefs.COMMAND, arguments))
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("whole") / "run", *KEYS)


def killed(run_dir: Path, phase: str) -> int:
    from tests.e2e.test_build_prefs import KEYS as USUAL

    command = [sys.executable, "-c", KILLED, phase, *USUAL, *KEYS, f"run_dir={run_dir}"]
    return forked.run(command, env=ENV).returncode


def test_killed_in_every_phase_it_ends_the_same(whole: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    left = {}
    for phase in ("trees", "filtered", "choosing", "refusing", "preferences", "keeping"):
        assert killed(run_dir, phase) == -signal.SIGKILL, phase
        left[phase] = sorted({file.name.split(".")[1] for file in run_dir.rglob(".*.tmp")})
    assert left["trees"] == ["0000", "filtered", "names", "pairs"]
    assert left["preferences"] == ["0000", "filtered", "names", "pairs"]
    assert left["keeping"] == []
    built(run_dir, *KEYS)
    assert not list(run_dir.rglob(".*.tmp"))
    assert digests(run_dir, *ALL) == digests(whole, *ALL)
    assert (run_dir / "quarantine.jsonl").read_bytes() == (whole / "quarantine.jsonl").read_bytes()
    assert json.loads((run_dir / "manifest.json").read_text())["resumed"]
