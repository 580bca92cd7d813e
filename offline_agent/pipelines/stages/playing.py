"""Players of rounds: one round after the other, or rounds ahead of the trainer, in a thread of their own."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any

from offline_agent.errors import PolicyError, PolicyMismatch
from offline_agent.pipelines.stages.rounds import RoundLog
from offline_agent.rollouts.attempts import Attempt, AttemptRequest
from offline_agent.rollouts.episodes import Episodes
from offline_agent.training.online.groups import Round, RoundSampler

_PATIENCE = 10.0  # seconds that the end of a run waits for a thread that asks a server


class RoundPlayer:
    """Plays the attempts of rounds, except those that an earlier session logged.

    Args:
        episodes: Plays episodes.
        log: The logs of the run.
        size: Attempts of one task in a round: attempt `n` belongs to round n // size.
        first: The first round that will be played.

    Attributes:
        renew: Gives the weights of the round to the policy again: a restarted server has lost them. None = no weights
            to give. Raises PolicyError if the policy does not answer.
        seconds: Seconds spent playing.
        standing: Attempts that are over, of those asked for last, in words.
    """

    def __init__(self, episodes: Episodes, log: RoundLog, size: int, first: int) -> None:
        self._episodes, self._log = episodes, log
        self._known = {(a.task.task_id, a.number): a for a in log.read(lambda number: number // size >= first)}
        self.seconds = 0.0
        self.standing = ""
        self.renew: Callable[[], object] | None = None

    def __call__(self, asks: Sequence[AttemptRequest], number: int) -> Iterator[Attempt]:
        """Yield the attempts: logged ones first, then the others as they end."""
        known, left = self.known(asks)
        yield from known
        started = time.perf_counter()
        for over, attempt in enumerate(self.play(left), len(known)):
            self.standing = f"{over + 1} of {len(asks)}"
            yield attempt
        self.seconds += time.perf_counter() - started

    def known(self, asks: Sequence[AttemptRequest]) -> tuple[list[Attempt], list[AttemptRequest]]:
        """Return the attempts that an earlier session logged, once, and those that are left to play."""
        found = [self._known.pop((ask.task.task_id, ask.number), None) for ask in asks]
        left = [ask for ask, attempt in zip(asks, found, strict=True) if attempt is None]
        return [attempt for attempt in found if attempt is not None], left

    def wake(self) -> None:
        """See `Episodes.wake`."""
        self._episodes.wake()

    def play(self, asks: Iterable[AttemptRequest | None]) -> Iterator[Attempt]:
        """Log and yield attempts as they end; see `Episodes.play`.

        After a PolicyError the policy is renewed once, and the attempts that were under way are played anew.
        """
        renewed, source = False, iter(asks)
        under_way: dict[tuple[str, int], AttemptRequest] = {}

        def drawn(again: Sequence[AttemptRequest]) -> Iterator[AttemptRequest | None]:
            for ask in itertools.chain(again, source):
                if ask is not None:
                    under_way[ask.task.task_id, ask.number] = ask
                yield ask

        while True:
            try:
                for attempt in self._episodes.play(drawn([*under_way.values()])):
                    del under_way[attempt.task.task_id, attempt.number]
                    renewed = False
                    self._log.add(attempt)
                    yield attempt
                return
            except PolicyError as error:
                if renewed or self.renew is None or isinstance(error, PolicyMismatch):
                    raise
                try:
                    self.renew()
                except PolicyError:
                    raise error from None
                renewed = True


class _Closed(Exception):
    """Ends the thread of `RoundsAhead`."""


class RoundsAhead:
    """Plays rounds in a thread of its own while the caller trains on earlier ones.

    Version v of the weights is what v rounds' updates made; round n is trained on when version n is there. A group of
    round n is admitted once the sampler has version n - `settings.behind` (the bound of AReaL, Fu et al. 2025, arXiv
    2505.24298, section 5.1, by groups: rewards are compared in them). It then stays in its round, however slow it is.
    So no token that is trained on is more than `behind` versions old, and nothing that was begun is thrown away.
    Weights change while no request is under way: between turns.

    Args:
        groups: Makes the rounds.
        player: Plays their attempts; its episodes ask `gate`.
        first, last: The rounds `first` to `last` - 1 are played.
        lasting: See `Sampler`: a policy that fails gets the weights again that it had.

    Attributes:
        waited: Seconds that the caller waited: for rounds, and for weights to be handed over.
        handed: What the last handover returned.
    """

    def __init__(
        self, groups: RoundSampler, player: RoundPlayer, first: int, last: int, lasting: bool = False
    ) -> None:
        self._groups, self._player, self._lasting = groups, player, lasting
        self._behind, self._size = groups.settings.behind, groups.settings.size
        self._next, self._last = first, last
        self._version = first - self._behind - 1  # which admits nothing
        self._turn = threading.Condition()
        self._given: tuple[int, Callable[[], Any]] | None = None  # a version that is to be handed over, and how
        self._closed = False
        self._error: BaseException | None = None
        self._making: dict[int, Generator[list[AttemptRequest], list[Attempt] | None, Round]] = {}
        self._played: dict[int, tuple[list[Attempt], int]] = {}  # those of a draw that are over, and how many it has
        self._queue: deque[AttemptRequest] = deque()
        self._made: dict[int, Round] = {}
        self._thread = threading.Thread(target=self._work, name="rounds-ahead", daemon=True)
        self._started = self._rested = self.waited = 0.0
        self._rests_since: float | None = None
        self.handed: Any = None

    @property
    def idle(self) -> float:
        """Seconds in which the thread had nothing to play, or handed weights over."""
        with self._turn:
            since = self._rests_since
            return self._rested + (0.0 if since is None else time.perf_counter() - since)

    @property
    def seconds(self) -> float:
        """Seconds in which something was played."""
        return time.perf_counter() - self._started - self.idle if self._started else 0.0

    def take(self, number: int, give: Callable[[], Any]) -> Round:
        """Return round `number`; once no turn is under way, the thread hands version `number` over by `give`.

        The weights must not change before `settle` returns.

        Raises:
            BaseException: What ended the thread.
        """
        if not self._started:
            self._started = time.perf_counter()
            self._thread.start()
        with self._turn:
            self._given = number, give
            self._turn.notify_all()
        self._player.wake()
        self._wait(lambda: number in self._made)
        return self._made.pop(number)

    def settle(self) -> None:
        """Wait until the weights that `take` was given are handed over; raises as it does."""
        self._wait(lambda: self._given is None)

    def gate(self, none_under_way: bool) -> int | None:
        """See `policies.outage.Gate`."""
        if self._closed:
            raise _Closed
        if self._given is not None and none_under_way:
            self._rest(self._hand_over)
        return self._version if self._given is None else None

    def close(self) -> None:
        """End the thread; what it was playing is dropped, and what was over is in the log."""
        with self._turn:
            self._closed = True
            self._turn.notify_all()
        self._player.wake()
        if self._started:
            self._thread.join(_PATIENCE)

    def _wait(self, until: Callable[[], bool]) -> None:
        """Have the caller wait for the thread."""
        began = time.perf_counter()
        with self._turn:
            self._turn.wait_for(lambda: until() or self._error is not None)
            self.waited += time.perf_counter() - began
            if self._error is not None:
                raise self._error

    # -- the thread --------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while True:
                self.gate(True)
                if not self._admits():
                    self._rest(self._until_there_is_work)
                    continue
                for attempt in self._player.play(self._asks()):
                    self._over(attempt)
        except _Closed:
            pass
        except BaseException as error:  # raised again in `take` or `settle`
            with self._turn:
                self._error = error
                self._turn.notify_all()

    def _rest(self, work: Callable[[], None]) -> None:
        """Do something while nothing is played."""
        began = self._rests_since = time.perf_counter()
        work()
        with self._turn:
            self._rested += time.perf_counter() - began
            self._rests_since = None

    def _until_there_is_work(self) -> None:
        with self._turn:
            self._turn.wait_for(lambda: self._closed or self._given is not None or self._admits())

    def _hand_over(self) -> None:
        assert self._given is not None
        number, give = self._given
        self.handed, self._player.renew = give(), give if self._lasting else None
        with self._turn:
            self._version, self._given = number, None
            self._turn.notify_all()

    def _admits(self) -> bool:
        """Return whether the next round may begin."""
        return self._next < self._last and self._next - self._behind <= self._version

    def _asks(self) -> Iterator[AttemptRequest | None]:
        """Yield the attempts that may be played, those of earlier rounds first; None = none now."""
        while True:
            while self._admits():
                self._making[self._next] = self._groups.making(self._next)
                self._next += 1
                self._go_on(self._next - 1, None)
            yield self._queue.popleft() if self._queue else None

    def _over(self, attempt: Attempt) -> None:
        number = attempt.number // self._size
        played, wanted = self._played[number]
        played.append(attempt)
        self._player.standing = f"{len(played)} of {wanted}"
        if len(played) == wanted:
            self._go_on(number, played)

    def _go_on(self, number: int, played: list[Attempt] | None) -> None:
        """Give a round what it asked for, and queue what it asks for next; logged attempts are not played again."""
        left: list[AttemptRequest] = []
        while not left:
            try:
                asks = self._making[number].send(played)
            except StopIteration as end:
                with self._turn:
                    self._made[number] = end.value
                    self._turn.notify_all()
                del self._making[number]
                self._played.pop(number, None)
                return
            played, left = self._player.known(asks)
            self._played[number] = played, len(asks)
        self._queue = deque(sorted([*self._queue, *left], key=lambda ask: ask.number // self._size))
