"""Components made from the configuration: environment, tasks, policy, reward, critic, and limits of episodes.

Nothing is written.
"""

from __future__ import annotations

import inspect
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent import catalog, parameters
from offline_agent.config.build_prefs import BuildPrefsConfig, EnvConfig, EnvSection, PolicySection, TasksSection
from offline_agent.config.evaluate import EvaluateConfig
from offline_agent.config.iterate import IterateConfig
from offline_agent.config.refine_grpo import RefineGrpoConfig
from offline_agent.config.training import TrainSftConfig
from offline_agent.crash_notes import noted
from offline_agent.envs.base import EnvSpec
from offline_agent.envs.checks.trial import MOST, episode_length
from offline_agent.envs.settings import DEFAULT_STEPS
from offline_agent.errors import ConfigError, OfflineAgentError, collect
from offline_agent.judges.judge import Judge, make_judge
from offline_agent.judges.rewards import CompositeReward
from offline_agent.policies.base import DEFAULT_MODEL, Policy
from offline_agent.records import Task, Trajectory
from offline_agent.runner.pipeline import C, Facts
from offline_agent.sandbox import check_trust, configure
from offline_agent.store.files import open_text
from offline_agent.store.provenance import hash_json

if TYPE_CHECKING:
    from offline_agent.training.step_model import StepModel

Config = BuildPrefsConfig | EvaluateConfig


@dataclass(frozen=True, slots=True)
class Parts:
    """The components of a search or an evaluation, made from the configuration."""

    spec: EnvSpec
    tasks: Sequence[Task]
    policy: Policy
    reward: CompositeReward | None


def make_parts(config: Config) -> Parts:
    """Return the components that the configuration names.

    Raises:
        ConfigError: With the faults of all components.
    """
    faults: list[str] = []
    spec = collect(faults, lambda: make_environment(config))
    reward = collect(faults, lambda: make_reward(config))
    collect(faults, lambda: own_critic(config.search.critic))
    tasks = collect(faults, lambda: make_tasks(spec, config.tasks)) if spec else None
    chosen = collect(faults, lambda: _policy_arguments(config.policy))  # checked even if the environment is faulty
    policy = collect(faults, lambda: make_policy(config.policy, spec)) if chosen and spec and not faults else None
    if policy is not None:
        collect(faults, lambda: check_sandbox(spec, getattr(policy, "trusted", False)))
    if faults or spec is None or tasks is None or policy is None:
        raise ConfigError(faults)
    return Parts(spec, tasks, policy, reward)


def make_environment(config: EnvConfig) -> EnvSpec:
    """Return the environment, with the judge that gives its verdicts; raises ConfigError with the faults of both."""
    faults: list[str] = []
    configure(config.sandbox.allow, config.sandbox.command)
    judge = collect(faults, lambda: make_judge(config.judge.name, dict(config.judge.model_extra or {})))
    most, size = config.limits.environments or MOST, config.limits.max_observation_chars
    load = partial(load_environment, config.env, judge, max_observation_chars=size, most_open=most)
    with noted(f"loading env={config.env.name}"):
        spec = collect(faults, load)
    if faults:
        raise ConfigError(faults)
    found: EnvSpec = spec
    return found


def load_environment(section: EnvSection, judge: Judge | None = None, **options: Any) -> EnvSpec:
    """Return the environment of a section; see `EnvSpec.load`."""
    return EnvSpec.load(
        section.name, dict(section.model_extra or {}), python=section.python, isolated=section.isolate == "process",
        judge=judge, **options,
    )  # fmt: skip


def check_sandbox(spec: EnvSpec, trusted: bool) -> None:
    """Raise ConfigError where a policy's code would run in a sandbox that is weaker than `sandbox.allow`.

    Args:
        spec: The environment; nothing is checked where it runs no code.
        trusted: The policy is a script of this program or of the environment.
    """
    if spec.sandbox is not None:
        check_trust(trusted)


def make_reward(config: Config | RefineGrpoConfig) -> CompositeReward | None:
    """Return the composite reward; None where no key of it is set: then the score of the verifier is the reward."""
    arguments = dict(config.reward.model_extra or {})
    if not arguments:
        return None
    return CompositeReward(**parameters.keywords("reward", CompositeReward, arguments, {}))


