"""Any environment with further tools that are programs of its own tools: `env=skills:NAME env.library=FILE`.

A skill is a named sequence of calls with parameters, as in Voyager (Wang et al. 2023, arXiv 2305.16291), without code:
its steps are calls of the environment's tools, or of skills of earlier lines. `skill_maker` makes and verifies them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from offline_agent import pictures
from offline_agent.envs.base import EnvSpec, Episode, ToolSet, twin
from offline_agent.envs.play import call
from offline_agent.errors import ConfigError, Refusal
from offline_agent.records import Action, Message, Verdict, call_message, cut_verdict
from offline_agent.store.provenance import hash_json
from offline_agent_environments.adapters import adapted

OFFERED = 8
_SHOWN = 400  # characters of the answers of a skill's steps, of all but the last
Args = Mapping[str, Any]


@dataclass(frozen=True)
class Skill:
    """A program of calls.

    Attributes:
        parameters: Name → JSON schema.
        steps: Tools or skills, and their arguments: a value, or {"$": the name of a parameter}.
        record: The line of the library.
    """

    parameters: Args
    steps: Sequence[tuple[str, Args]]
    record: Args


def adapt(rest: str, args: Args) -> type:
    """Return the class of an environment with skills; see `envs.base.environment_class`.

    Raises:
        ConfigError: There is no library, a line of it is faulty, or the environment has other tools in each task.
    """
    path, most = args.get("library"), args.get("most", OFFERED)
    if not isinstance(path, str) or not Path(path).is_file():
        raise ConfigError(f"env.library: got {path!r}, allowed: a file that skill_maker wrote")
    if type(most) is not int or most < 1:
        raise ConfigError(f"env.most: got {most!r}, allowed: 1 or more skills for each task")
    inner = opened(rest, {name: value for name, value in args.items() if name not in ("library", "most")})
    try:
        records = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    except ValueError as error:
        raise ConfigError(f"env.library: {path} has a line that is no JSON: {error}") from error
    return environment(inner, library(records, inner), most)


def opened(name: str, args: Args) -> EnvSpec:
    """Return the environment that skills are added to. Raises ConfigError."""
    # what is irreversible, and how long answers may be, is asked of the environment with skills
    inner = EnvSpec.load(name, args, sandboxed=True, max_observation_chars=10**8)
    if getattr(inner.cls, "_tools", None) is not None:
        raise ConfigError(f"env: {name} has tools of its own in each task, which skills: cannot add others to")
    return inner


def library(records: Iterable[Any], spec: EnvSpec) -> dict[str, Skill]:
    """Return skills by name, each of calls of the environment or of those before it.

    Raises:
        ConfigError: A record is faulty, or not made of train tasks alone.
    """
    shapes = {one["function"]["name"]: one["function"].get("parameters") or {} for one in spec.tools.schemas}
    found: dict[str, Skill] = {}
    for number, record in enumerate(records, 1):
        try:
            why, made = _read(record, shapes, spec)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            why, made = f"got {record!r:.200} ({error!r}), allowed: a record as skill_maker writes it", None
        if made is None:
            raise ConfigError(f"env.library, skill {number}: {why}; make the library again with skill_maker")
        found[record["name"]] = made
        shapes[record["name"]] = schema_of(made)["function"]["parameters"]
    return found


def _read(record: Any, shapes: Mapping[str, Any], spec: EnvSpec) -> tuple[str, Skill | None]:
    name, names = record["name"], list(record["parameters"])
    if not re.fullmatch(r"[a-zA-Z]\w*", name) or name in shapes:
        return f"name: got {name!r}, allowed: letters, digits and _, and no name of a tool or an earlier skill", None
    if record["split"] != "train" or not record["from"] or record["verified"] < 1:
        told = {key: record[key] for key in ("split", "verified")}
        return f"{name}: got {told}, allowed: split train and one verified replay or more", None
    parameters: dict[str, Any] = {}
    steps = [(step["tool"], dict(step["arguments"])) for step in record["steps"]]
    for tool, given in steps:
        fields = shapes.get(tool, {}).get("properties") or {}
        if tool not in shapes or tool in spec.restarts or not fields.keys() >= given.keys():
            allowed = "tools that do not begin the task anew, skills of earlier lines, and arguments that they have"
            return f"{name}: got the step {tool}({', '.join(given)}), allowed: {allowed}", None
        parameters = {one["$"]: fields[key] for key, one in given.items() if is_parameter(one)} | parameters
    if set(parameters) != set(names) or len(steps) < 2:
        return f"{name}: parameters: got {names}, allowed: those of its steps, {sorted(parameters)}; two steps", None
    return "", Skill({one: parameters[one] for one in names}, steps, record)


def is_parameter(value: Any) -> bool:
    """Return whether a step's argument stands for a parameter."""
    return isinstance(value, Mapping) and value.keys() == {"$"}


