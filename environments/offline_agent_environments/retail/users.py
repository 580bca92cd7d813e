"""Users who talk: one that follows a script, one that says everything at once, and one that a model or callable plays.

A user has `open()`, its first words; `reply(said)`, its answer, or None where it goes; and `state()`, JSON values that
tell its states apart. `copy.copy` is its snapshot.
"""

from __future__ import annotations

import json
import os
import re
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from offline_agent import catalog
from offline_agent.errors import ConfigError
from offline_agent.records import Message, call_message

STOP = "###STOP###"
"""A played user writes it where it has nothing more to say."""

_TIMEOUT = 120.0  # seconds for a played user's answer
_PATIENCE = 3
_MOST_REPLIES = 24

_IDENTITY = re.compile(r"e-?mail|zip|your name|who are you|identi|authenticat|verify")
_CONFIRM = re.compile(r"confirm|yes/no|shall i|should i|proceed|go ahead|is (?:that|this) (?:right|correct)")
_CLOSING = re.compile(r"anything else|any other|something else|further (?:help|question)|good ?bye")
_TRANSFER = re.compile(r"transferred to a human|transfer you")
_DETAILS = (
    ("order", re.compile(r"which order|order (?:number|id)|what order")),
    ("reason", re.compile(r"reason|why")),
    ("payment", re.compile(r"pay|refund|card|method")),
    ("address", re.compile(r"address|where")),
    ("item", re.compile(r"which item|what item|which product|option|variant|what would you")),
)


class User(Protocol):
    """See the module."""

    def open(self) -> str:
        """Return the first words."""

    def reply(self, said: str) -> str | None:
        """Return the answer to what was said; None ends the conversation."""

    def state(self) -> Any:
        """Return JSON values that tell states apart."""


Speaker = Callable[[Mapping[str, Any]], User]


def make_user(user: str, model: str = "default") -> Speaker:
    """Return what makes the user of a scenario.

    Args:
        user: `scripted`, the URL of an OpenAI-compatible server, or `module:callable`.
        model: The server's model.

    Raises:
        ConfigError: It is none of these.
    """
    if user == "scripted":
        return _scripted
    if user.startswith(("http://", "https://")):
        return partial(PlayedUser, partial(_ask_server, user.rstrip("/"), model))
    if ":" not in user:
        raise ConfigError(
            f"env.user: got {user!r}, allowed: scripted, a URL such as http://localhost:8000/v1, module:callable"
        )
    played = catalog.load("env.user", user)
    if not callable(played):
        raise ConfigError(
            f"env.user: {user} is a {type(played).__name__}; it is called as user(instructions, messages)"
        )
    return partial(PlayedUser, played)


def _scripted(scenario: Mapping[str, Any]) -> User:
    return ScriptedUser(scenario) if "requests" in scenario else TellingUser(scenario)


class ScriptedUser:
    """A user with requests: says who they are when asked, tells details when asked, confirms what fits, and goes.

    Args:
        scenario: `identity` (a sentence), `name`, and `requests`: each with `wish` (a sentence); `tells` (detail → a
            sentence, of order, reason, payment, address, item); `needs`: what a description that they confirm must
            name; perhaps `fact`: what they want to know.
    """

    def __init__(self, scenario: Mapping[str, Any]) -> None:
        self._scenario = scenario
        self._at, self._patience, self._confirmed = 0, _PATIENCE, False

    def open(self) -> str:
        """Say the first wish."""
        return f"Hello. {self._request['wish']}"

    def reply(self, said: str) -> str | None:
        """Answer what was asked; see the class."""
        text = said.lower()
        if not text.strip():
            return self._lost()
        if _TRANSFER.search(text):
            return None
        describes = any(str(need).lower() in text for need in self._request["needs"])
        if _IDENTITY.search(text) and not describes:
            return str(self._scenario["identity"])
        if _CONFIRM.search(text) and describes:
            return self._confirm(text)
        if _CLOSING.search(text) or self._told(text):
            return self._next()
        tells = self._request["tells"]
        told = [str(tells[detail]) for detail, pattern in _DETAILS if detail in tells and pattern.search(text)]
        return " ".join(told) if told else self._lost()

    def state(self) -> Any:
        """Return how far it is."""
        return [self._at, self._patience, self._confirmed]

    @property
    def _request(self) -> Mapping[str, Any]:
        requests: Sequence[Mapping[str, Any]] = self._scenario["requests"]
        return requests[self._at]

    def _told(self, text: str) -> bool:
        fact = self._request.get("fact")
        return fact is not None and str(fact).lower() in text

    def _confirm(self, text: str) -> str | None:
        if all(str(need).lower() in text for need in self._request["needs"]):
            self._confirmed = True
            return "Yes, please."
        return self._lost("No, that is not what I want.")

    def _next(self) -> str | None:
        self._confirmed, self._patience = False, _PATIENCE
        if self._at + 1 >= len(self._scenario["requests"]):
            return None
        self._at += 1
        return f"Yes. {self._request['wish']}"

    def _lost(self, word: str = "I do not follow.") -> str | None:
        self._patience -= 1
        return None if self._patience <= 0 else f"{word} {self._request['wish']}"


