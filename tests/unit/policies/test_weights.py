"""New weights for a served model: what can go wrong between two updates, against a real local HTTP server."""

import json
import math
import threading
import time

import pytest

from offline_agent.errors import ConfigError, DataError, PolicyError
from offline_agent.policies.base import Proposals, ProposeRequest
from offline_agent.policies.server.policy import ServerPolicy
from offline_agent.policies.weights import Probe, WeightsLock, check_same_model, probe_gap, tensor_shapes
from tests.helpers import rendering as kit
from tests.helpers.fake_server import serving
from tests.helpers.fake_vllm import FakeVLLM, checkpoint, logp

IDS = (3, 1, 4, 1, 5)
ROUTES = ["/is_paused", "/pause", "/collective_rpc", "take_checkpoint", "/reset_prefix_cache", "/update_weight_version"]


def probe(value, tolerance=1e-6):
    return Probe(IDS, tuple(logp(value, token) for token in IDS[1:]), tolerance)


@pytest.fixture
def fake():
    with serving(FakeVLLM()) as server:
        yield server


@pytest.fixture
def served(fake):
    policy = ServerPolicy(fake.url, retries=0, timeout=30.0)
    yield policy
    policy.close()


def ask(policy, text="Go."):
    answer = policy.propose([ProposeRequest(kit.root(text), (1,))])[0]
    return answer.actions[0].text if isinstance(answer, Proposals) else answer


def test_answers_come_from_the_new_weights(fake, served, tmp_path):
    assert ask(served) == "weights 0"
    taken = served.take_weights(checkpoint(tmp_path / "one", 1), probe(1))
    assert fake.routes == [*ROUTES, "/resume"]
    assert taken.version == fake.version and taken.version.startswith("one-")
    assert (taken.gap, taken.shift) == (0.0, pytest.approx(0.1))
    assert ask(served) == "weights 1"  # the same prompt: not what is kept from before
    assert 0 <= taken.waited <= taken.seconds
    again = served.take_weights(checkpoint(tmp_path / "one", 2))
    assert (again.gap, again.shift) == (None, None) and again.version != taken.version
    assert ask(served) == "weights 2"


def test_a_server_without_the_extension_reloads(tmp_path):
    with serving(FakeVLLM(extension=False)) as fake:
        served = ServerPolicy(fake.url, retries=0)
        served.take_weights(checkpoint(tmp_path / "one", 1))
        assert "reload_weights" in fake.routes and ask(served) == "weights 1"
        fake.broken["reload_weights"] = (500, {"error": {"message": "shapes differ"}})
        with pytest.raises(PolicyError, match="shapes differ"):
            served.take_weights(checkpoint(tmp_path / "one", 2))
        served.close()


def test_a_server_that_takes_no_weights_is_said_so_and_goes_on(tmp_path):
    with serving(FakeVLLM(development=False)) as fake:
        served = ServerPolicy(fake.url, retries=0)
        with pytest.raises(ConfigError, match="(?s)/is_paused.*VLLM_SERVER_DEV_MODE=1 .*CheckpointWorker"):
            served.check_takes_weights()
        with pytest.raises(ConfigError, match="VLLM_SERVER_DEV_MODE=1"):
            served.take_weights(checkpoint(tmp_path / "one", 1))
        assert ask(served) == "weights 0"
        served.close()


def test_a_server_too_old_to_name_its_weights_is_refused(fake, served, tmp_path):
    served.check_takes_weights()
    fake.broken["/weight_info"] = (404, {})
    with pytest.raises(ConfigError, match="/weight_info"):
        served.take_weights(checkpoint(tmp_path / "one", 1))
    assert fake.value == 0


DEATHS = [(500, {"error": {"message": "the engine died"}}), ConnectionResetError("gone"), (200, b"half a li")]


@pytest.mark.parametrize("death", DEATHS, ids=["500", "reset", "torn"])
@pytest.mark.parametrize("route", ["/is_paused", *ROUTES[1:3], *ROUTES[4:], "/resume"])
def test_a_server_that_dies_in_between(fake, served, tmp_path, route, death):
    served.take_weights(checkpoint(tmp_path / "one", 1))
    fake.broken[route] = death
    with pytest.raises(PolicyError, match="new weights"):
        served.take_weights(checkpoint(tmp_path / "two", 2), probe(2))
    after = ask(served)
    assert isinstance(after, PolicyError) and "take_weights again" in str(after)
    if route not in ("/is_paused", "/resume"):
        assert fake.routes[-1] == "/resume"  # its other clients go on
    fake.broken = {}
    fake.start_anew()
    served.take_weights(tmp_path / "two", probe(2))
    assert ask(served) == "weights 2"


