"""A pool of servers against real local HTTP servers that die, hang, answer garbage and lie."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from offline_agent.errors import ConfigError, PolicyError
from offline_agent.policies.base import Proposals, ProposeRequest
from offline_agent.policies.server.policy import ServerPolicy, addresses
from offline_agent.records import Context, Task
from offline_agent.rendering.renderer import Renderer
from tests.helpers import rendering as kit
from tests.helpers.fake_server import FakeServer, holding, seeded_model, serving_all
from tests.helpers.policy_conformance import check_policy

FAST = {"backoff": 0.02, "timeout": 30.0, "patience": 20.0}
WAIT = 60.0


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tokenizer")
    kit.qwen().save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def renderer(tokenizer: str) -> Renderer:
    return Renderer.load(tokenizer)


@pytest.fixture
def three(renderer: Renderer) -> Iterator[list[FakeServer]]:
    with serving_all(*(FakeServer(seeded_model(renderer)) for _ in range(3))) as fakes:
        yield fakes


@contextmanager
def pool(fakes: list[FakeServer], **keys: Any) -> Iterator[ServerPolicy]:
    policy = ServerPolicy([fake.url for fake in fakes], **{**FAST, **keys})
    try:
        yield policy
    finally:
        policy.close()


def root(number: int) -> Context:
    context = kit.root(f"Task {number}.")
    return Context(Task(f"t{number}", "train", {}), context.system, context.tools, f"Task {number}.")


def ask(policy: ServerPolicy, number: int = 0, seeds: tuple[int, ...] = (1,)) -> Any:
    return policy.propose([ProposeRequest(root(number), seeds)])[0]


def home(policy: ServerPolicy, fakes: list[FakeServer], number: int = 0) -> FakeServer:
    """Return the server that a task's requests go to while nothing else goes on."""
    url = policy._servers._router.choose(f"t{number}")  # type: ignore[union-attr]
    return next(fake for fake in fakes if fake.url == url)


def figures(policy: ServerPolicy, fake: FakeServer) -> dict[str, Any]:
    return next(each for each in policy.server_figures() if each["url"] == fake.url)


def until(what: Callable[[], Any]) -> None:
    end = time.monotonic() + WAIT
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def posts(fake: FakeServer) -> int:
    return sum("prompt_logprobs" not in body for _, body in fake.seen)


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "chat"])
def test_it_keeps_the_contract(three: list[FakeServer], tokenizer: str, tokens: bool) -> None:
    with pool(three, tokenizer=tokenizer if tokens else None, batch_invariant=True) as policy:
        start = kit.root()
        first = ask(policy).actions[0]
        assert check_policy(policy, [start, start.child(first, "2 hits"), kit.root("Other.")]) == []
        assert policy.identity["url"] == [fake.url for fake in three] and policy.identity["model"] == "tiny"
        assert json.dumps(policy.identity) and policy.name == "server"


def test_samples_are_those_of_one_server_and_none_is_asked_for_twice(three: list[FakeServer], tokenizer: str) -> None:
    requests = [ProposeRequest(root(number), (1, 2, 3)) for number in range(12)]
    with pool(three, tokenizer=tokenizer) as policy:
        spread = policy.propose(requests)
        counted = policy.server_figures()
    known = [posts(fake) for fake in three]
    assert sum(known) == 36 and all(known) and [each["requests"] for each in counted] == known
    alone = ServerPolicy(three[0].url, tokenizer=tokenizer)
    assert spread == alone.propose(requests)
    wanted = sum(len(action.token_ids) for answer in spread for action in answer.actions)  # type: ignore[union-attr]
    assert sum(each["generated_tokens"] for each in counted) == wanted
    assert all(each["out"] is None and not each["errors"] for each in counted)
    alone.close()


def test_a_tree_goes_to_one_server(three: list[FakeServer]) -> None:
    with pool(three) as policy:
        for number in range(6):
            at_home = home(policy, three, number)
            before = posts(at_home)
            for seed in range(3):
                ask(policy, number, (seed,))
            assert posts(at_home) == before + 3


