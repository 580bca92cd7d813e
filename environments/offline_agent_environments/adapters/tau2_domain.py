"""Domains of a tau2-bench checkout: the environment, the tasks, and the state that a task's gold actions lead to."""

from __future__ import annotations

import copy
import hashlib
import importlib
import importlib.util
import inspect
import json
import os
import sys
import types
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from offline_agent.errors import ConfigError, did_you_mean
from offline_agent.seeding import derive_seed

_WHERE = "git clone https://github.com/sierra-research/tau2-bench, and name its folder with env.checkout="
_SPLIT = ("train", "test")


class Gold(NamedTuple):
    """The end of a task's gold actions.

    Attributes:
        hashes: Of the agent's and of the user's database.
        refused: The actions that a tool refused, with its words.
        raised: Number of an assertion that raises there, from 0 → the error's text.
    """

    hashes: tuple[str | None, str | None]
    refused: tuple[str, ...]
    raised: Mapping[int, str]


class Domain:
    """A domain of a checkout; `domain` keeps one for each set of arguments.

    Args:
        name: A folder of `tau2.domains`.
        checkout: The checkout's folder; None = the installed package.
        options: Arguments of the domain's `get_environment`.
        subset: A list of the checkout's task ids whose tasks are divided; None = its `train` and `test`.

    Attributes:
        environment: A fresh environment, never changed.
        hashes: Of its databases.
        tasks: The tasks that something without a language model judges, by id.
        refused: The ids of the others.
        splits: Split → ids.
        version: A hash of policy, tools, databases and tasks.

    Raises:
        ConfigError: There is no such checkout, domain or subset, or a module that it needs is missing.
    """

    def __init__(self, name: str, checkout: str | None, options: Mapping[str, Any], subset: str | None) -> None:
        package = enter(checkout)
        module = _module(name, package)
        make = module.get_environment
        if "read_log_allowlist" in inspect.signature(make).parameters:
            raise ConfigError(
                f"env: tau2:{name} builds an environment for each task with arguments that tau2's runner derives from "
                f"it, which is not supported; allowed: {', '.join(one for one in _names(package) if one != name)}"
            )
        allowed = inspect.signature(make).parameters
        if unknown := [key for key in options if key not in allowed or key == "solo_mode"]:
            names = ", ".join(key for key in allowed if key not in ("db", "user_db", "solo_mode")) or "none"
            raise ConfigError(f"env.options: got {unknown[0]!r}, allowed: {names} (of {name}'s get_environment)")
        self.name, self.environment = name, make(**options)
        self.hashes: tuple[str | None, str | None] = hashes(self.environment)
        listed = _listed(module, name, subset)
        self.tasks = {str(task.id): task for task in listed if _judged(task)}
        self.refused = tuple(str(task.id) for task in listed if not _judged(task))
        self.splits = _splits(getattr(module, "get_tasks_split", dict)() if subset is None else None, self.tasks)
        self.version = self._version()
        self._golds: dict[str, Gold] = {}

    def task(self, task_id: str) -> Any:
        """Return a task; raises ValueError where there is none that is judged."""
        if task_id not in self.tasks:
            why = "nothing but a language model judges it" if task_id in self.refused else "there is no such task"
            raise ValueError(f"tau2:{self.name} has no task {task_id!r}: {why}")
        return self.tasks[task_id]

    def at_start(self, task: Any) -> Any | None:
        """Return a task's environment at its start, one of its own; None where that is the domain's."""
        state = task.initial_state
        if state is None:
            return None
        environment = copy.deepcopy(self.environment)
        environment.set_state(state.initialization_data, state.initialization_actions, state.message_history or [])
        return environment

    def gold(self, task: Any) -> Gold:
        """Return the end of a task's gold actions, as tau2's evaluator reaches it."""
        key = str(task.id)
        if key not in self._golds:
            environment, refused = self.at_start(task) or copy.deepcopy(self.environment), []
            for action in task.evaluation_criteria.actions or ():
                try:
                    environment.make_tool_call(action.name, requestor=action.requestor, **action.arguments)
                except Exception as error:  # the evaluator goes on, too
                    refused.append(f"{action.name}: {error}")
            reached, raised = hashes(environment), {}
            for number, one in enumerate(task.evaluation_criteria.env_assertions or ()):
                try:
                    environment.run_env_assertion(one, raise_assertion_error=False)
                except Exception as error:  # the verdict tells it where the assertion counts
                    raised[number] = str(error)
            self._golds[key] = Gold(reached, tuple(refused), raised)
        return self._golds[key]

    def _version(self) -> str:
        made = self.environment
        facts = [made.get_policy(), [tool.openai_schema for tool in made.get_tools()], self.hashes]
        facts.append([task.model_dump(mode="json") for task in self.tasks.values()])
        told = json.dumps(facts, sort_keys=True, default=str).encode("utf-8", "surrogatepass")
        return hashlib.blake2b(told, digest_size=6).hexdigest()


def domain(
    name: str, checkout: str | None = None, options: Mapping[str, Any] | None = None, subset: str | None = None
) -> Domain:
    """Return a domain, loaded once; see `Domain`."""
    if not isinstance(options or {}, Mapping):
        raise ConfigError(f"env.options: got {options!r}, allowed: arguments of the domain's get_environment by name")
    return _domain(name, checkout, json.dumps(dict(options or {}), sort_keys=True), subset)


