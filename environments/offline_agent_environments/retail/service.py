"""Service desks of any domain: a JSON database, a user who talks, goal actions, and the verdict on both.

A domain is a subclass whose public methods are its tools. They read records with `_record` and change the copies that
`_edit` gives; the base class keeps the changes apart from the database, so that a snapshot copies nothing.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from offline_agent.envs.base import Environment, ToolError
from offline_agent.errors import ConfigError
from offline_agent.judges.verifiers import goal_state
from offline_agent.records import Verdict
from offline_agent_environments.retail import sources
from offline_agent_environments.retail.users import make_user

Changes = Mapping[tuple[str, str], Any]

NOT_JUDGED = "the task has an assertion in natural language, which only a language model can judge; it is left out"


class ServiceDesk(Environment):
    """A conversation with a user about records of a database; see the module.

    Subclasses are given `domain`, a folder in tau2's JSON form (Barres et al. 2025): `db.json`, `tasks.json`, perhaps
    `policy.md` and `split_tasks.json`, and `user`, which plays the user: `scripted`, the URL of an OpenAI-compatible
    server, or `module:callable` (`users.PlayedUser`).

    Args:
        domain: The folder; None = what the subclass embeds.
        user: Who plays the user.
        user_model: The model's name, where `user` is a URL.
    """

    one_thread = False
    hindsight = "what a conversation changed in the database is no request that a user has made"
    instructions: ClassVar[str] = ""

    def __init__(self, domain: str | None = None, user: str = "scripted", user_model: str = "default") -> None:
        self._speaker = make_user(user, user_model)
        if domain is not None:
            policy = sources.folder(domain).policy
            if policy is not None:
                self.__dict__["system_prompt"] = f"{self.instructions}\n\n{policy}".strip()
        self._user: Any = None

    @classmethod
    def tasks(cls, split: str, domain: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield the tasks of a split.

        Raises:
            ConfigError: The folder lacks a file, or one has another shape.
        """
        if domain is not None:
            return sources.tasks(split, domain)
        return cls._embedded_tasks(split)

    def reset(
        self,
        scenario: Mapping[str, Any],
        actions: Sequence[Mapping[str, Any]],
        communicate: Sequence[str] = (),
        basis: Sequence[str] = ("DB", "COMMUNICATE"),
        domain: str | None = None,
        **_: Any,
    ) -> str:
        """Begin a conversation and return the user's first words.

        Args:
            scenario: Who the user is and what they want; see `users`.
            actions: Calls that lead to the goal state: `name` and `arguments`.
            communicate: What has to be said to the user.
            basis: The parts of the verdict: DB, COMMUNICATE; others are named in its evidence.
            domain: The folder in tau2's form; None = the embedded database.
            **_: Other columns of a data set. Not used.
        """
        self._base = self._embedded() if domain is None else sources.folder(domain).database
        self._actions = [sources.call_of(action) for action in actions]
        self._communicate, self._basis = tuple(communicate), frozenset(basis)
        self._key = json.dumps([domain, self._actions], sort_keys=True)
        self._changes: Changes = {}
        self._said: tuple[str, ...] = ()
        self._user = self._speaker(sources.without_none(scenario))
        self.terminated = False
        return self._user.open()

    def get_reward(self) -> Verdict:
        """Return 1 where the database is in the goal state and what has to be said was said, else 0."""
        if self._user is None:
            raise RuntimeError(f"{type(self).__name__}: get_reward before reset")
        goal, refused = _goal(self, self._key)
        verdict = goal_state(_tree(self._changes, self._base), _tree(goal, self._base))
        heard = " ".join(self._said).lower().replace(",", "")
        unsaid = [fact for fact in self._communicate if fact.lower().replace(",", "") not in heard]
        counted = unsaid if "COMMUNICATE" in self._basis else []
        evidence: dict[str, Any] = {
            "database": verdict.success,
            "unsaid": unsaid,
            "said_counts": "COMMUNICATE" in self._basis,
        }
        if not verdict.success:
            evidence["differences"] = dict(verdict.evidence)
        if refused:
            evidence["gold_refused"] = refused
        if "NL_ASSERTION" in self._basis:
            evidence["not_judged"] = NOT_JUDGED
        if verdict.score is None:
            return Verdict(None, None, "service.goal", self.version, evidence, verdict.error)
        success = bool(verdict.success) and not counted
        return Verdict(float(success), success, "service.goal", self.version, evidence)

    @property
    def fingerprint(self) -> str:
        """A hash of the changes, of what was said, and of the user's state."""
        changes = sorted((list(key), record) for key, record in self._changes.items())
        state = json.dumps([changes, self._said, self._user.state(), self.terminated], sort_keys=True, default=str)
        return hashlib.blake2b(state.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    def __deepcopy__(self, memo: dict[int, Any]) -> ServiceDesk:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)  # changes are replaced, never changed in place
        other._user = copy.copy(self._user)
        return other

    def _reply(self, text: str) -> str | None:
        """Tell the user; return what they answer, or None where they go."""
        self._said = (*self._said, text)
        answer = self._user.reply(text)
        if answer is None:
            self.terminated = True
        return answer

    @classmethod
    def _embedded_tasks(cls, split: str) -> Iterator[dict[str, Any]]:
        raise ConfigError(f"{cls.__name__} embeds no tasks; name a folder with env.domain")

    @classmethod
    def _embedded(cls) -> Mapping[str, Any]:
        raise ConfigError(f"{cls.__name__} embeds no database; name a folder with env.domain")

    def _record(self, table: str, key: str) -> Mapping[str, Any]:
        """Return a record as it is now, to be read only.

        Raises:
            ToolError: There is none.
        """
        found = self._changes.get((table, key))
        if found is None:
            found = self._base[table].get(key)
        if found is None:
            raise ToolError(f"there is no {key[:60]!r} among the {table}")
        return found  # type: ignore[no-any-return]

    def _edit(self, table: str, key: str) -> dict[str, Any]:
        """Return a copy of a record that stands for it from now on; check everything before it is taken."""
        record: dict[str, Any] = copy.deepcopy(dict(self._record(table, key)))
        self._changes = {**self._changes, (table, key): record}
        return record


def _goal(desk: ServiceDesk, key: str) -> tuple[Changes, list[str]]:
    """Return the changes of the goal actions, and those of them that the tools refuse."""
    cache = _goals.setdefault(type(desk), {})
    if key not in cache:
        if len(cache) > 4096:
            cache.clear()
        fresh = object.__new__(type(desk))
        fresh.__dict__.update(desk.__dict__)
        fresh._changes, fresh.terminated = {}, False
        refused = []
        for call in desk._actions:
            try:
                getattr(fresh, call["name"])(**call["arguments"])
            except (ToolError, ValueError, TypeError, LookupError, AttributeError) as error:
                refused.append(f"{call['name']}: {error}")
        cache[key] = fresh._changes, refused
    return cache[key]


_goals: dict[type, dict[str, tuple[Changes, list[str]]]] = {}


def _tree(changes: Changes, base: Mapping[str, Any]) -> dict[str, Any]:
    """Return what differs from the database: table → key → record."""
    tree: dict[str, Any] = {}
    for (table, key), record in changes.items():
        if record != base[table].get(key):
            tree.setdefault(table, {})[key] = record
    return tree
