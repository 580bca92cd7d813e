"""Capture: an agent that knows nothing of us is recorded, through kill -9, and what it sampled becomes rows."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from offline_agent.capture.exchange import DIALECTS
from offline_agent.logs.conversation import conversation
from offline_agent.logs.episode import digest
from offline_agent.pipelines import build_prefs, import_logs
from offline_agent.policies.base import DEFAULT_MODEL
from offline_agent.rendering.renderer import Renderer
from offline_agent.store.columns import known
from offline_agent.store.tables import read_table
from tests.helpers import capturing as clients
from tests.helpers.api_calls import calls_of
from tests.helpers.capturing import capturing, post
from tests.helpers.fake_server import FakeServer, serving

OFF = "tracking.uri=null"
INSTALLED = ("responses", "anthropic", "chat") if find_spec("anthropic") else ("responses", "chat")
REFUSED = {"error": {"message": "Extra inputs are not permitted: return_token_ids", "code": 400}}


def wire(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages as an agent sends them: with ids of calls, arguments as text."""
    out, waiting, count = [], [], 0
    for message in json.loads(json.dumps(messages)):
        if message["role"] == "tool":
            message["tool_call_id"] = waiting.pop(0)
            message.pop("name", None)
        for call in message.get("tool_calls") or ():
            arguments = call["function"]["arguments"]
            call["function"]["arguments"] = arguments if isinstance(arguments, str) else json.dumps(arguments)
            call["id"], count = f"call_{count}", count + 1
            waiting.append(call["id"])
        out.append(message)
    return out


def upstream(records: list[dict[str, Any]]) -> FakeServer:
    """Return a server that answers as the policy of a search did; `model` tells which attempt asks."""
    answers = {
        (one["session_id"], digest(conversation(one["request"]["messages"]))): one["response"] for one in records
    }

    def complete(path: str, body: dict[str, Any]) -> dict[str, Any]:
        assert "stream" not in body  # a parser of calls loses ids there
        answer = json.loads(json.dumps(answers[body["model"], digest(conversation(body["messages"]))]))
        for choice in answer["choices"]:
            choice["index"] = 0
            for number, call in enumerate(choice["message"].get("tool_calls") or ()):
                call["id"] = f"made-{number}"
            if not body.get("logprobs"):
                choice["logprobs"] = None
            if not body.get("return_token_ids"):
                del choice["token_ids"]
        if not body.get("return_token_ids"):
            del answer["prompt_token_ids"]
        return {"id": "c", "object": "chat.completion", "created": 1, "model": "tiny", **answer}

    return FakeServer(complete)


