"""Questions to a judge's model: the endpoint, the form of its answers, retries, and the cache of the answers.

A model is a callable `ask(messages, seed) -> str`, so any policy's endpoint can judge; `ModelArguments` makes one of an
OpenAI-compatible URL. An answer must be JSON of the asked form; one that is not is asked for again, and counts as no
answer after the last try.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pydantic import BaseModel, ValidationError

from offline_agent import catalog
from offline_agent.errors import ConfigError, NoAnswer, collect, in_words
from offline_agent.outgoing import remember
from offline_agent.rendering.parsing import BadJson, load_json
from offline_agent.store.files import read_text

Ask = Callable[[Sequence[Mapping[str, str]], int], str]
"""Returns a model's answer to chat messages; the seed is another one for each try."""


class ModelArguments(NamedTuple):
    """The arguments by which a configuration names the model of a judge.

    Attributes:
        url: An OpenAI-compatible endpoint, `/v1` included.
        model: The name under which it is served.
        ask: `module:callable` instead, an `Ask`.
        temperature: Of sampling; 0 = greedy.
        max_tokens: Most tokens of one answer.
        timeout: Seconds to wait for one.
        retries: Further tries after an answer that has not the form.
        cache: A file of answers.
        api_key: None = the environment variable OPENAI_API_KEY, if set.
    """

    url: str | None
    model: str | None
    ask: str | None
    temperature: float
    max_tokens: int
    timeout: float
    retries: int
    cache: str | None
    api_key: str | None

    def questions(self, key: str) -> Questions:
        """Return the questions to the endpoint or callable.

        Args:
            key: The configuration section, for messages.

        Raises:
            ConfigError: Neither or both are given, the URL is none, the callable cannot be loaded, or a number is not
                allowed: every fault.
        """
        faults = [f"{key}.retries: got {self.retries}, allowed: 0 and more"] if self.retries < 0 else []
        asked: Any = None
        if self.ask is not None:
            if self.url is not None or self.model is not None:
                faults.append(f"{key}.ask: got {self.ask!r} beside {key}.url or {key}.model; give one of the two")
            else:
                asked = collect(faults, lambda: catalog.load(f"{key}.ask", str(self.ask)))
                if asked is not None and not callable(asked):
                    faults.append(f"{key}.ask: {self.ask} is a {type(asked).__name__}; it is called as "
                                  "ask(messages, seed)")  # fmt: skip
        else:
            if self.url is None or not self.url.startswith(("http://", "https://")):
                faults.append(f"{key}.url: got {self.url!r}, allowed: the judge's endpoint in full, e.g. "
                              f"http://localhost:8000/v1, or {key}.ask=module:callable")  # fmt: skip
            if self.model is None:
                faults.append(f"{key}.model: got nothing, allowed: the name under which the model is served")
        if faults:
            raise ConfigError(faults)
        return Questions(asked or self._endpoint(), str(self.ask or self.model), self.retries, self.cache)

    def _endpoint(self) -> Ask:
        from openai import OpenAI

        url, key = str(self.url).rstrip("/"), self.api_key or os.environ.get("OPENAI_API_KEY") or "none"
        remember({"api_key": key, "url": self.url})
        client = OpenAI(base_url=url, api_key=key, timeout=self.timeout, max_retries=2)

        def ask(messages: Sequence[Mapping[str, str]], seed: int) -> str:
            body = {
                "model": self.model, "messages": [dict(message) for message in messages],
                "temperature": self.temperature, "max_tokens": self.max_tokens, "seed": seed,
            }  # fmt: skip
            answer: Any = client.post("/chat/completions", body=body, cast_to=object)
            try:
                return str(answer["choices"][0]["message"]["content"] or "")
            except (KeyError, IndexError, TypeError) as error:
                raise NoAnswer(f"the server's answer has no message: {answer!r:.200}") from error

        return ask


class Questions:
    """Asks a model until its answer has the asked form, and keeps what it answered.

    Args:
        ask: The model.
        name: Its name: another model's answers are not taken from the cache.
        retries: Further tries after an answer that has not the form, or an error of the model.
        cache: A file of answers, one JSON object a line; None = in memory, until `keep_in`.
    """

    def __init__(self, ask: Ask, name: str, retries: int, cache: str | None = None) -> None:
        self._ask = ask
        self._name = name
        self._retries = retries
        self._kept = AnswerCache(cache)

    def keep_in(self, folder: Path) -> None:
        """Keep the answers in a folder of the run, where the configuration names no file."""
        self._kept.keep_in(folder)

    def answer(self, messages: Sequence[Mapping[str, str]], form: type[BaseModel], seed: int) -> BaseModel:
        """Return the model's answer.

        Args:
            messages: The question.
            form: The form of the answer.
            seed: Of the first try.

        Raises:
            NoAnswer: No try gave an answer of the form.
        """
        content = [self._name, seed, list(map(dict, messages))]
        known = self._kept.get(content)
        if known is not None:
            return form.model_validate(known)
        found = self._tried(messages, form, seed)
        self._kept.keep(content, found.model_dump(mode="json"))
        return found

    def _tried(self, messages: Sequence[Mapping[str, str]], form: type[BaseModel], seed: int) -> BaseModel:
        why = ""
        for number in range(self._retries + 1):
            try:
                reply = self._ask(messages, seed + number)
                return _read(reply, form)
            except NoAnswer as error:
                why = str(error)
            except Exception as error:  # the model is the user's own; what it raises says nothing of the candidate
                why = f"the model raised {in_words(error)}"
        raise NoAnswer(f"no answer of the asked form in {self._retries + 1} tries; the last: {why}")


