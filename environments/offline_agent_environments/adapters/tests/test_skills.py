"""Skills: programs of an environment's calls, made from verified successes, verified by replay, offered as tools."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, ClassVar

import pytest

from offline_agent.envs.base import Environment, EnvSpec
from offline_agent.envs.conformance import check_environment
from offline_agent.envs.play import call
from offline_agent.errors import ConfigError
from offline_agent.pipelines import build_prefs
from offline_agent.pipelines.entry import main
from offline_agent.records import Task, call_message
from offline_agent_environments.adapters import skill_maker
from offline_agent_environments.adapters.skills import OFFERED, environment, library, opened, read


def _skill(name: str, steps: list[tuple[str, dict[str, Any]]], *parameters: str) -> dict[str, Any]:
    made = [{"tool": tool, "arguments": arguments} for tool, arguments in steps]
    return {"name": name, "description": name, "parameters": list(parameters), "steps": made, "split": "train",
            "from": {"t": "tea"}, "verified": 1}  # fmt: skip


LOOK = _skill("look", [("search", {"query": {"$": "query"}}), ("open", {"rank": 1}), ("back", {})], "query")
TAKE = _skill("take", [("look", {"query": {"$": "query"}}), ("open", {"rank": 1}), ("buy", {})], "query")
PLUS = _skill("plus", [("combine", {"a": {"$": "a"}, "op": "+", "b": {"$": "b"}})] * 2, "a", "b")


def _spec(folder: Path, *records: dict[str, Any], env: str = "shop", **args: Any) -> EnvSpec:
    file = folder / "library.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in records))
    return EnvSpec.load(f"skills:{env}", {"library": str(file), **args})


def _episode(spec: EnvSpec, number: int = 0) -> tuple[Any, Task]:
    episode, task = spec.open(), list(spec.tasks("train"))[number]
    episode.reset(task)
    return episode, task


@pytest.mark.parametrize(("env", "records"), [("shop", (LOOK, TAKE)), ("countdown", (PLUS,))])
def test_it_passes_the_conformance_suite(tmp_path: Path, env: str, records: Any) -> None:
    report = check_environment(_spec(tmp_path, *records, env=env), tasks=1)
    assert report.passed, report


def test_a_skill_makes_its_calls_and_those_of_the_skills_that_it_is_made_of(tmp_path: Path) -> None:
    episode, _ = _episode(_spec(tmp_path, LOOK, TAKE))
    plain, _ = _episode(EnvSpec.load("shop"))
    query = {"query": "mint tea"}
    own = [("search", query), ("open", {"rank": 1}), ("back", {}), ("open", {"rank": 1}), ("buy", {})]
    answers = [plain.step(call(*one)).observation for one in own]
    found = episode.step(call("take", query))
    assert found.observation == "\n".join(answers) and found.terminated
    assert episode.fingerprint() == plain.fingerprint() and episode.verdict().evidence["calls"] == 5
    assert episode.verdict().evidence["bought"] == plain.verdict().evidence["bought"]
    known = read(str(tmp_path / "library.jsonl"), opened("shop", {}))
    assert [one.call for one in skill_maker._plain(call("take", query), known)] == [call(*one).call for one in own]


def test_a_refused_step_ends_a_skill(tmp_path: Path) -> None:
    episode, _ = _episode(_spec(tmp_path, LOOK))
    found = episode.step(call("look", {"query": "zzz"}))
    told = "error: no such rank, allowed: nothing, search first"
    assert found.observation == f"no results\nStep 2 of 3, open, was refused: {told}"
    assert found.fault is None and episode.verdict().evidence["calls"] == 2
    episode, _ = _episode(_spec(tmp_path, _skill("leave", [("back", {}), ("buy", {})])))
    assert episode.step(call("leave", {})).fault == "tool_error", "the first step did nothing"


def test_each_call_of_a_skill_counts_in_the_limit_of_steps(tmp_path: Path) -> None:
    spec = _spec(tmp_path, LOOK, TAKE)
    episode, _ = _episode(spec)
    assert spec.max_steps == 15
    results = [episode.step(call("look", {"query": "tea"})) for _ in range(4)]
    assert not results[-1].terminated
    copied = episode.copy()
    results += [episode.step(call("search", {"query": "tea"})), episode.step(call("take", {"query": "tea"}))]
    assert results[-1].terminated and episode.verdict().evidence == {"truncated": True, "calls": 15}
    assert episode.verdict().success is False
    assert not copied.terminated, "a copy shares the count"
    assert copied.step(call("buy", {})).fault == "tool_error"


def test_the_nearest_skills_are_offered_and_the_others_can_be_called(tmp_path: Path) -> None:
    texts = {"one": "some lamp", "two": "mint tea please", "three": "tent"}
    spec = _spec(tmp_path, *({**LOOK, "name": name, "from": {"t": text}} for name, text in texts.items()), most=1)
    kinds = {"mint tea": "two", "tent": "three"}
    for number, task in enumerate(spec.tasks("train")):
        if (wanted := kinds.pop(task.args["kind"], None)) is not None:
            episode, _ = _episode(spec, number)
            assert set(texts) & set(episode.tools.names) == {wanted}
            assert episode.step(call("one", {"query": "tea"})).fault is None
    assert not kinds and OFFERED == 8


def test_the_expert_is_told_the_calls_of_skills(tmp_path: Path) -> None:
    find = _skill("find", [("search", {"query": {"$": "query"}}), ("buy", {}), ("open", {"rank": 1})], "query")
    spec = _spec(tmp_path, LOOK, find)
    task = next(iter(spec.tasks("train")))
    start: Any = {"role": "user", "content": "start"}

    def following(*turns: Any) -> str:
        assert spec.demonstrate is not None
        return str(spec.demonstrate(task.args, [start, *turns], random.Random(0), 0.0)["tool_calls"][0]["function"])

    query = json.loads(following().replace("'", '"'))["arguments"]
    turns = {name: call_message(name, query) for name in ("search", "look", "find")}
    told = [{"role": "tool", "content": text} for text in ("", "Step 2 of 3, buy, was refused: no")]
    plain = following(turns["search"], told[0])
    assert "search" not in plain and following(turns["look"], told[0]) == following(turns["find"], told[1]) == plain


@pytest.mark.parametrize(("record", "told"), [
    ({**LOOK, "split": "test"}, "successes of train tasks"), ({**LOOK, "verified": 0}, "one verified replay"),
    (TAKE, "skills of earlier lines: not"), ({**LOOK, "name": "search"}, "a name of no tool"),
    ({**LOOK, "parameters": []}, "those of its steps"), ({"name": "x"}, "as skill_maker writes it"),
])  # fmt: skip
def test_a_faulty_library_is_refused(tmp_path: Path, record: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        _spec(tmp_path, record)


def _run(folder: Path, *keys: str) -> Path:
    more = ("policy=noisy", "search.algorithm=best_of_n", "search.simulations=4", "tasks.n=20", "tracking.uri=null")
    assert main(build_prefs.COMMAND, ["env=shop", *more, *keys, f"run_dir={folder}"]) == 0
    return folder


def test_a_library_is_made_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    run, out = _run(tmp_path / "run"), tmp_path / "made.jsonl"
    monkeypatch.setattr("sys.argv", ["skill_maker", str(run), "--out", str(out), "--most", "8"])
    skill_maker.main()
    assert "successes written to" in capsys.readouterr().out
    records = [json.loads(line) for line in out.read_text().splitlines()]
    names = {one["name"] for one in records}
    assert any(step["tool"] in names for one in records for step in one["steps"]), "none is made of another"
    assert all(len(one["from"]) > 1 and one["verified"] > 1 for one in records)
    assert names <= set(EnvSpec.load("skills:shop", {"library": str(out)}).tools.names)


def test_successes_of_held_out_tasks_make_none(tmp_path: Path) -> None:
    run = _run(tmp_path / "run", "tasks.split=validation")
    with pytest.raises(ConfigError, match="allowed: train tasks alone"):
        list(skill_maker.successes(run, opened("shop", {}), {}))


class Safe(Environment):
    """A safe whose code is on its door; a shared counter says how often any was opened."""

    opened: ClassVar[int] = 0
    wears: ClassVar[bool] = False

    @classmethod
    def tasks(cls, split: str) -> Any:
        """Yield codes."""
        return iter([{"code": f"{split}-{number}"} for number in range(4)])

    def reset(self, code: str) -> str:
        """Show the safe."""
        self.code, self.terminated, self.said = code, False, ""
        return "a safe"

    def read(self) -> str:
        """Read the door."""
        return f"the code is {self.code}"

    def enter(self, code: str) -> str:
        """Enter a code.

        Args:
            code: The code.
        """
        self.terminated, self.said = True, code
        type(self).opened += 1
        return "click"

    def get_reward(self) -> float:
        """Return whether it is open."""
        return float(self.said == self.code)

    @property
    def fingerprint(self) -> str:
        """The state; of a safe that wears, of its age."""
        return f"{self.said} {self.wears and self.opened > 6}"


def _safes(monkeypatch: pytest.MonkeyPatch, wears: bool, *steps: tuple[str, dict[str, str]]) -> Any:
    monkeypatch.setattr(Safe, "opened", 0)
    monkeypatch.setattr(Safe, "wears", wears)
    inner, found = EnvSpec(Safe), []
    for task in inner.tasks("train"):
        filled = [(name, {key: one.format(**task.args) for key, one in given.items()}) for name, given in steps]
        found.append(skill_maker.repeated(inner, task, [call(*one) for one in filled]))
    assert None not in found
    return skill_maker.make(found, inner)


def test_a_skill_that_fails_its_replay_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = (("read", {}), ("read", {}), ("enter", {"code": "{code}"}))
    records, dropped = _safes(monkeypatch, False, *steps)
    assert [one["name"] for one in records] == ["read_read"] and not dropped
    records, dropped = _safes(monkeypatch, True, *steps)
    assert not records and set(dropped) == {"another state"}


def test_what_the_steps_show_themselves_is_no_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    records, dropped = _safes(monkeypatch, False, ("read", {}), ("enter", {"code": "{code}"}))
    assert not records and not dropped, "the code is not known before it is read"


def test_a_skill_that_makes_an_irreversible_call_is_irreversible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Safe, "irreversible", frozenset({"enter"}))
    inner, safe = EnvSpec(Safe), _skill("safe", [("read", {}), ("read", {})])
    records = [safe, _skill("try", [("safe", {}), ("enter", {"code": "1"})])]
    assert EnvSpec(environment(inner, library(records, inner))).irreversible == {"enter", "try"}
