"""The environment: list, read, search, calculate, answer; the answer is compared as GAIA compares it."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from offline_agent.envs.base import Environment, ToolError, twin
from offline_agent.errors import did_you_mean
from offline_agent.records import Message, Verdict, call_message
from offline_agent_environments.files_qa import sources
from offline_agent_environments.files_qa.rules import calculated, quasi_exact_match

MOST_LINES = 60
"""Lines that one call shows."""


class FilesQA(Environment):
    """Questions whose answer stands in small files, or is computed from what stands there.

    Args:
        level: Only tasks of this level: 1 (one file), 2 (two files), 3 (three or four); None = all.
        folder: A folder in GAIA's format, which is the test split: `metadata.jsonl` with `Question`, `Final answer`,
            `Level` and `file_name`, and the files beside it.
        unplayable: What becomes of a folder with questions that cannot be asked here: `refuse` it, with the reasons,
            or `leave_out` these questions.
    """

    name = "files_qa"
    system_prompt = (
        "You answer questions from a folder of files. list_files() names them, read_file(path, from_line, lines) shows"
        " lines of one, search(words) the lines of all files that have these words, and calculate(expression) computes."
        " answer(text) hands in your answer and ends the task: a number without unit and without separators of"
        " thousands, a few words, or such values separated by commas; nothing else. Answering without a call gives up."
    )
    one_thread = False
    max_steps = 24
    hindsight = "a wrong answer answers no question that has a wording"
    _answers_differ: ClassVar[bool] = False

    def __init__(self, level: int | None = None, folder: str | None = None, unplayable: str = "refuse") -> None:
        sources.check(level, folder, unplayable)
        self._answer: str | None = None

    @classmethod
    def tasks(
        cls, split: str, level: int | None = None, folder: str | None = None, unplayable: str = "refuse"
    ) -> Iterator[dict[str, Any]]:
        """Yield the tasks of a split; no folder is in two of them.

        Raises:
            ConfigError: An argument is wrong, or the folder has another shape.
        """
        sources.check(level, folder, unplayable)
        return sources.tasks(split, level, folder)

    def reset(
        self, question: str, gold: str, level: int, seed: int | None = None, folder: str | None = None, file: str = ""
    ) -> str:
        """Start a question and return it.

        Args:
            question: The question.
            gold: The right answer.
            level: Its level.
            seed: Of the generated folder.
            folder: The user's folder; None = the generated one.
            file: The question's file there.
        """
        self._files = sources.files(seed, level, folder, file)
        self._question, self._gold, self._answer, self.terminated = question, gold, None, False
        self._seen: frozenset[str] = frozenset()
        return question

    def list_files(self) -> str:
        """List the files with their numbers of lines."""
        self._seen |= {"list"}
        return "\n".join(f"{path} ({len(text.splitlines())} lines)" for path, text in self._files.items())

    def read_file(self, path: str, from_line: int = 1, lines: int = 40) -> str:
        """Read lines of a file.

        Args:
            path: Its name, as list_files names it.
            from_line: The first line, from 1.
            lines: How many lines, at most 60.
        """
        if path not in self._files:
            raise ToolError(f"there is no file {path[:80]!r}.{did_you_mean(path, list(self._files))}")
        found = self._files[path].splitlines()
        if not 1 <= from_line <= len(found) or not 1 <= lines <= MOST_LINES:
            raise ToolError(f"got {lines} lines from {from_line}; allowed: 1 to {MOST_LINES}, from 1 to {len(found)}")
        self._seen |= {f"{path} {from_line} {lines}"}
        more = max(0, len(found) - (from_line - 1 + lines))
        return "\n".join([*found[from_line - 1 :][:lines], f"({more} more lines)"])

    def search(self, words: str) -> str:
        """Search all files for lines that contain every one of some words, in any order and case.

        Args:
            words: The words, such as "PK-113 Nordberg".
        """
        wanted = words.casefold().split()
        self._seen |= {f"search {sorted(wanted)}"}
        hits = [
            f"{path}:{number}: {line}"
            for path, text in self._files.items()
            for number, line in enumerate(text.splitlines(), 1)
            if all(word in line.casefold() for word in wanted)
        ]
        return "\n".join([*hits[:MOST_LINES], f"({max(0, len(hits) - MOST_LINES)} more lines)"])

    def calculate(self, expression: str) -> str:
        """Compute a value.

        Args:
            expression: Numbers, + - * /, brackets, round(x, digits), and days("2026-01-31"), the number of a day, so
                that two can be subtracted.
        """
        self._seen |= {f"calculate {expression}"}
        return calculated(expression)

    def answer(self, text: str) -> str:
        """Answer the question; this ends the task.

        Args:
            text: The answer alone, such as "1250", "Delland" or "Ada Berg, Tom Falk".
        """
        self._answer, self.terminated = text, True
        return "answered"

    def get_reward(self) -> Verdict:
        """Return 1 for the right answer by GAIA's quasi-exact match, else 0; see `rules.quasi_exact_match`."""
        if self._answer is None:
            return Verdict(0.0, False, "quasi_exact_match", "1", {"answer": None})
        return quasi_exact_match(self._answer, self._gold)

    @property
    def fingerprint(self) -> str:
        """A hash of the question, what was looked at, and the answer."""
        state = (self._question, sorted(self._seen), self._answer)
        return hashlib.blake2b(repr(state).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    @classmethod
    def demonstrate(
        cls, task: Mapping[str, Any], messages: Sequence[Message], rng: random.Random, noise: float
    ) -> Message:
        """Return the first call of the task's plan that was not made yet; with noise a word of what was seen last."""
        calls = [call["function"] for message in messages for call in message.get("tool_calls") or ()]
        if calls and rng.random() < noise:
            words = re.findall(r"\w[\w.-]*", str(messages[-1].get("content", ""))) or ["unknown"]
            tool, parameter = rng.choice((("answer", "text"), ("search", "words")))
            return call_message(tool, {parameter: rng.choice(words)})
        made = [(call["name"], dict(call["arguments"])) for call in calls]
        return call_message(*next(call for call in sources.plan(task) if call not in made))

    def __deepcopy__(self, memo: dict[int, Any]) -> FilesQA:
        return twin(self)  # what changes is replaced, never changed in place
