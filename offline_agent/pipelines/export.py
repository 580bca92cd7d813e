"""Export of a run to another trainer's files: `python -m offline_agent.pipelines.export run_dir=RUN format=FORMAT`.

Formats that end with `_tasks` are made of an environment's tasks: `env=ENV tasks.n=N format=FORMAT`.

Writes a folder with the files, what the trainer needs to load them, and a data card (README.md) that says what is in
them, which tokens the trainer will train on, and which rows were left out and why. docs/export.md has the formats.

Exit status: 0 written, 1 the run cannot be read or the disk refused, 2 the request was wrong (nothing was written).
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO

import offline_agent
from offline_agent import pictures
from offline_agent.config.build_prefs import EnvSection, TasksSection
from offline_agent.config.documentation import key_table
from offline_agent.config.loading import keys, load
from offline_agent.envs.base import EnvSpec
from offline_agent.envs.play import begin
from offline_agent.errors import ConfigError, DataError, EnvironmentFault, did_you_mean
from offline_agent.formats import EXPORTS
from offline_agent.formats.row import ALL, PAIRS, PLAYED, SUCCESSES, Export, ExportRow, Part
from offline_agent.formats.trainers.tasks import TARGETS
from offline_agent.records import Task
from offline_agent.rendering.renderer import Renderer
from offline_agent.report.export import Exported, card, tasks_card
from offline_agent.runner.arguments import tool
from offline_agent.runner.components import load_environment, make_tasks
from offline_agent.runner.next_steps import single_turn_advice
from offline_agent.runner.terminal import is_file, say, show
from offline_agent.sections import Section, key, section
from offline_agent.store.columns import schema_of
from offline_agent.store.files import write_atomic, write_text
from offline_agent.store.manifest import read_manifest
from offline_agent.store.tables import count_rows, write_table
from offline_agent.training.data import reading
from offline_agent.training.data.load_report import LoadReport
from offline_agent.training.data.reading import EXECUTED, PAIR, TRAJECTORY, TokenReader, read_rows


class ExportConfig(Section):
    """Keys of `export`."""

    run_dir: str = key("", "the finished run whose rows are exported")
    format: str = key("", "the trainer or format: trl, llama_factory, axolotl, verl, openai, together, atif, "
                      "inspect, inverse; of tasks: verl_tasks, skyrl_tasks, verifiers_tasks")  # fmt: skip
    out: str | None = key(None, "the folder that is written, new or empty; null = RUN_DIR-FORMAT, beside the run; of "
                          "tasks: runs/ENV-FORMAT")  # fmt: skip
    tokenizer: str | None = key(
        None, "path or hub name of the tokenizer, for axolotl, verl and together: that of the rows' token ids, or, "
        "where rows have messages alone, the one that renders them",
    )  # fmt: skip
    env: EnvSection = section(EnvSection, "whose tasks are exported, for the formats of tasks")
    tasks: TasksSection = section(TasksSection, "which tasks")
    chat_template: str | None = key(None, "replaces the tokenizer's: compact, qwen, llama3, plain, a file, or its text")


CARD = "README.md"
FORMATS = {**EXPORTS, **TARGETS}
_SHAPES = {PAIRS: PAIR, SUCCESSES: TRAJECTORY, ALL: EXECUTED, PLAYED: reading.PLAYED}


def main(arguments: Sequence[str]) -> int:
    """Export a run; returns the exit status."""
    formats = "\n".join(f"  {name:15} {format.about}" for name, format in FORMATS.items())
    return tool("export", f"{__doc__}\n{formats}\n\n{key_table(keys(ExportConfig))}", arguments, _written)


def _written(arguments: Sequence[str]) -> None:
    config, out = _checked(arguments)
    done = _export(config, out)
    for line in _told(FORMATS[config.format], out, done):
        show(line)
    for file in done:
        if file.read and not file.rows:
            reasons = "; ".join(reason for reason, _ in file.refused.most_common())
            told = f"format={config.format} can take none of the {file.read:,} rows ({reasons})"
            advice = f". {single_turn_advice(config.format)}" if file.part.rows == PAIRS else ""
            say(f"WARNING: {file.part.file} has 0 rows: {told}{advice}")


def _checked(arguments: Sequence[str]) -> tuple[ExportConfig, Path]:
    """Return the request and its folder; raises ConfigError."""
    config = load(ExportConfig, overrides=arguments)
    faults = []
    if config.format not in FORMATS:
        near = did_you_mean(config.format, FORMATS)
        faults.append(f"format: got {config.format!r}, allowed: {', '.join(FORMATS)}.{near}")
    run_dir = Path(config.run_dir)
    if config.format in TARGETS:
        faults += _task_faults(config)
        run_dir = Path("runs", re.sub(r"\W+", "-", config.env.name).strip("-"))
    elif config.env != EnvSection() or config.tasks != TasksSection():
        faults.append(f"env, tasks: format={config.format} is made of a run; allowed with {', '.join(TARGETS)}")
    elif not config.run_dir:
        faults.append("run_dir: name the run to export, run_dir=RUN_DIR")
    elif not is_file(run_dir / "manifest.json"):
        faults.append(f"run_dir: {run_dir} is no run directory: it has no manifest.json")
    if config.format in FORMATS and FORMATS[config.format].tokens and config.tokenizer is None:
        faults.append(
            f"tokenizer: format={config.format} has token ids; name the tokenizer of the run's policy, tokenizer=PATH"
        )
    out = Path(config.out) if config.out else run_dir.resolve().with_name(f"{run_dir.resolve().name}-{config.format}")
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            faults.append(f"out: {out} is there already; name a new or an empty folder, out=FOLDER, or remove it")
    except (OSError, ValueError) as error:
        faults.append(f"out: {str(out)!r:.80} cannot be used: {error}")
    if faults:
        raise ConfigError(faults)
    return config, out


def _task_faults(config: ExportConfig) -> Iterator[str]:
    """Yield what is wrong with a request for tasks."""
    for name in ("run_dir", "tokenizer", "chat_template"):
        if getattr(config, name):
            yield f"{name}: format={config.format} is made of tasks; leave it out, and name env= and tasks.n="
    if config.tasks.split == "test":
        yield "tasks.split: got 'test', allowed: train, validation; a policy is measured on the others"


def _export(config: ExportConfig, out: Path) -> list[Exported]:
    """Write the folder; it appears when it is complete."""
    format, run_dir = FORMATS[config.format], Path(config.run_dir)
    spec = None
    if config.format in TARGETS:
        spec = load_environment(config.env)
        tasks = make_tasks(spec, config.tasks)
    else:
        parts_of(format, run_dir)
    renderer = None
    if format.tokens and config.tokenizer is not None:
        renderer = Renderer.load(config.tokenizer, config.chat_template)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as made:
            place = Path(made) / "export"
            place.mkdir()
            if spec is None:
                done = write(format, run_dir, place, renderer)
                told = card(config.format, format, run_dir, done)
            else:
                done = write_tasks(format, spec, tasks, place)
                told = tasks_card(config.format, format, spec, config.tasks, done)
            write_text(place / CARD, told)
            os.replace(place, out)  # an empty folder is replaced
    except OSError as error:
        raise DataError(f"out: {out} cannot be written: {error}") from error
    return done


def _told(format: Export, out: Path, done: Sequence[Exported]) -> Iterator[str]:
    yield f"Written to {out}"
    for name, rows, tasks, *_ in (file.told() for file in done):
        yield f"  {name:22} {rows} rows of {tasks} tasks"
    yield from (f"  {name}" for name in format.extra)
    yield f"  {CARD:22} the data card: how to load it, which tokens are trained on, what is not in it"
    for file in done:
        yield from (f"left out: {n:,} of {file.part.file}: {reason}" for reason, n in file.refused.most_common())


# -- files ---------------------------------------------------------------------------------------------------------


def parts_of(format: Export, run_dir: Path) -> list[Part]:
    """Return the files that can be made of a run: those for which it has rows.

    Raises:
        ConfigError: It has rows for none.
    """
    tables = {part.file: _SHAPES[part.rows].tables for part in format.parts}
    found = [part for part in format.parts if any(count_rows(run_dir, table) for table in tables[part.file])]
    if not found:
        wanted = dict.fromkeys(table for names in tables.values() for table in names)
        there = sorted({file.parent.name for file in run_dir.glob("*/*.parquet")})
        raise ConfigError(
            f"run_dir: {run_dir} has no rows in {', '.join(wanted)}; its tables are {', '.join(there) or 'none'}. Name "
            "a finished run of build_prefs or import_logs"
        )
    return found


def write(format: Export, run_dir: Path, out: Path, renderer: Renderer | None) -> list[Exported]:
    """Write the files of a format to a folder; nothing is left out without being counted.

    Args:
        format: The format.
        run_dir: A finished run.
        out: The folder.
        renderer: Of the tokenizer; None where the format needs no ids.

    Raises:
        ConfigError: The run is not finished, or has no rows for the format.
        DataError: A row fails its certificate, or is of a split that must not be trained on; the disk refused.
    """
    done = {part.file: Exported(part) for part in format.parts}
    used = renderer if format.tokens else None
    rows = ((part, _converted(done[part.file], run_dir, used, format)) for part in parts_of(format, run_dir))
    _write_files(format, out, rows, read_manifest(run_dir))
    return list(done.values())


def write_tasks(format: Export, spec: EnvSpec, tasks: Sequence[Task], out: Path) -> list[Exported]:
    """Write the files of tasks to a folder; a task whose environment breaks at its reset is left out and counted."""
    done = {part.file: Exported(part) for part in format.parts}
    _write_files(format, out, ((part, _started(done[part.file], spec, tasks)) for part in format.parts), {})
    return list(done.values())


def _write_files(
    format: Export,
    out: Path,
    files: Iterable[tuple[Part, Iterator[Mapping[str, Any]]]],
    manifest: Mapping[str, Any],
) -> None:
    for part, rows in files:
        if part.columns:
            write_table(out / part.file, Path(part.file).stem, rows, schema_of(part.columns))
        elif part.head is not None:
            head = part.head(manifest)
            write_atomic(out / part.file, lambda file, rows=rows, head=head: _document(file, head, rows))  # type: ignore[misc]
        else:
            write_atomic(out / part.file, lambda file, rows=rows: _lines(file, rows))  # type: ignore[misc]
    for name, extra in format.extra.items():
        own = Path(offline_agent.__file__).parent
        write_atomic(out / name, extra.encode() if isinstance(extra, str) else (own / extra).read_bytes())


def _lines(file: BinaryIO, rows: Iterator[Mapping[str, Any]]) -> None:
    for row in rows:
        file.write(_json(row) + b"\n")


def _document(file: BinaryIO, head: Mapping[str, Any], rows: Iterator[Mapping[str, Any]]) -> None:
    file.write(_json(head)[:-1] + b', "samples": [\n')
    for number, row in enumerate(rows):
        file.write(b",\n" * (number > 0) + _json(row))
    file.write(b"\n]}\n")


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace")


_PICTURES = "it has pictures, which are written by format=openai alone"


def _converted(
    done: Exported, run_dir: Path, renderer: Renderer | None, format: Export
) -> Iterator[Mapping[str, Any]]:
    report, shape = LoadReport(), _SHAPES[done.part.rows]
    reader = None if renderer is None else TokenReader(renderer, report, shape)
    for number, found in enumerate(read_rows([str(run_dir)], [], shape, report, "run_dir")):
        done.read += 1
        tokens = () if reader is None else reader.tokens(found)
        if tokens is None:
            done.refused[report.left_out[-1][1]] += 1
            continue
        name = f"{run_dir.resolve().name}/{found.source.path.parent.name}/{number}"
        if not format.pictures and pictures.written(found.row):
            done.refused[_PICTURES] += 1
            continue
        task = str(found.row.get("task_id"))
        try:
            made = tuple(done.part.convert(ExportRow(name, found.row, tokens, renderer, done.tasks[task] + 1)))
        except DataError as error:  # the format has no place for it
            done.refused[str(error)] += 1
            continue
        done.rows += len(made)
        done.tasks[task] += 1
        yield from made
    done.rendered = report.foreign


def _started(done: Exported, spec: EnvSpec, tasks: Sequence[Task]) -> Iterator[Mapping[str, Any]]:
    for number, task in enumerate(tasks):
        done.read += 1
        try:
            with closing(spec.open()) as episode:
                start = begin(episode, task)
        except EnvironmentFault as error:
            done.refused[str(error)] += 1
            continue
        row = {
            "prompt": start.messages(), "tools": json.dumps(list(start.tools)), "env": spec.name, "index": number,
            "task_id": task.task_id, "split": task.split, "args": json.dumps(dict(task.args)),
        }  # fmt: skip
        if pictures.written(row):
            done.refused[_PICTURES] += 1
            continue
        made = tuple(done.part.convert(ExportRow(task.task_id, row)))
        done.rows += len(made)
        done.tasks[task.task_id] += 1
        yield from made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
