"""Shared by all tests: nothing reaches a network, and no deadlines."""

from __future__ import annotations

import os
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
        "browser",
        "code",
        "contract/test_judges",
        "property/test_hf_invariance",
        "property/test_prefix_sharing",
        "property/test_rendering",
        "repo",
        "tests/test_code_families",
        "tests/test_task_families",
        "textworld",
        "unit/envs/test_isolation",
        "unit/envs/test_remote",
        "unit/judges/test_verifiers",
        "unit/launch",
        "unit/pipelines",
        "unit/policies/hf",
        "unit/policies/server",
        "unit/policies/vllm",
        "unit/preferences/pairs/test_inflation",
        "unit/rendering/test_plain_tokenizer",
        "unit/search/test_isolated_search",
        "unit/search/test_outage",
        "unit/tools",
        "unit/store/tracking",
        "unit/training",
    )
)
"""Folders and files that start processes, engines or trainings: `make test-fast` leaves them out."""
FAST = frozenset({"data", "test_advantages.py", "test_branches.py", "test_objectives.py", "test_trie.py"})
"""Parts of paths of tests below them that do not."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow, and begin with the files that take minutes.

    A worker of xdist has each of these files to itself, and the others find more to do.
    """
    for item in items:
        root = next(root for root in ROOTS if item.path.is_relative_to(root))
        place = item.path.relative_to(root).with_suffix("")
        slow = place.parts[0] in ("e2e", "slurm") or any(str(each) in SLOW for each in (place, *place.parents))
        if slow and not FAST & {*item.path.parts}:
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: not {"slurm", "test_processes.py"} & {*item.path.parts})


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say at the end what the skipped tests need."""
    needs: dict[str, set[str]] = {}
    for report in terminalreporter.stats.get("skipped", ()):
        file, _, reason = report.longrepr
        needs.setdefault(reason.removeprefix("Skipped: "), set()).add(os.path.relpath(file, Path(__file__).parent))
    for reason, files in sorted(needs.items()):
        terminalreporter.write_line(f"not tested here ({', '.join(sorted(files))}): {reason}")
