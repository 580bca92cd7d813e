"""Pictures of the tabs of report pages, by headless Chromium.

python tools/screenshots.py TAB=RUN_DIR/report.html ... writes docs/figures/report_TAB.png for each, such as
`pairs=runs/dpo/report.html`: the page is opened, the tab of that name is chosen, and what is seen is kept.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
SIZE = {"width": 1200, "height": 760}


def main(wanted: list[str]) -> None:
    """Take the pictures; each is named by its tab. Ends with a message where the arguments name no page."""
    pairs = [(tab, Path(path)) for tab, _, path in (one.partition("=") for one in wanted)]
    bad = [one for one, (tab, path) in zip(wanted, pairs, strict=True) if not tab or not path.is_file()]
    if bad or not pairs:
        got = ", ".join(bad) or "no argument"
        sys.exit(f"got {got}; allowed: TAB=RUN_DIR/report.html of pages that are there, as pairs=runs/dpo/report.html")
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE)  # type: ignore[arg-type]
        for tab, path in pairs:
            page.goto(path.resolve().as_uri())
            page.get_by_role("tab", name=tab.capitalize(), exact=True).click()
            page.wait_for_timeout(300)
            page.screenshot(path=FIGURES / f"report_{tab.lower()}.png")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
