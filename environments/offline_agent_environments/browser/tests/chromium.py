"""Pages of the browser environment for everybody's tests; where there is no Chromium they are skipped."""

from __future__ import annotations

import itertools
from typing import Any

from offline_agent.envs.base import EnvSpec, Episode
from offline_agent.records import Action, Task, ToolCall
from offline_agent_environments.browser import chromium
from offline_agent_environments.browser.view import View
from tests.helpers.engines import require

require("Chromium with Playwright and MiniWoB++", chromium.missing() is None, str(chromium.missing()))


def spec(**arguments: Any) -> EnvSpec:
    return EnvSpec.load("browser", arguments)


def tasks(n: int, split: str = "train", **arguments: Any) -> list[Task]:
    return list(itertools.islice(spec(**arguments).tasks(split), n))


def opened(**arguments: Any) -> tuple[Episode, str]:
    """Return an episode of the first train task, and its first observation."""
    one = spec(**arguments)
    episode = one.open()
    return episode, episode.reset(next(one.tasks("train")))


def act(name: str, **arguments: Any) -> Action:
    return Action(name, call=ToolCall(name, arguments))


def number(observation: str, kind: str, text: str | None = None) -> int:
    """Return the number of the first element of a kind, and of a text, on a page."""
    view = View.of([{"role": "user", "content": f"-\n\n{observation.partition(chr(10) * 2)[2] or observation}"}])[0]
    return next(e.number for e in view.all(kind) if text is None or e.text == text)
