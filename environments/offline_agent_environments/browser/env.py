"""The environment: five tools on a page, the page's own state as the verifier."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import urljoin, urlsplit

from offline_agent.envs.base import Environment, ToolError
from offline_agent.envs.shop.goals import Goal, goals, reward
from offline_agent.errors import ConfigError
from offline_agent.records import Message, Verdict
from offline_agent_environments.browser import demonstrate as expert
from offline_agent_environments.browser import miniwob, shop_site
from offline_agent_environments.browser.chromium import chromium, missing
from offline_agent_environments.browser.page import MOST_TYPED, Page

SUITES = ("miniwob", "shop")


class Browser(Environment):
    """Web pages in headless Chromium: MiniWoB++'s levels (Liu et al. 2018, arXiv 1802.08802), or the shop as a site.

    The page is told in words: a line for each text and each element that can be acted on, with its number. A MiniWoB
    level gives its own reward, without the part that decays with time: 1 is success. The shop gives WebShop's reward.
    A page cannot be copied: states are restored by replay and checked.

    Args:
        suite: `miniwob` or `shop`.
        level: MiniWoB levels, in turn: several, separated by commas or as a list; "" = those with a scripted expert.
        screenshots: A folder that gets a picture of each state, PNG; the page's text then names its file. None = none.
    """

    name = "browser"
    system_prompt = (
        "You use web pages. Each line of a page is a text or an element; an element has its number in brackets, and"
        " click, type and select take that number. Do what is asked for, no more."
    )
    replay_only = True  # the state lives in Chromium
    one_thread = False  # the browser's own thread makes every call
    max_steps = 20
    _answers_differ: ClassVar[bool] = False

    def __init__(
        self,
        suite: Literal["miniwob", "shop"] = "miniwob",
        level: str | Sequence[str] = "",
        screenshots: str | None = None,
    ) -> None:
        if suite not in SUITES:
            raise ConfigError(f"env.suite: got {suite!r}, allowed: {', '.join(SUITES)}")
        if level and suite == "shop":
            raise ConfigError(f"env.level: got {level!r}, allowed with env.suite=shop: none; leave it out")
        self._pictures = None if screenshots is None else Path(screenshots)
        self._page: Page | None = None
        self._task: dict[str, Any] = {}
        self._visit: shop_site.Visit | None = None
        self._key = ""

    @classmethod
    def tasks(
        cls, split: str, suite: str = "miniwob", level: str | Sequence[str] = ""
    ) -> Iterable[dict[str, Any]]:
        """Yield the seeds of a split for each level in turn, or the shop's goals.

        Raises:
            ConfigError: Chromium or a package is missing, or there is no such level.
        """
        if fault := missing():
            raise ConfigError(fault)
        if suite == "shop":
            for index, goal in enumerate(goals(split)):
                yield {"task_id": f"shop-{split}-{index}", "suite": "shop", "goal": goal.task()}
            return
        names = miniwob.checked(level)
        for seed in miniwob.SEEDS[split]:
            for name in names:
                yield {"task_id": f"{name}-{seed}", "suite": "miniwob", "level": name, "seed": seed}

    def reset(
        self, suite: str, level: str = "", seed: int = 0, goal: Mapping[str, Any] | None = None, **_: Any
    ) -> str:
        """Load the first page; return what is to be done, and the page."""
        self._leave_shop()
        self.terminated = False
        self._reward = 0.0
        self._task = {"suite": suite, "level": level, "seed": seed}
        if self._page is None:
            self._page = Page.of(chromium(_hosts))
        page = self._page
        if suite == "miniwob":
            self._asked = miniwob.begin(page, level, seed)
        else:
            wanted = Goal.from_task(goal or {})
            self._asked = wanted.instruction()
            self._key, self._visit = shop_site.site().visit(wanted)
            page.allowed = lambda url: url.startswith(shop_site.ORIGIN + "/")
            page.open(f"{shop_site.ORIGIN}/", shop_site.cookie(self._key))
        return f"{self._asked}\n\n{self._look()}"

    def goto(self, address: str) -> str:
        """Go to an address of this site, as its links do; on a page without links, begin again.

        Args:
            address: The address, such as "/".
        """
        page, given = self._now, address.strip()
        if self._task["suite"] == "miniwob":
            if given not in ("", "/", page.url):
                raise ToolError(f'there is no address {given[:200]!r}, allowed: "/", which begins again')
            miniwob.begin(page, self._task["level"], self._task["seed"])
            return self._look()
        try:
            url = urljoin(page.url, given)
            allowed = urlsplit(url).netloc == shop_site.HOST and page.allowed(url)
        except ValueError:  # no address at all
            allowed = False
        if not allowed:
            raise ToolError(f'{given[:200]!r} is not of this site, allowed: addresses that begin with "/"')
        page.go(url)
        return self._look()

    def click(self, element: int) -> str:
        """Click on an element.

        Args:
            element: Its number.
        """
        self._now.click(element)
        return self._look()

    def type(self, element: int, text: str) -> str:
        """Type into a field, in place of what is in it. A line break at the end presses Enter.

        Args:
            element: The field's number.
            text: What to type.
        """
        if len(text) > MOST_TYPED:
            raise ToolError(f"text: got {len(text)} characters, allowed: at most {MOST_TYPED}")
        self._now.type(element, text)
        return self._look()

    def select(self, element: int, option: str) -> str:
        """Choose an option of a list.

        Args:
            element: The list's number.
            option: The option's text.
        """
        self._now.choose(element, option)
        return self._look()

    def read(self, element: int = 0) -> str:
        """Read the page or one element again, with long texts in full.

        Args:
            element: The element's number; 0 for the whole page.
        """
        lines = self._now.lines(element, cut=False)
        if lines is None:
            raise ToolError(f"there is no element {element} on the page")
        return "\n".join(lines)

    def get_reward(self) -> Verdict:
        """Return the reward of the page's state."""
        if self._task["suite"] == "miniwob":
            evidence = {"level": self._task["level"], "raw_reward": self._reward}
            score = min(max(self._reward, 0.0), 1.0)
            return Verdict(score, score == 1.0, "browser.miniwob", miniwob.version(), evidence)
        visit = self._visit
        if visit is None or visit.bought is None:
            return Verdict(0.0, False, "browser.shop", self.version, {"bought": None})
        score, evidence = reward(visit.goal, visit.bought, visit.chosen)
        return Verdict(score, score == 1.0, "browser.shop", self.version, evidence)

    @property
    def fingerprint(self) -> str:
        """Hash of the task, the page's text, the address and what the verifier sees."""
        visit = self._visit
        known = None if visit is None else (sorted(set(visit.seen)), visit.bought, sorted(visit.chosen.items()))
        state = (sorted(self._task.items()), self._asked, self._seen, self._reward, known, self.terminated)
        return hashlib.blake2b(repr(state).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    @classmethod
    def demonstrate(
        cls, task: Mapping[str, Any], messages: Sequence[Message], rng: random.Random, noise: float
    ) -> Message:
        """Return the scripted expert's next call, or with `noise` a careless one; see `demonstrate.next_turn`."""
        return expert.next_turn(task, messages, rng, noise)

    def _look(self) -> str:
        """Return the page in words, and note what the verifier needs."""
        page = self._now
        if self._visit is not None:
            self.terminated = self._visit.bought is not None
        else:
            self.terminated, self._reward = miniwob.state(page)
        if self.terminated:
            self._seen = "The episode is over."
            return self._seen
        address = [f"page {page.url.removeprefix(shop_site.ORIGIN)}"] if self._visit is not None else []
        self._seen = "\n".join([*address, *(page.lines() or [])])
        if self._pictures is None:
            return self._seen
        self._pictures.mkdir(parents=True, exist_ok=True)
        name = f"{self.fingerprint}.png"
        page.picture(self._pictures / name)
        return f"{self._seen}\nscreenshot {name}"

    @property
    def _now(self) -> Page:
        if self._page is None:
            raise RuntimeError("reset the page first")
        return self._page

    def _leave_shop(self) -> None:
        if self._visit is not None:
            shop_site.site().leave(self._key)
            self._visit = None

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave_shop()
        if self._page is not None:
            self._page.close()
            self._page = None


def _hosts() -> dict[str, str]:
    return {shop_site.HOST: shop_site.site().address}
