"""Tokens per second of the `hf` policy on the search's workload, against plain left-padded `generate`.

Run `python benchmarks/hf_throughput.py`. 64 tasks of the shop, 4 proposals each at every turn, histories that grow by
the first proposal and what the shop answered. Both sides answer the same prompts, turn by turn in one process, so that
what else the machine does weighs on both. Then the greedy answers to the same prompts are compared id for id. With
`--url`, a server of the same model answers them too, through `policy=server`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from _common import write_result
from transformers import AutoModelForCausalLM

from offline_agent.envs.base import EnvSpec, Episode
from offline_agent.policies.base import DEFAULT_MODEL, Proposals, ProposeRequest
from offline_agent.policies.hf.policy import HFPolicy
from offline_agent.policies.server.policy import ServerPolicy
from offline_agent.records import Action, Context
from offline_agent.seeding import derive_seed

GOAL = 4.0
PROCESSOR = ("processor seconds", "tokens/processor s")
"""Columns that a server's own processor seconds are not in."""


class Clock:
    """Wall-clock and processor seconds, and what was made in them."""

    def __init__(self) -> None:
        self.wall = self.processor = 0.0
        self.tokens = self.prompt = 0

    def __enter__(self) -> Clock:
        self._wall, self._processor = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall += time.perf_counter() - self._wall
        self.processor += time.process_time() - self._processor

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.wall

    def row(self, name: str) -> dict[str, Any]:
        """Return the table's row."""
        return {
            "side": name,
            "tokens": self.tokens,
            "prompt ids": self.prompt,
            "seconds": round(self.wall, 2),
            "processor seconds": round(self.processor, 2),
            "tokens/s": round(self.tokens / self.wall, 1),
            "tokens/processor s": round(self.tokens / self.processor, 1),
        }


class Histories:
    """Episodes that go on for as long as they are asked to: one that ends is replaced by the next task's."""

    def __init__(self, spec: EnvSpec, count: int) -> None:
        self.spec = spec
        self._tasks = spec.tasks("train")
        self.open: list[tuple[Episode, Context]] = [self._next() for _ in range(count)]

    def _next(self) -> tuple[Episode, Context]:
        task, episode = next(self._tasks), self.spec.open()
        return episode, Context(task, self.spec.system_prompt, episode.tools.schemas, episode.reset(task))

    def advance(self, actions: Sequence[Action]) -> None:
        """Take one step in each open episode; replace those that ended."""
        for i, ((episode, context), action) in enumerate(zip(self.open, actions, strict=True)):
            result = episode.step(action)
            if result.terminated:
                self.open[i] = self._next()
            else:
                self.open[i] = (episode, context.child(action, result.observation, result.role))


def generate(
    model: Any, policy: HFPolicy, prompts: Sequence[Sequence[int]], temperature: float, copies: int
) -> list[list[int]]:
    """Return the ids after each prompt, `copies` of each, the prompts padded on the left."""
    longest, pad = max(map(len, prompts)), policy.renderer.tokenizer.pad_token_id or 0
    how: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        how = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0, "num_return_sequences": copies}
    with torch.inference_mode():
        out = model.generate(
            input_ids=torch.tensor([[pad] * (longest - len(prompt)) + list(prompt) for prompt in prompts]),
            attention_mask=torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]),
            max_new_tokens=policy.max_tokens,
            pad_token_id=pad,
            eos_token_id=sorted(policy.renderer.eos_ids),
            **how,
        )
    ends = policy.renderer.eos_ids
    return [
        next((row[: at + 1] for at, token in enumerate(row) if token in ends), row) for row in out[:, longest:].tolist()
    ]


