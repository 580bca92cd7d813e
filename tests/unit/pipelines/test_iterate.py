"""The loop's decisions, with stages that write what a script says in place of real ones."""

from __future__ import annotations

import html
import itertools
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from offline_agent.config.iterate import IterateConfig
from offline_agent.config.loading import load
from offline_agent.envs.shop import Shop
from offline_agent.errors import TrainingError
from offline_agent.evaluation.task_sources import Played
from offline_agent.launch.stages import Stage
from offline_agent.pipelines import iterate
from offline_agent.pipelines.entry import main
from offline_agent.pipelines.stages import iterations
from offline_agent.records import Context, Task, Verdict
from offline_agent.search.serialization import tree_to_json
from offline_agent.search.tree import SearchTree
from offline_agent.store import tracking
from offline_agent.store.columns import known_name, table_schema
from offline_agent.store.provenance import hash_path
from offline_agent.store.run_directory import RunDirectory
from offline_agent.store.tables import write_table
from offline_agent.store.tracking import Tracker
from tests.unit.evaluation.test_gate import SCHEMA

PREFERENCES = table_schema("preferences")

KEYS = [
    "env=shop", "tasks.n=6", "search.simulations=4", "held_out.n=40", "held_out.attempts=2", "tracking.uri=null",
    "dpo.enabled=true",
]  # fmt: skip


def pair(number: int) -> dict[str, Any]:
    """Return a row of the table `preferences`."""
    row: dict[str, Any] = dict.fromkeys(map(known_name, table_schema("preferences").names))
    return row | {
        "prompt": [{"role": "user", "content": f"task {number}"}],
        "chosen": [{"role": "assistant", "content": "yes"}],
        "rejected": [{"role": "assistant", "content": "no"}],
        "tools": "[]", "kind": "step", "task_id": f"t{number}", "split": "train", "q_chosen": 0.5, "q_rejected": 0.0,
        "visits_chosen": 3, "visits_rejected": 3, "confidence": 0.95, "weight": 0.5, "certificate": "{}",
    }  # fmt: skip


class Stages:
    """Stands in for the processes.

    Attributes:
        rates: Success of the model of a stage, by its label; `start` for the first.
        pairs, filtered: What each search yields; `pairs_of` has iterations that yield other pairs.
        plain: How often the policy alone succeeds on a training task, of 4.
        ran: Labels, in order.
        fail: Label of a stage that fails.
    """

    def __init__(self) -> None:
        self.rates: dict[str, float] = {"start": 0.5}
        self.pairs, self.filtered, self.plain = 5, 3, 2
        self.pairs_of: dict[int, int] = {}
        self.others: dict[str, int] = {}  # pairs of other kinds that each search counts besides
        self.ran: list[str] = []
        self.stages: dict[str, Stage] = {}
        self.fail: str | None = None
        self.wins = False  # each tree has a success

    def __call__(self, stage: Stage, say: Any, again: str) -> dict[str, Any]:
        self.ran.append(stage.label)
        self.stages[stage.label] = stage
        if stage.label == self.fail:
            raise TrainingError("as asked")
        stage.path.mkdir(parents=True, exist_ok=True)
        manifest = {"run_id": "x", "config": {"tasks": {"split": "validation"}}}
        (stage.path / "manifest.json").write_text(json.dumps(manifest))
        summary: dict[str, Any] = getattr(self, stage.pipeline)(stage)
        (stage.path / "summary.json").write_text(json.dumps(summary))
        return summary

    def build_prefs(self, stage: Any) -> dict[str, Any]:
        if (stage.path / "trees").exists():
            return dict(json.loads((stage.path / "summary.json").read_text()))
        iteration = int(stage.label[len("iteration-")])
        names = [json.loads(line)["task_id"] for line in Path(stage.config.tasks.file).read_text().splitlines()]
        with RunDirectory.open(stage.path / "search", config={}, facts={}, command="build_prefs") as run:
            for name in names:
                tree = SearchTree(Context(Task(name, "train", {}), "", (), "go"))
                tree.first_rollouts = [
                    {"greedy": not i, "score": 0.0, "success": i < self.plain, "cut": None} for i in range(4)
                ]
                tree.root.verdict = Verdict(float(self.wins), self.wins, "script", "1")
                tree.root.terminated = True
                run.write_tree(name, tree_to_json(tree))
        (stage.path / "search" / "trees").rename(stage.path / "trees")
        shutil.rmtree(stage.path / "search")
        pairs = self.pairs_of.get(iteration, self.pairs)
        rows = [pair(100 * iteration + n) for n in range(pairs)]
        write_table(stage.path / "preferences" / "0000.parquet", "preferences", rows, PREFERENCES)
        (stage.path / "filtered").mkdir(exist_ok=True)
        return {
            "simulations": 7, "success": {"plain_sampled": 0.5}, "pairs": {"step": pairs, **self.others},
            "pairs_total": pairs, "tasks_with_pairs": 2, "filtered": self.filtered,
        }  # fmt: skip

    def _train(self, stage: Any) -> dict[str, Any]:
        folder = stage.path / "model"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps({"made by": stage.label, "from": stage.config.model.path}))
        (folder / "model.safetensors").write_text(stage.label)
        return {"model": {"hash": stage.label}}

    train_sft = train_dpo = _train

    def evaluate(self, stage: Any) -> dict[str, Any]:
        path = stage.config.policy.model
        rate = self.rates["start" if path is None else "/".join(Path(path).parts[-3:-1])]
        tasks, attempts = held_out(stage), stage.config.attempts
        rows = [
            ("candidate", "sampled", task, j, i < rate * len(tasks))
            for i, task in enumerate(tasks) for j in range(attempts)
        ]  # fmt: skip
        named = [dict(zip(SCHEMA.names, row, strict=True)) for row in rows]
        write_table(stage.path / "attempts" / "0000.parquet", "attempts", named, SCHEMA)
        return {"modes": {"sampled": {"success": {"mean": rate, "low": rate - 0.1, "high": rate + 0.1}}}}