def own_critic(name: str | None) -> Callable[..., Any] | None:
    """Return the callable that `search.critic` names; None for `policy` and null.

    Raises:
        ConfigError: It cannot be loaded, or cannot be called with a history, its proposals and a seed.
    """
    if name is None or name == "policy":
        return None
    if ":" not in name:
        return _step_model("search.critic", name).critic
    critic: Callable[..., Any] = catalog.load("search.critic", name)
    try:
        inspect.signature(critic).bind("context", "actions", "seed")
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"search.critic: {name} cannot be called as critic(context, actions, seed): {error}. It returns one score "
            "in [0, 1], or None, for each action"
        ) from error
    return critic


def judge_of_turns(key: str, name: str) -> Callable[[Trajectory], Sequence[float]]:
    """Return what says what each turn of a trajectory is worth: a callable's `module:name`, or a step model's folder.

    Raises:
        ConfigError: It cannot be loaded.
    """
    found: Callable[[Trajectory], Sequence[float]]
    found = catalog.load(key, name) if ":" in name else _step_model(key, name).turns
    return found


def _step_model(key: str, folder: str) -> StepModel:
    from offline_agent.training.step_model import step_model

    with noted(f"loading {key}={folder}"):
        return step_model(folder, key)


def make_tasks(spec: EnvSpec, section: TasksSection) -> list[Task]:
    """Return the tasks of the configuration, in order.

    Raises:
        ConfigError: The task file is faulty, or there is no task.
    """
    source = spec.tasks(section.split) if section.file is None else _from_file(spec, Path(section.file), section.split)
    end = None if section.n is None else section.offset + section.n
    tasks = list(itertools.islice(source, section.offset, end))
    if not tasks:
        raise ConfigError(
            f"tasks: none left: {spec.name} has no {section.split} task from number {section.offset} on; "
            "lower tasks.offset or name another tasks.split"
        )
    if spec.judge is not None:
        spec.judge.check(tasks[0])
    return tasks


def _from_file(spec: EnvSpec, path: Path, split: str) -> Iterator[Task]:
    lines: dict[str, int] = {}
    try:
        with open_text(path) as file:
            for number, line in enumerate(file):
                if line.strip():
                    try:
                        entry = json.loads(line)
                    except ValueError as error:
                        raise ConfigError(f"tasks.file: {path}, line {number + 1} is no JSON: {error}") from error
                    task = spec.task(entry, split, number)
                    if (first := lines.setdefault(task.task_id, number)) != number:
                        raise ConfigError(
                            f"tasks.file: {path}, lines {first + 1} and {number + 1} have the same task_id, "
                            f"{task.task_id!r:.80}; results are kept by it: give each its own, or leave task_id out"
                        )
                    yield task
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"tasks.file: cannot read {path}: {error}") from error


def make_policy(section: PolicySection, spec: EnvSpec) -> Policy:
    """Return the policy: constructed with the keys that are set, and with the demonstrator of the environment if asked.

    Raises:
        ConfigError: No such policy, or an argument that its constructor does not take.
    """
    with noted(f"loading policy={section.name} {section.model or ''}".rstrip()):
        kind, arguments = _policy_arguments(section)
        if "demonstrate" in arguments:
            arguments["demonstrate"] = spec.demonstrate
        policy: Policy = kind(**arguments)
        return policy


def _policy_arguments(section: PolicySection) -> tuple[Any, dict[str, Any]]:
    kind = catalog.resolve("policy", section.name)
    given = section.given()
    if "temperature" in given and not parameters.accepted(kind, {"temperature": 0}):
        del given["temperature"]  # requests carry the temperature
    return kind, parameters.keywords("policy", kind, given, section.defaults(), {"demonstrate": None})


def fixed_keys(config: Config) -> dict[str, str]:
    """Return why keys that may grow when a run is resumed cannot in this one."""
    budget = config.search.budget
    fixed = {
        "search.simulations": "a tree is not searched on when it is finished, for its last simulations ran without "
        "those that would come after them; more tasks (tasks.n) can be added"
    }
    if any(limit is not None for limit in (budget.tokens, budget.prefilled, budget.tool_calls)):
        fixed["tasks.n"] = "search.budget is divided among the tasks, and finished trees had their share of it"
    if config.launcher != "local":
        fixed |= dict.fromkeys(("tasks.n", "attempts"), f"launcher={config.launcher} has cut the run into shards")
    return fixed


