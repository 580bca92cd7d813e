"""Each kind of state of the process that an environment may change is told, and put back."""

from __future__ import annotations

import gc
import os
import sys
from types import SimpleNamespace

import pytest

from offline_agent.envs.process_state import ProcessState

CHANGES = {
    "another random.random": "import random, time; random.random = time.time",
    "another os.environ": "os.environ = dict(os.environ)",
    "another sys.stderr": "sys.stderr = sys.stdout",
    "umask 077": "os.umask(0o077)",
    "the current directory /": "os.chdir('/')",
    "the locale": "import locale; locale.setlocale(6, 'C' if 'UTF' in locale.setlocale(6) else 'C.UTF-8')",
    "the recursion limit 900": "sys.setrecursionlimit(900)",
    "the switch interval": "sys.setswitchinterval(0.1)",
    "the garbage collector": "gc.disable()",
    "the root logger": "import logging; logging.root.setLevel(3)",
    "logging disabled up to level 50": "import logging; logging.disable(50)",
    "the precision of decimals 3": "import decimal; decimal.DefaultContext.prec = 3",
    "the time-out of sockets 1.0": "import socket; socket.setdefaulttimeout(1.0)",
    "another handler of SIGUSR1": "import signal; signal.signal(signal.SIGUSR1, signal.SIG_IGN)",
    "another limit RLIMIT_NOFILE": "import resource; resource.setrlimit(7, (99, resource.getrlimit(7)[1]))",
    "another value, or none, of the variables": "os.environ.clear()",
    "sys.path without": "sys.path.clear()",
    "sys.modules without json": "del sys.modules['json']",
    "warnings without": "import warnings; warnings.resetwarnings()",
}


@pytest.mark.parametrize("told", CHANGES)
def test_a_change_is_told_and_put_back(told: str) -> None:
    before = ProcessState()
    exec(CHANGES[told], {"os": os, "sys": sys, "gc": gc})
    said = before.put_back()
    assert len(said) == 1 and said[0].startswith(told), said
    assert before.put_back() == []


def test_libraries_may_add_and_threads_of_torch_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {"threads": 4}
    torch = SimpleNamespace(get_num_threads=lambda: held["threads"], set_num_threads=lambda n: held.update(threads=n))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.delenv("OF_A_LIBRARY", raising=False)
    before = ProcessState()
    monkeypatch.setenv("OF_A_LIBRARY", "1")
    monkeypatch.syspath_prepend("/of/a/library")
    assert before.put_back() == []
    held["threads"] = 1
    assert before.put_back() == ["another number of threads of torch"] and held["threads"] == 4
