"""Maker of a library of skills from the verified successes of runs; `skills` offers them.

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
from offline_agent.records import Action, Task, Verdict
from offline_agent.search.serialization import tree_from_json
from offline_agent.store.files import write_atomic
from offline_agent.store.manifest import read_manifest
from offline_agent.store.run_directory import read_tree, tree_path
from offline_agent.store.tables import read_table
from offline_agent_environments.adapters.skills import Skill, calls_of, environment, is_parameter, library, opened

MOST = 32
LONGEST = 6  # steps of a skill
PARAMETERS = 3
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
        last: The last observation.
        end: The verdict's success and number of calls, and the fingerprint.
    """

    task: Task
    text: str
    actions: Sequence[Action]
    items: Sequence[Item]
    since: Mapping[str, int]
    last: str | None
    end: tuple[Any, ...]


def successes(run: Path, inner: EnvSpec, left_out: Counter[str]) -> Iterator[Success]:
    """Yield the verified successes of a run, each played again.

    Args:
        run: A run that has `filtered/` and `trees/`.
        inner: Its environment.
        left_out: Counts those that do not repeat, by reason.

    Raises:
        ConfigError: One is of a task that is held out.
    """
    spec, tasks = EnvSpec(environment(inner, {}), sandboxed=True), dict[str, Task]()
    for row in (row for file in sorted((run / "filtered").glob("*.parquet")) for row in read_table(file)):
        name = row["task_id"]
        if row["split"] != "train":
            raise ConfigError(f"{run}: got a success of {row['split']} task {name}, allowed: train tasks alone")
        if name not in tasks:
            tasks[name] = tree_from_json(read_tree(tree_path(run, name))).task
        actions = list(_actions(row["messages"]))
        try:
            text, results, verdict, state = _played(spec, tasks[name], actions)
        except EnvironmentFault:
            left_out["the environment broke"] += 1
            continue
        if verdict.success is not True or len(results) < len(actions):
            left_out["its replay is no success"] += 1
            continue
        pairs = enumerate(zip(actions, results, strict=True))
        items = [_item(inner, action, result, number) for number, (action, result) in pairs]
        told = f"{text} {inner.system_prompt} {_text(inner.tools.schemas)}"
        since = _since(items, [told, *(result.observation or "" for result in results)])
        end = (True, verdict.evidence["calls"], state)
        yield Success(tasks[name], text, actions, items, since, results[-1].observation, end)


def _actions(messages: Sequence[Mapping[str, Any]]) -> Iterator[Action]:
    for turn in messages:
        for one in turn.get("tool_calls") or ():
            yield call(one["function"]["name"], one["function"]["arguments"])
        if turn["role"] == "assistant" and not turn.get("tool_calls"):
            yield Action(turn["content"], turn["content"])


def _played(spec: EnvSpec, task: Task, actions: Sequence[Action]) -> tuple[str, list[StepResult], Verdict, str | None]:
    """Return first text, answers, verdict and fingerprint of the end. Raises EnvironmentFault."""
    with closing(spec.open()) as episode:
        text, results = episode.reset(task), list[StepResult]()
        for action in actions:
            if episode.terminated:
                break
            results.append(episode.step(action))
        state = episode.fingerprint()
        return text, results, episode.verdict(), state


def _item(spec: EnvSpec, action: Action, result: StepResult, turn: int) -> Item:
    made = action.call
    fields = {one["function"]["name"]: one["function"].get("parameters", {}).get("properties", {}).keys()
              for one in spec.tools.schemas}  # fmt: skip
    fits = made is not None and result.fault is None and fields.get(made.name, set()) >= made.arguments.keys()
    if made is None or not fits or made.name in spec.restarts or any(map(is_parameter, made.arguments.values())):
        return Item("", {}, turn)
    return Item(made.name, {name: _text(value) for name, value in made.arguments.items()}, turn)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _since(items: Sequence[Item], shown: Sequence[str]) -> dict[str, int]:
    """Return after how many turns each text was shown, where that is before its first use."""
    found: dict[str, int] = {}
    for item in items:
        for value in item.arguments.values():
            word = json.loads(value)
            if value not in found and isinstance(word, str) and len(word) >= _LEAST:
                found[value] = next((turn for turn in range(item.turn + 1) if word in shown[turn]), 0)
    return found


def encoded(items: Sequence[Item], name: str, skill: Skill, since: Mapping[str, int]) -> list[Item]:
    """Return a success with a skill in place of its steps, wherever they are and its arguments were known before."""
    out, at = [], 0
    while at < len(items):
        window = items[at : at + len(skill.steps)]
        given = _bound(skill, window) if len(window) == len(skill.steps) else None
        if given is None or any(since.get(value, 0) > items[at].turn for value in given.values()):
            out.append(items[at])
            at += 1
        else:
            out.append(Item(name, given, items[at].turn))
            at += len(window)
    return out


def _bound(skill: Skill, window: Sequence[Item]) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for (tool, given), item in zip(skill.steps, window, strict=True):
        if tool != item.name or given.keys() != item.arguments.keys():
            return None
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
        trial = [encoded(items, name, skills[name], one.since) for items, one in zip(present, found, strict=True)]
        using = [number for number, items in enumerate(trial) if len(items) < len(present[number])]
        spec = EnvSpec(environment(inner, skills), sandboxed=True)
        if why := next(filter(None, (_fault(spec, found[number], trial[number]) for number in using)), None):
            refused.add(pattern)
            dropped[why] += 1
            continue
        sources = {found[number].task.task_id: found[number].text[:_CHARACTERS] for number in using}
        steps = calls_of(skills, name, {one: f"<{one}>" for one in record["parameters"]})
        told = "; ".join(f"{tool}({', '.join(map(str, given.values()))})" for tool, given in steps)
        record |= {"description": told, "from": dict(list(sources.items())[:_TEXTS]), "verified": len(using)}
        records, present = [*records, record], trial
    uses = Counter(item.name for items in present for item in items)
    return [record | {"uses": uses[record["name"]]} for record in records], dropped


