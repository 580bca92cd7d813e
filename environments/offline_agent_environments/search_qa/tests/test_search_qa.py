"""Questions over passages: the embedded world, files of users, a retriever's URL, and refusals."""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.errors import ConfigError, EnvironmentFault
from offline_agent.judges.verifiers import normalise
from offline_agent.records import Task
from offline_agent_environments.search_qa import SearchQA, world
from tests.helpers.played import call, expert, play, share

SPEC = EnvSpec.load("search_qa")
SPLITS = ("train", "validation", "test")
SHARED = Path(os.environ.get("SHARED_DATA", Path(__file__).parents[5] / "shared" / "data"))
QUESTIONS, CORPUS = SHARED / "hotpotqa_100.json", SHARED / "hotpotqa_100_corpus.json"


def _task(**changed: Any) -> Task:
    return Task("t", "train", {**next(SPEC.tasks("train")).args, **changed})


def test_every_question_s_passages_lead_to_the_answer():
    passages = world.collection().by_title
    for question in world.questions():
        way = [*question.support, question.answer]
        assert question.support[0] in question.text and question.answer not in question.text
        for title, named in itertools.pairwise(way):
            assert named in passages[title.casefold()].text, (question, title)
    assert len(passages) > 500 and {len(q.support) for q in world.questions()} == {2, 3}


def test_no_answer_is_in_two_splits_and_the_expert_finds_all():
    answers = {split: {normalise(t.args["gold"][0]) for t in SPEC.tasks(split)} for split in SPLITS}
    for one, other in itertools.combinations(SPLITS, 2):
        assert not answers[one] & answers[other]
    for split in SPLITS:
        tasks = list(SPEC.tasks(split))
        assert len(tasks) >= 150 and share(SPEC, tasks[::10]) == 1.0
    train = list(SPEC.tasks("train"))[:80]
    assert share(SPEC, train, 0.7) < share(SPEC, train, 0.3) < 1.0


def test_answers_are_compared_as_squad_does():
    gold = ["The Grand Hotel"]
    for metric, answer, score, success in (
        ("exact_match", " the grand hotel. ", 1.0, True), ("exact_match", "Grand", 0.0, False),
        ("f1", "grand hotel of Rome", 2 / 3, False), ("f1", "Grand Hotel", 1.0, True),
    ):  # fmt: skip
        spec = EnvSpec.load("search_qa", {"metric": metric})
        verdict = play(spec, _task(gold=gold), [call("answer", text=answer)]).verdict()
        assert verdict.score == pytest.approx(score) and verdict.success is success
    assert play(SPEC, _task(gold=["x", "y"]), [call("answer", text="y")]).verdict().success


def test_an_answer_without_its_passages_counts_only_where_they_are_not_required():
    task = next(SPEC.tasks("train"))
    answer, reads = call("answer", text=task.args["gold"][0]), [call("read", title=t) for t in task.args["support"]]
    strict = EnvSpec.load("search_qa", {"support": "required"})
    assert play(SPEC, task, [answer]).verdict().success
    verdict = play(strict, task, [*reads[:1], answer]).verdict()
    assert verdict.score == 0.0 and verdict.evidence["support_missing"] and verdict.evidence["support_read"] == 1
    assert play(strict, task, [*reads, answer]).verdict().success


def test_a_wrong_answer_is_the_goal_of_another_question_of_its_split_once_its_passages_were_read():
    split = world.split_of
    old, new = next(
        (a, b) for a in world.questions() for b in world.questions()
        if a.answer != b.answer and split(a.answer) == split(b.answer)
    )  # fmt: skip
    task = Task("t", split(old.answer), {"question": old.text, "gold": [old.answer], "support": list(old.support)})
    reads, answer = [call("read", title=title) for title in new.support], call("answer", text=new.answer)
    goal = play(SPEC, task, [*reads, answer]).achieved_goal()
    assert goal is not None and goal["gold"] == [new.answer] and set(goal["support"]) <= set(new.support)
    assert play(SPEC, Task("u", "train", goal), [*reads, answer]).verdict().success
    assert play(SPEC, task, [*reads[:-1], answer]).achieved_goal() != goal
    other = next(q for q in world.questions() if split(q.answer) != split(old.answer))
    reads = [call("read", title=title) for title in other.support]
    assert play(SPEC, task, [*reads, call("answer", text=other.answer)]).achieved_goal() is None


