"""The door of outgoing text: no secret of a configuration and no character that steers a reader passes it."""

from __future__ import annotations

import json
import os
import queue
import sys
from pathlib import Path
from typing import Any

import pytest

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.config.loading import load
from offline_agent.errors import in_words
from offline_agent.outgoing import code, masked, remember, remember_environment, visible, without_html
from offline_agent.store.files import read_json, write_json
from offline_agent.store.tracking import WorkerPipe
from tests.helpers import forked

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = '''
class Leaky:
    def __init__(self, token="", auth="", headers=None, note="", pin=0):
        self.token = token

    @classmethod
    def tasks(cls, split):
        return [{"n": n, "task_id": f"t{n} <img src=x onerror=alert(1)> \\x1b[2J \\u202e"} for n in range(3)]

    def reset(self, n: int) -> str:
        self.terminated = False
        return "say a number"

    def say(self, x: int) -> str:
        """Say a number.

        Args:
            x: The number.
        """
        if x % 2:
            raise RuntimeError(f"<img src=x> \\ud800 \\x1b[31m \\u202e with {self.token}")
        self.terminated = True
        return "said \\ud800"

    def get_reward(self) -> float:
        return float(self.terminated)
'''
SECRETS = ("from-outside-9a8b", "auth-5f5f5f", "header-123456", "urlpass99", "urltoken88", "48151623")
KEYS = (
    "env=leaky:Leaky", "env.token=${oc.env:GIVEN}", "env.note='also ${oc.env:GIVEN}'", "env.auth=auth-5f5f5f",
    "env.headers={Authorization: Bearer header-123456}", "env.pin=${oc.decode:${oc.env:PASSWORD}}", "policy=random",
    "env.isolate=none",
)  # fmt: skip


@pytest.mark.slow
def test_a_run_writes_and_prints_no_secret_and_no_steering_character(tmp_path: Path) -> None:
    (tmp_path / "leaky.py").write_text(ENVIRONMENT)
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}", "GIVEN": SECRETS[0], "PASSWORD": SECRETS[5]}

    def build(*more: str) -> str:
        words = [sys.executable, "-m", "offline_agent.pipelines.build_prefs", *KEYS, "run_dir=r x", "tracking.uri=null",
                 "search.simulations=6", *more]  # fmt: skip
        done = forked.run(words, cwd=tmp_path, env=env, timeout=300)
        return f"{done.returncode}\n{done.stdout}{done.stderr}"

    said = build()
    again = build()
    wrong = build("policy=server", "policy.url=http://me:urlpass99@localhost:1/v1?token=urltoken88")
    assert said.startswith("0") and again.startswith("0") and wrong.startswith("2") and "***@localhost" in wrong, wrong
    texts = {file.name: file.read_text() for file in (tmp_path / "r x").iterdir() if file.suffix == ".html"}
    for text in (said, wrong, *texts.values()):
        assert all(char.isprintable() or char in "\n\t" for char in text)
    assert "<img" not in texts["report.html"]
    for file in (tmp_path / "r x").rglob("*"):
        data = file.read_bytes() if file.is_file() else b""
        assert not [secret for secret in SECRETS if secret.encode() in data], file
    assert not [secret for secret in SECRETS if secret in said + wrong]
    config = read_json(tmp_path / "r x" / "manifest.json", "")["config"]["env"]
    assert config["pin"] == config["token"] == config["auth"] == config["headers"]["Authorization"] == "***"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"judge": {"auth": "topsecret"}}, "got topsecret."),
        ({"judge": {"apiKey": "topsecret"}}, "quoted: top%73ecret no, topsecret yes"),
        ({"x-api-key": "top/secret&<"}, "top%2Fsecret%26%3C, top/secret&amp;&lt;, top/secret&<"),
        ({"headers": {"X-Any": ["topsecret"]}}, "topsecret"),
        ({"headers": {"Authorization": "Bearer topsecret"}}, "the token topsecret"),
        ({"url": "http://me:topsecret@host/v1"}, "topsecret, and http://other:x@host"),
        ({"url": "http://host/v1?a=1&access_token=topsecret"}, "topsecret, and http://h?token=topsecre2&b=1"),
        ({}, "http://me:topsec@ret@host, https://topsecret@host?key=topsecret"),
    ],
)
def test_a_secret_is_masked_wherever_it_stands(given: Any, text: str) -> None:
    remember(given)
    shown = masked({"a": [text]})["a"][0]
    assert "***" in shown and "topsec" not in shown.replace("top%73ecret", "") and "secret&" not in shown
    assert masked(shown) == shown and "topsecret" not in json.dumps(masked(given))
    assert "topsec" not in in_words(ValueError(text)).replace("top%73ecret", "")


def test_what_is_no_secret_or_is_in_too_many_texts_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remember({"api_key": "EMPTY", "password": "123456", "token": "letter", "headers": {"Accept": "text/html"}})
    for name, value in {"PLACE": str(tmp_path / "new"), "USER": "somebody", "PART": "abc"}.items():
        monkeypatch.setenv(name, value)
    keys = ["run_dir=${oc.env:PLACE}", "env.note=${oc.env:USER}-${oc.env:PART}", "policy.max_tokens=7"]
    shown = load(BuildPrefsConfig, None, keys).resolved()
    assert (shown["run_dir"], shown["env"]["note"]) == (str(tmp_path / "new"), "somebody-abc")
    assert shown["policy"]["max_tokens"] == 7
    text = "EMPTY letters 123456 text/html per_token=3 git://host"
    assert masked(text) == text and masked("a letter") == "a ***"
    assert list(masked({"per_token": 0.3, "token": "abc", "note": "abc"}).values()) == [0.3, "***", "abc"]


def test_json_keeps_every_character_and_markdown_renders_none(tmp_path: Path) -> None:
    data = {"text": "half \ud800, turned \u202e, \x1b"}
    assert visible("ä 世 \u00a0\u3000🙂\t\n") == "ä 世 \u00a0\u3000🙂\t\n"
    assert visible("\U000e0041\r") == "\\U000e0041\\r"
    assert without_html(f"<b> {code('a`<img>` [x](y)' + chr(10) + '# z')} <") == "&lt;b> `a'<img>' [x](y) # z` &lt;"
    assert read_json(write_json(tmp_path / "a.json", data), "") == data


def test_a_tracker_is_sent_no_secret() -> None:
    remember({"token": "topsecret"})
    pipe = WorkerPipe.__new__(WorkerPipe)
    pipe._queue = queue.SimpleQueue()
    pipe.send({"op": "start", "params": {"env.note": "is topsecret", "env.token": "short"}})
    assert json.loads(str(pipe._queue.get()))["params"] == {"env.note": "is ***", "env.token": "***"}


def test_the_working_directory_is_no_secret(tmp_path):
    remember_environment({"PWD": str(tmp_path), "OLDPWD": "/gone/elsewhere", "AUTH_TOKEN": "abcdef-123456"})
    assert masked(f"{tmp_path} /gone/elsewhere abcdef-123456") == f"{tmp_path} /gone/elsewhere ***"
