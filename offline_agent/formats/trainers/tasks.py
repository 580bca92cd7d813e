"""Tasks of an environment as data of trainers that play them: verl, SkyRL and verifiers (prime-rl).

A row has what the policy is told at the start, the system prompt and the first observation, and as JSON text the
arguments of `reset` and the tools: Arrow would give every row the keys of all others as nulls. These trainers take no
environment from a row. The code that plays (an agent loop of verl, an environment of skyrl-gym, a task of verifiers)
opens the environment, calls `reset` with these arguments, and asks `get_reward` at the end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from offline_agent.formats.row import Export, ExportRow, Part
from offline_agent.store.columns import Column

TASKS = "tasks"
"""Rows that are written: tasks of an environment."""

_PROMPT = Column("prompt", "chat", True)
_GROUND = Column("ground_truth", "text", True)
_EXTRA = tuple(Column(name, "text", True) for name in ("split", "task_id", "args", "tools"))
_TRAINS = "Nothing here: the trainer samples. A task is played as often as the trainer says, and scored by your code."
_LOST = "The environment itself, its tools' code and its reward; judges; the most steps of an episode (`max_steps`)."


def verl(row: ExportRow) -> Iterator[Mapping[str, Any]]:
    """Yield the task as verl's `RLHFDataset` and reward managers read it (0.9.1, `utils/dataset/rl_dataset.py`)."""
    yield {
        "data_source": row.row["env"], "prompt": row.messages("prompt"), "ability": "agent",
        "reward_model": {"style": "rule", "ground_truth": row.row["args"]},
        "extra_info": {"index": row.row["index"], **_extra(row)},
    }  # fmt: skip


def skyrl(row: ExportRow) -> Iterator[Mapping[str, Any]]:
    """Yield the task as SkyRL's `PromptDataset` and skyrl-gym read it (0.3.0, `train/dataset/dataset.py`)."""
    yield {
        "prompt": row.messages("prompt"), "env_class": row.row["env"], "data_source": row.row["env"],
        "reward_spec": {"method": "rule", "ground_truth": row.row["args"]}, "extra_info": _extra(row),
    }  # fmt: skip


def task(row: ExportRow) -> Iterator[Mapping[str, Any]]:
    """Yield the task as a `WireTaskData` of verifiers (0.4.0, `v1/task.py`), by which prime-rl is fed."""
    messages = row.messages("prompt")
    system = messages[0]["content"] if len(messages) > 1 else None
    extra = _extra(row)
    yield {"id": extra["task_id"], "prompt": messages[-1]["content"], "system_prompt": system, "env": row.row["env"],
           "args": json.loads(extra["args"]), "tools": row.tools}  # fmt: skip


def _extra(row: ExportRow) -> dict[str, Any]:
    return {column.name: row.row[column.name] for column in _EXTRA}


TARGETS: dict[str, Export] = {
    "verl_tasks": Export(
        about="verl 0.9 online: Parquet of prompts for RLHFDataset, made of env= and tasks.*",
        parts=(
            Part("tasks.parquet", TASKS, verl, (
                Column("data_source", "text", True), _PROMPT, Column("ability", "text", True),
                Column("reward_model", (Column("style", "text", True), _GROUND), True),
                Column("extra_info", (Column("index", "integer", True), *_EXTRA), True),
            )),
        ),
        load="""\
```bash
python -m verl.trainer.main_ppo data.train_files=tasks.parquet data.max_prompt_length=LONGEST \\
    reward.custom_reward_function.path=my_reward.py actor_rollout_ref.rollout.agent.default_agent_loop=my_loop …
```
Your agent loop finds `raw_prompt` and `extra_info` among its arguments: `reset(**json.loads(extra_info["args"]))`. The
model is shown the tools that the loop renders, none of a row. Longer prompts than `data.max_prompt_length` are dropped
without an error.""",
        trains=_TRAINS,
        lost=_LOST,
    ),
    "skyrl_tasks": Export(
        about="SkyRL 0.3 online: Parquet of prompts for PromptDataset, made of env= and tasks.*",
        parts=(
            Part("tasks.parquet", TASKS, skyrl, (
                _PROMPT, Column("env_class", "text", True), Column("data_source", "text", True),
                Column("reward_spec", (Column("method", "text", True), _GROUND), True),
                Column("extra_info", _EXTRA, True),
            )),
        ),
        load="""\
```bash
python -m skyrl.train.entrypoints.main_base data.train_data="['tasks.parquet']" trainer.max_prompt_length=LONGEST …
```
`env_class` is the name by which you register a `BaseTextEnv` (`skyrl_gym.register`): it gets the other columns as
`extras`, and calls `reset(**json.loads(extras["extra_info"]["args"]))`. SkyRL renders no tools: `init` of your class
writes those of `extra_info` into the prompt. Longer prompts than `trainer.max_prompt_length` are dropped
without an error.""",
        trains=_TRAINS,
        lost=_LOST,
    ),
    "verifiers_tasks": Export(
        about="verifiers 0.4 and prime-rl online: tasks for a Taskset, made of env= and tasks.*",
        parts=(
            Part("tasks.jsonl", TASKS, task),
        ),
        load="""\
```python
class Tasks(vf.Taskset):
    def load(self):
        return (MyTask(vf.WireTaskData.model_validate_json(line)) for line in open("tasks.jsonl"))
```
`MyTask` offers the tools and the reward.""",
        trains=_TRAINS,
        lost=_LOST,
    ),
}  # fmt: skip
"""Targets that tasks are written for, by name."""