def _files(tmp_path: Path) -> dict[str, str]:
    rows = [
        {
            "_id": "a",
            "question": "Who wrote it?",
            "answer": "Ann",
            "supporting_facts": [["Book: One", 0], ["Book: One", 1]],
            "context": [["Book: One", ["It is a book.", " Ann wrote it."]], ["Two", ["Nothing."]]],
            "split": "train",
        },
        {
            "_id": "b",
            "question": "Where?",
            "answer": ["Rome", "Roma"],
            "context": [["Three", ["In Rome."]]],
            "split": "dev",
        },
    ]
    (tmp_path / "q.json").write_text(json.dumps(rows))
    (tmp_path / "p.jsonl").write_text(
        "\n".join(map(json.dumps, [{"title": "Book: One", "text": "Ann."}, {"contents": "B\nb"}]))
    )
    return {"questions": str(tmp_path / "q.json"), "passages": str(tmp_path / "p.jsonl")}


@pytest.mark.parametrize("own", [False, True])
def test_files_in_hotpotqa_s_format(tmp_path: Path, own: bool):
    args = _files(tmp_path)
    if not own:
        del args["passages"]
    spec = EnvSpec.load("search_qa", args)
    train, validation = (list(spec.tasks(split)) for split in ("train", "validation"))
    assert [t.task_id for t in (*train, *validation)] == ["a", "b"] and train[0].args["support"] == ["Book: One"]
    episode = play(spec, train[0], [])
    found = episode.step(call("search", query="who wrote the book"))
    assert ("Book: One" in found.observation) is not own or "Ann" in found.observation
    text = episode.step(call("read", title="book: one")).observation
    assert text == ("Ann." if own else "It is a book. Ann wrote it.")
    assert share(spec, train) == 1.0


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:  # noqa: N802
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        passages = [{"title": f"About {asked['query']}", "text": "Ann wrote it."}] * asked["k"]
        body = json.dumps({"passages": passages} if asked["query"] != "odd" else [1]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Keep quiet."""


@pytest.fixture()
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/search"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_retriever_behind_a_url(tmp_path: Path, url: str):
    spec = EnvSpec.load("search_qa", {"questions": _files(tmp_path)["questions"], "retriever": url})
    task = next(spec.tasks("train"))
    episode = play(spec, task, [])
    assert episode.step(call("read", title="About x")).fault == "tool_error"  # not found yet
    assert episode.step(call("search", query="x")).observation.startswith("1. About x: Ann wrote it.")
    twin = episode.copy()
    episode.step(call("search", query="y"))
    assert twin.step(call("read", title="About x")).observation == "Ann wrote it."
    assert twin.step(call("read", title="About y")).fault == "tool_error"
    with pytest.raises(EnvironmentFault, match="answered"):
        episode.step(call("search", query="odd"))


def test_a_dead_retriever_is_a_fault_of_the_world(tmp_path: Path):
    spec = EnvSpec.load(
        "search_qa", {"questions": _files(tmp_path)["questions"], "retriever": "http://127.0.0.1:9/search"}
    )
    episode = play(spec, next(spec.tasks("train")), [])
    with pytest.raises(EnvironmentFault, match="the retriever http://127.0.0.1:9/search failed"):
        episode.step(call("search", query="x"))


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({"questions": "none.json"}, "cannot read"), ({"questions": "q.txt"}, "is no JSON"),
        ({"questions": "shape.json"}, "has no 'question'"), ({"questions": "{}.json"}, "has no 'question'"),
        ({"passages": "p.jsonl"}, "without env.questions"), ({"retriever": "http://x"}, "without env.questions"),
        ({"questions": "q.json", "retriever": "localhost:80"}, "allowed: a URL"),
        ({"questions": "q.json", "passages": "none.json"}, "env.passages: there is no file"),
        ({"questions": "q.json", "passages": "shape.json"}, "neither title and text"),
        ({"questions": "q.json", "passages": "{}.json"}, "no passages"),
    ],
)  # fmt: skip
def test_bad_files_are_refused_before_anything_runs(tmp_path: Path, args: dict[str, str], told: str):
    _files(tmp_path)
    (tmp_path / "q.txt").write_text("question")
    (tmp_path / "shape.json").write_text('[{"query": "Who?"}]')
    (tmp_path / "{}.json").write_text("{}")
    args = {name: value if ":" in value else str(tmp_path / value) for name, value in args.items()}
    for use in (SearchQA, lambda **given: list(EnvSpec.load("search_qa", given).tasks("train"))):
        with pytest.raises(ConfigError, match=told):
            use(**args)


@pytest.mark.skipif(not QUESTIONS.is_file(), reason=f"there is no {QUESTIONS} (SHARED_DATA names another folder)")
def test_hotpotqa():
    spec = EnvSpec.load("search_qa", {"questions": str(QUESTIONS), "passages": str(CORPUS), "support": "required"})
    tasks = [task for split in SPLITS for task in spec.tasks(split)]
    assert len(tasks) == 100
    for task in tasks:
        verdict, _ = expert(spec, task)
        assert verdict.success and verdict.evidence["support_read"] == verdict.evidence["support"] >= 2