def held_out(stage: Any) -> list[str]:
    return [json.loads(line)["task_id"] for line in Path(stage.config.tasks.file).read_text().splitlines()]


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> Stages:
    made = Stages()
    monkeypatch.setattr(iterations, "run_stage", made)
    return made


def loop(folder: Path, *keys: str) -> int:
    return main(iterate.COMMAND, [*KEYS, *keys, f"run_dir={folder}"])


def summary(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "summary.json").read_text()))


def test_two_iterations_with_promotions(tmp_path: Path, stages: Stages, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    stages.rates |= {"iteration-0/train_sft": 0.6, "iteration-0/train_dpo": 0.7}
    stages.rates |= {"iteration-1/train_sft": 0.9, "iteration-1/train_dpo": 0.4}
    assert loop(run, "iterations=2") == 0
    made, judged = ["build_prefs", "train_sft", "train_dpo"], ["evaluate_sft", "evaluate"]
    names = [["evaluate_incumbent", *made, *judged], [*made, "evaluate_incumbent", *judged]]
    assert stages.ran == [f"iteration-{i}/{name}" for i in range(2) for name in names[i]]
    told = summary(run)
    first, second = told["iterations"]
    assert first["promoted"] == "train_dpo" and first["candidates"]["train_sft"]["passed"]
    assert second["promoted"] == "train_sft" and not second["candidates"]["train_dpo"]["passed"]
    assert second["incumbent"]["model"] == "iteration-0/train_dpo"
    assert (told["start"]["mean"], told["end"]["mean"]) == (0.5, 0.9)
    assert (run / "model" / "model.safetensors").read_text() == "iteration-1/train_sft"
    config = {label: stage.config for label, stage in stages.stages.items()}
    start = str(run / "iteration-0" / "train_dpo" / "model")
    for stage in ("build_prefs", "train_sft"):
        made: Any = config[f"iteration-1/{stage}"]
        assert (made.policy.model if stage == "build_prefs" else made.model.path) == start
    dpo: Any = config["iteration-1/train_dpo"]
    assert dpo.model.path == str(run / "iteration-1" / "train_sft" / "model")
    out = capsys.readouterr()
    for word in ("promoted", "refused", "70% [60%, 80%]", "that success is not worse by 2 points", f"{run}/model"):
        assert word in out.out.replace("\n", " ") or word in out.err, word
    events = [json.loads(line) for line in (run / "events" / "0000.jsonl").read_text().splitlines()[1:]]
    assert [event["promoted"] for event in events if "iteration" in event] == ["train_dpo", "train_sft"]


def test_a_refused_candidate_is_kept_beside_and_the_loop_goes_on_from_the_incumbent(
    tmp_path: Path, stages: Stages
) -> None:
    run = tmp_path / "run"
    stages.rates |= {f"iteration-{i}/train_{stage}": 0.2 for i in range(2) for stage in ("sft", "dpo")}
    assert loop(run, "iterations=2") == 0
    told = summary(run)
    assert [record["promoted"] for record in told["iterations"]] == [None, None]
    assert (run / "iteration-0" / "train_dpo" / "model" / "config.json").exists()
    assert stages.stages["iteration-1/build_prefs"].config.policy.model is None  # type: ignore[attr-defined]
    assert told["model"]["from"] == "start" and (run / "model" / "model.safetensors").stat().st_size > 1_000_000
    needed = [record["candidates"]["train_dpo"]["confidence_needed"] for record in told["iterations"]]
    assert needed == [pytest.approx(1 - 0.1 / 2 / 2), pytest.approx(1 - 0.1 / 6 / 2)]
    overview = html.unescape((run / "report.html").read_text().partition('<section id="training"')[0])
    for record in told["iterations"]:
        for candidate in record["candidates"].values():
            assert candidate["reason"].partition(": ")[2] in overview


def test_every_iteration_is_judged_on_tasks_and_attempts_of_its_own(tmp_path: Path, stages: Stages) -> None:
    stages.rates |= {f"iteration-{i}/train_{stage}": 0.5 for i in range(2) for stage in ("sft", "dpo")}
    assert loop(tmp_path / "run", "iterations=2") == 0
    seen: list[set[Any]] = []
    for i in range(2):
        configs: list[Any] = [
            stages.stages[f"iteration-{i}/{name}"] for name in ("evaluate_incumbent", "evaluate_sft", "evaluate")
        ]
        assert len({stage.config.seed for stage in configs}) == 1
        assert held_out(configs[0]) == held_out(configs[1]) == held_out(configs[2])
        seen.append({*held_out(configs[0]), configs[0].config.seed})
    assert not seen[0] & seen[1] and len(seen[0]) == 41


def test_an_iteration_that_trains_nothing_evaluates_nothing_and_uses_up_no_error(
    tmp_path: Path, stages: Stages
) -> None:
    stages.rates |= {"iteration-1/train_dpo": 0.9}
    stages.filtered = 0
    stages.pairs_of = {0: 0}
    run = tmp_path / "run"
    assert loop(run, "iterations=2") == 0
    assert [label for label in stages.ran if "evaluate" in label] == [
        "iteration-0/evaluate_incumbent", "iteration-1/evaluate_incumbent", "iteration-1/evaluate",
    ]  # fmt: skip
    record = summary(run)["iterations"][1]
    assert record["candidates"]["train_dpo"]["confidence_needed"] == pytest.approx(0.95)


def test_the_curriculum_knows_what_was_searched(tmp_path: Path, stages: Stages) -> None:
    run = tmp_path / "run"
    stages.rates |= {f"iteration-{i}/train_{stage}": 0.5 for i in range(2) for stage in ("sft", "dpo")}
    assert loop(run, "iterations=2") == 0
    names = [
        [json.loads(line)["task_id"] for line in (run / f"iteration-{i}" / "tasks.jsonl").read_text().splitlines()]
        for i in range(2)
    ]
    assert names[0] == [f"train-{i}" for i in range(6)]
    assert len(set(names[1])) == 6 and set(names[1]) - set(names[0]) == {f"train-{i}" for i in range(6, 9)}
    assert [record["tasks"]["new"] for record in summary(run)["iterations"]] == [6, 3]
    other = tmp_path / "other"
    assert loop(other, "iterations=2", "curriculum.enabled=false") == 0
    assert '"train-11"' in (other / "iteration-1" / "tasks.jsonl").read_text()


def test_nothing_but_solved_tasks_ends_the_loop(tmp_path: Path, stages: Stages) -> None:
    run, file = tmp_path / "run", tmp_path / "tasks.jsonl"

    file.write_text("".join(json.dumps(task) + "\n" for task, _ in zip(Shop.tasks("train"), range(6), strict=False)))
    stages.plain = 4
    stages.rates |= {f"iteration-0/train_{stage}": 0.5 for stage in ("sft", "dpo")}
    assert loop(run, "iterations=3", f"tasks.file={file}") == 0
    assert len(summary(run)["iterations"]) == 1 and "always solved" in summary(run)["stopped"]


def test_a_search_that_finds_nothing_trains_nothing(tmp_path: Path, stages: Stages) -> None:
    run = tmp_path / "run"
    stages.pairs = stages.filtered = 0
    assert loop(run) == 0
    assert stages.ran == ["iteration-0/evaluate_incumbent", "iteration-0/build_prefs"]
    record = summary(run)["iterations"][0]
    assert record["promoted"] is None and "no verified success" in record["reason"] and "no pair" in record["reason"]


def test_a_search_without_pairs_of_the_kinds_asked_for_says_which_it_made(tmp_path: Path, stages: Stages) -> None:
    run = tmp_path / "run"
    stages.pairs, stages.others = 0, {"hindsight": 3}
    stages.rates["iteration-0/train_sft"] = 0.5
    assert loop(run, "dpo.kinds=[step]") == 0
    (note,) = [note for note in summary(run)["iterations"][0]["notes"] if "preference" in note]
    assert "kinds in dpo.kinds (step)" in note and "it made 3 of kind hindsight" in note


def test_only_one_of_the_trainings(tmp_path: Path, stages: Stages) -> None:
    stages.rates |= {"iteration-0/train_sft": 0.6, "iteration-0/train_dpo": 0.7}
    assert loop(tmp_path / "sft", "dpo.enabled=false") == 0
    assert stages.ran[-3:] == ["iteration-0/build_prefs", "iteration-0/train_sft", "iteration-0/evaluate"]
    assert loop(tmp_path / "dpo", "sft.enabled=false") == 0
    assert stages.ran[-3:] == ["iteration-0/build_prefs", "iteration-0/train_dpo", "iteration-0/evaluate"]
    assert summary(tmp_path / "dpo")["iterations"][0]["promoted"] == "train_dpo"


def test_gone_on_with_it_tells_nothing_twice_and_ends_alike(tmp_path: Path, stages: Stages) -> None:
    run = tmp_path / "run"
    stages.rates |= {f"iteration-{i}/train_{stage}": 0.7 for i in range(2) for stage in ("sft", "dpo")}
    stages.fail = "iteration-1/train_dpo"
    assert loop(run, "iterations=2") == 1
    assert (run / "model" / "model.safetensors").read_text() == "iteration-0/train_dpo"  # promoted already
    stages.fail = None
    (run / "model" / "model.safetensors").write_text("broken since")
    assert loop(run, "iterations=2") == 0
    assert (run / "model" / "model.safetensors").read_text() == summary(run)["model"]["from"]
    whole = tmp_path / "whole"
    assert loop(whole, "iterations=2") == 0
    events = [json.loads(line) for line in (run / "events" / "0000.jsonl").read_text().splitlines()[1:]]
    assert [event["iteration"] for event in events] == [0, 1]
    one, other = summary(run), summary(whole)
    for record in (*one["iterations"], *other["iterations"]):
        del record["seconds"]
    assert one["iterations"] == other["iterations"]
    assert loop(run, "iterations=3") == 1 and "iteration-2/train_sft" in stages.ran  # more of the same run


class Recorder(Tracker):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent_tags: dict[str, str] = {}
        self.sent_metrics: dict[int, dict[str, Any]] = {}

    def tags(self, values: Mapping[str, str]) -> None:
        self.sent_tags |= values

    def metrics(self, values: Mapping[str, Any], step: int = 0) -> None:
        self.sent_metrics.setdefault(step, {}).update(values)


def test_tracking_links_every_stage_with_what_it_consumed(
    tmp_path: Path, stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, run = Recorder(), tmp_path / "run"
    monkeypatch.setattr(tracking, "open_tracker", lambda *_, **__: recorder)
    stages.rates |= {f"iteration-{i}/train_{stage}": 0.7 for i in range(2) for stage in ("sft", "dpo")}
    assert loop(run, "iterations=1") == 0
    assert recorder.sent_metrics[0]["train_dpo/success"] == 0.7 and recorder.sent_metrics[0]["promoted"] == 1.0
    recorder.sent_metrics.clear()
    assert loop(run, "iterations=2") == 0  # gone on with: what is in MLflow is not sent twice
    assert "success" not in recorder.sent_metrics[0] and recorder.sent_metrics[1]["success"] == 0.7
    tags = recorder.sent_tags
    last, build = run / "iteration-1", run / "iteration-1" / "build_prefs"
    parents = "iteration-1/train_dpo.parent"
    assert tags[f"{parents}.iteration-1/train_sft"] == hash_path(last / "train_sft" / "model")
    assert tags[f"{parents}.iteration-1/preferences"] == hash_path(build / "preferences")
    for iteration in ("iteration-0", "iteration-1"):
        filtered = hash_path(run / iteration / "build_prefs" / "filtered")
        assert tags[f"iteration-1/train_sft.parent.{iteration}/filtered"] == filtered
        assert tags[f"{parents}.{iteration}/filtered"] == filtered
    start = hash_path(run / "iteration-0" / "train_dpo" / "model")
    assert tags["iteration-1/build_prefs.parent.iteration-0/train_dpo"] == start
    assert tags["iteration-1/evaluate.parent.iteration-1/train_dpo"] == hash_path(last / "train_dpo" / "model")
    assert "iteration-0/build_prefs.parent.start" in tags
    assert tags["promoted"] == "iteration-0/train_dpo"
    above = {(stage.config.tracking.parent, stage.config.tracking.iteration) for stage in stages.stages.values()}
    run_id = json.loads((run / "manifest.json").read_text())["run_id"]
    assert above == {(run_id, 0), (run_id, 1)}


def test_the_defaults_are_valid() -> None:
    assert load(IterateConfig).held_out.split == "validation"


class Untaught(Shop):
    """The shop without its customer who knows the way."""

    demonstrate = None  # type: ignore[assignment]


asked: list[int] = []


def proposals(played: Sequence[Played]) -> Iterator[Mapping[str, Any]]:
    asked.append(len(played))
    yield next(Shop.tasks("validation"))
    first = 100 + 10 * len(played)
    yield from itertools.islice(Shop.tasks("train"), first, None)


def broken(played: Sequence[Played]) -> Iterator[Mapping[str, Any]]:
    yield next(itertools.islice(Shop.tasks("train"), 99, None))
    raise KeyError("rung")


SOURCE = f"curriculum.source={__name__}:proposals"


def searched(run: Path, number: int) -> list[str]:
    file = run / f"iteration-{number}" / "tasks.jsonl"
    return [json.loads(line)["task_id"] for line in file.read_text().splitlines()]


def test_proposed_tasks_share_the_new_ones_and_what_is_refused_is_told(
    tmp_path: Path, stages: Stages, capsys: pytest.CaptureFixture[str]
) -> None:
    asked.clear()
    run = tmp_path / "run"
    stages.rates |= {f"iteration-{i}/train_{stage}": 0.5 for i in range(2) for stage in ("sft", "dpo")}
    assert loop(run, "iterations=1", SOURCE) == 0
    first = searched(run, 0)
    assert sum(name.startswith("proposed-") for name in first) == 2 and len(first) == 6
    assert loop(run, "iterations=2", SOURCE) == 0
    assert asked == [0, 6]  # what was proposed for the first iteration is kept
    assert searched(run, 0) == first
    later = set(searched(run, 1)) - set(first)
    assert len(later) == 3 and sum(name.startswith("proposed-") for name in later) == 2
    told = summary(run)["iterations"][1]["proposed"]
    assert told["refused"] == {"a task of the evaluation": 1} and told["proofs"] == {"expert": 2}
    assert told["searched"]["tasks"] + told["others"]["tasks"] == 6 and told["searched"]["learnability"] == 0.25
    refused = [json.loads(line) for line in (run / "quarantine.jsonl").read_text().splitlines()]
    assert {(one["kind"], one["reason"]) for one in refused} == {("task", "a task of the evaluation")}
    assert refused[0]["args"] == next(Shop.tasks("validation"))
    assert "refused a task of the evaluation 1" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize("solved", [True, False])
def test_an_unproven_task_that_no_attempt_solves_is_dropped(tmp_path: Path, stages: Stages, solved: bool) -> None:
    run = tmp_path / "run"
    stages.plain, stages.wins = 2 * solved, solved
    stages.rates |= {f"iteration-{i}/train_{stage}": 0.5 for i in range(3) for stage in ("sft", "dpo")}
    env = f"env={__name__}:Untaught"
    assert loop(run, "iterations=3", SOURCE, env, "curriculum.new_share=0.7", "search.max_steps=9") == 0
    first = {name for name in searched(run, 0) if name.startswith("proposed-")}
    assert first and summary(run)["iterations"][0]["proposed"]["proofs"] == {"unproven": 2}
    again = first & {*searched(run, 1), *searched(run, 2)}
    dropped = [json.loads(line)["name"] for line in (run / "quarantine.jsonl").read_text().splitlines()]
    assert (first & set(dropped) == set()) is solved and (solved or not again)


def test_a_source_that_raises_stops_the_loop_and_says_so(
    tmp_path: Path, stages: Stages, capsys: pytest.CaptureFixture[str]
) -> None:
    assert loop(tmp_path / "run", f"curriculum.source={__name__}:broken") == 1
    assert "broken raised KeyError" in capsys.readouterr().err
    assert loop(tmp_path / "other", SOURCE, "curriculum.enabled=false") == 2
