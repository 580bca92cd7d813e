"""Export of a run to another trainer's files: `python -m offline_agent.pipelines.export run_dir=RUN format=FORMAT`.

Writes a folder with the files, what the trainer needs to load them, and a data card (README.md) that says what is in
them, which tokens the trainer will train on, and which rows were left out and why. docs/export.md has the formats.

Exit status: 0 written, 1 the run cannot be read or the disk refused, 2 the request was wrong (nothing was written).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import offline_agent
from offline_agent.config.documentation import key_table
from offline_agent.config.loading import keys, load
from offline_agent.errors import ConfigError, DataError, did_you_mean
from offline_agent.formats import EXPORTS
from offline_agent.formats.row import ALL, PAIRS, SUCCESSES, Export, ExportRow, Part
from offline_agent.outgoing import code, masked, without_html
from offline_agent.rendering.renderer import Renderer
from offline_agent.runner.arguments import tool
from offline_agent.runner.next_steps import single_turn_advice
from offline_agent.runner.terminal import is_file, say, show
from offline_agent.sections import Section, key
from offline_agent.store.columns import schema_of
from offline_agent.store.files import write_atomic, write_text
from offline_agent.store.manifest import read_manifest
from offline_agent.store.tables import count_rows, write_table
from offline_agent.training.data.load_report import LoadReport
from offline_agent.training.data.reading import EXECUTED, PAIR, TRAJECTORY, TokenReader, read_rows


class ExportConfig(Section):
    """Keys of `export`."""

    run_dir: str = key("", "the finished run whose rows are exported")
    format: str = key("", "the trainer or format: trl, llama_factory, axolotl, verl, openai, atif")
    out: str | None = key(None, "the folder that is written, new or empty; null = RUN_DIR-FORMAT, beside the run")
    tokenizer: str | None = key(
        None, "path or hub name of the tokenizer, for axolotl and verl: that of the rows' token ids, or, where rows "
        "have messages alone, the one that renders them",
    )  # fmt: skip
    chat_template: str | None = key(None, "replaces the tokenizer's: compact, qwen, llama3, plain, a file, or its text")


CARD = "README.md"
LIMITS = (
    "Outcomes are those that the run's verifier or judge gave; what it cannot see, nobody checked. Prompts "
    "and tool outputs are as the environment wrote them, personal or licensed contents included: look before you "
    "publish."
)
_SHAPES = {PAIRS: PAIR, SUCCESSES: TRAJECTORY, ALL: EXECUTED}


@dataclass
class Exported:
    """Counts of one file.

    Attributes:
        part: The file; it is not written where the run has no rows for it.
        read: Rows of the run.
        rows: Rows of the file.
        tasks: Distinct tasks.
        refused: Rows that the format cannot carry, by reason.
        rendered: Rows whose ids were made here of messages.
    """

    part: Part
    read: int = 0
    rows: int = 0
    tasks: set[str] = field(default_factory=set)
    refused: Counter[str] = field(default_factory=Counter)
    rendered: int = 0

    def told(self) -> list[str]:
        """Return its name and its counts: rows, their tasks, rows of the run, and those left out."""
        counts = self.rows, len(self.tasks), self.read, sum(self.refused.values())
        return [self.part.file, *(f"{count:,}" for count in counts)]


def main(arguments: Sequence[str]) -> int:
    """Export a run; returns the exit status."""
    formats = "\n".join(f"  {name:14} {format.about}" for name, format in EXPORTS.items())
    return tool("export", f"{__doc__}\n{formats}\n\n{key_table(keys(ExportConfig))}", arguments, _written)


def _written(arguments: Sequence[str]) -> None:
    config, out = _checked(arguments)
    done = _export(config, out)
    for line in _told(EXPORTS[config.format], out, done):
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
    if config.format not in EXPORTS:
        near = did_you_mean(config.format, EXPORTS)
        faults.append(f"format: got {config.format!r}, allowed: {', '.join(EXPORTS)}.{near}")
    run_dir = Path(config.run_dir)
    if not config.run_dir:
        faults.append("run_dir: name the run to export, run_dir=RUN_DIR")
    elif not is_file(run_dir / "manifest.json"):
        faults.append(f"run_dir: {run_dir} is no run directory: it has no manifest.json")
    if config.format in EXPORTS and EXPORTS[config.format].tokens and config.tokenizer is None:
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


def _export(config: ExportConfig, out: Path) -> list[Exported]:
    """Write the folder; it appears when it is complete."""
    format, run_dir = EXPORTS[config.format], Path(config.run_dir)
    parts_of(format, run_dir)
    renderer = None
    if format.tokens and config.tokenizer is not None:
        renderer = Renderer.load(config.tokenizer, config.chat_template)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as made:
            place = Path(made) / "export"
            place.mkdir()
            done = write(format, run_dir, place, renderer)
            write_text(place / CARD, card(config.format, format, run_dir, done))
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
    for part in parts_of(format, run_dir):
        rows = _converted(done[part.file], run_dir, renderer if format.tokens else None)
        if part.columns:
            write_table(out / part.file, Path(part.file).stem, rows, schema_of(part.columns))
        else:
            write_atomic(out / part.file, lambda file, rows=rows: _lines(file, rows))  # type: ignore[misc]
    for name, extra in format.extra.items():
        own = Path(offline_agent.__file__).parent
        write_atomic(out / name, extra.encode() if isinstance(extra, str) else (own / extra).read_bytes())
    return list(done.values())


def _lines(file: BinaryIO, rows: Iterator[Mapping[str, Any]]) -> None:
    for row in rows:
        file.write(json.dumps(row, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace") + b"\n")


def _converted(done: Exported, run_dir: Path, renderer: Renderer | None) -> Iterator[Mapping[str, Any]]:
    report, shape = LoadReport(), _SHAPES[done.part.rows]
    reader = None if renderer is None else TokenReader(renderer, report, shape)
    for number, found in enumerate(read_rows([str(run_dir)], [], shape, report, "run_dir")):
        done.read += 1
        tokens = () if reader is None else reader.tokens(found)
        if tokens is None:
            done.refused[report.left_out[-1][1]] += 1
            continue
        name = f"{run_dir.resolve().name}/{found.source.path.parent.name}/{number}"
        try:
            made = tuple(done.part.convert(ExportRow(name, found.row, tokens, renderer)))
        except DataError as error:  # the format has no place for it
            done.refused[str(error)] += 1
            continue
        done.rows += len(made)
        done.tasks.add(str(found.row.get("task_id")))
        yield from made
    done.rendered = report.foreign


def card(name: str, format: Export, run_dir: Path, done: Sequence[Exported]) -> str:
    """Return the data card as Markdown: what is in an export, of what run, by which rules, and what is not.

    Args:
        name: The format's name.
        format: The format.
        run_dir: The run that was exported.
        done: What was written.
    """
    manifest = read_manifest(run_dir)
    lines = [f"# {run_dir.resolve().name} for {name}", "", f"{format.about}.", "", "## Files", ""]
    lines += ["| file | rows | tasks | rows of the run | left out |", "|---|---|---|---|---|"]
    lines += [f"| `{name}` | {' | '.join(counts)} |" for name, *counts in (file.told() for file in done)]
    lines += ["", "## How it is loaded", "", format.load]
    lines += ["", "## Which tokens are trained on", "", format.trains]
    if rendered := sum(file.rendered for file in done):
        told = "rows had messages alone: the tokenizer's template rendered them here"
        lines += ["", f"{rendered:,} {told}, so their ids are not proved to be what was sampled."]
    lines += ["", "## What is not in it", "", f"By the format: {format.lost}"]
    if any(file.refused for file in done):
        lines += ["", "Rows left out, by reason:", ""]
        for file in done:
            lines += [f"- {n:,} of `{file.part.file}`: {code(reason)}" for reason, n in file.refused.most_common()]
    lines += ["", "## Where it is from", "", *origin(manifest)]
    lines += ["", f"Rows are of the split `train` alone: a run that holds others is refused. {LIMITS}", ""]
    return without_html("\n".join(lines))


def origin(manifest: Mapping[str, Any]) -> list[str]:
    """Return a line for each fact about where data are from: run, version, environment, policy, judge, rules, hashes.

    Args:
        manifest: Manifest of the run; keys (`api_key` …) in its configuration are masked.
    """
    config = masked(manifest.get("config") or {})  # of a manifest that an earlier version wrote
    named = {"environment": "env", "policy": "policy", "judge": "judge", "logs": "source", "rules of pairs": "pairs"}
    hashes = manifest.get("hashes")
    told = {
        "command": manifest.get("command"),
        "run": manifest.get("run_id"),
        "version": f"offline_agent {manifest.get('version')}, exported by {offline_agent.__version__}",
        "commit": manifest.get("git_commit"),
        "started": manifest.get("started"),
        "seed": config.get("seed"),
        **{name: config.get(key) and json.dumps(config[key]) for name, key in named.items()},
        "hashes": hashes and json.dumps(hashes),
    }
    return [f"- {name}: {code(value)}" for name, value in told.items() if value not in (None, "")]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
