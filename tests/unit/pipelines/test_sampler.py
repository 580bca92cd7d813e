"""The sampler of the online stage: its arguments from the keys, and the processes that have one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from offline_agent.config.loading import load
from offline_agent.config.refine_grpo import RefineGrpoConfig
from offline_agent.pipelines import refine_grpo
from offline_agent.pipelines.stages.online import faults
from offline_agent.pipelines.stages.rounds import make_sampler
from offline_agent.policies.weights import Probe
from offline_agent.records import Task
from offline_agent.training.trainer import PATIENCE
from tests.helpers.rendering import qwen
from tests.helpers.training import model


def config(*keys: str) -> RefineGrpoConfig:
    return load(RefineGrpoConfig, None, keys)


class Near:
    """Stands in for vLLM in this process."""

    def __init__(self, path: str | None, *more: Any, **given: Any) -> None:
        self.given, self.identity = given, dict[str, str]()

    def take_weights(self, source: Any, probe: Probe) -> Probe:
        return probe

    def sleep(self) -> None:
        """Not called."""


class Served(Near):
    """Stands in for a server, which reads a folder."""

    def take_weights(self, source: Any, probe: Probe) -> Probe:
        assert (source / "config.json").is_file()
        return probe

    def check_takes_weights(self, adapters: bool) -> bool:
        return adapters


def test_weights_that_a_server_gets_again_leave_newer_ones_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("offline_agent.policies.server.policy.ServerPolicy", Served)
    monkeypatch.setattr("offline_agent.pipelines.stages.rounds._ids", lambda *_: [1, 2, 3])
    keys, renderer = ("sampler.name=server", "sampler.url=http://localhost/v1"), Any
    made = make_sampler(config(*keys), renderer, Task("t", "train", {}))  # type: ignore[arg-type]
    first = made.give(model(), qwen(), tmp_path)
    first()
    second = made.give(model(), qwen(), tmp_path)
    first()
    second()
    assert [path.name for path in tmp_path.glob("*serving*")] == ["serving-1"] and made.lasting


def tokenizer(text: str, **more: Any) -> dict[str, list[int]]:
    return {"input_ids": [1, 2, 3]}


@pytest.mark.parametrize(
    ("keys", "dtype", "tolerance"),
    [
        ((), "float32", 0.01),
        (("model.dtype=bfloat16",), "bfloat16", 0.5),
        (("model.dtype=mixed",), "bfloat16", 0.5),
        (("sampler.tolerance=0.2",), "float32", 0.2),
    ],
)
def test_a_colocated_sampler_computes_as_the_trainer_does(
    keys: tuple[str, ...], dtype: str, tolerance: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("offline_agent.policies.vllm.policy.ColocatedPolicy", Near)
    renderer: Any = None
    made = make_sampler(config("sampler.name=colocated", *keys), renderer, Task("t", "train", {}))
    near: Any = made.policy
    assert near.given["dtype"] == dtype
    probe: Any = made.give(model(), tokenizer, tmp_path)()
    assert probe.tolerance == tolerance and len(probe.logps) == 2


@pytest.mark.parametrize(
    ("keys", "correction"),
    [
        ((), "off"),
        (("rollouts.behind=1",), "token_truncate"),
        (("sampler.correction=token_mask",), "token_mask"),
        (("sampler.name=colocated",), "token_truncate"),
        (("sampler.name=colocated", "sampler.correction=off"), "off"),
    ],
)
def test_a_correction_is_what_was_asked_for(keys: tuple[str, ...], correction: str) -> None:
    made = config(*keys)
    assert made.sampler.weights(made.rollouts.behind) == correction


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("sampler.name=colocated", "set sampler.name=server"), ("sampler.correction=off", "got sampler.correction=off"),
        ("rollouts.temperature=0.7", "rollouts.temperature=0.7: leave both out"), ("seed=1", None),
    ],
)  # fmt: skip
def test_what_cannot_be_played_ahead_is_refused(key: str, says: str | None) -> None:
    found = faults(config("rollouts.behind=1", key))
    assert [says in fault for fault in found] == [True] if says else not found
    assert not [fault for fault in faults(config(key)) if "behind" in fault]


def test_processes_that_do_not_play_load_no_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("a sampler was made")

    monkeypatch.setattr(refine_grpo, "make_sampler", refuse)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    parts, facts = refine_grpo.prepare(config("tasks.n=2", "run_dir=none"))
    assert parts.sampler is not None and facts.manifest["policy"] == {}
    parts.sampler.policy.engine().close()
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(AssertionError, match="a sampler was made"):
        refine_grpo.prepare(config("tasks.n=2", "run_dir=none"))


def test_others_wait_longer_than_a_round_takes() -> None:
    assert PATIENCE.days > 1


def test_a_run_goes_on_with_its_server_elsewhere() -> None:
    section = RefineGrpoConfig.model_fields["sampler"].annotation
    assert section.model_fields["url"].json_schema_extra == {"free": True}  # type: ignore[union-attr]
