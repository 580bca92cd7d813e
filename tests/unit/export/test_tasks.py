"""The command `export` with tasks of an environment: what the trainers' own loaders make of the files.

Where they are installed: verl 0.9, skyrl 0.3, verifiers 0.4 (`pip install --no-deps`, and what they import).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.play import begin
from offline_agent.pipelines.export import main
from offline_agent.policies.base import DEFAULT_MODEL

N = 5


class Doors:
    """Open the right door; tasks have arguments of different keys."""

    system_prompt = "Open one door."

    @classmethod
    def tasks(cls, split: str) -> Iterator[Mapping[str, Any]]:
        yield {"task_id": "a", "right": {"door": 1}}
        yield {"task_id": "broken", "right": {}}
        yield {"task_id": "c", "right": {"name": "2024-01-01"}}

    def reset(self, right: dict[str, Any]) -> str:
        if not right:
            raise ValueError("no door")
        self._right, self.terminated = right, False
        return f"One of {len(right)} doors is right."

    def open(self, door: int) -> str:
        """Open a door.

        Args:
            door: Its number.
        """
        return "Nothing."

    def get_reward(self) -> float:
        return 0.0


def export(place: Path, format: str, *more: str) -> Path:
    assert main([f"format={format}", f"tasks.n={N}", f"out={place / format}", *more]) == 0
    return place / format


def starts() -> list[tuple[list[dict[str, Any]], Any]]:
    """Return the messages and the arguments of the tasks that are exported."""
    spec = EnvSpec.load("shop")
    tasks = [task for task, _ in zip(spec.tasks("train"), range(N), strict=False)]
    return [(begin(spec.open(), task).messages(), dict(task.args)) for task in tasks]


def whole(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file as `datasets` reads them, which all three loaders do."""
    from datasets import load_dataset

    cache = str(path.parent / "cache")
    return list(load_dataset("parquet", data_files=str(path), split="train", cache_dir=cache))


@pytest.fixture
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(DEFAULT_MODEL)


def test_rows_have_the_start_and_the_arguments_of_each_task(tmp_path: Path) -> None:
    """Alone catches arguments that get the keys of other tasks as nulls, and prompts without the system prompt."""
    for format, file, ground in (("verl_tasks", "tasks", "reward_model"), ("skyrl_tasks", "tasks", "reward_spec")):
        rows = whole(export(tmp_path, format) / f"{file}.parquet")
        assert [row["prompt"] for row in rows] == [messages for messages, _ in starts()]
        for row, (_, args) in zip(rows, starts(), strict=True):
            assert json.loads(row[ground]["ground_truth"]) == json.loads(row["extra_info"]["args"]) == args
            assert json.loads(row["extra_info"]["tools"])[0]["function"]["name"] == "back"


def test_a_task_whose_reset_fails_is_counted_and_keys_are_not_mixed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = export(tmp_path, "verifiers_tasks", f"env={__file__}:Doors", "tasks.split=validation")
    said = capsys.readouterr().out
    assert "left out: 1 of tasks.jsonl" in said and "no door" in said and "no door" in (out / "README.md").read_text()
    lines = [json.loads(line) for line in (out / "tasks.jsonl").read_text().splitlines()]
    assert [line["args"] for line in lines] == [{"right": {"door": 1}}, {"right": {"name": "2024-01-01"}}]
    table = export(tmp_path, "verl_tasks", f"env={__file__}:Doors", "tasks.split=validation") / "tasks.parquet"
    assert [json.loads(row["extra_info"]["args"]) for row in whole(table)] == [line["args"] for line in lines]
    assert "`validation`" in (out / "README.md").read_text()


def test_verl_loads_the_tasks(tmp_path: Path, tokenizer: Any) -> None:
    module = pytest.importorskip("verl.utils.dataset.rl_dataset", reason="needs verl: pip install verl")
    from omegaconf import OmegaConf

    file = str(export(tmp_path, "verl_tasks") / "tasks.parquet")
    settings = OmegaConf.create({"cache_dir": str(tmp_path), "filter_overlong_prompts_workers": 1})
    data = module.RLHFDataset(file, tokenizer, settings)
    batch = module.collate_fn([data[number] for number in range(len(data))])
    assert [list(one) for one in batch["raw_prompt"]] == [messages for messages, _ in starts()]
    assert list(batch["index"]) == list(range(N)) and set(batch["data_source"]) == {"shop"}
    assert [json.loads(one["ground_truth"]) for one in batch["reward_model"]] == [args for _, args in starts()]


def test_skyrl_loads_the_tasks(tmp_path: Path, tokenizer: Any) -> None:
    module = pytest.importorskip("skyrl.train.dataset.dataset", reason="needs skyrl: pip install skyrl")
    data = module.PromptDataset(str(export(tmp_path, "skyrl_tasks") / "tasks.parquet"), tokenizer, 1024, num_workers=1)
    items = data.collate_fn([data[number] for number in range(len(data))])
    assert [item["prompt"] for item in items] == [messages for messages, _ in starts()]
    assert {item["env_class"] for item in items} == {"shop"}
    assert [json.loads(item["env_extras"]["reward_spec"]["ground_truth"]) for item in items] == [a for _, a in starts()]


def test_verifiers_takes_the_tasks(tmp_path: Path) -> None:
    module = pytest.importorskip("verifiers.v1", reason="needs verifiers: pip install verifiers")
    if not hasattr(module, "WireTaskData"):
        pytest.skip("needs verifiers 0.4")
    lines = (export(tmp_path, "verifiers_tasks") / "tasks.jsonl").read_text().splitlines()
    for line, (messages, args) in zip(lines, starts(), strict=True):
        data = module.WireTaskData.model_validate_json(line)
        assert [data.system_prompt, data.prompt] == [message["content"] for message in messages]
        assert data.args == args and data.tools[0]["function"]["name"] == "back"
