"""Client of one model server: requests, checks of answers, and counts of cost."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from offline_agent.errors import PolicyError, PolicyMismatch
from offline_agent.outgoing import masked
from offline_agent.policies.base import Usage
from offline_agent.policies.server.endpoint import Endpoint, Json, RequestRefused, chat_action
from offline_agent.policies.server.weights import ServerWeights, WantedWeights
from offline_agent.policies.weights import WeightUpdate
from offline_agent.records import Action, Context, Task
from offline_agent.rendering.renderer import Renderer

CHAT, COMPLETIONS = "/chat/completions", "/completions"
QUESTION, ANSWER = "How many days are there in three weeks?", "Three weeks have 21 days: a week has 7, and 3 * 7 = 21."

QUIRKS = {"enable-auto-tool-choice": "tools in text", "max_completion_tokens": "max_completion_tokens"}
"""Text in a server's refusal, and the adaptation of later requests to it."""

T = TypeVar("T")


@dataclass
class ServerCounts:
    """Counts of one server in this session.

    Attributes:
        requests: Requests for samples, failures included.
        generated_tokens, prefilled_tokens, reused_tokens: Token counts of its answers, as the server reports them.
        errors: Failed requests: no answer in time, or an unusable one; refusals because of the request itself are none.
    """

    requests: int = 0
    generated_tokens: int = 0
    prefilled_tokens: int = 0
    reused_tokens: int = 0
    errors: int = 0


class ModelServer:
    """One server. Thread-safe.

    Args:
        endpoint: The HTTP client.
        renderer: Renderer of the model, for token ids in and out; None = chat, text only.
    """

    def __init__(self, endpoint: Endpoint, renderer: Renderer | None) -> None:
        self.endpoint = endpoint
        self.url = endpoint.url
        self.weights = ServerWeights(endpoint, lambda prompt, ids: self.logps(list(prompt), list(ids)))
        self.model = ""
        self.tally = ServerCounts()
        self._renderer = renderer
        self._quirks: set[str] = set()
        self._lock = threading.Lock()
        self._answers_as: str | None = None  # the model name in its answers

    def sample(self, path: str, body: Json, tools: Sequence[Mapping[str, Any]] = ()) -> tuple[Action, Usage]:
        """Return one action and its cost; `tools` are the schemas of those that it may call.

        Raises:
            Refused: The server will not answer this request.
            PolicyError: It failed, or answered what cannot be used.
        """
        with self._counted():
            with self.weights.answering():
                answer = self._post(path, body | {"model": self.weights.adapter or body["model"]})
                self._check_same(answer)
            choice, cost = _choice(answer), _usage(answer)
            _check_prompt(body, answer, choice)
            if self._renderer is None:
                action = chat_action(choice)
            else:
                action = _sampled(self._renderer, _with_ids(answer, choice), tools)
        with self._lock:
            self.tally.generated_tokens += cost.generated
            self.tally.prefilled_tokens += cost.prefilled
            self.tally.reused_tokens += cost.cached
        return action, cost

    def logps(self, prompt: list[int], ids: list[int]) -> tuple[float, ...]:
        """Return the log-probs of ids after a prompt, without a check of the server's weights. Raises as `sample`."""
        model = self.weights.adapter or self.model
        body = {"model": model, "temperature": 0.0, "max_tokens": 1, "prompt_logprobs": 0, "prompt": prompt + ids}
        answer = self.endpoint.post(COMPLETIONS, body)
        self._check_same(answer)
        entries = _choice(answer).get("prompt_logprobs")
        if not isinstance(entries, list) or len(entries) != len(prompt) + len(ids):
            raise PolicyError("the server gives no log-probs of prompts (vLLM does, for prompt_logprobs)")
        try:
            pairs = zip(ids, entries[len(prompt) :], strict=True)
            found = [float(entry[str(token)]["logprob"]) for token, entry in pairs]
        except (KeyError, TypeError, ValueError) as error:
            raise PolicyError(f"the server's prompt_logprobs lack an id of the prompt: {error!r}") from error
        if not all(map(math.isfinite, found)):
            raise PolicyError("the server's prompt_logprobs are not all finite: look at its log and its weights")
        return tuple(min(0.0, value) for value in found)

    def prompt_ids(self, text: str) -> list[int]:
        """Return the ids that the server's own tokenizer makes of a text. Raises as `sample`."""
        body = {"model": self.model, "prompt": text, "max_tokens": 1, "add_special_tokens": False}
        answer = self.endpoint.post(COMPLETIONS, body | {"return_token_ids": True})
        ids = _choice(answer).get("prompt_token_ids", answer.get("prompt_token_ids"))
        if not isinstance(ids, list):
            raise PolicyError("the server does not say a prompt's ids (vLLM from 0.10 on does, for return_token_ids)")
        return ids

    def fixed_logps(self) -> tuple[float, ...] | None:
        """Return the log-probs of a fixed text, by which servers are compared; None for chat. Raises as `sample`."""
        if self._renderer is None:
            return None
        prompt = self._renderer.context_ids(Context(Task("probe", "train", {}), "Answer briefly.", (), QUESTION))
        return self.logps(prompt, list(self._renderer.encode_action(Action(ANSWER, ANSWER))))

    def run(self, key: str, job: Callable[[ModelServer], T]) -> T:
        """Return the job's result; see `ServerPool.run`. Failures of this server are failures of the request."""
        return job(self)

    def figures(self) -> list[dict[str, Any]]:
        """Return the tally as JSON; one entry."""
        with self._lock:
            out: dict[str, Any] = masked({"url": self.url, **asdict(self.tally)})
        return [out]

    def check_takes_weights(self, adapters: bool) -> None:
        """See `ServerPolicy.check_takes_weights`."""
        self.weights.check(adapters)

    def take_weights(self, update: WantedWeights) -> WeightUpdate:
        """See `ServerPolicy.take_weights`."""
        return self.weights.take(update)

    def close(self) -> None:
        """Close the connections."""
        self.weights.close()
        self.endpoint.close()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._lock:
            self.tally.requests += 1
        try:
            yield
        except PolicyError as error:
            with self._lock:
                self.tally.errors += not isinstance(error, RequestRefused) or error.by_this_server_alone
            raise

    def _post(self, path: str, body: Json) -> Json:
        while True:
            quirks = frozenset(self._quirks)
            try:
                return self.endpoint.post(path, _adapted(body, quirks))
            except RequestRefused as error:
                new = {quirk for words, quirk in QUIRKS.items() if words in error.reply} - quirks
                if path != CHAT or not new:
                    raise
                self._quirks |= new

    def _check_same(self, answer: Json) -> None:
        """Check that an answer is from the same model as earlier answers. Raises PolicyMismatch."""
        name = answer.get("model")
        if isinstance(name, str) and name != self.weights.adapter:
            with self._lock:
                before = self._answers_as = self._answers_as or name
            if name != before:
                raise PolicyMismatch(
                    f"{masked(self.url)} answers as the model {name!r:.80}, before as {before!r:.80}: it serves "
                    "another model now, or several models. This run may mix both: serve one, start a new run"
                )

