"""HTTP client of an OpenAI-compatible endpoint, with readable errors; histories and actions as its messages."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from offline_agent.errors import ConfigError, ContextFull, PolicyError, did_you_mean
from offline_agent.messages import write
from offline_agent.outgoing import remember
from offline_agent.records import Action, Context, Message
from offline_agent.rendering.parsing import BadJson, Parsed, answer, call_text, from_value, load_json, parse_tagged

Json = dict[str, Any]
NO_KEY = "none"

TOO_LONG = re.compile(
    r"maximum context length|context[ _](length|size|window)|context is too long|longer than the (maximum )?model",
    re.IGNORECASE,
)
"""Error texts of vLLM, SGLang, llama.cpp and OpenAI for a prompt that is longer than the model's context."""


class RequestRefused(PolicyError):
    """The server refused a request (4xx) and would refuse it again.

    Args:
        status: The HTTP status.
        reply: The server's error text.
        message: The message for the user.
    """

    def __init__(self, status: int, reply: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reply = reply

    @property
    def by_this_server_alone(self) -> bool:
        """Whether the cause is the server (no key, no such model or route) rather than the request."""
        return self.status in (401, 403, 404, 405, 410)


class PromptTooLong(RequestRefused, ContextFull):
    """The server refused a request whose prompt, with room for the answer, is longer than the model's context."""


class ServerUnreachable(PolicyError):
    """The connection to the server failed or was lost.

    Args:
        message: The message for the user.
        made: Whether there was a connection, so that the server may have started to answer.
    """

    def __init__(self, message: str, made: bool) -> None:
        super().__init__(message)
        self.made = made


class Endpoint:
    """A client of one server. Thread-safe.

    Args:
        url: The endpoint, `/v1` included.
        timeout: Seconds to wait for one answer.
        retries: Number of retries after 408, 409, 429, 5xx, a time-out or a lost connection, with exponential back-off
            (0.5 s to 8 s, or as the server asks).
        api_key: None = the environment variable OPENAI_API_KEY, if set.

    Raises:
        ConfigError: The URL is invalid.
    """

    def __init__(self, url: str, timeout: float, retries: int, api_key: str | None) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"policy.url: got {url!r}; write it in full, e.g. http://localhost:8000/v1")
        from openai import OpenAI

        self.url = url.rstrip("/")
        self._timeout = timeout
        self._tries = retries + 1
        self._api_key = api_key
        remember({"api_key": api_key, "url": url})
        key = api_key or os.environ.get("OPENAI_API_KEY") or NO_KEY
        self._client = OpenAI(base_url=self.url, api_key=key, timeout=timeout, max_retries=retries)

    def post(self, path: str, body: Mapping[str, Any], timeout: float | None = None, text: bool = False) -> Json:
        """Return the server's JSON object.

        Args:
            path: The path after the endpoint's URL.
            body: The JSON body.
            timeout: Seconds to wait for this answer; None = the endpoint's own.
            text: Whether plain text is an answer, too; it is then `said`.

        Raises:
            Refused: The server answered 4xx.
            PolicyError: There was no answer, or it was not a JSON object.
        """
        return self._call(lambda client: client.post(path, body=dict(body), cast_to=object), path, timeout, text)

    def get(self, path: str, timeout: float | None = None) -> Json:
        """Return the server's JSON object. Arguments and errors as `post`'s."""
        return self._call(lambda client: client.get(path, cast_to=object), path, timeout)

    def beside(self) -> Endpoint:
        """Return a client of the routes outside the API (without `/v1`), without retries."""
        return Endpoint(self.url.removesuffix("/v1"), self._timeout, 0, self._api_key)

    def models(self, timeout: float | None = None, adapters: bool = True) -> list[str] | None:
        """Return the names of the models on the server; None where it has no such list.

        Args:
            timeout: Seconds to wait for the answer; None = the endpoint's own.
            adapters: Whether to name those that vLLM lists as adapters of another model (`parent`), too.

        Raises:
            ConfigError: No server answers at the URL.
        """
        try:
            answer = self.get("/models", timeout)
        except RequestRefused:
            return None
        except PolicyError as error:
            raise ConfigError(f"policy.url: {error}") from error
        entries = answer.get("data")
        if not isinstance(entries, list):
            return None
        known = [entry for entry in entries if isinstance(entry, dict) and (adapters or not entry.get("parent"))]
        names = [entry.get("id") for entry in known]
        return [name for name in names if isinstance(name, str)]

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _call(self, send: Callable[[Any], object], path: str, timeout: float | None, text: bool = False) -> Json:
        import openai

        try:
            answer = send(self._client if timeout is None else self._client.with_options(timeout=timeout))
        except openai.APITimeoutError as error:
            raise PolicyError(
                f"{self.url} gave no answer within {timeout or self._timeout:g} s ({self._tries} tries). Raise "
                "policy.timeout, or lower policy.concurrency or policy.max_tokens."
            ) from error
        except openai.APIConnectionError as error:
            raise ServerUnreachable(
                f"no server answers at {self.url} ({error.__cause__ or error}). Is it up? Start one (e.g. "
                "`python -m vllm.entrypoints.openai.api_server --model MODEL`) or set policy.url.",
                made=type(error.__cause__).__name__ != "ConnectError",  # by name: httpx is not a dependency of ours
            ) from error
        except openai.APIStatusError as error:
            raise self._status(error, path) from error
        except ValueError as error:
            raise self._no_json(path, str(error)) from error
        if isinstance(answer, str):
            if text:
                return {"said": answer}
            raise self._no_json(path, repr(answer[:80]))
        if not isinstance(answer, dict):
            raise PolicyError(f"{self.url}{path} answered a JSON {type(answer).__name__}, not an object")
        return answer

    def _no_json(self, path: str, content: str) -> PolicyError:
        hint = "Does policy.url point to the endpoint itself (it usually ends in /v1)?"
        return PolicyError(f"{self.url}{path} answered what is not JSON: {content}. {hint}")

    def _status(self, error: Any, path: str) -> PolicyError:
        content = _said(error)
        place = f"{self.url}{path} answered {error.status_code}: {content}"
        if error.status_code in (401, 403):
            return RequestRefused(error.status_code, content, f"{place}. Set OPENAI_API_KEY (or policy.api_key).")
        if error.status_code == 404:
            hint = "Is policy.url the endpoint itself (it usually ends in /v1), and policy.model a served name?"
            return RequestRefused(404, content, f"{place}. {hint}")
        if error.status_code in (400, 413, 422) and TOO_LONG.search(content):
            return PromptTooLong(error.status_code, content, place)
        if error.status_code == 429 or error.status_code >= 500:
            return PolicyError(f"{place} ({self._tries} tries). Look at the server's log, or lower policy.concurrency.")
        return RequestRefused(error.status_code, content, place)


