"""Training of a reward model on verdicts, or of a step model on values of a search; both measured on unseen tasks.

Run `python -m offline_agent.pipelines.train_reward --help` for the keys; docs/verifiers.md says who reads the model.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.config.judging import TrainRewardConfig
from offline_agent.crash_notes import noted
from offline_agent.errors import ConfigError, DataError
from offline_agent.evaluation.agreement import agreement, find_trees, judged_trajectories, turn_figures
from offline_agent.evaluation.statistics import mean_over_tasks
from offline_agent.pipelines.entry import main
from offline_agent.report.training import show_reward
from offline_agent.runner.pipeline import Command, Facts, Session
from offline_agent.search.serialization import tree_from_json
from offline_agent.store.files import write_json
from offline_agent.store.provenance import hash_json
from offline_agent.store.run_directory import read_tree

if TYPE_CHECKING:
    from offline_agent.training.reward_model import Example, RewardModel


@dataclass(frozen=True)
class Inputs:
    """The model and its examples.

    Attributes:
        reward: The model, with a new head.
        train, test: Examples to train on, and those held out.
        refused: Why trajectories, or the rest of a tree, were left out, with their number.
    """

    reward: RewardModel
    train: Sequence[Example]
    test: Sequence[Example]
    refused: Counter[str]


def prepare(config: TrainRewardConfig) -> tuple[Inputs, Facts]:
    """Load the model and encode the trajectories; see `runner.pipeline.Command.prepare`."""
    from offline_agent.training.models import set_threads
    from offline_agent.training.reward_model import Example, load_reward_model, split
    from offline_agent.training.step_model import check_head, step_examples

    faults: list[str] = []
    trees = find_trees(config.source, faults)
    if faults:
        raise ConfigError(faults)
    with noted(f"loading {config.model}"):
        reward = load_reward_model(config.model, "model", config.chat_template, config.max_length, config.seed)
    set_threads(config.threads, reward.model)
    if config.labels == "steps":
        check_head(reward, "model", config.model)
    examples: list[Example] = []
    refused: Counter[str] = Counter()
    for path in trees:
        if config.labels == "steps":
            tree = tree_from_json(read_tree(path))
            try:
                examples += step_examples(reward, tree)
            except DataError as error:
                refused[str(error)] += 1
            continue
        for one in judged_trajectories(path):
            assert one.verdict is not None
            try:
                examples.append(Example(one.task.task_id, reward.encode(one.context), bool(one.verdict.success)))
            except DataError as error:
                refused[str(error)] += 1
    if not examples:
        raise ConfigError(f"source: no judged trajectory can be read ({dict(refused) or 'there is none'})")
    train, test = split(examples, config.held_out, config.seed)
    hashes = {"trees": hash_json({str(path): path.stat().st_size for path in trees}), "model": reward.version}
    return Inputs(reward, train, test, refused), Facts({"hashes": hashes})


def run(inputs: Inputs, session: Session[TrainRewardConfig]) -> Mapping[str, Any]:
    """Train, measure, write; see `runner.pipeline.Command.run`."""
    from offline_agent.training.models import save_plain
    from offline_agent.training.reward_model import FIGURES, outcome_loss, train_reward
    from offline_agent.training.step_model import step_loss

    config, folder = session.config, session.run.path / "model"
    session.progress.start(None, "measuring the model as it is")
    before = _measured(inputs, inputs.test, config)
    losses: list[float] = []

    def log(update: int, total: int, loss: float) -> None:
        losses.append(loss)
        session.tracker.metrics({"loss": loss}, step=update)
        session.progress.update(update, loss=f"{loss:.3f}")

    session.progress.start(config.epochs * math.ceil(len(inputs.train) / config.rows), "training")
    loss = outcome_loss
    if config.labels == "steps":
        visits = sum(visits for one in inputs.train for *_, visits in one.turns)
        loss = partial(step_loss, visits=visits / len(inputs.train))
    train_reward(inputs.reward, inputs.train, config, config.seed, log, loss)
    session.progress.start(None, "measuring")
    figures = {
        "labels": config.labels,
        "train": {"trajectories": len(inputs.train), "tasks": len({one.task_id for one in inputs.train}),
                  **_measured(inputs, inputs.train, config)},
        "held_out": _measured(inputs, inputs.test, config),
        "held_out_before": before,
        "loss": {"first": losses[0], "last": losses[-1], "updates": len(losses)},
        "refused": dict(inputs.refused.most_common(5)),
    }  # fmt: skip
    saved = save_plain(inputs.reward.model, inputs.reward.renderer.tokenizer, folder)
    write_json(Path(folder) / FIGURES, figures)
    return {"seed": config.seed, "model": str(folder), "hash": saved, **figures}


def _measured(inputs: Inputs, examples: Sequence[Example], config: TrainRewardConfig) -> dict[str, Any]:
    """Return how the model agrees with its labels: over all of them, and over tasks with a clustered interval."""
    if config.labels == "steps":
        from offline_agent.training.step_model import places, turn_values

        labels = [(one.task_id, value, visits) for one in examples for _, value, visits in one.turns]
        told = turn_values(inputs.reward, places(examples))
        rows = [(task, said, value, visits) for said, (task, value, visits) in zip(told, labels, strict=True)]
        return turn_figures(rows, config.confidence, config.seed)
    found = inputs.reward.probabilities([one.ids for one in examples])
    pairs = list(zip(examples, found, strict=True))
    verdicts = [(one.success, value >= 0.5) for one, value in pairs]
    by_task: dict[str, list[float | None]] = {}
    for one, value in pairs:
        by_task.setdefault(one.task_id, []).append(float((value >= 0.5) == one.success))
    common = sum(one.success for one in examples) / len(examples)
    return {
        **agreement(verdicts, config.confidence),
        "tasks": len(by_task),
        "accuracy_over_tasks": mean_over_tasks(by_task, config.confidence, 2000, config.seed).to_json(),
        "majority": max(common, 1 - common),
        "brier": sum((value - one.success) ** 2 for one, value in pairs) / len(pairs),
    }


COMMAND: Command[TrainRewardConfig, Inputs] = Command(
    name="train_reward", config=TrainRewardConfig, prepare=prepare, run=run, show=show_reward, alone=True
)

if __name__ == "__main__":
    sys.exit(main(COMMAND))
