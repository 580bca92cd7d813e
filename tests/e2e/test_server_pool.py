"""Searches over three model servers, of which one dies, one is slow and one answers garbage, and then lies."""

from __future__ import annotations

import hashlib
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from offline_agent.pipelines import build_prefs, evaluate
from offline_agent.pipelines.entry import main
from offline_agent.policies.base import DEFAULT_MODEL
from offline_agent.records import ToolCall
from offline_agent.rendering.renderer import Renderer
from offline_agent.store.columns import PAIR_TABLES
from tests.helpers.fake_server import Answer, FakeServer, seeded_model, serving, serving_all

KEYS = (
    "env=shop", "policy=server", f"policy.tokenizer={DEFAULT_MODEL}", "policy.backoff=0.02", "policy.timeout=60",
    "tracking.uri=null", "limits.workers=2",
)  # fmt: skip
SEARCH = (*KEYS, "tasks.n=6", "search.simulations=12", "search.max_steps=6")


def shops(rng: random.Random) -> tuple[str, ToolCall]:
    """Draw a turn of somebody who gets something bought now and then."""
    name = rng.choice(["search", "search", "open", "open", "choose", "buy"])
    arguments: dict[str, dict[str, Any]] = {
        "search": {"query": rng.choice(["quiet toaster", "white lamp", "small kettle"])},
        "open": {"rank": rng.randint(1, 4)},
        "choose": {"value": rng.choice(["white", "rustic", "large"])},
    }
    return rng.choice(["", "So.", "I go on."]), ToolCall(name, arguments.get(name, {}))


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer.load(DEFAULT_MODEL)


@pytest.fixture
def three(renderer: Renderer) -> Iterator[list[FakeServer]]:
    with serving_all(*(FakeServer(seeded_model(renderer, turns=shops)) for _ in range(3))) as fakes:
        yield fakes