def schema_of(skill: Skill) -> dict[str, Any]:
    """Return the schema of a skill as a tool."""
    shape = {"type": "object", "properties": dict(skill.parameters), "required": list(skill.parameters)}
    told = {"name": skill.record["name"], "description": skill.record["description"], "parameters": shape}
    return {"type": "function", "function": told}


def calls_of(skills: Mapping[str, Skill], name: str, arguments: Args) -> Iterator[tuple[str, Args]]:
    """Yield the calls of the environment's own tools that a call of a skill, or of a tool, stands for."""
    if name not in skills:
        yield name, arguments
        return
    for tool, given in skills[name].steps:
        put = {key: arguments[value["$"]] if is_parameter(value) else value for key, value in given.items()}
        yield from calls_of(skills, tool, put)


def environment(inner: EnvSpec, skills: Mapping[str, Skill], most: int = OFFERED) -> type:
    """Return the class of an environment with skills, of which `most` are offered in each task.

    The others, such as those that offered ones are made of, can be called too: a success relabelled as another task
    keeps its calls.
    """
    schemas = {name: schema_of(one) for name, one in skills.items()}

    @cache  # equal tools are one object
    def tools(offered: frozenset[str]) -> ToolSet:
        late = [schema for name, schema in schemas.items() if name not in offered]
        shown = [schema for name, schema in schemas.items() if name in offered]
        return ToolSet.from_json(inner.tools.to_json() | {"schemas": [*inner.tools.schemas, *shown], "late": late})

    rank = _ranking(skills) if len(skills) > most else lambda text: list(skills)
    members = {name: one for name, one in _PASSED.items() if _has(inner, name)}
    kept = ("replay_only", "version", "runs_code", "max_steps", "one_thread", "deterministic_verifier", "restarts")
    members |= {name: getattr(inner, name) for name in kept}
    members["version"] = f"{inner.version}+{hash_json([one.record for one in skills.values()])[:8]}"
    final = {name for name in skills if any(one in inner.irreversible for one, _ in calls_of(skills, name, _Any()))}
    return adapted(
        _Skills, [*inner.tools.schemas, *schemas.values()], name=f"skills:{inner.name}", _spec=inner, _skills=skills,
        _offered=staticmethod(lambda text: tools(frozenset(rank(text)[:most]))), _tools=tools(frozenset(schemas)),
        irreversible=inner.irreversible | final, _answers_differ=getattr(inner.cls, "_answers_differ", True), **members,
    )  # fmt: skip


def _has(spec: EnvSpec, name: str) -> bool:
    return {"fingerprint": spec.fingerprints, "turn_reward": spec.turn_rewards}.get(name, hasattr(spec.cls, name))


class _Any(dict[str, Any]):
    """Arguments of a call of which only the tools matter."""

    def __missing__(self, name: str) -> None:
        return None


def _ranking(skills: Mapping[str, Skill]) -> Callable[[str], list[str]]:
    """Return a function from a task's first text to the names of skills, those of the likest source task first."""
    import bm25s
    import numpy as np

    owners = [(name, _words(text)) for name, one in skills.items() for text in one.record["from"].values()]
    known = {word for _, words in owners for word in words}
    index = bm25s.BM25()
    index.index([words or [""] for _, words in owners], show_progress=False)

    def rank(text: str) -> list[str]:
        best, query = dict.fromkeys(skills, 0.0), sorted(known.intersection(_words(text)))
        scores = np.round(index.get_scores(query), 3) if query else [0.0] * len(owners)
        for (name, _), score in zip(owners, scores, strict=True):
            best[name] = max(best[name], float(score))
        return sorted(best, key=lambda name: -best[name])  # among equals the library's order

    return rank


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


