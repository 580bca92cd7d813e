"""A plain GRPOTrainer on the shop, through TRL's environment factory: what it trains on is what we would."""

from __future__ import annotations

import importlib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from transformers.utils import get_json_schema

from examples import trl_environment_factory
from offline_agent.envs.base import EnvSpec
from offline_agent.records import Context, Task
from offline_agent.rendering.columns import trajectory_columns
from offline_agent.rendering.renderer import Renderer


def spans(mask: list[int]) -> list[tuple[int, int]]:
    """Return the half-open runs of ones."""
    edges = [0, *(at for at in range(1, len(mask)) if mask[at] != mask[at - 1]), len(mask)]
    return [(a, b) for a, b in itertools.pairwise(edges) if mask[a]]


def replayed(
    spec: EnvSpec, renderer: Renderer, task: Task, ids: list[int], mask: list[int]
) -> tuple[dict[str, Any], float | None, bool]:
    """Play the turns of one of TRL's rows in our episode, for as long as it lasts.

    Returns our token columns, the reward at the end, and whether every turn was played or the episode ended.
    """
    episode = spec.open()
    context, whole = Context(task, spec.system_prompt, episode.tools.schemas, episode.reset(task)), True
    for start, end in spans(mask):
        action = renderer.parse(ids[start:end])
        if action.fault is not None or (action.call is not None and episode.tools.validate(action.call)[0] is None):
            whole = False  # TRL tells the model of bad calls in other words, and goes on after them
            break
        result = episode.step(action)
        context = context.child(action, result.observation, result.role)
        if result.terminated:
            break
    return trajectory_columns(renderer, context), episode.verdict().score, whole


@pytest.mark.slow
def test_the_class_itself_is_trls_environment_factory(tmp_path: Path) -> None:
    made = trl_environment_factory.trainer(str(tmp_path), per_device_train_batch_size=4, num_generations=2)
    spec, renderer = EnvSpec.load("shop"), Renderer(made.processing_class)
    assert tuple(tool.__name__ for tool in made.tools) == spec.tools.names
    assert [get_json_schema(tool) for tool in made.tools] == list(spec.tools.schemas)

    batches: list[tuple[Any, ...]] = []
    generate, score = made._generate, made._generate_and_score_completions
    tasks = {task.args["instruction"]: task for task in itertools.islice(spec.tasks("train"), 32)}

    def noted(prompts: Any) -> Any:
        out = generate(prompts)
        batches.append((prompts, *out[:3], [environment.get_reward().score for environment in made.environments]))
        return out

    tensors: list[Any] = []
    made._generate = noted
    made._generate_and_score_completions = lambda inputs: tensors.append(score(inputs)) or tensors[-1]
    made.train()

    assert len(batches) == 2
    assert list(made._logs["rewards"]["Shop"]) == pytest.approx(batches[-1][-1])  # the last batch's
    assert [record["reward"] for record in made.state.log_history[:2]] == pytest.approx(
        [sum(scores) / len(scores) for *_, scores in batches]
    )
    compared = 0
    for (prompts, prompt_ids, ids, masks, scores), batch in zip(batches, tensors, strict=True):
        for row, prompt in enumerate(prompts):
            task = tasks[prompt[-1]["content"]]
            start = len(prompt_ids[row])
            whole = [*prompt_ids[row], *ids[row]]
            ours, reward, complete = replayed(spec, renderer, task, whole, [0] * start + masks[row])
            length = len(ours["input_ids"])
            assert whole[:length] == ours["input_ids"]
            assert ([0] * start + masks[row])[:length] == ours["action_mask"]
            assert batch["tool_mask"][row, : len(masks[row])].tolist() == masks[row]
            if complete:
                assert scores[row] == reward
                compared += 1
    assert compared >= 4


@pytest.mark.slow
def test_the_benchmark_of_rollouts_plays_the_same_episodes_on_every_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    out = tmp_path / "rollouts.json"
    importlib.import_module("rollout_throughput").main(["--quick", "--out", str(out)])
    written = json.loads(out.read_text())
    assert [row["side"] for row in written["rows"]] == 3 * [
        "ours", "ours, to the cap", "TRL's environment loop", "serial loop"
    ]  # fmt: skip
    for row in written["rows"]:
        assert row["trajectories/s"] > 0 and row["turns each"] <= 3  # --quick cuts all sides after three turns
        assert row["trajectories"] == (1 if row["side"] == "serial loop" else 4)
    assert set(written["facts"]["trajectories per second at equal turns, ours to theirs"]) == {
        "tools at 0", "tools at 0.5", "tools at 2"
    }  # fmt: skip
