"""Questions over files: generated folders, GAIA's comparison of answers, a user's folder, and refusals."""

from __future__ import annotations

import itertools
import json
import random
import re
from pathlib import Path

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.errors import ConfigError, ToolError
from offline_agent.records import Task
from offline_agent_environments.files_qa import sources
from offline_agent_environments.files_qa.rules import calculated, quasi_exact_match
from tests.helpers.played import call, expert, play, share

SPEC = EnvSpec.load("files_qa")
SPLITS = ("train", "validation", "test")


def test_the_expert_answers_all_and_no_question_or_folder_is_in_two_splits():
    listed = {split: list(SPEC.tasks(split)) for split in SPLITS}
    for one, other in itertools.combinations(SPLITS, 2):
        for key in ("question", "seed"):
            assert not {t.args[key] for t in listed[one]} & {t.args[key] for t in listed[other]}
    assert [len(tasks) for tasks in listed.values()] == [1500, 150, 150]
    assert share(SPEC, listed["test"]) == 1.0 and share(SPEC, listed["test"], 0.5) < 0.5
    plans = {level: [sources.plan(t.args) for t in listed["train"] if t.args["level"] == level] for level in (1, 2, 3)}
    steps = [sum(map(len, found)) / len(found) for found in plans.values()]
    assert steps == sorted(steps) and max(len(plan) for plan in plans[3]) <= SPEC.cls.max_steps
    assert {t.args["level"] for t in EnvSpec.load("files_qa", {"level": 2}).tasks("validation")} == {2}


def test_what_the_expert_computes_with_and_answers_stands_in_what_it_read():
    files: dict[int, set[int]] = {1: set(), 2: set(), 3: set()}
    for task in SPEC.tasks("validation"):
        seen, read = "1000 ", {"deliveries.log"} if "deliver" in task.args["question"] else set()
        for message in expert(SPEC, task)[1][1:]:
            calls = message.get("tool_calls")
            name, arguments = (calls[0]["function"][key] for key in ("name", "arguments")) if calls else ("", {})
            if name == "calculate":
                assert all(number in seen for number in re.findall(r"\d[\d.-]+", arguments["expression"])), task
            elif name == "answer":
                parts = arguments["text"].split(", ")
                assert all(part in seen for part in parts) and parts == sorted(parts), task
            read |= {arguments["path"]} if name == "read_file" else set()
            seen += message["content"] if message["role"] == "tool" else ""
        files[task.args["level"]].add(len(read))
    assert files == {1: {1}, 2: {2}, 3: {3}}


@pytest.mark.parametrize(
    ("answer", "gold", "right"),
    [
        ("$1,234.50", "1234.5", True), ("89 %", "89", True), ("12 kg", "12", False), ("", "0", False),
        ("sea gull", "Seagull", True), ("St. Ives!", "St Ives", True), ("Ives", "St Ives", False),
        ("b, a", "a, b", False), ("A;b", "a, b", True), ("1,000.0; x", "1000; x", False), ("$3, x.", "3, x", False),
        ("17, cloak", "17.0,Cloak", True), ("a", "a, b", False), ("x", "inf", False),
    ],
)  # fmt: skip
def test_answers_are_compared_as_gaia_compares_them(answer: str, gold: str, right: bool):
    assert quasi_exact_match(answer, gold).success is right
    task = Task("t", "train", {**next(SPEC.tasks("train")).args, "gold": gold})
    assert play(SPEC, task, [call("answer", text=answer)]).verdict().success is right


def test_calculate_computes_and_refuses_all_else():
    assert calculated("round(2 * (3 - -4) / 3, 2)") == "4.67" and calculated("7 / 2 * 2") == "7"
    assert calculated('days("2026-03-01") - days("2026-02-01")') == "28"
    for wrong in ("1 / 0", "2 ** 9", "'a' * 9", "open('x')", "(1).real", "1 +", "days('x')", "1" * 301, "(" * 250,
                  "round(5, -1000000000)"):  # fmt: skip
        with pytest.raises(ToolError, match="cannot be computed|at most 300"):
            calculated(wrong)


def test_files_are_shown_by_lines_and_what_is_not_there_is_refused():
    episode = play(SPEC, next(SPEC.tasks("train")), [])
    for asked, told in (
        (call("read_file", path="deliveries.log", from_line=4, lines=1), "delivery D-1003"),
        (call("read_file", path="deliverie.log"), "Did you mean 'deliveries.log'"),
        (call("read_file", path="deliveries.log", from_line=99), "from 99; allowed: 1 to 60, from 1 to 88"),
        (call("read_file", path="deliveries.log", lines=61), "got 61 lines from 1"),
        (call("search", words="D-1003 DELIVERY"), "deliveries.log:4: 2026-01-0"),
        (call("calculate", expression="x"), "cannot be computed: got 'x'"),
    ):
        assert told in episode.step(asked).observation
    assert episode.step(call("search", words="D-1003 scanner")).observation == "(0 more lines)"


def test_a_folder_of_gaias_is_the_test_split_and_what_cannot_be_asked_is_told(tmp_path: Path):
    (tmp_path.parent / "data.csv").write_text("another")
    (tmp_path / "data.csv").write_text("city,people\nRomeville,1200\n")
    (tmp_path / "table.xlsx").write_bytes(b"PK\x03\x04\x00\xff")
    files = ("data.csv", "table.xlsx", "", "../data.csv", "data.csv")
    rows = [
        {"task_id": f"q{n}", "Question": "How many people?", "Final answer": "?" if n == 4 else "1200",
         "Level": str(1 + n % 3), "file_name": file} for n, file in enumerate(files)
    ]  # fmt: skip
    (tmp_path / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ConfigError, match=r"1 of 5 questions can be asked here") as told:
        EnvSpec.load("files_qa", {"folder": str(tmp_path)}).open()
    for reason in ("or no text (.xlsx)", "not there, or no text (.csv)", "needs the web", "not public"):
        assert reason in str(told.value)
    spec = EnvSpec.load("files_qa", {"folder": str(tmp_path), "unplayable": "leave_out"})
    (task,) = spec.tasks("test")
    verdict, messages = expert(spec, task)
    assert verdict.success and "Romeville,1200" in str(messages) and task.task_id == "q0"
    assert next(spec.tasks("train")).args["seed"] == 0  # generated
    assert not list(EnvSpec.load("files_qa", {**spec.args, "level": 2}).tasks("test"))
    (tmp_path / "metadata.jsonl").write_text(json.dumps({"Question": "x", "Level": 1}))
    sources.questions.cache_clear()
    with pytest.raises(ConfigError, match=r"line 1: it has no 'Final answer'.*GAIA's metadata.jsonl"):
        EnvSpec.load("files_qa", {"folder": str(tmp_path)}).open()


def test_a_careless_expert_is_the_same_for_the_same_seed():
    task, messages = next(SPEC.tasks("train")), expert(SPEC, next(SPEC.tasks("train")))[1][:3]
    turns = [SPEC.demonstrate(task.args, messages, random.Random(7), 0.9) for _ in range(2)]
    assert turns[0] == turns[1]
