"""Figures that need a GPU, without a network: arms, training, context lengths, policy, rounds, tests.

Run `python benchmarks/gpu.py` on a machine with one CUDA GPU. Models have random weights and real shapes (0.5 B
parameters, bfloat16), so nothing is downloaded. Every part runs in a process of its own with a time limit; one that
cannot run says why in its row, and the others go on. `--tiny` runs the same lines with a small model, on a CPU too.

- arms: one seed of attempts, trees, and trees with pairs, with SmolLM2-135M on Countdown (`arms.py`); it gets twice the
  time of a part, and what is done by then is in the rows. It needs the package `gguf` and the file of `make model` in
  its place; without a network, `split -b 50M` makes two parts of it for the way, and `cat` the file.
- dpo: a step of preference training over the pairs of a node and of a tree. "model TFLOPs" are those of the tokens that
  a side computes (6 for each weight and token, and attention), "of the card's rate" their share of what large matrix
  products reach in the same process. TRL runs with the best of its settings, found by trying.
- context: the same for one pair by the length of its history.
- policy: the search's tokens a second with `policy=hf`, as a share of the same policy asked in full batches; and in how
  many answers a request alone and the same in a batch agree.
- vllm: the same share with vLLM in this process (`policy=colocated`), prefix caching on; needs vLLM.
- grpo: rounds of `refine_grpo`, with vLLM in this process where it is installed.
- tests: `pytest -m gpu`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from _common import write_result
from prefix_sharing import HALF_BILLION, SMALL, Pair, own_loss, sequences, step, step_pairs, tree_pairs, trl_loss
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from offline_agent.policies.base import DEFAULT_MODEL, Proposals, ProposeRequest
from offline_agent.training.prefix_sharing.trie import pack

ROOT = Path(__file__).parents[1]
PARTS = ("arms", "dpo", "context", "policy", "vllm", "grpo", "tests")
SECONDS = 240  # of a part
CONTEXTS = (2048, 8192, 16384, 32768)
TINY: dict[str, Any] = {**SMALL, "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128}
TINY |= {"num_hidden_layers": 2}
ARMS = ("one round of retries, thrice the updates", "one round, thrice the updates", "one round, then dpo")
TRL = {"TRL": False, "TRL, gradient checkpointing": True}


def make_model(options: argparse.Namespace, longest: int) -> Any:
    """Return a random model on the device, in training mode."""
    torch.manual_seed(0)
    config = LlamaConfig(**(TINY if options.tiny else HALF_BILLION), max_position_embeddings=longest)
    dtype = torch.float32 if options.device == "cpu" else torch.bfloat16
    return AutoModelForCausalLM.from_config(config, dtype=dtype).to(options.device).train()


def matmul_rate(options: argparse.Namespace) -> float:
    """Return the FLOPs a second that large matrix products reach on the device."""
    size, dtype = (256, torch.float32) if options.tiny else (8192, torch.bfloat16)
    one, other = (torch.randn(size, size, device=options.device, dtype=dtype) for _ in range(2))
    times = []
    for _ in range(12):
        synchronize(options)
        started = time.perf_counter()
        one @ other
        synchronize(options)
        times.append(time.perf_counter() - started)
    return 2 * size**3 / sorted(times)[len(times) // 2]


def synchronize(options: argparse.Namespace) -> None:
    """Wait for the device."""
    if options.device != "cpu":
        torch.cuda.synchronize()


def flops(model: Any, pairs: Sequence[Pair], shared: bool) -> float:
    """Return the floating-point operations of one step: 6 a weight and token, and attention's 12 a layer and key.

    The vocabulary head counts at scored tokens for this package, and at every token of a completion for TRL.
    """
    config = model.config
    head = config.vocab_size * config.hidden_size
    body = sum(p.numel() for p in model.parameters()) - head
    packed = pack(sequences(pairs))
    lengths = [len(one.ids) for one in sequences(pairs)]
    tokens = packed.tokens if shared else sum(lengths)
    scored = packed.scored if shared else sum(len(side.ids) for pair in pairs for side in (pair.chosen, pair.rejected))
    # a token sees its depth's worth of keys, shared or not
    keys = float(packed.position_ids.sum() + packed.tokens) if shared else sum(n * (n + 1) / 2 for n in lengths)
    return 6.0 * (body * tokens + head * scored) + 12.0 * config.num_hidden_layers * config.hidden_size * keys


def timed(
    model: Any, loss: Callable[[], torch.Tensor], options: argparse.Namespace, repeats: int = 3
) -> tuple[float, float]:
    """Return the median seconds of a step after two to warm up, and the most memory it held, in MiB."""
    for _ in range(2):
        step(model, loss, options.device)
    if options.device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    seconds = sorted(step(model, loss, options.device)[1] for _ in range(repeats))[repeats // 2]
    return seconds, 0.0 if options.device == "cpu" else torch.cuda.max_memory_allocated() / 2**20


def train_rows(cases: Sequence[tuple[str, Sequence[Pair]]], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for each case and side; what does not fit into memory says so."""
    peak = matmul_rate(options)
    longest = max(len(one.ids) for _, pairs in cases for one in sequences(pairs)) + 8
    for case, pairs in cases:
        best = None
        for side in (*TRL, "ours", "ours, gradient checkpointing"):
            model = make_model(options, longest)
            if side.endswith("checkpointing"):
                model.gradient_checkpointing_enable({"use_reentrant": False})
            ours = side.startswith("ours")
            try:
                loss = own_loss(model, pairs, options.device, True) if ours else trl_loss(model, pairs, options.device)
                seconds, memory = timed(model, loss, options)
            except torch.OutOfMemoryError:
                yield {"part": "training", "case": case, "side": side, "note": "out of memory"}
                continue
            finally:
                del model
                if options.device != "cpu":
                    torch.cuda.empty_cache()
            best = min(best or seconds, seconds) if not ours else best
            rate = flops(make_shape(options), pairs, ours) / seconds
            yield {
                "part": "training", "case": case, "side": side, "seconds": seconds, "memory, MiB": round(memory),
                "model TFLOPs/s": rate / 1e12, "of the card's rate": rate / peak,
                "times TRL's best": best / seconds if ours and best else None,
            }  # fmt: skip


