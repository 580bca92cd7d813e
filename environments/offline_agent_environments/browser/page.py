"""A page of the browser: its text with numbers of elements, real mouse and keyboard input, and no other site.

Whatever a page asks for, a document, a script or a picture, is refused unless its address is allowed; further windows
are closed, downloads and dialogs refused.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from offline_agent.errors import EnvironmentFault, ToolError
from offline_agent_environments.browser.chromium import Chromium

_SCRIPT = (Path(__file__).parent / "page.js").read_text()
_SETTLED = "new Promise(done => setTimeout(() => requestAnimationFrame(() => setTimeout(done, 0)), 0))"
_SIZE = {"width": 640, "height": 480}
MOST_TYPED = 500
"""Most characters of one call of `type`."""


class Page:
    """One page in a browsing context of its own: no cookies or storage are shared with other pages.

    Every method raises EnvironmentFault where the browser fails; the page is then not used again.

    Args:
        home: The browser.
        context: Playwright's context.
        page: Playwright's page.

    Attributes:
        allowed: Whether an address may be loaded.
        refused: Addresses that were refused since the last `open`.
    """

    def __init__(self, home: Chromium, context: Any, page: Any) -> None:
        self._home = home
        self._context = context
        self._page = page
        self._sound = True
        self.allowed: Callable[[str], bool] = lambda url: False
        self.refused: list[str] = []

    @classmethod
    def of(cls, home: Chromium) -> Page:
        """Return a page of a browser, for one user at a time, who closes it."""

        async def make(browser: Any) -> Page:
            context = await browser.new_context(
                accept_downloads=False, service_workers="block", viewport=_SIZE, locale="en-US", timezone_id="UTC"
            )
            context.set_default_timeout(15_000)
            await context.add_init_script(_SCRIPT)
            page = cls(home, context, await context.new_page())
            await context.route("**/*", page._decide)
            await context.route_web_socket("**/*", page._no_socket)
            context.on("page", page._no_window)
            page._page.on("dialog", lambda dialog: asyncio.ensure_future(dialog.dismiss()))
            page._page.on("crash", page._broken)
            return page

        return home.take(make)

    @property
    def url(self) -> str:
        """The address of the document that is shown."""
        return str(self._page.url)

    def open(self, url: str, cookie: dict[str, str] | None = None) -> None:
        """Load a document into an emptied context.

        Args:
            url: Its address.
            cookie: One that is set before, in Playwright's form.
        """

        self.refused.clear()

        async def work() -> None:
            await self._context.clear_cookies()
            if cookie is not None:
                await self._context.add_cookies([cookie])
            await self._page.goto(url, wait_until="load")

        self._do(work(), "load a page")

    def evaluate(self, script: str, argument: Any = None) -> Any:
        """Return what a script of ours returns in the page."""
        return self._do(self._page.evaluate(script, argument), "run a script in the page")

    def go(self, url: str) -> None:
        """Load another document, as by its address."""
        self._do(self._page.goto(url, wait_until="load"), "go to an address")

    def lines(self, element: int = 0, cut: bool = True) -> list[str] | None:
        """Return the lines of the page, or of one element; None where there is no such element.

        Args:
            element: Its number; 0 = the whole page.
            cut: Whether long texts are cut.
        """
        script = f"async ([n, cut]) => {{ await {_SETTLED}; return __agent.view(n, cut) }}"
        found: list[str] | None = self.evaluate(script, [element, cut])
        return found

    def click(self, element: int) -> None:
        """Click on the middle of an element with the mouse.

        Raises:
            ToolError: There is no such element, or it is disabled or covered.
        """
        self._do(self._click(element), "click")

    def type(self, element: int, text: str) -> None:
        """Click on a field and put a text in place of what is in it, key by key.

        Raises:
            ToolError: As `click`; or it is no field.
        """
        self._do(self._type(element, text), "type")

    def choose(self, element: int, option: str) -> None:
        """Choose an option of a list.

        Raises:
            ToolError: There is no such element, or no such option.
        """
        fault = self.evaluate("([n, text]) => __agent.choose(n, text)", [element, option])
        if fault:
            raise ToolError(fault)

    def picture(self, path: Path) -> None:
        """Write a picture of the page, PNG."""
        self._do(self._page.screenshot(path=str(path), animations="disabled"), "take a picture")

    def shot(self, width: int, height: int) -> bytes:
        """Return a picture of the page's upper left part, PNG, once the page is settled."""
        clip = {"x": 0, "y": 0, "width": width, "height": height}

        async def work() -> bytes:
            await self._page.evaluate(_SETTLED)
            return bytes(await self._page.screenshot(clip=clip, animations="disabled"))

        return bytes(self._do(work(), "take a picture"))

    def click_at(self, x: int, y: int) -> None:
        """Click at a point."""
        self._do(self._page.mouse.click(x, y), "click")

    def rest(self) -> None:
        """Move the mouse to the lower right corner, so that what an earlier user pointed at is not lit."""
        self._do(self._page.mouse.move(_SIZE["width"] - 1, _SIZE["height"] - 1), "move the mouse")

    def keys(self, key: str, text: str = "") -> None:
        """Press a key, or several together (`Control+A`), then type a text."""

        async def work() -> None:
            await self._page.keyboard.press(key)
            if text:
                await self._page.keyboard.type(text)

        self._do(work(), "press keys")

    def spot(self, element: int) -> dict[str, Any]:
        """Return where an element is to be clicked, and whether it has the focus; raises ToolError as `click`."""
        return dict(self._do(self._spot(element), "find an element"))

    @property
    def sound(self) -> bool:
        """Whether it can be used."""
        return self._sound and self._home.alive

    def close(self) -> None:
        """Give the page back to its browser, emptied; one that failed is closed."""

        async def empty() -> None:
            await self._context.clear_cookies()
            await self._page.goto("about:blank")

        self.allowed = lambda url: False
        if self._sound and self._home.alive:
            with contextlib.suppress(EnvironmentFault):
                self._do(empty(), "empty a page")
                if self._home.keep(self):
                    return
        if self._home.alive:
            with contextlib.suppress(EnvironmentFault):
                self._home.run(self._context.close(), "close a page")

    def _do(self, work: Any, what: str) -> Any:
        if not self._sound:
            work.close()
            raise EnvironmentFault(f"browser: {what}: the page is broken")

        async def guarded() -> Any:
            try:
                return await work
            except ToolError as error:  # an answer to the policy, not a failure of the browser
                return error

        try:
            answer = self._home.run(guarded(), what)
        except EnvironmentFault:
            self._sound = False
            raise
        if isinstance(answer, ToolError):
            raise answer
        return answer

    async def _spot(self, element: int) -> dict[str, Any]:
        spot: dict[str, Any] = await self._page.evaluate("n => __agent.spot(n)", element)
        if "fault" in spot:
            raise ToolError(spot["fault"])
        return spot

    async def _click(self, element: int) -> None:
        spot = await self._spot(element)
        async with self._leaving(spot["leaves"]):
            await self._page.mouse.click(spot["x"], spot["y"])

    async def _type(self, element: int, text: str) -> None:
        spot = await self._spot(element)
        if spot["kind"] not in ("textbox", "textarea"):
            raise ToolError(f"element {element} is no field to type into")
        if spot["picked"]:
            if await self._page.evaluate("([n, text]) => __agent.set(n, text)", [element, text]) != text:
                raise ToolError(f"element {element} does not take {text!r}")
            return
        await self._page.mouse.click(spot["x"], spot["y"])
        await self._page.evaluate("n => __agent.clear(n)", element)
        enter = text.endswith("\n") and spot["kind"] == "textbox"
        body = text[:-1] if enter else text
        await (self._page.keyboard.type(body) if body else self._page.keyboard.press("Delete"))
        if enter:
            async with self._leaving(spot["in_form"]):
                await self._page.keyboard.press("Enter")

    @contextlib.asynccontextmanager
    async def _leaving(self, leaves: bool) -> Any:
        """Wait for the next document where the input leads to one; it may come after the input was answered."""
        if not leaves:
            yield
            return
        try:
            async with self._page.expect_navigation(wait_until="load", timeout=2_000):
                yield
        except Exception as error:
            from playwright.async_api import TimeoutError as NotLeft

            if not isinstance(error, NotLeft):  # a form whose script keeps it here
                raise

    async def _decide(self, route: Any) -> None:
        url = route.request.url
        if self.allowed(url):
            await route.continue_()
        else:
            self.refused.append(url[:200])
            await route.abort("aborted")  # a page that leads itself there stays where it is

    async def _no_socket(self, socket: Any) -> None:
        self.refused.append(str(socket.url)[:200])
        await socket.close()

    def _no_window(self, page: Any) -> None:
        if page is not self._page:
            asyncio.ensure_future(page.close())

    def _broken(self, _: Any) -> None:
        self._sound = False
