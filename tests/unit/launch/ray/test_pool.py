"""The pool on a Ray of threads: bounded hand-out, nothing lost or doubled when workers die, poison, errors."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from offline_agent.errors import ConfigError, DataError, EnvironmentFault, PolicyError
from offline_agent.launch.ray.pool import WorkerPool
from offline_agent.launch.ray.work_items import LOST, PoolError, PoolSettings, WorkItem
from offline_agent.launch.ray.worker import (
    DONE,
    RECORD,
    HandedItem,
    ItemFeed,
    MessageQueue,
    RayWorker,
    Send,
    driver_context,
)
from tests.helpers.fake_ray import Actor, ActorDiedError, ActorUnavailableError, FakeRay

STEPS = 5


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)  # type: ignore[arg-type]
    return fake


class Counts:
    """State that the workers of a test share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.begun: Counter[str] = Counter()
        self.steps: Counter[tuple[str, int]] = Counter()
        self.most = 0


class Stepper:
    """Does `STEPS` steps of each job, many jobs at once, and goes on from the steps that the driver has."""

    notes: tuple[str, ...] = ()

    def __init__(self, counts: Counts, ray: FakeRay, bad: Callable[[str, Actor], None] | None = None) -> None:
        self.counts = counts
        self._ray = ray
        self._bad = bad
        self.done = 0

    def work(self, phase: str, feed: ItemFeed, send: Send, elapsed: float) -> None:
        actor = next(actor for actor in self._ray.actors if actor.instance._executor is self)
        while feed.wait():
            under_way: dict[int, tuple[str, int]] = {}
            while True:
                for job in feed:
                    name, steps = job.payload
                    under_way[job.number] = (name, len(steps))
                    with self.counts.lock:
                        self.counts.begun[name] += 1
                        self.counts.most = max(self.counts.most, len(under_way))
                if not under_way:
                    break
                for number, (name, step) in list(under_way.items()):
                    if actor.dead is not None:
                        return
                    if self._bad is not None:
                        self._bad(name, actor)
                    with self.counts.lock:
                        self.counts.steps[name, step] += 1
                    if step == STEPS:
                        self.done += 1
                        del under_way[number]
                        send(number, DONE, name.upper())
                    else:
                        send(number, RECORD, step)
                        under_way[number] = (name, step + 1)

    def figures(self, last: bool) -> dict[str, Any]:
        return {"done": self.done, "last": last}

    def stop(self) -> None:
        pass


def terms(**changes: Any) -> PoolSettings:
    return PoolSettings(**{"workers": 3, "in_flight": 4, "start_seconds": 20.0, "silent_seconds": 20.0, **changes})


def jobs(n: int) -> Iterator[WorkItem]:
    return (WorkItem(f"job-{i}", (f"job-{i}", [])) for i in range(n))


def carry_out(pool: WorkerPool, n: int) -> tuple[dict[str, str], dict[str, str]]:
    """Run the jobs and check what comes; return results, and reasons of those that were given up."""
    done: dict[str, str] = {}
    lost: dict[str, str] = {}
    for job, kind, value in pool.run("steps", jobs(n)):
        assert job.name not in done and job.name not in lost
        if kind == RECORD:
            assert value == len(job.payload[1]), "a record is missing, doubled or out of order"
            job.payload[1].append(value)
        elif kind == DONE:
            assert len(job.payload[1]) == STEPS
            done[job.name] = value
        else:
            assert kind == LOST
            lost[job.name] = value
    return done, lost


def test_everything_is_done_once_and_no_worker_has_more_than_its_share(ray: FakeRay) -> None:
    counts, said = Counts(), []
    with WorkerPool(lambda: Stepper(counts, ray), terms(), said.append) as pool:
        done, lost = carry_out(pool, 40)
        figures = pool.figures("steps")
    assert done == {f"job-{i}": f"JOB-{i}" for i in range(40)} and not lost and not said
    assert set(counts.begun.values()) == set(counts.steps.values()) == {1} and counts.most <= 4
    counted = [part for one in figures for part in one["counts"]]
    assert sum(part["done"] for part in counted) == sum(one["done"] for one in figures) == 40
    assert all(part["last"] for part in counted)
    assert all(actor.dead for actor in ray.actors)


def test_jobs_are_drawn_lazily(ray: FakeRay) -> None:
    counts, drawn = Counts(), []

    def source() -> Iterator[WorkItem]:
        for job in jobs(1000):
            drawn.append(job.name)
            yield job

    with WorkerPool(lambda: Stepper(counts, ray), terms(workers=2, in_flight=3), print) as pool:
        events = pool.run("steps", source())
        finished = 0
        for job, kind, value in events:
            if kind == RECORD:
                job.payload[1].append(value)
            finished += kind == DONE
            assert len(drawn) <= finished + 2 * 3 + 1 + 6  # those of one answer may be handed out before they are seen
            if finished == 50:
                break


