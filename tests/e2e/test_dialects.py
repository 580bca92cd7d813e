"""Capture in three dialects: the makers' clients, servers of each dialect, and the same episodes in the log."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from offline_agent.pipelines import import_logs
from offline_agent.store.columns import known
from offline_agent.store.tables import read_table
from tests.helpers import capturing as helpers
from tests.helpers.capturing import AGENTS, Turn, capturing, post
from tests.helpers.fake_server import FakeServer, serving

anthropic = pytest.importorskip("anthropic")
openai = pytest.importorskip("openai")

SYSTEM, USER = "You look.", "Look around, Zoë."
RESULTS = {"a": "a door", "nowhere": "no such place", "é": "two\nlines"}
TURNS: list[Turn] = [
    ("Two looks.", "I look.", [("look", {"at": "a"}), ("look", {"at": "nowhere"})]),
    ("Once more.", "", [("look", {"at": "é"})]),
    ("Enough.", "Done: é.", []),
]


def model(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Answer as a server of each dialect does; the results so far say which turn it is."""
    text = json.dumps(body)
    number = [0, 2, 3].index(text.count('"role": "tool"') + text.count("_use_id") + text.count("function_call_output"))
    thought, said, calls = TURNS[number]
    named = [(f"call_{number}_{place}", name, told) for place, (name, told) in enumerate(calls)]
    if path == "/chat/completions":
        told_calls = [{"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(told)}}
                      for id, name, told in named]  # fmt: skip
        message = {"role": "assistant", "content": said or None, "reasoning_content": thought}
        message |= {"tool_calls": told_calls} if named else {}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if named else "stop"}
        usage = {"prompt_tokens": 50, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 40}}
        return {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": "tiny",
            "choices": [choice],
            "usage": usage,
        }
    if path == "/messages":
        from anthropic.types.message_create_params import MessageCreateParamsNonStreaming

        checked(MessageCreateParamsNonStreaming, body)
        blocks: list[Any] = [{"type": "thinking", "thinking": thought, "signature": "c2ln"}]
        blocks += [{"type": "text", "text": said}] if said else []
        blocks += [{"type": "tool_use", "id": id, "name": name, "input": told} for id, name, told in named]
        return {"id": "m", "type": "message", "role": "assistant", "model": "tiny", "content": blocks,
                "stop_reason": "tool_use" if named else "end_turn", "stop_sequence": None,
                "usage": {"input_tokens": 10, "cache_read_input_tokens": 40, "output_tokens": 9}}  # fmt: skip
    from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming

    checked(ResponseCreateParamsNonStreaming, body)
    items: list[Any] = [{"type": "reasoning", "id": "rs_1", "summary": [],
                         "content": [{"type": "reasoning_text", "text": thought}]}]  # fmt: skip
    part = {"type": "output_text", "text": said, "annotations": []}
    items += (
        [{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}]
        if said
        else []
    )
    items += [{"type": "function_call", "id": f"fc_{id}", "call_id": id, "name": name, "arguments": json.dumps(told),
               "status": "completed"} for id, name, told in named]  # fmt: skip
    return {"id": "resp_1", "object": "response", "created_at": 1, "model": "tiny", "status": "completed",
            "output": items, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
            "usage": {"input_tokens": 50, "input_tokens_details": {"cached_tokens": 40}, "output_tokens": 9,
                      "output_tokens_details": {"reasoning_tokens": 1}, "total_tokens": 59}}  # fmt: skip


def checked(form: Any, body: dict[str, Any]) -> None:
    """Raise ValidationError where a body has not the form that its maker's client declares."""
    from pydantic import TypeAdapter

    def through(value: Any) -> None:
        for item in value.values() if isinstance(value, Mapping) else () if isinstance(value, str) else value:
            if hasattr(item, "__iter__"):
                through(item)

    adapter = TypeAdapter(form)  # it must outlive the iterators that check
    through(adapter.validate_python(body))


