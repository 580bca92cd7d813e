"""The colocated policy over an engine that stands in for vLLM's: batches, weights, sleep, failures."""

import random
import sys
import threading
import time

import pytest
import torch

from offline_agent.errors import ConfigError, DataError, PolicyError
from offline_agent.policies.base import DEFAULT_MODEL, Proposals, ProposeRequest
from offline_agent.policies.vllm.engine import CheckpointWorker, refresh_tied
from offline_agent.policies.vllm.loop import SequenceResult
from offline_agent.policies.vllm.policy import ColocatedPolicy
from offline_agent.policies.weights import Probe
from offline_agent.records import Action, ToolCall
from offline_agent.rendering.columns import trajectory_columns
from offline_agent.rendering.parsing import call_text
from offline_agent.rendering.renderer import Renderer
from tests.helpers import rendering as kit
from tests.helpers.fake_vllm import checkpoint
from tests.helpers.policy_conformance import check_policy

CALL = ToolCall("search", {"query": "red shoes"})
IDS = (3, 1, 4, 1, 5)
BAD, LOST = -1, -2  # weights that the engine refuses, and that break it


class Engine:
    """Samples a turn that names its weights; one id a step, for all sequences in flight."""

    def __init__(self, model, slots, dtype, memory, sleeps, max_context, eager):
        self.renderer = Renderer.load(model)
        self.facts = {"max_context": max_context or 2048, "device": "none"}
        self.value, self.awake, self.thread = 0, {"weights", "kv_cache"}, threading.get_ident()
        self.batch, self.log, self.widest = {}, [], 0
        self.kept = set()
        self.breaks = self.refuses = self.keeps = False
        self.wait = None

    def check(self):
        assert threading.get_ident() == self.thread, "the engine belongs to one thread"

    def logp(self, at, token):
        return -((at * 7 + token * 3 + self.value) % 11) / 10

    def add(self, name, ask):
        self.check()
        assert self.awake == {"weights", "kv_cache"}
        if self.refuses:
            raise ValueError("too long for this engine")
        cached = len(ask.prompt) if ask.prompt in self.kept else 0
        self.kept.add(ask.prompt)
        if ask.score:
            self.batch[name] = ((), tuple(self.logp(i, t) for i, t in enumerate(ask.prompt) if i), cached)
            return
        seed = 0 if ask.temperature == 0 else ask.seed
        thought = f"Weights {self.value}, {random.Random(hash((ask.prompt, seed))).randrange(999)}."
        ids = self.renderer.encode_action(Action(call_text(thought, CALL), thought, CALL))[: ask.max_tokens]
        at = len(ask.prompt)
        self.batch[name] = (tuple(ids), tuple(self.logp(at + i, t) for i, t in enumerate(ids)), cached)

    def step(self):
        self.check()
        if self.wait is not None:
            self.wait()
        if self.breaks:
            raise RuntimeError("device lost")
        self.widest = max(self.widest, len(self.batch))
        done = [(name, SequenceResult(*what)) for name, what in self.batch.items()]
        self.batch = {}
        return done

    def take(self, tensors):
        self.check()
        assert not self.batch and "weights" in self.awake
        self.log.append("take")
        value = int(tensors["a"][0])
        if value < 0:
            raise DataError("weights: not whole") if value == BAD else RuntimeError("lost midway")
        self.value = value

    def forget(self):
        self.check()
        self.log.append("forget")
        self.kept = self.kept if self.keeps else set()
        return not self.keeps

    def sleep(self):
        self.log.append("sleep")
        self.awake = set()

    def wake(self, part):
        self.log.append(f"wake {part or 'all'}")
        self.awake |= {part} if part else {"weights", "kv_cache"}

    def close(self):
        self.log.append("close")


@pytest.fixture
def made():
    policies = []

    def make(**kwargs):
        policy = ColocatedPolicy(make=Engine, **{"max_tokens": 200, **kwargs})
        policies.append(policy)
        return policy, policy._loop.run(lambda core: core)

    yield make
    for policy in policies:
        policy.close()


def ask(policy, text="Go.", seed=1):
    answer = policy.propose([ProposeRequest(kit.root(text), (seed,))])[0]
    return answer.actions[0].text.partition(",")[0] if isinstance(answer, Proposals) else answer


def named(value):
    model = torch.nn.Module()
    model.register_parameter("a", torch.nn.Parameter(torch.tensor([float(value)])))
    return model


