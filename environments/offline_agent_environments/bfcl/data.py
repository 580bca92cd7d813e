"""The benchmark's files: tasks, user turns, function documents, ground truth. Read from the installed package."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from offline_agent.envs.tools import ToolSet
from offline_agent.errors import ConfigError, DataError
from offline_agent.records import ToolCall
from offline_agent.store.files import read_text

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
INSTALL = "pip install --no-deps bfcl-eval==2026.3.23 && pip install mpmath"

# Tool class → (its module in the package, its function documents).
CLASSES = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "TwitterAPI": "posting_api",
    "VehicleControlAPI": "vehicle_control",
}
_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}


@dataclass(frozen=True)
class Entry:
    """One task of the benchmark.

    Attributes:
        id: e.g. `multi_turn_base_3`.
        category: One of `CATEGORIES`.
        index: 0..199; the four tasks of an index are variants of one scenario.
        turns: The user's words, one per turn; None where the turn brings the functions held back until then.
        classes: The tool classes involved.
        config: Class name → its initial state.
        held_back: Turn → names of the functions that are not offered before it.
        truth: Per turn, the calls of the ground truth; an empty turn is one that cannot be done.
    """

    id: str
    category: str
    index: int
    turns: tuple[str | None, ...]
    classes: tuple[str, ...]
    config: Mapping[str, Any]
    held_back: Mapping[int, tuple[str, ...]]
    truth: tuple[tuple[ToolCall, ...], ...]


def installed() -> bool:
    """Return whether the package is installed."""
    return importlib.util.find_spec("bfcl_eval") is not None


def version() -> str:
    """Return the installed version of the package."""
    return importlib.metadata.version("bfcl-eval")


def _folder() -> Path:
    spec = importlib.util.find_spec("bfcl_eval")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"env bfcl needs the package bfcl-eval, which is not installed; run: {INSTALL}")
    if importlib.util.find_spec("mpmath") is None:
        raise ConfigError("env bfcl needs the package mpmath, which is not installed; run: pip install mpmath")
    return Path(spec.submodule_search_locations[0]) / "data"


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in read_text(path).split("\n") if line.strip()]
    except (OSError, ValueError) as error:
        raise DataError(f"bfcl: cannot read {path.name} of bfcl-eval ({error}); reinstall it: {INSTALL}") from error


@lru_cache(maxsize=1)
def documents() -> dict[str, dict[str, dict[str, Any]]]:
    """Return tool class → function name → the schema of the tool, in the order of the documents."""
    folder = _folder() / "multi_turn_func_doc"
    return {name: {d["name"]: _schema(d) for d in _lines(folder / f"{file}.json")} for name, file in CLASSES.items()}


def _schema(document: Mapping[str, Any]) -> dict[str, Any]:
    function = {key: document[key] for key in ("name", "description")}
    return {"type": "function", "function": {**function, "parameters": _translate(document["parameters"])}}


def _translate(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the benchmark's schema with JSON schema's names of the types."""
    out = dict(schema)
    out["type"] = _TYPES.get(out["type"], out["type"])
    if "properties" in out:
        out["properties"] = {name: _translate(below) for name, below in out["properties"].items()}
    if "items" in out:
        out["items"] = _translate(out["items"])
    return out


@lru_cache(maxsize=len(CATEGORIES))
def entries(category: str) -> dict[int, Entry]:
    """Return index → task of a category."""
    folder, name = _folder(), f"BFCL_v4_multi_turn_{category}.json"
    answers = {line["id"]: line["ground_truth"] for line in _lines(folder / "possible_answer" / name)}
    found = [_entry(line, category, answers[line["id"]]) for line in _lines(folder / name)]
    return {entry.index: entry for entry in found}


def entry(task_id: str) -> Entry:
    """Return the task of that id.

    Raises:
        ConfigError: There is none.
    """
    category, _, index = str(task_id).removeprefix("multi_turn_").rpartition("_")
    if category not in CATEGORIES or not index.isdecimal() or int(index) not in entries(category):
        raise ConfigError(f"env bfcl: there is no task {task_id!r}; e.g. 'multi_turn_base_0'")
    return entries(category)[int(index)]


