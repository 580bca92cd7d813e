"""A run directory of 100,000 trees and a million pairs: memory over time, seconds, bytes on disk.

Run `python benchmarks/big_run.py --work DIR`; it takes hours and about 15 GB in DIR, which it removes at its end. Steps
that are done are not done again: a run that was stopped goes on with the same command.

A real search with the scripted policy grows some hundred trees on the shop. They are repeated under other task ids and
with other requests, trees and event log, until there are enough; the last few are left unfinished. Then come, each in a
process of its own: opening that directory as a resume does; the whole command, which finishes the search, mines every
tree, balances, and writes token columns with certificates; and the same command once more, which mines anew.
Memory is that of a command and all its processes together, looked at about once a second.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import psutil

import offline_agent
from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.config.loading import free_keys, load
from offline_agent.pipelines import build_prefs
from offline_agent.report.html.reading import RunFiles
from offline_agent.runner.components import completed
from offline_agent.store.columns import PAIR_TABLES, PREFERENCES, stored_name
from offline_agent.store.provenance import hash_json
from offline_agent.store.run_directory import RunDirectory, read_tree, tree_id_of

TOKENIZER = Path(offline_agent.__file__).parent / "assets" / "default_model"
KEYS = ["env=shop", "policy=noisy", f"policy.tokenizer={TOKENIZER}", "tracking.uri=null", "limits.workers=2"]
UNFINISHED = 20
SPARE = 1.03  # more trees than the first ones promise pairs for


def command(run_dir: Path, *keys: str) -> list[str]:
    """Return the command line of the main job."""
    return [sys.executable, "-m", "offline_agent.pipelines.build_prefs", *KEYS, *keys, f"run_dir={run_dir}"]


def measured(arguments: list[str], folder: Path) -> dict[str, Any]:
    """Run a command and return what it took.

    Returns:
        `wall` and `cpu` in seconds; `peak`, the most memory in MB that was seen, each page counted once; `curve`:
        [seconds, MB, GB in the folder beside trees and event log], about 50 points.
    """
    before, started = _processor(), time.perf_counter()
    process = psutil.Popen(arguments, stdout=subprocess.DEVNULL)
    peak, last, curve = 0.0, 0.0, []
    while process.poll() is None:
        now = time.perf_counter() - started
        memory = _memory(process)
        peak = max(peak, memory)
        if not curve or now - last >= max(1.0, now / 50):
            last = now
            tables = [entry for entry in folder.glob("*") if entry.name not in ("trees", "events")]
            spilled = [*folder.glob(".*.tmp"), *folder.glob("*/.*.tmp")]
            curve.append([round(now), round(memory), round(size(*tables, *spilled) / 1e9, 2)])
        time.sleep(min(1.0, 0.05 + now / 100))
    if process.returncode:
        sys.exit(f"{' '.join(arguments)} ended with status {process.returncode}")
    return {"wall": time.perf_counter() - started, "cpu": _processor() - before, "peak": peak, "curve": curve}


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _memory(process: psutil.Process) -> float:
    """Return the MB that a process and its children have; a page that several share counts as one."""
    total = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                total += each.memory_full_info().pss
    return total / 1e6


def size(*paths: Path) -> int:
    """Return the bytes that files, and the files in folders, take on disk."""
    files = [file for path in paths for file in ([path] if path.is_file() else path.glob("*"))]
    total = 0
    for file in files:
        with contextlib.suppress(OSError):
            total += file.stat().st_blocks * 512
    return total


# -- the directory ---------------------------------------------------------------------------------------------


def repeat(source: Path, target: Path, tasks: Path, trees: int, keys: list[str]) -> None:
    """Make a run directory that was killed near its end: trees and log of another, under other names and requests.

    Args:
        source: The run with the trees that are repeated.
        target: The run directory.
        tasks: The file of tasks; written.
        trees: Number of tasks; the last few get records and no tree.
        keys: Of the command that is to go on with it.
    """
    with RunDirectory.open(source, **_opening(source, [], resumed=True)) as run:
        files = sorted((run.path / "trees").glob("*.json.gz"))
        kept = {tree_id_of(file): read_tree(file) for file in files}
        records: dict[str, list[Any]] = {name: [] for name in kept}
        for record in run.events().read():
            records[record["tree"]].append(record)
    names = sorted(kept)
    with open(tasks, "w", encoding="utf-8") as file:
        for number in range(trees):
            args = kept[names[number % len(names)]]["graph"]["task"]["args"]
            request = {"task_id": f"big-{number:06}", "instruction": _request(number, args["instruction"])}
            file.write(json.dumps({**args, **request}) + "\n")
    # Nothing here is measured, so nothing needs to be forced to the disk.
    with mock.patch("os.fsync"), RunDirectory.open(target, **_opening(target, keys)) as run:

        def write_trees() -> None:
            for number in range(trees - UNFINISHED):
                run.write_tree(f"big-{number:06}", _renamed(kept[names[number % len(names)]], number))

        beside = multiprocessing.get_context("fork").Process(target=write_trees)
        beside.start()
        log = run.events()
        for number in range(trees):
            own = records[names[number % len(names)]]
            for record in own if number < trees - UNFINISHED else own[: len(own) // 2]:
                log.append({**record, "tree": f"big-{number:06}"})
        beside.join()
        if beside.exitcode:
            sys.exit(f"the process that writes trees ended with status {beside.exitcode}")


def _request(number: int, instruction: str) -> str:
    return f"Order {number:06}. {instruction}"


def _renamed(tree: dict[str, Any], number: int) -> dict[str, Any]:
    graph = tree["graph"]
    request = _request(number, graph["task"]["args"]["instruction"])
    task = {**graph["task"], "task_id": f"big-{number:06}", "args": {**graph["task"]["args"], "instruction": request}}
    nodes = [{**tree["nodes"][0], "observation": request}, *tree["nodes"][1:]]
    return {**tree, "nodes": nodes, "graph": {**graph, "tree_id": f"big-{number:06}", "task": task}}


def _opening(run_dir: Path, keys: list[str], resumed: bool = False) -> dict[str, Any]:
    """Return the arguments with which the command opens its run directory."""
    if resumed:
        manifest = json.loads((run_dir / "manifest.json").read_text())
        return {"config": manifest["config"], "facts": {"hashes": {}}, "command": manifest["command"]}
    config = completed(load(BuildPrefsConfig, None, [*KEYS, *keys, f"run_dir={run_dir}"]))
    _, facts = build_prefs.prepare(config)
    return {
        "config": config.resolved(),
        "facts": {"seeds": {"run": config.seed}, **facts.manifest},
        "command": "build_prefs",
        "free": free_keys(BuildPrefsConfig),
    }


# -- what is measured in this process, started anew for it ---------------------------------------------------------


def open_it(run_dir: Path, out: Path) -> None:
    """Open a run directory as a resume does, and write down what that took and found."""
    manifest = json.loads((run_dir / "manifest.json").read_text())
    steps: dict[str, float] = {}

    def timed(name: str, call: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        answer = call()
        steps[name] = round(time.perf_counter() - started, 2)
        return answer

    arguments = {"config": manifest["config"], "facts": {"hashes": {}}, "command": manifest["command"]}
    run = timed("open", lambda: RunDirectory.open(run_dir, **arguments))
    with run:
        names = timed("list trees", RunFiles(run_dir).tree_ids)
        left = timed("log of unfinished trees", lambda: list(run.events().read(without=set(names))))
    found = {"trees": len(names), "unfinished": len({record["tree"] for record in left})}
    out.write_text(json.dumps({"steps": steps, **found}))


def check(run_dir: Path, out: Path) -> None:
    """Count the rows and the different ones among them, reading a few at a time."""
    import pyarrow.parquet as pq

    seen, rows = set[int](), 0
    ids = [stored_name(f"{name}_ids", PREFERENCES) for name in ("prompt", "chosen", "rejected")]
    for table in PAIR_TABLES:
        with pq.ParquetFile(run_dir / table / "0000.parquet") as file:
            for batch in file.iter_batches(512, columns=ids):
                for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    rows += 1
                    seen.add(int(hash_json(row)[:16], 16))
    out.write_text(json.dumps({"rows": rows, "different": len(seen)}))


def _here(what: str, run_dir: Path, folder: Path) -> dict[str, Any]:
    out = folder / f"{what}.out"
    took = measured([sys.executable, __file__, "--step", what, "--work", str(run_dir), "--out", str(out)], run_dir)
    return took | json.loads(out.read_text())


# -- the whole -----------------------------------------------------------------------------------------------------


def run(arguments: argparse.Namespace, folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Carry out every step in a folder, but those done before; return the table and the facts."""
    source, target, tasks = folder / "first", folder / "run", folder / "tasks.jsonl"
    rows: list[dict[str, Any]] = []

    def once(name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        done = folder / f"{name}.json"
        if not done.exists():
            made = json.dumps(make())
            done.write_text(made)
            print(f"{name}: {made[:200]}", file=sys.stderr, flush=True)
        return dict(json.loads(done.read_text()))

    def row(name: str, took: dict[str, Any], note: str) -> None:
        line = {"step": name, "seconds": round(took["wall"], 1), "processor s": round(took["cpu"], 1)}
        rows.append({**line, "peak MB": round(took["peak"]), "what": note})

    def whole(*keys: str) -> Callable[[], dict[str, Any]]:
        def make() -> dict[str, Any]:
            left = {"left": trees - sum(1 for _ in target.glob("trees/*"))}
            took = measured(command(target, *keys), target)
            return took | left | {"summary": json.loads((target / "summary.json").read_text())}

        return make

    asked = {name: getattr(arguments, name) for name in ("pairs", "trees", "first")}
    if (kept := once("asked", lambda: asked)) != asked:
        sys.exit(f"{folder} holds steps of a run with {kept}, asked for is {asked}: ask for the same, or remove it")
    first = once("searched", lambda: measured(command(source, f"tasks.n={arguments.first}"), source))
    pairs = json.loads((source / "summary.json").read_text())["pairs_total"]
    row("the first trees", first, f"{arguments.first} tasks searched and mined: {pairs} pairs")
    trees = max(arguments.trees, round(SPARE * arguments.pairs * arguments.first / pairs))
    keys = [f"tasks.file={tasks}", f"tasks.n={trees}"]

    def repeated() -> dict[str, Any]:
        tasks.write_text("")
        shutil.rmtree(target, ignore_errors=True)
        repeat(source, target, tasks, trees, keys)
        return {"trees": size(target / "trees"), "event log": size(target / "events")}

    disk = once("repeated", repeated)
    found = once("opened", lambda: _here("open", target, folder))
    assert found["trees"] == trees - UNFINISHED and found["unfinished"] == UNFINISHED, found
    steps = ", ".join(f"{name} {seconds} s" for name, seconds in found["steps"].items())
    row("opening", found, f"{found['trees']:,} trees, {found['unfinished']} unfinished; {steps}")
    build = once("built", whole(*keys))
    summary = build["summary"]
    note = f"{summary['pairs_total']:,} pairs of {summary['tasks']:,} trees, {build['left']} of which were unfinished"
    row("finishing and mining", build, note)
    again = once("summarised", whole(*keys))
    for one in (summary, again["summary"]):
        for session in ("checksum", "resumed", "seconds", "this_session"):
            one.pop(session)
    assert again["summary"] == summary
    row("the same command again", again, "opened, resumed and mined again; the summary is the same")
    counted = once("checked", lambda: _here("check", target, folder))
    assert counted["rows"] == counted["different"] == summary["pairs_total"], counted
    row("reading them", counted, f"{counted['rows']:,} rows, all different by their ids")
    for name in (*PAIR_TABLES, "trajectories", "filtered", "quarantine.jsonl"):
        disk[name] = size(target / name)
    return rows, {
        "goal": "1,000,000 pairs under 1 GB of memory; 100,000 trees opened in seconds",
        "pairs": summary["pairs_total"],
        "pairs by kind": summary["pairs"],
        "candidates refused": summary["refused"],
        "trees": trees,
        "trajectories": summary["trajectories"],
        "GB on disk": {name: round(value / 1e9, 2) for name, value in disk.items()},
        "peak MB while a million pairs were made": round(build["peak"]),
        "memory over time (s, MB, GB of tables and temporary files)": list(_thinned(build["curve"], 24)),
    }


def _thinned(curve: list[Any], most: int) -> Iterator[Any]:
    step = max(1, -(-len(curve) // most))
    yield from curve[::step]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=1_000_000, help="at least so many pairs")
    parser.add_argument("--trees", type=int, default=100_000, help="at least so many trees")
    parser.add_argument("--first", type=int, default=200, help="trees that are really searched")
    parser.add_argument("--work", type=Path, required=True, help="folder to work in; what is made there is removed")
    parser.add_argument("--out", type=Path, help="file for the result")
    parser.add_argument("--step", choices=("open", "check"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        {"open": open_it, "check": check}[arguments.step](arguments.work, arguments.out)
        return
    sys.path.insert(0, str(Path(__file__).parent))
    from _common import write_result

    folder = arguments.work / "big_run"
    folder.mkdir(parents=True, exist_ok=True)
    rows, facts = run(arguments, folder)
    shutil.rmtree(folder)
    write_result("big_run", rows, facts, arguments.out)


if __name__ == "__main__":
    main()
