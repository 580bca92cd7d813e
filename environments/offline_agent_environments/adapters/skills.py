"""Any environment with further tools that are programs of its own tools: `env=skills:NAME env.library=FILE`.

A skill is a named sequence of calls with parameters, as in Voyager (Wang et al. 2023, arXiv 2305.16291), without code:
its steps are calls of the environment's tools, or of skills of earlier lines. `skill_maker` makes and verifies them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from inspect import getattr_static
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
_REFUSED = "Step {} of {}, {}, was refused: "
_SHOWN = 400  # characters of the answers of a skill's steps, of all but the last
Args = Mapping[str, Any]


@dataclass(frozen=True)
class Skill:
    """A program of calls.

    Attributes:
        schema: Of the tool that it is.
        steps: Tools or skills, and their arguments: a value, or {"$": the name of a parameter}.
        sources: Train tasks whose successes have it → their first texts.
    """

    schema: Args
    steps: Sequence[tuple[str, Args]]
    sources: Mapping[str, str]


def adapt(rest: str, args: Args) -> type:
    """Return the class of an environment with skills; see `envs.base.environment_class`.

    Raises:
        ConfigError: There is no library, a line of it is faulty, or the environment has other tools in each task.
    """
    most = args.get("most", OFFERED)
    if type(most) is not int or most < 1:
        raise ConfigError(f"env.most: got {most!r}, allowed: 1 or more skills for each task")
    inner = opened(rest, args)
    return environment(inner, read(args.get("library"), inner), most)


def read(path: Any, inner: EnvSpec) -> dict[str, Skill]:
    """Return the skills of a file; raises as `library`, and where it is no file of JSON lines."""
    if not isinstance(path, str) or not Path(path).is_file():
        raise ConfigError(f"env.library: got {path!r}, allowed: a file that skill_maker wrote")
    try:
        records = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").split("\n") if line.strip()]
    except ValueError as error:
        raise ConfigError(f"env.library: {path} has a line that is no JSON: {error}") from error
    return library(records, inner)


def opened(name: str, args: Args) -> EnvSpec:
    """Return the environment that skills are added to, by the arguments of the one with skills. Raises ConfigError."""
    own = {key: value for key, value in args.items() if key not in ("library", "most")}
    # what is irreversible, and how long answers may be, is asked of the environment with skills
    inner = EnvSpec.load(name, own, sandboxed=True, max_observation_chars=10**8)
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
        parameters: dict[str, Any] = {}
        try:
            name, steps = record["name"], [(step["tool"], dict(step["arguments"])) for step in record["steps"]]
            for tool, given in steps:
                fields = shapes.get(tool, {}).get("properties") or {}
                parameters = {
                    one["$"]: fields.get(key, {}) for key, one in given.items() if is_parameter(one)
                } | parameters
            unknown = {tool for tool, _ in steps} - (shapes.keys() - spec.restarts)
            faults = [told for wrong, told in (
                (name in shapes or not re.fullmatch(r"[a-zA-Z]\w*", name), "a name of no tool and no earlier skill"),
                (record["split"] != "train" or record["verified"] < 1 or not record["from"],
                 "successes of train tasks (split, from), and one verified replay or more"),
                (unknown, f"tools that do not begin the task anew, and skills of earlier lines: not {sorted(unknown)}"),
                (parameters.keys() != set(record["parameters"]), f"as parameters those of its steps: {[*parameters]}"),
            ) if wrong]  # fmt: skip
            schema = {"type": "object", "properties": parameters, "required": list(parameters)}
            told = {"name": name, "description": record["description"], "parameters": schema}
        except (KeyError, TypeError, AttributeError) as error:
            faults = [f"a record as skill_maker writes it ({error!r})"]
        if faults:
            raise ConfigError(f"env.library, skill {number}: got {record!r:.300}, allowed: {'; '.join(faults)}")
        found[name], shapes[name] = Skill({"type": "function", "function": told}, steps, record["from"]), schema
    return found


def is_parameter(value: Any) -> bool:
    """Return whether a step's argument stands for a parameter."""
    return isinstance(value, Mapping) and value.keys() == {"$"}