class TellingUser:
    """A user who says everything at once, agrees to all that is asked, and goes when nothing else is offered.

    Args:
        scenario: `instructions`: texts of tau2: reason_for_call, known_info, unknown_info, task_instructions.
    """

    def __init__(self, scenario: Mapping[str, Any]) -> None:
        self._scenario = scenario
        self._replies, self._silent = 0, 0

    def open(self) -> str:
        """Say everything."""
        return instructions(self._scenario)

    def reply(self, said: str) -> str | None:
        """Agree; go at the offer of anything else, at a transfer, at silence, and in the end."""
        text = said.lower()
        self._replies += 1
        self._silent = 0 if text.strip() else self._silent + 1
        over = _CLOSING.search(text) or _TRANSFER.search(text) or "human agent" in text
        if over or self._silent >= _PATIENCE or self._replies >= _MOST_REPLIES:
            return None
        return "Yes. Please go on; everything you need is in what I said."

    def state(self) -> Any:
        """Return the number of its replies."""
        return [self._replies, self._silent]


class PlayedUser:
    """A user that a callable plays, a model behind it or not.

    Args:
        play: Called as `play(instructions, messages)`, messages as the user's model sees them (`user` is the agent);
            returns the next words, with `STOP` in them where the conversation is over.
        scenario: As `ScriptedUser` or `TellingUser`.
    """

    def __init__(self, play: Callable[[str, list[dict[str, str]]], str], scenario: Mapping[str, Any]) -> None:
        self._play, self._instructions = play, instructions(scenario)
        self._messages: tuple[tuple[str, str], ...] = ()

    def open(self) -> str:
        """Return the first words."""
        words = self._next("Hello. How can I help you?")
        return "Hello." if words is None else words

    def reply(self, said: str) -> str | None:
        """Return the next words; None where they have `STOP` in them."""
        return None if len(self._messages) >= 2 * _MOST_REPLIES else self._next(said)

    def state(self) -> Any:
        """Return all that was said."""
        return [list(message) for message in self._messages]

    def _next(self, said: str) -> str | None:
        told = (*self._messages, ("user", said))
        words = self._play(self._instructions, [{"role": role, "content": text} for role, text in told])
        if not isinstance(words, str):
            raise RuntimeError(f"the played user answered {type(words).__name__}, wanted text")
        self._messages = (*told, ("assistant", words))
        return None if STOP in words else words


def instructions(scenario: Mapping[str, Any]) -> str:
    """Return a scenario in words, as its user knows it."""
    if "requests" in scenario:
        lines = [str(scenario["identity"])]
        for request in scenario["requests"]:
            lines += [str(request["wish"]), *map(str, request["tells"].values())]
        return "\n".join(dict.fromkeys(lines))
    told = scenario.get("instructions") or {}
    if isinstance(told, str):
        return told
    order = ("reason_for_call", "known_info", "unknown_info", "task_instructions")
    return "\n".join(str(told[name]) for name in order if told.get(name))


def _ask_server(url: str, model: str, told: str, messages: list[dict[str, str]]) -> str:
    """Return the next words of a model behind an OpenAI-compatible server.

    Raises:
        RuntimeError: It does not answer: a fault of the environment.
    """
    system = (
        "You play a customer who writes to a service desk; the other side is its agent. Follow these instructions, tell"
        f" only what you are asked, a sentence or two at a time, and make nothing up. Write {STOP} once your requests"
        f" are dealt with, or when you are transferred.\n\n{told}"
    )
    body = {"model": model, "temperature": 0, "messages": [{"role": "system", "content": system}, *messages]}
    headers = {"Content-Type": "application/json"}
    if "OPENAI_API_KEY" in os.environ:
        headers["Authorization"] = f"Bearer {os.environ['OPENAI_API_KEY']}"
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as reply:
            return str(json.loads(reply.read())["choices"][0]["message"]["content"] or "")
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RuntimeError(f"the user's server {url} failed: {type(error).__name__}: {error}") from error


class Turn(NamedTuple):
    """A planned turn of a scripted agent: a call, or words; `request` is what it is about, where it is about one."""

    name: str | None
    arguments: Mapping[str, Any]
    words: str
    request: Mapping[str, Any] | None = None

    def message(self) -> Message:
        """Return the turn as a message."""
        if self.name is None:
            return {"role": "assistant", "content": self.words}
        return call_message(self.name, self.arguments)


def call_of(action: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call's name and arguments, without what a table of rows has added."""
    return {"name": str(action["name"]), "arguments": without_none(action.get("arguments") or {})}


def without_none(value: Any) -> Any:
    """Return nested dicts without keys that are None: Arrow gives each row of a column every key of all rows."""
    if isinstance(value, Mapping):
        return {key: without_none(inner) for key, inner in value.items() if inner is not None}
    return [without_none(inner) for inner in value] if isinstance(value, list | tuple) else value