def test_a_server_that_is_gone(tmp_path):
    with serving(FakeVLLM()) as fake:
        served = ServerPolicy(fake.url, retries=0)
    with pytest.raises(PolicyError, match="Is it up"):
        served.take_weights(checkpoint(tmp_path / "one", 1))
    served.close()


def test_a_server_that_was_started_anew_is_noticed(fake, served, tmp_path):
    served.take_weights(checkpoint(tmp_path / "one", 1))
    assert ask(served) == "weights 1"
    fake.start_anew()
    found = ask(served)
    assert isinstance(found, PolicyError) and "started anew" in str(found) and "'default'" in str(found)
    seen = len(fake.seen)
    assert isinstance(ask(served), PolicyError) and len(fake.seen) == seen  # known by now: it is not asked
    served.take_weights(tmp_path / "one")
    assert ask(served) == "weights 1"


def test_a_server_that_starts_anew_in_the_middle_of_a_batch(fake, served, tmp_path):
    served.take_weights(checkpoint(tmp_path / "one", 1))
    fake.during = lambda text: fake.start_anew() if "fifth" in text else None
    requests = [ProposeRequest(kit.root(text), (1,)) for text in ("one", "two", "fifth")]
    first, answers = ask(served, "before"), served.propose(requests)
    assert first == "weights 1" and isinstance(answers[2], PolicyError)
    good = [answer.actions[0].text for answer in answers if isinstance(answer, Proposals)]
    assert all(text == "weights 1" for text in good)  # none from the first weights came through


def test_somebody_elses_update_is_noticed(fake, served, tmp_path):
    served.take_weights(checkpoint(tmp_path / "one", 1))
    other = ServerPolicy(fake.url, retries=0)
    other.take_weights(checkpoint(tmp_path / "two", 2))
    assert ask(other) == "weights 2"
    assert "somebody else" in str(ask(served))
    other.close()


def test_an_answer_that_cannot_be_confirmed_is_an_error(fake, served, tmp_path):
    served.take_weights(checkpoint(tmp_path / "one", 1))
    fake.broken["/weight_info"] = (500, {})
    assert isinstance(ask(served), PolicyError)
    fake.broken = {}
    assert ask(served) == "weights 1"  # it was only the question that failed


def test_requests_in_flight_end_with_the_old_weights_and_later_ones_wait(fake, served, tmp_path):
    held, come = threading.Event(), threading.Event()
    fake.during = lambda text: (come.set(), held.wait(30)) if "slow" in text else None
    engine, got = served.engine(), {}
    ended = threading.Semaphore(0)

    def keep(name):
        return lambda answer: (got.update({name: answer}), ended.release())

    engine.submit(ProposeRequest(kit.root("slow"), (1,)), keep("slow"))
    assert come.wait(30)
    update = threading.Thread(target=served.take_weights, args=(checkpoint(tmp_path / "one", 1),))
    update.start()
    while update.is_alive() and not served._servers.weights._gate._changing:
        time.sleep(0.001)
    engine.submit(ProposeRequest(kit.root("late"), (1,)), keep("late"))
    assert fake.routes == [] and len(fake.seen) == 1  # nothing is changed, nothing asked, while one is out
    held.set()
    update.join(30)
    assert ended.acquire(timeout=30) and ended.acquire(timeout=30)
    assert got["slow"].actions[0].text == "weights 0"
    assert got["late"].actions[0].text == "weights 1"
    engine.close()


def test_a_prefix_cache_that_stays_is_an_error(fake, served, tmp_path):
    fake.keeps_cache = True
    with pytest.raises(PolicyError, match="prefix cache"):
        served.take_weights(checkpoint(tmp_path / "one", 1))
    assert isinstance(ask(served), PolicyError)
    fake.keeps_cache = False
    served.take_weights(tmp_path / "one")
    assert ask(served) == "weights 1"


def test_weights_that_had_no_effect_are_noticed(fake, served, tmp_path):
    fake.deaf = True
    with pytest.raises(PolicyError, match=r"differ by up to 0.1, allowed: 1e-06; the update had no effect"):
        served.take_weights(checkpoint(tmp_path / "one", 1), probe(1))
    assert isinstance(ask(served), PolicyError)
    fake.deaf = False
    assert served.take_weights(tmp_path / "one", tuple(probe(1))).gap == 0.0


def test_weights_of_another_kind_are_noticed(fake, served, tmp_path):
    with pytest.raises(PolicyError, match="moved them by up to 0.1"):
        served.take_weights(checkpoint(tmp_path / "one", 1), probe(3))


