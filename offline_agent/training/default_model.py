"""Train and measure the default model: `python -m offline_agent.training.default_model --out DIR | --evaluate DIR`."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from offline_agent.training.demonstrations import Row, rows
from offline_agent.training.tokenizer import build_tokenizer

SHIPPED = Path(__file__).parents[1] / "assets" / "default_model"
"""Where the package keeps the model."""

CONFIG_NAME = "training_config.json"


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """Everything the default model depends on; kept beside it as `training_config.json`.

    Attributes:
        seed: Of initial weights and demonstrations.
        hidden_size, intermediate_size, layers, heads: The shape.
        max_positions: Longest context, in tokens.
        noise: Carelessness of the demonstrators (`Shop.demonstrate`), drawn evenly.
        max_steps: Longest demonstration, in actions.
        steps: Optimizer updates.
        batch_tokens: Tokens per update, padding included.
        reading_steps: Updates at the start that predict every token, the pages of the shop included, and see only the
            first `reading_tokens` tokens of each demonstration: pages repeat themselves, so copying is learnt early.
            All later updates are on the demonstrator's tokens alone.
        reading_tokens: See `reading_steps`.
        learning_rate, warmup_steps, weight_decay, clip: AdamW with a cosine down to a twentieth.
    """

    seed: int = 0
    hidden_size: int = 128
    intermediate_size: int = 384
    layers: int = 4
    heads: int = 4
    max_positions: int = 2048
    noise: tuple[float, ...] = (0.3, 0.5, 0.7)
    max_steps: int = 15
    steps: int = 2000
    batch_tokens: int = 8192
    reading_steps: int = 500
    reading_tokens: int = 320
    learning_rate: float = 2e-3
    warmup_steps: int = 60
    weight_decay: float = 0.01
    clip: float = 1.0


def build_model(config: TrainingConfig, tokenizer: Any) -> Any:
    """Return the untrained model: Llama's shape, tied embeddings."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(config.seed)
    shape = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.heads,
        max_position_embeddings=config.max_positions,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(shape).float()


def batches(stream: Iterator[Row], config: TrainingConfig) -> Iterator[list[Row]]:
    """Yield the rows of one update after another: similar lengths together, `batch_tokens` tokens with padding."""
    pool: list[Row] = []
    step = 0
    while True:
        limit = config.reading_tokens if step < config.reading_steps else config.max_positions
        pool += [_cut(next(stream), limit) for _ in range(256 - len(pool))]
        pool.sort(key=lambda row: len(row.input_ids))
        # Take a run of neighbours from a place that walks through the pool, so that every length comes up.
        start = (step * 89) % len(pool)
        batch: list[Row] = []
        while start < len(pool) and (len(batch) + 1) * len(pool[start].input_ids) <= config.batch_tokens:
            batch.append(pool.pop(start))
        yield batch or [pool.pop(start)]
        step += 1


def _cut(row: Row, limit: int) -> Row:
    return Row(row.input_ids[:limit], row.action_mask[:limit])


def loss_of(model: Any, batch: Sequence[Row], pad: int, reading: bool = False) -> tuple[Any, Any, int]:
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


def learning_rate(step: int, config: TrainingConfig) -> float:
    """Return the rate of update `step`: linear warm-up, then a cosine down to a twentieth."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    done = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    return config.learning_rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


def train(config: TrainingConfig, out: Path, log_every: int = 50, save_every: int = 250) -> None:
    """Train from nothing and write model, tokenizer and configuration into `out`, every `save_every` updates too."""
    import torch

    tokenizer = build_tokenizer()
    model = build_model(config, tokenizer)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.98))
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {len(tokenizer)} tokens", flush=True)
    stream = batches(rows(tokenizer, config.seed, config.noise, config.max_steps), config)
    started, seen, total, counted = time.monotonic(), 0, 0.0, 0
    for step in range(config.steps):
        batch = next(stream)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, config)
        loss, agent, tokens = loss_of(model, batch, tokenizer.pad_token_id, step < config.reading_steps)
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
        if (step + 1) % save_every == 0 or step + 1 == config.steps:
            save(model, tokenizer, config, out)


def save(model: Any, tokenizer: Any, config: TrainingConfig, out: Path) -> None:
    """Write everything the package ships into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / CONFIG_NAME).write_text(json.dumps(asdict(config), indent=2) + "\n", encoding="utf-8")


def load_config(path: Path) -> TrainingConfig:
    """Return the configuration kept in a `training_config.json`."""
    data = json.loads(path.read_text(encoding="utf-8"))
    data["noise"] = tuple(data["noise"])
    return TrainingConfig(**data)


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
    for field in fields(TrainingConfig):
        kind = int if isinstance(field.default, int) else float
        parser.add_argument(f"--{field.name}", type=kind, nargs="+" if field.name == "noise" else None)
    options = parser.parse_args(argv)
    import torch

    torch.set_num_threads(options.threads)
    if options.evaluate is not None:
        from offline_agent.training.measure import measure

        figures = measure(options.evaluate, options.split, options.tasks, options.samples)
        print(json.dumps(figures, indent=2))
        return 0
    if options.out is None:
        parser.error("give --out DIR to train or --evaluate DIR to measure")
    kept = options.config or SHIPPED / CONFIG_NAME
    base = asdict(load_config(kept) if options.config or kept.exists() else TrainingConfig())
    given = {f.name: getattr(options, f.name) for f in fields(TrainingConfig) if getattr(options, f.name) is not None}
    merged = {**base, **given}
    train(TrainingConfig(**{**merged, "noise": tuple(merged["noise"])}), options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
