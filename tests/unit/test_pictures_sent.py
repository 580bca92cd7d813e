"""Pictures to servers, from logs and captured calls, and to other formats: kept whole, or refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offline_agent import pictures
from offline_agent.capture.exchange import asked
from offline_agent.errors import DataError, PolicyError
from offline_agent.logs.episode import TurnTokens
from offline_agent.logs.tokens import TokenCheck
from offline_agent.messages import read
from offline_agent.pipelines import export
from offline_agent.policies.base import ProposeRequest
from offline_agent.policies.server.policy import ServerPolicy
from offline_agent.records import Action, Context, Task, ToolCall
from offline_agent.store.columns import known
from offline_agent.store.tables import rows
from tests.helpers import rows as kit
from tests.helpers.bandit import call
from tests.helpers.fake_server import FakeServer, serving
from tests.helpers.pictures import png

PNG = png((10, 20, 30))
URL = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
SOURCE = {"type": "base64", "media_type": "image/png", "data": URL.partition(",")[2]}
PARTS = {
    "chat": {"type": "image_url", "image_url": {"url": URL, "detail": "low"}},
    "responses": {"type": "input_image", "image_url": URL},
    "anthropic": {"type": "image", "source": SOURCE},
    "trl": {"type": "image", "image": URL},
}


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(pictures, "_kept", {})
    monkeypatch.setattr(pictures, "_folders", {})
    yield


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_every_dialect_are_one_text_and_back(name: str) -> None:
    before, after = {"type": "text", "text": "See "}, {"type": "text", "text": " there"}
    message = read({"role": "user", "content": [before, PARTS[name], after]})
    assert message["content"] == f"See {pictures.mark(PNG)} there"
    assert pictures.as_parts(message["content"]) == [before, {"type": "image_url", "image_url": {"url": URL}}, after]
    with pytest.raises(DataError, match="only text can be read"):
        read({"role": "assistant", "content": [PARTS[name]]})


@pytest.mark.parametrize("url", ["https://example.org/a.png", "data:image/svg+xml;base64,AAAA", "data:image/png,x"])
def test_what_would_have_to_be_fetched_is_refused(url: str) -> None:
    with pytest.raises(DataError, match="content: a picture: got .*nothing is fetched"):
        read({"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]})


def test_a_server_gets_data_urls(tmp_path: Path) -> None:
    context = Context(Task("t", "train", {}), "", (), f"Look {pictures.mark(PNG)}")
    context = context.child(Action("", call=ToolCall("say", {"colour": "red"})), f"{pictures.mark(PNG)}")
    with serving(FakeServer(lambda path, body: {"choices": [{"message": {"content": "blue"}}]})) as server:
        policy = ServerPolicy(server.url, retries=0, timeout=60.0)
        (answer,) = policy.propose([ProposeRequest(context, (1,))])
        assert answer.actions[0].thought == "blue"  # type: ignore[union-attr]
        sent = server.seen[-1][1]["messages"]
        assert sent[0]["content"][1] == {"type": "image_url", "image_url": {"url": URL}}
        assert [part["type"] for part in sent[2]["content"]] == ["image_url"] and sent[2]["role"] == "tool"


def test_a_server_cannot_be_sent_patches(tmp_path: Path) -> None:
    from tests.helpers import seeing

    seeing.saved(tmp_path / "model")
    context = Context(Task("t", "train", {}), "", (), f"Look {pictures.mark(PNG)}")
    with serving(FakeServer(lambda path, body: {})) as server:
        policy = ServerPolicy(server.url, retries=0, timeout=60.0, tokenizer=str(tmp_path / "model"))
        (answer,) = policy.propose([ProposeRequest(context, (1,))])
    assert isinstance(answer, PolicyError) and "leave policy.tokenizer away" in str(answer)


@pytest.mark.parametrize("client", ["anthropic", "responses"])
def test_captured_calls_keep_pictures_in_one_form(client: str) -> None:
    text = {"type": "input_text" if client == "responses" else "text", "text": "see"}
    content = [text, PARTS[client]]
    said: dict[str, Any] = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": content}]}
    if client == "responses":
        said = {"model": "m", "input": [{"role": "user", "content": content}]}
    made = asked(json.dumps(said).encode(), client, "chat")
    for body in (made.body, made.kept):
        (message,) = json.loads(body)["messages"]
        assert message["content"] == [
            {"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": URL}}
        ]
    other = "anthropic" if client == "responses" else "responses"
    with pytest.raises(DataError, match="only text can be translated"):
        asked(json.dumps(said).encode(), client, other)


def test_logs_with_pictures_become_rows_and_are_written_again(tmp_path: Path) -> None:
    lines = []
    for number, (name, verdict) in enumerate([("chat", 1), ("anthropic", 0), ("trl", 1), ("chat", 0)]):
        turn = {"role": "assistant", "content": f"It is number {number}."}
        asked_for = {"role": "user", "content": [{"type": "text", "text": "What?"}, PARTS[name]]}
        lines.append(json.dumps({"task_id": "t", "messages": [asked_for, turn], "success": verdict}))
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    call("import_logs", f"source={tmp_path / 'log.jsonl'}", f"run_dir={tmp_path / 'run'}")
    assert [file.read_bytes() for file in (tmp_path / "run" / "images").iterdir()] == [PNG]
    found = [known(row) for row in rows(tmp_path / "run", "trajectories")]
    assert found and all(row["messages"][0]["content"] == f"What?{pictures.mark(PNG)}" for row in found)
    assert export.main([f"run_dir={tmp_path / 'run'}", "format=openai", f"out={tmp_path / 'openai'}"]) == 0
    chat = json.loads((tmp_path / "openai" / "sft.jsonl").read_text().splitlines()[0])["messages"]
    assert chat[0]["content"][1]["image_url"]["url"] == URL
    out = tmp_path / "other"
    assert export.main([f"run_dir={tmp_path / 'run'}", "format=llama_factory", f"out={out}"]) == 0
    assert not (out / "sft.jsonl").read_text() and "it has pictures" in (out / "README.md").read_text()


def test_ids_of_a_log_prove_no_picture() -> None:
    messages = [{"role": "user", "content": f"Look {pictures.mark(PNG)}"}, {"role": "assistant", "content": "blue"}]
    tokens = [TurnTokens((1,), (2,), (-1.0,))]
    assert "it has pictures" in str(TokenCheck(kit.renderer()).fault(messages, tokens, None))
