"""The environments `code` and `math`: data files, what tools answer, interpreters that are rebuilt."""

from __future__ import annotations

import copy
import gzip
import json
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from offline_agent.envs.base import EnvSpec, ToolError
from offline_agent.envs.math import Math, notebook
from offline_agent.envs.math.data import boxed
from offline_agent.envs.math.data import read_file as read_math
from offline_agent.envs.math.notebook import Notebook
from offline_agent.errors import ConfigError, EnvironmentFault
from offline_agent_environments.code import Code
from offline_agent_environments.code.data import read_file as read_code

BENCHMARKS = Path(__file__).parents[4] / "benchmarks"
FUNCTIONS = Path(__file__).parents[4] / "tests" / "data" / "functions.jsonl"  # rows of HumanEval's format
REAL = Path(os.environ.get("OFFLINE_AGENT_DATA", Path(__file__).parents[5] / "shared" / "data"))

pytestmark = pytest.mark.slow


def file_of(folder: Path, *rows: Mapping[str, Any]) -> str:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


def test_a_file_is_divided_once_and_a_test_file_is_the_whole_test_split(tmp_path: Path) -> None:
    rows = [{"question": f"{n} + 1?", "answer": f"<<{n}+1={n + 1}>> #### {n + 1}"} for n in range(200)]
    path = file_of(tmp_path, *rows)
    parts = {split: {t["task_id"] for t in Math.tasks(split, path)} for split in ("train", "validation", "test")}
    assert len(set.union(*parts.values())) == sum(map(len, parts.values())) == 200
    assert 130 < len(parts["train"]) < 190 and parts["validation"] and parts["test"]
    assert len(list(Math.tasks("test", None, path))) == 200
    with_test = [len(list(Math.tasks(split, path, path))) for split in ("train", "validation")]
    assert with_test == [len(parts["train"]), len(parts["validation"]) + len(parts["test"])]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"question": "1?", "answer": "1"}, "####"),
        ({"problem": "1?", "solution": "one"}, "boxed"),
        ({"text": "x"}, "question"),
        (["question"], "must be a JSON object"),
    ],
)
def test_a_row_of_another_shape_is_named_with_its_line(row: Any, says: str, tmp_path: Path) -> None:
    path = file_of(tmp_path, {"question": "1?", "answer": "#### 1"}, row)
    with pytest.raises(ConfigError, match=r"(?s)env.path: .*line 2.*") as raised:
        read_math(path, "env.path")
    assert says in str(raised.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_code(str(tmp_path / "absent.jsonl"), "env.path")
    (tmp_path / "x.jsonl").write_text("no json")
    with pytest.raises(ConfigError, match="line 1 is no JSON"):
        read_code(str(tmp_path / "x.jsonl"), "env.path")
    (tmp_path / "x.jsonl").write_text("")
    with pytest.raises(ConfigError, match="has no row"):
        read_code(str(tmp_path / "x.jsonl"), "env.path")
    with pytest.raises(ConfigError, match="HumanEval"):
        read_code(file_of(tmp_path, {"task_id": 1}), "env.path")


def played(env: Code, task: Mapping[str, Any], code: str) -> tuple[str, float | None]:
    env.reset(**task)
    env.write(code)
    told = env.run_tests()
    env.submit()
    return told, env.get_reward().score


def test_rows_of_human_eval_and_mbpp_are_posed_and_judged(tmp_path: Path) -> None:
    packed = tmp_path / "functions.jsonl.gz"
    packed.write_bytes(gzip.compress(FUNCTIONS.read_bytes()))
    mbpp = {
        "task_id": 7, "text": "Write a function that adds.", "code": "def add(a, b):\n    return a + b",
        "test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"], "test_setup_code": "",
    }  # fmt: skip
    tasks = [*read_code(str(packed), "k"), *read_code(file_of(tmp_path, mbpp), "k")]
    assert len(tasks) == 7 and all(task["shown"] for task in tasks)
    for task in tasks:
        told, score = played(Code(), task, task["solution"])
        assert told.startswith("All ") and score == 1.0, (task["task_id"], told)
    told, score = played(Code(), tasks[-1], "def add(a, b):\n    return 0")
    assert "got 0" in told and score == 0.5
    assert played(Code(score="all"), tasks[-1], "def add(a, b):\n    return 0")[1] == 0.0


