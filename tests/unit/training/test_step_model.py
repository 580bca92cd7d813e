"""Step models: labels are the values of a tree's edges, each once, and are read where a turn ends."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from offline_agent.config.loading import load
from offline_agent.config.refine_grpo import RefineGrpoConfig
from offline_agent.errors import ConfigError, DataError
from offline_agent.pipelines.stages.online import turn_judge
from offline_agent.records import Action, Context, Step, Task, Trajectory
from offline_agent.runner.components import own_critic
from offline_agent.search.tree import SearchTree, back_up, quarantine
from offline_agent.training.models import save_plain
from offline_agent.training.reward_model import RewardModel, load_reward_model, train_reward
from offline_agent.training.settings import RewardModelSection
from offline_agent.training.step_model import check_head, step_examples, step_loss, turn_rows, turn_values
from tests.helpers import whole_prompts

VALUES = {"good": 1.0, "even": 0.5, "poor": 0.25, "bad": 0.0}


def searched(number: int) -> SearchTree:
    """Return a tree of one word and then another, whose ends are worth what `VALUES` says of the second."""
    tree = SearchTree(Context(Task(f"t{number}", "train", {}), "", (), f"Say two words. ({number})"))
    for first in ("so", "well"):
        word = tree.add_child(tree.add_proposal(tree.root, Action(first, first), first)[0], tree.root.context.child(
            Action(first, first), "and?", "user"))  # fmt: skip
        for second, value in VALUES.items():
            action = Action(second, second)
            end = tree.add_child(tree.add_proposal(word, action, second)[0], word.context.child(action, None))
            back_up(tree, end, value, value, value == 1, False, 1.0, count=4)
    return tree


def test_each_visited_edge_is_a_label_once_and_noise_is_none(base: Path) -> None:
    reward, tree = load_reward_model(str(base), "model", seed=0), searched(0)
    tree.add_proposal(tree.root, Action("hm", "hm"), "hm")  # never executed
    quarantine(tree, tree.root.edges[1], "it broke", 1.0)  # what is behind `well` keeps its sums
    examples = list(step_examples(reward, tree))
    labels = [label for one in examples for label in one.turns]
    wanted = [(0.4375, 16), (1.0, 4), (0.5, 4), (0.25, 4), (0.0, 4)]
    assert sorted(label[1:] for label in labels) == sorted(wanted)
    for one in examples:
        for end, _, _ in one.turns:
            assert one.ids[end] in reward.renderer.eos_ids
    tree.quarantined = "all of it"
    assert not list(step_examples(reward, tree))


def test_one_row_reads_what_rows_of_single_turns_read(base: Path) -> None:
    reward = load_reward_model(str(base), "model", seed=0)
    context = searched(0).nodes[-1].context
    ((ids, ends),) = turn_rows(reward, context)
    assert sorted(ends) == [0, 1] and len(ids) == ends[1] + 1
    values = turn_values(reward, [(ids, [ends[0], ends[1]]), (ids[: ends[0] + 1], [ends[0]])])
    alone = reward.probabilities([ids[: ends[0] + 1], ids])
    assert values == pytest.approx([*alone, alone[0]], abs=1e-5) and values[0] != pytest.approx(values[1])


def test_a_template_that_rewrites_earlier_turns_gives_each_turn_its_own_row(base: Path) -> None:
    model, whole = load_reward_model(str(base), "model", seed=0).model, whole_prompts.renderer()
    context = whole_prompts.follow(whole_prompts.start(), whole_prompts.steps("red SO tea OK cup"))
    rows = turn_rows(RewardModel(model, whole), context)
    assert len(rows) > 1 and sorted(turn for _, ends in rows for turn in ends) == list(range(context.depth))
    for ids, ends in rows:
        for turn, end in ends.items():
            before = context.lineage()[turn + 1]
            assert before.parent is not None and before.action is not None
            assert ids[: end + 1] == [*whole.context_ids(before.parent), *whole.action_ids(before.action)]


def test_it_learns_soft_values_and_serves_as_critic_and_judge_of_turns(base: Path, tmp_path: Path) -> None:
    reward = load_reward_model(str(base), "model", seed=0)
    examples = [one for number in range(12) for one in step_examples(reward, searched(number))]
    visits = sum(visits for one in examples for *_, visits in one.turns) / len(examples)
    settings = RewardModelSection(epochs=12, learning_rate=5e-3, rows=8, weight_decay=0.0)
    train_reward(reward, examples, settings, 0, lambda *_: None, partial(step_loss, visits=visits))
    save_plain(reward.model, reward.renderer.tokenizer, tmp_path / "model")
    critic = own_critic(str(tmp_path / "model"))
    keys = [f"rollouts.turn_judge={tmp_path / 'model'}", "rollouts.credit=turn_reward"]
    judge = turn_judge(load(RefineGrpoConfig, None, keys))
    assert critic is not None and judge is not None
    node = searched(99).nodes[1]  # of a task that was not trained on
    actions = [edge.actions[0] for edge in node.edges]
    assert critic(node.context, actions, 0) == pytest.approx(list(VALUES.values()), abs=0.15)
    end = node.edges[0].child
    assert end is not None
    steps = tuple(Step(action, action.text, None) for action in end.context.actions())
    told = judge(Trajectory(end.context, steps, None, True, False, "rollout"))
    assert told == pytest.approx([0.4375, 1.0], abs=0.15)
    assert judge(Trajectory(node.context.parent or node.context, (), None, False, True, "rollout")) == []


def test_what_cannot_be_read_turn_by_turn_is_refused(base: Path, tmp_path: Path) -> None:
    reward = load_reward_model(str(base), "model", seed=0)
    start = searched(0).root.context
    with pytest.raises(DataError, match="another tokenizer's"):
        turn_rows(reward, start.child(Action("good", "good", token_ids=(5, 6, 7)), None))
    del reward.model.score
    with pytest.raises(ConfigError, match="reads a whole text alone"):
        check_head(reward, "model", "my/bert")
    with pytest.raises(ConfigError, match="search.critic: got 'typo', allowed"):
        own_critic("typo")
