"""What code in the sandbox may not do, at each level that this machine has; and that the sandbox goes on after it."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from offline_agent.sandbox import Entry, Limits, Result, Sandbox
from tests.helpers.sandboxes import sandbox_at

LEVELS = ("bubblewrap", "namespaces", "limits")
_open: dict[str, Sandbox] = {}

pytestmark = pytest.mark.slow


def at(level: str) -> Sandbox:
    """Return the sandbox of a level; skip, and say why, where this machine does not have it."""
    if level not in _open:
        _open[level] = sandbox_at(level)
    return _open[level]


@pytest.fixture(scope="module", autouse=True)
def _closed() -> Iterator[None]:
    yield
    for sandbox in _open.values():
        sandbox.close()
    _open.clear()


@pytest.fixture(params=LEVELS)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """Every level; after an attack the sandbox still works."""
    found = at(request.param)
    yield found
    assert found.run_program("print(6 * 7)").stdout == "42\n", "the sandbox does not work after the attack"


@pytest.fixture(params=LEVELS[:2])
def isolated(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """The levels with namespaces; after an attack the sandbox still works."""
    found = at(request.param)
    yield found
    assert found.run_program("print(6 * 7)").stdout == "42\n", "the sandbox does not work after the attack"


def running(mark: str) -> list[str]:
    """Return the processes of this machine whose command line holds a text."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark in (entry / "cmdline").read_bytes().decode("utf-8", "replace"):
                    found.append(entry.name)
            except OSError:
                continue
    return found


def test_files_of_the_user_are_not_there(isolated: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("the secret")
    for folder in (tmp_path, *tmp_path.parents[:-1]):
        os.chmod(folder, 0o755) if os.access(folder, os.W_OK) and folder.is_relative_to(tmp_path.parents[1]) else None
    program = f"""
import os
for path in ({str(secret)!r}, {str(Path.home() / '.bashrc')!r}, '/etc/passwd', '/etc/shadow', {__file__!r}):
    try:
        print(open(path).read())
    except OSError as error:
        print('refused')
print(os.listdir(os.path.expanduser('~')))
"""
    assert isolated.run_program(program).stdout == "refused\n" * 5 + "[]\n"


def test_the_callers_environment_is_not_to_be_read(isolated: Sandbox) -> None:
    program = """
import glob, os
print(dict(os.environ))
for path in glob.glob('/proc/[0-9]*/environ') + ['/proc/self/environ']:
    try:
        print(open(path).read())
    except OSError:
        pass
"""
    script = (
        "import sys\nfrom offline_agent.sandbox import Sandbox\n"
        f"print(Sandbox({isolated.level!r}).run_program({program!r}).stdout)"
    )
    told = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "API_KEY": "sk-secret-of-the-user"}, text=True,
        capture_output=True, check=True, cwd=Path(__file__).parents[2], timeout=120,
    )  # fmt: skip
    assert "HOME" in told.stdout and "sk-secret-of-the-user" not in told.stdout, told.stderr


def test_other_processes_are_not_to_be_seen_or_signalled(isolated: Sandbox) -> None:
    victim = subprocess.Popen(["sleep", "600"])
    try:
        program = f"""
import os, signal
print(sorted(int(name) for name in os.listdir('/proc') if name.isdigit()) == sorted({{1, os.getpid()}}))
for pid in ({victim.pid}, os.getppid(), 1):
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass
try:
    os.kill(-1, signal.SIGKILL)
except OSError:
    pass
print('still here')
"""
        assert isolated.run_program(program).stdout == "True\nstill here\n"
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()


def test_killing_the_parent_harms_the_call_alone(sandbox: Sandbox) -> None:
    result = sandbox.run_program("import os\nos.kill(os.getppid(), 9)\nprint('went on')")
    assert result.status == "exited"
    with sandbox.session() as session:
        session.ask({"op": "cell", "code": "import os\ntry:\n    os.kill(os.getppid(), 9)\nexcept OSError: pass"})


def test_there_is_no_network(sandbox: Sandbox) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        program = f"""
import socket
for family, address in (
    (socket.AF_INET, ('127.0.0.1', {server.getsockname()[1]})), (socket.AF_INET, ('192.0.2.1', 80)),
    (socket.AF_INET6, ('::1', 80)),
):
    try:
        socket.socket(family, socket.SOCK_STREAM).connect(address)
        print('connected')
    except OSError:
        print('refused')
"""
        assert sandbox.run_program(program).stdout == "refused\n" * 3