def differences(
    model: Any, prompts: Sequence[Sequence[int]], ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]
) -> list[float]:
    """Return, for each answer that differs, how far apart the two ids' logits are where it first does."""
    gaps = []
    for prompt, left, right in zip(prompts, ours, theirs, strict=True):
        if list(left) == list(right):
            continue
        at = next(i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b)
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([[*prompt, *left[:at]]]), use_cache=False).logits[0, -1]
        gaps.append(abs(float(logits[left[at]] - logits[right[at]])))
    return gaps


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=str(DEFAULT_MODEL))
    parser.add_argument("--template", help="chat template in place of the model's own")
    parser.add_argument("--dtype", default="float32", help="number format of both sides")
    parser.add_argument("--env", default="shop")
    parser.add_argument("--tasks", type=int, default=64)
    parser.add_argument("--proposals", type=int, default=4)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--rows", type=int, default=64, help="rows of one batch of generate, and our slots")
    parser.add_argument("--max-tokens", type=int, help="of an answer; default: as the policy chooses")
    parser.add_argument("--url", help="a server of the same model, e.g. http://127.0.0.1:8080/v1")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()

    from offline_agent.catalog import resolve

    policy = HFPolicy(
        options.model,
        slots=options.rows,
        chat_template=options.template,
        dtype=options.dtype,
        max_tokens=options.max_tokens,
    )
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=getattr(torch, options.dtype)).eval()
    histories = Histories(EnvSpec(resolve("env", options.env)), options.tasks)
    threads = sorted({1, torch.get_num_threads()})
    plain = {number: Clock() for number in threads}
    ours_clock, greedy = Clock(), {"generate": Clock(), "hf": Clock()}
    served = None
    if options.url:
        served = ServerPolicy(
            options.url,
            tokenizer=options.model,
            chat_template=options.template,
            temperature=policy.temperature,
            max_tokens=policy.max_tokens,
            concurrency=options.rows,
        )
    served_clock = Clock()
    gaps: list[float] = []
    ratios = []
    compared = longest = 0
    batch = max(1, options.rows // options.proposals)
    for turn in range(options.turns):
        contexts = [context for _, context in histories.open]
        prompts = [policy.renderer.context_ids(context) for context in contexts]
        longest = max(longest, *map(len, prompts))
        seeds = [tuple(derive_seed(turn, i, k) for k in range(options.proposals)) for i in range(len(contexts))]
        before = {clock: (clock.tokens, clock.wall) for clock in (ours_clock, *plain.values())}
        requests = [ProposeRequest(c, s) for c, s in zip(contexts, seeds, strict=True)]
        for side, clock in ((served, served_clock), (policy, ours_clock)):
            if side is not None:
                with clock:
                    answers = side.propose(requests)
                proposals = [answer for answer in answers if isinstance(answer, Proposals)]
                assert len(proposals) == len(answers), answers
                clock.tokens += sum(answer.usage.generated for answer in proposals)
                clock.prompt += sum(answer.usage.prefilled for answer in proposals)
        for number, clock in plain.items():
            torch.set_num_threads(number)
            with clock:
                for start in range(0, len(prompts), batch):
                    some = prompts[start : start + batch]
                    rows = generate(model, policy, some, policy.temperature, options.proposals)
                    clock.tokens += sum(map(len, rows))
                    clock.prompt += options.proposals * sum(map(len, some))
        rate = {clock: (clock.tokens - made) / (clock.wall - wall) for clock, (made, wall) in before.items()}
        ratios.append(rate[ours_clock] / max(rate[clock] for clock in plain.values()))
        with greedy["hf"] as clock:
            alike = policy.propose([ProposeRequest(context, (0,), 0.0) for context in contexts])
        ours = [tuple(answer.actions[0].token_ids or ()) for answer in alike if isinstance(answer, Proposals)]
        clock.tokens += sum(map(len, ours))
        with greedy["generate"] as clock:
            theirs = [
                row
                for start in range(0, len(prompts), options.rows)
                for row in generate(model, policy, prompts[start : start + options.rows], 0.0, 1)
            ]
        clock.tokens += sum(map(len, theirs))
        compared += len(ours)
        gaps += differences(model, prompts, ours, theirs)
        histories.advance([answer.actions[0] for answer in proposals])
    counts = policy.counts
    ratio = ours_clock.rate / max(clock.rate for clock in plain.values())
    write_result(
        "hf_throughput",
        [
            *[clock.row(f"generate, left-padded, threads: {number}") for number, clock in plain.items()],
            ours_clock.row(f"hf policy, threads: {policy.identity['threads']}"),
            *([{**served_clock.row("policy=server"), **dict.fromkeys(PROCESSOR)}] if served else []),
            greedy["generate"].row("generate, greedy, 1 a prompt"),
            greedy["hf"].row("hf policy, greedy, prompts known"),
        ],
        {
            "times as fast as the faster of generate": ratio,
            "per turn": [round(r, 2) for r in ratios],
            "goal": GOAL,
            "reached": ratio >= GOAL,
            "greedy answers compared": compared,
            "greedy answers that differ": len(gaps),
            "largest gap of logits where they differ": max(gaps, default=0.0),
            "slot occupancy": counts.lane_steps / (counts.steps * options.rows),
            "batch_invariant": policy.batch_invariant,
            "parameters": sum(weights.numel() for weights in model.parameters()),
            "tasks": options.tasks,
            "proposals": options.proposals,
            "turns": options.turns,
            "longest prompt": longest,
            "ids guessed ahead": {"all": counts.guessed, "right": counts.confirmed},
        },
        options.out,
    )


if __name__ == "__main__":
    main()