def model_name(endpoint: Endpoint, wanted: str | None, timeout: float | None = None) -> str:
    """Return the name of the model to request: `wanted`, or the only model on the server.

    Args:
        endpoint: The server.
        wanted: The model's name on the server; None = its only model.
        timeout: Seconds to wait for the answer; None = the endpoint's own.

    Raises:
        ConfigError: No server answers, it has no model `wanted`, or no name is given and it has several models.
    """
    names = endpoint.models(timeout, adapters=wanted is not None)
    if wanted is None:
        if names is not None and len(names) == 1:
            return names[0]
        raise ConfigError(f"policy.model: name the served model; {endpoint.url} has {', '.join(names or ['?'])}")
    if names and wanted not in names:
        raise ConfigError(
            f"policy.model: {endpoint.url} does not serve {wanted!r}; it has {', '.join(names)}."
            + did_you_mean(wanted, names)
        )
    return wanted


def _said(error: Any) -> str:
    body = error.body
    if isinstance(body, dict):
        inner = body.get("error")
        body = body.get("message") or (inner.get("message") if isinstance(inner, dict) else inner) or body
    return str(body if body is not None else error)[:300]


def chat_messages(context: Context) -> list[Message]:
    """Return the history in OpenAI's format: calls with ids and JSON text, every call answered by a tool message."""
    out: list[Message] = []
    pending = False
    for message in context.messages():
        if pending and message["role"] != "tool":
            out.append({"role": "tool", "content": ""})
        # a tool message must refer to a call: the reply to a turn without one becomes a user message
        role = "user" if message["role"] == "tool" and not pending else message["role"]
        calls = message.get("tool_calls", ())[:1]
        pending = bool(calls)
        out.append({"role": role, "content": message["content"], **({"tool_calls": calls} if calls else {})})
    return write(out)


def chat_action(choice: Mapping[str, Any]) -> Action:
    """Return the action of one choice of an answer.

    Raises:
        PolicyError: The choice has not the required form.
    """
    message = choice.get("message")
    if not isinstance(message, Mapping):
        raise PolicyError(f"the server's choice has no message; it has {', '.join(map(str, choice)) or 'nothing'}")
    content, calls = message.get("content") or "", message.get("tool_calls") or []
    if not isinstance(content, str) or not isinstance(calls, list):
        raise PolicyError("the server's message has content that is no text, or tool_calls that are no list")
    if choice.get("finish_reason") == "length":
        return Action(content, content, None, "no_end", "The turn was cut before it ended. Be shorter.")
    parsed = _calls(content, calls)
    text = content
    if calls:
        text = call_text(parsed.thought, parsed.call) if parsed.call else f"{content}{json.dumps(calls)}"
    return Action(text, parsed.thought, parsed.call, parsed.fault, parsed.detail)


def _calls(content: str, calls: list[Any]) -> Parsed:
    if not calls:  # a server without a tool parser leaves the call in the text
        return parse_tagged(content) if "tool_call>" in content else answer(content)
    if len(calls) > 1:
        return Parsed(content, None, "several_calls", f"Make one tool call per turn, not {len(calls)}.")
    function = calls[0].get("function") if isinstance(calls[0], Mapping) else None
    if not isinstance(function, Mapping):
        return Parsed(content, None, "bad_call", "The tool call names no function.")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = load_json(arguments) if arguments.strip() else {}
        except BadJson as error:
            return Parsed(content, None, "invalid_json", f"The arguments of the call are not valid JSON: {error}")
    return from_value(content, {"name": function.get("name"), "arguments": arguments})
