"""The environment class as it is, in TRL's own loop: two updates of a plain GRPOTrainer on the embedded shop.

python examples/trl_environment_factory.py

TRL reads tools, rewards and first observations from the class. It has no way to be told that an episode is over: after
the purchase it asks the model again, up to `max_tool_calling_iterations`. `refine_grpo` has no such limits.
"""

import copy
import itertools
import tempfile

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

from offline_agent.envs.shop import Shop
from offline_agent.policies.base import DEFAULT_MODEL


def trainer(folder, **changes):
    tokenizer = AutoTokenizer.from_pretrained(DEFAULT_MODEL)
    tokenizer.response_template = copy.deepcopy(qwen3_template)  # TRL knows it by the template's text for known models
    prompt = [{"role": "system", "content": Shop.system_prompt}, {"role": "user", "content": ""}]
    rows = [{"prompt": prompt, **task} for task in itertools.islice(Shop.tasks("train"), 32)]
    settings = dict(
        output_dir=folder, max_steps=2, per_device_train_batch_size=8, num_generations=4, learning_rate=1e-5,
        max_completion_length=1200, max_tool_calling_iterations=12, loss_type="grpo", logging_steps=1,
        use_cpu=True, bf16=False, gradient_checkpointing=False, report_to="none", save_strategy="no",
        disable_tqdm=True,
    )  # fmt: skip
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(DEFAULT_MODEL),
        args=GRPOConfig(**{**settings, **changes}),
        train_dataset=Dataset.from_list(rows, on_mixed_types="use_json"),  # `options` has other keys in other rows
        processing_class=tokenizer,
        environment_factory=Shop,
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        training = trainer(folder)
        training.train()
        for record in training.state.log_history[:-1]:
            print({key: record[key] for key in ("step", "reward", "tools/call_frequency", "completions/mean_length")})