def _with_ids(answer: Json, choice: Json) -> Json:
    """Return llama.cpp's choice as vLLM would write it; another server's as it is."""
    shown, logprobs = answer.get("__verbose"), choice.get("logprobs")
    if "token_ids" in choice or not isinstance(shown, dict) or not isinstance(shown.get("tokens"), list):
        return choice
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    entries = [entry for entry in content if isinstance(entry, dict)] if isinstance(content, list) else []
    choice = choice | {"token_ids": shown["tokens"], "logprobs": None}
    # it leaves out the entries of ids within a character, and then the others cannot be assigned
    if [entry.get("id") for entry in entries] == shown["tokens"]:
        choice["logprobs"] = {"token_logprobs": [entry.get("logprob") for entry in entries]}
    return choice


def _sampled(renderer: Renderer, choice: Json, tools: Sequence[Mapping[str, Any]]) -> Action:
    ids = choice.get("token_ids")
    if not isinstance(ids, list):
        raise PolicyError(
            "the server gives no token ids (vLLM from 0.10 on does, for return_token_ids, and llama.cpp's server does, "
            "for return_tokens and verbose); leave policy.tokenizer away to work with text"
        )
    if not all(isinstance(token, int) and 0 <= token < renderer.vocab_size for token in ids):
        raise PolicyError("the server sampled ids that policy.tokenizer does not have: is it the model's own?")
    found = choice.get("logprobs") or {}
    logps = found.get("token_logprobs") if isinstance(found, dict) else None
    known = isinstance(logps, list) and len(logps) == len(ids) and all(map(_finite, logps))
    if logps is not None and not known:
        raise PolicyError("the server's log-probs are not one finite number for each id")
    if choice.get("finish_reason") == "stop" and (not ids or ids[-1] not in renderer.eos_ids):
        stop = choice.get("stop_reason")  # some servers omit the stop id: add it, its log-prob is unknown
        ids, known = [*ids, stop if isinstance(stop, int) else renderer.end_id], False
    return renderer.parse(ids, [min(0.0, float(p)) for p in logps or ()] if known else None, tools)


def _check_prompt(body: Json, answer: Json, choice: Json) -> None:
    """Check that an answer belongs to the prompt that was sent. Raises PolicyMismatch."""
    sent, read = body.get("prompt"), choice.get("prompt_token_ids", answer.get("prompt_token_ids"))
    if isinstance(sent, list) and isinstance(read, list) and read != sent:
        at = next((i for i, (own, its) in enumerate(zip(sent, read, strict=False)) if own != its), None)
        at = min(len(sent), len(read)) if at is None else at
        raise PolicyMismatch(
            f"the server read another prompt than was sent: {len(read)} ids, sent {len(sent)}, the first that "
            f"differs is number {at}; a proxy or a template changes prompts on the way: send to vLLM itself"
        )


def _adapted(body: Json, quirks: frozenset[str]) -> Json:
    body = dict(body)
    if "tools in text" in quirks and "tools" in body:
        body["tool_choice"] = "none"  # the tools stay in the prompt; the call is parsed from the text
    if "max_completion_tokens" in quirks:
        body["max_completion_tokens"] = body.pop("max_tokens")
    return body


def _choice(answer: Mapping[str, Any]) -> Json:
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise PolicyError(f"the server's answer has no choices; it has {', '.join(map(str, answer)) or 'nothing'}")
    return choices[0]


def _usage(answer: Mapping[str, Any]) -> Usage:
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
