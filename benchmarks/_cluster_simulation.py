"""A cluster in virtual time under the real scheduler: queue, workers and engine answer by a clock of events.

`Scheduler` and `TreeSearch` are the project's own, and so is `policies.server.router.Router`. What is simulated:
servers of so many slots with a prefix cache, that take as long for a sample as one process was measured to take for
one like it; environments that take their time; and the driver's thread, which handles one answer after the other.
"""

from __future__ import annotations

import random
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from _virtual_time import Clock, Inbox, Workers

from offline_agent.policies.base import Done, Proposals, ProposeRequest, Usage
from offline_agent.policies.server.router import Router
from offline_agent.records import Action, Context, Task, ToolCall, Verdict
from offline_agent.search.environment import Opening, Outcome
from offline_agent.search.scheduler import Scheduler
from offline_agent.search.settings import SearchSettings
from offline_agent.search.tree_search import TreeSearch

DOORS = 6
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured answer: prompt tokens computed and reused, tokens sampled, seconds, turns before it."""

    computed: int
    cached: int
    generated: int
    seconds: float
    depth: int


class Latencies:
    """Seconds of one sample, drawn from measured ones of like lengths.

    Args:
        samples: At least one.
    """

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._bins: dict[tuple[int, int], list[float]] = {}
        for one in samples:
            self._bins.setdefault(self._bin(one.computed, one.generated), []).append(one.seconds)
        self._nearest: dict[tuple[int, int], list[float]] = {}
        self.roots = [one.computed + one.cached for one in samples if one.depth == 0] or [200]
        self.completions = [one.generated for one in samples]
        self.depths = [one.depth for one in samples]
        whole: dict[int, list[int]] = {}
        for one in samples:
            whole.setdefault(one.depth, []).append(one.computed + one.cached)
        means = [sum(sizes) / len(sizes) for _, sizes in sorted(whole.items())]
        self.turn = max(1.0, (means[-1] - means[0]) / (len(means) - 1)) if len(means) > 1 else 50.0

    @staticmethod
    def _bin(computed: int, generated: int) -> tuple[int, int]:
        return computed.bit_length(), generated // 8

    def draw(self, rng: random.Random, computed: int, generated: int) -> float:
        """Return seconds."""
        wanted = self._bin(computed, generated)
        near = self._nearest.get(wanted)
        if near is None:
            key = min(self._bins, key=lambda bin: (abs(bin[0] - wanted[0]) + abs(bin[1] - wanted[1]), bin))
            near = self._nearest[wanted] = self._bins[key]
        return rng.choice(near)


@dataclass
class Server:
    """One server: so many samples at once, and the histories of the trees that it was sent last.

    Attributes:
        slots: Samples that it works on at once; others that it was sent wait.
        room: Tokens that its prefix cache holds; whole trees are forgotten, the one used longest ago first.
        busy: Slot-seconds with a sample.
        samples, prompt, cached: Samples answered; their prompt tokens; those that were in the cache.
    """

    slots: int
    room: int
    busy: float = 0.0
    begun: dict[int, float] = field(default_factory=dict)
    waiting: deque[Callable[[], None]] = field(default_factory=deque)
    samples: int = 0
    prompt: int = 0
    cached: int = 0
    trees: OrderedDict[str, dict[Path, int]] = field(default_factory=OrderedDict)
    held: int = 0

    def busy_until(self, now: float) -> float:
        """Return the slot-seconds with a sample up to now."""
        return self.busy + sum(now - started for started in self.begun.values())

    def lookup(self, tree: str, prompt: Sequence[tuple[Path, int]]) -> int:
        """Return how many of the prompt's tokens are in the cache, and put all of it there.

        Args:
            tree: Whose history it is.
            prompt: Every prefix that ends with a turn, with its length in tokens, shortest first.
        """
        known = self.trees.setdefault(tree, {})
        self.trees.move_to_end(tree)
        hit = max((size for path, size in prompt if path in known), default=0)
        for path, size in prompt:
            if path not in known:
                grown = size - max((s for p, s in prompt if s < size), default=0)
                known[path] = size
                self.held += grown
        while self.held > self.room and len(self.trees) > 1:
            _, old = self.trees.popitem(last=False)
            self.held -= _tokens(old)
        return hit


def _tokens(known: dict[Path, int]) -> int:
    """Return the tokens of a trie of histories: of each its own, without its parent's."""
    return sum(size - known.get(path[:-1], 0) if path else size for path, size in known.items())