def test_servers_are_filled_and_what_has_no_room_waits(three: list[FakeServer]) -> None:
    with pool(three, concurrency=2, backoff=10 * WAIT) as policy:
        three[0].misbehave = lambda path, body, count: (500, {}) if count >= 0 else None
        for number in range(12):
            ask(policy, number)
        held = threading.Event()
        for fake in three[1:]:
            fake.misbehave = holding(held, "")
        got: list[Any] = []
        asking = threading.Thread(target=lambda: got.append(ask(policy, seeds=tuple(range(10, 18)))), daemon=True)
        asking.start()
        until(lambda: sum(fake.now for fake in three) == 4)  # two a server; two threads wait for room
        held.set()
        asking.join(WAIT)
        assert len(got[0].actions) == 8 and max(fake.most for fake in three) == 2


IDS = [5, 6, 7]
GARBAGE = {
    "500": ((500, {"error": {"message": "CUDA fell over"}}), "CUDA fell over"),
    "429": ((429, {}), "429"),
    "no such model": ((404, {"error": {"message": "no such model"}}), "no such model"),
    "no key": ((401, {}), "OPENAI_API_KEY"),
    "not json": ((200, b"<html>hello</html>"), "not JSON"),
    "a list": ((200, b"[1]"), "not an object"),
    "no choices": ((200, {}), "no choices"),
    "no ids": ((200, {"choices": [{"text": "hi"}]}), "no token ids"),
    "foreign ids": ((200, {"choices": [{"token_ids": [10**6]}]}), "does not have"),
    "nan": ((200, {"choices": [{"token_ids": IDS, "logprobs": {"token_logprobs": [math.nan] * 3}}]}), "finite"),
    "too few log-probs": ((200, {"choices": [{"token_ids": IDS, "logprobs": {"token_logprobs": [-1.0]}}]}), "finite"),
}


@pytest.mark.parametrize("how", GARBAGE)
def test_what_one_server_fails_another_answers_at_once(three: list[FakeServer], tokenizer: str, how: str) -> None:
    answer, said = GARBAGE[how]
    with pool(three, tokenizer=tokenizer, backoff=WAIT) as policy:
        good = ask(policy, 1, (7,))
        bad = home(policy, three, 1)
        bad.misbehave = lambda path, body, count: answer if count >= 0 else None
        assert ask(policy, 1, (7,)) == good
        found = figures(policy, bad)
        assert said in found["out"]
        assert (found["errors"], found["ejections"], found["requests"]) == (1, 1, 2)
        before = posts(bad)
        assert ask(policy, 1, (8,)) and posts(bad) == before  # it is left alone
        others = [figures(policy, fake) for fake in three if fake is not bad]
        assert all(not each["errors"] and each["out"] is None for each in others)


def test_a_broken_connection_and_a_time_out_are_failures_too(three: list[FakeServer]) -> None:
    with pool(three, timeout=1.0, backoff=WAIT) as policy:
        first = home(policy, three)
        first.misbehave = lambda path, body, count: (
            (_ for _ in ()).throw(ConnectionResetError()) if count >= 0 else None
        )
        held = threading.Event()
        second = next(fake for fake in three if fake.url == policy._servers._router.choose("t0", {first.url}))  # type: ignore[union-attr]
        second.misbehave = holding(held, "")
        assert len(ask(policy).actions) == 1
        held.set()
        assert "no server answers" in figures(policy, first)["out"]
        assert "no answer within 1 s" in figures(policy, second)["out"]


def test_a_refusal_of_the_request_is_not_tried_elsewhere(three: list[FakeServer]) -> None:
    for fake in three:
        fake.misbehave = lambda path, body, count: (400, {"error": "the context is too long"}) if count >= 0 else None
    with pool(three) as policy:
        answer = ask(policy)
        assert isinstance(answer, PolicyError) and "too long" in str(answer)
        assert sum(posts(fake) for fake in three) == 1
        assert all(each["errors"] == each["ejections"] == 0 for each in policy.server_figures())


