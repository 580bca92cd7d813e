"""AgentBench's database tasks: a small checkout of our own in its format, its rules, and the real one if named."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.conformance import check_environment
from offline_agent.errors import ConfigError, EnvironmentFault
from offline_agent.records import Task
from offline_agent_environments.adapters import agentbench_os
from offline_agent_environments.adapters.agentbench import in_sqlite, same_answers, table_hash
from tests.helpers.played import call, play, share

CHECKOUT = os.environ.get("AGENTBENCH_CHECKOUT")
ROWS = [["Ann's", "1,200", "7"], ["Bob", "900", "None"]]


def _md5(text: str) -> str:
    return hashlib.md5(text.encode()).hexdigest()


def _task(kind: str, label: str, query: str | None = None, left: list[list[str]] | None = None) -> dict[str, Any]:
    """Return a row of `data/dbbench`; the table's hash is written out here as MySQL's query has it."""
    columns = [{"name": name, "type": "TEXT"} for name in ("Full name", "Pay", "Rank")]
    table = {"table_name": "Staff list", "table_info": {"columns": columns, "rows": ROWS}}
    hashes = sorted(_md5(",".join(row))[:5] for row in left or ())
    goal = {"sql": {"query": query}} if query else {"answer_md5": f"[('{_md5(','.join(hashes))}',)]"}
    return {"description": f"{kind}?", "add_description": "", "label": [label], "type": [kind], "table": table, **goal}


TASKS = [
    _task("counting", "2.0", "SELECT COUNT(*) FROM `Staff list`"),
    _task("other", "1,200", 'SELECT Pay FROM `Staff list` WHERE `Full name` = "ann\\\'s"'),
    _task("INSERT", "INSERT INTO `Staff list` VALUES ('Eve\\nX', 5, NULL)", left=[*ROWS, ["Eve\nX", "5"]]),
    _task("UPDATE", "UPDATE `Staff list` SET `Rank`='9' WHERE `Full name`='BOB'", left=[ROWS[0], ["Bob", "900", "9"]]),
    _task("DELETE", "DELETE FROM `Staff list` WHERE Rank = '7'", left=ROWS[1:]),
]


@pytest.fixture
def checkout(tmp_path: Path) -> str:
    (tmp_path / "data" / "dbbench").mkdir(parents=True)
    for name, times in (("dev", 4), ("standard", 1)):
        (tmp_path / "data" / "dbbench" / f"{name}.jsonl").write_text("\n".join(map(json.dumps, TASKS * times)))
    return str(tmp_path)


def test_the_suite_passes_and_the_reference_statements_reach_the_hashes(checkout: str) -> None:
    spec = EnvSpec.load("agentbench:db", {"checkout": checkout})
    assert check_environment(spec, tasks=3).passed
    tasks = {split: list(spec.tasks(split)) for split in ("train", "validation", "test")}
    assert [task.task_id for task in tasks["test"]] == [f"standard-{n}" for n in range(5)]
    assert len(tasks["train"]) + len(tasks["validation"]) == 20 and len(tasks["validation"]) > 0
    assert share(spec, [task for some in tasks.values() for task in some]) == 1.0


def test_a_change_counts_once_it_is_handed_in_and_a_copy_has_a_table_of_its_own(checkout: str) -> None:
    spec, task = EnvSpec.load("agentbench:db", {"checkout": checkout}), Task("t", "test", {"task_id": "standard-3"})
    done, hand_in = call("execute_sql", query=TASKS[3]["label"][0]), call("commit_final_answer", answers=["done"])
    assert not play(spec, task, [done]).verdict().success and not play(spec, task, [hand_in]).verdict().success
    begun = spec.cls(checkout)
    begun.reset("standard-3")
    changed = copy.deepcopy(begun)
    changed.execute_sql(TASKS[3]["label"][0])
    for environment, right in ((begun, False), (changed, True)):
        environment.commit_final_answer(["done"])
        assert environment.get_reward().success is right
    for query, told in (
        ("DROP TABLE `Staff list`", "not authorized"),
        ("select 1; select 2", "one statement"),
        ("SELECT hex(zeroblob(900))", "[TRUNCATED]"),
        ("SELECT Pay FROM `Staff list` WHERE Rank < 10 AND Rank > 06.5", "[('1,200',)]"),  # as numbers
    ):
        assert told in play(spec, task, []).step(call("execute_sql", query=query)).observation


def test_answers_and_tables_are_compared_by_agentbenchs_rules() -> None:
    for given, wanted, same in (
        (["36"], ["36.004"], True), (["36"], ["36.02"], False), (["1,200"], ["1200.0"], True), ([" 'a' "], ["a"], True),
        (["A"], ["a"], False), (["23%"], ["23"], True), (["null"], ["none"], True), (["0"], ["none"], True),
        (["b", "a"], ["a", "b"], True), (["a", "a"], ["a"], True), (["1", "1"], ["1"], False), ([], ["1"], False),
        (["2", "1"], ["1", "2"], True), (["1", "1"], ["1", "2"], False), (["1", "x"], ["1.0", "x"], False),
    ):  # fmt: skip
        assert same_answers(given, wanted) is same, (given, wanted)
    assert table_hash([("b", None, "c"), ("a",)]) == _md5(",".join(sorted((_md5("b,c")[:5], _md5("a")[:5]))))
    assert in_sqlite(
        "SELECT `it's`, 1e5 FROM 1952_cup WHERE a = \"it's\" AND b = 'x\\'y\\n' AND c='d''e' OR d<-1.5"
    ) == (
        "SELECT `it's`, 1e5 FROM `1952_cup` WHERE a = 'it''s' AND b = 'x''y\n' AND c='d''e' OR d<cast(-1.5 as numeric)"
    )


@pytest.fixture
def systems(tmp_path: Path) -> str:
    """Return a checkout with five tasks of an operating system in `dev` and set 3."""
    folder = tmp_path / "data" / "os_interaction"
    counted: dict[str, Any] = {
        "description": "How many lines has /root/a?",
        "create": {"init": {"file": "init/lines.sh"}},
        "evaluation": {"check": [None, {"language": "python", "file": "check/same.py"}], "example": "wc -l < /root/a"},
    }
    changed = {
        "description": "Copy a to b.", "create": {"init": ["echo 1 > a", "echo 2 >> a"]},
        "evaluation": {"check": "[ $(cat b | wc -l) = 2 ]", "example": {"code": "cat a > c\ncp c b"}},
    }  # fmt: skip
    matched = {"description": "Which file is here?", "create": {"init": "touch x.y"}, "evaluation": {"match": "x.y"}}
    refused = [
        matched | {"start": "sleep 9 &"},
        matched | {"create": {"init": "sleep 9 &"}},
        matched | {"create": {"init": "touch /usr/x"}},
        changed | {"evaluation": {"check": "false", "example": "cp a b"}},
    ]
    for name in ("dev", "3"):
        scripts = folder / "scripts" / name
        (scripts / "check").mkdir(parents=True)
        (scripts / "init").mkdir()
        (scripts / "init" / "lines.sh").write_text("printf 'x\nx\nx\n' > /root/a")
        (scripts / "check" / "same.py").write_text("from sys import argv\nexit(int(argv[1]) != int(argv[2]))")
    (folder / "data" / "3").mkdir(parents=True)
    (folder / "data" / "dev.json").write_text(json.dumps([counted, changed, matched] * 2, indent=1))
    (folder / "data" / "3" / "ac.json").write_text(json.dumps([*refused, counted, changed, matched]))
    (folder / "data" / "3" / "one.json").write_text(json.dumps(matched, indent=1))
    return str(tmp_path)


def test_systems_play_what_their_own_reference_solves_and_nothing_that_goes_on(systems: str) -> None:
    spec = EnvSpec.load("agentbench:os", {"checkout": systems})
    tasks = list(spec.tasks("test"))
    assert [task.task_id for task in tasks] == ["3-ac-4", "3-ac-5", "3-ac-6", "3-one-0"]
    assert {split: len(list(spec.tasks(split))) for split in ("train", "validation")} == {"train": 5, "validation": 1}
    assert check_environment(spec, tasks=3).passed
    assert share(spec, tasks) == 1.0
    assert spec.cls(systems).reset("3-ac-4") == "How many lines has /agent/a?"
    told = play(spec, tasks[0], []).step(call("bash_action", script="seq 999; id >&2")).observation
    assert told.startswith("The output of the OS:\n\n1\n2") and told.endswith("because the output is too long]")
    for place, calls, right in (
        (0, [call("answer_action", answer="3")], True), (0, [call("answer_action", answer="4")], False),
        (0, [call("answer_action", answer="three")], False), (0, [call("bash_action", script="echo 3")], False),
        (0, [call("bash_action", script="echo >> a"), call("answer_action", answer="4")], True),  # as in AgentBench
        (1, [call("bash_action", script="cp a b"), call("finish_action", thought="done")], True),
        (1, [call("finish_action", thought="done")], False), (1, [call("bash_action", script="cp a b")], False),
        (2, [call("answer_action", answer=" x.y\n")], True), (2, [call("answer_action", answer="x")], False),
    ):  # fmt: skip
        assert play(spec, tasks[place], calls).verdict().success is right, calls


def test_a_busy_machine_leaves_no_task_out(systems: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agentbench_os._after, "__defaults__", (replace(agentbench_os._PATIENT, wall_seconds=0.5), 0.0))
    rows = json.loads((path := Path(systems) / "data" / "os_interaction" / "data" / "dev.json").read_text())
    slow = rows[2] | {"create": {"init": "sleep 5"}}
    path.write_text(json.dumps([slow] * 12))
    spec = EnvSpec.load("agentbench:os", {"checkout": systems})
    with pytest.raises(EnvironmentFault, match="task dev-dev-.*: its own script took more than .* start again"):
        list(spec.tasks("train"))


def test_what_is_no_checkout_is_refused(checkout: str) -> None:
    for name, folder in (("agentbench:os", checkout), ("agentbench:db", f"{checkout}/data"), ("agentbench:db", None)):
        with pytest.raises(ConfigError, match="allowed: agentbench:db, agentbench:os, and the folder of a checkout"):
            EnvSpec.load(name, {"checkout": folder})
    folder = Path(checkout) / "data" / "os_interaction" / "data"
    folder.mkdir(parents=True)
    (folder / "dev.json").write_text(json.dumps({"description": "x", "evaluation": {"match": {"regex": "x"}}}))
    with pytest.raises(ConfigError, match="dev.json, task 0: .*evaluation.match: got .* allowed: a text"):
        EnvSpec.load("agentbench:os", {"checkout": checkout})
    (Path(checkout) / "data" / "dbbench" / "standard.jsonl").write_text(json.dumps({"type": ["other"]}))
    with pytest.raises(ConfigError, match="line 1: it has no 'table'"):
        EnvSpec.load("agentbench:db", {"checkout": checkout})
    (Path(checkout) / "data" / "dbbench" / "standard.jsonl").write_text(json.dumps(TASKS[2] | {"answer_md5": "none"}))
    with pytest.raises(ConfigError, match="line 1: its answer_md5 has no hash; its columns"):
        EnvSpec.load("agentbench:db", {"checkout": checkout})


@pytest.mark.skipif(CHECKOUT is None, reason="git clone THUDM/AgentBench, then AGENTBENCH_CHECKOUT=FOLDER")
def test_the_reference_solutions_of_the_real_checkout_are_right() -> None:
    spec = EnvSpec.load("agentbench:db", {"checkout": CHECKOUT})
    assert share(spec, list(spec.tasks("test"))) >= 298 / 300  # 206 and 225: see the page
    spec = EnvSpec.load("agentbench:os", {"checkout": CHECKOUT})
    assert len(tasks := list(spec.tasks("test"))) == 106 and share(spec, tasks) == 1.0
