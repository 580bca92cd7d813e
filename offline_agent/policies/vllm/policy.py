"""Policy that runs vLLM in the trainer's process and on its device; new weights are passed in memory.

One thread owns vLLM's engine; requests join its running batch. It also runs on a CPU, for tests.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any

from offline_agent.errors import ConfigError, ContextFull, DataError, PolicyError
from offline_agent.policies.base import (
    DEFAULT_MODEL,
    Answer,
    Engine,
    ProposeRequest,
    Usage,
    as_policy_error,
    check_least,
)
from offline_agent.policies.engines import PoolEngine, propose
from offline_agent.policies.vllm.loop import EngineLoop, SequenceRequest, SequenceResult
from offline_agent.policies.weights import Probe, WeightsLock, WeightUpdate, probe_gap
from offline_agent.records import Action
from offline_agent.rendering.renderer import Renderer
from offline_agent.rendering.vision import PATCH


class ColocatedPolicy:
    """A causal language model that vLLM runs here.

    Args:
        model: A folder or hub name; None = the embedded default model.
        temperature: Default temperature of requests; 0 = greedy.
        max_tokens: Default limit of the ids of one action.
        slots: Number of samples computed at once.
        dtype: `float32`, `bfloat16` or `float16`; None = float32 on a CPU, bfloat16 elsewhere.
        memory: Share of the GPU's memory for vLLM, weights included; the trainer has the rest.
        sleep: Memory that `sleep` releases during training: 0 = none; 1 = that of keys and values, and the weights are
            moved to the CPU's memory. GPUs only.
        max_context: Most ids of a prompt and its action together; None = the model's limit.
        renderer: The renderer; None = loaded from `tokenizer`.
        tokenizer: Folder or hub name; None = the model's own.
        chat_template: Replaces the tokenizer's own; see `Renderer.load`.
        eager: Whether to run without compiled graphs: it starts in seconds and samples slower on a GPU.
        make: Creates the engine; None = `engine.VLLMCore`, with the same arguments and methods.

    Raises:
        ConfigError: vLLM is not installed, or cannot run the model with these settings.
    """

    name = "colocated"

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        temperature: float = 0.7,
        max_tokens: int = 256,
        slots: int = 64,
        dtype: str | None = None,
        memory: float = 0.3,
        sleep: int = 0,
        max_context: int | None = None,
        renderer: Renderer | None = None,
        tokenizer: str | None = None,
        chat_template: str | None = None,
        eager: bool = True,
        make: Callable[..., Any] | None = None,
    ) -> None:
        check_least(temperature=temperature, max_tokens=max_tokens, slots=slots, max_context=max_context)
        if sleep not in (0, 1) or not 0 < memory <= 1:
            raise ConfigError(f"policy: got sleep={sleep}, memory={memory}; allowed: sleep 0 or 1, memory in (0, 1]")
        source = str(DEFAULT_MODEL if model is None else Path(model).expanduser() if Path(model).is_dir() else model)
        self.renderer = renderer or Renderer.load(tokenizer or source, chat_template)
        self.temperature = float(temperature)
        self.max_tokens = max_tokens
        self.batch_invariant = False
        self._gate = WeightsLock()
        self._fault: str | None = None
        self._sleeps = sleep > 0
        self._asleep = False
        from offline_agent.policies.vllm.engine import VLLMCore

        build = make or VLLMCore
        self._loop = EngineLoop(lambda: build(source, slots, dtype, memory, self._sleeps, max_context, eager))
        facts = self._loop.run(lambda core: core.facts)
        self.max_context = int(facts["max_context"])
        self._pool = ThreadPoolExecutor(slots, "colocated-policy")
        self.identity: dict[str, object] = {
            "kind": "colocated",
            "model": "embedded default" if model is None else str(model),
            "tokenizer_hash": self.renderer.tokenizer_hash,
            "template_hash": self.renderer.template_hash,
            "temperature": self.temperature,
            "max_tokens": max_tokens,
            "slots": slots,
            **facts,
        }

    def propose(self, requests: Sequence[ProposeRequest]) -> list[Answer]:
        """See `base.Policy.propose`."""
        return propose(self.engine(), requests)

    def engine(self) -> Engine:
        """See `base.Policy.engine`."""
        return PoolEngine(self.sample, self._pool)

    def close(self) -> None:
        """Free what vLLM holds; requests are answered with an error from now on."""
        self._loop.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def sample(self, request: ProposeRequest, seed: int) -> tuple[Action, Usage]:
        """Return one action and its cost. Raises PolicyError."""
        temperature = self.temperature if request.temperature is None else request.temperature
        limit = self.max_tokens if request.max_tokens is None else request.max_tokens
        if temperature < 0 or limit < 1:
            raise PolicyError(f"got temperature {temperature} and max_tokens {limit}; allowed: ≥ 0 and ≥ 1")
        prompt = tuple(self.renderer.context_ids(request.context))
        if max(prompt, default=0) >= PATCH:
            raise PolicyError("vLLM is given ids here, which pictures are not; use policy=hf or policy=server")
        if len(prompt) + limit > self.max_context:
            raise ContextFull(
                f"the history has {len(prompt)} ids and the action up to {limit}: {len(prompt) + limit} together, "
                f"allowed: {self.max_context}; shorten the episodes, or raise policy.max_context where the model allows"
            )
        stop = tuple(sorted(self.renderer.eos_ids))
        reply = self._ask(SequenceRequest(prompt, temperature, limit, seed, stop))
        action = self.renderer.parse(list(reply.ids), list(reply.logps), request.context.tools)
        return action, Usage(len(reply.ids), len(prompt) - reply.cached, reply.cached)

    def take_weights(self, model: Any, probe: Probe | None = None) -> WeightUpdate:
        """Load new weights; no answer that starts after this is from the old ones.

        Waits until no request is being answered: requests in flight end with the old weights, and new requests wait for
        the new ones. Wakes a sleeping policy. After a failure every request gets a `PolicyError` until this succeeds.

        Args:
            model: A transformers model of the same shape; a PeftModel gives its merged weights and is not changed.
            probe: Expected log-probabilities; see `weights.probe_of`. Without a probe, an update without effect is not
                detected.

        Raises:
            DataError: The weights are incomplete, or of another model; nothing has changed.
            PolicyError: vLLM failed, or its log-probs differ from the probe.
        """
        started, probe = perf_counter(), None if probe is None else Probe(*probe)
        with self._gate.changing():
            waited = perf_counter() - started
            before = self._probed(probe) if probe is not None and not self._asleep and self._fault is None else None
            try:
                self._wake("weights")
                self._loop.run(lambda core: _put(core, model))
                self._wake()
                gap, shift = (None, None) if probe is None else probe_gap(probe, self._probed(probe), before)
            except DataError:
                self._wake()
                raise
            except Exception as error:  # after any error of vLLM the weights may be partly old and partly new
                fault = as_policy_error(error)
                self._fault = f"the weights are not known: {fault} Call take_weights again."
                raise PolicyError(f"new weights: {fault}") from error
            self._fault = None
            return WeightUpdate(uuid.uuid4().hex[:12], perf_counter() - started, waited, gap, shift)

    def sleep(self) -> None:
        """Release memory until `take_weights`; waits until no request is being answered."""
        if self._sleeps and not self._asleep:
            with self._gate.changing():
                self._loop.run(lambda core: core.sleep())
                self._asleep = True

    def _wake(self, part: str | None = None) -> None:
        if self._asleep:
            self._loop.run(lambda core: core.wake(part))
            self._asleep = part is not None

    def _ask(self, ask: SequenceRequest) -> SequenceResult:
        with self._gate.answering():
            if self._fault is not None:
                raise PolicyError(self._fault)
            if self._asleep:
                raise PolicyError("the policy sleeps; call take_weights first")
            return self._loop.ask(ask)

    def _probed(self, probe: Probe) -> Sequence[float]:
        return self._loop.ask(SequenceRequest(tuple(probe.ids), 0.0, 1, 0, (), True)).logps


def _put(core: Any, model: Any) -> None:
    """Load a model's weights, and clear the prefix cache of the old ones."""
    from offline_agent.policies.hf.loading import plain_weights

    core.take({name: tensor.detach() for name, tensor in plain_weights(model)})
    if not core.forget():
        raise PolicyError("vLLM did not clear its prefix cache, which is from the old weights.")
