"""Tasks over files: generated ones, and the questions of a user's GAIA folder whose files are texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from offline_agent.envs.task_files import tasks_of
from offline_agent.errors import ConfigError
from offline_agent_environments.adapters import seeds
from offline_agent_environments.files_qa import world

MOST = {"train": 1500, "validation": 150, "test": 150}
"""Generated tasks of a split."""

_FORMATS = "GAIA's metadata.jsonl: Question, Final answer, Level, file_name; perhaps task_id"


def tasks(split: str, level: int | None, folder: str | None) -> Iterator[dict[str, Any]]:
    """Yield a split's tasks as `reset`'s arguments.

    Args:
        split: The split.
        level: Only tasks of this level; None = all, in turn.
        folder: A folder of GAIA's, which is the whole test split; None = generated tasks alone.
    """
    if split == "test" and folder is not None:
        yield from (task for task in questions(folder)[0] if level in (None, task["level"]))
        return
    for number, seed in enumerate(seeds(split, MOST[split])):
        of = level or 1 + number % 3
        made = world.make(seed, of)
        yield {"task_id": f"house-{seed}-{of}", "question": made.question, "gold": made.gold, "level": of, "seed": seed}


@lru_cache(maxsize=8)
def questions(folder: str) -> tuple[list[dict[str, Any]], Counter[str]]:
    """Return the questions of a folder of GAIA's that can be asked here, and how many others there are, by reason.

    Raises:
        ConfigError: It has no `metadata.jsonl`, or one of another shape.
    """

    def read(row: Mapping[str, Any], number: str) -> dict[str, Any]:
        named = {"task_id": str(row.get("task_id", number)), "level": int(row["Level"])}
        if not isinstance(row["Question"], str) or not isinstance(row["Final answer"], str):
            raise ValueError("its Question and its Final answer must be texts")
        return {**named, "question": row["Question"], "gold": row["Final answer"], "folder": folder,
                "file": str(row["file_name"] or "")}  # fmt: skip

    found = tasks_of(str(Path(folder) / "metadata.jsonl"), "env.folder", read, _FORMATS)
    reasons = [(task, _unplayable(task)) for task in found]
    return [task for task, why in reasons if why is None], Counter(why for _, why in reasons if why is not None)


def check(level: int | None, folder: str | None, unplayable: str) -> None:
    """Raise ConfigError where an argument is wrong, or questions can neither be asked nor left out."""
    if level not in (None, 1, 2, 3):
        raise ConfigError(f"env.level: got {level!r}, allowed: 1, 2, 3")
    if unplayable not in ("refuse", "leave_out"):
        raise ConfigError(f"env.unplayable: got {unplayable!r}, allowed: refuse, leave_out")
    if folder is None:
        return
    playable, others = questions(folder)
    if not playable or (others and unplayable == "refuse"):
        more = f"{len(playable)} of {len(playable) + others.total()} questions can be asked here"
        faults = [f"env.folder: {count} of the questions: {why}" for why, count in others.most_common()]
        raise ConfigError([*faults, f"{more}; these alone: env.unplayable=leave_out"])


def files(seed: int | None, level: int, folder: str | None, file: str) -> Mapping[str, str]:
    """Return the files of a task: name → text."""
    return world.make(seed or 0, level).files if folder is None else {file: _text(Path(folder) / file) or ""}


def plan(task: Mapping[str, Any]) -> tuple[world.Call, ...]:
    """Return the expert's calls of a task; of a user's question all that is known is the answer."""
    if task.get("folder") is None:
        return world.make(task["seed"], task["level"]).plan
    return ("list_files", {}), ("read_file", {"path": task["file"]}), ("answer", {"text": task["gold"]})


def _unplayable(task: Mapping[str, Any]) -> str | None:
    """Return why a question cannot be asked here; None where it can."""
    path = Path(task["folder"]) / task["file"]
    if task["gold"].strip() in ("", "?"):
        return "the answer is not public"
    if not task["file"]:
        return "no file; it needs the web, or knowledge"
    readable = path.parent == Path(task["folder"]) and _text(path)
    return None if readable else f"its file is not there, or no text ({path.suffix})"


def _text(path: Path) -> str | None:
    """Return a file's text; None where it is none."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        return None if "\0" in text else text
    except (OSError, UnicodeError):
        return None
