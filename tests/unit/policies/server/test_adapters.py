"""Adapters handed over unmerged: a new name each time, and no answer from an older one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offline_agent.errors import ConfigError, PolicyError
from offline_agent.policies.server.policy import ServerPolicy
from tests.helpers.fake_server import serving_all
from tests.helpers.fake_vllm import FakeVLLM, checkpoint
from tests.unit.policies.server.test_pool import figures, until
from tests.unit.policies.server.test_pool_weights import probe, texts

LOAD, UNLOAD = "/load_lora_adapter", "/unload_lora_adapter"


def adapter(folder: Path, value: float) -> Path:
    """Write a folder as peft does, with `value` where the fake finds it."""
    checkpoint(folder, value, {"q.lora_A.weight": [2, 3]})
    (folder / "config.json").rename(folder / "adapter_config.json")
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    return folder


@pytest.fixture(params=[1, 2], ids=["one", "pool"])
def fakes(request: Any) -> Iterator[list[FakeVLLM]]:
    with serving_all(*(FakeVLLM(development=False) for _ in range(request.param))) as found:
        for fake in found:
            fake.lora = True
        yield found  # type: ignore[misc]


@pytest.fixture
def served(fakes: list[FakeVLLM]) -> Iterator[ServerPolicy]:
    urls = [fake.url for fake in fakes]
    policy = ServerPolicy(urls if len(urls) > 1 else urls[0], backoff=0.02, retries=1, patience=1.0)
    yield policy
    policy.close()


def test_each_update_has_a_name_of_its_own_and_the_last_one_is_unloaded(
    fakes: list[FakeVLLM], served: ServerPolicy, tmp_path: Path
) -> None:
    assert served.check_takes_weights(adapters=True) and texts(served) == {"weights 0"}
    names = []
    for value in (1, 2):
        taken = served.take_weights(adapter(tmp_path / str(value), value), probe(value))
        assert texts(served) == {f"weights {value}"}  # the prefix cache of the last one is under another name
        assert (taken.gap, taken.shift) == (0.0, pytest.approx(0.1))
        assert taken.size == (tmp_path / str(value) / "adapter_model.safetensors").stat().st_size
        assert [list(fake.adapters) for fake in fakes] == [[taken.version]] * len(fakes)
        names.append(taken.version)
    assert names[0] != names[1] and fakes[0].routes == [LOAD, UNLOAD, LOAD]
    served.close()
    assert not any(fake.adapters for fake in fakes)


def test_a_server_that_starts_anew_answers_nothing_until_it_has_the_adapter(
    fakes: list[FakeVLLM], served: ServerPolicy, tmp_path: Path
) -> None:
    folder = adapter(tmp_path / "one", 1)
    served.take_weights(folder, probe(1))
    fakes[0].start_anew()
    if len(fakes) == 1:
        (said,) = texts(served, 1)
        assert "does not know the adapter" in said and "Call take_weights again" in said
        served.take_weights(folder, probe(1))
    else:
        assert texts(served) == {"weights 1"} and figures(served, fakes[0])["ejections"] == 1
        until(lambda: figures(served, fakes[0])["out"] is None)
        fakes[0].running.kill()
        assert texts(served) == {"weights 1"}
        fakes[0].running.start()  # a lost connection alone: it still has it
        until(lambda: figures(served, fakes[0])["out"] is None)
    assert texts(served) == {"weights 1"} and fakes[0].routes.count(LOAD) == 2


def test_one_that_does_not_take_it_says_how_to_start_it(
    fakes: list[FakeVLLM], served: ServerPolicy, tmp_path: Path
) -> None:
    for fake in fakes:
        fake.broken[LOAD] = (500, {"error": {"message": "LoRA rank 4 is greater than max_lora_rank 1"}})
    with pytest.raises(PolicyError, match=r"rank 4 is greater(.|\n)*--enable-lora and a --max-lora-rank"):
        served.take_weights(adapter(tmp_path / "one", 1), probe(1))
    for fake in fakes:
        fake.broken, fake.deaf = {}, True
    with pytest.raises(PolicyError, match="does not have the new weights"):  # the probe is the proof
        served.take_weights(tmp_path / "one", probe(1))


def test_a_server_in_development_mode_gets_whole_weights_and_one_without_is_refused(tmp_path: Path) -> None:
    with serving_all(FakeVLLM(development=False)) as (fake,):
        policy = ServerPolicy(fake.url)
        with pytest.raises(ConfigError) as error:
            policy.check_takes_weights(adapters=True)
        assert "--enable-lora" in str(error.value) and "VLLM_SERVER_DEV_MODE" in str(error.value)
        policy.close()
    with serving_all(FakeVLLM()) as (fake,):
        policy = ServerPolicy(fake.url)
        assert policy.check_takes_weights(adapters=True) is False
        policy.take_weights(checkpoint(tmp_path / "one", 1), probe(1))
        assert texts(policy) == {"weights 1"}
        policy.close()


def test_what_a_killed_run_left_is_not_taken_for_a_second_model(fakes: list[FakeVLLM]) -> None:
    fakes[0].adapters["serving-3-of-a-killed-run"] = 3.0
    policy = ServerPolicy(fakes[0].url)
    assert policy.model == "tiny" and json.dumps(policy.identity["model"]) == '"tiny"'
    policy.close()
