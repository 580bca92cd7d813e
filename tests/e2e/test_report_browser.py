"""The page in a browser: every tab, click and filter, with hostile text in all places, by keyboard, on a phone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from offline_agent.report.html import page
from tests.helpers.report import SHOWN, evaluated, searched, trained

REQUIRED = bool(os.environ.get("OFFLINE_AGENT_REQUIRE_ENGINES"))
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((path for name in NAMES if (path := shutil.which(name))), None)
if not REQUIRED:
    pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install -e 'environments[browser]'")
    if CHROMIUM is None:
        pytest.skip("needs a Chromium: apt-get install chromium", allow_module_level=True)

LOCAL = ("file:", "data:")
PLAIN = SHOWN.split("\\x1b")[0]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    made = {"search": searched(folder / "search")}
    made["evaluation"] = evaluated(folder / "evaluation", f"against.run={made['search']}")
    made["training"] = trained(folder / "training")
    page.write(made["training"])
    return made


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Any]:
    """Open a run's page; afterwards nothing may have been said on the console, loaded, or run."""
    contexts, said = [], []

    def show(run_dir: Path, part: str = "", **options: Any) -> Any:
        context = browser.new_context(**options)
        contexts.append(context)
        opened = context.new_page()
        opened.on("console", lambda message: said.append(message.text))
        opened.on("pageerror", lambda error: said.append(str(error)))
        opened.on("request", lambda request: None if request.url.startswith(LOCAL) else said.append(request.url))
        opened.goto(f"file://{run_dir}/report.html{part}")
        return opened

    yield show
    for context in contexts:
        for opened in context.pages:
            hacked = opened.evaluate("window.hacked")
            said += [] if hacked is None else [f"a foreign script ran: {hacked}"]
        context.close()
    assert said == []


def settle(opened: Any, condition: str = "true") -> None:
    """Wait for a condition on the address, and until the page has handled its change, a later event."""
    opened.wait_for_function(condition)
    opened.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))")


def visible_panels(opened: Any) -> list[str]:
    return [panel.get_attribute("id") for panel in opened.query_selector_all(".panel") if panel.is_visible()]


@pytest.mark.parametrize("name", ["search", "evaluation", "training"])
@pytest.mark.parametrize("width", [1280, 800, 390])
def test_every_tab_opens_and_fits_the_screen(open_page: Any, runs: dict[str, Path], name: str, width: int) -> None:
    opened = open_page(runs[name], viewport={"width": width, "height": 844})
    tabs = opened.get_by_role("tab")
    assert tabs.count() >= 2
    for number in range(tabs.count()):
        tabs.nth(number).click()
        panel = tabs.nth(number).get_attribute("aria-controls")
        assert visible_panels(opened) == [panel] and tabs.nth(number).get_attribute("aria-selected") == "true"
        assert opened.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, panel
        assert opened.evaluate(_UNNAMED) == [], panel
        assert opened.evaluate("[...document.querySelectorAll('.detail')].every(e => e.scrollWidth <= e.clientWidth)")


_UNNAMED = """() => [...document.querySelectorAll('a, button, select, input, [role=region], [role=img], svg[role]')]
  .filter(part => part.checkVisibility() && !(part.getAttribute('aria-label') || part.getAttribute('aria-labelledby')
    || part.textContent.trim() || (part.labels && part.labels.length)))
  .map(part => part.outerHTML.slice(0, 120))"""


def test_tabs_work_by_keyboard(open_page: Any, runs: dict[str, Path]) -> None:
    opened = open_page(runs["search"])
    opened.get_by_role("tab", name="Overview").focus()
    opened.keyboard.press("ArrowRight")
    settle(opened, "document.activeElement.id === 'tab-trees'")
    assert visible_panels(opened) == ["trees"]
    opened.keyboard.press("End")
    settle(opened, "document.activeElement.id === 'tab-pairs'")
    assert visible_panels(opened) == ["pairs"]


def test_a_node_shows_its_conversation_proposals_verdict_and_pairs(open_page: Any, runs: dict[str, Path]) -> None:
    opened = open_page(runs["search"], "#trees")
    tree = opened.locator("article.tree:visible")
    assert tree.count() == 1
    end = tree.locator(".drawing a.s-solved").first
    end.locator(".dot").click()
    detail = tree.locator(".detail")
    settle(opened, "location.hash.startsWith('#tree=')")
    text = detail.inner_text()
    assert "gives 1.00" in text and "right()" in text and text.count(PLAIN) >= 2 and "Task " in text
    first = tree.locator('.drawing a[data-n="0"]')
    first.focus()
    opened.keyboard.press("Enter")
    settle(opened, "location.hash.endsWith('node=0')")
    assert "Proposals here" in detail.inner_text() and "prior" in detail.inner_text()
    assert "Pairs from here" in detail.inner_text()
    detail.locator("a[href^='#pair=']").first.click()
    settle(opened, "location.hash.startsWith('#pair=')")
    assert visible_panels(opened) == ["pairs"]