class Cluster:
    """Stands in for the policy's engine: servers behind the router.

    Args:
        clock: The cluster's.
        servers: By name.
        router: Chooses among them; None = at random.
        latencies: Of one sample.
        seed: Of all that is drawn.
    """

    def __init__(
        self, clock: Clock, servers: dict[str, Server], router: Router | None, latencies: Latencies, seed: int = 0
    ) -> None:
        self.clock, self.servers, self.router, self.latencies = clock, servers, router, latencies
        self.busy_seconds = 0.0
        self.asked = self.answered = 0
        self._queue: deque[_Job] = deque()
        self._number = 0
        self._rng = random.Random(seed)

    def submit(self, request: ProposeRequest, done: Done) -> None:
        """See `Engine.submit`: every sample is a request of its own, as with real servers."""
        whole = _Whole(len(request.seeds), done)
        prompt = self.prompt_of(request.context)
        for index, seed in enumerate(request.seeds):
            self.asked += 1
            self._queue.append(_Job(request.context.task.task_id, prompt, seed, index, whole))
        self._dispatch()

    def prompt_of(self, context: Context) -> list[tuple[Path, int]]:
        """Return every prefix of a history with its length: drawn from the measured ones, always the same."""
        known: list[tuple[Path, int]] | None = context.cache
        if known is not None:
            return known
        if context.parent is None:
            roots = self.latencies.roots
            known = [((), roots[_number(context.task.task_id) % len(roots)])]
        else:
            assert context.action is not None
            before = self.prompt_of(context.parent)
            path, size = before[-1]
            path = (*path, context.action.text)
            share = 0.5 + _number(context.task.task_id + "/".join(path)) / 2**32
            known = [*before, (path, size + max(1, round(self.latencies.turn * share)))]
        context.cache = known
        return known

    def _next(self) -> tuple[str, _Job] | None:
        """Return the sample that can go now, and where; None = none can."""
        if self.router is not None:
            name = self.router.choose(self._queue[0].tree) if self._queue else None
            return None if name is None else (name, self._queue.popleft())
        free = [name for name, server in self.servers.items() if len(server.begun) < server.slots]
        return (self._rng.choice(free), self._queue.popleft()) if free and self._queue else None

    def _dispatch(self) -> None:
        while (found := self._next()) is not None:
            name, job = found
            server = self.servers[name]
            if self.router is not None:
                self.router.states[name].in_flight += 1
            start = partial(self._start, name, job)
            if len(server.begun) < server.slots:
                start()
            else:
                server.waiting.append(start)

    def _start(self, name: str, job: _Job) -> None:
        server, rng = self.servers[name], random.Random(job.seed)
        self._number += 1
        number = self._number
        size = job.prompt[-1][1]
        cached = min(server.lookup(job.tree, job.prompt), size - 1)  # the last token is always computed
        generated = rng.choice(self.latencies.completions)
        seconds = self.latencies.draw(rng, size - cached, generated)
        server.prompt += size
        server.cached += cached
        server.begun[number] = self.clock.now
        assert len(server.begun) <= server.slots, "more samples at a server than it has slots"

        def end() -> None:
            server.busy += self.clock.now - server.begun.pop(number)
            server.samples += 1
            self.answered += 1
            if self.router is not None:
                self.router.states[name].in_flight -= 1
            if server.waiting:
                server.waiting.popleft()()
            self._dispatch()
            job.whole.take(job.index, action(job.seed), Usage(generated, size - cached, cached))

        self.clock.after(seconds, end)


def _number(text: str) -> int:
    return zlib.crc32(text.encode())


class _Whole:
    """A request for several samples: answered when the last of them is there, and once."""

    def __init__(self, count: int, done: Done) -> None:
        self._done = done
        self._found: list[tuple[Action, Usage] | None] = [None] * count

    def take(self, index: int, found: Action, usage: Usage) -> None:
        """Keep a sample, and answer the request where it is the last."""
        assert self._found[index] is None, "a sample was answered twice"
        self._found[index] = (found, usage)
        parts = [one for one in self._found if one is not None]
        if len(parts) == len(self._found):
            usages = [usage for _, usage in parts]
            self._done(Proposals(tuple(one for one, _ in parts), Usage(*map(sum, zip(*usages, strict=True)))))


@dataclass(frozen=True, slots=True)
class _Job:
    tree: str
    prompt: Sequence[tuple[Path, int]]
    seed: int
    index: int
    whole: _Whole


def action(seed: int) -> Action:
    """Return one of the doors."""
    door = seed % DOORS
    return Action(str(door), call=ToolCall("door", {"number": door}), logps=(-1.0,))


