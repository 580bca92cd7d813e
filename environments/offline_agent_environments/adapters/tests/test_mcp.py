"""Tools of MCP servers as environments: stdio and HTTP, both eras, state in a folder, in the server, behind handles."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.checks.trial import copying_fault
from offline_agent.envs.conformance import check_environment
from offline_agent.errors import ConfigError, EnvironmentFault
from offline_agent.records import Action, Task, ToolCall
from offline_agent_environments.adapters.mcp_servers import Kept

pytest.importorskip("mcp")
HELPERS = "offline_agent_environments.adapters.tests.mcp_goals:"
GOALS = {"tasks": f"{HELPERS}tasks", "verify": f"{HELPERS}verify"}
FILES = "mcp:{python} examples/mcp_files/server.py {folder}"
OF_FILES = {name: f"examples.mcp_files.goals:{name}" for name in ("tasks", "setup", "verify", "demonstrate")}


def counting(era: str) -> str:
    return f"mcp:{{python}} environments/offline_agent_environments/adapters/tests/mcp_servers.py {era}"


def call(name: str, **arguments: Any) -> Action:
    return Action(name, call=ToolCall(name, arguments))


def started(spec: EnvSpec) -> tuple[Any, Task]:
    task = next(iter(spec.tasks("train")))
    episode = spec.open()
    episode.reset(task)
    return episode, task


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, str(Path(__file__).with_name("mcp_http.py")), str(port)])
    until = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except OSError:
            assert server.poll() is None and time.monotonic() < until
            time.sleep(0.05)
    yield f"http://127.0.0.1:{port}/mcp"
    server.kill()
    server.wait()


def test_the_example_passes_the_conformance_suite_with_servers_that_are_kept() -> None:
    report = check_environment(EnvSpec.load(FILES, {**OF_FILES, "stateless": True}), tasks=1, max_steps=6)
    assert report.passed, report
    assert 1 <= sum(map(len, Kept._idle.values())) <= 3


@pytest.mark.parametrize("era", ["old", "new"])
def test_servers_of_either_era_are_served_and_state_in_the_server_is_found_out(era: str) -> None:
    spec = EnvSpec.load(counting(era), {**GOALS, "tools": ["count"]})
    episode, task = started(spec)
    assert episode.step(call("count", n=2)).observation == "2 so far" and episode.verdict().score == 1
    assert episode.step(call("count", n=-9)).fault == "tool_error"
    with pytest.raises(EnvironmentFault):  # the user's own calls must not fail
        episode._env.get_reward()
    episode.close()
    fault = copying_fault(spec, task, [call("count"), call("count")])
    assert fault is not None and "share state" in fault
    assert spec.tools.canonical_key(call("count", n=1)) == spec.tools.canonical_key(call("count"))


def test_each_kind_of_content_is_shown() -> None:
    episode, _ = started(EnvSpec.load(counting("old"), GOALS))
    shown = episode.step(call("show")).observation
    assert shown == "a memo\n[resource memo://2 image/png]\nreport: memo://3\n\n[image image/png]"
    episode.close()


def test_copies_have_the_folder_and_a_server_of_their_own() -> None:
    episode, _ = started(EnvSpec.load(FILES, OF_FILES))
    assert (
        episode.step(call("write_file", path="/workspace/new.txt", text="1")).observation == "wrote /workspace/new.txt"
    )
    copy = episode.copy()
    assert copy.step(call("delete_file", path="new.txt")).fault is None
    assert copy.step(call("read_file", path="new.txt")).fault == "tool_error"
    assert episode.step(call("read_file", path="new.txt")).observation == "1"
    places = [one._env._place for one in (episode, copy)]
    copy.close()
    episode.close()
    assert not any(place.exists() for place in places)


@pytest.mark.parametrize("stateless", [False, True])
def test_a_server_that_ends_is_the_fault_of_its_episode_alone(stateless: bool) -> None:
    command = f"{counting('new')} {{folder}}" if stateless else counting("new")
    spec = EnvSpec.load(command, {"tasks": f"{HELPERS}tasks", "verify": f"{HELPERS}kept", "stateless": stateless})
    (episode, _), (other, task) = started(spec), started(spec)
    assert other.step(call("count")).fault is None
    with pytest.raises(EnvironmentFault, match="Connection closed; it said: the last words"):
        episode.step(call("end"))
    assert other.step(call("count")).fault is None
    episode.reset(task)
    assert episode.step(call("count")).fault is None


def test_a_server_that_does_not_answer_in_time_is_a_fault() -> None:
    episode, _ = started(EnvSpec.load(counting("new"), GOALS))
    episode.step(call("count"))
    connection = episode._env._connection
    connection._server = replace(connection._server, timeout=0.5)  # it starts in any time
    server = max(psutil.Process().children(), key=psutil.Process.create_time)
    server.suspend()
    with pytest.raises(EnvironmentFault, match="count: "):
        episode.step(call("count"))
    server.kill()
    episode.close()


def test_handles_of_a_server_over_http_are_given_and_hidden(address: str) -> None:
    args = {
        **GOALS, "setup": f"{HELPERS}opened", "tools": ["count", "which"], "handles": ["counter"],
    }  # fmt: skip
    spec = EnvSpec.load(f"mcp:{address}", args)
    assert [schema["function"]["parameters"]["properties"].keys() for schema in spec.tools.schemas] == [{"n"}, set()]
    episode, _ = started(spec)
    assert episode.step(call("which")).observation == "This is counter <counter>."
    report = check_environment(spec, tasks=1, max_steps=4)
    assert report.passed, report
    assert "copies are independent" in {one.check_id for one in report.of("skip")}


@pytest.mark.parametrize(
    ("name", "args", "told"),
    [
        ("mcp:no_such_program", {}, "does not answer: FileNotFoundError"),
        ("mcp:{python} 'x", {}, "is no command: No closing quotation"),
        ("mcp:{python} -c 1/0", {}, "division by zero"),
        ("mcp:{python} -c 'import time; time.sleep(60)'", {"timeout": 0.5}, "it took too long, see env.timeout"),
        ("mcp:http://127.0.0.1:9/mcp", {}, "does not answer"),
        (counting("new"), {"tools": ["cont"]}, "env.tools: got cont, allowed: count, end"),
        (counting("new"), {"stateless": True}, "it needs .folder. in the command"),
        (counting("new"), {"folder": "no/such"}, "env.folder: there is no folder 'no/such'"),
        (counting("new"), {"verifier": "a:b"}, "env.verifier: McpEnvironment takes no such argument"),
        (counting("new"), {**GOALS, "verify": "no_such:f"}, "env.verify: there is no module 'no_such'"),
    ],
)
def test_what_cannot_be_adapted_is_refused_with_the_reason(name: str, args: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        EnvSpec.load(name, args).open()


def test_without_tasks_and_verifier_the_suite_says_what_to_name() -> None:
    from offline_agent.envs.conformance import check

    with pytest.raises(ConfigError) as refused:
        check(counting("old"))
    assert "has no tasks" in str(refused.value) and "has no get_reward" in str(refused.value)


def test_the_task_file_of_the_example_holds_what_its_tasks_are(tmp_path: Path) -> None:
    spec = EnvSpec.load(FILES, OF_FILES)
    assert [len(list(spec.tasks(split))) for split in ("train", "validation", "test")] == [24, 8, 8]