def test_the_number_of_processes_is_limited(sandbox: Sandbox) -> None:
    program = """
import os, time
made = 0
try:
    while made < 300:
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
        made += 1
except OSError:
    print(made < 20)
"""
    assert sandbox.run_program(program, limits=Limits(wall_seconds=20, processes=16)).stdout == "True\n"


def test_a_fork_bomb_is_stopped(sandbox: Sandbox) -> None:
    # it ends by itself: should the sandbox not hold it, it must not take the machine
    bomb = (
        "import os, time\nend = time.time() + 4\nwhile time.time() < end:\n    try:\n        os.fork()\n"
        "    except OSError:\n        pass\nwhile True:\n    time.sleep(1)"
    )
    began = time.monotonic()
    result = sandbox.run_program(bomb, limits=Limits(wall_seconds=2.0, processes=16))
    assert result.status in ("wall", "memory") and time.monotonic() - began < 30


def test_ten_gigabytes_are_not_given(sandbox: Sandbox) -> None:
    assert "MemoryError" in sandbox.run_program("x = bytearray(10 * 2**30)").stderr


HOLDING = {
    "memory": "x = bytearray(os.urandom(2**20)) * 60",
    "memory of a process whose first thread has ended": """
def hold():
    x = bytearray(os.urandom(2**20)) * 60
    time.sleep(60)
threading.Thread(target=hold).start()
ctypes.CDLL(None).pthread_exit(0)""",
    "sockets": """
pairs = [socket.socketpair() for _ in range(50)]
for one in [end for pair in pairs for end in pair]:
    one.setblocking(False)
    try:
        while True: one.send(bytes(2**16))
    except OSError: pass""",
}


@pytest.mark.parametrize("what", HOLDING)
def test_what_many_processes_hold_counts_together(sandbox: Sandbox, what: str) -> None:
    body = "".join(f"        {line}\n" for line in HOLDING[what].splitlines())
    program = f"""
import ctypes, os, socket, threading, time
for _ in range(8):
    if os.fork() == 0:
{body}
        time.sleep(60)
time.sleep(60)
"""
    assert sandbox.run_program(program, limits=Limits(memory_mb=128, wall_seconds=30)).status == "memory"


def test_files_in_memory_count(isolated: Sandbox) -> None:
    program = """
import time
for folder in ('.', '/tmp', '/dev/shm'):
    with open(folder + '/x', 'wb') as file:
        for _ in range(60):
            file.write(bytes(2**20))
time.sleep(60)
"""
    assert isolated.run_program(program, limits=Limits(memory_mb=128, wall_seconds=30)).status == "memory"


def test_memory_that_nothing_would_show_is_refused(sandbox: Sandbox) -> None:
    program = """
import ctypes, fcntl, mmap, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def refused(function):
    try:
        function()
    except OSError:
        return True
pipe, one = os.pipe()[1], socket.socketpair()[0]
print(refused(lambda: mmap.mmap(-1, 4096)), refused(lambda: fcntl.fcntl(pipe, 1031, 2**20)),
      refused(lambda: one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**20)),
      refused(lambda: mmap.mmap(os.open('/dev/zero', os.O_RDWR), 4096)), libc.vmsplice(pipe, None, 0, 0))
print(len(open('/dev/zero', 'rb').read(9)), open('/proc/self/oom_score_adj').read().strip())
mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE)
"""
    assert sandbox.run_program(program).stdout == "True True True True -1\n9 1000\n"


def test_programs_without_namespaces_write_to_their_folder_alone() -> None:
    program = """
import os
for path in ('/dev/shm/offline-x', '/tmp/offline-x', '../x', '/dev/zero'):
    try:
        open(path, 'w')
        print('written to', path)
    except PermissionError:
        pass
os.makedirs('a/b')
open('a/one', 'w').write('1')
os.rename('a/one', 'a/b/two')
os.truncate('a/b/two', 0)
open('/dev/null', 'w').write('2')
print(os.listdir('a/b'))
"""
    for folder in ("/dev/shm", "/tmp"):  # all may write there
        assert os.stat(folder).st_mode & 0o2
    assert at("limits").run_program(program).stdout == "['two']\n"


