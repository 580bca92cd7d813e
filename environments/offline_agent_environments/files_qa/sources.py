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

LEVELS = (1, 2, 3)
MOST = {"train": 1500, "validation": 150, "test": 150}
"""Generated tasks of a split."""

_LARGEST = 2**20  # bytes of a user's file
_FORMATS = "GAIA's metadata.jsonl: Question, Final answer, Level, file_name; perhaps task_id"


def tasks(split: str, level: int | None, folder: str | None) -> Iterator[dict[str, Any]]:
    """Yield a split's tasks as `reset`'s arguments.

    Args:
        split: The split.
        level: Only tasks of this level; None = all, in turn.
        folder: A folder of GAIA's, which is the whole test split; None = generated tasks alone.

    Raises:
        ConfigError: The folder has another shape, or no question of that level.
    """
    if split == "test" and folder is not None:
        found = [task for task in questions(folder)[0] if level in (None, task["level"])]
        if not found:
            raise ConfigError(f"env.folder: {folder!r} has no question of level {level} that can be asked here")
        yield from found
        return
    for number, seed in enumerate(seeds(split, MOST[split])):
        of = level or LEVELS[number % len(LEVELS)]
        made = world.make(seed, of)
        yield {"task_id": f"house-{seed}-{of}", "question": made.question, "gold": made.gold, "level": of, "seed": seed}


@lru_cache(maxsize=8)
def questions(folder: str) -> tuple[list[dict[str, Any]], Counter[str]]:
    """Return the questions of a folder of GAIA's that can be asked here, and how many others there are, by reason.

    Raises:
        ConfigError: It has no `metadata.jsonl`, or one of another shape.
    """

    def read(row: Mapping[str, Any], number: str) -> dict[str, Any]:
        question, gold, level, file = row["Question"], row["Final answer"], int(row["Level"]), row["file_name"] or ""
        if not isinstance(question, str) or not isinstance(gold, str) or level not in LEVELS:
            raise ValueError("it needs a text Question, a text Final answer, and a Level from 1 to 3")
        return {"task_id": str(row.get("task_id") or number), "question": question, "gold": gold, "level": level,
                "folder": folder, "file": str(file)}  # fmt: skip

    found = tasks_of(str(Path(folder) / "metadata.jsonl"), "env.folder", read, _FORMATS)
    reasons = [(task, _unplayable(task)) for task in found]
    return [task for task, why in reasons if why is None], Counter(why for _, why in reasons if why is not None)


def check(folder: str, leave_out: bool) -> None:
    """Raise ConfigError where a folder cannot be used, or questions of it can neither be asked here nor left out."""
    playable, others = questions(folder)
    if others and not (leave_out and playable):
        faults = [f"env.folder: {count} question{'s have' if count > 1 else ' has'} {why}"
                  for why, count in others.most_common()]  # fmt: skip
        more = f"{len(playable)} of {len(playable) + others.total()} questions can be asked here"
        raise ConfigError([*faults, f"{more}: env.unplayable=leave_out asks these" if playable else more])


@lru_cache(maxsize=256)
def files(seed: int | None, level: int, folder: str | None, file: str) -> Mapping[str, str]:
    """Return the files of a task: name → text."""
    if folder is None:
        assert seed is not None  # a task has the one or the other
        return world.make(seed, level).files
    text = _text(Path(folder) / file)
    if text is None:
        raise ConfigError(f"env.folder: {file!r} is no file of text in {folder!r} any more")
    return {file: text}


def plan(task: Mapping[str, Any]) -> list[world.Call]:
    """Return the expert's calls of a task; of a user's question all that is known is the answer."""
    if task.get("folder") is None:
        return list(world.make(task["seed"], task["level"]).plan)
    look = ("read_file", {"path": task["file"], "from_line": 1, "lines": 40})
    return [("list_files", {}), look, ("answer", {"text": task["gold"]})]


def _unplayable(task: Mapping[str, Any]) -> str | None:
    """Return why a question cannot be asked here; None where it can."""
    path = Path(task["folder"]) / task["file"]
    if task["gold"].strip() in ("", "?"):
        return "an answer that is not public"
    if not task["file"]:
        return "no file, but needs the web or knowledge"
    if path.parent != Path(task["folder"]) or not path.is_file():
        return "a file that is not in the folder"
    return None if _text(path) is not None else f"a file that is no text of at most 1 MiB ({path.suffix})"


def _text(path: Path) -> str | None:
    """Return a file's text; None where it is none, or too long."""
    try:
        if path.stat().st_size > _LARGEST:
            return None
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeError):
        return None
    return None if "\0" in text else text
