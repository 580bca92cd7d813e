"""The process of one episode: it executes the run's requests, and forks itself for a copy."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.episode import Episode
from offline_agent.envs.isolation.protocol import receive_request, send_answer
from offline_agent.errors import ConfigError, EnvironmentFault, in_words
from offline_agent.records import Verdict

_ENDING = 0.1  # seconds
_UNREAPED = 16  # copies left for the server, which reads from a zombie how it ended


def serve(spec: EnvSpec, run: socket.socket) -> None:
    """Open the environment and answer requests until the run closes the socket; returns in forks too.

    Args:
        spec: The environment.
        run: The socket to the run.
    """
    episodes: list[Episode] = []  # earlier ones are kept: destroying them could free what their own process uses
    if not _open(spec, run, episodes):
        return
    copies: list[int] = []
    while True:
        try:
            (what, *arguments), handed = receive_request(run)
        except (EOFError, OSError):
            return  # the run does not need it any more, or has ended
        if what not in ("copy", "open"):
            _answer(run, episodes[-1], what, arguments)
        elif (fork := _fork(spec, handed[0], run, copies)) is not None:
            run = fork
            if what == "open" and not _open(spec, run, episodes):
                return


def _open(spec: EnvSpec, run: socket.socket, episodes: list[Episode]) -> bool:
    """Add a fresh environment to the episodes and answer; return whether it opened."""
    try:
        episodes.append(spec.open())
    except (EnvironmentFault, ConfigError) as error:
        send_answer(run, {"fault": str(error)})
        return False
    send_answer(run, {"value": None})
    return True


def _answer(run: socket.socket, episode: Episode, what: str, arguments: list[Any]) -> None:
    """Execute one request and send its answer."""
    try:
        answer = {"value": _REQUESTS[what](episode, *arguments)}
    except EnvironmentFault as error:
        answer = {"fault": str(error)}
    except RuntimeError as error:
        answer = {"misuse": str(error)}
    try:
        answer["terminated"] = episode.terminated
    except EnvironmentFault as error:
        answer["terminated"] = str(error)
    try:
        send_answer(run, answer)
    except (TypeError, ValueError, RecursionError) as error:
        fault = f"{episode.spec.name}: {what} gave something that is no JSON ({in_words(error)})"
        send_answer(run, {"fault": fault, "terminated": answer["terminated"]})


def _reset(episode: Episode, task: Any) -> dict[str, Any]:
    observation = episode.reset(task)
    own = None if episode.tools is episode.spec.tools else episode.tools.to_json()
    return {"observation": observation, "tools": own}


def _verdict(episode: Episode) -> dict[str, Any]:
    verdict: Verdict = episode.verdict()
    return verdict.to_json()


_REQUESTS: dict[str, Callable[..., Any]] = {
    "reset": _reset,
    "step": lambda episode, action: list(episode.step(action)),
    "verdict": _verdict,
    "fingerprint": Episode.fingerprint,
    "achieved_goal": Episode.achieved_goal,
    # an undeclared one is answered True, which `Episode.undeclared_turn_reward` reads as not None
    "turn_reward": lambda e: e.turn_reward() if e.spec.turn_rewards else e.undeclared_turn_reward() or None,
    "system_prompt": lambda episode: episode.system_prompt,
    "close": Episode.close,
}


def _fork(spec: EnvSpec, copy: socket.socket, run: socket.socket, copies: list[int]) -> socket.socket | None:
    """Fork this process.

    Args:
        spec: The environment.
        copy: The copy's socket to the run.
        run: This process's.
        copies: Process ids of earlier copies that were not reaped; the new one is added.

    Returns:
        In the copy its socket; None in this process.
    """
    if others := _other_threads():
        fault = f"{spec.name}: its process cannot be forked: it runs {others} more threads, which a fork does not copy"
        send_answer(copy, {"fault": fault})
        copy.close()
        return None
    while len(copies) > _UNREAPED and os.waitpid(copies[0], os.WNOHANG)[0]:
        del copies[0]
    chance = random.getstate()  # Python seeds the shared generator anew in a child
    try:
        pid = os.fork()
    except OSError as error:
        send_answer(copy, {"fault": f"{spec.name}: its process cannot be forked: {error}"})
        copy.close()
        return None
    if pid:
        copies.append(pid)
        copy.close()
        return None
    copies.clear()
    run.close()
    random.setstate(chance)
    send_answer(copy, {"value": os.getpid()})
    return copy


def _other_threads() -> int:
    """Return how many threads this process has beside this one, those of C libraries included.

    That of tqdm, which watches progress bars and is begun by the first of them, is ended: it begins again by itself.
    """
    for thread in threading.enumerate():
        if type(thread).__module__ == "tqdm._monitor":
            watch: Any = thread
            watch.exit()
            watch.tqdm_cls.monitor = None
    until = time.monotonic() + _ENDING
    while (others := len(os.listdir("/proc/self/task")) - 1) and threading.active_count() == 1:
        if time.monotonic() > until:
            break  # a library's own
        time.sleep(0.001)  # one that was joined is listed a little longer
    return others
