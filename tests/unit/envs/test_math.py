"""The environment `math`: data files, and interpreters that are rebuilt."""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from offline_agent.envs.math import Math
from offline_agent.envs.math import env as math_env
from offline_agent.envs.math.env import Notebook
from offline_agent.envs.math.problems import boxed
from offline_agent.envs.math.problems import read_file as read_math
from offline_agent.errors import ConfigError, EnvironmentFault

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
    monkeypatch.setattr(math_env, "_ALIVE", 2)
    books = [Notebook() for _ in range(5)]
    for number, book in enumerate(books):
        book.run(f"x = {number}")
    assert sum(book._session is not None for book in books) == 2
    assert [book.run("x") for book in books] == ["0", "1", "2", "3", "4"]


def test_a_fork_has_an_interpreter_of_its_own() -> None:
    book = Notebook()
    book.run("x = 1")
    if (child := os.fork()) == 0:
        try:
            ours = book.run("x = x + 1\nx") == "2"
            book.close()
        finally:
            os._exit(0 if ours else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert book.run("x") == "1"


def test_boxes_with_braces_in_them() -> None:
    assert boxed(r"so \boxed{\frac{1}{2}} is it") == r"\frac{1}{2}"
    assert boxed(r"first \boxed{1}, then \fbox{2}") == "2"
    assert boxed("none") is None