def calls_of(skills: Mapping[str, Skill], name: str, arguments: Args | None = None) -> Iterator[tuple[str, Args]]:
    """Yield the calls of the environment's own tools that a call of a skill, or of a tool, stands for.

    Args:
        skills: By name.
        name: The skill or tool.
        arguments: Its arguments; None = its parameters stand for themselves.
    """
    if name not in skills:
        yield name, arguments or {}
        return
    for tool, given in skills[name].steps:
        bound = arguments if arguments is not None else {one["$"]: one for one in given.values() if is_parameter(one)}
        put = {key: bound[value["$"]] if is_parameter(value) else value for key, value in given.items()}
        yield from calls_of(skills, tool, put)


def environment(inner: EnvSpec, skills: Mapping[str, Skill], most: int = OFFERED) -> type:
    """Return the class of an environment with skills, of which `most` are offered in each task.

    The others can be called too: a success relabelled as another task keeps its calls.
    """

    @cache  # equal tools are one object
    def tools(offered: frozenset[str]) -> ToolSet:
        shown = [one.schema for name, one in skills.items() if name in offered]
        late = [one.schema for name, one in skills.items() if name not in offered]
        return ToolSet.from_json(inner.tools.to_json() | {"schemas": [*inner.tools.schemas, *shown], "late": late})

    rank = _ranking(skills) if len(skills) > most else lambda text: list(skills)
    members = {name: one for name, one in _PASSED.items() if getattr_static(inner.cls, name, None) is not None}
    kept = ("replay_only", "runs_code", "max_steps", "one_thread", "deterministic_verifier", "restarts")
    members |= {name: getattr(inner, name) for name in kept}
    members["version"] = f"{inner.version}+{hash_json([[one.schema, one.steps] for one in skills.values()])[:8]}"
    members["_answers_differ"] = getattr(inner.cls, "_answers_differ", True)
    members["irreversible"] = inner.irreversible | {
        name for name in skills if any(tool in inner.irreversible for tool, _ in calls_of(skills, name))
    }
    every, offered = tools(frozenset(skills)), staticmethod(lambda text: tools(frozenset(rank(text)[:most])))
    members |= {"name": f"skills:{inner.name}", "_spec": inner, "_skills": skills, "_tools": every, "_offered": offered}
    return adapted(_Skills, every.schemas, **members)


def _ranking(skills: Mapping[str, Skill]) -> Callable[[str], list[str]]:
    """Return a function from a task's first text to the names of skills, those of the likest source tasks first."""
    import bm25s

    texts = [re.findall(r"\w+", " ".join(one.sources.values()).casefold()) or [""] for one in skills.values()]
    known, index = {word for words in texts for word in words}, bm25s.BM25()
    index.index(texts, show_progress=False)

    def rank(text: str) -> list[str]:
        """Return the names of skills for a task's first text."""
        query = sorted(known.intersection(re.findall(r"\w+", text.casefold())))
        scores = index.get_scores(query) if query else [0.0] * len(texts)
        best = dict(zip(skills, (round(float(one), 3) for one in scores), strict=True))
        return sorted(best, key=lambda name: -best[name])  # among equals the library's order

    return rank


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
        self._made = 0
        self._earned: float | None = None

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
            told.append(_REFUSED.format(number, len(calls), name) + answer if result.fault else answer)
            if result.fault or self.terminated:
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
    told: list[Message] = []
    for number, turn in enumerate(messages):
        made = [(one["function"]["name"], one["function"]["arguments"]) for one in turn.get("tool_calls") or ()]
        if any(name in cls._skills for name, _ in made) and number + 1 < len(messages):
            calls = [one for name, given in made for one in calls_of(cls._skills, name, given)]
            refused = re.search(_REFUSED.format(r"(\d+)", len(calls), ".*"), str(messages[number + 1]["content"]))
            calls = calls[: int(refused[1]) if refused else None]
            turn = {**turn, "tool_calls": [one for call in calls for one in call_message(*call)["tool_calls"]]}
        told.append(turn)
    assert cls._spec.demonstrate is not None  # else the class has no expert
    found: Message = cls._spec.demonstrate(dict(cls._spec.task(task, "train", 0).args), told, rng, noise)
    return found


_PASSED: dict[str, Any] = {
    "fingerprint": property(_fingerprint),
    "achieved_goal": property(lambda self: self._inner.achieved_goal()),
    "turn_reward": property(lambda self: self._earned),
    "demonstrate": classmethod(_demonstrate),
}
"""Optional members that the class has where the environment has them."""
