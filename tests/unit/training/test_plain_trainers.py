"""TRL's own trainers, given whole files of a run: they train what the masks say, or refuse.

Each loss is compared with one computed here in float64, token by token, from the ids and masks in the same file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from offline_agent.preferences.dataset.export import pair_row
from offline_agent.preferences.records import PreferencePair
from offline_agent.records import Action, Step, ToolCall
from offline_agent.store.columns import table_schema
from tests.helpers import rows as rows_kit
from tests.helpers.rows import pair, refusal, trajectory

BETA = 0.5
WORDS = [("red tea", "blue cup"), ("tea", "cup"), ("green tea", "pot"), ("mug", "tray")]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with pairs of one turn a side, pairs of several, and successes, one of them a refusal."""
    single = [pair(n, *(side.split()[0] for side in words)) for n, words in enumerate(WORDS)]
    several = [pair(n, *words, kind="trajectory") for n, words in enumerate(WORDS[::2], 10)]
    good = [trajectory(n, words) for n, (words, _) in enumerate(WORDS)]
    path = tmp_path_factory.mktemp("plain") / "run"
    rows_kit.run(path, [single[0], several[0], *single[1:], several[1], uneven()], [*good, refusal(7)])
    return path


def uneven() -> dict[str, Any]:
    """Return a pair of an answer in words and a call whose arguments are of other types than the others' are."""
    call = ToolCall("search", {"query": ["tea"], "most": {"price": 3}})
    written = rows_kit.renderer().write("", call)
    answer = Step(Action("It is tea.", "It is tea."), "answer", "")
    step = Step(Action(written, "", call), "search", "no page")
    made = PreferencePair("step", rows_kit.start(9), (answer,), (step,), 0.75, 0.25, 4, 4, 0.9, None, None)
    return pair_row(made, rows_kit.renderer())


def whole(run_dir: Path, table: str) -> Any:
    """Return a table as the README loads it: every file, every column."""
    from datasets import load_dataset

    files = str(run_dir / table / "*.parquet")
    return load_dataset("parquet", data_files=files, split="train", cache_dir=str(run_dir.parent / "cache"))


