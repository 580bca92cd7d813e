from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_agent.evaluation.agreement import find_trees
from offline_agent.evaluation.curriculum import Choice, CurriculumSection, choose, success_rates
from offline_agent.records import Context, Task
from offline_agent.rollouts.attempts import Known
from offline_agent.search.serialization import tree_to_json
from offline_agent.search.tree import SearchTree
from offline_agent.store.run_directory import RunDirectory


def tasks(n: int) -> list[Task]:
    return [Task(f"t{i}", "train", {"i": i}) for i in range(n)]


def pick(pool: list[Task], known: dict[str, Known], n: int | None, **changed: Any) -> Choice:
    seed = changed.pop("seed", 0)
    return choose(pool, known, n, CurriculumSection(**changed), seed)


def test_learnability_is_highest_near_one_half() -> None:
    values = [Known(successes, 8).learnability for successes in range(9)]
    assert values == sorted(values[:5]) + sorted(values[5:], reverse=True) and values[0] == values[8]
    assert Known(4, 8).learnability == pytest.approx(4.5 * 4.5 / (9 * 10))
    assert Known(0, 0).learnability == pytest.approx(1 / 8)  # of Beta(1/2, 1/2) itself
    assert Known(400, 800).learnability == pytest.approx(0.25, abs=1e-3)


def test_nothing_known_means_new_tasks_in_order() -> None:
    choice = pick(tasks(10), {}, 4)
    assert [task.task_id for task in choice.tasks] == ["t0", "t1", "t2", "t3"] and choice.new == 4


def test_the_share_of_new_ones_and_the_learnable_among_the_known() -> None:
    known = {f"t{i}": Known(2, 4) if i % 2 else Known(0, 40) for i in range(20)}
    choice = pick(tasks(40), known, 8)
    assert choice.new == 4 and {"t20", "t21", "t22", "t23"} <= {task.task_id for task in choice.tasks}
    counts: Counter[bool] = Counter()
    for seed in range(200):
        old = [task for task in pick(tasks(40), known, 8, seed=seed).tasks if task.task_id in known]
        counts.update(known[task.task_id].successes > 0 for task in old)
    assert counts[True] > 8 * counts[False] > 0  # those that always failed come back now and then


def test_solved_ones_never_take_more_than_their_share() -> None:
    known = {f"t{i}": Known(4, 4) if i < 30 else Known(1, 4) for i in range(40)}
    choice = pick(tasks(40), known, 20)
    assert choice.solved <= 2 and len(choice.tasks) == 12 and choice.new == 0
    assert pick(tasks(40), known, 20, solved_share=0.0).solved == 0


def test_only_solved_ones_left_is_nothing_left() -> None:
    known = {f"t{i}": Known(4, 4) for i in range(40)}
    assert pick(tasks(40), known, 20).tasks == []
    assert len(pick(tasks(41), known, 20).tasks) == 3  # the new one, and their share of the solved


def test_new_ones_fill_up_where_few_are_known_and_the_reverse() -> None:
    assert pick(tasks(40), {"t3": Known(1, 2)}, 10).new == 9
    known = {f"t{i}": Known(1, 2) for i in range(38)}
    choice = pick(tasks(40), known, 10)
    assert choice.new == 2 and len(choice.tasks) == 10


def test_all_tasks_where_no_number_is_given() -> None:
    assert len(pick(tasks(7), {"t0": Known(1, 2)}, None).tasks) == 7


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 30),
    st.dictionaries(st.integers(0, 40), st.tuples(st.integers(0, 5), st.integers(0, 5))),
    st.integers(1, 40),
    st.floats(0, 1),
    st.floats(0, 0.99),
    st.integers(0, 5),
)
def test_whatever_is_known(
    size: int, raw: dict[int, tuple[int, int]], n: int, new: float, solved: float, seed: int
) -> None:
    known = {f"t{i}": Known(min(pair), max(pair)) for i, pair in raw.items()}
    pool = tasks(size)
    shares = CurriculumSection(new_share=new, solved_share=solved)
    choice = choose(pool, known, n, shares, seed)
    names = [task.task_id for task in choice.tasks]
    assert len(set(names)) == len(names) <= n
    assert sum(known[name].solved for name in names if name in known) == choice.solved <= solved * min(n, size)
    assert choice.new == sum(name not in known for name in names)
    assert not names or choice.solved < len(names)
    assert choice == choose(pool, known, n, shares, seed)
    useful = sum(not known[task.task_id].solved for task in pool if task.task_id in known)
    useful += sum(task.task_id not in known for task in pool)
    assert len(names) - choice.solved == min(n, size, useful) or choice.solved


def run_with(folder: Path, rollouts: dict[str, list[tuple[bool | None, str | None]]], quarantined: str = "") -> Path:
    with RunDirectory.open(folder, config={}, facts={}, command="build_prefs") as run:
        for name, entries in rollouts.items():
            tree = SearchTree(Context(Task(name, "train", {}), "", (), "go"))
            tree.quarantined = "noise" if name == quarantined else None
            tree.first_rollouts = [
                {"greedy": not i, "score": None if won is None else float(won), "success": won, "cut": cut}
                for i, (won, cut) in enumerate(entries)
            ]
            run.write_tree(name, tree_to_json(tree))
    return folder


def test_rates_come_from_the_last_search_of_a_task(tmp_path: Path) -> None:
    first = run_with(
        tmp_path / "a",
        {
            "t0": [(True, None), (None, "context"), (None, "tokens"), (None, "max_steps"), (None, "unscored")],
            "t1": [(True, None)] * 4,
            "a/b c": [(None, "fault")],
            "bad": [(True, None)],
        },
        quarantined="bad",
    )
    assert success_rates([first]) == {"t0": Known(1, 4), "t1": Known(4, 4), "a/b c": Known(0, 0), "bad": Known(0, 0)}
    third = run_with(tmp_path / "d", {"t1": [(True, None)], "t2": [(True, None)]})
    with RunDirectory.open(third, config={}, facts={}, command="build_prefs") as run:
        run.quarantine("tree", "t1", "its verdicts do not repeat")  # found after the search wrote it
    assert success_rates([third]) == {"t1": Known(0, 0), "t2": Known(1, 1)}
    assert [file.name for file in find_trees([str(third)], [])] == ["t2.json.gz"]
    second = run_with(tmp_path / "b", {"t1": [(False, None), (True, None)]})
    assert success_rates([first, second])["t1"] == Known(1, 2)
    assert success_rates([]) == {}
