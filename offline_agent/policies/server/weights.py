"""Weight updates of a running vLLM server, and the check that answers come from the current weights.

Whole weights: the server must run in development mode (`VLLM_SERVER_DEV_MODE=1`). An update waits until no request of
any client is being answered (`/pause`), loads the checkpoint (`/collective_rpc`), clears the prefix cache
(`/reset_prefix_cache`), names the weights (`/update_weight_version`) and resumes (`/resume`).

Adapters alone (a folder that peft wrote): the server must have been started with `VLLM_ALLOW_RUNTIME_LORA_UPDATING=1`
and `--enable-lora`. An update waits for this client's requests, unloads its last adapter and loads the new one under a
new name (`/v1/load_lora_adapter`, vllm/entrypoints/serve/lora/api_router.py), which later requests have as `model`.
The new name keeps the prefix cache of older adapters apart: its keys have the adapter's name, in 0.31 its path, too,
never its content (`_gen_lora_extra_hash_keys`, vllm/v1/core/kv_cache_utils.py), so that `load_inplace` may answer from
the cache of the adapter before (vLLM issue 42125). A server that starts anew does not know the name, and refuses it.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from offline_agent.errors import ConfigError, PolicyError
from offline_agent.policies.server.endpoint import Endpoint, Json, RequestRefused
from offline_agent.policies.weights import ADAPTER_FILE, Probe, WeightsLock, WeightUpdate, probe_gap

START = "VLLM_SERVER_DEV_MODE=1 python -m vllm.entrypoints.openai.api_server --model MODEL"
EXTENSION = "offline_agent.policies.vllm.engine.CheckpointWorker"
LOAD = "take_checkpoint"  # method of the worker extension
ADAPTERS = "/v1/load_lora_adapter"
START_ADAPTERS = (
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 python -m vllm.entrypoints.openai.api_server --model MODEL --enable-lora "
    "--max-lora-rank RANK"
)
UNFINISHED = "the server's weights are not known: an update was broken off. Call take_weights again."
NO_SUCH_ROUTE = (404, 405)

Score = Callable[[Sequence[int], Sequence[int]], Sequence[float]]


class ServerWeights:
    """The weights of one server, as this client knows them. Thread-safe.

    Args:
        endpoint: The server.
        score: Maps the ids of a prompt and of an action to the log-probs of the action (T = 1); for probes.

    Attributes:
        adapter: The adapter that requests have to name as their model; None = the server's model itself.
    """

    def __init__(self, endpoint: Endpoint, score: Score) -> None:
        self._url = endpoint.url
        self._server = endpoint.beside()
        self._score = score
        self._gate = WeightsLock()
        self._asking = threading.Lock()
        self._asked = 0.0
        self._version: str | None = None  # None: never updated by this client, so any weights are right
        self._fault: str | None = None
        self.adapter: str | None = None

    def check(self, adapters: bool = False) -> None:
        """Check that the server can take new weights, or adapters alone.

        Raises:
            ConfigError: It cannot; explains how to start one that can.
            PolicyError: It does not answer.
        """
        if not adapters:
            for route in ("/is_paused", "/weight_info"):
                self._ask(route)
            return
        try:
            self._server.post(ADAPTERS, {"lora_name": "", "lora_path": ""}, text=True)
        except RequestRefused as error:  # an adapter without a name is refused where there is such a route
            if error.status in NO_SUCH_ROUTE:
                raise ConfigError(
                    f"policy.url: the server at {self._url} has no {ADAPTERS}, and takes no adapters. Start a vLLM "
                    f"(0.22 to 0.31) so, where only the trainer can reach it: `{START_ADAPTERS}`"
                ) from error

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Make sure that requests inside the block are answered with the weights of the last update.

        Waits while weights are being changed. A restarted server has its first weights again without any sign of it, so
        the name of the weights is read after each answer (answers that arrive meanwhile share one check).

        Raises:
            PolicyError: It has other or unknown weights.
        """
        with self._gate.answering():
            if self._fault is not None:
                raise PolicyError(self._fault)
            try:
                yield
            except RequestRefused as error:
                if self.adapter is None or error.status not in NO_SUCH_ROUTE:
                    raise
                self._fault = (
                    f"the server does not know the adapter {self.adapter!r}: it was started anew, or somebody else "
                    "unloaded it. Call take_weights again."
                )
                raise PolicyError(self._fault) from error
            if self._version is not None and self.adapter is None:
                self._confirm()

    def close(self) -> None:
        """Unload the adapter, and close the connections."""
        self._unload()
        self._server.close()

    def holds(self, version: str) -> bool:
        """Return whether the server reports the weights of this name, which this client loaded.

        Raises:
            ConfigError, PolicyError: It does not report a name.
        """
        if self._fault is not None or self._version != version:
            return False
        if self.adapter is None:
            return self._named() == version
        return any(model.get("id") == version for model in self._ask("/v1/models")["data"])

    def take(self, update: WantedWeights) -> WeightUpdate:
        """See `ServerPolicy.take_weights`."""
        started = perf_counter()
        path, probe, timeout, version = update
        adapter = (path / ADAPTER_FILE).is_file()
        with self._gate.changing():
            fault, self._fault = self._fault, UNFINISHED
            try:
                self.check(adapter)
                before = self._probed(probe) if probe is not None and fault is None else None
            except ConfigError:
                self._fault = fault
                raise
            except PolicyError as error:
                raise self._failed(path, error) from error
            try:
                exchange = self._exchange_adapter if adapter else self._exchange
                waited = exchange(path, version, timeout, started)
                self._version = version
                gap, shift = (None, None) if probe is None else probe_gap(probe, self._probed(probe), before)
            except (PolicyError, ConfigError) as error:
                raise self._failed(path, error) from error
            self._fault = None
            return WeightUpdate(version, perf_counter() - started, waited, gap, shift)

    def _exchange(self, path: Path, version: str, timeout: float, started: float) -> float:
        """Change the weights while the server is paused; return the seconds from `started` until it paused."""
        try:
            self._ask("/pause?mode=wait&clear_cache=true", {}, timeout)
            waited = perf_counter() - started
            self._load(path, timeout)
            if self._ask("/reset_prefix_cache", {}).get("success") is not True:
                raise PolicyError("the server did not clear its prefix cache, which is from the old weights.")
            self._ask("/update_weight_version", {"new_version": version})
        except BaseException:
            with suppress(PolicyError, ConfigError):  # for its other clients; the first error is the one that is told
                self._ask("/resume", {})
            raise
        self._ask("/resume", {})
        return waited

    def _exchange_adapter(self, path: Path, version: str, timeout: float, started: float) -> float:
        """Load an adapter in place of the last one; return the seconds from `started` until no request was answered."""
        waited = perf_counter() - started
        self._unload()  # before: by default vLLM keeps one adapter, and would drop this one without a word
        try:
            self._server.post(ADAPTERS, {"lora_name": version, "lora_path": str(path)}, timeout, text=True)
        except PolicyError as error:
            raise PolicyError(
                f"{error} Does the server see that folder, and was it started with --enable-lora and a --max-lora-rank "
                "of at least lora.rank? One without VLLM_ALLOW_RUNTIME_LORA_UPDATING gets whole weights."
            ) from error
        self.adapter = version
        return waited

    def _unload(self) -> None:
        name, self.adapter = self.adapter, None
        if name is not None:
            with suppress(PolicyError):  # a server that was started anew has none; names are never used again
                self._server.post("/v1/unload_lora_adapter", {"lora_name": name}, text=True)

    def _failed(self, path: Path, error: Exception) -> PolicyError:
        self._fault = f"the server's weights are not known: {error} Call take_weights again."
        return PolicyError(f"new weights ({path}): {error}")

    def _load(self, path: Path, timeout: float) -> None:
        try:
            self._call(LOAD, {"folder": str(path)}, timeout)
        except PolicyError as error:
            if LOAD not in str(error) or not re.search("has no attribute|not implemented", str(error)):
                raise
            self._call("reload_weights", {"weights_path": str(path)}, timeout)  # a server without the extension

    def _call(self, method: str, arguments: dict[str, str], timeout: float) -> None:
        self._ask("/collective_rpc", {"method": method, "kwargs": arguments, "timeout": timeout}, timeout)

    def _confirm(self) -> None:
        arrived = perf_counter()
        with self._asking:
            if self._asked <= arrived:  # else another thread checked after this answer had arrived
                asked, found = perf_counter(), self._named()
                if found != self._version:
                    self._fault = (
                        f"the server has the weights {found!r}, not {self._version!r}: it was started anew, or "
                        "somebody else changed them. Call take_weights again."
                    )
                self._asked = asked
            if self._fault is not None:
                raise PolicyError(self._fault)

    def _named(self) -> object:
        return self._ask("/weight_info").get("weight_version")

    def _probed(self, probe: Probe) -> Sequence[float]:
        return self._score(probe.ids[:1], probe.ids[1:])

    def _ask(self, path: str, body: Json | None = None, timeout: float | None = None) -> Json:
        """Return the server's answer to a GET, or, with a body, to a POST."""
        try:
            return self._server.get(path) if body is None else self._server.post(path, body, timeout)
        except RequestRefused as error:
            if error.status not in NO_SUCH_ROUTE:
                raise
            raise ConfigError(
                f"policy.url: the server at {self._url} has no {path.partition('?')[0]}, and cannot take new weights. "
                f"Start a vLLM (0.31) in its development mode, where only the trainer can reach it: `{START} "
                f"--worker-extension-cls {EXTENSION}` (the extension where this package is installed beside vLLM)."
            ) from error


def new_name(folder: Path) -> str:
    """Return a new, unique name for the weights in a folder."""
    return f"{folder.name}-{uuid.uuid4().hex[:12]}"


class WantedWeights(NamedTuple):
    """The weights that every server must have; the arguments of `ServerWeights.take`.

    Attributes:
        folder: The checkpoint.
        probe: Expected log-probabilities.
        timeout: Seconds that a server may take to read the checkpoint.
        version: Name of the weights.
    """

    folder: Path
    probe: Probe | None
    timeout: float
    version: str