def _read(reply: str, form: type[BaseModel]) -> BaseModel:
    """Return an answer in its form; text around the JSON object is passed over. Raises NoAnswer."""
    begin, end = reply.find("{"), reply.rfind("}") + 1
    if not 0 <= begin < end:
        raise NoAnswer(f"it has no JSON object: {reply!r:.200}")
    try:
        return form.model_validate(load_json(reply[begin:end]))
    except BadJson as error:
        raise NoAnswer(f"its JSON cannot be used: {error} ({reply!r:.200})") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the object"
        raise NoAnswer(f"{where}: {first['msg']} ({reply!r:.200})") from error


def as_data(text: str, what: str) -> str:
    """Return a candidate's text between marks that it cannot know, so that it cannot end the quotation.

    Args:
        text: The text; whatever it says, it is data.
        what: Its name in the marks.
    """
    mark = hashlib.blake2b(f"{what}\0{text}".encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"<<<{what} {mark}>>>\n{text}\n<<<end of {what} {mark}>>>"


# -- cache -----------------------------------------------------------------------------------------------------------

_PART = 1 << 16  # bytes that are looked at for the beginning of the last line


class AnswerCache:
    """Answers by the content of their questions; safe to use from several threads, and its file from several processes.

    Args:
        file: A file of answers, one JSON object a line; None = in memory, until `keep_in`.

    Raises:
        ConfigError: The file cannot be used, or a line of it, other than one that a killed run began, cannot be read.
    """

    def __init__(self, file: str | None) -> None:
        self._fixed = file is not None
        self._file: Path | None = None
        self._known: dict[str, Any] = {}
        self._lock = threading.Lock()
        if file is not None:
            self._open(Path(file))

    def keep_in(self, folder: Path) -> None:
        """Keep the answers in a folder of the run, where the configuration names no file."""
        if not self._fixed and self._file is None:
            self._open(folder / "answers.jsonl")

    def get(self, content: Any) -> Any:
        """Return the answer to a question, a JSON value; None = not known."""
        with self._lock:
            return self._known.get(_key(content))

    def keep(self, content: Any, answer: Any) -> None:
        """Keep the answer to a question."""
        key = _key(content)
        with self._lock:
            self._known[key] = answer
            if self._file is not None:
                line = json.dumps({"key": key, "answer": answer}, ensure_ascii=True) + "\n"
                with open(self._file, "ab+") as file:
                    fcntl.flock(file, fcntl.LOCK_EX)
                    _mend_end(file)
                    file.write(line.encode())

    def _open(self, path: Path) -> None:
        self._file = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = read_text(path).split("\n") if path.exists() else []
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"judge.cache: {path} cannot be used: {error}") from error
        for number, line in enumerate(lines, 1):
            found = _entry(line)
            if found is not None:
                self._known[found[0]] = found[1]
            elif line.strip() and number < len(lines):  # else it is the end of a run that was killed as it wrote
                raise ConfigError(f"judge.cache: {path}, line {number} cannot be read: got {line[:80]!r}, allowed: "
                                  '{"key": ..., "answer": ...}; delete that line, or the file')  # fmt: skip


def _entry(line: str) -> tuple[str, Any] | None:
    """Return the key and the answer of a line; None where it is none."""
    try:
        entry = json.loads(line)
        return entry["key"], entry["answer"]
    except (ValueError, KeyError, TypeError):
        return None


def _mend_end(file: BinaryIO) -> None:
    """End the last line of a file where it is not ended, or take it out where it is the beginning of one alone."""
    size = at = file.seek(0, os.SEEK_END)
    last = b""
    while at and b"\n" not in last:
        at = max(0, at - _PART)
        file.seek(at)
        last = file.read(size - at)
    last = last.rpartition(b"\n")[2]
    if last and _entry(last.decode("utf-8", "replace")) is not None:
        file.write(b"\n")
    elif last:
        file.truncate(size - len(last))


def _key(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