def probe(engine, value):
    before, engine.value = engine.value, value
    logps = tuple(engine.logp(i, t) for i, t in enumerate(IDS) if i)
    engine.value = before
    return Probe(IDS, logps, 1e-6)


def test_it_keeps_the_contract(made):
    policy, engine = made(slots=4)
    start = kit.root()
    first = policy.propose([ProposeRequest(start, (1,))])[0].actions[0]
    assert check_policy(policy, [start, start.child(first, "2 hits"), kit.root("Other.")]) == []
    assert policy.identity["kind"] == "colocated" and policy.identity["max_context"] == 2048
    engine.wait = lambda: time.sleep(0.2)  # the requests that come meanwhile share the next step
    policy.propose([ProposeRequest(start, (seed,)) for seed in range(6)])
    assert 1 < engine.widest <= 4  # no more than there are slots
    row = trajectory_columns(policy.renderer, start.child(first, None))
    assert row["logps"] is not None


def test_what_a_request_asks_for_is_what_the_engine_gets(made):
    policy, engine = made(temperature=0.5, max_tokens=30)
    asked = []
    engine.add, plain = lambda name, what: (asked.append(what), plain(name, what)), engine.add
    context = kit.root()
    policy.propose([ProposeRequest(context, (2**62, 8)), ProposeRequest(context, (9,), 0.0, 3)])
    prompt = tuple(policy.renderer.context_ids(context))
    stop = tuple(sorted(policy.renderer.eos_ids))
    wanted = [(0.5, 30, 8), (0.0, 3, 9), (0.5, 30, 2**62)]
    assert sorted(asked, key=lambda a: a.seed) == [(prompt, *what, stop, False) for what in wanted]


def test_answers_come_from_the_new_weights(made):
    policy, engine = made()
    assert ask(policy) == "Weights 0"
    taken = policy.take_weights(named(3), probe(engine, 3))
    assert (taken.gap, engine.log) == (0.0, ["take", "forget"]) and taken.shift > 0
    assert ask(policy) == "Weights 3"
    policy.take_weights(named(4))
    assert ask(policy) == "Weights 4"


def test_requests_in_flight_end_with_the_old_weights_and_later_ones_wait(made):
    policy, engine = made()
    held, come, got, ended = threading.Event(), threading.Event(), {}, threading.Semaphore(0)
    engine.wait = lambda: (come.set(), held.wait(30))
    running = policy.engine()
    running.submit(ProposeRequest(kit.root("slow"), (1,)), lambda a: (got.update(slow=a), ended.release()))
    assert come.wait(30)
    update = threading.Thread(target=policy.take_weights, args=(named(2),))
    update.start()
    while update.is_alive() and not policy._gate._changing:
        time.sleep(0.001)
    running.submit(ProposeRequest(kit.root("late"), (1,)), lambda a: (got.update(late=a), ended.release()))
    assert engine.log == []
    held.set()
    update.join(30)
    assert ended.acquire(timeout=30) and ended.acquire(timeout=30)
    assert got["slow"].actions[0].text.startswith("Weights 0")
    assert got["late"].actions[0].text.startswith("Weights 2")
    running.close()


def test_weights_that_are_refused_leave_the_old_ones(made):
    policy, engine = made()
    with pytest.raises(DataError, match="not whole"):
        policy.take_weights(named(BAD))
    assert ask(policy) == "Weights 0"


def test_after_a_failure_nothing_is_answered_until_there_are_weights(made):
    policy, engine = made()
    with pytest.raises(PolicyError, match="lost midway"):
        policy.take_weights(named(LOST))
    assert "take_weights again" in str(ask(policy))
    with pytest.raises(PolicyError, match="differ by up to"):
        policy.take_weights(named(3), probe(engine, 5))
    assert "take_weights again" in str(ask(policy))
    engine.keeps = True
    with pytest.raises(PolicyError, match="prefix cache"):
        policy.take_weights(named(3))
    engine.keeps = False
    policy.take_weights(named(3), probe(engine, 3))
    assert ask(policy) == "Weights 3"


def test_it_sleeps_and_wakes(made):
    policy, engine = made(sleep=1)
    policy.sleep()
    policy.sleep()
    assert "sleeps" in str(ask(policy)) and engine.log == ["sleep"]
    engine.log.clear()
    policy.take_weights(named(3), probe(engine, 3))
    assert engine.log == ["wake weights", "take", "forget", "wake all"]
    assert ask(policy) == "Weights 3"
    policy.sleep()
    with pytest.raises(DataError):
        policy.take_weights(named(BAD))
    assert ask(policy) == "Weights 3"


