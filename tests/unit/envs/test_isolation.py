"""Environments in processes of their own: the same episodes, and nothing that they do reaches the run."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import psutil
import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.conformance import check_environment
from offline_agent.envs.isolation.protocol import BadMessage, receive_answer
from offline_agent.envs.pool import EnvPool
from offline_agent.errors import ConfigError, EnvironmentFault
from offline_agent.records import Action, Task, ToolCall
from tests.helpers import hostile_environments as hostile

TASK = Task("goal-9", "train", {"goal": 9})
ROOT = Path(__file__).parents[3]


def isolated(cls: type, args: dict[str, Any] | None = None, **options: Any) -> EnvSpec:
    return EnvSpec(cls, args, isolated=True, **options)


def started(spec: EnvSpec) -> Any:
    episode = spec.open()
    episode.reset(TASK)
    return episode


def pick(n: Any) -> Action:
    return Action(f"pick {n}", call=ToolCall("pick", {"n": n}))


def played(spec: EnvSpec, actions: list[Action]) -> list[Any]:
    episode = spec.open()
    shown: list[Any] = [episode.reset(TASK), episode.system_prompt, episode.tools.schemas, episode.turn_reward()]
    for action in actions:
        shown += [episode.step(action), episode.fingerprint(), episode.verdict(), episode.terminated]
        shown += [episode.achieved_goal(), episode.turn_reward(), episode.tools.canonical_key(action)]
    with pytest.raises(RuntimeError) as refused:
        episode.step(actions[0])
    episode.close()
    return [*shown, str(refused.value)]


@pytest.mark.parametrize("cls", [hostile.Honest, hostile.BadUnicode, hostile.VerifierRaises, hostile.Earns])
def test_an_isolated_episode_shows_what_one_in_process_shows(cls: type) -> None:
    odd = [pick({"not": ["plain", object]}), pick("\ud800"), Action("{", fault="invalid_json"), pick(99)]
    args = {"earned": 0.5} if cls is hostile.Earns else None
    actions = [pick(2), *odd, pick(3.0), pick(4)]
    assert played(isolated(cls, args), actions) == played(EnvSpec(cls, args), actions)


def test_an_isolated_environment_passes_the_conformance_suite() -> None:
    report = check_environment(EnvSpec.load("shop", isolated=True), tasks=1)
    assert report.passed, report


@pytest.mark.parametrize(
    ("how", "told"),
    [("exit", "exited with status 0"), ("segfault", "was killed by SIGSEGV"), ("kill", "was killed by SIGKILL")],
)
def test_a_crash_is_the_fault_of_its_episode_alone(how: str, told: str) -> None:
    episode = started(isolated(hostile.Dies, {"how": how}))
    copy = episode.copy()
    with pytest.raises(EnvironmentFault, match=f"Dies: its process {told} in step .task goal-9"):
        copy.step(pick(5))
    with pytest.raises(EnvironmentFault):
        copy.fingerprint()
    assert episode.step(pick(4)).observation == "4 so far, 2 to go."
    assert started(episode.spec).step(pick(1)).observation == "1 so far, 2 to go."


def test_a_fork_copies_what_deepcopy_cannot() -> None:
    with pytest.raises(EnvironmentFault, match="deepcopy failed"):
        started(EnvSpec(hostile.Generates)).copy()
    episode = started(isolated(hostile.Generates))
    episode.step(pick(2))
    one, two = episode.copy(), episode.copy()
    episode.close()  # copies live on
    assert one.step(pick(3)).observation == two.step(pick(3)).observation == "5 so far, 1 to go. 5 in 2."
    assert one.copy().step(pick(4)).observation == "9 so far, 0 to go. 9 in 3."


def test_where_threads_would_be_lost_there_is_no_fork() -> None:
    spec = isolated(WithThread)
    with pytest.raises(EnvironmentFault, match="cannot be forked: it runs 1 more thread"):
        started(spec).copy()
    assert started(spec).step(pick(1)).observation == "1 so far, 2 to go."


class WithThread(hostile.Honest):
    def reset(self, goal: int) -> str:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        return super().reset(goal)


def test_what_it_changes_stays_in_its_process() -> None:
    before, here = json.dumps, os.getcwd()
    episode = started(isolated(hostile.Meddles))
    assert episode.step(pick(1)).observation == "1 so far, 2 to go."
    assert (json.dumps, os.getcwd()) == (before, here)


def test_an_endless_loop_ends_with_its_time_limit() -> None:
    pool, answers = EnvPool(1, 0.5), SimpleQueue[Any]()
    episode = started(isolated(hostile.Spins))
    process, threads = psutil.Process(episode._pid), threading.active_count()
    pool.submit(lambda: episode.step(pick(5)), answers.put)
    while answers.empty():
        time.sleep(0.01)
        pool.reap()
    assert "no answer within 0.5 s" in str(answers.get())
    assert psutil.wait_procs([process], timeout=20)[1] == []
    until = time.monotonic() + 20
    while threading.active_count() > threads and time.monotonic() < until:
        time.sleep(0.01)
    assert threading.active_count() <= threads  # the thread that waited for it is free


def test_nothing_is_left_of_closed_episodes_and_of_the_server() -> None:
    spec = isolated(hostile.Honest)
    episodes = [started(spec) for _ in range(3)]
    copies = [episode.copy() for episode in episodes for _ in range(3)]
    server = psutil.Process(spec._server._process.pid)
    family = [server, *server.children(recursive=True)]
    template = 1
    assert len(family) == 1 + 12 + template and spec.census.open == 12 + template
    for episode in (*episodes, *copies[1:]):
        episode.close()
    copies.clear()  # one that is forgotten unclosed ends as well
    gc.collect()
    assert spec.census.open == template
    del episode, episodes, spec
    gc.collect()
    assert psutil.wait_procs(family, timeout=20)[1] == []


def test_episodes_that_are_opened_at_once_do_without_a_template_that_ended() -> None:
    spec = isolated(hostile.Spins)
    episode = started(spec)
    template = spec._server.template
    os.kill(template._pid, signal.SIGSTOP)  # all threads find it, and wait
    with ThreadPoolExecutor(8) as threads:
        opened = [threads.submit(spec.open) for _ in range(8)]
        time.sleep(0.5)
        os.kill(template._pid, signal.SIGKILL)
        for one in opened:
            one.result().close()
    episode.close()


def test_nothing_is_left_of_a_run_that_is_killed() -> None:
    script = (
        "from tests.unit.envs.test_isolation import *\n"
        "spec = isolated(hostile.Spins)\n"
        "copies = [started(spec).copy() for _ in range(3)]\n"
        "threading.Thread(target=lambda: copies[0].step(pick(5)), daemon=True).start()\n"
        "time.sleep(0.2)\n"
        "print(spec._server._process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    run = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    server = psutil.Process(int(run.stdout.readline()))
    family = [server, *server.children(recursive=True)]
    assert len(family) >= 4
    run.kill()
    run.communicate()
    assert psutil.wait_procs(family, timeout=20)[1] == []


def test_what_an_environment_sends_is_never_unpickled() -> None:
    import pickle
    import socket
    import struct

    ours, theirs = socket.socketpair()
    for body in (pickle.dumps({"value": 1}), b"[1]", b"\xff"):
        theirs.sendall(struct.pack("!Q", len(body)) + body)
        with pytest.raises(BadMessage):
            receive_answer(ours)


def test_a_class_that_another_process_cannot_load_is_refused() -> None:
    class Local(hostile.Honest):
        pass

    with pytest.raises(ConfigError, match="env.isolate=process: .*Local"):
        isolated(Local).open()