def test_the_same_conversation_through_each_dialect_to_each_is_the_same_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sessions = []
    with serving(FakeServer(model)) as server:
        for dialect in AGENTS:
            with capturing(server.url, "log=captured", f"dialect={dialect}") as (process, base):
                for client, agent in AGENTS.items():
                    for stream in (False, True):
                        sessions.append(f"{client}-{dialect}-{stream}")
                        assert agent(base, sessions[-1], stream, RESULTS, SYSTEM, USER) == TURNS
                        told = {"success": True, "task_id": "t"}
                        assert post(f"{base}/sessions/{sessions[-1]}/outcome", told)[0] == 200
            for one in server.headers:  # the same key, in one header, that of the server where the client's differs
                ((header, key),) = ((name, one[name]) for name in ("x-api-key", "authorization") if name in one)
                assert key.removeprefix("Bearer ") == "sk-of-the-user"
                assert ("Anthropic" in one["user-agent"]) or header == helpers.KEYS[dialect]
            server.headers.clear()
    lines = [json.loads(line) for file in Path("captured").iterdir() for line in file.read_text().splitlines()]
    calls = [line for line in lines if "request" in line]
    assert all(line["dialect"] == line["session_id"].split("-")[0] for line in calls)
    lost = {at["at"] for line in calls if line["dialect"] == "anthropic" for at in line["untranslated"]}
    assert {"thinking", "messages.2.content.is_error"} <= lost
    assert import_logs.main(import_logs.COMMAND, ["source=captured", "run_dir=r", "tracking.uri=null"]) == 0
    summary = json.loads(Path("r/summary.json").read_text())
    assert (summary["episodes"], summary["judged"], summary["trees"]) == (len(sessions), len(sessions), 1)
    rows = [known(row) for file in Path("r/trajectories").glob("*.parquet") for row in read_table(file)]
    assert len({json.dumps([row["messages"], row["tools"]], default=str) for row in rows}) == 1


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeServer, str, Path]]:
    """Return a server of chat completions, the proxy before it, and its log; signs of life come soon."""
    folder = tmp_path_factory.mktemp("proxy")
    (folder / "sitecustomize.py").write_text("import offline_agent.capture.proxy as p\np.SILENCE = 0.2\n")
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH"), os.getcwd()])])
    server = FakeServer(model)
    with (
        serving(server),
        capturing(server.url, f"log={folder / 'log'}", "timeout=3", PYTHONPATH=path) as (process, base),
    ):
        (log,) = (folder / "log").iterdir()
        yield server, base, log
        process.terminate()
        assert process.stderr is not None and "Traceback" not in process.stderr.read()


def ask(base: str, dialect: str, stream: bool = False, content: Any = "hi", **more: Any) -> Any:
    """Ask once, and read a stream to its end."""
    given = {"model": "tiny", "stream": stream, **more}
    said = [{"role": "user", "content": content}]
    if dialect == "anthropic":
        answer = helpers.anthropic(base, "s").messages.create(messages=said, max_tokens=9, **given)
    elif dialect == "chat":
        answer = helpers.openai(base, "s").chat.completions.create(messages=said, **given)
    else:
        answer = helpers.openai(base, "s").responses.create(input=said, **given)
    return list(answer) if stream else answer