def test_a_program_that_was_not_submitted_scores_0_and_one_that_is_no_python_says_so() -> None:
    task = next(iter(Code.tasks("train")))
    env = Code()
    env.reset(**task)
    with pytest.raises(ToolError, match="write one first"):
        env.run_tests()
    assert "no Python" in env.write("def f(:")
    assert "SyntaxError" in env.run_tests()
    env.write(task["solution"])
    assert env.get_reward().score == 0.0


def test_variables_last_and_errors_are_told() -> None:
    book = Notebook()
    assert book.run("x = 20\nprint('made')\nx + 1") == "made\n21"
    assert book.run("x / 0") == "ZeroDivisionError: division by zero (line 1, in <module>)"
    assert book.run("def f(: pass").startswith("SyntaxError")
    assert book.run("y = x * 2") == "(no output)"
    assert book.run("y") == "40"
    assert "variables are lost" in book.run("import os; os._exit(0)")
    assert book.run("y").startswith("NameError")


SCRIPTS = ["import random\nx = random.random()\nx", "d = {}\nd['a'] = [x]\nd", "def f(n): return n + len(d)\nf(1)",
           "d['b'] = {3, 1, 2, 'z', 'q'}\nd", "open('note', 'w').write('kept')", "open('note').read()", "1/0",
           "import fractions\nfractions.Fraction(1, 3) + f(2)", "hash('a')", "[random.random(), d]"]  # fmt: skip


def test_a_copy_at_any_point_continues_as_the_original_would() -> None:
    rng = random.Random(0)
    for _ in range(4):
        cells = [rng.choice(SCRIPTS) for _ in range(7)]
        straight = Notebook()
        expected = [straight.run(cell) for cell in cells]
        at = rng.randrange(1, 6)
        original = Notebook()
        for cell in cells[:at]:
            original.run(cell)
        one, two = copy.deepcopy(original), copy.deepcopy(copy.deepcopy(original))
        one.run("x = d = None")  # touches nobody else
        assert [two.run(cell) for cell in cells[at:]] == expected[at:], cells
        assert [original.run(cell) for cell in cells[at:]] == expected[at:]
        original.close()  # as the pool does with those that are not used
        assert original.run("6 * 7") == "42" and original.cells[:-1] == straight.cells


def test_cells_that_do_not_repeat_are_a_fault() -> None:
    book = Notebook()
    book.run("import os\nos.urandom(8)")
    with pytest.raises(EnvironmentFault, match="cell 1 printed something else"):
        copy.deepcopy(book).run("1")


def test_only_so_many_interpreters_are_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "_ALIVE", 2)
    books = [Notebook() for _ in range(5)]
    for number, book in enumerate(books):
        book.run(f"x = {number}")
    assert sum(book._session is not None for book in books) == 2
    assert [book.run("x") for book in books] == ["0", "1", "2", "3", "4"]


def test_boxes_with_braces_in_them() -> None:
    assert boxed(r"so \boxed{\frac{1}{2}} is it") == r"\frac{1}{2}"
    assert boxed(r"first \boxed{1}, then \fbox{2}") == "2"
    assert boxed("none") is None


@pytest.mark.skipif(not (REAL / "gsm8k_test.jsonl").is_file(), reason=f"there are no real data sets in {REAL}")
def test_gold_answers_of_real_rows_score_1_and_wrong_ones_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from gold import measured, rows

    for name, path, tasks in rows(REAL):
        found = measured(EnvSpec.load(name), random.Random(1).sample(tasks, 12))
        assert found["gold_1"] == found["wrong_0"] == 12, (path, found["exceptions"], found["wrong_scored"])
