"""Shared by all tests: nothing reaches a network, and no deadlines."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from offline_agent.outgoing import forget

# a background job, and whatever it starts, ignores these two; a handler is not passed on to what tests start
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, lambda *_: None)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)
# every command that a test starts would compile torch, MLflow and this package anew: most of its start
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

# the folders of tests in memory, where a run's many syncs wait for no disk
if os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")

# a shared machine's timings say nothing
settings.register_profile("project", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("project")


@pytest.fixture(autouse=True)
def _no_secrets_of_other_tests() -> Iterator[None]:
    """Forget the secrets that a test's configurations brought: its words would be masked in later tests."""
    yield
    forget()


ROOTS = [Path(__file__).parent / part for part in ("tests", "environments/offline_agent_environments", "")]
SLOW = frozenset(
    (
        "adapters",
        "babyai",
        "bfcl",
        "browser",
        "code",
        "contract/test_judges",
        "contract/test_refusals",
        "property/test_hf_invariance",
        "property/test_prefix_sharing",
        "property/test_rendering",
        "repo",
        "sql/tests/test_attacks",
        "tests/test_code_families",
        "tests/test_contract",
        "tests/test_task_families",
        "textworld",
        "unit/benchmarks/test_gpu",
        "unit/envs/test_isolation",
        "unit/envs/test_remote",
        "unit/judges/test_choosing",
        "unit/judges/test_formulas",
        "unit/judges/test_verifiers",
        "unit/launch",
        "unit/pipelines",
        "unit/policies/hf",
        "unit/policies/server",
        "unit/policies/test_policy_docs",
        "unit/policies/vllm",
        "unit/preferences/pairs/test_inflation",
        "unit/rendering/test_plain_tokenizer",
        "unit/rendering/test_trial",
        "unit/search/test_faults",
        "unit/search/test_isolated_search",
        "unit/search/test_outage",
        "unit/search/test_replay",
        "unit/tools",
        "unit/store/test_tracking",
        "unit/training",
    )
)
"""Folders and files that start processes, engines or trainings: `make test-fast` leaves them out."""
ENGINES = frozenset({"browser", "e2e/test_coding_agents", "e2e/test_pretrained", "e2e/test_ray", "slurm"})
"""Those that drive Chromium, Ray, Slurm, SmolLM2 or coding agents; `make test` leaves them out and says so."""
FAST = frozenset({"test_branches.py", "test_rows.py", "test_trie.py"})
"""Files below them that do not, and import little."""


def _is(marker: str, path: Path) -> bool:
    place = path.relative_to(next(root for root in ROOTS if path.is_relative_to(root))).with_suffix("")
    listed = ENGINES if marker == "engines" else SLOW
    found = any(str(each) in listed for each in (place, *place.parents))
    return found if marker == "engines" else (found or place.parts[0] in ("e2e", "slurm")) and path.name not in FAST


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import files that are left out: that takes longer than the fast ones."""
    left_out = config.option.markexpr.removeprefix("not ")
    leave_out = left_out in ("slow", "engines") and config.option.markexpr.startswith("not ")
    return True if leave_out and collection_path.suffix == ".py" and _is(left_out, collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow or needs engines, and begin with the files that take minutes.

    A worker of xdist has each of these files to itself, and the others find more to do.
    """
    for item in items:
        for marker in ("slow", "engines"):
            if _is(marker, item.path):
                item.add_marker(marker)
    items.sort(key=lambda item: not {"slurm", "test_processes.py"} & {*item.path.parts})


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say at the end what the skipped tests need, and what was left out."""
    needs: dict[str, set[str]] = {}
    for report in terminalreporter.stats.get("skipped", ()):
        needs.setdefault(report.longrepr[2].removeprefix("Skipped: "), set()).add(report.nodeid.partition("::")[0])
    for reason, files in sorted(needs.items()):
        terminalreporter.write_line(f"not tested here ({', '.join(sorted(files))}): {reason}")
    if terminalreporter.config.option.markexpr == "not engines":
        terminalreporter.write_line("left out: Chromium, Ray, Slurm, SmolLM2, coding agents (make test-engines)")