def spoil(folder, how):
    file = folder / "model.safetensors"
    if how == "no folder":
        return folder / "nowhere"
    if how == "no config":
        (folder / "config.json").unlink()
    elif how == "no tensors":
        file.unlink()
    elif how == "torn":
        file.write_bytes(file.read_bytes()[:-1])
    elif how == "torn header":
        file.write_bytes(file.read_bytes()[:20])
    elif how == "empty":
        file.write_bytes(b"")
    elif how == "a shard is missing":
        index = {"weight_map": {"a.weight": "model.safetensors", "b.weight": "model-2.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    elif how == "a bad index":
        (folder / "model.safetensors.index.json").write_text("[]")
    elif how == "a tensor is missing":
        checkpoint(folder, 2, {"a.weight": [2, 3]})
    elif how == "a tensor too many":
        checkpoint(folder, 2, {"a.weight": [2, 3], "b.weight": [4], "c.weight": [1]})
    elif how == "another shape":
        checkpoint(folder, 2, {"a.weight": [2, 3], "b.weight": [5]})
    return folder


@pytest.mark.parametrize(
    "how, said",
    [
        ("no folder", "is no folder"),
        ("no config", "no config.json"),
        ("no tensors", "no \\*.safetensors"),
        ("torn", "torn or no file of tensors"),
        ("torn header", "torn or no file of tensors"),
        ("empty", "torn or no file of tensors"),
        ("a shard is missing", "lacks model-2.safetensors"),
        ("a bad index", "no index of tensors"),
        ("a tensor is missing", "b.weight is not there"),
        ("a tensor too many", "c.weight is of shape \\[1\\], and not there"),
        ("another shape", "b.weight is of shape \\[5\\], and of shape \\[4\\]"),
    ],
)
def test_a_bad_checkpoint_never_gets_to_the_server(fake, served, tmp_path, how, said):
    served.take_weights(checkpoint(tmp_path / "good", 1))
    routes = len(fake.routes)
    with pytest.raises(DataError, match=said):
        served.take_weights(spoil(checkpoint(tmp_path / "bad", 2), how))
    assert len(fake.routes) == routes
    assert ask(served) == "weights 1"


def test_a_tied_output_layer_may_be_in_a_checkpoint_or_not():
    plain, whole = {"a": (2,)}, {"a": (2,), "lm_head.weight": (5, 2)}
    check_same_model(plain, whole)
    check_same_model(whole, plain)
    with pytest.raises(DataError, match="lm_head"):
        check_same_model(whole, {"a": (2,), "lm_head.weight": (6, 2)})


def test_shapes_are_read_from_every_file(tmp_path):
    folder = checkpoint(tmp_path, 1)
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    checkpoint(tmp_path, 1, {"c": []})
    assert tensor_shapes(folder) == {"a.weight": (2, 3), "b.weight": (4,), "c": ()}


def test_a_probe_that_cannot_be_compared():
    expected = Probe(IDS, (-1.0,) * 4, 0.5)
    assert probe_gap(expected, (-1.25, -1.0, -1.0, -1.0), None) == (0.25, None)
    with pytest.raises(PolicyError, match="n ids have n - 1"):
        probe_gap(expected, (-1.0,) * 5, None)
    with pytest.raises(PolicyError, match="nan"):
        probe_gap(expected, (-1.0, math.nan, -1.0, -1.0), None)


def test_the_probe_of_a_model_is_what_it_says():
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    from offline_agent.policies.weights import probe_of

    model = LlamaForCausalLM(LlamaConfig(vocab_size=9, num_key_value_heads=2, **small)).train()
    found = probe_of(model, IDS, 0.5)
    logits = model.eval()(torch.tensor([IDS])).logits[0].detach().double()
    wanted = [float(logits[i, t] - logits[i].logsumexp(-1)) for i, t in enumerate(IDS[1:])]
    assert found.ids == IDS and found.tolerance == 0.5 and found.logps == pytest.approx(wanted, abs=1e-6)
    assert probe_of(model.train(), IDS) and model.training


def test_the_gate_lets_answers_in_together_and_a_change_alone():
    gate, inside = WeightsLock(), []
    with gate.answering(), gate.answering():
        change = threading.Thread(target=lambda: [inside.append(1) for _ in iter_once(gate.changing())])
        change.start()
        while not gate._changing:
            time.sleep(0.001)
        assert inside == []
    change.join(30)
    assert inside == [1]
    with pytest.raises(ValueError), gate.changing():
        raise ValueError
    with gate.answering():
        pass


def iter_once(manager):
    with manager:
        yield
