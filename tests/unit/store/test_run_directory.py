from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from offline_agent.errors import ConfigError, DataError
from offline_agent.store.files import write_json
from offline_agent.store.provenance import git_commit, hash_path
from offline_agent.store.run_directory import RunDirectory, read_tree, tree_path

CONFIG = {"seed": 0, "search": {"simulations": 32, "kinds": ("a", "b")}, "tracking": {"uri": None}}
FACTS = {"seeds": {"run": 0}, "hashes": {"model": "m1"}}


def _open(path: Path, config: dict[str, Any] = CONFIG, facts: dict[str, Any] = FACTS, **rest: Any) -> RunDirectory:
    return RunDirectory.open(path, config=config, facts=facts, command=rest.pop("command", "t"), free=("tracking",))


def _bytes(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_run_says_how_it_came_about(tmp_path: Path) -> None:
    with _open(tmp_path / "a" / "run") as run:
        assert not run.resumed
        run.finish(batch_invariant=True)
    manifest = json.loads((tmp_path / "a" / "run" / "manifest.json").read_text())
    assert manifest["schema_version"] == 1 and manifest["command"] == "t" and manifest["status"] == "done"
    assert manifest["seeds"] == {"run": 0} and manifest["batch_invariant"] is True
    assert set(manifest["hashes"]) == {"code", "model"} and len(manifest["hashes"]["code"]) == 32
    assert manifest["started"] <= manifest["ended"] and manifest["machine"]["python"]
    assert manifest["config"]["search"]["kinds"] == ["a", "b"] and "resumed" not in manifest


def test_the_same_configuration_goes_on(tmp_path: Path) -> None:
    with _open(tmp_path / "run") as run:
        run.events().append({"n": 1})
    with _open(tmp_path / "run", {**CONFIG, "tracking": {"uri": "elsewhere"}}) as run:
        assert run.resumed and run.warnings == ()
        run.events().append({"n": 2})
        assert list(run.events().read()) == [{"n": 1}, {"n": 2}]
        assert run.manifest["resumed"][0]["after"] == "running"
    with _open(tmp_path / "run") as run:
        assert len(run.manifest["resumed"]) == 2


@pytest.mark.parametrize(
    ("then", "now", "said"),
    [
        ({"model": "a", "logps": [-1.0, -2.0]}, {"model": "a", "logps": [-1.25, -2.0]}, None),
        ({"model": "a", "logps": None}, {"model": "a", "logps": [-1.0]}, None),
        ({"model": "a", "logps": [-1.0]}, {"model": "a", "logps": None}, None),
        ({"model": "a", "logps": [-1.0, -2.0]}, {"model": "a", "logps": [-1.0, -2.5]}, "differ by up to 0.5, allowed"),
        ({"model": "a", "logps": [-1.0]}, {"model": "a", "logps": [-1.0, -2.5]}, "differ by up to inf"),
        ({"model": "a", "logps": None}, {"model": "b", "logps": None}, "with the model 'a', the server has 'b'"),
    ],
)
def test_another_model_behind_a_server_is_refused(tmp_path: Path, then: Any, now: Any, said: str | None) -> None:
    def facts(one: Any) -> dict[str, Any]:
        return {**FACTS, "served": {"policy": {**one, "tolerance": 0.25}}}

    with _open(tmp_path / "run", facts=facts(then)) as run:
        run.finish()
    if said is None:
        with _open(tmp_path / "run", facts=facts(now)) as run:
            assert run.resumed and run.manifest["served"]["policy"]["logps"] == then["logps"]  # it does not creep
        return
    before = _bytes(tmp_path)
    with pytest.raises(ConfigError, match=said):
        _open(tmp_path / "run", facts=facts(now))
    assert _bytes(tmp_path) == before


def test_runs_from_before_servers_were_asked_for_log_probs_know_the_name(tmp_path: Path) -> None:
    now = {**FACTS, "served": {"policy": {"model": "b", "logps": [-1.0], "tolerance": 0.25}}}
    for name, known in (("a", False), ("b", True)):
        with _open(tmp_path / name, facts={**FACTS, "policy": {"kind": "server", "model": name}}):
            pass
        if known:
            _open(tmp_path / name, facts=now).close()
        else:
            with pytest.raises(ConfigError, match="with the model 'a', the server has 'b'"):
                _open(tmp_path / name, facts=now)


def test_differing_keys_are_all_listed_and_nothing_is_touched(tmp_path: Path) -> None:
    with _open(tmp_path / "run"):
        pass
    before = _bytes(tmp_path)
    other = {"seed": 1, "search": {"simulations": 64, "kinds": ("a", "b")}, "tracking": {"uri": "x"}, "new": True}
    with pytest.raises(ConfigError) as caught:
        _open(tmp_path / "run", other, {"hashes": {"model": "m2"}}, command="u")
    faults = caught.value.faults
    assert "seed: the run has 0, asked for 1" in faults
    assert "search.simulations: the run has 32, asked for 64" in faults
    assert "new: the run has nothing, asked for true" in faults
    assert any("model changed" in fault for fault in faults) and any(
        "begun by t, not by u" in fault for fault in faults
    )
    assert not any("tracking" in fault or "kinds" in fault for fault in faults) and len(faults) == 6
    after = _bytes(tmp_path)
    assert {k: v for k, v in before.items() if ".lock" not in k} == {k: v for k, v in after.items() if ".lock" not in k}


def test_other_code_is_allowed_and_said(tmp_path: Path) -> None:
    with _open(tmp_path / "run"):
        pass
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    manifest["hashes"]["code"] = "0" * 32
    write_json(tmp_path / "run" / "manifest.json", manifest)
    with _open(tmp_path / "run") as run:
        assert "the code differs" in run.warnings[0]


def test_a_second_run_into_the_directory_is_refused(tmp_path: Path) -> None:
    script = (
        "import sys; from offline_agent.store.run_directory import RunDirectory\n"
        f"RunDirectory.open({str(tmp_path / 'run')!r}, config={CONFIG!r}, facts={FACTS!r}, command='t')\n"
        "print('open', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen([sys.executable, "-c", script], stdin=-1, stdout=-1, text=True, cwd=Path.cwd())
    assert other.stdout and other.stdin and other.stdout.readline() == "open\n"
    with pytest.raises(ConfigError, match=rf"in use by process {other.pid} on .*nothing was written"):
        _open(tmp_path / "run")
    other.kill()  # the lock goes with its holder
    other.wait()
    other.stdin.close(), other.stdout.close()
    with _open(tmp_path / "run") as run:
        assert run.resumed


def test_two_in_one_process_are_refused_too(tmp_path: Path) -> None:
    with _open(tmp_path / "run"), pytest.raises(ConfigError, match="in use"):
        _open(tmp_path / "run")


def test_a_killed_command_whose_child_still_ends_is_waited_for(tmp_path: Path) -> None:
    script = """
import os, sys, time
from pathlib import Path
from offline_agent.store.run_directory import RunDirectory

run = RunDirectory.open(Path(sys.argv[1]), config={}, facts={}, command="t", free=())
if os.fork() == 0:  # it inherits the lock
    os.close(1)
    time.sleep(1.0)
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "run")], check=True, stdout=subprocess.PIPE)
    with RunDirectory.open(tmp_path / "run", config={}, facts={}, command="t", free=()) as run:
        assert run.resumed


def test_a_directory_that_is_no_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("x")
    with pytest.raises(ConfigError, match="is no run directory"):
        _open(tmp_path / "photos")
    with pytest.raises(ConfigError, match="is a file"):
        _open(tmp_path / "photos" / "cat.jpg")
    assert _bytes(tmp_path) == {"photos/cat.jpg": b"x"}


def test_a_fault_in_a_fresh_directory_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        _open(tmp_path / "run", {"seed": object()})
    assert not (tmp_path / "run").exists()


def test_killed_before_the_manifest_is_a_fresh_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").touch()
    (tmp_path / "run" / ".manifest.json.17.tmp").write_text("half")
    with _open(tmp_path / "run") as run:
        assert not run.resumed
    assert not list((tmp_path / "run").glob("*.tmp")) and not list((tmp_path / "run").glob(".*.tmp"))


def _torn(run: Path) -> None:
    text = (run / "manifest.json").read_text()
    (run / "manifest.json").write_text(text[: len(text) // 2])


def _other_version(run: Path) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    write_json(run / "manifest.json", {**manifest, "schema_version": 2})


def _no_version(run: Path) -> None:
    (run / "manifest.json").write_text("[]")


def _altered(run: Path) -> None:
    text = (run / "manifest.json").read_text()
    (run / "manifest.json").write_text(text.replace('"command": "t"', '"command": "u"'))


def _no_config(run: Path) -> None:
    (run / "manifest.json").write_text('{"schema_version": 1}')


def _gone(run: Path) -> None:
    (run / "manifest.json").unlink()


def _no_log(run: Path) -> None:
    (run / "events" / "0000.jsonl").unlink()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (_torn, r"manifest\.json: not readable as JSON"),
        (_other_version, r"manifest\.json: schema version 2, this program reads 1"),
        (_no_version, r"manifest\.json: got list, allowed: a JSON object"),
        (_altered, r"manifest\.json: it was changed after it was written"),
        (_no_config, r"manifest\.json: command, config"),
        (_gone, r"manifest\.json: missing, though the directory holds a run"),
        (_no_log, r"0000\.jsonl: missing, though the manifest lists it"),
    ],
)
def test_damage_is_named_with_what_to_do_and_nothing_is_destroyed(tmp_path: Path, damage: Any, says: str) -> None:
    run = tmp_path / "run"
    with _open(run) as made:
        made.events().append({"n": 1})
        made.write_tree("t", {"nodes": []})
    damage(run)
    before = {k: v for k, v in _bytes(run).items() if k != ".lock"}
    with pytest.raises(DataError, match=says + r"[\s\S]*run_dir"):
        _open(run)
    assert {k: v for k, v in _bytes(run).items() if k != ".lock"} == before


def test_trees_come_back_and_are_the_same_bytes_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"directed": True, "graph": {}, "nodes": [{"id": 0, "q": 0.5}], "edges": [], "text": "\ud800ü"}
    ids = ["train-1", "a/../b", "..", "x" * 400, "~", "ü b"]
    with _open(tmp_path / "run") as run:
        first = {name: run.write_tree(name, data).read_bytes() for name in ids}
        assert run.written([*ids, "another"]) == set(ids)
        assert all(read_tree(tree_path(run.path, name)) == data for name in ids)
        monkeypatch.setattr("time.time", lambda: 10**9)  # another day
        assert {name: run.write_tree(name, data).read_bytes() for name in ids} == first
    assert len({path.parent for path in (tmp_path / "run").rglob("*.gz")}) == 1


def test_a_tree_is_networkx_node_link_data(tmp_path: Path) -> None:
    import networkx as nx

    graph = nx.DiGraph([(0, 1), (0, 2)])
    with _open(tmp_path / "run") as run:
        path = run.write_tree("t", nx.node_link_data(graph, edges="edges"))
    with gzip.open(path) as file:
        assert nx.utils.graphs_equal(nx.node_link_graph(json.load(file), edges="edges"), graph)


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-5], lambda b: b[:10] + b"\x00" + b[11:], lambda b: b"", lambda b: b"{}"]
)
def test_a_broken_tree_is_named(tmp_path: Path, damage: Any) -> None:
    with _open(tmp_path / "run") as run:
        path = run.write_tree("t", {"nodes": list(range(100))})
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"t\.json\.gz.*Remove it"):
        read_tree(path)
    path.unlink()
    with pytest.raises(DataError, match=r"t\.json\.gz: missing"):
        read_tree(path)


def test_a_tree_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(b'{"schema_version": 7, "tree_id": "t"}'))
    with pytest.raises(DataError, match="schema version 7"):
        read_tree(path)


def test_what_is_refused_is_listed_once_however_often_it_is_said(tmp_path: Path) -> None:
    for turn in range(3):
        with _open(tmp_path / "run") as run:
            assert run.quarantine("branch", "t/4", "differs on replay", depth=2) == (turn == 0)
            assert not run.quarantine("branch", "t/4", "differs on replay", depth=3)
            run.quarantine("task", "t", f"turn {turn}")
    rows = [json.loads(line) for line in (tmp_path / "run" / "quarantine.jsonl").read_text().splitlines()]
    assert all(len(row.pop("crc")) == 8 for row in rows)
    assert [row["reason"] for row in rows] == ["differs on replay", "turn 0", "turn 1", "turn 2"]
    assert rows[0] == {
        "schema_version": 1, "kind": "branch", "name": "t/4", "reason": "differs on replay", "depth": 2,
    }  # fmt: skip
    with _open(tmp_path / "run") as run:
        assert list(run.quarantined.read()) == rows


def test_a_torn_quarantine_line_is_written_again(tmp_path: Path) -> None:
    with _open(tmp_path / "run") as run:
        run.quarantine("a", "1", "x")
        run.quarantine("a", "2", "x")
    path = tmp_path / "run" / "quarantine.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-4])
    with _open(tmp_path / "run") as run:
        assert not run.quarantine("a", "1", "x") and run.quarantine("a", "2", "x")
    assert path.read_bytes() == whole


def test_a_broken_quarantine_line_is_named(tmp_path: Path) -> None:
    with _open(tmp_path / "run") as run:
        run.quarantine("a", "1", "x")
    path = tmp_path / "run" / "quarantine.jsonl"
    path.write_bytes(b"nonsense\n" + path.read_bytes())
    before = path.read_bytes()
    with _open(tmp_path / "run") as run, pytest.raises(DataError, match=r"quarantine\.jsonl, line 1"):
        run.quarantine("a", "1", "x")
    assert path.read_bytes() == before


def test_opening_does_not_read_what_was_refused(tmp_path: Path) -> None:
    with _open(tmp_path / "run") as run:
        run.quarantine("a", "1", "x")
    with _open(tmp_path / "run") as run:
        assert run.quarantined._seen is None


def test_which_trees_are_written(tmp_path: Path) -> None:
    ids = ["train-1", "a/../b", "x" * 400, "~"]
    with _open(tmp_path / "run") as run:
        assert run.written(ids) == set()
        for name in ids[:3]:
            run.write_tree(name, {})
        (run.path / "trees" / ".train-2.json.gz.1.tmp").touch()
        assert run.written([*ids, "train-2"]) == set(ids[:3])


def test_what_killed_writers_left_is_removed_but_not_that_of_runs_inside(tmp_path: Path) -> None:
    with _open(tmp_path / "run") as run:
        run.write_tree("t", {})
    inside = tmp_path / "run" / "shards" / "0001"
    left = [tmp_path / "run" / name for name in (".pairs.7.tmp", "trees/.t.json.gz.7.tmp", "preferences/.0000.7.tmp")]
    with _open(inside):
        for file in [*left, inside / ".pairs.8.tmp"]:
            file.parent.mkdir(exist_ok=True)
            file.touch()
        with _open(tmp_path / "run"):
            assert not any(file.exists() for file in left)
        assert (inside / ".pairs.8.tmp").exists()


def test_an_exception_is_noted(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), _open(tmp_path / "run"):
        raise RuntimeError("boom")
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["status"] == "failed" and manifest["error"] == "RuntimeError: boom"
    with _open(tmp_path / "run") as run:
        assert "error" not in run.manifest and run.manifest["resumed"][0]["after"] == "failed"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_really_full_disk(tmp_path: Path) -> None:
    """On a file system of 256 KiB: every writer says so, what was there stays, and with space the run goes on."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        run = _open(disk / "run")
        run.write_tree("t", {"n": 1})
        ballast = disk / "ballast"
        with pytest.raises(DataError, match="the disk is full"):
            for number in range(100_000):
                run.events().append({"n": number, "text": "x" * 200})
        size = (disk / "run" / "events" / "0000.jsonl").stat().st_size
        with pytest.raises(DataError, match=r"t\.json\.gz: the disk is full"):
            run.write_tree("t", {"n": os.urandom(9000).hex()})
        with pytest.raises(DataError, match=r"quarantine\.jsonl: the disk is full"):
            for number in range(10_000):
                run.quarantine("a", str(number), "x" * 200)
        assert read_tree(tree_path(run.path, "t")) == {"n": 1}
        run.close()
        assert not list(disk.rglob("*.tmp")) and not ballast.exists()
        subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)
        with _open(disk / "run") as again:
            count = sum(1 for _ in again.events().read())
            again.events().append({"n": count})
            assert [record["n"] for record in again.events().read()] == list(range(count + 1))
        assert (disk / "run" / "events" / "0000.jsonl").stat().st_size > size
    finally:
        subprocess.run(["umount", str(disk)], check=False)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with _open(tmp_path / "run") as run:
        run.write_summary({"n": 1})
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(DataError, match=r"summary\.json: the disk is full.*free some space"):
            run.write_summary({"n": 2})
        monkeypatch.undo()
        summary = json.loads((tmp_path / "run" / "summary.json").read_text())
        assert summary.items() >= {"schema_version": 1, "n": 1}.items()
        assert not list((tmp_path / "run").glob(".*.tmp"))


def test_hashes_of_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "a").write_text("1")
    first = hash_path(tmp_path / "m")
    (tmp_path / "m" / ".git").mkdir()
    (tmp_path / "m" / ".git" / "x").write_text("1")
    assert hash_path(tmp_path / "m") == first
    (tmp_path / "m" / "a").rename(tmp_path / "m" / "b")
    renamed = hash_path(tmp_path / "m")
    (tmp_path / "m" / "b").write_text("2")
    assert len({first, renamed, hash_path(tmp_path / "m")}) == 3
    with pytest.raises(DataError, match="no such file or folder"):
        hash_path(tmp_path / "none")


def test_the_commit_is_none_outside_a_checkout(tmp_path: Path) -> None:
    assert git_commit(tmp_path) is None
    assert git_commit(tmp_path / "none") is None
