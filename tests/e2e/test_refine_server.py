"""The online stage with its model behind servers that die and start anew in the middle of a round."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from offline_agent.pipelines.entry import main
from offline_agent.pipelines.refine_grpo import COMMAND
from tests.helpers.bandit import ENV, warm_started
from tests.helpers.fake_server import serving, serving_all
from tests.helpers.model_server import ModelServer

KEYS = (
    ENV, "tracking.uri=null", "rollouts.max_steps=1", "rollouts.size=4", "rollouts.tasks=4", "rollouts.max_tokens=40",
    "tasks.n=64", "threads=1", "optimizer.learning_rate=2e-3", "checkpoints.every=1", "watch.enabled=false",
    "sampler.name=server",
)  # fmt: skip


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return warm_started(tmp_path_factory.getbasetemp())


def refine(run_dir: Path, start: Path, url: str, *keys: str) -> int:
    given = [*KEYS, f"sampler.url={url}", f"model.path={start}", "rounds=4", f"run_dir={run_dir}", *keys]
    return main(COMMAND, given)


def weights(run_dir: Path) -> str:
    return hashlib.sha256((run_dir / "model" / "model.safetensors").read_bytes()).hexdigest()


def records(run_dir: Path, shard: str = "0000") -> list[dict[str, Any]]:
    lines = (run_dir / "events" / f"{shard}.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if "update" in record or "attempt" in record]


@pytest.fixture(scope="module")
def sound(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with one server that nothing happens to."""
    run_dir = tmp_path_factory.mktemp("sound") / "run"
    with serving(ModelServer(start)) as server:
        assert refine(run_dir, start, server.url) == 0
    assert len(records(run_dir)) == 4 and len(records(run_dir, "rollouts")) == 64
    assert all(record["handover_gap"] < 0.01 < record["handover_seconds"] + 1 for record in records(run_dir))
    assert all(record["handover_shift"] > 0 for record in records(run_dir)[1:])  # each round has other weights
    assert json.loads((run_dir / "summary.json").read_text())["servers"]["sampler"][0]["requests"] >= 64
    return run_dir


def off_and_on(*servers: ModelServer) -> None:
    """Kill servers, and start them with their first weights."""
    for server in servers:
        server.running.kill()
    for server in servers:
        server.start_anew()
        server.running.start()


@pytest.mark.parametrize("how", ["both start anew", "one dies", "a list of one"])
def test_a_pool_goes_on_with_the_weights_of_the_round(start: Path, sound: Path, tmp_path: Path, how: str) -> None:
    with serving_all(ModelServer(start), ModelServer(start)) as servers:
        first, second = servers
        there: set[int] = set()
        fall = {
            "both start anew": lambda: off_and_on(first, second),
            "one dies": first.running.kill,
            "a list of one": lambda: off_and_on(first),
        }[how]

        def happen(count: int) -> None:
            there.add(len(list((tmp_path / "run").glob("serving-*"))))
            (tmp_path / "run" / ".serving-9.1.tmp").mkdir(exist_ok=True)  # of a writer that was killed
            if first.samples + second.samples == 25:  # in the second round
                threading.Thread(target=fall, daemon=True).start()
                time.sleep(0.2)

        first.sampling = second.sampling = happen
        given = f"[{first.url}]" if how == "a list of one" else f"{first.url},{second.url}"
        assert refine(tmp_path / "run", start, given) == 0
        assert first.samples > 0 and (second.samples > 0) is (how != "a list of one")
    assert weights(tmp_path / "run") == weights(sound)
    assert all(attempt["verdict"]["score"] is not None for attempt in records(tmp_path / "run", "rollouts"))
    assert there <= {1, 2} and not list((tmp_path / "run").glob("*serving*"))  # the weights of four rounds


def test_a_server_that_dies_for_good_stops_the_run_which_goes_on_when_it_is_back(
    start: Path, sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openai._base_client.MAX_RETRY_DELAY", 0.1)  # else half a minute of waiting
    run_dir = tmp_path / "run"
    with serving(ModelServer(start)) as server:

        def happen(count: int) -> None:
            if count == 20:
                threading.Thread(target=server.running.kill, daemon=True).start()
                time.sleep(0.2)

        server.sampling = happen
        assert refine(run_dir, start, server.url) == 1
        assert f"no server answers at {server.url.removesuffix('/v1')}" in capsys.readouterr().err
        before = [record["update"] for record in records(run_dir)]
        assert before == [1] and (run_dir / "checkpoints").is_dir()
        server.sampling = lambda count: None
        server.start_anew()
        server.running.start()
        assert refine(run_dir, start, server.url) == 0
    assert [record["update"] for record in records(run_dir)] == [1, 2, 3, 4]
    nothing_happened_to(run_dir, sound)


def test_a_server_that_starts_anew_gets_the_weights_of_the_round_again(
    start: Path, sound: Path, tmp_path: Path
) -> None:
    with serving(ModelServer(start)) as server:
        server.sampling = lambda count: server.start_anew() if count == 20 else None
        assert refine(tmp_path / "run", start, server.url) == 0
    nothing_happened_to(tmp_path / "run", sound)


@pytest.mark.parametrize("how", ["sound", "starts anew"])
def test_adapters_are_handed_over_alone_and_give_what_merged_weights_do(start: Path, tmp_path: Path, how: str) -> None:
    run_dir, loaded, most = tmp_path / "run", set[str](), 0
    with serving(ModelServer(start)) as server:
        server.development, server.lora = False, True

        def happen(count: int) -> None:
            nonlocal most
            loaded.update(server.adapters)
            most = max(most, len(server.adapters))
            if how == "starts anew" and count == 20:
                server.start_anew()

        server.sampling = happen
        keys = ("lora.rank=4", "sampler.tolerance=1e-5", "rollouts.in_flight=2")
        assert refine(run_dir, start, server.url, *keys) == 0
        assert not server.adapters and most == 1
        assert len(loaded) == 4 + (how == "starts anew")  # each hand-over has a name of its own
    whole = (run_dir / "model" / "model.safetensors").stat().st_size
    for number, record in enumerate(records(run_dir)):
        assert record["handover_gap"] < 1e-5 and (record["handover_shift"] > 1e-4 or number == 0)
        assert record["handover_bytes"] < whole / 5 and record["mismatch"] < 1e-5
    assert json.loads((run_dir / "manifest.json").read_text())["policy"]["handed_over"] == "adapters"


def test_a_server_that_starts_anew_while_the_model_is_trained_gets_the_weights_that_it_had(
    start: Path, tmp_path: Path
) -> None:
    with serving(ModelServer(start)) as server:
        server.sampling = lambda count: server.start_anew() if count == 40 else None
        assert refine(tmp_path / "run", start, server.url, "rollouts.behind=1") == 0
    assert [record["unscored"] for record in records(tmp_path / "run")] == [0, 0, 0, 0]
    played = records(tmp_path / "run", "rollouts")
    assert len(played) == 64 and all(0 <= r["attempt"][3] // 4 - r["versions"][0] <= 1 for r in played)
    for record in records(tmp_path / "run"):
        assert record["mismatch"] < 0.5 and record["handover_gap"] < 0.01 and record["staleness_max"] <= 1


def nothing_happened_to(run_dir: Path, sound: Path) -> None:
    """Check that every attempt is scored, and what was learnt."""
    assert [record["unscored"] for record in records(run_dir)] == [0, 0, 0, 0]
    assert len(records(run_dir, "rollouts")) == 64 and weights(run_dir) == weights(sound)
