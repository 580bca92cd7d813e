"""The command `export`: files, card, and what it refuses."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from offline_agent.formats import EXPORTS
from offline_agent.pipelines.export import main
from offline_agent.policies.base import DEFAULT_MODEL
from offline_agent.store.files import write_json
from tests.helpers import rows as kit
from tests.helpers.trainer_loaders import IGNORED, input_output


@pytest.fixture
def run_dir(tmp_path: Path) -> str:
    """Return a run with pairs of one turn and of several, a pair without ids, successes and a refusal."""
    pairs = [kit.pair(0), kit.pair(1, "tea cup", "mug", kind="trajectory"), kit.pair(2, tokens=False)]
    good = [kit.trajectory(0), kit.trajectory(1, tokens=False), kit.refusal(7)]
    return kit.run(tmp_path / "run", pairs, good)


def export(run_dir: str, format: str, *more: str) -> Path:
    out = Path(f"{run_dir}-{format}")
    needs = [f"tokenizer={DEFAULT_MODEL}"] if EXPORTS[format].tokens else []
    assert main([f"run_dir={run_dir}", f"format={format}", *needs, *more]) == 0
    return out


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_datasets_reads_trl_messages_as_they_are(run_dir: str) -> None:
    """Alone catches calls that get the arguments of other calls as nulls on their way through Arrow."""
    from datasets import load_dataset

    out = export(run_dir, "trl")

    def load(name: str) -> Any:
        cache = str(out.parent / "cache")
        return load_dataset("parquet", data_files=str(out / name), split="train", cache_dir=cache)

    assert [row["messages"] for row in load("sft.parquet")] == [
        kit.trajectory(0)["messages"], kit.trajectory(1)["messages"], kit.refusal(7)["messages"]
    ]  # fmt: skip
    pairs = load("preference.parquet")
    assert [row["chosen"] for row in pairs] == [kit.pair(0)["chosen"], kit.pair(2)["chosen"]]
    answers = load("kto.parquet")
    assert [row["label"] for row in answers] == [True, False, True, False]
    assert answers[1]["completion"] == kit.pair(0)["rejected"]


@pytest.mark.parametrize("format", [name for name in EXPORTS if name not in ("atif", "inspect", "inverse")])
def test_every_row_is_written_or_counted(run_dir: str, format: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Alone catches a row that disappears without a word."""
    out = export(run_dir, format)
    said, card = capsys.readouterr().out, (out / "README.md").read_text()
    for part in EXPORTS[format].parts:
        read = 3
        wanted = read if "sft" in part.file else 4 if "kto" in part.file else 2
        assert f"{part.file:22} {wanted} rows" in said
        assert f"| `{part.file}` | {wanted} |" in card and f"| {read} |" in card
    if "preference" in said:
        assert "a side has several turns" in said and "a side has several turns" in card
    if EXPORTS[format].tokens:
        assert "had messages alone" in card


def test_a_file_without_a_row_is_warned_of_with_the_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = kit.run(tmp_path / "logs", [kit.pair(1, "tea cup", "mug", kind="trajectory")], [kit.trajectory(0)])
    export(run, "trl")
    said = capsys.readouterr().err
    assert "WARNING: preference.parquet has 0 rows" in said and "WARNING: kto.parquet has 0 rows" in said
    assert "sft.parquet" not in said and "pairs.min_visits=1" in said


def test_axolotl_renders_rows_without_ids_by_the_template(run_dir: str) -> None:
    rows = lines(export(run_dir, "axolotl") / "sft.jsonl")
    ids, labels = input_output(rows[1], kit.renderer().tokenizer)
    expected = kit.trajectory(1)
    last = max(n for n, on in enumerate(expected["action_mask"]) if on) + 1
    assert ids == expected["input_ids"][:last]
    masks = zip(ids, expected["action_mask"][:last], strict=True)
    assert labels == [token if on else IGNORED for token, on in masks]


def test_the_class_of_verl_gives_what_was_sampled(run_dir: str) -> None:
    """Alone catches the copied class reading other columns than the file has, or cutting a row."""
    out = export(run_dir, "verl")
    spec = importlib.util.spec_from_file_location("verl_dataset", out / "verl_dataset.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tokenizer = SimpleNamespace(pad_token_id=3)
    row = kit.trajectory(0)
    size = len(row["input_ids"])
    rows = module.TokensDataset(str(out / "sft.parquet"), tokenizer, {"max_length": size + 400})
    assert len(rows) == 3
    first = rows[0]
    assert first["input_ids"].tolist() == row["input_ids"] + [3] * 400
    assert first["loss_mask"].tolist() == row["action_mask"] + [0] * 400
    assert first["attention_mask"].sum() == size
    bare = module.TokensDataset([str(out / "sft.parquet")], tokenizer, {"pad_mode": "no_padding", "max_length": 4096})
    assert bare[0]["position_ids"].tolist() == list(range(size)) and "attention_mask" not in bare[0]
    with pytest.raises(ValueError, match="none is cut"):
        module.TokensDataset(str(out / "sft.parquet"), tokenizer, {"max_length": 20})


def test_a_key_of_the_run_is_not_in_the_card(tmp_path: Path) -> None:
    path = tmp_path / "run"
    kit.run(path, [kit.pair(0)], [kit.trajectory(0)])
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["config"] = {"policy": {"name": "http", "api_key": "sk-secret"}}
    write_json(path / "manifest.json", manifest)
    assert "sk-secret" not in (export(str(path), "trl") / "README.md").read_text()


def test_held_out_rows_and_unfinished_runs_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Alone catches test tasks that leave for another trainer."""
    held_out = kit.run(tmp_path / "held", [kit.pair(0, split="test")], [])
    assert main([f"run_dir={held_out}", "format=trl"]) == 1
    assert "must not be trained on" in capsys.readouterr().err
    going = kit.run(tmp_path / "going", [kit.pair(0)], [], status=None)
    assert main([f"run_dir={going}", "format=trl"]) == 2
    assert "unfinished" in capsys.readouterr().err
    assert not list(tmp_path.glob("*-trl")) and not list(tmp_path.glob(".*"))


def test_another_tokenizer_is_refused(run_dir: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Alone catches text of ids that another tokenizer decodes."""
    assert main([f"run_dir={run_dir}", "format=axolotl", f"tokenizer={DEFAULT_MODEL}", "chat_template=plain"]) == 1
    assert "template" in capsys.readouterr().err
