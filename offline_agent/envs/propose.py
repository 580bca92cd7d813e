"""Any environment's tasks as what is to be made: `env=propose:NAME`.

The policy is shown a few tasks of NAME and calls `propose` once, whose parameters are those of NAME's `reset`; the
prompt has NAME's own prompt and its tools. That the call opens a new task is checked by executing it. A policy that
proposes tasks and solves them: Absolute Zero (Zhao et al. 2025, arXiv 2505.03335), R-Zero (Huang et al. 2025,
arXiv 2508.05004). Tasks from tools' specifications: Kimi K2 (arXiv 2507.20534).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from offline_agent.envs.base import EnvSpec, twin
from offline_agent.envs.tools.schema import SchemaFault, hint_schema, parse_docstring, usage
from offline_agent.errors import ConfigError, EnvironmentFault
from offline_agent.records import Message, Task, Verdict, call_message
from offline_agent.seeding import derive_seed

EXAMPLES = 3
_LOOKED_AT = 20  # tasks whose arguments say what a task has
_POOL = 2000  # train tasks that examples are of
Args = dict[str, Any]


def adapt(rest: str, args: Mapping[str, Any]) -> type:
    """Return the class of an environment in which tasks of another are proposed; see `envs.base.environment_class`.

    Raises:
        ConfigError: There is no such environment, or its tasks have no arguments that could be proposed.
    """
    inner = EnvSpec.load(rest, args)
    some = list(itertools.islice(_tasks(inner), _LOOKED_AT))
    if len(some) < 2 or not all(some):
        raise ConfigError(
            f"env: propose:{rest} needs two train tasks or more of {inner.name} whose `reset` takes other arguments "
            f"than task_id; got {some[:2]!r:.200}. Tasks that are names alone cannot be proposed"
        )
    tools = "\n".join(f"- {usage(one)}: {one['function'].get('description', '')}" for one in inner.tools.schemas)
    told = f"Who solves it is told: {inner.system_prompt}\n" if inner.system_prompt else ""
    members: dict[str, Any] = {
        "name": f"propose:{inner.name}", "version": inner.version, "one_thread": inner.one_thread,
        "runs_code": inner.runs_code, "_spec": inner, "_tool_schemas": [_schema(inner, some)],
        "system_prompt": f"Propose a task unlike the examples, neither easy nor impossible. {told}Its tools:\n{tools}",
    }  # fmt: skip
    return type("ProposeEnvironment", (_Propose,), members)


def prompts(tasks: Sequence[Mapping[str, Any]], seed: int) -> Iterator[Args]:
    """Yield tasks of `propose:NAME` without end: `examples`, and `wanted`, the one that a demonstration proposes.

    Args:
        tasks: Arguments of NAME's `reset`, two or more; no example is ever of others.
        seed: The same seed yields the same.
    """
    rng = random.Random(seed)
    while True:
        wanted, *examples = rng.sample(tasks, min(len(tasks), 1 + EXAMPLES))
        yield {"examples": examples, "wanted": wanted}


class _Propose:
    """An environment in which one call proposes a task of another; `adapt` makes the classes."""

    max_steps = 1
    _answers_differ = False
    version: ClassVar[str]
    _spec: ClassVar[EnvSpec]

    def __init__(self, **args: Any) -> None:
        self._examples: Sequence[Args] = ()
        self._fault: str | None = None
        self.terminated = False

    @classmethod
    def tasks(cls, split: str) -> Iterator[Args]:
        """Yield examples drawn from train tasks, whatever the split: no held-out task is ever shown."""
        pool = list(itertools.islice(_tasks(cls._spec), _POOL))
        yield from itertools.islice(prompts(pool, derive_seed(0, "propose", split)), len(pool))

    def reset(self, examples: Sequence[Args], wanted: Args | None = None) -> str:
        """Show examples.

        Args:
            examples: Arguments of `reset`.
            wanted: What the demonstration proposes; not shown.
        """
        self._examples, self._fault, self.terminated = examples, "nothing was proposed", False
        return "Examples:\n" + "\n".join(map(_text, examples))

    def propose(self, **task: Any) -> str:
        """Open the task, and end; the verdict says whether it is one."""
        self.terminated = True
        if _text(task) in map(_text, self._examples):
            self._fault = "it is an example"
            return "That is an example."
        try:
            with contextlib.closing(self._spec.open()) as episode:
                first = episode.reset(Task("proposed", "train", task))
                holds = episode.verdict().success
        except EnvironmentFault as error:
            self._fault = f"it cannot begin: {error}"
            return self._fault
        self._fault = "it holds at reset" if holds else None
        return f"It begins: {first}"

    def get_reward(self) -> Verdict:
        """Return 1 where the call opened a task that is no example and does not hold at once; else 0, and why."""
        opened = self._fault is None
        return Verdict(float(opened), opened, "propose", self.version, {} if opened else {"why": self._fault})

    @classmethod
    def demonstrate(
        cls, task: Mapping[str, Any], messages: Sequence[Message], rng: random.Random, noise: float
    ) -> Message:
        """Return the call that proposes the wanted task; with probability `noise` an example."""
        return call_message("propose", task["wanted"] if rng.random() >= noise else rng.choice(task["examples"]))

    def __deepcopy__(self, memo: dict[int, Any]) -> _Propose:
        return twin(self)  # nothing in it is changed in place


def _tasks(spec: EnvSpec) -> Iterator[Args]:
    """Yield the arguments of train tasks that can be proposed, as JSON has them."""
    for task in spec.tasks("train"):
        yield proposable(task.args)


def proposable(args: Mapping[str, Any]) -> Args:
    """Return a task's arguments as JSON has them, without its name."""
    return {name: value for name, value in json.loads(json.dumps(dict(args))).items() if name != "task_id"}


def _schema(spec: EnvSpec, some: Sequence[Args]) -> dict[str, Any]:
    """Return the schema of `propose`: types from the hints of `reset`, else from the values of tasks."""
    reset: Any = spec.cls.reset  # type: ignore[attr-defined]
    described = parse_docstring(reset.__doc__ or "")[1]
    hints: dict[str, Any] = {}
    with contextlib.suppress(Exception):  # names that cannot be resolved
        hints = typing.get_type_hints(reset)
    found = {name: value for one in reversed(some) for name, value in one.items() if value is not None}
    properties = {
        name: {**_type(hints.get(name), value), "description": described.get(name, "").partition(" **")[0]}
        for name, value in sorted(found.items())
    }
    shape = {"type": "object", "properties": properties,
             "required": [name for name in properties if all(one.get(name) is not None for one in some)]}  # fmt: skip
    function = {"name": "propose", "description": "Propose a task.", "parameters": shape}
    return {"type": "function", "function": function}


def _type(hint: Any, value: Any) -> dict[str, Any]:
    with contextlib.suppress(SchemaFault):
        if shape := hint_schema(hint):  # {} of Any
            return shape
    if isinstance(value, list):
        return {"type": "array", "items": _type(None, value[0]) if value else {}}
    return hint_schema(type(value))


def _text(args: Mapping[str, Any]) -> str:
    return json.dumps(args, sort_keys=True, ensure_ascii=False)