@pytest.mark.parametrize("dialect", AGENTS)
@pytest.mark.parametrize(
    ("status", "name", "kind"),
    [(401, "AuthenticationError", "authentication_error"), (429, "RateLimitError", "rate_limit_error"),
     (500, "InternalServerError", "api_error"), (None, "InternalServerError", "api_error")],
)  # fmt: skip
def test_errors_of_the_server_have_the_form_of_the_client(
    dialect: str, status: int | None, name: str, kind: str, proxy: tuple[FakeServer, str, Path]
) -> None:
    server, base, log = proxy
    said = "no answer from" if status is None else "so it is"
    server.extra = {"Retry-After": "7"}

    def fails(path: str, body: dict[str, Any], count: int) -> Any:
        time.sleep(4 if status is None else 0.6)
        return (status or 200), {"error": {"message": "so it is", "code": status}}

    server.misbehave, before = fails, log.stat().st_size
    sdk = anthropic if dialect == "anthropic" else openai
    try:
        with pytest.raises(getattr(sdk, name)) as raised:
            ask(base, dialect)
        error = raised.value.body["error"] if dialect == "anthropic" else raised.value.body
        assert said in error["message"] and (dialect != "anthropic" or error["type"] == kind)
        assert status is None or raised.value.response.headers["retry-after"] == "7"
        with pytest.raises(sdk.APIError, match=said):  # the stream has begun, so the error is in it
            ask(base, dialect, stream=True)
    finally:
        server.misbehave, server.extra = (lambda *_: None), {}
    assert log.stat().st_size == before


def test_a_stream_that_waits_has_signs_of_life_and_its_call_is_kept(proxy: tuple[FakeServer, str, Path]) -> None:
    server, base, log = proxy
    server.misbehave = lambda path, body, count: time.sleep(1)
    for dialect in AGENTS:
        before = len(log.read_text().splitlines())
        assert len(ask(base, dialect, stream=True)) > 1
        assert len(log.read_text().splitlines()) == before + 1
    server.misbehave = lambda *_: None


@pytest.mark.parametrize(
    ("dialect", "body", "said"),
    [
        ("anthropic", {"content": [{"type": "document", "source": {"type": "url", "url": "http://x"}}]}, "'document'"),
        ("responses", {"content": [{"type": "input_file", "file_url": "http://x/y.pdf"}]}, "'input_file'"),
        ("responses", {"previous_response_id": "resp_1"}, "previous_response_id: the log would lack"),
        ("anthropic", {"content": [{"type": "tool_result"}]}, "'tool_use_id'"),
        ("anthropic", {"tools": [{"name": "a", "input_schema": {}}], "tool_choice": {"type": "some"}}, "'some'"),
    ],
)
def test_what_cannot_be_translated_is_refused_in_words(
    dialect: str, body: dict[str, Any], said: str, proxy: tuple[FakeServer, str, Path]
) -> None:
    server, base, log = proxy
    before = len(server.seen), log.stat().st_size
    with pytest.raises((anthropic if dialect == "anthropic" else openai).BadRequestError, match=said):
        ask(base, dialect, **body)
    assert (len(server.seen), log.stat().st_size) == before


def test_tokens_are_counted_about(proxy: tuple[FakeServer, str, Path]) -> None:
    _, base, _ = proxy
    client = helpers.anthropic(base, "s")
    count = client.messages.count_tokens(
        model="tiny", messages=[{"role": "user", "content": "word " * 400}]
    ).input_tokens
    assert 400 < count < 700


@pytest.mark.parametrize("dialect", AGENTS)
def test_fifty_at_once_and_kill_9_leave_whole_records(dialect: str, tmp_path: Path) -> None:
    """Catches an answer that an agent got and the log lacks, and a line that is cut."""
    log, got = tmp_path / "log", set()
    lock, enough = threading.Lock(), threading.Event()

    def one(number: int) -> None:
        try:
            ask(base, dialect, stream=number % 2 == 0, content=f"number {number}.")
        except (anthropic.APIError, openai.APIError, OSError):
            return
        with lock:
            got.add(number)
            if len(got) >= 30:
                enough.set()

    with serving(FakeServer(model)) as server:
        server.misbehave = lambda path, body, count: enough.wait(30) and None if count >= 40 else None
        with capturing(server.url, f"log={log}") as (process, base), ThreadPoolExecutor(50) as threads:
            asked = [threads.submit(one, number) for number in range(50)]
            assert enough.wait(60)
            process.kill()
            for future in asked:
                future.result()
    (file,) = log.iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    kept = {int(json.dumps(line["request"]).split("number ")[1].split(".")[0]) for line in lines}
    assert got <= kept and len(got) >= 30 and len(lines) == len(kept)
