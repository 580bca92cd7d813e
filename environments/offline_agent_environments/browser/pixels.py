"""MiniWoB++'s levels by pixels: a picture of the level, clicks at coordinates, keys."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from offline_agent.envs.base import Environment, ToolError
from offline_agent.pictures import mark
from offline_agent.records import Message, Verdict, call_message
from offline_agent_environments.browser import demonstrate_miniwob, miniwob
from offline_agent_environments.browser.chromium import chromium
from offline_agent_environments.browser.env import Browser, _hosts
from offline_agent_environments.browser.page import MOST_TYPED, Page
from offline_agent_environments.browser.view import Call, View, careless

WIDTH, HEIGHT = 160, 210
"""Size of a level, in pixels: MiniWoB's own."""
LEVELS = (
    "click-test", "click-test-2", "click-button", "click-link", "focus-text", "focus-text-2", "click-dialog",
    "click-option", "click-checkboxes", "enter-text",
)  # fmt: skip
"""The default."""
KEYS = ("Enter", "Tab", "Backspace", "Escape", "ArrowUp", "ArrowDown", "PageUp", "PageDown")


class Pixels(Environment):
    """MiniWoB++'s levels in headless Chromium, seen as pictures of 160 by 210 pixels.

    What is to be done is told in words, once. Rewards and splits are those of `browser`. A level cannot be copied:
    states are restored by replay, and a replay must show the same pictures.

    Args:
        level: Levels, in turn: several, separated by commas or as a list; "" = ten of them.
    """

    name = "pixels"
    system_prompt = "You use a page by its picture, 160 pixels wide and 210 high. Do what is asked for, no more."
    replay_only = True  # the state lives in Chromium
    one_thread = False  # the browser's own thread makes every call
    max_steps = 12
    _shows = True

    def __init__(self, level: str | Sequence[str] = "") -> None:
        self._page: Page | None = None

    @classmethod
    def tasks(cls, split: str, level: str | Sequence[str] = "") -> Iterable[dict[str, Any]]:
        """Yield the seeds of a split for each level in turn; raises ConfigError as `Browser.tasks`."""
        for task in Browser.tasks(split, "miniwob", level or LEVELS):
            yield {key: task[key] for key in ("task_id", "level", "seed")}

    def reset(self, level: str, seed: int) -> str:
        """Begin a level; return what is to be done, and its picture."""
        if self._page is None:
            self._page = Page.of(chromium(_hosts))
        self._page.rest()
        self._task = (level, seed)
        self._asked = miniwob.begin(self._page, level, seed)
        return f"{self._asked}\n{self._look()}"

    def click_at(self, x: int, y: int) -> str:
        """Click with the mouse.

        Args:
            x: Pixels from the left, 0 to 159.
            y: Pixels from the top, 0 to 209.
        """
        if not (0 <= x < WIDTH and 0 <= y < HEIGHT):
            raise ToolError(f"got ({x}, {y}), allowed: 0 to {WIDTH - 1} and 0 to {HEIGHT - 1}")
        self._now.click_at(x, y)
        return self._look()

    def type_text(self, text: str) -> str:
        """Type into the field that has the focus, in place of what is in it.

        Args:
            text: What to type.
        """
        if len(text) > MOST_TYPED:
            raise ToolError(f"text: got {len(text)} characters, allowed: at most {MOST_TYPED}")
        self._now.keys("Control+A", text)
        return self._look()

    def press(self, key: str) -> str:
        """Press a key.

        Args:
            key: Enter, Tab, Backspace, Escape, ArrowUp, ArrowDown, PageUp or PageDown.
        """
        if key not in KEYS:
            raise ToolError(f"key: got {key!r}, allowed: {', '.join(KEYS)}")
        self._now.keys(key)
        return self._look()

    def get_reward(self) -> Verdict:
        """Return the level's own reward, as `browser` does."""
        score = min(max(self._reward, 0.0), 1.0)
        evidence = {"level": self._task[0], "raw_reward": self._reward}
        return Verdict(score, score == 1.0, "browser.miniwob", miniwob.version(), evidence)

    @property
    def fingerprint(self) -> str:
        """Hash of the task, the picture and what the verifier sees."""
        state = (self._task, self._asked, self._seen, self._reward, self.terminated)
        return hashlib.blake2b(repr(state).encode(), digest_size=8).hexdigest()

    @classmethod
    def demonstrate(
        cls, task: Mapping[str, Any], messages: Sequence[Message], rng: random.Random, noise: float
    ) -> Message:
        """Return the expert's next turn: that of `browser`'s, at the coordinates of the element."""
        calls = [one["function"] for message in messages for one in message.get("tool_calls") or ()]
        made = [(str(call["name"]), dict(call["arguments"])) for call in calls]
        with _expert.lock:
            return _expert.next(task["level"], task["seed"], made, rng, noise)

    def _look(self) -> str:
        page = self._now
        shown = page.shot(WIDTH, HEIGHT) if self._shows else b""
        self.terminated, self._reward = miniwob.state(page)
        self._seen = "The episode is over." if self.terminated or not shown else mark(shown)
        return self._seen

    @property
    def _now(self) -> Page:
        if self._page is None:
            raise RuntimeError("reset the page first")
        return self._page

    def __enter__(self) -> Pixels:
        return self

    def __exit__(self, *_: object) -> None:
        if self._page is not None:
            self._page.close()
            self._page = None


class _Expert:
    """The expert, who looks at the elements of a page of its own, brought to the state of the conversation."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._at: tuple[Any, list[Call]] | None = None
        self._env = Pixels()
        self._env._shows = False  # it reads the elements
        self._last: Call | None = None

    def next(self, level: str, seed: int, made: list[Call], rng: random.Random, noise: float) -> Message:
        """Return the next turn after the calls that were made."""
        if self._at is None or self._at[0] != (level, seed) or self._at[1] != made[: len(self._at[1])]:
            self._env._page = self._env._page if self._env._page is None or self._env._page.sound else None
            self._env.reset(level, seed)
            self._at, self._last = ((level, seed), []), None
        for call in made[len(self._at[1]) :]:
            try:
                getattr(self._env, call[0])(**call[1])
            except (ToolError, TypeError, AttributeError):  # what the environment refused, too
                self._last = None
            self._at[1].append(call)
        page = self._env._now
        view = View.page(self._env._asked, page.lines() or [], self._last)
        careful = not (noise > 0 and rng.random() < noise)
        wanted = demonstrate_miniwob.decide(level, view) if careful else careless(view, rng)
        if wanted is None or "element" not in wanted[1]:
            return {"role": "assistant", "content": "I give up."}
        name, arguments = wanted
        try:
            spot = page.spot(arguments["element"])
        except ToolError:
            return {"role": "assistant", "content": "I give up."}
        self._last = wanted
        if name == "type" and spot["focused"]:
            return call_message("type_text", {"text": arguments["text"].rstrip("\n")})
        x, y = (min(max(round(spot[axis]), 0), most - 1) for axis, most in (("x", WIDTH), ("y", HEIGHT)))
        return call_message("click_at", {"x": x, "y": y})


_expert = _Expert()
