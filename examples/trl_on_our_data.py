"""TRL alone on the files of a run: a plain SFTTrainer on the successes, then a plain DPOTrainer on the step pairs.

python -m offline_agent.pipelines.build_prefs env=shop policy=noisy run_dir=runs/demo
python examples/trl_on_our_data.py runs/demo

Nothing of this package is imported. docs/data.md says which trainer may read which table, and what they leave unused.
"""

import sys
import tempfile

from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

QUIET = dict(
    max_steps=2, per_device_train_batch_size=4, max_length=2048, logging_steps=1, use_cpu=True, bf16=False,
    report_to="none", save_strategy="no", disable_tqdm=True, gradient_checkpointing=False,
)  # fmt: skip


def train(run_dir, model_path, folder):
    """Return the logged losses of both trainers."""
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    model = AutoModelForCausalLM.from_pretrained(model_path)
    good = load_dataset("parquet", data_files=f"{run_dir}/filtered/*.parquet", split="train")
    # needs a chat template with {% generation %} markers, as the embedded model's: only the assistant's turns count
    config = SFTConfig(f"{folder}/sft", assistant_only_loss=True, learning_rate=1e-4, **QUIET)
    sft = SFTTrainer(model, config, train_dataset=good, processing_class=tokenizer)
    sft.train()
    pairs = load_dataset("parquet", data_files=f"{run_dir}/preferences/*.parquet", split="train")
    config = DPOConfig(f"{folder}/dpo", beta=0.1, learning_rate=1e-5, **QUIET)
    dpo = DPOTrainer(sft.model, args=config, train_dataset=pairs, processing_class=tokenizer)
    dpo.train()
    return [[row["loss"] for row in each.state.log_history if "loss" in row] for each in (sft, dpo)]


if __name__ == "__main__":
    where = sys.argv[2] if len(sys.argv) > 2 else "offline_agent/assets/default_model"
    with tempfile.TemporaryDirectory() as scratch:
        print("losses of SFT and DPO:", train(sys.argv[1], where, scratch))
