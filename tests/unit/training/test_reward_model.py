"""Reward models: they learn what verdicts show, hold tasks out whole, and judge as they were measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from offline_agent.errors import ConfigError
from offline_agent.judges.judge import make_judge
from offline_agent.records import Action, Context, Step, Task, Trajectory
from offline_agent.training.models import save_plain
from offline_agent.training.reward_model import (
    Example,
    RewardModel,
    load_reward_model,
    split,
    train_reward,
)
from offline_agent.training.settings import RewardModelSection

SETTINGS = RewardModelSection(epochs=6, learning_rate=5e-3, rows=8, weight_decay=0.0)


def played(number: int, answer: str) -> Trajectory:
    task = Task(f"t{number}", "train", {})
    start = Context(task, "", (), f"Say a word, please. ({number})")
    action = Action(answer, answer)
    context = start.child(action, None)
    return Trajectory(context, (Step(action, answer, None),), None, True, False, "rollout")


def examples(reward: RewardModel, tasks: int = 16) -> list[Example]:
    words = (("yes yes", True), ("no no", False))
    return [Example(f"t{n}", reward.encode(played(n, word).context), won) for n in range(tasks) for word, won in words]


def test_it_learns_what_the_verdicts_show_and_judges_unseen_tasks_by_it(base: Path, tmp_path: Path) -> None:
    reward = load_reward_model(str(base), "model", seed=0)
    train, test = split(examples(reward), 0.25, seed=0)
    assert len(test) == 8 and not {one.task_id for one in train} & {one.task_id for one in test}
    losses: list[float] = []
    train_reward(reward, train, SETTINGS, 0, lambda update, total, loss: losses.append(loss))
    found = reward.probabilities([one.ids for one in test])
    assert losses[-1] < 0.2 < losses[0] and all((p > 0.5) == one.success for p, one in zip(found, test, strict=True))
    save_plain(reward.model, reward.renderer.tokenizer, tmp_path / "model")
    judge = make_judge("reward_model", {"path": str(tmp_path / "model"), "turns": True})
    assert judge is not None and judge.version == reward.version
    good, bad = judge(played(99, "yes yes")), judge(played(99, "no no"))
    assert good.success is True and bad.success is False and good.evidence["turns"] == [good.score]


def test_the_same_seed_gives_the_same_weights(base: Path) -> None:
    def weights(seed: int) -> str:
        reward = load_reward_model(str(base), "model", seed=seed)
        few = SETTINGS.model_copy(update={"epochs": 1})
        train_reward(reward, examples(reward, 4), few, seed, lambda *_: None)
        return reward.version

    assert weights(1) == weights(1) != weights(2)


def test_padding_changes_no_probability_and_long_histories_keep_both_ends(base: Path) -> None:
    reward = load_reward_model(str(base), "model", seed=0, longest=24)
    short, long = reward.encode(played(1, "yes").context), reward.encode(played(1, "word " * 60).context)
    whole = reward.renderer.context_ids(played(1, "word " * 60).context)
    assert len(long) == 24 and long[:12] == whole[:12] and long[12:] == whole[-12:]
    alone = reward.probabilities([short])[0]
    assert reward.probabilities([short[:9], long, short])[2] == pytest.approx(alone, abs=1e-5)


@pytest.mark.parametrize("outputs", [2, 3])
def test_a_checkpoint_of_two_outputs_is_read_by_its_second_and_of_three_refused(
    base: Path, tmp_path: Path, outputs: int
) -> None:
    from transformers import AutoModelForSequenceClassification

    model: Any = AutoModelForSequenceClassification.from_pretrained(base, num_labels=outputs)
    reward = load_reward_model(str(base), "model", seed=0)
    save_plain(model, reward.renderer.tokenizer, tmp_path / "model")
    if outputs == 3:
        with pytest.raises(ConfigError, match="3 outputs"):
            make_judge("reward_model", {"path": str(tmp_path / "model")})
        return
    judged = load_reward_model(str(tmp_path / "model"), "judge.path")
    row = judged.encode(played(1, "yes").context)
    with torch.no_grad():
        wanted = torch.softmax(judged.model(input_ids=torch.tensor([row])).logits, -1)[0, 1]
    assert judged.probabilities([row])[0] == pytest.approx(float(wanted), abs=1e-5)


def test_a_model_without_a_trained_head_is_no_judge(base: Path) -> None:
    with pytest.raises(ConfigError, match="no trained head.*train_reward"):
        make_judge("reward_model", {"path": str(base)})
    with pytest.raises(ConfigError, match=r"judge\.threshold"):
        make_judge("reward_model", {"path": str(base), "threshold": 0.0})


def test_examples_of_one_class_or_task_are_refused() -> None:
    one = [Example("t", [1], True), Example("t", [2], False)]
    with pytest.raises(ConfigError, match="leave nothing to train on"):
        split(one, 0.25, 0)
    with pytest.raises(ConfigError, match="leave nothing to train on"):
        split([Example(f"t{n}", [1], True) for n in range(8)], 0.25, 0)