def play(base: str, session: str, calls: list[dict[str, Any]], stream: bool, dialect: str = "chat") -> None:
    """Make an attempt's calls with the makers' own clients, as an agent would."""
    client = clients.openai(base, session)
    for one in calls:
        asked = {"messages": wire(one["request"]["messages"]), "tools": one["request"]["tools"]}
        asked["model"] = one["session_id"]
        wanted = one["response"]["choices"][0]["message"]
        if dialect == "anthropic":
            said = clients.anthropic(base, session).messages.create(**DIALECTS[dialect].write_request(asked, []))
            text = "".join(block.text for block in said.content if block.type == "text")
            named = [block.name for block in said.content if block.type == "tool_use"]
        elif dialect == "responses":
            said = client.responses.create(**DIALECTS[dialect].write_request(asked, []))
            text, named = said.output_text, [item.name for item in said.output if item.type == "function_call"]
        elif stream:
            text, named = "", []
            for chunk in client.chat.completions.create(**asked, stream=True):
                delta = chunk.choices[0].delta
                text += delta.content or ""
                named += [call.function.name for call in delta.tool_calls or ()]
        else:
            answer = client.chat.completions.create(**asked)
            assert "token_ids" not in answer.choices[0].model_extra and answer.choices[0].logprobs is None
            message = answer.choices[0].message
            text, named = message.content or "", [call.function.name for call in message.tool_calls or ()]
        assert text == (wanted.get("content") or "")
        assert named == [call["function"]["name"] for call in wanted.get("tool_calls") or ()]


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Return a search and the calls that its attempts would have made."""
    run = tmp_path_factory.mktemp("searched") / "s"
    keys = ["search.algorithm=best_of_n", "search.simulations=4", "tasks.n=6", "filtered.per_task=8", OFF]
    assert build_prefs.main(build_prefs.COMMAND, [*keys, "pairs.kinds=[trajectory]", f"run_dir={run}"]) == 0
    return run, calls_of(run, Renderer.load(DEFAULT_MODEL))


def rows(run: Path) -> list[dict[str, Any]]:
    return [known(row) for file in sorted((run / "trajectories").glob("*.parquet")) for row in read_table(file)]


def test_an_agent_is_captured_token_by_token_through_kill_9(
    searched: tuple[Path, list[dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone catches ids that are lost in streams, calls that are lost with a killed proxy, a key in the log."""
    monkeypatch.chdir(tmp_path)
    run, records = searched
    sessions: dict[str, list[dict[str, Any]]] = {}
    for record in sorted(records, key=lambda one: len(one["request"]["messages"])):
        sessions.setdefault(record["session_id"], []).append(record)
    names, dialects = sorted(sessions), cycle(INSTALLED)
    with serving(upstream(records)) as server:
        with capturing(server.url, "log=captured") as (process, base):
            for number, name in enumerate(names[: len(names) // 2]):
                play(base, name, sessions[name], stream=number % 2 == 1)
            half = sessions[names[-1]]
            play(base, names[-1], half[: len(half) // 2], stream=False)
            process.kill()
            process.wait()
        with capturing(server.url, "log=captured") as (process, base):
            play(base, names[-1], half[len(half) // 2 :], stream=True)
            for name in names[len(names) // 2 : -1]:
                play(base, name, sessions[name], stream=False, dialect=next(dialects))
            for name in names:
                told = {"success": sessions[name][-1]["success"], "task_id": sessions[name][-1]["task_id"]}
                assert post(f"{base}/sessions/{name}/outcome", told) == (200, {"session_id": name, "kept": True})
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
            assert process.stderr is not None and f"and {len(names):,} outcomes are in" in process.stderr.read()
    assert "sk-of-the-user" not in "".join(file.read_text() for file in Path("captured").iterdir())
    assert import_logs.main(import_logs.COMMAND, [
        "source=captured", f"tokenizer={DEFAULT_MODEL}", "run_dir=r", OFF]) == 0  # fmt: skip
    summary = json.loads(Path("r/summary.json").read_text())
    assert summary["records"] == len(records) + len(names) and not summary["refused"].get("log")
    assert (summary["level"], summary["episodes"], summary["judged"]) == ("tokens", len(names), len(names))
    columns = ("task_id", "success", "input_ids", "action_mask", "logps")
    found, own = [sorted(tuple(row[name] for name in columns) for row in rows(one) if row["terminated"])
                  for one in (Path("r"), run)]  # fmt: skip
    assert found == own and found
    stated = [json.loads(row["verdict"])["evidence"].get("stated_by_caller") for row in rows(Path("r"))]
    assert stated and all(name.startswith("captured/calls-") for name in stated)  # nobody verified it


def test_a_server_that_knows_no_token_ids_is_asked_once_and_captured_as_text(
    searched: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    _, records = searched
    server = upstream(records)
    server.misbehave = lambda path, body, count: (400, REFUSED) if "return_token_ids" in body else None
    first = [one for one in records if one["session_id"] == records[0]["session_id"]]
    first.sort(key=lambda one: len(one["request"]["messages"]))
    with serving(server), capturing(server.url, f"log={tmp_path / 'log'}") as (process, base):
        play(base, "s", first, stream=False)
        assert sum("return_token_ids" in body for _, body in server.seen) == 1
        assert len(server.seen) == len(first) + 1
        process.terminate()
        process.wait()
    (file,) = (tmp_path / "log").iterdir()
    assert len(file.read_text().splitlines()) == len(first)


def test_faults_of_the_server_and_wrong_outcomes(tmp_path: Path) -> None:
    answer = {"id": "c", "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}}]}
    server = FakeServer(lambda path, body: answer)
    server.misbehave = lambda path, body, count: (
        (429, {"error": {"message": "slow down"}}) if body.get("seed") == 429 else
        (200, b"no JSON") if body.get("seed") == 1 else None
    )  # fmt: skip
    ask = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}
    log = tmp_path / "log"
    with serving(server), capturing(server.url, f"log={log}", "upstream_key=KEY", KEY="sk-own") as (process, base):
        chat = f"{base}/sessions/one/v1/chat/completions"
        assert post(chat, ask, "sk-other")[0] == 200
        assert server.headers[-1]["authorization"] == "Bearer sk-own"
        assert post(f"{base}/sessions/one/outcome", {"reward": 0.5})[0] == 200
        assert post(chat, {**ask, "seed": 429}) == (429, {"error": {"message": "slow down"}})
        assert post(chat, {**ask, "seed": 1})[0] == 502
        for body, said in (
            ({}, "wanted success"), ({"success": "yes"}, "wanted success"), ({"reward": 7}, "reward"),
            ({"success": True, "reward": 0}, "wanted success"), ({"success": True, "request": ask}, "'request'"),
            ({"success": True, "messages": ask["messages"]}, "'messages'"), ([1], "not an object"),
        ):  # fmt: skip
            status, told = post(f"{base}/sessions/one/outcome", body)
            assert status == 400 and said in told["error"]["message"]
        assert post(f"{base}/sessions/a%20b/outcome", {"success": True})[0] == 400
        with urllib.request.urlopen(f"{base}/v1/models") as models:
            assert json.loads(models.read())["data"] == [{"id": "tiny"}]
        server.running.kill()
        status, told = post(chat, ask)
        assert status == 502 and "no answer from" in told["error"]["message"]
    lines = [json.loads(line) for file in log.iterdir() for line in file.read_text().splitlines()]
    assert [{*line} - {"session_id", "time", "dialect"} for line in lines] == [{"request", "response"}, {"reward"}]
    assert "sk-own" not in json.dumps(lines)


ANSWER = {"id": "c", "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}}]}
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}
PLAIN = {"Content-Type": "application/json"}


def raw(base: str, method: str, path: str, body: bytes = b"", headers: dict[str, str] = PLAIN) -> tuple[int, bytes]:
    """Send a request whose path and headers nobody tidies."""
    connection = http.client.HTTPConnection(base.removeprefix("http://"), timeout=60)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        connection.putheader(name, value)
    connection.endheaders(body)
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_only_named_routes_of_the_server_are_reached_without_its_cookies_and_redirects(tmp_path: Path) -> None:
    got: list[str] = []
    server = FakeServer(lambda path, body: ANSWER)
    server.misbehave = lambda path, body, count: got.append(path)
    server.extra = {"Set-Cookie": "session=1", "Location": "/v1/embeddings", "X-Ratelimit-Limit": "5"}
    outside = ["/v1/../admin", "/v1/%2e%2e/admin", "/v1/..%2fadmin", "/v1/models/../../admin", "/v1/completions",
               "/sessions/a/v1/..%2f..%2fadmin", "/v1/models%2f..%2f..%2fadmin", "/v1//admin", "/admin"]  # fmt: skip
    with serving(server):
        upstream = server.url.replace("127.0.0.1", "localhost")  # cookies of bare addresses are not kept anyway
        with capturing(upstream, f"log={tmp_path / 'log'}", "upstream_key=KEY", KEY="sk-own") as (_, base):
            for path in outside:
                for method in ("GET", "POST"):
                    status, said = raw(base, method, path, b"{}")
                    assert status in (404, 405) and b"allowed: POST /v1/chat/completions" in said
            assert got == []
            sent = {**PLAIN, "Cookie": "a=1", "X-Original-URL": "/admin", "Api-Key": "own", "OpenAI-Project": "p"}
            for _ in range(2):
                assert raw(base, "POST", "/v1/chat/completions", json.dumps(ASK).encode(), sent)[0] == 200
            assert raw(base, "POST", "/v1/embeddings", b"{}")[0] == 200
            assert not {"cookie", "x-original-url", "api-key"} & {name for one in server.headers for name in one}
            assert server.headers[0]["openai-project"] == "p"
            server.misbehave = lambda path, body, count: (307, {})
            for path in ("chat/completions", "embeddings"):
                before = len(server.seen)
                status, said = raw(base, "POST", f"/v1/{path}", json.dumps(ASK).encode())
                assert (status, len(server.seen)) == (502, before + 1) and b"redirects to '/v1/embeddings'" in said


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({**PLAIN, "Host": "evil.example:80"}, 403),
        ({**PLAIN, "Origin": "http://evil.example"}, 403),
        ({**PLAIN, "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({}, 415),
        ({**PLAIN, "Host": "localhost"}, 200),
    ],
)
def test_a_web_page_neither_spends_the_key_nor_writes(
    headers: dict[str, str], status: int, local_proxy: tuple[FakeServer, str, Path]
) -> None:
    server, base, log = local_proxy
    before = len(server.seen), log.stat().st_size
    for path, body in (("/v1/chat/completions", ASK), ("/v1/embeddings", ASK), ("/sessions/a/outcome", {"reward": 1})):
        assert raw(base, "POST", path, json.dumps(body).encode(), headers)[0] == status
    assert ((len(server.seen), log.stat().st_size) == before) == (status != 200)


@pytest.fixture(scope="module")
def local_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeServer, str, Path]]:
    """Return a server, the proxy before it, and its log; no request may end in a traceback."""
    folder = tmp_path_factory.mktemp("local")
    code = "import time, offline_agent.capture.exchange as e\n_asked = e.asked\n"
    code += "e.asked = lambda raw, *more: (time.sleep(2 * (b'slowly' in raw)), _asked(raw, *more))[1]\n"
    (folder / "sitecustomize.py").write_text(code)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH"), os.getcwd()])])
    server = FakeServer(lambda path, body: body.get("told", ANSWER))
    with serving(server), capturing(server.url, f"log={folder / 'log'}", PYTHONPATH=path) as (process, base):
        (log,) = (folder / "log").iterdir()
        yield server, base, log
        process.terminate()
        assert process.stderr is not None and "Traceback" not in process.stderr.read()


def call(index: int, call: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "message": {"content": "", "tool_calls": [call]}}]}


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({**ASK, "stream": True, "stream_options": [1]}, 400, "stream_options: got [1]"),
        ({**ASK, "messages": [1]}, 400, "messages: got [1]"),
        ({**ASK, "messages": []}, 400, "messages: got []"),
        ({"model": "m"}, 400, "messages"),
        ([], 400, "a JSON list"),
        ({**ASK, "told": {"choices": [1, 2]}}, 502, "choices: got [1, 2]"),
        ({**ASK, "told": {"choices": []}}, 502, "choices: got []"),
        ({**ASK, "told": {"choices": [{"message": "hi"}]}}, 502, "choices.message: got ['hi']"),
        ({**ASK, "stream": True, "told": call(0, 5)}, 502, "tool_calls: got [5]"),
        ({**ASK, "told": [ANSWER]}, 502, "a JSON list"),
    ],
)
def test_what_is_no_chat_is_answered_in_words(
    body: Any, status: int, said: str, local_proxy: tuple[FakeServer, str, Path]
) -> None:
    server, base, log = local_proxy
    before = log.stat().st_size
    got, told = post(f"{base}/v1/chat/completions", body)
    assert got == status and said in told["error"]["message"] and log.stat().st_size == before


def test_long_integers_stay_and_long_bodies_neither_come_in_nor_stop_others(
    local_proxy: tuple[FakeServer, str, Path],
) -> None:
    server, base, log = local_proxy
    whole = {**ANSWER, "created": 2**70}
    for more in ({}, {"stream": True}):
        body = json.dumps({**ASK, **more, "seed": -(2**65), "told": whole}).encode()
        _, answer = raw(base, "POST", "/v1/chat/completions", body)
        assert str(2**70).encode() in answer and server.seen[-1][1]["seed"] == -(2**65)
        line = json.loads(log.read_text().splitlines()[-1])
        assert (line["request"]["seed"], line["response"]["created"]) == (-(2**65), 2**70)
    long = {**ASK, "user": "x" * (16 << 20)}
    assert post(f"{base}/v1/chat/completions", long)[0] == 413
    slow = threading.Thread(target=post, args=(f"{base}/v1/chat/completions", {**ASK, "user": "slowly"}))
    slow.start()
    began = time.monotonic()
    while time.monotonic() < began + 0.5:
        assert raw(base, "GET", "/health")[0] == 200
    assert slow.is_alive() and time.monotonic() < began + 1.5
    slow.join()


def test_other_machines_need_the_token_which_is_not_passed_on(tmp_path: Path) -> None:
    with serving(FakeServer(lambda path, body: ANSWER)) as server:
        keys = [f"log={tmp_path / 'log'}", "host=0.0.0.0", "token=TOKEN"]
        with capturing(server.url, *keys, TOKEN="sk-token") as (_, base):
            body = json.dumps(ASK).encode()
            for key in ("", "Bearer wrong", "Bearer \xff"):
                assert raw(base, "POST", "/v1/chat/completions", body, {**PLAIN, "Authorization": key})[0] == 401
            own = {**PLAIN, "Host": "of-a-network", "Authorization": "Bearer sk-token"}
            assert raw(base, "POST", "/sessions/a/v1/chat/completions", body, own)[0] == 200
            own = {**PLAIN, "Host": "of-a-network", "X-Api-Key": "sk-token"}
            assert raw(base, "POST", "/v1/messages", body, own)[0] == 200
            sent = {name for headers in server.headers for name in headers}
            assert len(server.seen) == 2 and not {"authorization", "x-api-key"} & sent


def test_a_stream_ends_with_the_usage_that_was_asked_for(local_proxy: tuple[FakeServer, str, Path]) -> None:
    _, base, _ = local_proxy
    body = {**ASK, "stream": True, "stream_options": {"include_usage": True}, "told": {**ANSWER, "usage": {"n": 3}}}
    status, answer = raw(base, "POST", "/v1/chat/completions", json.dumps(body).encode())
    parts = answer.decode().split("\n\n")
    events = [json.loads(part.removeprefix("data: ")) for part in parts if part.startswith("data: {")]
    assert status == 200 and parts[-2] == "data: [DONE]"
    assert events[0]["choices"][0]["delta"]["content"] == "hi" and events[-1]["usage"] == {"n": 3}
