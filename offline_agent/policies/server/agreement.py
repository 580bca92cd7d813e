"""Agreement of servers on one model: each scores a fixed text, and the majority decides.

A different model is not detected where none of its log-probs of the text differs by more than the tolerance.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from offline_agent.errors import ConfigError, DataError, PolicyError
from offline_agent.policies.server.client import ModelServer
from offline_agent.policies.server.endpoint import model_name
from offline_agent.records import Action, Context, Task
from offline_agent.rendering.renderer import Renderer

PROMPT_SECONDS = 30.0  # for the list of models, which a working server answers at once
QUESTION, ANSWER = "How many days are there in three weeks?", "Three weeks have 21 days: a week has 7, and 3 * 7 = 21."


class ProbeScore(NamedTuple):
    """A server's log-probs of the fixed text, float [n] at T = 1, or the reason why it gives none."""

    logps: tuple[float, ...] | None
    fault: str | None = None


class Agreement:
    """The log-probs that the servers agree on. Thread-safe.

    Args:
        renderer: The model's renderer; None = chat, where servers give no log-probs of prompts and all count as equal.
        tolerance: Largest difference of any log-prob, nats.
    """

    def __init__(self, renderer: Renderer | None, tolerance: float) -> None:
        self._text: tuple[list[int], list[int]] | None = None
        if renderer is not None:
            prompt = renderer.context_ids(Context(Task("probe", "train", {}), "Answer briefly.", (), QUESTION))
            self._text = prompt, list(renderer.encode_action(Action(ANSWER, ANSWER)))
        self._tolerance = tolerance
        self._lock = threading.Lock()
        self._agreed: tuple[float, ...] | None = None

    def ask(self, server: ModelServer) -> ProbeScore:
        """Return a server's present score of the text."""
        if self._text is None:
            return ProbeScore(None)
        try:
            return ProbeScore(server.logps(server.model, *self._text))
        except PolicyError as error:
            return ProbeScore(None, f"{server.url} cannot be compared with the other servers: {error}")

    def begin(self, servers: Sequence[ModelServer], wanted: str | None) -> tuple[str, dict[str, str]]:
        """Determine the model that most servers have, set it on each, and vote.

        Args:
            servers: The servers, in the order of the configuration.
            wanted: The model's name; None = their only model.

        Returns:
            The model's name, and why servers are to be left out: they do not answer, or differ from the majority.

        Raises:
            ConfigError: No server works; gives the reason of each.
        """
        found = each(servers, lambda server: model_name(server.endpoint, wanted, PROMPT_SECONDS))
        names = Counter(name for name in found.values() if isinstance(name, str))
        if not names:
            raise ConfigError([str(fault) for fault in found.values()])
        model = names.most_common(1)[0][0]  # of equally frequent names, the first one
        faults: dict[str, str] = {}
        for server in servers:
            server.model, name = model, found[server.url]
            if name != model:
                other = f"policy.model: {server.url} serves {name!r}, and others {model!r}; name one, or leave some out"
                faults[server.url] = other if isinstance(name, str) else str(name)
        faults |= self.vote([server for server in servers if server.url not in faults])
        if len(faults) == len(servers):
            raise ConfigError(list(faults.values()))
        each(servers, lambda server: server.count_from_here())
        return model, faults

    def vote(self, servers: Sequence[ModelServer]) -> dict[str, str]:
        """Set the agreed log-probs to those of the majority; of equal groups, the first one wins.

        Where no server gives log-probs, there is no agreement to check.

        Args:
            servers: The servers, in the order of the configuration.

        Returns:
            The servers that differ, each with a message for the user.
        """
        scores: dict[str, ProbeScore] = each(servers, self.ask)
        voices = {name: one.logps for name, one in scores.items() if one.logps is not None}
        followers = {
            name: sum(_gap(logps, other) <= self._tolerance for other in voices.values())
            for name, logps in voices.items()
        }
        with self._lock:
            self._agreed = voices[max(voices, key=lambda name: followers[name])] if voices else None
        return {name: why for name, one in scores.items() if (why := self._objection(name, one)) is not None}

    def check(self, server: ModelServer) -> None:
        """Check a server against the agreed log-probs; where there are none yet, its own become the agreed ones.

        Raises:
            PolicyError: They differ, or it gives none.
        """
        score = self.ask(server)
        with self._lock:
            if self._agreed is None:
                self._agreed = score.logps
        why = self._objection(server.url, score)
        if why is not None:
            raise PolicyError(why)

    def _objection(self, name: str, score: ProbeScore) -> str | None:
        agreed = self._agreed
        if agreed is None:
            return None
        if score.logps is None:
            return str(score.fault)
        gap = _gap(agreed, score.logps)
        if gap <= self._tolerance:
            return None
        return (
            f"{name} has another model, or other weights: its log-probs of a fixed text differ by up to {gap:.3g} from "
            f"those of the other servers, allowed: {self._tolerance:g} (policy.probe_tolerance). Start it with the "
            "model that they serve, or leave it out of policy.url."
        )


def each(servers: Collection[ModelServer], job: Callable[[ModelServer], Any]) -> dict[str, Any]:
    """Run a job on several servers at once; return the result or error of each by its address."""

    def guarded(server: ModelServer) -> Any:
        try:
            return job(server)
        except (PolicyError, ConfigError, DataError) as error:
            return error

    if not servers:
        return {}
    with ThreadPoolExecutor(len(servers), "servers") as pool:
        return dict(zip([server.url for server in servers], pool.map(guarded, servers), strict=True))


def _gap(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))