def test_a_request_that_breaks_every_server_is_given_up(three: list[FakeServer]) -> None:
    for fake in three:
        fake.misbehave = lambda path, body, count: (500, {"error": "ouch"}) if "Task 13" in str(body) else None
    with pool(three, retries=3) as policy:
        answer = ask(policy, 13)
        assert isinstance(answer, PolicyError) and "failed 4 times" in str(answer)
        assert all(fake.url in str(answer) for fake in three)
        assert sum("Task 13" in str(body) for fake in three for _, body in fake.seen) == 4
        assert isinstance(ask(policy, 1), Proposals)


def test_a_server_that_died_is_used_again_when_it_is_back(three: list[FakeServer], tokenizer: str) -> None:
    with pool(three, tokenizer=tokenizer) as policy:
        bad = home(policy, three)
        good = ask(policy)
        bad.running.kill()
        assert ask(policy) == good
        until(lambda: "no server answers" in str(figures(policy, bad)["out"]))
        before = posts(bad)
        bad.running.start()
        until(lambda: figures(policy, bad)["out"] is None)
        assert ask(policy) == good and posts(bad) == before + 1
        assert figures(policy, bad)["ejections"] == 1


def test_a_server_that_dies_with_requests_in_work_loses_none(three: list[FakeServer]) -> None:
    with pool(three, backoff=WAIT) as policy:
        bad, held = home(policy, three), threading.Event()
        bad.misbehave = holding(held, "")
        engine, left, got = policy.engine(), threading.Semaphore(0), []
        for number in range(24):
            engine.submit(ProposeRequest(root(number), (1,)), lambda answer: (got.append(answer), left.release()))
        until(lambda: bad.now >= 2)
        bad.running.kill()
        for _ in range(24):
            assert left.acquire(timeout=WAIT)
        held.set()
        assert len(got) == 24 and all(isinstance(answer, Proposals) for answer in got)
        assert figures(policy, bad)["ejections"] == 1 and figures(policy, bad)["errors"] >= 2
        engine.close()


def test_all_dead_is_said_of_each_and_waited_for(three: list[FakeServer]) -> None:
    with pool(three, patience=0.3) as policy:
        for fake in three:
            fake.running.kill()
        answer = ask(policy)
        assert isinstance(answer, PolicyError) and "all 3 servers are out" in str(answer)
        assert "within 0.3 s (policy.patience)" in str(answer)
        assert all(f"{fake.url}: " in str(answer) for fake in three) and str(answer).count("no server answers") == 3
    for fake in three:
        fake.running.start()
    with pool(three) as policy:
        for fake in three:
            fake.running.kill()
        got: list[Any] = []
        asking = threading.Thread(target=lambda: got.append(ask(policy)))
        asking.start()
        until(lambda: all(each["out"] for each in policy.server_figures()))
        three[1].running.start()
        asking.join(WAIT)
        assert len(got[0].actions) == 1 and posts(three[1]) >= 1


def test_closing_lets_nobody_wait(three: list[FakeServer]) -> None:
    with pool(three, patience=10 * WAIT) as policy:
        for fake in three:
            fake.running.kill()
        got: list[Any] = []
        asking = threading.Thread(target=lambda: got.append(ask(policy)))
        asking.start()
        until(lambda: all(each["out"] for each in policy.server_figures()))
    asking.join(WAIT)
    assert "closed" in str(got[0])
    assert len(policy.server_figures()) == 3  # as they were


def test_servers_that_are_not_there_at_the_start(three: list[FakeServer], tokenizer: str) -> None:
    three[0].running.kill()
    with pool(three, tokenizer=tokenizer) as policy:
        assert isinstance(ask(policy), Proposals) and "no server answers" in str(figures(policy, three[0])["out"])
        three[0].running.start()
        until(lambda: figures(policy, three[0])["out"] is None)
    for fake in three:
        fake.running.kill()
    with pytest.raises(ConfigError) as refused:
        pool(three).__enter__()
    assert len(refused.value.faults) == 3 and all("no server answers" in fault for fault in refused.value.faults)


