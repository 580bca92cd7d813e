"""Our episodes under TRL's trainer: two updates of a plain GRPOTrainer whose roll-outs play through `Episodes`.

python examples/trl_rollout_func.py

Many episodes in flight, each step of an environment under a time limit, keys and values kept across turns; an episode
ends when it is over, and what could not be judged is left out instead of being scored 0.
"""

import itertools
import tempfile

from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer

from offline_agent.envs.base import EnvSpec
from offline_agent.policies.base import DEFAULT_MODEL
from offline_agent.policies.hf.policy import HFPolicy
from offline_agent.training.trl_rollout import prompts, reward, rollout_func


def trainer(folder, play, policy, tasks, **changes):
    settings = dict(
        output_dir=folder, max_steps=2, per_device_train_batch_size=8, num_generations=4, learning_rate=1e-5,
        loss_type="grpo", logging_steps=1, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to="none",
        save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(DEFAULT_MODEL),
        reward_funcs=reward,
        args=GRPOConfig(**{**settings, **changes}),
        train_dataset=prompts(tasks),
        processing_class=policy.renderer.tokenizer,
        rollout_func=play,
    )


if __name__ == "__main__":
    spec, policy = EnvSpec.load("shop"), HFPolicy(max_tokens=64)
    tasks = list(itertools.islice(spec.tasks("train"), 32))
    with tempfile.TemporaryDirectory() as folder, rollout_func(spec, policy, max_steps=15) as play:
        training = trainer(folder, play, policy, tasks)
        training.train()
        for record in training.state.log_history[:-1]:
            print({key: record[key] for key in ("step", "reward", "success", "unscored", "completions/mean_length")})