def make_shape(options: argparse.Namespace) -> Any:
    """Return the model without memory, for its numbers alone."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(LlamaConfig(**(TINY if options.tiny else HALF_BILLION)))


def dpo(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the rows of a node's and a tree's pairs."""
    vocabulary = (TINY if options.tiny else HALF_BILLION)["vocab_size"]
    history = 60 if options.tiny else 1500
    cases = [("a node's pairs", step_pairs(history, 60, 8, vocabulary))]
    if not options.tiny:
        cases += [("a step pair", step_pairs(history, 60, 2, vocabulary)), ("a tree's pairs", tree_pairs(vocabulary))]
    yield from train_rows(cases, options)


def context(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the rows of one step pair by the length of its history."""
    vocabulary = (TINY if options.tiny else HALF_BILLION)["vocab_size"]
    lengths = (192,) if options.tiny else CONTEXTS
    yield from train_rows(
        [(f"history of {length:,}", step_pairs(length - 128, 64, 2, vocabulary)) for length in lengths], options
    )


def saved_model(options: argparse.Namespace, folder: Path) -> Path:
    """Return a folder with a random model that has the embedded default's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(DEFAULT_MODEL)
    torch.manual_seed(0)
    shape = {**(TINY if options.tiny else HALF_BILLION), "vocab_size": len(tokenizer)}
    model = AutoModelForCausalLM.from_config(LlamaConfig(**shape, max_position_embeddings=4096), dtype=torch.bfloat16)
    model.generation_config.max_new_tokens = 64
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def command(pipeline: str, *keys: str) -> None:
    """Run a command of the package; its last words are the error's where it fails."""
    line = [sys.executable, "-m", f"offline_agent.pipelines.{pipeline}", *keys, "tracking.uri=null"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{pipeline} ended with status {done.returncode}: {done.stderr.strip()[-400:]}")


def make_policy(name: str, model: str, options: argparse.Namespace) -> Any:
    """Return a policy of this process."""
    if name == "hf":
        from offline_agent.policies.hf.policy import HFPolicy

        return HFPolicy(model, device=options.device)
    from offline_agent.policies.vllm.policy import ColocatedPolicy

    return ColocatedPolicy(model)


def policy_row(name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the row of a policy: the search's tokens a second beside those of full batches of its first prompts."""
    from hf_throughput import Histories

    from offline_agent.envs.base import EnvSpec
    from offline_agent.seeding import derive_seed

    tasks = 4 if options.tiny else 64
    with tempfile.TemporaryDirectory() as scratch:
        model, run = str(saved_model(options, Path(scratch, "model"))), Path(scratch, "run")
        command(
            "build_prefs", f"policy={name}", f"policy.model={model}", f"tasks.n={tasks}",
            f"search.simulations={4 if options.tiny else 16}", "search.max_steps=6", f"run_dir={run}",
        )  # fmt: skip
        summary = json.loads((run / "summary.json").read_text())
        searched = summary["generated"] / summary["seconds"]["search"]
        policy = make_policy(name, model, options)
        contexts = [one for _, one in Histories(EnvSpec.load("shop"), tasks).open]
        seeds = [tuple(derive_seed(0, i, k) for k in range(4)) for i in range(len(contexts))]
        ask = [ProposeRequest(one, four, 1.0) for one, four in zip(contexts, seeds, strict=True)]
        policy.propose(ask)  # warm
        started, answers = time.perf_counter(), policy.propose([one._replace(seeds=one.seeds[::-1]) for one in ask])
        batch = len(list(ids(answers))) and sum(map(len, ids(answers))) / (time.perf_counter() - started)
        alone = [policy.propose([one])[0] for one in ask[:16]]
        pairs = list(zip(ids(alone), ids(policy.propose(ask[:16])), strict=True))
        yield {
            "part": "policy", "case": f"policy={name}", "side": "the search beside full batches",
            "tokens/s in the search": searched, "tokens/s in full batches": batch, "share": searched / batch,
            "alone as in a batch": sum(one == two for one, two in pairs) / len(pairs),
            "note": f"says of itself: batch invariant {policy.batch_invariant}",
        }  # fmt: skip
        policy.close()


def ids(answers: Sequence[Any]) -> Iterator[tuple[int, ...]]:
    """Yield the token ids of every action; an answer that is an error ends the part."""
    for answer in answers:
        if not isinstance(answer, Proposals):
            raise RuntimeError(f"the policy failed: {answer}")
        for action in answer.actions:
            yield action.token_ids or ()


def hf(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the row of `policy=hf`."""
    yield from policy_row("hf", options)


def vllm(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the row of vLLM in this process."""
    if importlib.util.find_spec("vllm") is None:
        yield {"part": "policy", "case": "policy=colocated", "note": "vLLM is not installed"}
        return
    yield from policy_row("colocated", options)


def grpo(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the row of rounds of the online stage."""
    sampler = "colocated" if importlib.util.find_spec("vllm") is not None else "hf"
    with tempfile.TemporaryDirectory() as scratch:
        model, run = saved_model(options, Path(scratch, "model")), Path(scratch, "run")
        rounds, groups = (1, 1) if options.tiny else (3, 8)
        started = time.perf_counter()
        command(
            "refine_grpo", f"model.path={model}", f"sampler.name={sampler}", f"rounds={rounds}",
            f"rollouts.tasks={groups}", "rollouts.size=4", "rollouts.max_steps=6", f"run_dir={run}",
        )  # fmt: skip
        yield {
            "part": "grpo", "case": f"{rounds} rounds of {groups} x 4 episodes", "side": f"sampler.name={sampler}",
            "seconds": time.perf_counter() - started,
        }  # fmt: skip


def arms(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the rows of one seed's stages, those that are done when the time is up too; a CPU only plans them."""
    with tempfile.TemporaryDirectory() as scratch:
        line = [sys.executable, str(ROOT / "benchmarks" / "arms.py"), "--suite", "countdown-easy-smollm2"]
        line += ["--work", scratch, "--results", f"{scratch}/results", "--seeds", "0", "--jobs", "1", "--attempts", "2"]
        line += ["--arms", *ARMS]
        line += ["--plan"] if options.tiny else []
        limit, why = 2 * options.seconds - 20, None  # a part's process ends at twice the seconds
        out = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with subprocess.Popen(line, **out, text=True, process_group=0) as run:
            try:
                said, _ = run.communicate(timeout=limit)
                why = None if run.returncode == 0 else said.strip().splitlines()[-1]
            except subprocess.TimeoutExpired:
                os.killpg(run.pid, signal.SIGTERM)
                why = f"ended after {limit} s"
        for path in sorted(Path(scratch).glob("**/summary.json"), key=lambda one: one.stat().st_mtime):
            summary = json.loads(path.read_text())
            success = summary.get("modes", {}).get("sampled", {}).get("success", {}).get("mean")
            yield {"part": "arms", "case": path.parent.name, "success": success}
        yield {"part": "arms", "case": "one seed", "note": why or ("planned" if options.tiny else "whole")}


def tests(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the row of the tests that need a GPU."""
    line = [sys.executable, "-m", "pytest", "-o", "addopts=--import-mode=importlib", "-m", "gpu", "tests/gpu"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    words = done.stdout.strip().splitlines()[-1:] or done.stderr.strip().splitlines()[-1:]
    yield {"part": "tests", "case": "pytest -m gpu", "note": " ".join(words), "passed": done.returncode == 0}


RUN: dict[str, Callable[[argparse.Namespace], Iterator[dict[str, Any]]]] = {
    "arms": arms, "dpo": dpo, "context": context, "policy": hf, "vllm": vllm, "grpo": grpo, "tests": tests,
}  # fmt: skip


def in_process(part: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run a part in a process of its own; return its rows, those before a failure or the time limit too."""
    line = [sys.executable, __file__, "--child", part, "--device", options.device]
    line += ["--tiny"] if options.tiny else []
    try:
        limit = options.seconds * (2 if part == "arms" else 1)
        done = subprocess.run(line, capture_output=True, text=True, timeout=limit, check=False)
        out, why = done.stdout, (done.stderr.strip().splitlines()[-1:] or ["no word"])[0] if done.returncode else None
    except subprocess.TimeoutExpired as error:
        out = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
        why = f"ended after its {limit} s"
    rows = [json.loads(text) for text in out.splitlines() if text.startswith('{"part"')]
    return [*rows, *([{"part": part, "note": why}] if why else [])]


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="a small model; a CPU will do")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seconds", type=int, default=SECONDS, help="longest time of a part")
    parser.add_argument("--child", choices=PARTS, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    if options.device == "cpu" and not options.tiny:
        parser.error("there is no CUDA device; --tiny runs everything with a small model on the CPU")
    if options.device == "cpu":
        torch.set_num_threads(1)
    if options.child:
        for row in RUN[options.child](options):
            print(json.dumps(row), flush=True)
        return
    rows = []
    for part in options.parts:
        rows += in_process(part, options)
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    facts = {"device": torch.cuda.get_device_name() if options.device == "cuda" else "CPU", "torch": torch.__version__}
    facts |= {"model": "small, float32" if options.tiny else "0.5 B, Llama-shaped, random, bfloat16"}
    write_result("gpu", rows, facts, options.out)


if __name__ == "__main__":
    main()
