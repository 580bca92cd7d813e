"""The runner of a repository's tests: pytest with a plugin that reports; it is one text and runs in the sandbox.

`python -P -c TEXT PLAN`: PLAN is a file that is removed before anything of the checkout is imported. What tests print
goes to standard error. Standard output, under a number that only this process has, is for reports: lines of the plan's
mark and JSON, `[name, phase, outcome]` for each phase of a test and `[exit status]` in the end.
"""

from __future__ import annotations

import json
import os
import sys
import unittest  # noqa: F401  (before a module of the checkout can be imported in its place)
from typing import Any

import pytest


class _Reports:
    """The plugin."""

    def __init__(self, channel: int, mark: str, functions: list[str]) -> None:
        def tell(*told: Any, write: Any = os.write, dumps: Any = json.dumps) -> None:
            write(channel, f"{mark}{dumps(told)}\n".encode())

        self.tell, self._functions = tell, functions

    def pytest_configure(self, config: pytest.Config) -> None:
        """Have the tests of the plan's own collected, whatever names the checkout's tests have."""
        for name in self._functions:
            config.addinivalue_line("python_functions", name)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Report a phase; a failure that was expected is none, and a success that was not is a failure."""
        outcome = "unexpected" if hasattr(report, "wasxfail") else report.outcome
        self.tell(report.nodeid, report.when, outcome)


def main() -> None:
    """Run the tests of the plan."""
    with open(sys.argv[1], encoding="utf-8") as file:
        plan = json.load(file)
    os.unlink(sys.argv[1])
    channel = os.dup(1)
    os.dup2(2, 1)
    reports = _Reports(channel, plan.pop("mark"), plan["functions"])
    here = os.getcwd()
    sys.argv = ["pytest"]
    sys.path.insert(0, here)
    os.environ["PYTHONPATH"] = f"{here}:{os.environ['PYTHONPATH']}"  # for processes that tests start
    options = ["-q", "--no-header", "-p", "no:cacheprovider", "--maxfail=0", *plan["options"]]
    status = pytest.main([*options, *plan["tests"]], plugins=[reports])
    sys.stdout.flush()
    sys.stderr.flush()
    reports.tell(int(status))
    os._exit(0)  # threads and handlers of the checkout have no say


if __name__ == "__main__":
    main()