def test_an_endless_loop_ends_by_its_processor_time_and_a_sleep_by_the_clock(sandbox: Sandbox) -> None:
    loop = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    assert sandbox.run_program(loop, limits=Limits(cpu_seconds=1, wall_seconds=60)).status == "cpu"
    assert sandbox.run_program("import time; time.sleep(1000)", limits=Limits(wall_seconds=0.5)).status == "wall"


def test_limits_of_a_session_hold_for_each_request_and_between_them(sandbox: Sandbox) -> None:
    limits = Limits(cpu_seconds=1, wall_seconds=60)
    work = "import time\nbegan = time.process_time()\nwhile time.process_time() < began + 0.6: pass"
    with sandbox.session(limits=limits) as session:
        replies = [session.ask({"op": "cell", "code": code}) for code in (work, work, work, "while True: pass")]
    assert [reply["status"] for reply in replies] == ["exited"] * 3 + ["cpu"]
    later = "import threading\ndef run():\n    time.sleep(0.5)\n    while True: pass\nimport time\n"
    with sandbox.session(limits=limits) as session:
        session.ask({"op": "cell", "code": later + "threading.Thread(target=run).start()"})
        assert select.select([session._channel._socket], [], [], 60)[0], "it is not stopped between requests"
        assert session.ask({"op": "cell", "code": "1"})["status"] == "cpu"


def test_a_program_that_reads_no_request_is_stopped(sandbox: Sandbox) -> None:
    later = "import os, threading, time\ndef stop():\n    time.sleep(0.3)\n    os.kill(os.getpid(), 19)\n"
    with sandbox.session(limits=Limits(wall_seconds=2)) as session:
        session.ask({"op": "cell", "code": later + "threading.Thread(target=stop).start()"})
        time.sleep(1)
        assert session.ask({"op": "cell", "code": "#" * 2**20})["status"] == "wall"


def test_a_gigabyte_of_output_is_cut(sandbox: Sandbox) -> None:
    result = sandbox.run_program("import sys\nfor _ in range(1024): sys.stdout.write('x' * 2**20)")
    assert result.status == "output" and len(result.stdout) <= 256 * 1024


def test_a_full_disk_is_an_error_inside(isolated: Sandbox) -> None:
    program = """
for folder in ('.', '/tmp', '/dev/shm'):
    made = 0
    try:
        for number in range(20):
            with open(f'{folder}/{number}', 'wb') as file:
                made += file.write(bytes(2**20))
    except OSError:
        pass
    print(made <= 8 * 2**20)
for folder in ('/', '/usr', '/dev', '/proc', '/etc'):
    try:
        open(folder + '/x', 'w')
        print('written')
    except OSError:
        pass
"""
    assert isolated.run_program(program, limits=Limits(disk_mb=8)).stdout == "True\n" * 3


def test_open_files_are_limited(sandbox: Sandbox) -> None:
    program = "f = []\ntry:\n    while True: f.append(open('/dev/null'))\nexcept OSError: print(len(f) < 128)"
    assert sandbox.run_program(program).stdout == "True\n"


def test_no_namespace_is_made_inside_and_nothing_is_mounted_or_traced(sandbox: Sandbox) -> None:
    program = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for flags in (0x10000000, 0x20000000, 0x40000000, 0x20000):
    print(libc.unshare(flags))
