"""Several processes, data parallel and sharded (FSDP2), against one: losses, weights, checkpoints, stops."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.utils import DistributedType
from safetensors.torch import load_file

from offline_agent.errors import TrainingError
from offline_agent.training import checkpoints, state
from offline_agent.training.online.objectives import objective
from offline_agent.training.settings import TrainResult
from tests.helpers import online as online_kit
from tests.helpers.sharding_processes import launch, torchrun
from tests.helpers.training import model
from tests.unit.training.test_trainer import adapted, train

pytestmark = pytest.mark.slow
CLIP = 1e9  # gradients as they are: what is clipped is not seen


def stopping(record: Mapping[str, Any]) -> int | None:
    return 2 if record["update"] == 3 else None


def online(folder: Path, name: str, trained: Any, stop: bool = False, tokens: int = 4096) -> tuple[TrainResult, Any]:
    """Train for three rounds of two updates each; return what played them too."""
    seen: list[float] = []
    plain = online_kit.rounds(name == "ppo")

    def play(number: int, given: Any) -> Any:
        seen.append(float(sum(weights.detach().double().abs().sum() for weights in given.parameters())))
        return plain(number, given)

    watch = stopping if stop else None
    more = {"tokens": tokens, "clip": CLIP, "every": 1, "keep": 9}
    chosen = objective(name)
    return online_kit.train(folder, trained, chosen, play, passes=2, watch=watch, more=more), seen


SCRIPT = """
import json, os, sys
from pathlib import Path
import torch, torch.distributed as dist
from tests.helpers.training import model
from tests.unit.training.test_processes import adapted, online, CLIP
from tests.unit.training.test_trainer import train
folder = Path(sys.argv[1])
found = {}
def note(name, result, trained, *more):
    found[name] = [result.curve, [r.get("grad_norm", r.get("gradient")) for r in result.records], result.agent_tokens,
                   result.resumed_at, result.warnings, *more]
    if dist.get_rank() == 0:
        torch.save(trained.state_dict(), folder / f"{name}.pt")
for name in ("dpo", "again"):
    trained = model(int(os.environ["RANK"]))  # the first one's counts
    note(name, train(folder / name, trained=trained, tokens=64, clip=CLIP, keep=9), trained)
trained = adapted()
note("adapters", train(folder / "adapters", trained=trained, tokens=64, clip=CLIP), trained)
for name, stop in (("ppo", False), ("grpo", True)):
    trained = model()
    result, seen = online(folder / name, name, trained, stop, tokens=64)
    note(name, result, trained, seen)
if dist.get_rank() == 0:
    print("FOUND", json.dumps(found))
