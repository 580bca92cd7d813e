"""Each kind of state of the process that an environment may change is told, and put back."""

from __future__ import annotations

import os

import pytest

from offline_agent.envs.boundary import ProcessState

CHANGES = {
    "another umask than 0": "os.umask(0o077)",
    "another directory than /": "os.chdir('/')",
    "another handler of SIGUSR1": "import signal; signal.signal(signal.SIGUSR1, signal.SIG_IGN)",
    "another value, or none, of the variables": "os.environ.clear()",
}


@pytest.mark.parametrize("told", CHANGES)
def test_a_change_is_told_and_put_back(told: str) -> None:
    before = ProcessState()
    exec(CHANGES[told], {"os": os})
    said = before.put_back()
    assert len(said) == 1 and said[0].startswith(told), said
    assert before.put_back() == []


def test_libraries_may_add(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OF_A_LIBRARY", raising=False)
    before = ProcessState()
    monkeypatch.setenv("OF_A_LIBRARY", "1")
    assert before.put_back() == []
