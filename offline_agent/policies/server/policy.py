"""Policy of one or several OpenAI-compatible endpoints; with a tokenizer, token ids in and out of vLLM or llama.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from offline_agent.errors import ConfigError, PolicyError
from offline_agent.policies.base import Answer, Engine, ProposeRequest, Usage
from offline_agent.policies.engines import PoolEngine, propose
from offline_agent.policies.server.client import ANSWER, CHAT, COMPLETIONS, QUESTION, ModelServer
from offline_agent.policies.server.endpoint import Endpoint, Json, chat_messages, model_name
from offline_agent.policies.server.pool import ServerPool
from offline_agent.policies.server.weights import WantedWeights, new_name
from offline_agent.policies.weights import Probe, Shapes, WeightUpdate, check_same_model, tensor_shapes
from offline_agent.records import Action, Context
from offline_agent.rendering.renderer import Renderer
from offline_agent.rendering.vision import PATCH

SEED_LIMIT = 2**31 - 1
"""Largest seed that all servers accept."""


class ServerPolicy:
    """A model behind endpoints. Every sample is a request of its own, with its own seed.

    With `tokenizer`, prompts are sent to `/completions` as token ids, and ids with log-probs come back: vLLM's
    `return_token_ids`, llama.cpp's `return_tokens`. Without it, messages and tools are sent to `/chat/completions` and
    text comes back: rows then have no token columns, and a separate reasoning field of the answer is dropped.

    Several URLs are servers of the same model that share the requests; see `server.pool`. The choice of the server
    must not affect answers. The seed is part of every request: vLLM draws a request's tokens from a generator of its
    own, seeded with it, so equal logits give equal samples. Logits are equal to the last bit only between servers of
    the same kind (card, number format, parallelism, version) in batch-invariant mode (VLLM_BATCH_INVARIANT=1); else
    they depend slightly on the rest of the batch, and some draws differ.

    Args:
        url: The endpoint, e.g. http://localhost:8000/v1, or a list of them (a text with commas is one too). A list of
            one endpoint is a pool of one server: requests wait while it is out.
        model: The model's name on the servers, the same on all; None = their only model.
        tokenizer: Folder or hub name of the model's tokenizer.
        chat_template: Replaces the tokenizer's template; see `Renderer.load`.
        temperature: Default temperature of requests; 0 = greedy.
        max_tokens: Default limit of the ids of one action.
        timeout: Seconds to wait for one answer.
        retries: Number of retries after 429, 5xx, a time-out or a lost connection; with several servers, on another
            server.
        api_key: None = the environment variable OPENAI_API_KEY.
        concurrency: Most requests in flight for each server, on average; one of several may have a quarter more.
        batch_invariant: True where the servers' answers do not depend on their load (vLLM's batch-invariant mode).
        patience: Several servers: seconds that a request waits while all are out.
        backoff: Several servers: seconds until a server is checked again after its first failure; doubled with each
            failure, up to a minute.
        probe_tolerance: With a tokenizer: largest difference, nats, of any log-prob of a fixed text between two servers
            of the same model, at the start or at a resume. The default allows for different number formats.

    Raises:
        ConfigError: There is no URL, no server answers, or none has the model.
    """

    name = "server"
    free_arguments = ("url", "api_key", "timeout", "retries", "concurrency", "patience", "backoff")

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
        backoff: float = 1.0,
        probe_tolerance: float = 0.25,
    ) -> None:
        if not url:
            raise ConfigError("policy=server needs policy.url, e.g. policy.url=http://localhost:8000/v1")
        urls = addresses(url)
        self.renderer = Renderer.load(tokenizer, chat_template) if tokenizer is not None else None
        self._servers: ModelServer | ServerPool
        if isinstance(urls, str):
            server = ModelServer(Endpoint(urls, timeout, retries, api_key), self.renderer)
            self.model = server.model = model_name(server.endpoint, model)
            self._servers = server
        else:
            self._servers = ServerPool(
                [ModelServer(Endpoint(each, timeout, 0, api_key), self.renderer) for each in urls],
                model, retries=retries, concurrency=concurrency, patience=patience, backoff=backoff,
                tolerance=probe_tolerance,
            )  # fmt: skip
            self.model = self._servers.model
        self.temperature = temperature
        self.max_tokens = max_tokens
        self.batch_invariant = batch_invariant
        self.concurrency = concurrency
        self._pool = ThreadPoolExecutor(concurrency * (1 if isinstance(urls, str) else len(urls)), "server-policy")
        self._figures: list[dict[str, Any]] | None = None
        self._probe_tolerance = probe_tolerance
        self._shapes: Shapes | None = None
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

    def engine(self) -> Engine:
        """See `base.Policy.engine`."""
        return PoolEngine(self.sample, self._pool)

    def close(self) -> None:
        """See `base.Policy.close`."""
        self._figures = self.server_figures()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._servers.close()

    def evidence(self) -> dict[str, object]:
        """Return facts about the servers' model, so that a resume at other addresses can compare them; JSON.

        Returns:
            `model`, its name; `logps`, float [n] of a fixed text at T = 1, None where unknown (chat); `tolerance`, the
            largest difference of any log-prob at which the model counts as the same.
        """

        def ask(server: ModelServer) -> list[float] | None:
            with suppress(PolicyError):  # it gives no log-probs of prompts
                return list(server.fixed_logps() or ()) or None
            return None

        known = None
        with suppress(PolicyError):  # all servers are out; requests for samples report it
            known = self._servers.run("", ask)
        return {"model": self.model, "logps": known, "tolerance": self._probe_tolerance}

    def check_takes_weights(self, adapters: bool = False) -> bool:
        """Check that every server can take new weights; call it before a long run.

        Args:
            adapters: Whether adapters alone would do; all servers have to take them.

        Returns:
            Whether the servers take adapters alone; else they take whole weights.

        Raises:
            ConfigError: A server cannot; explains how to start one that can.
            PolicyError: It does not answer. Of several servers, those that are out are not checked.
        """
        refused: tuple[str, ...] = ()
        if adapters:
            try:
                self._servers.check_takes_weights(adapters=True)
                return True
            except ConfigError as error:
                refused = error.faults
        try:
            self._servers.check_takes_weights(adapters=False)
        except ConfigError as error:
            raise ConfigError([*refused, *error.faults]) from error
        return False

    def take_weights(self, folder: str | Path, probe: Probe | None = None, *, timeout: float = 600.0) -> WeightUpdate:
        """Load new weights on every server; no answer that starts after this is from the old weights.

        Waits until no request is being answered: requests in flight end with the old weights, and new requests wait for
        the new ones. How the servers have to be started: see `server.weights`.

        One server: after a failure every request gets a `PolicyError` until this succeeds; call it again with the same
        folder, e.g. after a restart of the server. Several servers: a server that fails, or returns with other weights,
        is out until it has read them: their folder must stay as it is until the next update or `close`.

        Args:
            folder: A checkpoint as `save_pretrained` writes it, adapters merged, or adapters alone as peft's
                `save_pretrained` writes them, at a path that the servers can read. It must stay while it is served.
            probe: Expected log-probabilities; see `weights.probe_of`. Without a probe, an update without effect is not
                detected.
            timeout: Seconds to wait for the last request to end, and again for the weights to be read.

        Raises:
            ConfigError: No server can take weights; nothing has changed.
            DataError: The folder is not a complete checkpoint, or of another model; nothing has changed.
            PolicyError: The server failed, or its log-probs differ from the probe; of several servers: all of them.
        """
        path = Path(folder).expanduser().resolve()
        shapes = tensor_shapes(path)
        if self._shapes is not None:
            check_same_model(self._shapes, shapes)
        probe = None if probe is None else Probe(*probe)
        taken = self._servers.take_weights(WantedWeights(path, probe, timeout, new_name(path)))
        self._shapes = shapes
        return taken._replace(size=sum(file.stat().st_size for file in path.glob("*.safetensors")))

    def logps(self, rows: Sequence[tuple[str, Sequence[int]]]) -> list[tuple[float, ...]]:
        """Return the log-probs (T = 1) of all ids but the first of each row, for keys as of `ServerPool.run`.

        Raises:
            PolicyError: A server failed, or gives no log-probs of prompts.
        """

        def ask(row: tuple[str, Sequence[int]]) -> tuple[float, ...]:
            first, rest = list(row[1][:1]), list(row[1][1:])
            return self._servers.run(row[0], lambda server: server.logps(first, rest))

        return list(self._pool.map(ask, rows))

    def check_tokenizer(self) -> None:
        """Raise ConfigError where the servers read a text as other ids than `tokenizer`; PolicyError as `logps`."""
        assert self.renderer is not None
        text = f"{QUESTION} {ANSWER}"
        own = self.renderer.tokenizer(text, add_special_tokens=False)["input_ids"]
        if self._servers.run("", lambda server: server.prompt_ids(text)) != own:
            raise ConfigError(f"{self.model} is served with another tokenizer: it reads {text!r} as other ids")

    def server_figures(self) -> list[dict[str, Any]]:
        """Return the counts of each server in this session, in the order of the URLs; JSON.

        See `client.ServerCounts`. For several servers also `ejections`, and `out`: the reason why it is out, None = it
        is in. After `close`, the figures at that time.
        """
        return self._servers.figures() if self._figures is None else self._figures

    def sample(self, request: ProposeRequest, seed: int) -> tuple[Action, Usage]:
        """Return one action and its cost.

        Raises:
            PolicyError: The server failed, or its answer is unusable.
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
        return self._servers.run(context.task.task_id, lambda server: server.sample(path, body, context.tools))


def addresses(url: str | Sequence[str]) -> str | tuple[str, ...]:
    """Return a single URL as text, or several (a list, or a text with commas or in brackets) as a tuple.

    Raises:
        ConfigError: A URL is repeated, or the list is empty.
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
    # Servers may take sampling defaults from the model's files: switch all of them off.
    plain = {"n": 1, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "repeat_penalty": 1.0}
    wanted = {
        "logprobs": 1,
        "return_token_ids": True,
        "return_tokens": True,  # this and the next: ids of llama.cpp's server
        "verbose": True,
        "skip_special_tokens": False,
        "stop_token_ids": sorted(renderer.eos_ids),
    }
    prompt = renderer.context_ids(context)
    if max(prompt, default=0) >= PATCH:
        raise PolicyError("pictures cannot be sent as ids; leave policy.tokenizer away, and they are sent in messages")
    return {"prompt": prompt, **plain, **wanted, **body}


def _chat(context: Context, body: Json) -> Json:
    body = {**body, "messages": chat_messages(context)}
    if context.tools:
        body["tools"] = [dict(tool) for tool in context.tools]
    return body