def test_another_model_behind_a_url_is_found_out(
    three: list[FakeServer], tokenizer: str, renderer: Renderer, caplog: pytest.LogCaptureFixture
) -> None:
    with pool(three, tokenizer=tokenizer, backoff=0.05) as policy:
        other = home(policy, three)
        sound, other.complete = other.complete, seeded_model(renderer, bias=0.5)
        other.running.kill()
        assert isinstance(ask(policy), Proposals)
        other.running.start()  # and comes back as something else
        before = posts(other)
        until(lambda: "another model" in str(figures(policy, other)["out"]))
        said = str(figures(policy, other)["out"])
        assert "0.5" in said and "policy.probe_tolerance" in said and "is out" in caplog.text
        assert {ask(policy, number, (3,)).actions[0].logps[-1] > -2 for number in range(6)} == {True}
        assert posts(other) == before
        other.complete = sound  # somebody has mended it
        until(lambda: figures(policy, other)["out"] is None)
    three[1].complete = seeded_model(renderer, bias=0.5)
    with pytest.raises(ConfigError, match=f"{three[1].url} has another model"):
        pool(three, tokenizer=tokenizer).__enter__()
    with pool(three, tokenizer=tokenizer, probe_tolerance=0.6, backoff=WAIT) as near:
        assert [each["out"] for each in near.server_figures()] == [None] * 3  # as near as they said they may be


def test_a_server_that_cannot_be_compared_is_out_where_the_others_can(three: list[FakeServer], tokenizer: str) -> None:
    def none(path: str, body: dict, count: int) -> Any:
        return (200, {"choices": [{"token_ids": [0]}]}) if "prompt_logprobs" in body else None

    three[2].misbehave = none
    with pool(three, tokenizer=tokenizer, backoff=WAIT) as policy:
        assert "cannot be compared" in str(figures(policy, three[2])["out"])
    for fake in three:
        fake.misbehave = none
    with pool(three, tokenizer=tokenizer) as policy:
        assert [each["out"] for each in policy.server_figures()] == [None] * 3
        assert isinstance(ask(policy), Proposals)


def test_names_of_models_are_compared(three: list[FakeServer]) -> None:
    three[0].models = ("other",)
    with pytest.raises(ConfigError, match="the servers of policy.url have other, tiny; name one"):
        pool(three).__enter__()
    with pool(three, model="other", backoff=WAIT) as policy:
        assert [bool(each["out"]) for each in policy.server_figures()] == [False, True, True]
    with pytest.raises(ConfigError) as refused:
        pool(three, model="none").__enter__()
    assert len(refused.value.faults) == 3


def test_lists_of_addresses() -> None:
    assert addresses(" http://a/v1 ") == "http://a/v1"
    several = ("http://a/v1", "http://b/v1")
    for written in ("http://a/v1,http://b/v1", "[http://a/v1, 'http://b/v1/']", list(several), several):
        assert addresses(written) == several
    assert addresses(["http://a/v1"]) == addresses("[http://a/v1]") == ("http://a/v1",)
    with pytest.raises(ConfigError, match="http://a/v1 is there twice"):
        addresses("http://a/v1,http://a/v1/")
    with pytest.raises(ConfigError, match="empty"):
        addresses("[]")
    with pytest.raises(ConfigError, match="in full"):
        ServerPolicy(["localhost:8000", "http://b/v1"])
    with pytest.raises(ConfigError, match="backoff"):
        ServerPolicy(several, backoff=0)


def test_a_list_of_one_waits_for_it(three: list[FakeServer]) -> None:
    with pool(three[:1]) as policy:
        three[0].running.kill()
        got: list[Any] = []
        asking = threading.Thread(target=lambda: got.append(ask(policy)))
        asking.start()
        until(lambda: policy.server_figures()[0]["out"])
        three[0].running.start()
        asking.join(WAIT)
        assert isinstance(got[0], Proposals)