def facts_of(config: Config, parts: Parts, other: Policy | None = None) -> Facts:
    """Return the facts about the components: identities, hashes, what may differ on resume, whether it is exact.

    Args:
        config: The configuration.
        parts: The components.
        other: A policy that plays beside theirs; None = none.
    """
    policies = {"policy": parts.policy, **({} if other is None else {"against": other})}
    renderer, identities = parts.policy.renderer, {label: dict(one.identity) for label, one in policies.items()}
    hashes: dict[str, Any] = {"task_set": hash_tasks(parts.tasks)}
    for label, name in (("policy", "model"), ("against", "against_model")):
        if (known := identities.get(label, {}).get("model_hash")) is not None:
            hashes[name] = known
    if renderer is not None:
        hashes["tokenizer"], hashes["chat_template"] = renderer.tokenizer_hash, renderer.template_hash
    tags = {"environment": parts.spec.name, "policy": parts.policy.name}
    tags |= {} if config.policy.model is None else {"model": config.policy.model}
    manifest = {
        "hashes": hashes, "env": parts.spec.identity, **identities, "batch_invariant": parts.policy.batch_invariant,
        "served": {label: one.evidence() for label, one in policies.items() if hasattr(one, "evidence")},
    }  # fmt: skip
    free = tuple(f"policy.{name}" for name in getattr(parts.policy, "free_arguments", ()))
    return Facts(manifest, tags, free, fixed_keys(config), lambda count: hash_tasks(parts.tasks[:count]))


def hash_tasks(tasks: Iterable[Task]) -> str:
    """Return a hash of tasks, 32 hex digits."""
    return hash_json([[task.task_id, task.split, dict(task.args)] for task in tasks])



_SECTIONS = {  # the section with max_steps; "" = the configuration itself
    BuildPrefsConfig: "search",
    EvaluateConfig: "",
    IterateConfig: "search",
    RefineGrpoConfig: "rollouts",
    TrainSftConfig: "demonstrations",
}


def completed(config: C) -> C:
    """Return the configuration with `max_steps` and `max_tokens` filled in where they are left to their defaults.

    `max_steps` = 0 becomes the environment's own (`trial.episode_length`). `rollouts.max_tokens` of `refine_grpo` and
    `policy.max_tokens` of `iterate` become the model's own (`policies.hf.loading.action_limit`): of `iterate`, the
    first model's, for all iterations alike. A faulty environment or model is left to `prepare`, which says so.
    """
    name = _SECTIONS.get(type(config))
    changes: dict[str, Any] = {}
    if name is not None:
        section: Any = getattr(config, name) if name else config
        reads_rows = isinstance(config, TrainSftConfig) and (config.data.runs or config.data.files)
        if section.max_steps == 0 and not reads_rows:
            steps = _steps(config)
            changes |= {name: section.model_copy(update={"max_steps": steps})} if name else {"max_steps": steps}
    if isinstance(config, RefineGrpoConfig) and config.rollouts.max_tokens == 0:
        rollouts = changes.get("rollouts", config.rollouts)
        changes["rollouts"] = rollouts.model_copy(update={"max_tokens": _tokens(config.model.path)})
    if isinstance(config, IterateConfig) and config.policy.max_tokens is None:
        changes["policy"] = config.policy.model_copy(update={"max_tokens": _tokens(config.policy.model)})
    return config.model_copy(update=changes) if changes else config


def _steps(config: Any) -> int:
    try:
        judge = make_judge(config.judge.name, dict(config.judge.model_extra or {}))
        return episode_length(load_environment(config.env, judge))
    except OfflineAgentError:
        return DEFAULT_STEPS


def _tokens(model: str | None) -> int:
    from offline_agent.policies.hf.loading import MOST_ACTION_TOKENS, action_limit_of

    try:
        return action_limit_of(str(DEFAULT_MODEL) if model is None else model)
    except OfflineAgentError:
        return MOST_ACTION_TOKENS
