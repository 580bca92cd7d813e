"""A container command of the user in place of the sandbox's own; here one that only changes the environment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from offline_agent.sandbox import Limits, Sandbox, SandboxError
from offline_agent.sandbox.inside import kernel

pytestmark = pytest.mark.slow


@pytest.fixture()
def command(tmp_path: Path) -> list[str]:
    # `docker run -i IMAGE` and the like: an environment of its own, and a python3 on its PATH
    (tmp_path / "python3").symlink_to(sys.executable)
    return ["/usr/bin/env", "-i", f"PATH={tmp_path}:/usr/bin:/bin"]


def test_calls_and_sessions_run_behind_the_command(command: list[str]) -> None:
    sandbox = Sandbox(command=command)
    assert sandbox.level == "command"
    assert sandbox.run_program("print(6 * 7)").stdout == "42\n"
    assert sandbox.run(["cat", "a/b"], files={"a/b": b"text"}).stdout == "text"
    assert sandbox.run_program("while True: pass", limits=Limits(cpu_seconds=1, wall_seconds=60)).status == "cpu"
    with sandbox.session() as session:
        session.ask({"op": "cell", "code": "x = 20"})
        assert session.ask({"op": "cell", "code": "x + 1"})["stdout"] == "21\n"


def test_a_command_that_is_not_there_says_so() -> None:
    with pytest.raises(SandboxError, match=r"sandbox.command: .*no-such-docker"):
        Sandbox(command=["no-such-docker", "run"]).run_program("print(1)")
    with pytest.raises(SandboxError):
        Sandbox(command=["/bin/false"]).run_program("print(1)")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("alone", [None, 7])
def test_the_filter_ends_in_an_answer_on_every_path(machine: str, alone: int | None) -> None:
    import struct

    code = kernel.filter_program(machine, True, alone)
    steps = [struct.unpack("HBBI", code[at : at + 8]) for at in range(0, len(code), 8)]
    assert len(steps) < 4096
    for at, (kind, yes, no, _) in enumerate(steps):
        if kind in (0x15, 0x35, 0x45):
            assert at + 1 + max(yes, no) < len(steps)
        if kind == 0x20:
            assert at + 1 < len(steps)
    assert steps[-1][0] == 0x06
