"""Train and measure the default model: `python -m tools.default_model.train --out DIR | --evaluate DIR`."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from offline_agent.policies.base import DEFAULT_MODEL
from offline_agent.seeding import derive_seed
from offline_agent.training.scratch import untrained
from offline_agent.training.settings import ScratchSection
from tools.default_model.demonstrations import Demonstration, rows
from tools.default_model.tokenizer import build_tokenizer

CONFIG_NAME = "training_config.json"


@dataclass(frozen=True, slots=True)
class TrainingRound:
    """One pass of a learning-rate schedule, with a fresh optimizer and demonstrations of its own.

    Attributes:
        steps: Optimizer updates that the schedule is made for.
        stop: Updates after which the round ends; 0 = after `steps`.
        learning_rate: The highest: linear warm-up, then a cosine down to a twentieth.
        reading_steps: See `TrainingConfig.reading_tokens`.
        noise: Carelessness of the demonstrators (`Shop.demonstrate`), drawn evenly.
    """

    steps: int
    stop: int
    learning_rate: float
    reading_steps: int
    noise: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """Everything the default model depends on; kept beside it as `training_config.json`.

    Attributes:
        seed: Of initial weights and demonstrations.
        hidden_size, layers, heads: The shape.
        max_positions: Longest context, in tokens.
        max_steps: Longest demonstration, in actions.
        rounds: What is trained, one after the other.
        batch_tokens: Tokens per update, padding included.
        reading_tokens: A round's first `reading_steps` updates predict every token, the pages of the shop included,
            and see only so many tokens of each demonstration: pages repeat themselves, so copying is learnt early. All
            later updates are on the demonstrator's tokens alone.
        warmup_steps, weight_decay, clip: Of AdamW.
    """

    seed: int = 0
    hidden_size: int = 128
    layers: int = 4
    heads: int = 4
    max_positions: int = 2048
    max_steps: int = 15
    rounds: tuple[TrainingRound, ...] = (TrainingRound(4000, 0, 2e-3, 1200, (0.5, 0.7, 0.9)),)
    batch_tokens: int = 2048
    reading_tokens: int = 352
    warmup_steps: int = 60
    weight_decay: float = 0.01
    clip: float = 1.0


def build_model(config: TrainingConfig, tokenizer: Any) -> Any:
    """Return the untrained model."""
    shape = ScratchSection(
        layers=config.layers, hidden_size=config.hidden_size, heads=config.heads, key_value_heads=config.heads,
        max_positions=config.max_positions,
    )  # fmt: skip
    return untrained(tokenizer, shape, config.seed)


def batches(
    stream: Iterator[Demonstration], config: TrainingConfig, reading_steps: int
) -> Iterator[list[Demonstration]]:
    """Yield the rows of one update after another: similar lengths together, `batch_tokens` tokens with padding."""
    pool: list[Demonstration] = []
    step = 0
    while True:
        limit = config.reading_tokens if step < reading_steps else config.max_positions
        pool += [_cut(next(stream), limit) for _ in range(256 - len(pool))]
        pool.sort(key=lambda row: len(row.input_ids))
        # Take a run of neighbours from a place that walks through the pool, so that every length comes up.
        start = (step * 89) % len(pool)
        batch: list[Demonstration] = []
        while start < len(pool) and (len(batch) + 1) * len(pool[start].input_ids) <= config.batch_tokens:
            batch.append(pool.pop(start))
        yield batch or [pool.pop(start)]
        step += 1


def _cut(row: Demonstration, limit: int) -> Demonstration:
    return Demonstration(row.input_ids[:limit], row.action_mask[:limit])


def loss_of(model: Any, batch: Sequence[Demonstration], pad: int, reading: bool = False) -> tuple[Any, Any, int]:
    """Return what to minimise, −Σ m log π(a|s) / Σ m over a batch, and Σ m.

    The first two are the same, except while `reading`: then the mean over all tokens is added to the first.
    """
    import torch

    longest = max(len(row.input_ids) for row in batch)
    ids = torch.full((len(batch), longest), pad)
    mask = torch.zeros((len(batch), longest), dtype=torch.bool)
    for place, row in enumerate(batch):
        ids[place, : len(row.input_ids)] = torch.tensor(row.input_ids)
        mask[place, : len(row.action_mask)] = torch.tensor(row.action_mask, dtype=torch.bool)
    # Padding is on the right, where a causal model cannot see it: no attention mask is needed.
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    hidden, ids, mask = hidden[:, :-1], ids[:, 1:], mask[:, 1:]
    entropy = torch.nn.functional.cross_entropy
    if not reading:
        loss = entropy(model.lm_head(hidden[mask]), ids[mask])
        return loss, loss.detach(), int(mask.sum())
    real = ids != pad
    every = entropy(model.lm_head(hidden[real]), ids[real], reduction="none")
    agent = every[mask[real]].mean()
    return agent + every.mean(), agent.detach(), int(mask.sum())


def learning_rate(step: int, part: TrainingRound, warmup: int) -> float:
    """Return the rate of update `step` of a round: linear warm-up, then a cosine down to a twentieth."""
    if step < warmup:
        return part.learning_rate * (step + 1) / warmup
    done = (step - warmup) / max(1, part.steps - warmup)
    return part.learning_rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


def train(
    config: TrainingConfig,
    out: Path,
    log_every: int = 50,
    save_every: int = 250,
    first_round: int = 0,
    build: Callable[[TrainingConfig, Any], Any] = build_model,
) -> None:
    """Train and write model, tokenizer and configuration into `out`, after each round and every `save_every` updates.

    Args:
        config: What to train and how.
        out: A folder; made where it is missing.
        log_every: A line is printed after so many updates.
        save_every: See above.
        first_round: Where to begin: rounds before it are taken as done, and `out` must hold their result.
        build: Makes the untrained model, for comparisons.
    """
    tokenizer = build_tokenizer()
    model = build(config, tokenizer)
    if first_round:
        model = type(model).from_pretrained(out).train()
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {len(tokenizer)} tokens", flush=True)
    for number in range(first_round, len(config.rounds)):
        part = config.rounds[number]
        seed = derive_seed(config.seed, "round", number) if number else config.seed
        stream = batches(rows(tokenizer, seed, part.noise, config.max_steps), config, part.reading_steps)
        for step in _updates(model, stream, config, part, tokenizer.pad_token_id, log_every):
            if step % save_every == 0 or step == (part.stop or part.steps):
                save(model, tokenizer, config, out)


def _updates(
    model: Any,
    stream: Iterator[list[Demonstration]],
    config: TrainingConfig,
    part: TrainingRound,
    pad: int,
    log_every: int,
) -> Iterator[int]:
    """Make the updates of a round, yielding how many were made."""
    import torch

    decayed = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=part.learning_rate, betas=(0.9, 0.98))
    started, seen, total, counted = time.monotonic(), 0, 0.0, 0
    for step in range(part.stop or part.steps):
        batch = next(stream)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, part, config.warmup_steps)
        loss, agent, tokens = loss_of(model, batch, pad, step < part.reading_steps)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()
        seen += sum(len(row.input_ids) for row in batch)
        total, counted = total + agent.item() * tokens, counted + tokens
        if (step + 1) % log_every == 0:
            spent = time.monotonic() - started
            print(f"step {step + 1} loss {total / counted:.4f} {seen / spent:.0f} tokens/s {spent:.0f} s", flush=True)
            total, counted = 0.0, 0
        yield step + 1


def save(model: Any, tokenizer: Any, config: TrainingConfig, out: Path) -> None:
    """Write everything the package ships into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / CONFIG_NAME).write_text(json.dumps(asdict(config), indent=2) + "\n", encoding="utf-8")