dist.destroy_process_group()
"""


def close(folder: Path, name: str, trained: Any, found: list[Any], result: TrainResult) -> None:
    """Hold what several processes did against what one did."""
    norms = [record.get("grad_norm", record.get("gradient")) for record in result.records]
    assert found[0] == pytest.approx(result.curve, abs=1e-5)
    assert found[1] == pytest.approx(norms, rel=1e-4)
    assert found[2] == result.agent_tokens and tuple(found[4]) == result.warnings
    left = torch.load(folder / f"{name}.pt")
    assert left.keys() == trained.state_dict().keys()
    for key, weights in trained.state_dict().items():
        assert torch.allclose(left[key], weights, atol=1e-5), (name, key)


@pytest.mark.parametrize("sharded", [False, True], ids=["data-parallel", "sharded"])
def test_two_processes_do_what_one_does(sharded: bool, tmp_path: Path) -> None:
    alone, many = tmp_path / "alone", tmp_path / "many"
    many.mkdir()
    whole = model()
    by_one = train(alone / "dpo", trained=whole, clip=CLIP, keep=9)
    shutil.copytree(alone / "dpo", many / "again")
    shutil.rmtree(many / "again" / "checkpoints" / "checkpoint-6")
    found = torchrun(SCRIPT, tmp_path, str(many), sharded=sharded)

    close(many, "dpo", whole, found["dpo"], by_one)
    close(many, "again", whole, found["again"], by_one)  # gone on from what one process left
    assert found["again"][3] == 4
    trained = adapted()
    close(many, "adapters", trained, found["adapters"], train(alone / "adapters", trained=trained, clip=CLIP))
    for name, stop in (("ppo", False), ("grpo", True)):
        trained = model()
        result, seen = online(alone / name, name, trained, stop)
        close(many, name, trained, found[name], result)
        assert found[name][5] == pytest.approx(seen, rel=1e-6)  # each round was played with the newest weights
    kept = [torch.load(folder / "ppo/checkpoints/checkpoint-6/optimizer.pt")["state"] for folder in (alone, many)]
    for number, entry in kept[0].items():  # gradients, the critic's too: a step hides their scale
        assert torch.allclose(entry["exp_avg"], kept[1][number]["exp_avg"], rtol=1e-3, atol=1e-6), number

    written = many / "dpo" / "checkpoints" / "checkpoint-4"
    plain = model()
    for folder in (written, many / "again" / "checkpoints" / "checkpoint-6"):  # what save_pretrained writes, whole
        saved = load_file(folder / "model.safetensors")
        assert not plain.load_state_dict(saved, strict=False).unexpected_keys and (folder / "config.json").is_file()
        assert saved.keys() == load_file(alone / "dpo" / "checkpoints" / "checkpoint-4" / "model.safetensors").keys()
    for name, weights in whole.state_dict().items():
        assert torch.allclose(plain.state_dict()[name], weights, atol=1e-5)
    shutil.rmtree(many / "dpo" / "checkpoints" / "checkpoint-6")
    trained = model()
    result = train(many / "dpo", trained=trained, clip=CLIP, keep=9)  # one process goes on from what two left
    assert result.resumed_at == 4 and result.curve == pytest.approx(by_one.curve, abs=1e-5)
    assert all(torch.allclose(w, v, atol=1e-5) for w, v in zip(trained.parameters(), whole.parameters(), strict=True))
    assert checkpoints.newest(many / "adapters" / "checkpoints") is not None


class Plugin:
    """Of accelerate, as far as it is looked at."""

    def __init__(self, version: int, offload: Any = None) -> None:
        self.fsdp_version, self.cpu_offload = version, offload


class CPUOffloadPolicy:
    """Of torch, by name."""


class Spread:
    """An accelerator of a kind."""

    num_processes = 1

    def __init__(self, kind: Any, plugin: Any = None) -> None:
        self.distributed_type = kind
        self.state = type("State", (), {"fsdp_plugin": plugin})


def test_what_was_not_tried_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not state.check(Spread(DistributedType.NO)) and not state.check(Spread(DistributedType.MULTI_GPU))
    assert state.check(Spread(DistributedType.FSDP, Plugin(2)))
    for spread, said in (
        (Spread(DistributedType.DEEPSPEED), "by DEEPSPEED"),
        (Spread(DistributedType.FSDP, Plugin(1)), "by FSDP version 1"),
        (Spread(DistributedType.FSDP, Plugin(2, CPUOffloadPolicy())), "weights kept in main memory"),
    ):
        with pytest.raises(TrainingError, match=f"{said}, which was not tried; allowed: one process"):
            state.check(spread)
    joined = Spread(DistributedType.MULTI_CPU)
    joined.num_processes = 2
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert not state.check(joined)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(TrainingError, match="were to be sharded .* joined these processes as MULTI_CPU"):
        state.check(joined)


def test_processes_that_each_take_themselves_for_the_only_one_are_refused(tmp_path: Path) -> None:
    alone = """
import sys
from pathlib import Path
from offline_agent.errors import TrainingError
from tests.helpers.training import model
from tests.unit.training.test_trainer import train
try:
    train(Path(sys.argv[1]), trained=model())
except TrainingError as error:
    sys.exit(f"refused: {error}")
"""
    done = launch(alone, tmp_path, str(tmp_path), joined=False)
    assert done.returncode != 0
    assert "refused: WORLD_SIZE says that 2 processes train together, but accelerate joined 1 of them" in done.stderr
    assert "set ACCELERATE_USE_CPU=true" in done.stderr and not list((tmp_path / "checkpoints").glob("*"))