@lru_cache(maxsize=8)
def _domain(name: str, checkout: str | None, options: str, subset: str | None) -> Domain:
    try:
        return Domain(name, checkout, json.loads(options), subset)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"env: tau2:{name} needs the module {error.name!r}, which is not installed: install the checkout's "
            "requirements in an interpreter of its own (pip install CHECKOUT) and name it with env.python=PATH"
        ) from error
    except FileNotFoundError as error:
        raise ConfigError(f"env: tau2:{name}: the checkout lacks the file {error.filename!r}") from error


def hashes(environment: Any) -> tuple[str | None, str | None]:
    """Return the hashes of the agent's and of the user's database; None where there is none."""
    return tuple(
        None if kit is None or kit.db is None else kit.get_db_hash()
        for kit in (environment.tools, environment.user_tools)
    )  # type: ignore[return-value]


def enter(checkout: str | None) -> Path:
    """Make `tau2`'s modules importable, without its agents and their clients; return the package's folder.

    The package's own `__init__` imports all of them; here a bare module stands for it.

    Raises:
        ConfigError: It is no checkout, or another one was imported before.
    """
    if checkout is None:
        known = sys.modules.get("tau2")
        spec = None if known is not None else importlib.util.find_spec("tau2")
        found = list(getattr(known, "__path__", None) or (spec and spec.submodule_search_locations) or ())
        if not found:
            raise ConfigError(f"env.checkout: none is named, and the package tau2 is not installed; {_WHERE}PATH")
        package = Path(found[0])
    else:
        package = Path(os.path.expanduser(str(checkout))).absolute() / "src" / "tau2"
    if not (package / "domains").is_dir() or not (package / "environment").is_dir():
        got = f"the package tau2 of {package}" if checkout is None else repr(checkout)
        raise ConfigError(f"env.checkout: got {got}, which is no tau2-bench (no src/tau2/domains in it); {_WHERE}")
    known = sys.modules.get("tau2")
    if known is None:
        known = types.ModuleType("tau2")
        known.__path__ = [str(package)]
        sys.modules["tau2"] = known
        if "numpy" not in sys.modules:  # its threads would keep a process from being forked
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    elif str(package) not in [str(Path(one)) for one in known.__path__]:
        raise ConfigError(
            f"env.checkout: got {checkout!r}, but this process has imported {list(known.__path__)[0]}; name one "
            "checkout in a process, or give each an interpreter of its own with env.python=PATH"
        )
    return package


def _module(name: str, package: Path) -> Any:
    """Return the module of a domain's environment."""
    names = _names(package)
    if name not in names:
        raise ConfigError(
            f"env: got tau2:{name}, allowed: {', '.join(names)} (folders of src/tau2/domains)."
            f"{did_you_mean(name, names)}"
        )
    if importlib.util.find_spec("loguru") is not None:  # else the imports below tell, where tau2 needs it
        importlib.import_module("loguru").logger.disable("tau2")  # it tells each answer of each tool
    for needed in ("evaluator_communicate", "evaluator_action"):  # so that what they need is missed now
        importlib.import_module(f"tau2.evaluator.{needed}")
    return importlib.import_module(f"tau2.domains.{name}.environment")


def _names(package: Path) -> list[str]:
    return sorted(path.parent.name for path in (package / "domains").glob("*/environment.py"))


def _listed(module: Any, name: str, subset: str | None) -> list[Any]:
    """Return the tasks of a subset, or those that the domain lists."""
    if subset is None:
        return list(module.get_tasks())
    known: Mapping[str, list[str]] = getattr(module, "get_tasks_split", dict)()
    if subset not in known:
        names = ", ".join(known) or "none"
        raise ConfigError(f"env.subset: got {subset!r}, allowed: {names} (of {name}'s split_tasks.json)")
    return list(module.get_tasks(subset))


def _judged(task: Any) -> bool:
    """Return whether something without a language model says whether a task is solved."""
    criteria = task.evaluation_criteria
    if criteria is None:
        return False
    basis = {part.value for part in criteria.reward_basis}
    state = criteria.actions is not None or criteria.env_assertions is not None
    return bool(
        ("DB" in basis and state)
        or ("ENV_ASSERTION" in basis and criteria.env_assertions)
        or ("COMMUNICATE" in basis and criteria.communicate_info)
        or ("ACTION" in basis and criteria.actions)
    )


def _splits(given: Mapping[str, list[str]] | None, tasks: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the ids of each split: those given, of whose training tasks an eighth validates; else a division."""
    found: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    named = given is not None and set(_SPLIT) <= set(given)
    wanted = {str(one): split for split in _SPLIT for one in given[split]} if given is not None and named else {}
    for name in tasks:
        lot = derive_seed(0, "service split", name) % 8
        if named and name in wanted:
            found["validation" if lot == 0 and wanted[name] == "train" else wanted[name]].append(name)
        elif not named:
            found["validation" if lot == 0 else "test" if lot == 1 else "train"].append(name)
    for split in ("validation", "test"):
        if not found[split] and len(found["train"]) > 1:
            found[split].append(found["train"].pop())
    return {split: tuple(names) for split, names in found.items()}
