"""Export of a run to another trainer's files: `python -m offline_agent.pipelines.export run_dir=RUN format=FORMAT`.

Writes a folder with the files, what the trainer needs to load them, and a data card (README.md) that says what is in
them, which tokens the trainer will train on, and which rows were left out and why. docs/export.md has the formats.

Exit status: 0 written, 1 the run cannot be read or the disk refused, 2 the request was wrong (nothing was written).
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from offline_agent.config.documentation import key_table
from offline_agent.config.export import ExportConfig
from offline_agent.config.keys import keys
from offline_agent.config.loading import load
from offline_agent.errors import ConfigError, DataError, did_you_mean
from offline_agent.export import CARD, Exported, card, parts_of, write
from offline_agent.formats import EXPORTS
from offline_agent.formats.row import PAIRS, Export
from offline_agent.rendering.renderer import Renderer
from offline_agent.runner.arguments import tool
from offline_agent.runner.next_steps import single_turn_advice
from offline_agent.runner.terminal import is_file, say, show
from offline_agent.store.files import write_text


def main(arguments: Sequence[str]) -> int:
    """Export a run; returns the exit status."""
    formats = "\n".join(f"  {name:14} {format.about}" for name, format in EXPORTS.items())
    return tool("export", f"{__doc__}\n{formats}\n\n{key_table(keys(ExportConfig))}", arguments, _written)


def _written(arguments: Sequence[str]) -> None:
    config, out = _checked(arguments)
    done = _export(config, out)
    for line in _told(EXPORTS[config.format], out, done):
        show(line)
    for warning in _empty(config, done):
        say(warning)


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


def _export(config: ExportConfig, out: Path) -> Exported:
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


def _told(format: Export, out: Path, done: Exported) -> list[str]:
    lines = [f"Written to {out}"]
    for part in format.parts:
        if part.file in done.tasks:
            tasks = len(done.tasks[part.file])
            lines.append(f"  {part.file:22} {done.rows[part.file]:,} rows of {tasks:,} tasks")
        else:
            lines.append(f"  {part.file:22} not written: the run has no such rows")
    lines += [f"  {name}" for name in format.extra]
    lines.append(f"  {CARD:22} the data card: how to load it, which tokens are trained on, what is not in it")
    lines += [f"left out: {count:,} of {file}: {reason}" for (file, reason), count in done.refused.most_common()]
    return lines


def _empty(config: ExportConfig, done: Exported) -> list[str]:
    """Return a warning for each file without a row: which rows the format cannot take, and what to do."""
    out = []
    for part in EXPORTS[config.format].parts:
        read = done.read[part.file]
        if part.file not in done.tasks or done.rows[part.file] or not read:
            continue
        reasons = "; ".join(reason for (file, reason), _ in done.refused.most_common() if file == part.file)
        text = f"WARNING: {part.file} has 0 rows: format={config.format} can take none of the {read:,} rows ({reasons})"
        if part.rows == PAIRS:
            text = f"{text}. {single_turn_advice(Path(config.run_dir), config.format)}"
        out.append(text)
    return out


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
