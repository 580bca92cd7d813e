"""New weights for a pool of servers: no answer from old ones, whoever dies, comes back or hangs meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offline_agent.errors import ConfigError, DataError, PolicyError
from offline_agent.policies.base import Proposals, ProposeRequest
from offline_agent.policies.server.policy import ServerPolicy
from offline_agent.policies.weights import Probe
from tests.helpers.fake_server import serving_all
from tests.helpers.fake_vllm import FakeVLLM, checkpoint, logp
from tests.unit.policies.server.test_pool import figures, root, until

WAIT = 60.0
IDS = (3, 1, 4, 1, 5)


def probe(value: float) -> Probe:
    return Probe(IDS, tuple(logp(value, token) for token in IDS[1:]), 1e-6)


@pytest.fixture
def three() -> Iterator[list[Any]]:
    with serving_all(*(FakeVLLM() for _ in range(3))) as fakes:
        yield fakes


@pytest.fixture
def served(three: list[FakeVLLM]) -> Iterator[ServerPolicy]:
    policy = ServerPolicy([fake.url for fake in three], backoff=0.02, timeout=30.0, patience=1.0)
    yield policy
    policy.close()


def texts(policy: ServerPolicy, number: int = 12) -> set[str]:
    answers = policy.propose([ProposeRequest(root(n), (n,)) for n in range(number)])
    return {answer.actions[0].text if isinstance(answer, Proposals) else f"error: {answer}" for answer in answers}


def test_all_servers_take_the_weights(three: list[FakeVLLM], served: ServerPolicy, tmp_path: Path) -> None:
    served.check_takes_weights()
    assert texts(served) == {"weights 0"}
    taken = served.take_weights(checkpoint(tmp_path / "one", 1), probe(1))
    assert [fake.value for fake in three] == [1.0] * 3 and {fake.version for fake in three} == {taken.version}
    assert (taken.gap, taken.shift) == (0.0, pytest.approx(0.1)) and 0 <= taken.waited <= taken.seconds
    assert texts(served) == {"weights 1"}
    again = served.take_weights(checkpoint(tmp_path / "two", 2))
    assert (again.gap, again.shift) == (None, None) and texts(served) == {"weights 2"}


def test_one_that_cannot_read_them_is_out_until_it_has(
    three: list[FakeVLLM], served: ServerPolicy, tmp_path: Path
) -> None:
    three[1].broken["take_checkpoint"] = (500, {"error": {"message": "the disk is full"}})
    served.take_weights(checkpoint(tmp_path / "one", 1), probe(1))
    assert "the disk is full" in str(figures(served, three[1])["out"]) and three[1].value == 0
    assert texts(served) == {"weights 1"}
    three[1].broken = {}
    until(lambda: figures(served, three[1])["out"] is None)
    assert three[1].value == 1 and texts(served) == {"weights 1"}


@pytest.mark.parametrize("how", ["killed", "unnoticed"])
def test_one_that_is_started_anew_reads_them_before_it_is_used(
    three: list[FakeVLLM], served: ServerPolicy, tmp_path: Path, how: str
) -> None:
    served.take_weights(checkpoint(tmp_path / "one", 1), probe(1))
    if how == "killed":
        three[0].running.kill()
        assert texts(served) == {"weights 1"}
    three[0].start_anew()
    if how == "killed":
        three[0].running.start()
    else:
        assert texts(served) == {"weights 1"}  # the answers from its first weights are not taken
        assert figures(served, three[0])["ejections"] == 1
    until(lambda: figures(served, three[0])["out"] is None)
    assert three[0].value == 1 and texts(served) == {"weights 1"}


def test_one_that_was_out_at_the_update_gets_the_newest(
    three: list[FakeVLLM], served: ServerPolicy, tmp_path: Path
) -> None:
    served.take_weights(checkpoint(tmp_path / "one", 1))
    three[2].running.kill()
    assert texts(served, 24) == {"weights 1"}
    until(lambda: figures(served, three[2])["out"])
    served.take_weights(checkpoint(tmp_path / "two", 2))
    three[2].start_anew()
    three[2].running.start()
    until(lambda: figures(served, three[2])["out"] is None)
    assert three[2].value == 2 and texts(served) == {"weights 2"}


def test_when_all_fail_it_is_said_and_can_be_done_again(
    three: list[FakeVLLM], served: ServerPolicy, tmp_path: Path
) -> None:
    for fake in three:
        fake.broken["/reset_prefix_cache"] = (500, {"error": {"message": "no"}})
    with pytest.raises(PolicyError, match="all 3 servers are out, none took the new weights within 1 s"):
        served.take_weights(checkpoint(tmp_path / "one", 1))
    (said,) = texts(served, 1)
    assert said.startswith("error: all 3 servers are out") and said.count("new weights") >= 3
    for fake in three:
        fake.broken = {}
    served.take_weights(tmp_path / "one", probe(1))
    assert texts(served) == {"weights 1"}


def test_an_update_waits_for_servers_that_are_just_being_started(three: list[FakeVLLM], tmp_path: Path) -> None:
    served = ServerPolicy([fake.url for fake in three], backoff=0.02, timeout=30.0, patience=WAIT)
    for fake in three:
        fake.running.kill()
    update = threading.Thread(target=served.take_weights, args=(checkpoint(tmp_path / "one", 1),))
    update.start()
    until(lambda: all(each["out"] for each in served.server_figures()))
    three[1].running.start()
    update.join(WAIT)
    assert not update.is_alive() and texts(served) == {"weights 1"}
    served.close()


def test_servers_that_take_no_weights_are_said_so(tmp_path: Path) -> None:
    with serving_all(FakeVLLM(), FakeVLLM(development=False)) as fakes:
        served = ServerPolicy([fake.url for fake in fakes], backoff=WAIT)
        with pytest.raises(ConfigError, match=f"{fakes[1].url} has no /is_paused"):
            served.check_takes_weights()
        served.take_weights(checkpoint(tmp_path / "one", 1))
        assert "VLLM_SERVER_DEV_MODE" in str(figures(served, fakes[1])["out"]) and texts(served) == {"weights 1"}
        served.close()
    with serving_all(FakeVLLM(development=False), FakeVLLM(development=False)) as fakes:
        served = ServerPolicy([fake.url for fake in fakes])
        with pytest.raises(ConfigError, match="VLLM_SERVER_DEV_MODE"):
            served.take_weights(checkpoint(tmp_path / "one", 1))
        assert texts(served) == {"weights 0"}
        served.close()


def test_a_server_that_can_name_its_weights_no_more_is_taken_out(
    three: list[FakeVLLM], served: ServerPolicy, tmp_path: Path
) -> None:
    served.take_weights(checkpoint(tmp_path / "one", 1))
    three[0].development = False  # started anew without the mode
    assert texts(served, 24) == {"weights 1"}
    assert "VLLM_SERVER_DEV_MODE" in str(figures(served, three[0])["out"])


def test_a_bad_checkpoint_gets_to_no_server(three: list[FakeVLLM], served: ServerPolicy, tmp_path: Path) -> None:
    served.take_weights(checkpoint(tmp_path / "one", 1))
    routes = [len(fake.routes) for fake in three]
    with pytest.raises(DataError, match="b.weight is of shape"):
        served.take_weights(checkpoint(tmp_path / "two", 2, {"a.weight": [2, 3], "b.weight": [5]}))
    with pytest.raises(DataError, match="no folder"):
        served.take_weights(tmp_path / "none")
    assert routes == [len(fake.routes) for fake in three] and texts(served) == {"weights 1"}


def test_answers_under_way_end_first_and_later_ones_are_from_the_new_weights(
    three: list[FakeVLLM], served: ServerPolicy, tmp_path: Path
) -> None:
    held, come = threading.Event(), threading.Semaphore(0)
    for fake in three:
        fake.during = lambda text: (come.release(), held.wait(WAIT)) if "Task 1." in text else None
    engine, got, left = served.engine(), {}, threading.Semaphore(0)

    def keep(name: str) -> Any:
        return lambda answer: (got.update({name: answer.actions[0].text}), left.release())

    engine.submit(ProposeRequest(root(1), (1,)), keep("early"))
    assert come.acquire(timeout=WAIT)
    update = threading.Thread(target=served.take_weights, args=(checkpoint(tmp_path / "one", 1),))
    update.start()
    until(lambda: served._servers._gate._changing)  # type: ignore[union-attr]
    for number in range(2, 8):
        engine.submit(ProposeRequest(root(number), (1,)), keep(f"late {number}"))
    assert [fake.routes for fake in three] == [[], [], []]
    held.set()
    update.join(WAIT)
    for _ in range(7):
        assert left.acquire(timeout=WAIT)
    assert got.pop("early") == "weights 0" and set(got.values()) == {"weights 1"}
    engine.close()
