"""Rows whose prompts were rendered anew: several sequences, whose log-probabilities are summed."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from offline_agent.errors import ConfigError, DataError
from offline_agent.formats import atif
from offline_agent.formats.row import ExportRow
from offline_agent.rendering.columns import starts_of
from offline_agent.training.data.conversations import Encoder
from offline_agent.training.data.rows import length, load_pairs, load_trajectories
from offline_agent.training.data.updates import pair_units, trajectory_units
from offline_agent.training.offline.dpo import train_dpo
from offline_agent.training.offline.sft import train_sft
from offline_agent.training.online.round_batch import unit_of
from offline_agent.training.online.samples import TrainingSample
from offline_agent.training.settings import DpoSettings
from offline_agent.training.trainer import TrainRun
from tests.helpers import rows as files
from tests.helpers import whole_prompts as kit
from tests.helpers.training import settings

KINDS = ("trajectory",)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    pairs = [kit.pair(n)[0] for n in range(2)]
    return files.run(tmp_path_factory.mktemp("whole") / "run", pairs, [kit.trajectory(n)[0] for n in range(2)])


def pairs_of(data: str, most: int = 4096) -> Any:
    return load_pairs([data], [], kit.renderer(), model_hash=None, kinds=KINDS, max_length=most)


def model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=kit.renderer().vocab_size, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096, initializer_range=0.2,
        pad_token_id=0, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config)


@torch.no_grad()
def plain(trained: Any, turns: list[kit.Turn]) -> float:
    """Return the sum of the turns' log-probabilities, by one forward pass for each."""
    total = 0.0
    for prompt, ids in turns:
        logps = trained(torch.tensor([[*prompt, *ids]])).logits[0, :-1].double().log_softmax(-1)
        total += float(logps[range(len(prompt) - 1, len(prompt) + len(ids) - 1), ids].sum())
    return total


def tokens(turns: list[kit.Turn]) -> int:
    return sum(len(ids) for _, ids in turns)


@pytest.mark.parametrize("share", ["auto", "off"])
def test_the_loss_is_that_of_each_turn_after_the_prompt_it_was_given(data: str, share: Any, tmp_path: Path) -> None:
    made: list[dict[str, Any]] = []
    turns = [turn for n in range(2) for turn in kit.given(kit.trajectory(n)[1])]
    rows, _ = load_trajectories([data], [], kit.renderer(), max_length=4096)
    once = settings(rows=2, max_updates=1, share_prefixes=share)
    wanted = -plain(model(), turns) / tokens(turns)
    train_sft(model(), kit.renderer().tokenizer, rows, once, TrainRun(tmp_path / "sft", made.append))
    assert made[0]["loss"] == pytest.approx(wanted, rel=1e-5) and made[0]["agent_tokens"] == tokens(turns)

    found = pairs_of(data)[0]
    sides = [[kit.given(kit.pair(n)[1][side], 2) for n in range(2)] for side in (0, 1)]
    chosen, rejected = (sum(plain(model(), turns) for turns in side) / 2 for side in sides)
    anchor = DpoSettings(anchor_weight=1.0, anchor_rows=2)
    run = TrainRun(tmp_path / "dpo", made.append)
    result = train_dpo(model(), kit.renderer().tokenizer, found, rows, settings(rows=2, max_updates=2), anchor, run)
    assert made[1]["logps_chosen"] == pytest.approx(chosen, rel=1e-5)
    assert made[1]["logps_rejected"] == pytest.approx(rejected, rel=1e-5)
    assert made[1]["margin"] == pytest.approx(0, abs=1e-4)  # the reference is the sum over the same turns
    assert made[1]["anchor"] == pytest.approx(wanted, rel=1e-5)
    assert result.end["margin"] > 0.1


def test_the_sequences_are_the_turns_that_the_policy_was_asked_for(data: str) -> None:
    rows, _ = load_trajectories([data], [], kit.renderer(), max_length=4096)
    (unit, _), (pair, _) = trajectory_units(rows), pair_units(pairs_of(data)[0])
    assert len(unit.sides[0]) > 2 and kit.shown(unit.sequences) == kit.given(kit.trajectory(0)[1])
    for side, last in zip(pair.sides, kit.pair(0)[1], strict=True):
        assert kit.shown(side) == kit.given(last, 2)
    assert len(pair.sides[0]) == 2 and len(pair.sides[1]) == 1
    row = rows[0]
    counts = tuple(len(ids) for _, ids in kit.given(kit.trajectory(0)[1]))
    sample = TrainingSample("s", "t", row.input_ids, row.action_mask, None, counts, 1.0, None, starts=row.starts)
    assert unit_of(sample, 0).sequences == unit.sequences


def test_the_longest_sequence_must_fit_and_not_their_sum(data: str) -> None:
    pairs = pairs_of(data)[0]
    most = max(map(length, pairs))
    assert most == max(len(ids) for unit in pair_units(pairs) for ids, _ in unit.sequences)
    assert most < len(pairs[0].prompt_ids) + len(pairs[0].chosen_ids)
    assert len(pairs_of(data, most)[0]) == 2
    with pytest.raises(ConfigError, match="too long 2"):
        pairs_of(data, most - 1)
    (row, _), _ = load_trajectories([data], [], kit.renderer(), max_length=4096)
    assert length(row) == max(end - start for start, end in pairwise((0, *row.starts, len(row.input_ids))))


def test_rows_without_a_certificate_say_where_sequences_begin(tmp_path: Path) -> None:
    row, last = kit.trajectory()
    bare = {**kit.messages(row), "input_ids": row["input_ids"], "action_mask": row["action_mask"]}
    starts = list(starts_of(row, "sequence"))

    def load(number: int, starts: Any) -> Any:
        file = files.lines(tmp_path / f"{number}.jsonl", [{**bare, "starts": starts}])
        return load_trajectories([], [file], kit.renderer(), max_length=4096)[0]

    assert kit.shown(trajectory_units(load(0, starts))[0].sequences) == kit.given(last)
    for number, wrong in enumerate(([starts[0] - 1], [0], starts[::-1], [len(row["input_ids"])], "12"), 1):
        with pytest.raises(DataError, match="ascending places"):
            load(number, wrong)


def test_rows_of_messages_get_the_prompts_that_a_search_would_give() -> None:
    row, last = kit.trajectory()
    encoder = Encoder(kit.renderer())
    made = encoder.trajectory(row["messages"], row["tools"], False)
    assert (made["input_ids"], made["action_mask"]) == (row["input_ids"], row["action_mask"])
    assert tuple(made["starts"]) == starts_of(row, "sequence") and not encoder.one_text
    pair, sides = kit.pair()
    found = encoder.pair(pair, False)
    assert {name: found[name] for name in ("prompt_ids", "chosen_ids", "rejected_mask")} == {
        name: pair[name] for name in ("prompt_ids", "chosen_ids", "rejected_mask")
    }
    assert tuple(found["chosen_starts"]) == starts_of(pair, "chosen") and not found["rejected_starts"]
    # a turn without a thought is written with an empty one, as the template writes it
    plain = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Yes."}]
    ids = encoder.trajectory(plain, None, False)["input_ids"]
    assert kit.renderer().decode(ids).endswith("<think>\n\n</think>\n\nYes.<|im_end|>")


def test_atif_has_the_prompt_of_each_sequence() -> None:
    row, last = kit.trajectory()
    (document,) = atif.document(ExportRow("n", row))
    metrics = [step["metrics"] for step in document["steps"] if "metrics" in step]
    assert [(m["prompt_token_ids"], m["completion_token_ids"]) for m in metrics] == kit.given(last)
