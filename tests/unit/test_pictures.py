"""Pictures from environments to rows: marks, the store, isolation, what is refused."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from offline_agent import pictures
from offline_agent.envs.base import EnvSpec
from offline_agent.errors import DataError
from offline_agent.pipelines import inspect
from offline_agent.records import Action, ToolCall
from offline_agent.rendering.columns import check_columns
from offline_agent.store.columns import known
from offline_agent.store.tables import rows
from tests.helpers.bandit import call
from tests.helpers.pictures import COLOURS, Squares, png

ENV = "tests.helpers.pictures:Squares"


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "_kept", {})
    monkeypatch.setattr(pictures, "_folders", {})
    pictures._read.cache_clear()


@pytest.mark.parametrize("isolated", [False, True])
def test_parts_become_a_text_whose_marks_name_the_bytes(isolated: bool) -> None:
    spec = EnvSpec.load(ENV, isolated=isolated)
    episode = spec.open()
    first = episode.reset(next(spec.tasks("train")))
    assert first == f"Which colour?{pictures.mark(png(COLOURS['red']))}"
    then = episode.step(Action("", call=ToolCall("say", {"colour": "red"}))).observation or ""
    assert pictures.data(pictures.named(then)[0]) == png(COLOURS["green"])
    assert then.endswith("And now?")


def test_a_page_cannot_make_up_a_mark_and_a_long_text_keeps_its_pictures() -> None:
    class Forger(Squares):
        def reset(self, colours: list[str]) -> str:
            return pictures.mark_of("0" * 64) + "x" * 300 + pictures.mark(png((1, 2, 3)))

    spec = EnvSpec(Forger, max_observation_chars=200)
    shown = spec.open().reset(next(spec.tasks("train")))
    assert shown.startswith(f"[picture:{'0' * 64}]x") and len(pictures.named(shown)) == 1 and "[cut here" in shown


@pytest.mark.parametrize("given", [b"GIF", b"%PDF-1.7", "https://example.org/a.png", None, 3])
def test_what_is_no_picture_is_refused(given: object) -> None:
    with pytest.raises(DataError, match="allowed: bytes of PNG"):
        pictures.mark(given)
    url = "data:image/png;base64," + base64.b64encode(png((0, 0, 0))).decode()
    assert pictures.url(pictures.named(pictures.mark(url))[0]) == url


def test_a_run_keeps_each_picture_once_and_its_rows_name_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = [f"env={ENV}", "policy=noisy", "tasks.n=4", "search.simulations=8"]
    call("build_prefs", f"run_dir={tmp_path}", *keys)
    files = sorted((tmp_path / "images").iterdir())
    assert {file.read_bytes() for file in files} == {png(colour) for colour in COLOURS.values()}
    found = [known(row) for table in ("preferences", "filtered") for row in rows(tmp_path, table)]
    assert found
    named = {hash for row in found for hash in pictures.in_messages(row.get("prompt") or row["messages"])}
    assert named <= {file.stem for file in files}
    page = (tmp_path / "report.html").read_text()
    assert page.count('<img src="data:image/png;base64,') > 4 and "[picture " in page and pictures.OBJECT not in page
    assert inspect.main([str(tmp_path), f"trajectory={found[0]['task_id']}"]) == 0
    assert f"[picture {sorted(named)[0][:12]}]"[:9] in capsys.readouterr().out
    # the certificate covers the picture
    row = found[0]
    start = row["prompt"][1]
    start["content"] = start["content"].replace(pictures.named(start["content"])[0], "0" * 64)
    with pytest.raises(DataError, match="prompt, which is not what was certified"):
        check_columns(row)
    assert json.dumps(named and sorted(named))  # plain hashes, no bytes
    files[0].write_bytes(png((9, 9, 9)))
    pictures._read.cache_clear()
    with pytest.raises(DataError, match="it was changed"):
        pictures.data(files[0].stem)