@pytest.fixture(scope="module")
def sound(renderer: Renderer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with one sound server."""
    folder = tmp_path_factory.mktemp("sound") / "run"
    with serving(FakeServer(seeded_model(renderer, turns=shops))) as fake:
        assert main(build_prefs.COMMAND, [*SEARCH, f"policy.url={fake.url}", f"run_dir={folder}"]) == 0
    return folder


def digests(run_dir: Path) -> dict[str, str]:
    tables = ("trees", *PAIR_TABLES, "filtered", "trajectories")
    files = [file for table in tables for file in sorted((run_dir / table).rglob("*")) if file.is_file()]
    return {str(file.relative_to(run_dir)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def summary(run_dir: Path) -> dict[str, Any]:
    return dict(json.loads((run_dir / "summary.json").read_text()))


def urls(fakes: list[FakeServer]) -> str:
    return f"policy.url=[{','.join(fake.url for fake in fakes)}]"


class Script:
    """Does things when the servers together have been asked so many times."""

    def __init__(self, fakes: list[FakeServer], *acts: tuple[int, Callable[[], None]]) -> None:
        self._lock, self._acts, self._asked = threading.Lock(), list(acts), 0
        for fake in fakes:
            fake.misbehave = self.watch(fake.misbehave)

    def watch(self, inner: Callable[[str, dict, int], Answer]) -> Callable[[str, dict, int], Answer]:
        def misbehave(path: str, body: dict, count: int) -> Answer:
            due = []
            if "seed" in body:
                with self._lock:
                    self._asked += 1
                    while self._acts and self._acts[0][0] <= self._asked:
                        due.append(self._acts.pop(0)[1])
            for act in due:
                act()
            return inner(path, body, count)

        return misbehave


def test_one_dies_one_is_slow_and_one_lies(
    three: list[FakeServer], renderer: Renderer, sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dies, slow, lies = three
    mood = {"garbage": False}

    def garbage(path: str, body: dict, count: int) -> Answer:
        if mood["garbage"] and "seed" in body:
            return 200, {"choices": [{"token_ids": [5, 6], "logprobs": {"token_logprobs": [float("nan"), -1.0]}}]}
        return None

    def slowly(path: str, body: dict, count: int) -> Answer:
        time.sleep(0.03 if "seed" in body else 0)
        end = time.monotonic() + 60
        while back.is_set() and len(dies.seen) == before[0] and time.monotonic() < end:
            time.sleep(0.01)  # until the one that is back has been looked at, so that there is work left for it
        return None

    def lie() -> None:
        lies.complete = seeded_model(renderer, bias=1.0, turns=looks_elsewhere)
        mood["garbage"] = True

    def recover() -> None:
        mood["garbage"] = False  # it speaks sense again, but as another model
        before.append(len(dies.seen))
        dies.running.start()
        back.set()

    back, before = threading.Event(), list[int]()
    slow.misbehave, lies.misbehave = slowly, garbage
    Script(three, (30, lie), (60, dies.running.kill), (150, recover))
    assert main(build_prefs.COMMAND, [*SEARCH, urls(three), f"run_dir={tmp_path / 'run'}"]) == 0
    assert back.is_set() and digests(tmp_path / "run") == digests(sound)
    figures = {one["url"]: one for one in summary(tmp_path / "run")["servers"]["policy"]}
    assert figures[dies.url]["ejections"] == 1 and figures[dies.url]["out"] is None
    assert any("seed" in body for _, body in dies.seen[before[0] :])  # it was used again
    asked = sum("seed" in body for _, body in dies.seen)
    assert figures[dies.url]["requests"] >= asked > 0
    assert figures[slow.url]["errors"] == 0 == figures[slow.url]["ejections"]
    assert figures[lies.url]["ejections"] >= 1 and "another model" in figures[lies.url]["out"]
    generated = sum(one["generated_tokens"] for one in figures.values())
    assert generated == summary(tmp_path / "run")["this_session"]["generated_tokens"]
    assert not summary(tmp_path / "run")["this_session"]["policy_errors"]


def looks_elsewhere(rng: random.Random) -> tuple[str, ToolCall]:
    return "I am another model.", ToolCall("search", {"query": "anything"})


def test_all_dead_is_said_and_the_run_goes_on_later_as_if_nothing_had_been(
    three: list[FakeServer], sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = [*SEARCH, urls(three), "policy.patience=0.2", "search.trees_in_flight=1", f"run_dir={tmp_path / 'run'}"]

    def kill() -> None:
        for fake in three:
            threading.Thread(target=fake.running.kill, daemon=True).start()

    Script(three, (80, kill))
    assert main(build_prefs.COMMAND, run) == 1
    said = capsys.readouterr().err
    assert "all 3 servers are out, none came back within 0.2 s" in said and "Nothing is lost" in said
    assert all(fake.url in said for fake in three) and not (tmp_path / "run" / "summary.json").exists()
    for fake in three:
        fake.running.start()
    assert main(build_prefs.COMMAND, run) == 0
    assert digests(tmp_path / "run") == digests(sound) and summary(tmp_path / "run")["resumed"]


def test_a_run_goes_on_with_servers_at_other_addresses_if_they_have_the_same_model(
    three: list[FakeServer], renderer: Renderer, sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = [*SEARCH, "search.trees_in_flight=1", f"run_dir={tmp_path / 'run'}"]
    Script(three[:1], (60, three[0].running.kill))
    assert main(build_prefs.COMMAND, [*run, f"policy.url={three[0].url}", "policy.retries=0"]) == 1
    before = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert before["served"]["policy"]["model"] == "tiny" and len(before["served"]["policy"]["logps"]) > 5
    retrained = FakeServer(seeded_model(renderer, bias=0.5, turns=shops))
    renamed = FakeServer(seeded_model(renderer, turns=shops), ("huge",))
    for other, said in ((retrained, "differ by up to 0.5, allowed: 0.25"), (renamed, "'tiny', the server has 'huge'")):
        capsys.readouterr()
        with serving(other):
            assert main(build_prefs.COMMAND, [*run, f"policy.url={other.url}"]) == 2
        told = capsys.readouterr().err
        assert said in told and "policy: the" in told and "nothing was written" in told and "run_dir: " in told
    assert json.loads((tmp_path / "run" / "manifest.json").read_text()) | {"status": ""} == before | {"status": ""}
    capsys.readouterr()
    assert main(build_prefs.COMMAND, [*run, urls(three[1:]), "policy.temperature=0.1"]) == 2
    told = capsys.readouterr().err
    assert "policy.temperature: the run has 0.7, asked for 0.1" in told and "policy.url:" not in told
    assert main(build_prefs.COMMAND, [*run, urls(three[1:]), "policy.patience=9", "policy.concurrency=3"]) == 0
    assert digests(tmp_path / "run") == digests(sound) and summary(tmp_path / "run")["resumed"]
    after = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert after["config"]["policy"]["url"] == [fake.url for fake in three[1:]]  # as asked for last
    assert after["policy"]["url"] == three[0].url and after["served"] == before["served"]  # as it was begun


def test_an_outage_that_patience_covers_changes_nothing(three: list[FakeServer], sound: Path, tmp_path: Path) -> None:
    def blink() -> None:
        def off_and_on() -> None:
            for fake in three:
                fake.running.kill()
            for fake in three:
                fake.running.start()

        threading.Thread(target=off_and_on, daemon=True).start()

    Script(three, (80, blink))
    assert main(build_prefs.COMMAND, [*SEARCH, urls(three), f"run_dir={tmp_path / 'run'}"]) == 0
    assert digests(tmp_path / "run") == digests(sound)
    assert all(one["ejections"] for one in summary(tmp_path / "run")["servers"]["policy"])


def test_an_evaluation_says_what_each_server_did(three: list[FakeServer], tmp_path: Path) -> None:
    keys = [*KEYS, "tasks.n=6", "attempts=2", "max_steps=4", urls(three), f"run_dir={tmp_path / 'run'}"]
    Script(three, (20, three[0].running.kill))
    assert main(evaluate.COMMAND, keys) == 0
    (servers,) = summary(tmp_path / "run")["servers"].values()
    assert [one["url"] for one in servers] == [fake.url for fake in three] and servers[0]["ejections"] == 1
    assert summary(tmp_path / "run")["modes"]["sampled"]["unscored"] == 0


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("command", [build_prefs, evaluate])
def test_answers_of_another_model_end_the_run_and_are_not_asked_for_again(
    command: Any, pooled: bool, three: list[FakeServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lies, sound = three[0], three[0].complete
    lies.complete = lambda path, body: {**sound(path, body), "model": "other" if body.get("seed", 0) % 2 else "tiny"}
    keys = [*KEYS, "tasks.n=4", urls(three[: 1 + pooled]) if pooled else f"policy.url={lies.url}"]
    assert main(command.COMMAND, [*keys, f"run_dir={tmp_path / 'run'}"]) == 1
    assert "it serves another model now, or several models" in capsys.readouterr().err
    assert len(lies.seen) < 100
