"""Pages in Chromium: experts, replays, real input, and a browser that dies."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.play import ScriptedPlayer
from offline_agent.envs.shop import Shop
from offline_agent.errors import ConfigError, EnvironmentFault
from offline_agent.records import Task
from offline_agent_environments.browser import Browser, chromium, miniwob
from offline_agent_environments.browser.tests.chromium import act, number, opened, spec, tasks


def _expert(task: Task, noise: float = 0.0, **arguments):
    return ScriptedPlayer(spec(**arguments), 30).expert(task, noise)


def test_the_expert_wins_every_level_that_is_offered_by_default():
    played = tasks(len(miniwob.LEVELS), "test")
    assert sorted(task.args["level"] for task in played) == sorted(miniwob.LEVELS)
    lost = [task.task_id for task in played if not _expert(task).verdict.success]
    assert not lost


def test_the_shops_expert_buys_on_pages_what_it_buys_in_the_shop():
    shop = EnvSpec(Shop)
    for task in tasks(3, suite="shop"):
        on_pages = _expert(task, suite="shop").verdict
        plain = ScriptedPlayer(shop, 30).expert(Task("shop", "train", task.args["goal"])).verdict
        assert on_pages.score == 1.0
        assert on_pages.evidence == plain.evidence


def test_another_browser_shows_the_same_pages():
    task = tasks(13)[10]  # two clicks, on buttons in random places
    player = ScriptedPlayer(spec(), 10)
    here = player.expert(task, 0.5)
    chromium.chromium(dict).close()
    again = player.run(task, here.context.actions())
    assert [step.observation for step in again.steps] == [step.observation for step in here.steps]
    assert again.verdict == here.verdict


def test_going_to_the_page_again_begins_the_same_episode_again():
    episode, first = opened(level="enter-text")
    episode.step(act("type", element=number(first, "textbox"), text="abc"))
    again = episode.step(act("goto", address="/")).observation
    assert again == first.partition("\n\n")[2]
    episode.close()


def test_typing_replaces_what_is_there_and_a_line_break_submits():
    episode, first = opened(suite="shop")
    field = number(first, "textbox")
    episode.step(act("type", element=field, text="wooden spoon"))
    page = episode.step(act("type", element=field, text="mint tea\n")).observation
    assert page.startswith("page /search?q=mint+tea\n")
    episode.close()


def test_what_cannot_be_done_is_told():
    episode, first = opened(level="choose-list")
    listed, button = number(first, "select"), number(first, "button")
    told = {
        episode.step(act("click", element=99)).observation,
        episode.step(act("type", element=button, text="x")).observation,
        episode.step(act("select", element=button, option="x")).observation,
        episode.step(act("read", element=99)).observation,
    }
    assert told == {
        "Error: there is no element 99 on the page",
        f"Error: element {button} is no field to type into",
        f"Error: element {button} is no list of options",
    }
    refused = episode.step(act("select", element=listed, option="nobody")).observation
    assert refused.startswith("Error: no such option, allowed: ")
    assert episode.fingerprint() is not None and not episode.terminated
    episode.close()


def test_a_covered_element_is_clicked_where_it_shows():
    """The second button of this seed lies over the middle of the first."""
    task = next(task for task in spec(level="click-test-2").tasks("train") if task.args["seed"] == 6)
    assert _expert(task).verdict.success


def test_pictures_are_files_that_the_page_names(tmp_path):
    episode, first = opened(level="enter-text", screenshots=str(tmp_path))
    typed = episode.step(act("type", element=number(first, "textbox"), text="abc")).observation
    names = [text.splitlines()[-1].removeprefix("screenshot ") for text in (first, typed)]
    before, after = ((tmp_path / name).read_bytes() for name in names)
    assert before.startswith(b"\x89PNG") and before != after
    episode.close()


def test_pages_of_many_threads_do_not_meet():
    def play(task):
        return _expert(task, level="enter-text").verdict.success

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(play, tasks(6, level="enter-text")))


def test_a_browser_that_dies_costs_an_episode():
    episode, first = opened(level="enter-text")
    mine = psutil.Process().children(recursive=True)
    for process in mine:
        with contextlib.suppress(psutil.NoSuchProcess):  # one of its helpers has ended
            if "chromium" in process.name() and "--type=" not in " ".join(process.cmdline()):
                process.kill()
    with pytest.raises(EnvironmentFault, match="browser: "):
        for _ in range(20):  # its death is noticed a little later
            episode.step(act("read"))
    episode.close()
    assert _expert(tasks(1, level="enter-text")[0], level="enter-text").verdict.success


def test_no_browser_outlives_its_process():
    code = (
        "import psutil, time; from offline_agent_environments.browser.tests.chromium import opened;"
        "opened(level='click-test');"
        "print(*(p.pid for p in psutil.Process().children(recursive=True)), flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        family = [int(pid) for pid in process.stdout.readline().split()]
        os.kill(process.pid, signal.SIGKILL)
    assert len(family) > 2
    for _ in range(100):
        if not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in family):
            return
        time.sleep(0.1)
    raise AssertionError([psutil.Process(pid).cmdline() for pid in family if psutil.pid_exists(pid)])


def test_what_is_missing_is_told_before_anything_runs(monkeypatch):
    monkeypatch.setattr(chromium, "executable", lambda: None)
    with pytest.raises(ConfigError, match="apt-get install chromium"):
        next(iter(Browser.tasks("train")))


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"level": "chase-circle"}, "not offered: it depends on the clock"),
        ({"level": "click-buton"}, "Did you mean 'click-button'"),
    ],
)
def test_levels_that_are_not_offered_are_refused(arguments, fault):
    with pytest.raises(ConfigError, match=fault):
        next(iter(Browser.tasks("train", **arguments)))


def test_the_shop_has_no_levels():
    with pytest.raises(ConfigError, match="env.level"):
        Browser("shop", level="click-test")
