"""The environment: search, read, answer; the answer is compared as SQuAD compares it."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from offline_agent.envs.base import Environment, ToolError, twin
from offline_agent.errors import did_you_mean
from offline_agent.judges.verifiers import exact_match, f1, normalise
from offline_agent.records import Message, Verdict, call_message
from offline_agent_environments.search_qa import sources, world
from offline_agent_environments.search_qa.passages import Collection, Passage, Retriever


def next_turn(task: Mapping[str, Any], messages: Sequence[Message], rng: random.Random, noise: float) -> Message:
    """Return the next assistant message.

    Args:
        task: `reset`'s arguments.
        messages: The conversation so far.
        rng: The source of carelessness.
        noise: Probability, in [0, 1], of a careless turn: another passage, or an answer taken from what was read last.
    """
    made = [call["function"] for message in messages for call in message.get("tool_calls") or ()]
    read = {str(call["arguments"].get("title")) for call in made if call["name"] == "read"}
    last = str(messages[-1].get("content", "")) if messages else ""
    wanted = [title for title in task.get("support") or () if title not in read]
    searched = bool(made) and made[-1]["name"] == "search"
    hits = re.findall(r"^\d+\. (.+?): ", last, re.MULTILINE) if searched else []
    if rng.random() < noise:
        if hits:
            return call_message("read", {"title": rng.choice(hits)})
        if made and rng.random() < 0.5:
            return call_message("answer", {"text": _guess(last, rng)})
    if not wanted and (made or not task.get("support")):
        return call_message("answer", {"text": task["gold"][0]})
    if wanted[0] in hits:
        return call_message("read", {"title": wanted[0]})
    if searched and made[-1]["arguments"].get("query") == wanted[0]:
        return call_message("read", {"title": wanted[0]})  # not among the first hits, and still there by its title
    return call_message("search", {"query": wanted[0]})


def _guess(text: str, rng: random.Random) -> str:
    """Return a name that stands in the text."""
    names = re.findall(r"(?:[A-Z][\w-]+)(?: (?:of |the )?[A-Z][\w-]+)*", text)
    return rng.choice(names) if names else "unknown"


HITS = 5
"""Passages that a search shows."""

_BEGINNING = 60  # characters of a hit that are shown


class SearchQA(Environment):
    """Questions whose answer stands in several passages that have to be found and read.

    Args:
        questions: HotpotQA's JSON, or JSON or JSONL with `question`, `answer` (a text or several) and perhaps
            `supporting_facts` (titles) and `split`; None = the embedded world.
        passages: JSON with `{title: text or sentences}`, or rows with `title` and `text`; None = the contexts of the
            questions.
        retriever: URL of a retriever in place of the passages; see `passages.Retriever`.
        metric: `exact_match`, or `f1`: then the score is the F1 of the words; success needs equality in both.
        support: `required`: the answer counts only where every supporting passage was read; `free`: it counts always.
    """

    name = "search_qa"
    system_prompt = (
        "You answer questions from a collection of passages. search(query) lists passages, read(title) shows one, and"
        " answer(text) gives your answer: a name or a few words, nothing else. The answer usually needs several"
        " passages, each of which names the next. Answering without a call gives up."
    )
    one_thread = False
    max_steps = 16
    _answers_differ: ClassVar[bool] = False

    def __init__(
        self,
        questions: str | None = None,
        passages: str | None = None,
        retriever: str | None = None,
        metric: Literal["exact_match", "f1"] = "exact_match",
        support: Literal["free", "required"] = "free",
    ) -> None:
        sources.check(questions, passages, retriever)
        self._retriever = None if retriever is None else Retriever(retriever)
        self._metric, self._need_support = metric, support == "required"
        self._own_world = questions is None
        self._question: str | None = None

    @classmethod
    def tasks(
        cls, split: str, questions: str | None = None, passages: str | None = None, retriever: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield the questions of a split; no answer is in two splits, unless the file names the splits.

        Raises:
            ConfigError: A file is missing or has another shape, or the arguments do not go together.
        """
        sources.check(questions, passages, retriever)
        return sources.tasks(split, questions, passages)

    def reset(
        self, question: str, gold: Sequence[str], support: Sequence[str] = (), passages: str | None = None, **_: Any
    ) -> str:
        """Start a question and return it.

        Args:
            question: The question.
            gold: The accepted answers.
            support: Titles of the passages that together contain the answer.
            passages: The file of passages; None = the embedded ones.
            **_: Other columns of a data set. Not used.
        """
        self._collection: Collection | None = None if self._retriever is not None else sources.find(passages)
        self._question, self._gold, self._support = question, list(gold), tuple(support or ())
        self._found: dict[str, Passage] = {}
        self._read: tuple[str, ...] = ()
        self._answer: str | None = None
        self.terminated = False
        return question

    def search(self, query: str) -> str:
        """Search the passages; lists the best ones, each with its title and its beginning.

        Args:
            query: What to look for, in a few words.
        """
        self._open()
        source = self._retriever or self._collection
        assert source is not None  # reset sets one of them
        hits = source.search(query, HITS)
        if self._retriever is not None:
            self._found = {**self._found, **{hit.title.casefold(): hit for hit in hits}}
        lines = [f"{n}. {hit.title}: {_beginning(hit.text)}" for n, hit in enumerate(hits, 1)]
        return "\n".join(lines) if lines else "nothing was found"

    def read(self, title: str) -> str:
        """Read a passage.

        Args:
            title: Its title, as search names it.
        """
        self._open()
        known = self._found if self._collection is None else self._collection.by_title
        passage = known.get(title.strip().casefold())
        if passage is None:
            near = did_you_mean(title, [one.title for one in known.values()]) if len(known) < 5000 else ""
            raise ToolError(f"there is no passage {title[:80]!r}; search for it first.{near}")
        self._read = (*self._read, passage.title)
        return passage.text

    def answer(self, text: str) -> str:
        """Answer the question; this ends it.

        Args:
            text: The answer alone, such as "Delland".
        """
        self._open()
        self._answer, self.terminated = text, True
        return "answered"

    def get_reward(self) -> Verdict:
        """Return 1 for an accepted answer, compared without case, punctuation and articles; see the class."""
        if self._question is None:
            raise RuntimeError("search_qa: get_reward before reset")
        name = f"search_qa.{self._metric}"
        read = [title for title in self._support if title in self._read]
        evidence: dict[str, Any] = {"answer": self._answer, "support": len(self._support), "support_read": len(read)}
        if self._answer is None:
            return Verdict(0.0, False, name, self.version, evidence)
        verdict = exact_match(self._answer, self._gold)
        if self._metric == "f1" and verdict.score is not None:
            verdict = f1(self._answer, self._gold)
        if verdict.score is None:
            return Verdict(None, None, name, self.version, evidence, verdict.error)
        evidence |= dict(verdict.evidence)
        if self._need_support and len(read) < len(self._support):
            return Verdict(0.0, False, name, self.version, {**evidence, "support_missing": True})
        return Verdict(verdict.score, verdict.success, name, self.version, evidence)

    @property
    def fingerprint(self) -> str:
        """A hash of the question, what was found and read, and the answer."""
        state = (self._question, sorted(self._found), sorted(set(self._read)), self._answer, self.terminated)
        return hashlib.blake2b(repr(state).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    @property
    def achieved_goal(self) -> dict[str, Any] | None:
        """A question of the embedded world, of the same split, that the answer answers from passages that were read."""
        if self._answer is None or not self._own_world or self._question is None:
            return None
        split = world.split_of(self._gold[0])
        if world.split_of(self._answer) != split:
            return None
        for question in world.by_answer().get(normalise(self._answer), ()):
            if set(question.support) <= set(self._read):
                return sources.task_of(question)
        return None

    @classmethod
    def demonstrate(
        cls, task: Mapping[str, Any], messages: Sequence[Message], rng: random.Random, noise: float
    ) -> Message:
        """Return the scripted reader's next call; see `next_turn`."""
        return next_turn(task, messages, rng, noise)

    def __deepcopy__(self, memo: dict[int, Any]) -> SearchQA:
        return twin(self)  # what changes is replaced, never changed in place

    def _open(self) -> None:
        if self._question is None:
            raise RuntimeError("search_qa: reset the environment first")
        if self.terminated:
            raise ToolError("the question is answered")


def _beginning(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _BEGINNING else f"{line[:_BEGINNING]}…"
