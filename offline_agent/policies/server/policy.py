"""OpenAI-compatible endpoints as a policy, one or many; with a tokenizer and vLLM, token ids in and out."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from offline_agent.errors import ConfigError, PolicyError
from offline_agent.policies.base import Answer, Engine, ProposeRequest, Usage
from offline_agent.policies.engines import PoolEngine, propose
from offline_agent.policies.server.agreement import Agreement
from offline_agent.policies.server.chat import chat_messages
from offline_agent.policies.server.client import CHAT, COMPLETIONS, ModelServer, SingleServer
from offline_agent.policies.server.endpoint import Endpoint, Json, model_name
from offline_agent.policies.server.pool import ServerPool
from offline_agent.policies.server.queue import AHEAD
from offline_agent.policies.weights import Probe, WeightUpdate
from offline_agent.records import Action, Context
from offline_agent.rendering.renderer import Renderer

SEED_LIMIT = 2**31 - 1
"""Servers differ in the seeds they take; all take these."""


class ServerPolicy:
    """A model behind endpoints. Every sample is a request of its own, with its own seed.

    With `tokenizer`, prompts go to `/completions` as token ids and ids with log-probs come back (vLLM's
    `return_token_ids`). Without it, messages and tools go to `/chat/completions` and text comes back: rows then have no
    token columns, and a separate reasoning field of the answer is not kept.

    Several URLs are servers of the same model, over which requests are spread; see `server_pool`. Which of them answers
    must make no difference, and the seed goes with every request: vLLM draws a request's tokens from a generator of its
    own, begun at that seed, so equal logits give equal samples. Logits are equal to the last bit only between servers
    of the same kind (card, number format, parallelism, version) in batch-invariant mode (VLLM_BATCH_INVARIANT=1);
    elsewhere they depend a little on what else is in the batch, and now and then a draw falls the other way.

    Args:
        url: The endpoint, e.g. http://localhost:8000/v1, or a list of them (a text with commas is one too). A list of
            one is a pool of one: its failures are waited out.
        model: The served name, the same everywhere; None = the only one there is.
        tokenizer: Folder or hub name of the model's tokenizer.
        chat_template: Replaces the tokenizer's template; see `Renderer.load`.
        temperature: Where a request names none; 0 = greedy.
        max_tokens: Most ids of one action, where a request names none.
        timeout: Seconds to wait for one answer.
        retries: How often to try again after 429, 5xx, a time-out or a lost connection; with several servers, on
            another one.
        api_key: None = the environment's OPENAI_API_KEY (better: what is configured is stored with the run).
        concurrency: Most requests at one server at once.
        batch_invariant: Set it where the servers' answers do not depend on their load (vLLM's batch-invariant mode).
        patience: Several servers: seconds that a request waits while all are out.
        bound: Several servers: see `servers.Router`.
        backoff: Several servers: seconds that one is left alone after its first failure; doubled each time, to a
            minute.
        probe_tolerance: With a tokenizer: largest difference, nats, of any log-prob of a fixed text between two servers
            of the same model, at once or when a run goes on. 0.25 lets any two number formats pass.

    Raises:
        ConfigError: There is no URL, no server answers there, or none serves the model.
    """

    name = "server"
    free_arguments = ("url", "api_key", "timeout", "retries", "concurrency", "patience", "bound", "backoff")

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
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
        patience: float = 300.0,
        bound: float = 1.25,
        backoff: float = 1.0,
        probe_tolerance: float = 0.25,
    ) -> None:
        if not url:
            raise ConfigError("policy=server needs policy.url, e.g. policy.url=http://localhost:8000/v1")
        urls = addresses(url)
        self.renderer = Renderer.load(tokenizer, chat_template) if tokenizer is not None else None
        self._servers: SingleServer | ServerPool
        if isinstance(urls, str):
            served = ModelServer(Endpoint(urls, timeout, retries, api_key), self.renderer)
            self.model = served.model = model_name(served.endpoint, model)
            self._servers, self._weights = SingleServer(served), served.weights
        else:
            self._servers = ServerPool(
                [ModelServer(Endpoint(each, timeout, 0, api_key), self.renderer, strict=True) for each in urls],
                model, self.renderer, retries=retries, concurrency=concurrency, patience=patience, bound=bound,
                backoff=backoff, tolerance=probe_tolerance,
            )  # fmt: skip
            self.model = self._servers.model
        self.temperature = temperature
        self.max_tokens = max_tokens
        self.batch_invariant = batch_invariant
        self.concurrency = concurrency
        threads = concurrency if isinstance(urls, str) else (concurrency + AHEAD) * len(urls)  # those that wait, too
        self._pool = ThreadPoolExecutor(threads, "server-policy")
        self._figures: list[dict[str, Any]] | None = None
        self._probe_tolerance = probe_tolerance
        self.identity: dict[str, object] = {
            "kind": "server",
            "url": urls if isinstance(urls, str) else list(urls),
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
        prompt, key = self.renderer.context_ids(context), context.task.task_id

        def scored(ids: Sequence[int]) -> tuple[float, ...]:
            return self._servers.run(key, lambda served: served.score(self.model, prompt, list(ids)))

        return list(self._pool.map(scored, actions))

    def engine(self) -> Engine:
        """See `base.Policy.engine`."""
        return PoolEngine(self.sample, self._pool)

    def close(self) -> None:
        """See `base.Policy.close`."""
        self._figures = self.server_figures()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._servers.close()

    def evidence(self) -> dict[str, object]:
        """Return what the server says of its model, for whoever goes on with a run at other addresses; JSON.

        Returns:
            `model`, the served name; `logps`, float [n] of a fixed text at T = 1, None where it does not tell (chat);
            `tolerance`, the largest difference of any of them at which the model counts as the same.
        """
        agreement = Agreement(self.renderer, self._probe_tolerance)
        try:
            logps = self._servers.run("", lambda served: agreement.ask(served).logps)
        except PolicyError:  # all are out by now; whoever asks for samples will be told
            logps = None
        known = None if logps is None else list(logps)
        return {"model": self.model, "logps": known, "tolerance": self._probe_tolerance}

    def check_takes_weights(self) -> None:
        """Check that every server can take new weights; ask before a long run.

        Raises:
            ConfigError: One cannot; says how to start one that can.
            PolicyError: It does not answer. Of several servers, those that are out are not asked.
        """
        self._servers.check_takes_weights()

    def take_weights(self, folder: str | Path, probe: Probe | None = None, *, timeout: float = 600.0) -> WeightUpdate:
        """Let every server read new weights; no answer that begins after this is from the old ones.

        Waits until no request is being answered: those under way end with the old weights, and those that come in
        meanwhile wait for the new ones. Needs the servers' development mode; see `server_weights`.

        One server: after a failure every request is answered with a `PolicyError` until this succeeds: call it again
        with the same folder, for instance once the server has been started anew. Several: one that fails, or comes back
        with other weights, is out until it has read them; a copy of the folder (hard links) lies beside it for that,
        named `<folder>-kept`, until the next update or `close`.

        Args:
            folder: A checkpoint as `save_pretrained` writes it, adapters merged, which the servers find under the
                same path. It can be deleted afterwards.
            probe: What the new weights must say; see `weights.probe_of`. Without one, weights that had no effect
                are not noticed.
            timeout: Seconds to wait for the last request to end, and again for the weights to be read.

        Raises:
            ConfigError: No server can take weights; nothing has changed.
            DataError: The folder is no whole checkpoint, or of another model than the last one; nothing has changed.
            PolicyError: The server failed or is gone, or its answers are not the probe's; of several: all of them.
        """
        return self._servers.take_weights(folder, None if probe is None else Probe(*probe), timeout)

    def cache_figures(self) -> dict[str, int] | None:
        """Return how many prompt tokens were asked of the prefix caches (`queries`) and found there (`hits`).

        Counted since the servers were started, over all their clients; None where they do not say (are no vLLM).

        Raises:
            PolicyError: It does not answer.
        """
        return self._servers.cache_figures()

    def server_figures(self) -> list[dict[str, Any]]:
        """Return what each server was asked and cost in this session, in the order of the URLs; JSON.

        See `served.Tally`; `cache` has the prefix cache's `queries` and `hits` in tokens (over all its clients), None
        where the server does not say. Of several servers also `ejections`, and `out`: why one is out, None = it is in.
        After `close`, the figures as they were then.
        """
        return self._servers.figures() if self._figures is None else self._figures

    def sample(self, request: ProposeRequest, seed: int) -> tuple[Action, Usage]:
        """Return one action and what it cost.

        Raises:
            PolicyError: The server failed, or answered what cannot be used.
        """
        temperature = self.temperature if request.temperature is None else request.temperature
        max_tokens = self.max_tokens if request.max_tokens is None else request.max_tokens
        body: Json = {"model": self.model, "temperature": temperature, "max_tokens": max_tokens}
        body["seed"] = seed & SEED_LIMIT
        context = request.context
        if self.renderer is None:
            path, body = CHAT, _chat(context, body)
        else:
            path, body = COMPLETIONS, _completion(self.renderer, context, body)
        return self._servers.run(context.task.task_id, lambda served: served.sample(path, body))


def addresses(url: str | Sequence[str]) -> str | tuple[str, ...]:
    """Return one URL as it is, or several: a list, or a text with commas or in brackets.

    Raises:
        ConfigError: One is there twice.
    """
    if isinstance(url, str):
        text = url.strip()
        if "," not in text and not text.startswith("["):
            return text
        url = [part.strip(" '\"") for part in text.strip("[]").split(",")]
    urls = [each.rstrip("/") for each in url if each]
    twice = sorted({each for each in urls if urls.count(each) > 1})
    if twice or not urls:
        raise ConfigError(f"policy.url: {', '.join(twice)} is there twice" if twice else "policy.url: an empty list")
    return tuple(urls)


def _completion(renderer: Renderer, context: Context, body: Json) -> Json:
    # A server may have sampling defaults from the model's files: all of them are set to "none" here.
    plain = {"n": 1, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    wanted = {
        "logprobs": 1,
        "return_token_ids": True,
        "skip_special_tokens": False,
        "stop_token_ids": sorted(renderer.eos_ids),
    }
    return {"prompt": renderer.context_ids(context), **plain, **wanted, **body}


def _chat(context: Context, body: Json) -> Json:
    body = {**body, "messages": chat_messages(context)}
    if context.tools:
        body["tools"] = [dict(tool) for tool in context.tools]
    return body