def model(seed: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    size = rows_kit.renderer().vocab_size
    return LlamaForCausalLM(LlamaConfig(vocab_size=size, max_position_embeddings=2048, initializer_range=0.3, **shape))


def scorer() -> Any:
    """Return a reward model."""
    from transformers import LlamaForSequenceClassification

    shape = model(1).config
    shape.num_labels, shape.pad_token_id = 1, rows_kit.renderer().tokenizer.pad_token_id
    torch.manual_seed(3)
    return LlamaForSequenceClassification(shape)


def trained(kind: Any, options: Any, data: Any, folder: Path, count: int, **more: Any) -> float:
    """Return the loss of one update over all rows, at a learning rate of 0."""
    from transformers import AutoTokenizer

    from offline_agent.policies.base import DEFAULT_MODEL

    config = options(
        output_dir=str(folder), max_steps=1, per_device_train_batch_size=count, learning_rate=0.0, report_to=[],
        bf16=False, use_cpu=True, logging_steps=1, max_length=None, gradient_checkpointing=False, save_strategy="no",
        **more.pop("config", {}),
    )  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(DEFAULT_MODEL)
    more.setdefault("model", scorer() if kind.__name__ == "RewardTrainer" else model(1))
    trainer = kind(args=config, train_dataset=data, processing_class=tokenizer, **more)
    return float(trainer.train().training_loss)


def logps(of: Any, prompt: Sequence[int], ids: Sequence[int]) -> torch.Tensor:
    """Return float64 log-probabilities of `ids` after `prompt`."""
    every = torch.tensor([[*prompt, *ids]])
    with torch.no_grad():
        found = F.log_softmax(of.double()(every).logits[0, :-1], -1).gather(-1, every[0, 1:, None])[:, 0]
    return found[len(prompt) - 1 :] if prompt else found


def column(row: Mapping[str, Any], name: str) -> Any:
    """Return a token column, whatever stands before its name."""
    (found,) = [value for key, value in row.items() if key.removeprefix("tokens_") == name]
    return found


def closed(row: Mapping[str, Any], side: str) -> list[int]:
    """Return a side's ids with what the chat template writes after an ended turn, which TRL counts as the side's."""
    tokenizer = rows_kit.renderer().tokenizer
    text = tokenizer.apply_chat_template(row["prompt"] + row[side], tools=json.loads(row["tools"]), tokenize=False)
    every = tokenizer(text, add_special_tokens=False)["input_ids"]
    prompt, ids = column(row, "prompt_ids"), column(row, f"{side}_ids")
    assert every[: len(prompt) + len(ids)] == [*prompt, *ids]
    rest = every[len(prompt) + len(ids) :]
    assert not tokenizer.decode(rest).strip() and set(column(row, f"{side}_mask")) == {1}
    return [*ids, *rest]


def ratios(data: Any) -> list[tuple[float, float]]:
    """Return log π/π_ref of both sides of every pair, over the policy's own tokens."""
    policy, reference = model(1), model(2)
    return [
        tuple(
            float(logps(policy, column(row, "prompt_ids"), ids).sum())
            - float(logps(reference, column(row, "prompt_ids"), ids).sum())
            for ids in (closed(row, "chosen"), closed(row, "rejected"))
        )
        for row in data
    ]  # type: ignore[return-value]


TAKEN = {
    "attention_mask", "assistant_masks", "chat_template_kwargs", "chosen_ids", "chosen_input_ids", "completion",
    "completion_ids", "completion_mask", "conversations", "image", "images", "input_ids", "KL_completion_ids", "label",
    "labels", "margin", "position_ids", "prompt_ids", "prompt_input_ids", "ref_chosen_logps", "ref_KL_logps",
    "ref_logps", "ref_rejected_logps", "rejected_ids", "rejected_input_ids", "seq_lengths", "text",
}  # fmt: skip
"""Columns that a trainer of TRL reads or writes, beside those of messages."""


def test_no_column_has_a_name_that_a_trainer_takes_for_its_own() -> None:
    messages = {
        "preferences": {"prompt", "chosen", "rejected", "tools"},
        "multiturn_preferences": {"prompt", "tools"},
        "filtered": {"messages", "tools"},
        "trajectories": {"messages", "tools"},
    }
    for table, meant in messages.items():
        names = set(table_schema(table).names)
        assert names & {*TAKEN, "prompt", "chosen", "rejected", "messages", "tools"} == meant, table


@pytest.mark.parametrize("options", [{}, {"completion_only_loss": True}])
def test_sft_trainer_trains_the_policys_turns_alone(run_dir: Path, tmp_path: Path, options: Any) -> None:
    from trl import SFTConfig, SFTTrainer

    data = whole(run_dir, "filtered")
    found = trained(SFTTrainer, SFTConfig, data, tmp_path, len(data), config={"assistant_only_loss": True, **options})
    scored = []
    for row in data:
        ids, mask = column(row, "input_ids"), column(row, "action_mask")
        scored.append(logps(model(1), (), ids)[torch.tensor(mask[1:], dtype=torch.bool)])
    assert len(data) == 5 and found == pytest.approx(-float(torch.cat(scored).mean()), rel=1e-5)


def test_dpo_trainer_trains_the_policys_turns_alone(run_dir: Path, tmp_path: Path) -> None:
    from trl import DPOConfig, DPOTrainer

    data = whole(run_dir, "preferences")
    found = trained(DPOTrainer, DPOConfig, data, tmp_path, len(data), config={"beta": BETA}, ref_model=model(2))
    wanted = [-F.logsigmoid(torch.tensor(BETA * (chosen - rejected))) for chosen, rejected in ratios(data)]
    assert len(data) == 5 and found == pytest.approx(float(torch.stack(wanted).mean()), rel=1e-4)


def test_dpo_trainer_does_not_take_stored_log_probabilities_for_its_own(run_dir: Path, tmp_path: Path) -> None:
    from trl import DPOConfig, DPOTrainer

    data, options = whole(run_dir, "preferences"), {"beta": BETA, "precompute_ref_log_probs": True}
    found = trained(DPOTrainer, DPOConfig, data, tmp_path, len(data), config=options, ref_model=model(2))
    wanted = [-F.logsigmoid(torch.tensor(BETA * (chosen - rejected))) for chosen, rejected in ratios(data)]
    assert found == pytest.approx(float(torch.stack(wanted).mean()), rel=1e-4)


def test_kto_trainer_trains_the_policys_turns_alone(run_dir: Path, tmp_path: Path) -> None:
    from trl import KTOConfig, KTOTrainer

    data, options = whole(run_dir, "preferences"), {"beta": BETA, "loss_type": "apo_zero_unpaired"}
    found = trained(KTOTrainer, KTOConfig, data, tmp_path, 2 * len(data), config=options, ref_model=model(2))
    wanted = [
        part
        for chosen, rejected in torch.tensor(ratios(data))
        for part in (1 - F.sigmoid(BETA * chosen), F.sigmoid(BETA * rejected))
    ]
    assert found == pytest.approx(float(torch.stack(wanted).mean()), rel=1e-4)


def test_reward_trainer_compares_the_two_conversations(run_dir: Path, tmp_path: Path) -> None:
    from trl import RewardConfig, RewardTrainer

    data = whole(run_dir, "preferences")
    scored, wanted = scorer(), []
    found = trained(RewardTrainer, RewardConfig, data, tmp_path, len(data), model=scored)
    scored = scored.double().eval()
    with torch.no_grad():
        for row in data:
            sides = [[*column(row, "prompt_ids"), *closed(row, side)] for side in ("chosen", "rejected")]
            better, worse = (scored(torch.tensor([ids])).logits[0, 0] for ids in sides)
            wanted.append(-F.logsigmoid(better - worse))
    assert found == pytest.approx(float(torch.stack(wanted).mean()), rel=1e-4)


@pytest.mark.parametrize("trainer", ["SFT", "DPO", "KTO", "Reward"])
def test_pairs_with_tool_results_in_a_side_are_refused_by_plain_trainers(
    run_dir: Path, tmp_path: Path, trainer: str
) -> None:
    import trl

    data = whole(run_dir, "multiturn_preferences")
    assert len(data) == 2 and any(message["role"] == "tool" for message in data[0]["chosen_turns"])
    with pytest.raises(KeyError, match="chosen|completion"):
        trained(getattr(trl, f"{trainer}Trainer"), getattr(trl, f"{trainer}Config"), data, tmp_path, 2)


@pytest.mark.parametrize("trainer", ["DPO", "KTO", "Reward"])
def test_successes_are_refused_by_preference_trainers(run_dir: Path, tmp_path: Path, trainer: str) -> None:
    import trl

    data = whole(run_dir, "filtered")
    with pytest.raises(KeyError, match="chosen|completion"):
        trained(getattr(trl, f"{trainer}Trainer"), getattr(trl, f"{trainer}Config"), data, tmp_path, 2)


def test_pairs_are_refused_by_the_sft_trainer(run_dir: Path, tmp_path: Path) -> None:
    from trl import SFTConfig, SFTTrainer

    with pytest.raises(KeyError, match="completion"):
        trained(SFTTrainer, SFTConfig, whole(run_dir, "preferences"), tmp_path, 2)
