"""Policy that runs a causal language model in this process: continuous batching, shared prefixes, reproducible samples.

Every history is a path in a trie of token ids. Keys and values in the trie, of prompts and sampled tokens, are not
computed again. In float32 on a CPU an answer depends on the request alone, bit for bit, and neither on the rest of the
batch nor on the content of the trie; `batch_invariant` tells whether a test at the start confirmed this.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from offline_agent.errors import ConfigError, ContextFull, PolicyError
from offline_agent.policies.base import (
    DEFAULT_MODEL,
    Answer,
    Done,
    Engine,
    Proposals,
    ProposeRequest,
    Usage,
    as_policy_error,
    check_least,
)
from offline_agent.policies.engines import StepEngine
from offline_agent.records import Context
from offline_agent.rendering.renderer import Renderer

if TYPE_CHECKING:
    from offline_agent.policies.hf.kv_cache import TrieNode
    from offline_agent.policies.hf.requests import EngineCounts, PromptRequest

_SMALL = 50_000_000  # weights; a smaller model is faster with one thread, and its sums then have a fixed order


def is_small(model: Any) -> bool:
    """Return whether a model has fewer than 50 million weights."""
    return sum(weights.numel() for weights in model.parameters()) < _SMALL


class HFPolicy:
    """A causal language model from a folder or the hub.

    `Usage.prefilled` and `Usage.cached` depend on the content of the trie, and so on the order of requests. Nothing
    else in an answer does.

    Args:
        model: A folder or hub name, or a folder of adapters that names its base model (see `hf.adapters`); None = the
            embedded default model.
        temperature: Default temperature of requests; 0 = greedy.
        max_tokens: Default limit of the ids of one action; None = the model's own (`loading.action_limit`).
        slots: Most samples computed at once; fewer where histories are long for the memory that is free.
        dtype: `float32`, `bfloat16` or `float16`; None = float32 on a CPU, bfloat16 elsewhere.
        device: `auto`, `cpu`, `cuda`, …
        renderer: The renderer; None = loaded from `tokenizer`.
        tokenizer: Folder or hub name; None = the model's own.
        chat_template: Replaces the tokenizer's own; see `Renderer.load`.
        max_context: Most ids of a prompt and its action together; None = the model's limit.
        cache_bytes: Most bytes of keys and values kept of earlier histories; None = `loading.share_of_memory`.
        threads: Torch's threads while the model runs; None = 1 for a small model on a CPU, else torch's own number.

    Raises:
        ConfigError: The model or its tokenizer cannot be loaded or used; names the remedy.
    """

    name = "hf"

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        temperature: float = 0.7,
        max_tokens: int | None = None,
        slots: int = 64,
        dtype: str | None = None,
        device: str = "auto",
        renderer: Renderer | None = None,
        tokenizer: str | None = None,
        chat_template: str | None = None,
        max_context: int | None = None,
        cache_bytes: int | None = None,
        threads: int | None = None,
    ) -> None:
        import torch

        from offline_agent.policies.hf import adapters as hf_adapters
        from offline_agent.policies.hf import checks as hf_checks
        from offline_agent.policies.hf import loading as hf_loading
        from offline_agent.policies.hf.attention import ROW_STEP
        from offline_agent.policies.hf.engine import BatchingEngine
        from offline_agent.policies.hf.gguf import plain_folder
        from offline_agent.policies.hf.kv_cache import KVTrie, SlotCache

        check_least(
            temperature=temperature, max_tokens=max_tokens, slots=slots, max_context=max_context,
            cache_bytes=cache_bytes, threads=threads,
        )  # fmt: skip
        source = plain_folder(str(DEFAULT_MODEL if model is None else model), "policy.model")
        where, number_format = hf_loading.choose_device(device, dtype)
        base = hf_adapters.base_of(source, "policy.model")
        self.model = hf_loading.load_model(base or source, where, number_format)
        parts = {} if base is None else hf_adapters.put_on(self.model, base, source, "policy.model")
        speaks = base if base is not None and not any(Path(source).expanduser().glob("tokenizer*")) else source
        self.renderer = renderer or Renderer.load(tokenizer or speaks, chat_template)
        config = self.model.config.get_text_config()
        if self.renderer.vocab_size > config.vocab_size:
            raise ConfigError(
                f"policy.tokenizer: it has {self.renderer.vocab_size} ids, the model {config.vocab_size}; "
                "give the tokenizer the model was trained with"
            )
        if hasattr(self.model, "get_image_features"):
            hf_checks.read_pictures(self.model, self.renderer.vision)
        longest = hf_loading.longest_context(config)
        self.max_context = min(max_context or longest, longest)
        self.temperature = float(temperature)
        self.max_tokens = max_tokens or hf_loading.action_limit(self.max_context, self.model.generation_config)
        small = where.type == "cpu" and is_small(self.model)
        self._threads = threads or (1 if small else torch.get_num_threads())
        self._lock = threading.Lock()
        self._closed = False
        self._runner = hf_checks.ModelRunner(self.model, self._threads)
        share = hf_loading.share_of_memory(where)
        cache = SlotCache(slots, hf_loading.shape(self.model), number_format, where, share)
        self._core = BatchingEngine(
            self._runner.logits,
            cache,
            KVTrie(share if cache_bytes is None else cache_bytes),
            self.renderer.eos_ids,
            draft_tokens=(4 * slots if small else ROW_STEP) if where.type == "cpu" else 0,
        )
        hf_checks.check_supported(self.model, self._runner, self._core.cache, self.max_context)
        self.batch_invariant = where.type == "cpu" and hf_checks.verify_batch_invariance(self._runner, self._core.cache)
        self.identity: dict[str, object] = {
            "kind": "hf",
            "model": "embedded default" if model is None else str(model),
            "model_hash": hf_loading.model_hash(self.model),
            **parts,
            "tokenizer_hash": self.renderer.tokenizer_hash,
            "template_hash": self.renderer.template_hash,
            "dtype": str(number_format).removeprefix("torch."),
            "device": where.type,
            "threads": self._threads,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "max_context": self.max_context,
            "batch_invariant": self.batch_invariant,
            "torch": torch.__version__,
        }

    @property
    def counts(self) -> EngineCounts:
        """Counts of all work so far."""
        return self._core.counts

    def forget(self) -> None:
        """Clear the trie of keys and values; answers stay the same, the next ones cost more."""
        with self._lock:
            self._core.trie.clear()
            self._runner.features.clear()

    def take_weights(self, model: Any, together: bool = True) -> None:
        """Answer with another model's weights from now on; the trie, computed with the old weights, is cleared.

        Args:
            model: A model of the same shape, which is copied. A PeftModel is not: this policy runs its very weights,
                base and adapters apart, where that does not depend on the batch; they must not change while it answers.
            together: Whether they do not change then; else a PeftModel is copied too, merged.

        Raises:
            PolicyError: Requests are being answered, or the shapes differ.
        """
        from offline_agent.policies.hf import adapters
        from offline_agent.policies.hf.checks import verify_batch_invariance
        from offline_agent.policies.hf.loading import copy_weights

        with self._lock:
            if self._core.busy:
                raise PolicyError("weights were to be changed while requests are being answered; wait for them first")
            own = self.model
            apart = not together or adapters.share(own, model)
            if not apart and (mine := adapters.sharing(model, own)) is not None:
                self._runner.model = self.model = mine
                if self.batch_invariant and not verify_batch_invariance(self._runner, self._core.cache):
                    self._runner.model = self.model = own
            if not adapters.share(self.model, model):
                copy_weights(model, self.model)
            self._core.trie.clear()
            self._runner.features.clear()

    def propose(self, requests: Sequence[ProposeRequest]) -> list[Answer]:
        """See `Policy.propose`."""
        answers: list[Answer | None] = [None] * len(requests)
        for index, request in enumerate(requests):
            self.submit(request, partial(answers.__setitem__, index), None)
        while None in answers:
            self.pump()
        return [answer for answer in answers if answer is not None]

    def submit(self, request: ProposeRequest, done: Done, owner: object) -> None:
        """Queue a request without running anything; used by `propose` and by the engine."""
        from offline_agent.policies.hf.requests import PromptRequest

        temperature = self.temperature if request.temperature is None else request.temperature
        limit = self.max_tokens if request.max_tokens is None else request.max_tokens
        try:
            if temperature < 0 or limit < 1:
                raise PolicyError(f"got temperature {temperature} and max_tokens {limit}; allowed: ≥ 0 and ≥ 1")
            prompt = self._prompt(request.context, limit)
        except Exception as error:  # a history that cannot be rendered fails this request alone
            done(as_policy_error(error))
            return
        context = request.context

        def finish(job: PromptRequest) -> None:
            if job.node is not None:
                context.cache = (self._core.trie, job.node, len(prompt))
            done(self._answer(job, context))

        anchor = self._anchor(context)
        self._core.submit(PromptRequest(prompt, request.seeds, temperature, limit, owner, finish, anchor))

    def pump(self) -> bool:
        """Do one step and deliver the answers that it finished; return False where there was nothing to do."""
        with self._lock:
            if not self._core.busy:
                return False
            started = perf_counter()
            finished = self._runner.guarded(self._core.step)
            self._core.counts.seconds += perf_counter() - started
        self._hand_out(finished)
        return True

    def cancel(self, owner: object, error: PolicyError) -> None:
        """Answer all unfinished requests of `owner` with `error`."""
        with self._lock:
            dropped = self._core.cancel(owner, error)
        self._hand_out(dropped)

    def engine(self) -> Engine:
        """Return a running engine; requests of all engines and of `propose` share the batches."""
        return StepEngine(self)

    def close(self) -> None:
        """Free the memory of keys and values; requests are answered with an error from now on."""
        self._closed = True
        self.forget()

    def _prompt(self, context: Context, room: int) -> tuple[int, ...]:
        if self._closed:
            raise PolicyError("the policy is closed")
        prompt = tuple(self.renderer.context_ids(context))
        if not prompt:
            raise PolicyError("the history renders to no ids at all; there is nothing to continue")
        if len(prompt) + room > self.max_context:
            raise ContextFull(
                f"the history has {len(prompt)} ids and the action up to {room}: {len(prompt) + room} together, "
                f"allowed: {self.max_context}; lower search.max_steps or the environment's max_observation_chars, or "
                "raise policy.max_context where the model was made for more"
            )
        return prompt

    def _anchor(self, context: Context) -> tuple[TrieNode | None, int]:
        """Return a trie node known to be on the history's path: at its own end or its parent's; and its depth."""
        parent = None if getattr(context.segment, "whole", False) else context.parent  # a whole one may begin otherwise
        for known in (context.cache, parent.cache if parent is not None else None):
            if type(known) is tuple and known[0] is self._core.trie:
                return known[1], known[2]
        return None, 0

    def _answer(self, job: PromptRequest, context: Context) -> Answer:
        if job.error is not None:
            return job.error
        try:
            actions = tuple([self.renderer.parse(*found, context.tools) for found in job.results if found is not None])
        except PolicyError as error:
            return error
        generated = sum(len(action.token_ids or ()) for action in actions)
        return Proposals(actions, Usage(generated, job.computed, max(0, len(job.prompt) - job.computed)))

    @staticmethod
    def _hand_out(jobs: Sequence[PromptRequest]) -> None:
        raised: Exception | None = None
        for job in jobs:
            try:
                if job.finish is not None:
                    job.finish(job)
            except Exception as error:  # an error in one callback must not lose the other answers
                raised = raised or error
        if raised is not None:
            raise raised