def load_config(path: Path) -> TrainingConfig:
    """Return the configuration kept in a `training_config.json`."""
    data = json.loads(path.read_text(encoding="utf-8"))
    rounds = tuple(TrainingRound(**{**part, "noise": tuple(part["noise"])}) for part in data["rounds"])
    return TrainingConfig(**{**data, "rounds": rounds})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="train, and write the model here")
    parser.add_argument("--config", type=Path, help="a training_config.json; default: the shipped model's, if any")
    parser.add_argument("--evaluate", type=Path, metavar="DIR", help="measure the model in DIR and stop")
    parser.add_argument("--tasks", type=int, default=200, help="goals to measure on (default 200)")
    parser.add_argument("--samples", type=int, default=8, help="episodes per goal at temperature 0.7 (default 8)")
    parser.add_argument("--split", default="validation", help="whose goals (default validation)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--first-round", type=int, default=0, help="go on from DIR's model at this round (0 = anew)")
    options = parser.parse_args(argv)
    import torch

    torch.set_num_threads(options.threads)
    if options.evaluate is not None:
        from tools.default_model.measure import measure

        figures = measure(options.evaluate, options.split, options.tasks, options.samples)
        print(json.dumps(figures, indent=2))
        return 0
    if options.out is None:
        parser.error("give --out DIR to train or --evaluate DIR to measure")
    kept = options.config or DEFAULT_MODEL / CONFIG_NAME
    config = load_config(kept) if options.config or kept.exists() else TrainingConfig()
    train(config, options.out, first_round=options.first_round)
    return 0


if __name__ == "__main__":
    sys.exit(main())
