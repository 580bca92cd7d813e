"""Maker of a library of skills from the verified successes of a run; `skills` offers them.

Run `python -m offline_agent_environments.adapters.skill_maker RUN --out FILE`. Sequences of calls that successes of
several train tasks have in common, up to constants that become parameters, are chosen greedily by description length,
so that later skills are made of earlier ones. Each is verified at once: every success that contains it is played again
with the skill in place of its calls, and one that ends otherwise drops it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from offline_agent.envs.base import EnvSpec, StepResult
from offline_agent.envs.play import call
from offline_agent.errors import ConfigError, EnvironmentFault, OfflineAgentError
from offline_agent.records import Action, Task
from offline_agent.search.serialization import tree_from_json
from offline_agent.store.files import write_atomic
from offline_agent.store.manifest import read_manifest
from offline_agent.store.run_directory import read_tree
from offline_agent_environments.adapters.skills import Skill, calls_of, environment, is_parameter, library, opened, read

MOST = 32
LONGEST = 6  # steps of a skill
PARAMETERS = 3
PER_TASK = 2  # successes, the shortest
_TEXTS, _CHARACTERS = 16, 500  # source tasks that a library names, and how much of their texts
_LEAST = 3  # characters of a text of which is asked where it was shown first

Pattern = tuple[tuple[str, tuple[tuple[str, str | int], ...]], ...]
"""For each step the tool and its arguments: the JSON text of a constant, or the number of a parameter."""


class Item(NamedTuple):
    """A turn of a success, or a skill in place of several.

    Attributes:
        name: The tool or skill; "" = a turn that no skill may contain.
        arguments: Name → JSON text.
        turn: The first turn of the success that it stands for.
    """

    name: str
    arguments: Mapping[str, str]
    turn: int


class Success(NamedTuple):
    """A success that was played again without skills.

    Attributes:
        task: Its task.
        text: The task's first text.
        actions: Its turns.
        items: The same, for encoding.
        since: JSON text of an argument that an answer showed → the number of turns after which it was known.
        end: The verdict's success, the number of calls, the fingerprint and the last answer.
    """

    task: Task
    text: str
    actions: Sequence[Action]
    items: Sequence[Item]
    since: Mapping[str, int]
    end: tuple[Any, ...]


def successes(run: Path, inner: EnvSpec, known: Mapping[str, Skill]) -> Iterator[Success | None]:
    """Yield the shortest verified successes of each task of a run's trees, without skills; None for one that fails now.

    Args:
        run: The run.
        inner: The environment without skills.
        known: The skills that the run had.

    Raises:
        ConfigError: A task is held out.
    """
    for path in sorted((run / "trees").glob("*.json.gz")):
        tree = tree_from_json(read_tree(path))
        if tree.task.split != "train":
            raise ConfigError(f"{run}: got the {tree.task.split} task {tree.task.task_id}, allowed: train tasks alone")
        ends = (node for node in tree.terminals() if node.verdict is not None and node.verdict.success)
        won = {tuple(step.key for step in steps): steps for steps in map(tree.steps, ends)}
        for _, steps in sorted(won.items(), key=lambda one: len(one[0]))[:PER_TASK]:
            actions = [action for step in steps for action in _plain(step.action, known)]
            yield repeated(inner, tree.task, actions)


def _plain(action: Action, known: Mapping[str, Skill]) -> Sequence[Action]:
    if action.call is None or action.call.name not in known:
        return [action]
    return [call(*one) for one in calls_of(known, action.call.name, action.call.arguments)]


def repeated(inner: EnvSpec, task: Task, actions: Sequence[Action]) -> Success | None:
    """Play a success again; None where it is none this time."""
    text, results, end = _played(EnvSpec(environment(inner, {}), sandboxed=True), task, actions)
    if not end[0] or len(results) < len(actions):
        return None
    items = []
    for turn, (action, result) in enumerate(zip(actions, results, strict=True)):
        made = None if result.fault else action.call
        name = "" if made is None or made.name in inner.restarts else made.name
        items.append(Item(name, {key: _text(one) for key, one in made.arguments.items()} if made else {}, turn))
    shown = [f"{text} {inner.system_prompt} {_text(inner.tools.schemas)}", *(str(one.observation) for one in results)]
    since: dict[str, int] = {}
    for item in items:
        for value in item.arguments.values():
            word = json.loads(value)
            if value not in since and isinstance(word, str) and len(word) >= _LEAST:
                since[value] = next((turn for turn in range(item.turn + 1) if word in shown[turn]), 0)
    return Success(task, text, actions, items, since, end)


def _played(spec: EnvSpec, task: Task, actions: Sequence[Action]) -> tuple[str, list[StepResult], tuple[Any, ...]]:
    """Return first text, answers and end; of an environment that broke, an end that says so."""
    try:
        with closing(spec.open()) as episode:
            text, results = episode.reset(task), list[StepResult]()
            while len(results) < len(actions) and not episode.terminated:
                results.append(episode.step(actions[len(results)]))
            state, verdict = episode.fingerprint(), episode.verdict()
            last = results[-1].observation if results else ""
            return text, results, (verdict.success, verdict.evidence.get("calls"), state, last or "")
    except EnvironmentFault as error:
        return "", [], (False, 0, str(error), "")


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def encoded(items: Sequence[Item], name: str, steps: Sequence[Any], since: Mapping[str, int]) -> list[Item]:
    """Return a success with a skill in place of its steps, wherever they are and its arguments were known before."""
    out, at = list[Item](), 0
    while at < len(items):
        given = _bound(steps, items[at : at + len(steps)])
        fits = given is not None and all(since.get(value, 0) <= items[at].turn for value in given.values())
        out.append(Item(name, given, items[at].turn) if fits and given is not None else items[at])
        at += len(steps) if fits else 1
    return out


def _bound(steps: Sequence[Any], window: Sequence[Item]) -> dict[str, str] | None:
    """Return the arguments with which a skill makes these calls; None where there are none."""
    if [(tool, given.keys()) for tool, given in steps] != [(one.name, one.arguments.keys()) for one in window]:
        return None
    found: dict[str, str] = {}
    for (_, given), item in zip(steps, window, strict=True):
        for name, value in given.items():
            got = item.arguments[name]
            if (found.setdefault(value["$"], got) if is_parameter(value) else _text(value)) != got:
                return None
    return found


def make(found: Sequence[Success], inner: EnvSpec, most: int = MOST) -> tuple[list[dict[str, Any]], Counter[str]]:
    """Return the records of a library, and the number of skills that were dropped, by reason.

    A success is as long as its calls and their arguments together. A skill gains what it shortens all of them by, less
    the length of its own steps.

    Args:
        found: Successes.
        inner: Their environment.
        most: Skills, at most; as many may be dropped.
    """
    records, refused, dropped = list[dict[str, Any]](), set[Pattern](), Counter[str]()
    present = [list(one.items) for one in found]
    while max(len(records), len(refused)) < most and (pattern := _best(present, found, refused)) is not None:
        record = _record(pattern, {*inner.tools.names, *(one["name"] for one in records)})
        name, skills = record["name"], library([*records, record], inner)
        trial = [encoded(items, name, skills[name].steps, one.since) for items, one in zip(present, found, strict=True)]
        using = [number for number, items in enumerate(trial) if len(items) < len(present[number])]
        spec = EnvSpec(environment(inner, skills), sandboxed=True)
        if why := next(filter(None, (_fault(spec, found[number], trial[number]) for number in using)), None):
            refused.add(pattern)
            dropped[why] += 1
            continue
        steps = calls_of(skills, name, {one: f"<{one}>" for one in record["parameters"]})
        record["description"] = "; ".join(f"{tool}({', '.join(map(str, given.values()))})" for tool, given in steps)
        sources = {found[number].task.task_id: found[number].text[:_CHARACTERS] for number in using}
        record |= {"from": dict(list(sources.items())[:_TEXTS]), "verified": len(using)}
        records, present = [*records, record], trial
    uses = Counter(item.name for items in present for item in items)
    return [record | {"uses": uses[record["name"]]} for record in records], dropped


def _best(present: Sequence[Sequence[Item]], found: Sequence[Success], refused: Collection[Pattern]) -> Pattern | None:
    """Return the pattern of two tasks or more that gains most; None where none gains."""
    places, owners = defaultdict[Pattern, list[tuple[int, int]]](list), defaultdict[str, set[str]](set)
    for one, items in zip(found, present, strict=True):
        for value in (value for item in items for value in item.arguments.values()):
            owners[value].add(one.task.task_id)
    for number, items in enumerate(present):
        for start in range(len(items)):
            for end in range(start + 1, min(start + LONGEST, len(items)) + 1):
                if not items[end - 1].name:
                    break
                for pattern in _patterns(items[start:end], found[number].since, owners) if end > start + 1 else ():
                    places[pattern].append((number, start))
    best, most = None, (0, "")
    for pattern, starts in places.items():
        if pattern not in refused and len({found[number].task.task_id for number, _ in starts}) > 1:
            count, free = 0, (-1, 0)
            for number, start in starts:  # those that overlap count once
                if number > free[0] or start >= free[1]:
                    count, free = count + 1, (number, start + len(pattern))
            values = {value for _, given in pattern for _, value in given if isinstance(value, int)}
            size = sum(1 + len(given) for _, given in pattern)
            gain = (count * (size - 1 - len(values)) - size, repr(pattern))
            if gain > most:
                best, most = pattern, gain
    return best if most[0] > 0 else None


def _patterns(
    window: Sequence[Item], since: Mapping[str, int], owners: Mapping[str, Collection[str]]
) -> Iterator[Pattern]:
    """Yield the window with some of its values as parameters, equal ones as one; those of one task always are."""
    values = list(dict.fromkeys(value for item in window for value in item.arguments.values()))
    must = {value for value in values if len(owners[value]) < 2}
    free = [value for value in values if since.get(value, 0) <= window[0].turn]
    for count in range(len(must), min(len(free), PARAMETERS) + 1):
        for chosen in filter(must.issubset, combinations(free, count)):
            number: dict[str, str | int] = {value: place for place, value in enumerate(chosen)}
            yield tuple(
                (one.name, tuple((name, number.get(value, value)) for name, value in sorted(one.arguments.items())))
                for one in window
            )


def _record(pattern: Pattern, taken: Collection[str]) -> dict[str, Any]:
    """Return the record of a pattern, named by its tools, and its parameters by the arguments that they are first."""
    names: dict[str | int, str] = {}
    steps = []
    for tool, given in pattern:
        for name, value in given:
            if isinstance(value, int) and value not in names:
                names[value] = _free(name, names.values())
        put = {name: json.loads(value) if isinstance(value, str) else {"$": names[value]} for name, value in given}
        steps.append({"tool": tool, "arguments": put})
    name = _free("_".join(tool for tool, _ in pattern)[:48], taken)
    return {"name": name, "description": "", "parameters": list(names.values()), "steps": steps, "split": "train",
            "from": {"": ""}, "verified": 1}  # fmt: skip


def _free(name: str, taken: Collection[str]) -> str:
    return next(one for one in (name, *(f"{name}_{n}" for n in range(2, len(taken) + 3))) if one not in taken)


def _fault(spec: EnvSpec, success: Success, items: Sequence[Item]) -> str | None:
    """Return how a success ends otherwise with skills in place of its calls; None where it does not."""
    actions = [
        success.actions[one.turn] if not one.name else
        call(one.name, {name: json.loads(value) for name, value in one.arguments.items()}) for one in items
    ]  # fmt: skip
    *end, last = _played(spec, success.task, actions)[2]
    for name, got, wanted in zip(("verdict", "number of calls", "state"), end, success.end, strict=False):
        if got != wanted:
            return f"another {name}"
    return None if last.endswith(success.end[-1]) else "another last answer"


def main() -> None:
    """Make a library of the successes of a run; print what was found and dropped."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("run", type=Path, help="a run of build_prefs")
    parser.add_argument("--out", type=Path, required=True, help="the library, JSON lines")
    parser.add_argument("--most", type=int, default=MOST, help="skills, at most")
    options = parser.parse_args()
    try:
        told = read_manifest(options.run)
        if told.get("command") != "build_prefs":
            raise ConfigError(f"{options.run}: got a run of {told.get('command')}, allowed: one of build_prefs")
        name, args = told["config"]["env"]["name"], told["env"].get("args") or {}
        inner = opened(name.removeprefix("skills:"), args)
        known = read(args["library"], inner) if name.startswith("skills:") else {}
        played = list(successes(options.run, inner, known))
        found = [one for one in played if one is not None]
        records, dropped = make(found, inner, options.most)
    except OfflineAgentError as error:
        sys.exit(str(error))
    write_atomic(options.out, "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in records).encode())
    reasons = ", ".join(f"{count} ({why})" for why, count in dropped.items()) or "none"
    print(f"{len(records)} skills of {len(found)} successes written to {options.out}; dropped: {reasons}")
    if len(found) < len(played):
        print(f"{len(played) - len(found)} successes of the run are none when they are played again, and were left out")


if __name__ == "__main__":
    main()