@pytest.mark.parametrize("seed", range(8))
def test_workers_that_are_killed_lose_and_double_nothing(ray: FakeRay, seed: int) -> None:
    counts, said, chance, ended = Counts(), [], random.Random(seed), threading.Event()

    def kill() -> None:
        for _ in range(12):
            if ended.wait(chance.random() * 0.03):
                return
            alive = [actor for actor in ray.actors if actor.dead is None]
            if alive:
                kind = chance.choice((ActorDiedError, ActorUnavailableError))
                chance.choice(alive).die(kind("The actor died of a test"))

    killer = threading.Thread(target=kill)
    with WorkerPool(lambda: Stepper(counts, ray), terms(deaths=100), said.append) as pool:
        killer.start()
        done, lost = carry_out(pool, 120)
        ended.set()
        killer.join()
    assert len(done) == 120 and not lost
    deaths = sum("died" in line for line in said)
    assert max(counts.steps.values()) <= 1 + deaths
    repeated = sum(n - 1 for n in counts.steps.values())
    assert repeated <= deaths * 4 * (STEPS + 1), "more was repeated than what was in flight"


def test_a_job_that_kills_its_workers_is_given_up_and_no_other(ray: FakeRay) -> None:
    counts, said = Counts(), []

    def poison(name: str, actor: Actor) -> None:
        if name == "job-7":
            actor.die(ActorDiedError("The worker died: out of memory"))
            raise SystemExit

    with WorkerPool(lambda: Stepper(counts, ray, poison), terms(in_flight=16), said.append) as pool:
        done, lost = carry_out(pool, 60)
    assert set(lost) == {"job-7"} and len(done) == 59
    assert "3 workers died while they had nothing else than this" in lost["job-7"] and "out of memory" in lost["job-7"]
    assert sum("died" in line for line in said) <= 5  # with all others, with an eighth, alone


def test_workers_that_die_on_everything_are_an_outage_not_poison(ray: FakeRay) -> None:
    def poison(name: str, actor: Actor) -> None:
        actor.die(ActorDiedError("The worker died: no such library"))
        raise SystemExit

    for n in (1, 40):
        with (
            WorkerPool(lambda: Stepper(Counts(), ray, poison), terms(in_flight=1, deaths=2), lambda _: None) as pool,
            pytest.raises(PoolError, match="workers die on whatever they do .*no such library"),
        ):
            carry_out(pool, n)


def test_the_last_job_may_be_poison_where_others_were_done_before(ray: FakeRay) -> None:
    def poison(name: str, actor: Actor) -> None:
        actor.die(ActorDiedError("The worker died"))
        raise SystemExit

    with WorkerPool(lambda: Stepper(Counts(), ray, poison), terms(deaths=2), lambda _: None, proven=True) as pool:
        assert set(carry_out(pool, 1)[1]) == {"job-0"}


def test_a_worker_that_dies_before_it_begins_is_left_out_then_the_run_ends(ray: FakeRay) -> None:
    said: list[str] = []

    def factory() -> Stepper:
        ray.actors[-1].die(ActorDiedError("The worker died: illegal instruction"))
        raise RuntimeError("nobody hears this")

    with (
        WorkerPool(factory, terms(workers=1), said.append) as pool,
        pytest.raises(PoolError, match="3 times in a row with nothing to do: .*illegal instruction"),
    ):
        carry_out(pool, 5)


class Failing(Stepper):
    """Raises an error at a job; the first `times` of its kind do."""

    error: Exception = PolicyError("the server is gone")
    times = 1

    def work(self, phase: str, feed: ItemFeed, send: Send, elapsed: float) -> None:
        with self.counts.lock:
            self.counts.begun["hands"] += 1
            fails = self.counts.begun["hands"] <= self.times
        if fails:
            feed.wait()
            raise self.error
        super().work(phase, feed, send, elapsed)


def failing(error: Exception, times: int, counts: Counts, ray: FakeRay) -> Callable[[], Stepper]:
    kind = type("One", (Failing,), {"error": error, "times": times})
    return lambda: kind(counts, ray)


@pytest.mark.parametrize("error", [PolicyError("its card is broken"), EnvironmentFault("300 calls hung")])
def test_what_one_worker_cannot_do_others_do(ray: FakeRay, error: Exception) -> None:
    said: list[str] = []
    with WorkerPool(failing(error, 1, Counts(), ray), terms(), said.append) as pool:
        done, lost = carry_out(pool, 20)
    assert len(done) == 20 and not lost and any(f"gave up: {error}" in line for line in said)


@pytest.mark.parametrize("error", [PolicyError("the server is gone"), EnvironmentFault("300 calls hung")])
def test_what_no_worker_can_do_ends_the_run_with_the_same_error(ray: FakeRay, error: Exception) -> None:
    with (
        WorkerPool(failing(error, 1000, Counts(), ray), terms(), lambda _: None) as pool,
        pytest.raises(type(error), match=str(error)),
    ):
        carry_out(pool, 20)


@pytest.mark.parametrize("error", [DataError("the log belongs to another run"), ConfigError("policy.model: no such")])
def test_what_every_worker_would_meet_ends_the_run_at_once(ray: FakeRay, error: Exception) -> None:
    counts = Counts()
    with (
        WorkerPool(failing(error, 1, counts, ray), terms(), lambda _: None) as pool,
        pytest.raises(type(error), match=str(error)),
    ):
        carry_out(pool, 20)


