"""MiniWoB++'s levels: which there are, a level begun from a seed, and its reward."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from offline_agent.errors import ConfigError, EnvironmentFault, did_you_mean
from offline_agent_environments.browser.chromium import missing
from offline_agent_environments.browser.page import Page

SEEDS = {"train": range(100_000), "validation": range(1_000_000, 1_001_000), "test": range(2_000_000, 2_001_000)}
"""Seeds of a split's tasks."""

_TIME = "depends on the clock"
_MOUSE = "needs the mouse to be moved or held"
_LOOK = "is seen, not read"
EXCLUDED: dict[str, str] = {
    **dict.fromkeys(
        ("chase-circle", "click-pie", "click-pie-nodelay", "moving-items", "button-delay", "simon-says", "stock-market",
         "book-flight", "use-autocomplete", "click-menu", "click-menu-2", "terminal"), _TIME,
    ),
    **dict.fromkeys(
        ("drag-box", "drag-circle", "drag-cube", "drag-items", "drag-items-grid", "drag-shapes", "drag-shapes-2",
         "drag-single-shape", "drag-sort-numbers", "draw-circle", "draw-line", "highlight-text", "highlight-text-2",
         "hover-shape", "resize-textarea", "hot-cold", "sign-agreement", "text-editor", "use-slider", "use-slider-2",
         "use-colorwheel", "use-colorwheel-2"), _MOUSE,
    ),
    **dict.fromkeys(
        ("bisect-angle", "circle-center", "find-midpoint", "right-angle", "grid-coordinate", "visual-addition",
         "click-shades", "count-sides", "identify-shape", "count-shape", "click-shape"), _LOOK,
    ),
}  # fmt: skip
"""Levels that are not offered, and why."""

LEVELS = (
    "click-test", "click-test-2", "click-button", "click-link", "enter-text", "focus-text", "choose-list",
    "click-checkboxes", "login-user", "click-option", "click-button-sequence", "click-dialog", "click-dialog-2",
    "click-tab", "click-tab-2-easy", "click-collapsible-nodelay", "click-widget", "enter-text-dynamic",
    "enter-password", "focus-text-2", "click-checkboxes-transfer", "click-checkboxes-large", "unicode-test",
    "read-table", "simple-arithmetic", "odd-or-even",
)  # fmt: skip
"""Levels whose expert is scripted: the default."""

_BEGIN = """seed => {
  if (window.jQuery) jQuery.fx.off = true;
  core.EPISODE_MAX_TIME = 2000000000;  // the level's own 10 s would depend on the machine
  Math.seedrandom(seed);
  core.startEpisodeReal();
  return core.getUtterance();
}"""
_STATE = "() => [WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL]"


@cache
def root() -> Path:
    """Return the folder of the package's pages."""
    spec = importlib.util.find_spec("miniwob")
    if spec is None or spec.origin is None:
        raise ConfigError(str(missing()))
    return Path(spec.origin).parent.resolve() / "html"


def version() -> str:
    """Return the package's name and version."""
    return f"miniwob {importlib.metadata.version('miniwob')}"


def checked(given: str | Sequence[str]) -> list[str]:
    """Return the names of levels.

    Args:
        given: Several, separated by commas or as a list; "" = `LEVELS`.

    Raises:
        ConfigError: Something is missing, there is no such level, or it is not offered.
    """
    fault = missing()
    if fault is not None:
        raise ConfigError(fault)
    names = [name.strip() for name in (given.split(",") if isinstance(given, str) else given)]
    if names in ([], [""]):
        return list(LEVELS)
    known = sorted(path.stem for path in (root() / "miniwob").glob("*.html"))
    for name in names:
        if name in EXCLUDED:
            raise ConfigError(f"env.level: got {name!r}, which is not offered: it {EXCLUDED[name]}")
        if name not in known:
            allowed = f"MiniWoB++'s {len(known) - len(EXCLUDED)} levels without {', '.join(sorted(EXCLUDED)[:3])}, …"
            raise ConfigError(f"env.level: got {name!r}, allowed: {allowed}.{did_you_mean(name, known)}")
    return names


def address(level: str) -> str:
    """Return the address of a level's page."""
    return (root() / "miniwob" / f"{level}.html").as_uri()


def begin(page: Page, level: str, seed: int) -> str:
    """Load a level, start the episode of a seed, and return what is to be done in words.

    Raises:
        EnvironmentFault: The page is not a level's, or the browser failed.
    """
    within = root().as_uri() + "/"
    own = address(level)
    # what the page loads, and of documents its own alone: another level would be easier
    page.allowed = lambda url: url == own or (url.startswith(within) and not url.endswith((".html", "/")))
    page.open(own)
    told = page.evaluate(_BEGIN, str(seed))
    told = told.get("utterance") if isinstance(told, dict) else told
    if not isinstance(told, str) or not told:
        raise EnvironmentFault(f"browser: {level} says nothing of what is to be done (seed {seed})")
    return " ".join(told.split())


def state(page: Page) -> tuple[bool, float]:
    """Return whether the episode is over, and its reward in [-1, 1] without the part that decays with time."""
    over, reward = page.evaluate(_STATE)
    return bool(over), float(reward)
