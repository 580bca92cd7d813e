"""Any OpenAI-compatible endpoint as a policy; with a tokenizer and vLLM, token ids in and out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from offline_agent.errors import ConfigError, PolicyError
from offline_agent.policies.base import Answer, Engine, ProposeRequest, Usage
from offline_agent.policies.chat import chat_action, chat_messages
from offline_agent.policies.endpoint import Endpoint, Json, Refused, served_model
from offline_agent.policies.pool import PoolEngine, propose
from offline_agent.policies.server_weights import ServedWeights
from offline_agent.policies.weights import Probe, Taken
from offline_agent.records import Action, Context
from offline_agent.rendering import Renderer

SEED_LIMIT = 2**31 - 1
"""Servers differ in the seeds they take; all take these."""


QUIRKS = {
    "enable-auto-tool-choice": "tools in text",
    "max_completion_tokens": "max_completion_tokens",
}
"""What a server's refusal says, and what to do about it from then on."""


class ServerPolicy:
    """A model behind an endpoint. Every sample is a request of its own, with its own seed.

    With `tokenizer`, prompts go to `/completions` as token ids and ids with log-probs come back (vLLM's
    `return_token_ids`). Without it, messages and tools go to `/chat/completions` and text comes back: rows then have no
    token columns, and a separate reasoning field of the answer is not kept.

    Args:
        url: The endpoint, e.g. http://localhost:8000/v1.
        model: The served name; None = the only one there is.
        tokenizer: Folder or hub name of the model's tokenizer.
        chat_template: Replaces the tokenizer's template; see `Renderer.load`.
        temperature: Where a request names none; 0 = greedy.
        max_tokens: Most ids of one action, where a request names none.
        timeout: Seconds to wait for one answer.
        retries: How often to try again after 429, 5xx, a time-out or a lost connection.
        api_key: None = the environment's OPENAI_API_KEY (better: what is configured is stored with the run).
        concurrency: Most requests at the server at once.
        batch_invariant: Set it where the server's answers do not depend on its load (vLLM's batch-invariant mode).

    Raises:
        ConfigError: There is no URL, no server answers there, or it does not serve the model.
    """

    name = "server"

    def __init__(
        self,
        url: str | None = None,
        model: str | None = None,
        *,
        tokenizer: str | None = None,
        chat_template: str | None = None,
        temperature: float = 0.7,
        max_tokens: int = 256,
        timeout: float = 120.0,
        retries: int = 4,
        api_key: str | None = None,
        concurrency: int = 32,
        batch_invariant: bool = False,
    ) -> None:
        if url is None:
            raise ConfigError("policy=server needs policy.url, e.g. policy.url=http://localhost:8000/v1")
        self.renderer = Renderer.load(tokenizer, chat_template) if tokenizer is not None else None
        self._endpoint = Endpoint(url, timeout, retries, api_key)
        self.model = served_model(self._endpoint, model)
        self.temperature = temperature
        self.max_tokens = max_tokens
        self.batch_invariant = batch_invariant
        self.concurrency = concurrency
        self._pool = ThreadPoolExecutor(concurrency, "server-policy")
        self._quirks: set[str] = set()
        self._weights = ServedWeights(self._endpoint, lambda prompt, ids: self._score(list(prompt), list(ids)))
        self.identity: dict[str, object] = {
            "kind": "server",
            "url": self._endpoint.url,
            "model": self.model,
            "mode": "tokens" if self.renderer is not None else "chat",
            "temperature": temperature,
            "max_tokens": max_tokens,
        }
        if self.renderer is not None:
            self.identity["tokenizer_hash"] = self.renderer.tokenizer_hash
            self.identity["template_hash"] = self.renderer.template_hash

    def propose(self, requests: Sequence[ProposeRequest]) -> list[Answer]:
        """See `base.Policy.propose`."""
        return propose(self.engine(), requests)

    def score(self, context: Context, actions: Sequence[Sequence[int]]) -> list[tuple[float, ...]]:
        """See `base.Policy.score`; asks vLLM for the log-probs of a prompt."""
        if self.renderer is None:
            raise PolicyError("scoring needs token ids: name policy.tokenizer (and serve with vLLM)")
        prompt = self.renderer.context_ids(context)
        return list(self._pool.map(lambda ids: self._scored(prompt, list(ids)), actions))

    def engine(self) -> Engine:
        """See `base.Policy.engine`."""
        return PoolEngine(self.sample, self._pool)

    def close(self) -> None:
        """See `base.Policy.close`."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._weights.close()
        self._endpoint.close()

    def check_takes_weights(self) -> None:
        """Check that the server can take new weights; ask before a long run.

        Raises:
            ConfigError: It cannot; says how to start one that can.
            PolicyError: It does not answer.
        """
        self._weights.check()

    def take_weights(self, folder: str | Path, probe: Probe | None = None, *, timeout: float = 600.0) -> Taken:
        """Let the server read new weights; no answer that begins after this is from the old ones.

        Waits until no request is being answered: those under way end with the old weights, and those that come in
        meanwhile wait for the new ones. After a failure every request is answered with a `PolicyError` until this
        succeeds: call it again with the same folder, for instance once the server has been started anew. Needs the
        server's development mode; see `server_weights`.

        Args:
            folder: A checkpoint as `save_pretrained` writes it, adapters merged, which the server finds under the
                same path. It can be deleted afterwards.
            probe: What the new weights must say; see `weights.probe_of`. Without one, weights that had no effect
                are not noticed.
            timeout: Seconds to wait for the last request to end, and again for the weights to be read.

        Raises:
            ConfigError: The server cannot take weights; nothing has changed.
            DataError: The folder is no whole checkpoint, or of another model than the last one; nothing has changed.
            PolicyError: The server failed or is gone, or its answers are not the probe's.
        """
        return self._weights.take(folder, None if probe is None else Probe(*probe), timeout)

    def cache_figures(self) -> dict[str, int] | None:
        """Return how many prompt tokens were asked of the server's prefix cache (`queries`) and found there (`hits`).

        Counted since the server was started, over all its clients; None where it does not say (it is no vLLM).

        Raises:
            PolicyError: It does not answer.
        """
        return self._weights.cache_figures()

    def sample(self, request: ProposeRequest, seed: int) -> tuple[Action, Usage]:
        """Return one action and what it cost.

        Raises:
            PolicyError: The server failed, or answered what cannot be used.
        """
        temperature = self.temperature if request.temperature is None else request.temperature
        max_tokens = self.max_tokens if request.max_tokens is None else request.max_tokens
        body: Json = {"model": self.model, "temperature": temperature, "max_tokens": max_tokens}
        body["seed"] = seed & SEED_LIMIT
        if self.renderer is None:
            with self._weights.answering():
                answer = self._chat(request.context, body)
            return chat_action(_choice(answer)), _usage(answer)
        prompt = self.renderer.context_ids(request.context)
        with self._weights.answering():
            answer = self._complete(prompt, body)
        return self._sampled(self.renderer, _choice(answer)), _usage(answer)

    def _complete(self, prompt: list[int], body: Json) -> Json:
        assert self.renderer is not None
        # A server may have sampling defaults from the model's files: all of them are set to "none" here.
        plain = {"n": 1, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
        wanted = {
            "logprobs": 1,
            "return_token_ids": True,
            "skip_special_tokens": False,
            "stop_token_ids": sorted(self.renderer.eos_ids),
        }
        return self._endpoint.post("/completions", {"prompt": prompt, **plain, **wanted, **body})

    def _sampled(self, renderer: Renderer, choice: Json) -> Action:
        ids = choice.get("token_ids")
        if not isinstance(ids, list):
            raise PolicyError(
                "the server gives no token ids (vLLM from 0.10 on does, for return_token_ids); leave policy.tokenizer "
                "away to work with text"
            )
        if not all(isinstance(token, int) and 0 <= token < renderer.vocab_size for token in ids):
            raise PolicyError("the server sampled ids that policy.tokenizer does not have: is it the model's own?")
        found = choice.get("logprobs") or {}
        logps = found.get("token_logprobs") if isinstance(found, dict) else None
        known = isinstance(logps, list) and len(logps) == len(ids) and all(map(_finite, logps))
        if choice.get("finish_reason") == "stop" and (not ids or ids[-1] not in renderer.eos_ids):
            stop = choice.get("stop_reason")  # some servers leave the id that stopped them out
            ids, known = [*ids, stop if isinstance(stop, int) else renderer.end_id], False
        return renderer.parse(ids, [min(0.0, float(p)) for p in logps or ()] if known else None)

    def _chat(self, context: Context, body: Json) -> Json:
        body = {**body, "messages": chat_messages(context)}
        if context.tools:
            body["tools"] = [dict(tool) for tool in context.tools]
        while True:
            quirks = frozenset(self._quirks)
            try:
                return self._endpoint.post("/chat/completions", _adapted(body, quirks))
            except Refused as error:
                new = {quirk for words, quirk in QUIRKS.items() if words in error.said} - quirks
                if not new:
                    raise
                self._quirks |= new

    def _scored(self, prompt: list[int], ids: list[int]) -> tuple[float, ...]:
        with self._weights.answering():
            return self._score(prompt, ids)

    def _score(self, prompt: list[int], ids: list[int]) -> tuple[float, ...]:
        body = {"model": self.model, "temperature": 0.0, "max_tokens": 1, "prompt_logprobs": 0}
        choice = _choice(self._endpoint.post("/completions", {**body, "prompt": prompt + ids}))
        entries = choice.get("prompt_logprobs")
        if not isinstance(entries, list) or len(entries) != len(prompt) + len(ids):
            raise PolicyError("the server gives no log-probs of prompts (vLLM does, for prompt_logprobs)")
        try:
            found = [entry[str(token)]["logprob"] for token, entry in zip(ids, entries[len(prompt) :], strict=True)]
            return tuple(min(0.0, float(value)) for value in found)
        except (KeyError, TypeError, ValueError) as error:
            raise PolicyError(f"the server's prompt_logprobs lack an id of the prompt: {error!r}") from error


def _adapted(body: Json, quirks: frozenset[str]) -> Json:
    body = dict(body)
    if "tools in text" in quirks and "tools" in body:
        body["tool_choice"] = "none"  # the tools stay in the prompt, and the call is read from the text
    if "max_completion_tokens" in quirks:
        body["max_completion_tokens"] = body.pop("max_tokens")
    return body


def _choice(answer: Json) -> Json:
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise PolicyError(f"the server's answer has no choices; it has {', '.join(map(str, answer)) or 'nothing'}")
    return choices[0]


def _usage(answer: Json) -> Usage:
    usage = answer.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    details = usage.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else 0
    prompt = _count(usage.get("prompt_tokens"))
    return Usage(_count(usage.get("completion_tokens")), max(0, prompt - cached), cached)


def _count(value: object) -> int:
    return value if isinstance(value, int) and value >= 0 else 0


def _finite(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
