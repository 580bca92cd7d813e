"""The process of one episode: carries out what the run asks, and forks itself where a copy is wanted."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable
from typing import Any

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.episode import Episode
from offline_agent.envs.isolation.protocol import receive_request, send_answer
from offline_agent.errors import ConfigError, EnvironmentFault, in_words
from offline_agent.records import Verdict

_UNREAPED = 16  # copies left to the server, which tells from a zombie how it ended


def serve(spec: EnvSpec, run: socket.socket) -> None:
    """Open the environment and answer requests until the run closes the socket; returns in copies too.

    Args:
        spec: The environment.
        run: The socket to the run.
    """
    try:
        episode = spec.open()
    except (EnvironmentFault, ConfigError) as error:
        send_answer(run, {"fault": str(error)})
        return
    send_answer(run, {"value": os.getpid()})
    copies: list[int] = []
    while True:
        try:
            (what, *arguments), handed = receive_request(run)
        except (EOFError, OSError):
            return  # the run does not need it any more, or is gone
        if what == "copy":
            copy = _fork(spec, handed[0], run, copies)
            if copy is not None:
                run = copy
                continue
        else:
            _answer(run, episode, what, arguments)


def _answer(run: socket.socket, episode: Episode, what: str, arguments: list[Any]) -> None:
    """Carry one request out and send its answer."""
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
    "turn_reward": Episode.turn_reward,
    "undeclared_turn_reward": Episode.undeclared_turn_reward,
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
    others = _threads() - 1
    if others:
        fault = f"{spec.name}: its process cannot be forked: it runs {others} more threads, which a fork does not copy"
        send_answer(copy, {"fault": fault})
        copy.close()
        return None
    while len(copies) > _UNREAPED and os.waitpid(copies[0], os.WNOHANG)[0]:
        del copies[0]
    chance = random.getstate()  # Python seeds the shared generator anew in a child
    pid = os.fork()
    if pid:
        copies.append(pid)
        copy.close()
        return None
    copies.clear()
    run.close()
    random.setstate(chance)
    send_answer(copy, {"value": os.getpid()})
    return copy


def _threads() -> int:
    """Return how many threads this process has, those of C libraries included."""
    return len(os.listdir("/proc/self/task"))