print(libc.mount(b'none', b'/tmp', b'tmpfs', 0, None))
print(libc.ptrace(16, os.getppid(), 0, 0))
SIGCHLD = 17
print(libc.syscall(56 if os.uname().machine == 'x86_64' else 220, 0x10000000 | SIGCHLD, 0, 0, 0, 0))
"""
    assert sandbox.run_program(program).stdout == "-1\n" * 7
    done = sandbox.run(["sh", "-c", "unshare -Ur true && echo made; unshare -n true && echo made; true"])
    assert done.ok and "made" not in done.stdout


def test_privileges_are_gone(sandbox: Sandbox) -> None:
    text = sandbox.run_program("print(open('/proc/self/status').read())").stdout
    facts = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    assert facts["NoNewPrivs"] == "1" and facts["Seccomp"] == "2"
    reading = {0, 1 << 2} if sandbox.level == "limits" else {0}  # Python may lie in root's home
    assert all(int(facts[name], 16) in reading for name in ("CapEff", "CapPrm", "CapInh"))


def test_links_out_of_the_folder_lead_to_nothing_of_the_host(isolated: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("the secret")
    script = f"ln -s {tmp_path}/secret.txt out; ln -s {tmp_path} folder; cat out folder/secret.txt"
    assert "the secret" not in isolated.run(["sh", "-c", script]).stdout
    assert isolated.run(["cat", "out"], files={"out": Entry("link", 0, 0, str(tmp_path / "secret.txt"))}).code == 1


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", ""])
def test_a_file_is_not_written_outside_of_the_folder(path: str) -> None:
    with pytest.raises(ValueError, match="leaves the working folder"):
        at("limits").run(["true"], files={path: b""})


def test_processes_that_were_left_behind_die_with_the_call(sandbox: Sandbox) -> None:
    mark = f"left-behind-{os.getpid()}-{sandbox.level}"
    program = f"""
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv('/bin/sh', ['sh', '-c', 'sleep 600; : {mark}'])
    os._exit(0)
import time
time.sleep(0.3)
print('left')
"""
    assert sandbox.run_program(program).stdout == "left\n"
    assert not running(mark)
    with sandbox.session() as session:
        session.ask({"op": "cell", "code": program})
        if sandbox.level != "bubblewrap":  # whose processes have the same command line here
            assert running(mark)
    for _ in range(100):
        if not running(mark):
            break
        time.sleep(0.05)
    assert not running(mark)


def test_calls_do_not_see_one_another(isolated: Sandbox) -> None:
    with isolated.session() as session:
        session.ask({"op": "cell", "code": "open('note', 'w').write('1'); open('/tmp/note', 'w').write('1')"})
        program = "import os; print(os.listdir('.'), os.listdir('/tmp'), os.listdir('/dev/shm'))"
        assert isolated.run_program(program).stdout == "[] [] []\n"


def test_a_program_that_writes_in_the_interpreters_place_ends_its_session(sandbox: Sandbox) -> None:
    write = "os.write(fd, b'\\x00\\x00\\x00\\x02{}garbage')"
    code = f"import os\nfor fd in range(3, 50):\n    try: {write}\n    except OSError: pass"
    with sandbox.session() as session:
        reply = session.ask({"op": "cell", "code": code})
        assert reply["body"] is None and session.ended


def test_a_sandbox_whose_process_was_killed_starts_another() -> None:
    sandbox = Sandbox(at("limits").level)
    assert sandbox.run_program("print(1)").stdout == "1\n"
    process = sandbox._process
    assert process is not None
    process._process.kill()
    process._process.wait()
    assert sandbox.run_program("print(1)").stdout == "1\n"
    sandbox.close()


def test_the_processes_end_when_the_caller_is_killed(sandbox: Sandbox) -> None:
    mark = f"orphan-{os.getpid()}-{sandbox.level}"
    script = (
        "from offline_agent.sandbox import Limits, Sandbox\n"
        f"s = Sandbox({sandbox.level!r})\ns.level\nprint('started', flush=True)\n"
        f"s.run(['sh', '-c', 'sleep 600; : {mark}'], limits=Limits(wall_seconds=600))"
    )
    root = Path(__file__).parents[2]
    caller = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=root)
    assert caller.stdout is not None and caller.stdout.readline() == b"started\n"
    for _ in range(200):
        if len(running(f": {mark}")) > 1:  # the caller's own command line has it too
            break
        time.sleep(0.05)
    caller.kill()
    caller.wait()
    caller.stdout.close()
    for _ in range(400):
        if not running(mark):
            return
        time.sleep(0.05)
    pytest.fail(f"processes are left: {running(mark)}")


def test_results_name_what_happened(sandbox: Sandbox) -> None:
    assert sandbox.run(["sh", "-c", "echo out; echo err >&2; exit 3"]) == Result("exited", 3, "out\n", "err\n")
    assert sandbox.run(["no-such-program"]).code == 127
    assert sandbox.run_program("import os; os.abort()").status == "signal"
    assert sandbox.run_program("import sys; sys.exit(4)").code == 4