class Doors:
    """A tree of doors: every way is `depth` turns long, and has a score."""

    one_thread = False

    def __init__(self, depth: int) -> None:
        self.depth = depth

    def open(self) -> Opening:
        """See `TaskEnvironment.open`."""
        return Opening("start", "", (), lambda action: action.text, ())

    def execute(self, state: Path, action: Action, replay: bool = True) -> Outcome:
        """See `TaskEnvironment.execute`."""
        path = (*state, action.text)
        if len(path) == self.depth:
            score = round(random.Random("".join(path)).random(), 2)
            return Outcome(None, "tool", True, verdict=Verdict(score, False, "door"))
        return Outcome("on", "tool", False, state=path)

    def remember(self, state: Any, action: Action, observation: str | None, fingerprint: str | None) -> Any:
        """See `TaskEnvironment.remember`."""
        return (*state, action.text)

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One simulated cluster.

    Attributes:
        servers: How many.
        slots: Samples that each works on at once.
        trees, leaves: Trees in flight, in all; simulations of one tree in flight.
        tasks: Trees searched.
        simulations: Of each tree.
        tool_seconds: Mean of a tool call; within ±50 %.
        driver_seconds: The driver's work for each answer.
        room: Tokens of each server's cache.
        most: Most requests in flight, as a mean of the servers; those beyond a server's slots wait there.
        routing: `affine` (the project's router), `random` (among those with a free slot).
    """

    servers: int
    slots: int
    trees: int
    leaves: int
    tasks: int
    simulations: int
    tool_seconds: float
    driver_seconds: float = 0.0
    room: int = 200_000
    most: int | None = None
    routing: str = "affine"


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The results of a simulated cluster.

    Attributes:
        seconds, samples: Of the steady part: until fewer trees were left than may be in flight.
        whole_seconds, whole_samples: Of all of it.
        idle: Share of slot-seconds without a sample in the steady part, by server.
        hits: Share of the prompt tokens that were cached, by server, over all of it.
        driver: Share of the time in which the driver was busy.
        asked, answered: Samples.
        trees: The finished searches' digests, by task: visits of the root's edges.
    """

    seconds: float
    samples: int
    whole_seconds: float
    whole_samples: int
    idle: tuple[float, ...]
    hits: tuple[float, ...]
    driver: float
    asked: int
    answered: int
    trees: dict[str, tuple[int, ...]]

    @property
    def rate(self) -> float:
        """Samples a second, of the steady part."""
        return self.samples / self.seconds


def simulate(setting: Setting, latencies: Latencies, seed: int = 0) -> Outcomes:
    """Search with a simulated cluster."""
    clock = Clock()
    servers = {f"server-{number}": Server(setting.slots, setting.room) for number in range(setting.servers)}
    router = None
    if setting.routing == "affine":
        router = Router(list(servers), setting.most or setting.slots)
    cluster = Cluster(clock, servers, router, latencies, seed)
    pool = Workers(clock, setting.trees * setting.leaves, setting.tool_seconds)
    scheduler = Scheduler(cluster, pool, trees_in_flight=setting.trees)  # type: ignore[arg-type]
    inbox = scheduler._inbox = Inbox(clock, setting.driver_seconds)  # type: ignore[assignment]
    rng = random.Random(seed)
    settings = SearchSettings(simulations=setting.simulations, leaves_in_flight=setting.leaves, max_steps=32)

    def searches() -> Any:
        for number in range(setting.tasks):
            depth = 1 + rng.choice(latencies.depths)
            yield TreeSearch(Task(f"task-{number}", "train", {}), Doors(depth), settings, seed=number), ()

    steady: tuple[float, int, tuple[float, ...], float] | None = None
    trees = {}
    for finished, one in enumerate(scheduler.run(searches()), 1):
        assert one.tree is not None
        trees[one.tree_id] = tuple(edge.visits for edge in one.tree.root.edges)
        if finished == max(1, setting.tasks - setting.trees) and steady is None:
            busy = tuple(server.busy_until(clock.now) for server in servers.values())
            steady = (clock.now, cluster.answered, busy, inbox.busy)
    assert steady is not None
    seconds, samples, busy, driver = steady
    return Outcomes(
        seconds, samples, clock.now, cluster.answered,
        tuple(1 - one / (seconds * setting.slots) for one in busy),
        tuple(server.cached / max(1, server.prompt) for server in servers.values()),
        driver / seconds, cluster.asked, cluster.answered, trees,
    )  # fmt: skip
