"""docs/policies.md: its example passes the conformance suite, its commands run, its tables name what there is."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from offline_agent import catalog
from offline_agent.policies.base import Policy
from tests.helpers import forked
from tests.helpers import policy_conformance as conformance

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^python -m (\S+) (.*)$", PAGE, re.M)
SMALL = {
    "build_prefs": ["tasks.n=2", "search.simulations=6", "tracking.uri=null", "run_dir=run"],
    "evaluate": ["tasks.n=2", "attempts=1", "resamples=100", "tracking.uri=null", "run_dir=run"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the page's files."""
    for name, text in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.S):
        (tmp_path / name).write_text(text)
    return tmp_path


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return forked.run([sys.executable, *words], env=env, cwd=folder, timeout=300)


def test_the_example_of_the_page_keeps_the_contract(folder: Path) -> None:
    done = run(folder, "check_my_policy.py")
    assert (done.returncode, done.stdout) == (0, "the contract is kept\n"), done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(COMMANDS)))
def test_the_commands_of_the_page_run(folder: Path, number: int) -> None:
    module, arguments = COMMANDS[number]
    done = run(folder, "-m", module, *shlex.split(arguments), *SMALL[module.rpartition(".")[2]])
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_tables_name_every_policy_member_and_check() -> None:
    assert re.findall(r"^\| `(\w+)` \| [^|]+\|[^|]+\|[^|]+\|$", PAGE, re.M) == [
        "hf", "server", "colocated", "oracle", "noisy", "random",
    ]  # fmt: skip
    assert set(catalog.POLICIES) == {"hf", "server", "colocated", "oracle", "noisy", "random"}
    methods = {name for name in vars(Policy) if not name.startswith("_")} | set(Policy.__annotations__)
    assert {name for name in methods if f"| `{name}" not in PAGE} == set()
    checks = {name for name in vars(conformance) if name in re.findall(r"lambda: (_\w+)\(", _source())}
    assert len(checks) == len(re.findall(r"^\| [a-z ]+ \| [^|]+ \|$", PAGE.split("| it checks")[1], re.M))


def _source() -> str:
    return Path(str(conformance.__file__)).read_text(encoding="utf-8")