def _entry(line: Mapping[str, Any], category: str, truth: list[list[str]]) -> Entry:
    classes = tuple(line["involved_classes"])
    known = {name: schema for c in classes for name, schema in documents()[c].items()}
    return Entry(
        id=line["id"],
        category=category,
        index=int(line["id"].rpartition("_")[2]),
        turns=tuple(turn[0]["content"] if turn else None for turn in line["question"]),
        classes=classes,
        config=line["initial_config"],
        held_back={int(turn): tuple(names) for turn, names in line.get("missed_function", {}).items()},
        truth=tuple(tuple(parse_call(text, known) for text in turn) for turn in truth),
    )


def parse_call(text: str, known: Mapping[str, Mapping[str, Any]]) -> ToolCall:
    """Return the call that a line of the ground truth writes in Python; nothing is evaluated.

    Raises:
        DataError: It is not one call with literal arguments of a known function.
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            raise ValueError("not a call by name")
        parameters = list(known[node.func.id]["function"]["parameters"]["properties"])
        arguments = {name: ast.literal_eval(value) for name, value in zip(parameters, node.args, strict=False)}
        if len(node.args) > len(parameters) or any(k.arg is None for k in node.keywords):
            raise ValueError("arguments do not fit")
        arguments.update({str(k.arg): ast.literal_eval(k.value) for k in node.keywords})
    except (SyntaxError, ValueError, KeyError) as error:
        raise DataError(f"bfcl: the ground truth {text!r} cannot be read ({type(error).__name__}: {error})") from error
    return ToolCall(node.func.id, arguments)


@lru_cache(maxsize=256)
def toolset(task_id: str) -> ToolSet:
    """Return the tools of a task: all functions of its classes, those held back for later apart."""
    task = entry(task_id)
    schemas = {name: schema for c in task.classes for name, schema in documents()[c].items()}
    late = [name for names in task.held_back.values() for name in names]
    defaults = {
        name: {p: s["default"] for p, s in schema["function"]["parameters"]["properties"].items() if "default" in s}
        for name, schema in schemas.items()
    }
    offered = [schema for name, schema in schemas.items() if name not in late]
    return ToolSet(offered, defaults, [schemas[name] for name in late if name in schemas], answers_differ=False)


@lru_cache(maxsize=256)
def possible(task_id: str) -> tuple[tuple[ToolCall, ...], ...]:
    """Return, per turn, the ground truth's calls that a policy can make.

    All but five are: in the scenarios of index 173 it closes ticket "ticket_001" though ids are integers, and in
    `multi_turn_miss_func_49` it calls `tail` a turn before that is offered.
    """
    task, tools = entry(task_id), toolset(task_id)
    offered = set(tools.names)
    out = []
    for turn, calls in enumerate(task.truth):
        offered.update(task.held_back.get(turn, ()))
        out.append(tuple(c for c in calls if c.name in offered and tools.validate(c)[0] is not None))
    return tuple(out)


@lru_cache(maxsize=1)
def split_of() -> dict[int, str]:
    """Return index → split.

    An index goes where the first index goes that shares its scenario or a user's words with it, in any category: what a
    policy was trained on never turns up in another split.
    """
    leader: dict[int, int] = {}
    seen: dict[str, int] = {}
    base = entries("base")
    for index in sorted(base):
        facts = []
        for category in CATEGORIES:
            task = entries(category)[index]
            facts += [
                json.dumps(task.config, sort_keys=True),
                *(turn for turn in task.turns if turn and len(turn) > 40),
            ]
        roots = {leader[seen[fact]] for fact in facts if fact in seen}
        first = min(roots, default=index)
        leader[index] = first
        for other, root in leader.items():
            leader[other] = first if root in roots else root
        seen.update({fact: index for fact in facts if fact not in seen})
    names = {3: "validation", 4: "test"}
    return {index: names.get(first % 5, "train") for index, first in leader.items()}