def test_without_sleep_nothing_sleeps(made):
    policy, engine = made()
    policy.sleep()
    assert engine.log == [] and ask(policy) == "Weights 0"


def test_a_request_that_the_engine_refuses_fails_alone(made):
    policy, engine = made()
    engine.refuses = True
    assert "too long" in str(ask(policy))
    engine.refuses = False
    assert ask(policy) == "Weights 0"
    late = policy.propose([ProposeRequest(kit.root("x" * 9000), (1,))])[0]
    assert isinstance(late, PolicyError) and "2048" in str(late)
    assert "allowed" in str(policy.propose([ProposeRequest(kit.root(), (1,), -1.0)])[0])


def test_an_engine_that_breaks_answers_everybody(made):
    policy, engine = made()
    engine.breaks = True
    answers = policy.propose([ProposeRequest(kit.root(str(i)), (1, 2)) for i in range(5)])
    assert all(isinstance(answer, PolicyError) and "device lost" in str(answer) for answer in answers)
    assert "device lost" in str(ask(policy))
    with pytest.raises(PolicyError, match="device lost"):
        policy.take_weights(named(1))


def test_closing_answers_what_is_left(made):
    policy, engine = made()
    held, come, got = threading.Event(), threading.Event(), threading.Semaphore(0)
    engine.wait, answers = lambda: (come.set(), held.wait(30)), []
    running = policy.engine()
    running.submit(ProposeRequest(kit.root(), (1,)), lambda a: (answers.append(a), got.release()))
    assert come.wait(30)
    running.close()
    assert got.acquire(timeout=30) and "closed" in str(answers[0])
    held.set()
    policy.close()
    assert engine.log == ["close"] and "closed" in str(ask(policy)) and len(answers) == 1


def test_what_cannot_be_is_refused_before_it_starts(monkeypatch):
    for name in ("VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_LOGGING_LEVEL"):
        monkeypatch.setenv(name, "")  # set on the way; put back afterwards
    with pytest.raises(ConfigError, match="sleep=3"):
        ColocatedPolicy(make=Engine, sleep=3)
    with monkeypatch.context() as several:
        several.setenv("WORLD_SIZE", "2")
        with pytest.raises(ConfigError, match="policy=server"):
            ColocatedPolicy()
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ConfigError, match=r"offline-agent\[vllm\].*policy=hf"):
        ColocatedPolicy()
    assert DEFAULT_MODEL.is_dir()


class Worker(CheckpointWorker):
    """The part of vLLM's worker class that the extension uses."""

    class vllm_config:
        class model_config:
            model = ""

    def __init__(self, folder):
        self.loaded = []
        type(self).vllm_config.model_config.model = str(folder)

    def reload_weights(self, weights_path=None, weights_iterator=None):
        self.loaded.append(weights_path or [name for name, _ in weights_iterator])

    def get_model(self):
        return torch.nn.Module()


def test_the_worker_looks_before_it_touches(tmp_path):
    worker = Worker(checkpoint(tmp_path / "served", 0))
    other = checkpoint(tmp_path / "other", 1, {"a.weight": [2, 3], "b.weight": [5]})
    with pytest.raises(DataError, match="b.weight is of shape"):
        worker.take_checkpoint(str(other))
    with pytest.raises(DataError, match="b.weight is not there"):
        worker.take_tensors({"a.weight": torch.zeros(2, 3)})
    assert worker.loaded == []
    worker.take_checkpoint(str(checkpoint(tmp_path / "new", 1)))
    worker.take_tensors({"a.weight": torch.zeros(2, 3), "b.weight": torch.zeros(4)})
    assert worker.loaded == [str(tmp_path / "new"), ["a.weight", "b.weight"]]


def test_a_tied_output_layer_notices_new_weights():
    packed = []

    class Method:
        def process_weights_after_loading(self, module):
            packed.append(module)

    def layer(weight, on_cpu):
        module = torch.nn.Module()
        module.weight, module.quant_method = weight, Method()
        if on_cpu:
            module.cpu_linear = lambda x: x
        return module

    shared, own = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2))
    model = torch.nn.Module()
    model.embed, model.other = layer(shared, True), layer(own, True)
    model.lm_head = layer(shared, True)
    refresh_tied(model)
    assert packed == [model.lm_head]
    del model.lm_head.cpu_linear
    refresh_tied(model)
    assert packed == [model.lm_head]