class _Skills:
    """An environment whose tools include skills; `environment` makes the classes.

    Args:
        library: See `adapt`.
        most: See `adapt`.
        args: Arguments of the environment's constructor.
    """

    _spec: ClassVar[EnvSpec]
    _skills: ClassVar[Mapping[str, Skill]]
    _offered: ClassVar[Callable[[str], ToolSet]]

    def __init__(self, library: str | None = None, most: int = OFFERED, **args: Any) -> None:
        self._inner: Episode = self._spec.open()
        self.system_prompt = self._inner.system_prompt
        self._made, self._earned = 0, None

    @classmethod
    def tasks(cls, split: str) -> Iterator[dict[str, Any]]:
        """Yield the tasks of the environment."""
        yield from cls._spec.entries(split)

    def reset(self, **task: Any) -> str:
        """Start the task; its first text chooses the skills that are offered."""
        first = self._inner.reset(self._spec.task(task, "train", 0))
        self._made, self._earned = 0, None
        self._tools = type(self)._offered(first)
        return first

    @property
    def terminated(self) -> bool:
        """Whether the environment's episode is over, or has as many calls as it allows."""
        return self._inner.terminated or self._spent

    @property
    def _spent(self) -> bool:
        most = self._spec.max_steps
        return most is not None and self._made >= most and not self._inner.terminated

    def get_reward(self) -> Verdict:
        """Return the environment's verdict, with the number of calls in its evidence; 0 where these are used up."""
        if self._spent:
            return cut_verdict("max_steps", calls=self._made)
        found = self._inner.own_verdict()
        return replace(found, evidence={**found.evidence, "calls": self._made})

    def _take(self, tool: str, arguments: Args) -> str:
        calls, told, earned = list(calls_of(self._skills, tool, arguments)), [], []
        for number, (name, given) in enumerate(calls, 1):
            result = self._inner.step(call(name, given))
            self._made += 1
            earned.append(result.reward)
            answer = result.observation or ""
            if result.fault is not None and number == 1:  # nothing was done: as if the tool had been called
                self._earned = result.reward
                return Refusal(answer)
            refused = f"Step {number} of {len(calls)}, {name}, was refused: " if result.fault else ""
            told.append(refused + answer)
            if refused or self.terminated:
                break
        rewards = [one for one in earned if one is not None]
        self._earned = min(1.0, sum(rewards)) if rewards else None
        return "\n".join([*map(_short, told[:-1]), told[-1]])

    def _reply(self, text: str) -> str | None:
        self._made += 1
        return self._inner.step(Action(text, text)).observation

    def __deepcopy__(self, memo: dict[int, Any]) -> _Skills:
        other = twin(self)
        other._inner = self._inner.copy()
        return other

    def __enter__(self) -> _Skills:
        return self

    def __exit__(self, *error: object) -> None:
        self._inner.close()


def _short(answer: str) -> str:
    return answer if len(answer) <= _SHOWN or pictures.OBJECT in answer else answer[:_SHOWN] + " [cut]"


def _fingerprint(self: _Skills) -> str | None:
    state = self._inner.fingerprint()
    return None if state is None else state + "!" * self._spent


def _demonstrate(cls: type[_Skills], task: Args, messages: Sequence[Message], rng: Any, noise: float) -> Message:
    """Return the expert's next turn; it is told the calls that skills made, and never calls a skill itself."""
    own, out, remade = cls._spec.task(task, "train", 0), [], False
    used = any(one["function"]["name"] in cls._skills for turn in messages for one in turn.get("tool_calls") or ())
    with closing(cls._spec.open()) as episode:
        first = episode.reset(own) if used else None
        for turn in messages if first is not None else ():
            made = turn.get("tool_calls") or ()
            if not (remade and turn["role"] != "assistant"):
                out += [] if made else [turn]
            for one in made:
                for name, given in calls_of(cls._skills, one["function"]["name"], one["function"]["arguments"]):
                    result = episode.step(call(name, given))
                    answer = {"role": result.role, "content": result.observation, "name": name}
                    out += [call_message(name, given), answer]
                    if result.fault or result.terminated:
                        break
            remade = bool(made)
    assert cls._spec.demonstrate is not None  # else the class has no expert
    found: Message = cls._spec.demonstrate(dict(own.args), out if used else messages, rng, noise)
    return found


_PASSED: dict[str, Any] = {
    "fingerprint": property(_fingerprint),
    "achieved_goal": property(lambda self: self._inner.achieved_goal()),
    "turn_reward": property(lambda self: self._earned),
    "demonstrate": classmethod(_demonstrate),
}
"""Optional members that the class has where the environment has them."""