def test_a_link_leads_to_a_node_whatever_its_task_is_called(open_page: Any, runs: dict[str, Path]) -> None:
    task = "train <b>#1&node=9"
    opened = open_page(runs["search"], f"#tree={quote(task)}&node=1")
    tree = opened.locator("article.tree:visible")
    assert tree.get_attribute("data-tree") == task
    assert tree.locator(".drawing a.chosen").get_attribute("data-n") == "1"
    assert tree.locator(".detail h4").first.inner_text().startswith("1 ")


def test_trees_are_chosen_and_scaled(open_page: Any, runs: dict[str, Path]) -> None:
    opened = open_page(runs["search"], "#trees")
    opened.locator("#trees [name=tree]").select_option(index=2)
    settle(opened, "location.hash.startsWith('#tree=')")
    tree = opened.locator("article.tree:visible")
    assert tree.get_attribute("data-number") == "2"
    width = int(float(tree.locator(".drawing").get_attribute("width")))
    opened.get_by_role("button", name="larger").click()
    assert float(tree.locator(".drawing").get_attribute("width")) == pytest.approx(1.3 * width)
    opened.get_by_role("button", name="fit the width").click()
    assert float(tree.locator(".drawing").get_attribute("width")) <= width


def test_pairs_are_filtered_by_kind_margin_and_task(open_page: Any, runs: dict[str, Path]) -> None:
    opened = open_page(runs["search"], "#pairs")
    pairs, shown = opened.locator("article.pair"), opened.locator("article.pair:visible")
    total = pairs.count()
    assert shown.count() == total > 1
    kinds = {kind: opened.locator(f'article.pair[data-kind="{kind}"]').count() for kind in ("step", "trajectory")}
    for kind, count in kinds.items():
        opened.locator("#pairs [name=kind]").select_option(kind) if count else None
        assert not count or shown.count() == count
    opened.locator("#pairs [name=kind]").select_option("")
    opened.locator("#pairs [name=task]").fill("#1&")
    assert 0 < shown.count() < total
    assert all("#1&" in task for task in shown.evaluate_all("all => all.map(each => each.dataset.task)"))
    assert opened.locator("#pairs output").inner_text() == f"{shown.count()} of {total} shown"
    opened.locator("#pairs [name=task]").fill("")
    opened.locator("#pairs [name=margin]").fill("1.01")
    assert shown.count() == 0
    opened.locator("#pairs [name=margin]").fill("-1")
    assert PLAIN in shown.first.text_content()
    shown.first.get_by_role("link", name="see it in the tree").click()
    assert visible_panels(opened) == ["trees"]


def test_two_policies_stand_side_by_side_on_one_task(open_page: Any, runs: dict[str, Path]) -> None:
    opened = open_page(runs["evaluation"], "#evaluation")
    sides = opened.locator("#sides > .attempt")
    assert sides.count() == 2
    whose = sides.evaluate_all("all => all.map(each => each.dataset.who)")
    assert whose[0].startswith("candidate: ") and whose[1].startswith("against: ")
    assert PLAIN in sides.nth(0).inner_text()
    task = "validation <b>#3&node=9"
    opened.locator("#evaluation .tall").get_by_role("link", name=task).click()
    settle(opened)
    assert opened.locator("#evaluation [name=task]").input_value() == task
    opened.locator("#evaluation [name=right]").select_option(index=1)
    assert sides.nth(1).get_attribute("data-who").endswith("sampled 1")
    groups = opened.locator("#evaluation").inner_text()
    assert "Failures by how they ended" in groups and "ended by itself, judged 0.00" in groups


def test_curves_have_the_marks_of_the_watch(open_page: Any, runs: dict[str, Path]) -> None:
    opened = open_page(runs["training"], "#training")
    chart = opened.locator("figure.chart", has=opened.locator("figcaption", has_text="kl"))
    assert chart.locator(".mark").count() == 1 and "the policy left its reference" in chart.inner_text()
    assert chart.get_by_role("img").get_attribute("aria-label").startswith("kl: from 0.100 to 0.100 over 40 updates")


def test_without_scripts_the_whole_text_is_there(browser: Any, runs: dict[str, Path]) -> None:
    context = browser.new_context(java_script_enabled=False)
    opened = context.new_page()
    opened.goto(f"file://{runs['search']}/report.html")
    assert all(opened.locator(f"#{name}").is_visible() for name in ("overview", "trees", "pairs"))
    assert not opened.locator("form.tools").first.is_visible() and opened.locator("article.tree:visible").count() == 3
    opened.locator("details.outline > summary").first.click()
    opened.locator("details.node > summary").first.click()
    assert PLAIN in opened.locator("details.node").first.inner_text()
    opened.locator("#tabs a", has_text="Pairs").click()
    assert opened.url.endswith("#pairs")
    context.close()
