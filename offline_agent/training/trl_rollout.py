"""Our episodes under a plain GRPOTrainer: its roll-out function, its reward function and its data set.

    spec, policy = EnvSpec.load("shop"), HFPolicy(temperature=1.0)
    with rollout_func(spec, policy, max_steps=15) as play:
        GRPOTrainer(model, reward, args, prompts(spec.tasks("train")), rollout_func=play, ...).train()

For those who want to keep TRL's trainer as it is; `refine_grpo` needs none of this.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.pool import EnvPool
from offline_agent.errors import ConfigError, DataError
from offline_agent.policies.base import Policy
from offline_agent.records import Task
from offline_agent.rendering.columns import trajectory_columns
from offline_agent.rollouts.attempts import Attempt
from offline_agent.rollouts.episodes import AttemptRequest, Episodes
from offline_agent.seeding import derive_seed

if TYPE_CHECKING:
    from datasets import Dataset

    from offline_agent.rendering.renderer import Renderer


Message = Mapping[str, Any]

_HOW = "make the data set with offline_agent.training.trl_rollout.prompts(tasks)"
# What TRL would do to the logits and our policies do not: where it is on, TRL's log-probs are not of what was sampled.
_OFF = {"top_p": (1.0,), "top_k": (0, None, -1), "min_p": (None, 0.0), "repetition_penalty": (1.0,)}


def prompts(tasks: Iterable[Task]) -> Dataset:
    """Return a data set for GRPOTrainer: one row per task, which stands in the prompt's only message.

    TRL gives a roll-out function the prompts and no other column. What the policy sees is the environment's first
    observation, rendered by the policy's own renderer; the message's content is the task's id, for logs.

    Args:
        tasks: As `EnvSpec.tasks` yields them.
    """
    from datasets import Dataset

    rows = []
    for task in tasks:
        facts = json.dumps({"task_id": task.task_id, "split": task.split, "args": dict(task.args)})
        rows.append({"prompt": [{"role": "user", "content": task.task_id, "task": facts}]})
    return Dataset.from_list(rows)


def reward(
    completions: Sequence[Any],
    reward: Sequence[float | None] | None = None,
    success: Sequence[bool | None] | None = None,
    log_metric: Callable[[str, float], None] | None = None,
    **_: Any,
) -> list[float | None]:
    """Return the environment's reward of each episode, for `GRPOTrainer(reward_funcs=…)`.

    None = unscored: TRL leaves it out of its group's mean and spread, and gives it no advantage.

    Args:
        completions: TRL's; only counted.
        reward, success: Verdicts of the episodes of `rollout_func`.
        log_metric: TRL's; gets `success` and `unscored`, shares of the episodes.

    Raises:
        ConfigError: The episodes were not played by `rollout_func`.
    """
    if reward is None or len(reward) != len(completions):
        raise ConfigError(
            "trl_rollout.reward: got no rewards of episodes; use it with GRPOTrainer(rollout_func=rollout_func(...))"
        )
    if log_metric is not None and reward:
        known = [float(one) for one in success or () if one is not None]
        if known:
            log_metric("success", sum(known) / len(known))
        log_metric("unscored", sum(one is None for one in reward) / len(reward))
    return list(reward)


class RolloutFunc:
    """A roll-out function for `GRPOTrainer(rollout_func=…)` that plays through our episodes.

    It is called with prompts and plays their tasks. Close it, or use it in a `with`.

    Args:
        spec: The environment.
        policy: Samples actions, at the trainer's temperature; must give token ids. By default it takes the trainer's
            weights before it plays with a new version of them (`HFPolicy.take_weights`).
        pool: Steps environments; None = one of its own, with 4 threads and 30 seconds for each step.
        refresh: Called with the trainer before new weights play, in place of `policy.take_weights(model)`: for a
            server, or where the trainer's model is sharded.
        seed: With the trainer's step, of all samples: a resumed run plays what an unbroken one does.
        options: `max_steps` (15), `max_tokens`, `in_flight` (64) and `reset_seconds` of `rollouts.episodes.Episodes`.
            TRL's `max_completion_length` cuts nothing here (and is what `loss_type="dr_grpo"` divides by, observations
            included).

    Attributes:
        attempts: The last call's episodes, one per prompt.

    Raises:
        ConfigError: The policy has no tokenizer, its chat template does not append, or it cannot take weights and no
            `refresh` is given.
    """

    def __init__(
        self,
        spec: EnvSpec,
        policy: Policy,
        *,
        pool: EnvPool | None = None,
        refresh: Callable[[Any], None] | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        if policy.renderer is None:
            raise ConfigError(f"rollout_func: policy {policy.name} has no tokenizer: its turns cannot be trained on")
        if not policy.renderer.appends:
            raise ConfigError(
                "rollout_func: the chat template renders earlier turns anew, and an episode of TRL is one sequence; "
                "give policy.chat_template= one that appends (qwen, llama3, compact, plain), or use refine_grpo"
            )
        if refresh is None and not hasattr(policy, "take_weights"):
            raise ConfigError(
                f"rollout_func: policy {policy.name} has no take_weights(model); use the hf policy, or say with "
                "refresh= how it gets the trainer's weights"
            )
        self._spec, self._policy, self._options, self._seed = spec, policy, options, seed
        self._renderer: Renderer = policy.renderer
        self._own_pool = pool is None
        self._pool = pool if pool is not None else EnvPool()
        self._engine = policy.engine()
        self._refresh = refresh or self._take_weights
        self._own_refresh = refresh is None
        self._checked: Any = None
        self._step = -1  # the trainer's, when last played
        self._calls: Counter[str] = Counter()  # at that step, by mode
        self.attempts: list[Attempt] = []

    def __call__(self, prompts: Sequence[Sequence[Message]], trainer: Any) -> dict[str, Any]:
        """Play one episode for each prompt, those that stand there several times included.

        Args:
            prompts: The rows' prompts, as `prompts` made them.
            trainer: The GRPOTrainer.

        Returns:
            Per episode: `prompt_ids` int [P], up to the first turn; `completion_ids` int [n], from there to the last
            turn's last id; `env_mask` int [n], 1 = sampled by the policy, all 0 where the episode is unscored;
            `logprobs` float [n], 0.0 where not sampled (None for all where TRL's are not at temperature 1);
            `reward`, `success` (None = unscored) and `error`, which says why.

        Raises:
            ConfigError: The trainer's settings do not go with this; every fault.
            PolicyError: The policy failed too often in a row.
            EnvironmentFault: The environment hung too often.
        """
        self._check(trainer)
        step = int(trainer.state.global_step)
        if step != self._step:
            self._refresh(trainer)
            self._step = step
            self._calls.clear()
        mode = "train" if trainer.model.training else "eval"
        self._calls[mode] += 1
        rank = int(trainer.accelerator.process_index)
        seed = derive_seed(self._seed, "trl", mode, rank, step, self._calls[mode])
        self.attempts = self._play([_task(prompt, at) for at, prompt in enumerate(prompts)], seed, trainer.temperature)
        rows = [self._row(attempt) for attempt in self.attempts]
        known = trainer.temperature == 1.0 and any(row.logps is not None for row in rows)
        return {
            "prompt_ids": [row.prompt for row in rows],
            "completion_ids": [row.ids for row in rows],
            "logprobs": [row.logps or [None] * len(row.ids) for row in rows] if known else None,
            "env_mask": [row.mask for row in rows],
            "reward": [row.reward for row in rows],
            "success": [None if row.reward is None else a.success for row, a in zip(rows, self.attempts, strict=True)],
            "error": [row.error for row in rows],
        }

    def close(self) -> None:
        """Stop the engine, and the pool where none was given; the policy stays open."""
        self._engine.close()
        if self._own_pool:
            self._pool.close()

    def __enter__(self) -> RolloutFunc:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _play(self, tasks: Sequence[Task], seed: int, temperature: float) -> list[Attempt]:
        copies: Counter[str] = Counter()
        asks = []
        for task in tasks:
            asks.append(AttemptRequest(task, "sampled", copies[task.task_id]))
            copies[task.task_id] += 1
        episodes = Episodes(
            self._spec, self._engine, self._pool, seed=seed, temperature=temperature, segment=self._renderer.segment,
            **self._options,
        )  # fmt: skip
        ended = {(attempt.task.task_id, attempt.number): attempt for attempt in episodes.play(asks)}
        return [ended[ask.task.task_id, ask.number] for ask in asks]

    def _row(self, attempt: Attempt) -> _EpisodeRow:
        reward, error = attempt.reward, attempt.verdict.error
        if attempt.context is None or not attempt.steps:
            return self._nothing(error or "the policy never acted", reward)
        if any(step.action.token_ids is None for step in attempt.steps):
            raise ConfigError(f"rollout_func: policy {self._policy.name} gives no token ids: nothing was sampled here")
        try:
            columns = trajectory_columns(self._renderer, attempt.context)
        except DataError as fault:  # ids that are not what was played: nothing may be learnt from them
            return self._nothing(str(fault), reward)
        start = len(self._renderer.context_ids(attempt.context.lineage()[0]))
        ids, mask, logps = (columns[name] for name in ("input_ids", "action_mask", "logps"))
        if len(ids) == start:
            return self._nothing(error or "the policy sampled no token at all", reward)
        # With no advantage an unscored episode would still enter TRL's KL term and its count of tokens.
        shown = mask[start:] if reward is not None else [0] * (len(ids) - start)
        return _EpisodeRow(ids[:start], ids[start:], shown, None if logps is None else logps[start:], reward, error)

    def _nothing(self, error: str, reward: float | None) -> _EpisodeRow:
        """Return a row of one token that is not trained on, for its group's mean: TRL fails on an empty completion."""
        end = self._renderer.end_id
        return _EpisodeRow([end], [end], [0], [0.0], reward, error)

    def _take_weights(self, trainer: Any) -> None:
        learner: Any = self._policy  # that it takes weights was looked at when this was made
        learner.take_weights(trainer.accelerator.unwrap_model(trainer.model))

    def _check(self, trainer: Any) -> None:
        """Refuse, once for each trainer, settings under which something else than our agent tokens would be trained."""
        if self._checked is trainer:
            return
        faults = []
        if getattr(trainer, "tools", None):
            faults.append("tools=, environment_factory=: with them TRL ignores env_mask; the environment has the tools")
        for key, allowed in _OFF.items():
            if (value := getattr(trainer, key, allowed[0])) not in allowed:
                faults.append(f"{key}: got {value!r}, allowed: {allowed[0]}; episodes sample from the whole softmax")
        ours, theirs = self._renderer.tokenizer, trainer.processing_class
        if ours is not theirs and ours.get_vocab() != theirs.get_vocab():
            faults.append("processing_class: it has other ids than the policy's tokenizer; give both the same")
        if trainer.mask_truncated_completions and self._renderer.end_id not in trainer.eos_token_ids:
            faults.append(
                f"mask_truncated_completions: turns end with id {self._renderer.end_id}, which TRL does not know "
                f"({trainer.eos_token_ids}): it would mask every episode; set model.generation_config.eos_token_id"
            )
        if trainer.use_vllm and trainer.temperature != 1.0:
            faults.append("use_vllm: its correction needs log-probs at TRL's temperature; set temperature=1.0")
        sharded = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
        if sharded and self._own_refresh:
            faults.append("the trainer's model is sharded; say with refresh= how the policy gets its weights")
        if faults:
            raise ConfigError([f"rollout_func: {fault}" for fault in faults])
        self._checked = trainer


rollout_func = RolloutFunc


class _EpisodeRow(NamedTuple):
    prompt: list[int]
    ids: list[int]
    mask: list[int]
    logps: list[float] | None
    reward: float | None
    error: str | None


def _task(prompt: Any, at: int) -> Task:
    try:
        facts = json.loads(prompt[-1]["task"])
        return Task(facts["task_id"], facts["split"], facts["args"])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ConfigError(f"rollout_func: the last message of prompt {at} names no task; {_HOW}") from error
