"""Trajectories per second of our episodes against TRL's own environment loop and a serial loop.

Run `python benchmarks/rollout_throughput.py`. Same model, environment, tasks, temperature (1) and cap on turns, one
side after the other in one process. TRL plays its `environment_factory` with `generate`; only its generation is timed,
rewards and losses are not. The serial loop plays one episode after the other, each turn a `generate` from the whole
history. Tools are slowed down by a sleep of 0, 0.5 or 2 times what the serial loop takes to generate a turn. Ours
starts every round with nothing kept, as after a change of the weights.

TRL cannot be told that an episode is over, so its trajectories are longer: it asks for further turns up to the cap. It
is compared with "ours, to the cap", which plays as many turns, in an environment that never says that it is over; the
serial loop ends where episodes end and is compared with "ours". What an early end saves besides stands in a fact of its
own. Seconds are the wall's, which want a machine with nothing else to do; processor seconds, of all threads, mean
something on a busy one as well. TRL's `async_grpo` is not here: it generates with a vLLM server alone, so it is a rival
of `policy=server` on that server, not of the `hf` policy.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from _common import write_result
from datasets import Dataset
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.pool import EnvPool
from offline_agent.envs.shop import Shop
from offline_agent.policies.base import DEFAULT_MODEL
from offline_agent.policies.hf.policy import HFPolicy
from offline_agent.records import Action, Context, Task
from offline_agent.rollouts.episodes import AttemptRequest, Episodes

LATENCIES = (0.0, 0.5, 2.0)  # of the serial loop's generation of a turn


@dataclass
class Side:
    """Costs of one way to play; `idle` is the share of the time in which nothing was generated."""

    name: str
    trajectories: int = 0
    turns: int = 0
    tokens: int = 0
    seconds: float = 0.0
    processor: float = 0.0
    generating: float = 0.0
    rewards: list[float] = field(default_factory=list)

    def row(self, latency: float, ours: Side) -> dict[str, Any]:
        """Return the table's row, compared with the side of ours that ends its episodes as this one does."""
        rate, turns = self.trajectories / self.seconds, self.turns / self.seconds
        return {
            "tool / turn": latency,
            "side": self.name,
            "trajectories": self.trajectories,
            "turns each": round(self.turns / self.trajectories, 1),
            "trajectories/s": round(rate, 3),
            "turns/s": round(turns, 2),
            "tokens/s": round(self.tokens / self.seconds, 1),
            "generator idle": f"{max(0.0, 1 - self.generating / self.seconds):.0%}",
            "mean reward": round(sum(self.rewards) / len(self.rewards), 2),
            "ours is faster by": round(ours.trajectories / ours.seconds / rate, 2),
            "a turn, by": round(ours.turns / ours.seconds / turns, 2),
            "processor s each": round(self.processor / self.trajectories, 3),
            "ours needs less by": round(self.processor / self.trajectories * ours.trajectories / ours.processor, 2),
        }

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Add what is done in it to the seconds, on the wall and of the processor (all threads)."""
        wall, processor = time.perf_counter(), time.process_time()
        yield
        self.seconds += time.perf_counter() - wall
        self.processor += time.process_time() - processor


def slow_shop(endless: bool) -> Any:
    """Return the shop with tools that take `latency` (an attribute) seconds more; perhaps one without an end."""

    class SlowShop:
        system_prompt = Shop.system_prompt
        latency = 0.0

        def __init__(self) -> None:
            self._shop = Shop()

        @classmethod
        def tasks(cls, split: str) -> Iterator[dict[str, Any]]:
            return Shop.tasks(split)

        @functools.wraps(Shop.reset)
        def reset(self, **task: Any) -> str:
            return self._shop.reset(**task)

        @property
        def terminated(self) -> bool:
            return self._shop.terminated and not endless

        def get_reward(self) -> float:
            return float(self._shop.get_reward().score or 0.0)

    def slowed(method: Callable[..., str]) -> Callable[..., str]:
        @functools.wraps(method)
        def tool(self: Any, *given: Any, **named: Any) -> str:
            answer = method(self._shop, *given, **named)  # a call that is refused costs nothing
            time.sleep(type(self).latency)
            return answer

        return tool

    for name in EnvSpec(Shop).tools.names:
        setattr(SlowShop, name, slowed(getattr(Shop, name)))
    return SlowShop


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch compute with so many threads inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Bench:
    """The three ways to play, with what they share.

    Attributes:
        asks: The episodes: each task as often as a group has members.
        plain_threads: Of torch, for `generate`: whichever number is faster here.
    """

    def __init__(self, options: argparse.Namespace, folder: str) -> None:
        self.options = options
        self.policy = HFPolicy(options.model, temperature=1.0, max_tokens=options.max_tokens, slots=options.in_flight)
        self.renderer = self.policy.renderer
        self.model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
        self.env, self.endless = slow_shop(False), slow_shop(True)
        self.spec = EnvSpec(self.env)
        tasks = list(itertools.islice(self.spec.tasks("train"), options.tasks))
        self.asks = [AttemptRequest(task, "sampled", number) for task in tasks for number in range(options.group)]
        self.trainer = self._trainer(folder, tasks)
        self.plain_threads = min({1, torch.get_num_threads()}, key=self._seconds_with)
        self.ours(Side("warm"), self.env, -1)

    def _trainer(self, folder: str, tasks: Sequence[Task]) -> GRPOTrainer:
        options, tokenizer = self.options, self.renderer.tokenizer
        tokenizer.response_template = qwen3_template
        prompt = [{"role": "system", "content": Shop.system_prompt}, {"role": "user", "content": ""}]
        self.rows = [{"prompt": prompt, **ask.task.args} for ask in self.asks]
        data = Dataset.from_list([{"prompt": prompt, **task.args} for task in tasks], on_mixed_types="use_json")
        config = GRPOConfig(
            folder, per_device_train_batch_size=len(self.rows), num_generations=options.group, temperature=1.0,
            max_completion_length=options.max_completion, max_tool_calling_iterations=options.max_steps - 1,
            generation_kwargs={"max_new_tokens": options.max_tokens}, use_cpu=True, bf16=False, report_to="none",
            gradient_checkpointing=False,
        )  # fmt: skip
        return GRPOTrainer(
            self.model, args=config, processing_class=tokenizer, environment_factory=self.env, train_dataset=data
        )

    def _seconds_with(self, count: int) -> float:
        """Return how long `generate` takes for first turns with so many threads."""
        prompts = [self.renderer.context_ids(self._start(ask.task)[1]) for ask in self.asks]
        with threads(count):
            self.trainer._generate_single_turn(prompts, None, {}, 1)  # the first call of all is slower
            started = time.perf_counter()
            self.trainer._generate_single_turn(prompts, None, {}, 1)
            return time.perf_counter() - started

    def _start(self, task: Task) -> tuple[Any, Context]:
        episode = self.spec.open()
        return episode, Context(task, episode.system_prompt, episode.tools.schemas, episode.reset(task))

    def ours(self, side: Side, env: Any, seed: int) -> None:
        """Play all episodes at once, each as fast as generator and tools answer it."""
        engine, pool = self.policy.engine(), EnvPool(self.options.in_flight, None)
        self.policy.forget()
        episodes = Episodes(
            EnvSpec(env), engine, pool, seed=seed, max_steps=self.options.max_steps, temperature=1.0,
            in_flight=self.options.in_flight,
        )  # fmt: skip
        with side.timed():
            attempts = list(episodes.play(self.asks))
        side.generating += engine.busy_seconds
        engine.close()
        pool.close()
        side.trajectories += len(attempts)
        side.turns += sum(len(attempt.steps) for attempt in attempts)
        side.tokens += sum(attempt.generated for attempt in attempts)
        side.rewards += [a.end_score if a.end_score is not None else 0.0 for a in attempts]

    def trl(self, side: Side) -> None:
        """Play all episodes in TRL's loop: all generate, then all tools, one after the other."""
        trainer, own = self.trainer, trainer_methods(self.trainer)

        def turn(*given: Any, **named: Any) -> Any:
            started = time.perf_counter()
            out = own["_generate_single_turn"](*given, **named)
            side.generating += time.perf_counter() - started
            return out

        def loop(prompts: Any) -> Any:
            with side.timed():
                out = own["_generate"](prompts)
            masks = out[2]
            side.turns += sum(sum(b > a for a, b in itertools.pairwise([0, *mask])) for mask in masks)
            side.tokens += sum(map(sum, masks))
            return out

        trainer._generate, trainer._generate_single_turn = loop, turn
        trainer.model.train()
        with threads(self.plain_threads):
            trainer._generate_and_score_completions([dict(row) for row in self.rows])
        side.trajectories += len(self.rows)
        side.rewards += [environment.get_reward() for environment in trainer.environments]

    def serial(self, side: Side) -> None:
        """Play one episode after the other; nothing is kept from turn to turn."""
        self.model.eval()
        for ask in self.asks[:: max(1, len(self.asks) // self.options.serial)]:
            episode, context = self._start(ask.task)
            with side.timed():
                while not episode.terminated and context.depth < self.options.max_steps:
                    action = self._turn(context, side)
                    if action.fault == "no_end":
                        break
                    result = episode.step(action)
                    context = context.child(action, result.observation, result.role)
            side.trajectories += 1
            side.rewards.append(episode.verdict().score or 0.0)

    def _turn(self, context: Context, side: Side) -> Action:
        ends, prompt, started = self.renderer.eos_ids, self.renderer.context_ids(context), time.perf_counter()
        with torch.inference_mode(), threads(self.plain_threads):
            out = self.model.generate(
                input_ids=torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=self.options.max_tokens, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                eos_token_id=sorted(ends), pad_token_id=self.renderer.end_id,
            )  # fmt: skip
        side.generating += time.perf_counter() - started
        action = self.renderer.parse(out[0, len(prompt) :].tolist())
        side.turns += 1
        side.tokens += len(action.token_ids or ())
        return action


def trainer_methods(trainer: GRPOTrainer) -> dict[str, Any]:
    """Return the trainer's own methods, whatever stands in for them now."""
    return {name: getattr(type(trainer), name).__get__(trainer) for name in ("_generate", "_generate_single_turn")}


def measure(bench: Bench, latency: float, repeats: int) -> list[Side]:
    """Return the sides at one latency (seconds), taken in turns so that other load weighs on all of them."""
    bench.env.latency = bench.endless.latency = latency
    sides = [Side("ours"), Side("ours, to the cap"), Side("TRL's environment loop"), Side("serial loop")]
    for repeat in range(repeats):
        bench.ours(sides[0], bench.env, repeat)
        bench.ours(sides[1], bench.endless, repeat)
        bench.trl(sides[2])
        bench.serial(sides[3])
        took = ", ".join(f"{side.name} {side.seconds:.0f} s" for side in sides)
        print(f"tools of {latency:.3g} s, round {repeat + 1}: {took}", file=sys.stderr)
    return sides


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=str(DEFAULT_MODEL))
    parser.add_argument("--tasks", type=int, default=12)
    parser.add_argument("--group", type=int, default=4)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--serial", type=int, default=12, help="episodes of the serial loop")
    parser.add_argument("--max-steps", type=int, default=15)
    parser.add_argument("--max-tokens", type=int, default=64, help="of one turn")
    parser.add_argument("--max-completion", type=int, default=1600, help="TRL's budget for a whole episode")
    parser.add_argument("--repeats", type=int, default=3, help="rounds at each latency")
    parser.add_argument("--quick", action="store_true", help="a few short episodes: to see that it works")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args(arguments)
    if options.quick:
        options.tasks, options.group, options.serial, options.max_steps, options.repeats = 2, 2, 1, 3, 1
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, folder)
        rows: list[dict[str, Any]] = []
        faster: dict[str, dict[str, float]] = {}
        cheaper: dict[str, dict[str, float]] = {}
        ended: dict[str, float] = {}
        turn = 0.0
        for share in LATENCIES:
            sides = measure(bench, share * turn, options.repeats)
            if share == 0.0:
                turn = sides[-1].generating / sides[-1].turns
            ours, capped, trl, serial = sides
            made = [ours.row(share, ours), capped.row(share, capped), trl.row(share, capped), serial.row(share, ours)]
            rows += made
            faster[f"tools at {share:g}"] = {row["side"]: row["ours is faster by"] for row in made[2:]}
            cheaper[f"tools at {share:g}"] = {row["side"]: row["ours needs less by"] for row in made[2:]}
            ended[f"tools at {share:g}"] = trl.row(share, ours)["ours is faster by"]
    write_result(
        "rollout_throughput",
        rows,
        {
            "trajectories per second at equal turns, ours to theirs": faster,
            "trajectories per processor second at equal turns, ours to theirs": cheaper,
            "trajectories per second where ours ends its episodes and TRL's cannot": ended,
            "seconds of generation of a turn (serial)": round(turn, 4),
            "episodes in a round": len(bench.asks),
            "rounds": options.repeats,
            "turns at most": options.max_steps,
            "threads of generate (the faster number)": bench.plain_threads,
            "threads of the hf policy": bench.policy.identity["threads"],
            "parameters": sum(weights.numel() for weights in bench.model.parameters()),
        },
        options.out,
    )
    bench.policy.close()


if __name__ == "__main__":
    main()
