"""Questions and passages of users: HotpotQA's JSON, JSON lines, and files of passages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from offline_agent.envs.task_files import tasks_of
from offline_agent.errors import ConfigError
from offline_agent_environments.search_qa import world
from offline_agent_environments.search_qa.passages import Collection, Passage
from offline_agent_environments.task_files import given_split, json_file

FORMATS = "question, answer (a text or several), perhaps supporting_facts and split; or HotpotQA's, with context"
MOST = {"train": 2000, "validation": 200, "test": 200}
"""Questions of the embedded world in a split."""


def tasks(split: str, questions: str | None, passages: str | None) -> Iterator[dict[str, Any]]:
    """Yield a split's tasks as `reset`'s arguments.

    Args:
        split: The split.
        questions: A file of questions; None = those of the embedded world.
        passages: A file of passages; None = the embedded ones, or those of the questions' file.

    Raises:
        ConfigError: A file is missing or has another shape.
    """
    if questions is not None:
        for row in _rows(questions):
            if row["split"] == split:
                yield {
                    **{name: value for name, value in row.items() if name != "split"},
                    "passages": passages or questions,
                }
        return
    count = 0
    for question in world.questions():
        if world.split_of(question.answer) == split and count < MOST[split]:
            count += 1
            yield task_of(question, f"world-{split}-{count}")


def task_of(question: world.Question, task_id: str | None = None) -> dict[str, Any]:
    """Return a question of the embedded world as `reset`'s arguments."""
    named = {} if task_id is None else {"task_id": task_id}
    return {**named, "question": question.text, "gold": [question.answer], "support": list(question.support)}


def check(questions: str | None, passages: str | None, retriever: str | None) -> None:
    """Raise ConfigError where a file is missing or has another shape, or the arguments do not go together."""
    faults = []
    if retriever is not None and not retriever.startswith(("http://", "https://")):
        faults.append(f"env.retriever: got {retriever!r}, allowed: a URL, such as http://localhost:8001/search")
    if questions is None and (passages is not None or retriever is not None):
        key = "passages" if passages is not None else "retriever"
        faults.append(f"env.{key}: is given without env.questions, whose answers are to be found there")
    if passages is not None and retriever is not None:
        faults.append("env.retriever: is given together with env.passages; leave one of them out")
    if faults:
        raise ConfigError(faults)
    if questions is not None:
        _rows(questions)
        if retriever is None:
            find(passages or questions)


def find(passages: str | None) -> Collection:
    """Return the passages of a task; raises ConfigError where the file cannot be used."""
    return world.collection() if passages is None else _collection(passages)


@lru_cache(maxsize=8)
def _collection(path: str) -> Collection:
    found: dict[str, Passage] = {}
    for title, text in _passages(json_file(Path(path), "env.passages"), path):
        found.setdefault(title.casefold(), Passage(title, text))
    if not found:
        raise ConfigError(f"env.passages: {path!r} has no passages")
    return Collection(list(found.values()))


def _passages(data: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield titles and texts of `{title: text or sentences}`, of rows with both, or of HotpotQA's contexts."""
    if isinstance(data, Mapping):
        for title, text in data.items():
            yield str(title), _text(text, path)
        return
    for number, row in enumerate(data if isinstance(data, list) else ()):
        if isinstance(row, Mapping) and "context" in row:
            for one in row["context"]:
                if not isinstance(one, list) or len(one) != 2:
                    raise _shape(path, f"the context of question {number} is no list of [title, sentences]")
                yield str(one[0]), _text(one[1], path)
        elif isinstance(row, Mapping) and ("text" in row or "contents" in row):
            text = _text(row.get("text", row.get("contents")), path)
            title = row.get("title") or text.partition("\n")[0]
            yield str(title).strip('"'), text
        else:
            raise _shape(path, f"row {number} has neither title and text nor a context")


def _text(text: Any, path: str) -> str:
    if isinstance(text, str):
        return text
    if isinstance(text, list) and all(isinstance(one, str) for one in text):
        return "".join(one if one[:1].isspace() or not i else f" {one}" for i, one in enumerate(text))
    raise _shape(path, f"a passage is {type(text).__name__}, not a text or a list of sentences")


def _shape(path: str, told: str) -> ConfigError:
    return ConfigError(
        f'env.passages: {path!r}: {told}; allowed: {{"TITLE": "TEXT" or ["SENTENCE", ...]}}, rows '
        '{"title": ..., "text": ...}, or questions in HotpotQA\'s format with their context'
    )


@lru_cache(maxsize=8)
def _rows(path: str) -> tuple[dict[str, Any], ...]:
    def read(row: Mapping[str, Any], number: str) -> dict[str, Any]:
        answer = row.get("answer", row.get("gold", row.get("golden_answers")))
        gold = [answer] if isinstance(answer, str) else answer
        if not isinstance(row["question"], str) or not _texts(gold) or not gold:
            raise ValueError("it needs a text question and an answer, a text or several")
        facts = row.get("supporting_facts") or row.get("support") or []
        titles = list(dict.fromkeys(str(fact[0]) if isinstance(fact, list) and fact else str(fact) for fact in facts))
        own = f"{Path(path).stem}-{int(number.removeprefix('row ')) - 1}"
        return {
            "task_id": str(row.get("_id") or row.get("id") or row.get("task_id") or own),
            "question": row["question"],
            "gold": gold,
            "support": titles,
            "split": given_split(row) or world.split_of(str(gold[0])),
        }

    return tuple(tasks_of(path, "env.questions", read, FORMATS))


def _texts(value: Any) -> bool:
    return isinstance(value, Iterable) and all(isinstance(one, str) for one in value)
