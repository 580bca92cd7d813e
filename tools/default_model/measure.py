"""How good a model is at the shop: success, pass@k, malformed and miscopied calls."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from offline_agent.envs.base import EnvSpec, Episode
from offline_agent.envs.play import begin, execute, extend, to_step
from offline_agent.envs.shop import Shop
from offline_agent.errors import JudgeError, PolicyError
from offline_agent.policies.base import ProposeRequest
from offline_agent.policies.hf.policy import HFPolicy
from offline_agent.records import Action, Context, Task
from offline_agent.seeding import derive_seed

MAX_STEPS = 15
MAX_TOKENS = 48
GOALS_AT_ONCE = 25


@dataclass(slots=True)
class ShopAttempt:
    """One episode while it is played.

    Attributes:
        calls: Actions taken.
        malformed: Those that could not be parsed, or name no tool, or have arguments the schema refuses.
        miscopied: Those with a word in an argument that stands nowhere in the conversation before.
        refused: Those the shop answered with an error.
        repeated: Those equal to the action just before.
        score, success: The verdict; an episode cut at `MAX_STEPS` has bought nothing.
    """

    episode: Episode
    context: Context
    calls: int = 0
    malformed: int = 0
    miscopied: int = 0
    refused: int = 0
    repeated: int = 0
    score: float = 0.0
    success: bool = False
    terminated: bool = False
    last_key: str = field(default="", repr=False)


def measure(
    model: Path, split: str = "validation", tasks: int = 200, samples: int = 8, seed: int = 0
) -> dict[str, Any]:
    """Play the first `tasks` goals of `split` greedily once and `samples` times at temperature 0.7.

    Returns:
        Rates in [0, 1] by mode; `success_half_interval` is half a 95 % interval clustered by goal, `pass_at_k` the
        share of goals that at least one of the samples bought rightly.
    """
    policy = HFPolicy(model, max_tokens=MAX_TOKENS)
    spec = EnvSpec(Shop)
    goals = list(spec.tasks(split))[:tasks]
    out = {
        "split": split,
        "tasks": len(goals),
        "samples": samples,
        "parameters": sum(weights.numel() for weights in policy.model.parameters()),
        "greedy": figures(play(policy, spec, goals, 1, 0.0, seed)),
        "temperature_0.7": figures(play(policy, spec, goals, samples, 0.7, seed)),
    }
    policy.close()
    return out


def figures(groups: Sequence[Sequence[ShopAttempt]]) -> dict[str, Any]:
    """Return the rates of attempts grouped by goal."""
    attempts = [attempt for group in groups for attempt in group]
    calls = sum(attempt.calls for attempt in attempts)
    by_goal = [mean(attempt.success for attempt in group) for group in groups]
    half = 1.96 * stdev(by_goal) / len(by_goal) ** 0.5 if len(by_goal) > 1 else float("nan")
    out = {
        "success": mean(by_goal),
        "success_half_interval": half,
        "mean_reward": mean(attempt.score for attempt in attempts),
        "mean_calls": calls / len(attempts),
        "out_of_steps": mean(not attempt.terminated for attempt in attempts),
        "malformed": sum(attempt.malformed for attempt in attempts) / calls,
        "miscopied": sum(attempt.miscopied for attempt in attempts) / calls,
        "refused": sum(attempt.refused for attempt in attempts) / calls,
        "repeated": sum(attempt.repeated for attempt in attempts) / calls,
    }
    if len(groups[0]) > 1:
        out[f"pass_at_{len(groups[0])}"] = mean(any(attempt.success for attempt in group) for group in groups)
    return {key: round(value, 4) for key, value in out.items()}


def play(
    policy: HFPolicy, spec: EnvSpec, tasks: Sequence[Task], samples: int, temperature: float, seed: int
) -> list[list[ShopAttempt]]:
    """Play `samples` episodes per task, many at once.

    Raises:
        PolicyError: The policy broke.
    """
    groups = [[_start(spec, task) for _ in range(samples)] for task in tasks]
    for start in range(0, len(groups), GOALS_AT_ONCE):
        numbered = list(enumerate(attempt for group in groups[start : start + GOALS_AT_ONCE] for attempt in group))
        for step in range(MAX_STEPS):
            live = [(number, attempt) for number, attempt in numbered if not attempt.terminated]
            requests = [
                ProposeRequest(a.context, (derive_seed(seed, a.context.task.task_id, number, step),), temperature)
                for number, a in live
            ]
            for (_, attempt), answer in zip(live, policy.propose(requests), strict=True):
                if isinstance(answer, PolicyError):
                    raise answer
                _advance(attempt, answer.actions[0])
    return groups


def _start(spec: EnvSpec, task: Task) -> ShopAttempt:
    episode = spec.open()
    return ShopAttempt(episode, begin(episode, task))


def _advance(attempt: ShopAttempt, action: Action) -> None:
    said = set(re.findall(r"\w+", " ".join(str(message["content"]) for message in attempt.context.messages()[1:])))
    arguments = [] if action.call is None else [value for value in action.call.arguments.values()]
    words = {word for value in arguments for word in re.findall(r"\w+", str(value))}
    result, verdict, _ = execute(attempt.episode, action)
    step = to_step(attempt.episode.tools, action, result)
    attempt.calls += 1
    attempt.malformed += result.fault is not None
    attempt.miscopied += result.fault is None and not words <= said
    attempt.refused += result.fault is None and (result.observation or "").startswith("error")
    attempt.repeated += step.key == attempt.last_key
    attempt.last_key = step.key
    if verdict is not None:
        if verdict.score is None or verdict.success is None:
            raise JudgeError(f"the shop could not judge {attempt.context.task.task_id}: {verdict.error}")
        attempt.score, attempt.success, attempt.terminated = verdict.score, verdict.success, True
    else:
        attempt.context = extend(attempt.context, step)