def test_a_fault_of_the_program_ends_the_run_with_its_traceback(ray: FakeRay) -> None:
    with (
        WorkerPool(failing(ZeroDivisionError("a bug"), 1, Counts(), ray), terms(), lambda _: None) as pool,
        pytest.raises(RuntimeError, match="in work\n(.*\n)*ZeroDivisionError: a bug"),
    ):
        carry_out(pool, 20)


def test_a_worker_that_falls_silent_counts_as_dead(ray: FakeRay) -> None:
    counts, hang, has_items, said = Counts(), threading.Event(), threading.Event(), []

    class Mute(RayWorker):
        def exchange(self, phase: str, elapsed: float, items: Any, *more: Any) -> Any:
            if self is ray.actors[0].instance and items:
                has_items.set()
                hang.wait(60)
            elif items:
                has_items.wait(60)  # else the others may be done before it is asked
            return super().exchange(phase, elapsed, items, *more)

    import offline_agent.launch.ray.pool as module

    before, module.RayWorker = module.RayWorker, Mute  # type: ignore[misc]
    try:
        with WorkerPool(lambda: Stepper(counts, ray), terms(silent_seconds=1.0), said.append) as pool:
            done, _ = carry_out(pool, 20)
    finally:
        module.RayWorker = before  # type: ignore[misc]
        hang.set()
    assert len(done) == 20 and any("it said nothing for 1 s (ray.silent_seconds)" in line for line in said)


def test_no_room_is_said_at_once_where_it_will_not_change_and_later_where_it_may(ray: FakeRay) -> None:
    words = "each needs 9 CPUs and 0 GPUs on one machine, the cluster has 8 CPUs, 0 GPUs"
    with (
        WorkerPool(lambda: Stepper(Counts(), ray), terms(cpus=9, fixed=True), print) as pool,
        pytest.raises(PoolError, match=words),
    ):
        carry_out(pool, 1)
    ray.room = 0
    with (
        WorkerPool(lambda: Stepper(Counts(), ray), terms(cpus=9, start_seconds=0.2), print) as pool,
        pytest.raises(PoolError, match=f"no worker was ready within 0.2 s .*{words}"),
    ):
        carry_out(pool, 1)


def test_workers_without_room_are_not_waited_for(ray: FakeRay) -> None:
    ray.room, done = 1, 0
    with WorkerPool(lambda: Stepper(Counts(), ray), terms(start_seconds=1.0), print) as pool:
        for job, kind, value in pool.run("steps", jobs(12)):
            if kind == RECORD:
                job.payload[1].append(value)
            if not done and kind == DONE:
                time.sleep(1.1)  # longer than a first worker is waited for
            done += kind == DONE
    assert done == 12


def test_a_second_phase_has_the_same_workers_and_counts_anew(ray: FakeRay) -> None:
    counts = Counts()
    with WorkerPool(lambda: Stepper(counts, ray), terms(), print) as pool:
        carry_out(pool, 10)
        more = [event for event in pool.run("more", jobs(9)) if event.kind == DONE]
        counted = [part for one in pool.figures("more") for part in one["counts"]]
    assert len(more) == 9 and len(ray.actors) == 3 and 1 <= len(counted) <= 3
    assert sum(part["done"] for part in counted) <= 19  # a hand that counts from its beginning, not from the phase's


# -- inside a worker -------------------------------------------------------------------------------------------------


def test_a_feed_ends_and_has_more_later() -> None:
    feed = ItemFeed()
    feed.put([HandedItem(1, "a"), HandedItem(2, "b")])
    assert feed.wait() and [job.number for job in feed] == [1, 2] and list(feed) == []
    feed.put([HandedItem(3, "c")])
    assert [job.number for job in feed] == [3]
    feed.close()
    assert not feed.wait()


def test_an_messages_makes_its_sender_wait_for_a_slow_driver() -> None:
    outbox, sent = MessageQueue(most=3), []

    def send() -> None:
        for i in range(10):
            outbox.send(0, RECORD, i)
            sent.append(i)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    got: list[int] = []
    while len(got) < 10:
        time.sleep(0.002)
        assert len(sent) <= len(got) + 3
        messages = outbox.take(1.0)
        assert len(messages) <= 3
        got += [message.value for message in messages]
    assert got == list(range(10))


def test_a_worker_says_what_broke_and_needs_the_drivers_folder(tmp_path: Any) -> None:
    place = driver_context()
    answer = RayWorker().set_up(lambda: 1 / 0, place)  # type: ignore[arg-type, return-value]
    assert answer.kind == "ZeroDivisionError" and "Traceback" in answer.trace  # type: ignore[union-attr]
    answer = RayWorker().set_up(lambda: None, place._replace(folder=str(tmp_path / "gone")))  # type: ignore[arg-type]
    assert answer.kind == "ConfigError" and "has no folder" in answer.text  # type: ignore[union-attr]