def _best(present: Sequence[Sequence[Item]], found: Sequence[Success], refused: Collection[Pattern]) -> Pattern | None:
    """Return the pattern of two tasks or more that gains most; None where none gains."""
    places: defaultdict[Pattern, list[tuple[int, int]]] = defaultdict(list)
    owners: defaultdict[str, set[str]] = defaultdict(set)
    for one, items in zip(found, present, strict=True):
        for value in (value for item in items for value in item.arguments.values()):
            owners[value].add(one.task.task_id)
    rare = {value for value, tasks in owners.items() if len(tasks) < 2}
    for number, items in enumerate(present):
        for start in range(len(items)):
            for end in range(start + 1, min(start + LONGEST, len(items)) + 1):
                if not items[end - 1].name:
                    break
                for pattern in _patterns(items[start:end], found[number].since, rare) if end > start + 1 else ():
                    places[pattern].append((number, start))
    best, most = None, (0, "")
    for pattern, starts in places.items():
        if pattern in refused or len({found[number].task.task_id for number, _ in starts}) < 2:
            continue
        count, free = 0, (-1, 0)
        for number, start in starts:
            if number > free[0] or start >= free[1]:
                count, free = count + 1, (number, start + len(pattern))
        values = {value for _, given in pattern for _, value in given if isinstance(value, int)}
        size = sum(1 + len(given) for _, given in pattern)
        gain = count * (size - 1 - len(values)) - size
        if (gain, repr(pattern)) > most:
            best, most = pattern, (gain, repr(pattern))
    return best if most[0] > 0 else None


def _patterns(window: Sequence[Item], since: Mapping[str, int], rare: Collection[str]) -> Iterator[Pattern]:
    """Yield the window with some of its values as parameters, equal ones as one; all rare ones are parameters."""
    values = list(dict.fromkeys(value for item in window for value in item.arguments.values()))
    must = {value for value in values if value in rare}
    free = [value for value in values if since.get(value, 0) <= window[0].turn]
    for count in range(len(must), min(len(free), PARAMETERS) + 1):
        for chosen in combinations(free, count):
            if not must.issubset(chosen):
                continue
            number: dict[str, str | int] = {value: place for place, value in enumerate(chosen)}
            yield tuple(
                (one.name, tuple((name, number.get(value, value)) for name, value in sorted(one.arguments.items())))
                for one in window
            )


def _record(pattern: Pattern, taken: Collection[str]) -> dict[str, Any]:
    """Return the record of a pattern, named by its tools, and its parameters by the arguments that they are first."""
    names: dict[int, str] = {}
    for name, value in (pair for _, given in pattern for pair in given):
        if isinstance(value, int) and value not in names:
            names[value] = _free(name, names.values())
    steps = [
        {"tool": tool, "arguments": {
            name: {"$": names[value]} if isinstance(value, int) else json.loads(value) for name, value in given
        }} for tool, given in pattern
    ]  # fmt: skip
    name = _free("_".join(tool for tool, _ in pattern)[:48], taken)
    return {"name": name, "description": "", "parameters": list(names.values()), "steps": steps, "split": "train",
            "from": {"-": ""}, "verified": 1}  # fmt: skip


def _free(name: str, taken: Collection[str]) -> str:
    return next(one for one in (name, *(f"{name}_{n}" for n in range(2, 10**6))) if one not in taken)


def _fault(spec: EnvSpec, success: Success, items: Sequence[Item]) -> str | None:
    """Return how a success ends otherwise with skills in place of its calls; None where it does not."""
    actions = [
        success.actions[one.turn] if not one.name else
        call(one.name, {name: json.loads(value) for name, value in one.arguments.items()}) for one in items
    ]  # fmt: skip
    try:
        _, results, verdict, state = _played(spec, success.task, actions)
    except EnvironmentFault:
        return "the environment broke"
    end = (verdict.success, verdict.evidence.get("calls"), state)
    for name, got, wanted in zip(("verdict", "number of calls", "state"), end, success.end, strict=True):
        if got != wanted:
            return f"another {name}"
    return None if (results[-1].observation or "").endswith(success.last or "") else "another last answer"


def main() -> None:
    """Make a library of the successes of runs; print what was found, dropped and left out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("run", type=Path, help="run directory with filtered/ and trees/, such as one of build_prefs")
    parser.add_argument("--out", type=Path, required=True, help="the library, JSON lines")
    parser.add_argument("--most", type=int, default=MOST, help="skills, at most")
    options = parser.parse_args()
    try:
        told = read_manifest(options.run)
        if "env" not in told:
            raise ConfigError(f"{options.run}: got a run without an environment, allowed: one of build_prefs")
        inner = opened(told["config"]["env"]["name"], told["env"].get("args") or {})
        left_out = Counter[str]()
        found = list(successes(options.run, inner, left_out))
        records, dropped = make(found, inner, options.most)
    except OfflineAgentError as error:
        sys.exit(str(error))
    lines = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in records)
    write_atomic(options.out, lambda file: file.write(lines.encode()))
    print(f"{len(records)} skills of {len(found)} successes written to {options.out}")
    for what, counts in (("skills dropped", dropped), ("successes left out", left_out)):
        print(*(f"{count} {what}: {why}\n" for why, count in counts.items()), sep="", end="")


if __name__ == "__main__":
    main()
