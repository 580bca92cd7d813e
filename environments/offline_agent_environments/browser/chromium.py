"""The Chromium of a process: one browser, driven by one thread; pages that are free wait to be used again."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import importlib.util
import os
import shutil
import threading
from collections.abc import Callable, Coroutine
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from offline_agent.errors import ConfigError, EnvironmentFault

INSTALL = "pip install 'offline-agent-environments[browser]'"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_SECONDS = 20.0  # longest of anything that is asked of the browser
_FREE = 4  # pages that wait; each holds some 50 MB

T = TypeVar("T")


@cache
def executable() -> str | None:
    """Return the path of a Chromium: on the PATH, or one that Playwright downloaded; None where there is none."""
    for name in _NAMES:
        if found := shutil.which(name):
            return found
    downloads = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache" / "ms-playwright")
    return next((str(path) for path in sorted(downloads.glob("chromium-*/chrome-linux*/chrome"))), None)


def missing() -> str | None:
    """Return a text that says what is missing and how to install it; None when nothing is."""
    for package in ("playwright", "miniwob"):
        if importlib.util.find_spec(package) is None:
            return f"env browser needs the package {package}, which is not installed; run: {INSTALL}"
    if executable() is None:
        return (
            "env browser needs Chromium, and there is none on the PATH; on Debian or Ubuntu run: apt-get install"
            " chromium (or: playwright install --with-deps chromium)"
        )
    return None


class Chromium:
    """A running browser. Safe to use from many threads.

    Args:
        hosts: Names of hosts, and the local addresses they stand for. No other name is resolved.

    Raises:
        ConfigError: Playwright or Chromium is missing.
        EnvironmentFault: It does not start.
    """

    def __init__(self, hosts: dict[str, str]) -> None:
        fault = missing()
        if fault is not None:
            raise ConfigError(fault)
        self.process = os.getpid()
        self._hosts = hosts
        self._free: list[Any] = []
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._playwright: Any = None
        self._browser: Any = None
        self._closed = False
        threading.Thread(target=self._loop.run_forever, name="browser", daemon=True).start()
        try:
            self.run(self._start(), "start Chromium", 60.0)
        except EnvironmentFault:
            self.close()
            raise
        atexit.register(self.close)

    @property
    def alive(self) -> bool:
        """Whether the browser still runs, in this process."""
        if self._closed or self.process != os.getpid() or self._browser is None:
            return False
        return bool(self._browser.is_connected())

    def run(self, work: Coroutine[Any, Any, T], what: str, seconds: float = _SECONDS) -> T:
        """Do something in the browser's thread and return its result.

        Args:
            work: The coroutine.
            what: What it does, for messages.
            seconds: It is given up after so many.

        Raises:
            EnvironmentFault: The browser failed, or took longer.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(seconds)
        except concurrent.futures.TimeoutError as error:
            future.cancel()
            raise EnvironmentFault(f"browser: {what}: no answer within {seconds:g} s") from error
        except EnvironmentFault:
            raise
        except Exception as error:  # Playwright's own, of many classes
            told = str(error).strip().splitlines()
            raise EnvironmentFault(f"browser: {what}: {told[0] if told else type(error).__name__}") from error

    def take(self, make: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
        """Return a page that is free, or a new one.

        Args:
            make: Makes a page in a new context of the browser.
        """
        with self._lock:
            if self._free:
                return self._free.pop()  # type: ignore[no-any-return]
        return self.run(make(self._browser), "open a page")

    def keep(self, page: Any) -> bool:
        """Keep a page for the next user; False where enough of them wait already."""
        with self._lock:
            if not self.alive or len(self._free) >= _FREE:
                return False
            self._free.append(page)
            return True

    def close(self) -> None:
        """End the browser, its driver and the thread."""
        if self._closed or self.process != os.getpid():
            return
        self._closed = True
        atexit.unregister(self.close)
        with contextlib.suppress(EnvironmentFault):
            self.run(self._stop(), "end Chromium", 10.0)
        self._browser = None
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _start(self) -> None:
        from playwright.async_api import async_playwright

        self._playwright = await async_playwright().start()
        rules = [f"MAP {name} {address}" for name, address in self._hosts.items()]
        self._browser = await self._playwright.chromium.launch(
            executable_path=executable(),
            headless=True,
            # the command decides what a signal ends
            handle_sigint=False,
            handle_sigterm=False,
            handle_sighup=False,
            args=[
                f"--host-resolver-rules={', '.join([*rules, 'MAP * ~NOTFOUND'])}",
                "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-dev-shm-usage",
                # the same page must give the same picture: what is drawn anew in part is rounded in another way
                "--disable-gpu",
                "--disable-partial-raster",
                "--disable-skia-runtime-opts",
            ],
        )

    async def _stop(self) -> None:
        if self._browser is not None:
            await self._browser.close()
        if self._playwright is not None:
            await self._playwright.stop()


_running: Chromium | None = None
_starting = threading.Lock()


def chromium(hosts: Callable[[], dict[str, str]]) -> Chromium:
    """Return this process's browser; it is started where none runs. Raises as `Chromium`.

    Args:
        hosts: Gives the hosts of a new one.
    """
    global _running
    with _starting:
        if _running is None or not _running.alive:
            if _running is not None:
                _running.close()
            _running = Chromium(hosts())
        return _running
