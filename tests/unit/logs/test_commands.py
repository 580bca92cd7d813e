"""Shell commands that run tests: passes and failures are told apart, and what hides them is not guessed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from offline_agent.logs.commands import changes, ran_tests

PASS, FAIL = "===== 3 passed in 0.12s =====", "==== 1 failed, 2 passed in 61.02s (0:01:01) ===="


@pytest.mark.parametrize(
    ("command", "output", "status", "success"),
    [
        ("pytest -q", "3 passed, 1 warning in 0.12s", 0, True),
        ("pytest -q", FAIL, 1, False),
        ("pytest", PASS, 1, None),  # something else failed, such as a threshold of coverage
        ("pytest", FAIL, 0, None),
        ("pytest", "5 skipped in 0.02s", 0, None),
        ("python -m pytest", "/usr/bin/python: No module named pytest", 1, None),  # no tests ran
        ("cd x && A=1 timeout 60 python -m pytest 2>&1 | tail -5", PASS, 0, True),
        ("cd x && python -m pytest 2>&1 | tail -5", FAIL, 0, False),
        ("pytest | head -5", PASS, 0, None),
        ("pytest | grep passed", PASS, 0, None),
        ("go test ./... | grep ok", "ok  \ta\t0.1s", 0, None),  # which hides those that failed
        ("pytest || true", PASS, 0, True),
        ("pytest || true", "", 0, None),
        ("pytest || true", FAIL, 0, False),
        ("pytest; echo done", "done", 0, None),
        ("ls || pytest", "a.py", 0, None),
        ("pytest > log 2>&1", "", 0, True),
        ("pytest > log; cat log", PASS, 0, None),
        ("cat log; pytest | tail", PASS, 0, None),
        ("echo '3 passed in 0.10s'; pytest || true", "3 passed in 0.10s", 0, None),
        ("pytest; npm test", PASS, 0, None),
        ("pytest && npm test", f"{PASS}\nTests:       2 failed, 3 total", 1, False),
        ("pytest && npm test", PASS, 0, True),
        ("pytest a; pytest b", f"{PASS}\n{PASS}", 0, True),
        ("pytest a; pytest b", f"{FAIL}\n{PASS}", 0, False),
        ("pytest && sed -i s/a/b/ x.py", PASS, 0, None),  # changed after the tests
        ("pytest 2>&1 | tee log | tail -2", PASS, 0, True),
        ("# don't\npytest tests", PASS, 0, True),
        ("npm test", "", 0, True),
        ("npm test", "npm error Missing script: test", 1, None),
        ("yarn jest", "Test Suites: 1 failed, 1 total\nTests:       5 passed, 5 total", 1, False),
        ("npx vitest run", " Test Files  1 passed (1)\n      Tests  \x1b[32m5 passed\x1b[39m (5)", None, True),
        ("npx jest | tail -4", "Tests:       5 passed, 5 total", 0, None),  # which hides suites that did not run
        ("mvn test", "[INFO] Tests run: 5, Failures: 0, Errors: 0\n[INFO] \n[INFO] BUILD SUCCESS", 0, True),
        ("mvn test | tail", "[INFO] Tests run: 5, Failures: 0, Errors: 0\n[INFO] BUILD FAILURE", 0, None),
        ("mocha", "  2 passing (3ms)\n  1 failing", None, False),
        ("cargo test", "running 0 tests\ntest result: ok. 0 passed; 0 failed", 0, None),
        ("cargo test", "test result: ok. 2 passed; 0 failed\nrunning 0 tests\ntest result: ok. 0 passed", 0, True),
        ("cargo test", "test result: FAILED. 1 passed; 1 failed; 0 ignored", 101, False),
        ("go test ./...", "ok  \ta\t0.1s\n?   \tb\t[no test files]", 0, True),
        ("go test ./...", "ok  \ta\t0.1s\n--- FAIL: TestB\nFAIL\tb\t0.1s\nFAIL", 1, False),
        ("go test ./...", "?   \tb\t[no test files]", 0, None),
        ("mvn -q test", "[ERROR] Tests run: 5, Failures: 1, Errors: 0, Skipped: 0", 1, False),
        ("./gradlew test", "BUILD SUCCESSFUL in 3s", 0, True),
        ("./gradlew test", "3 tests completed, 1 failed", 1, False),
        ("make test 2>&1 | tail -3", "100% tests passed, 0 tests failed out of 5", None, True),
        ("ctest", "20% tests passed, 4 tests failed out of 5", 8, False),
        ("bundle exec rspec", "3 examples, 1 failure", 1, False),
        ("python manage.py test", "Ran 2 tests in 0.1s\n\nFAILED (failures=1)", 1, False),
    ],
)
def test_results_are_told_apart(command: str, output: str, status: int | None, success: bool | None) -> None:
    ran = ran_tests(command, output, status)
    assert ran is not None and ran.success is success, ran


@pytest.mark.parametrize("command", [
    "cat log.txt", "grep -rn pytest .", "pip install pytest", "pytest --collect-only", "command -v pytest",
    "make build", "uv run --with pytest python x.py", "cat <<'EOF' > run.sh\npytest\nEOF", "echo 'pytest",
    "go test -list .", "echo $(pytest)", "pytest &", "if pytest; then ls; fi",
])  # fmt: skip
def test_what_runs_no_tests_is_none(command: str) -> None:
    assert ran_tests(command, PASS, 0) is None


def test_only_programs_that_are_known_to_read_change_nothing() -> None:
    reading = ["git diff | head", "ls -la && cat a 2>/dev/null", "sed -n 1,5p a", "git -C /w status", "find . -name x",
               "git add -A && git commit -m 'fix: a; b'", "pytest > log"]  # fmt: skip
    changing = ["git checkout .", "sed -i s/a/b/ a", "python x.py", "cat a > b", "find . -delete", "ruff format",
                "git stash", "cat <<EOF > a.py\nx\nEOF", "echo 'x"]  # fmt: skip
    assert not [command for command in reading if changes(command)]
    assert not [command for command in changing if not changes(command)]


@pytest.mark.parametrize(("right", "runner"), [(r, m) for r in (True, False) for m in ("pytest -q", "unittest")])
def test_runners_of_this_machine_print_what_is_read(right: bool, runner: str, tmp_path: Path) -> None:
    """Alone catches summaries that real runners print in other words."""
    body = f"import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        self.assertTrue({right})\n"
    (tmp_path / "test_a.py").write_text(body)
    words, env = [sys.executable, "-m", *runner.split()], {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ran = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    for status in (ran.returncode, None):
        told = ran_tests(f"python -m {runner}", ran.stdout + ran.stderr, status)
        assert told is not None and told.success is right
