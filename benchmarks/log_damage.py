"""Logs of every format, damaged in every way: what `import_logs` loses, what it invents, and how fast it reads.

Run `python benchmarks/log_damage.py` (a few minutes). A scripted policy plays 125 tasks nine times; its attempts and
some random conversations with parallel calls are written in each format by code that shares nothing with the readers
(`tests/helpers/log_writers.py`), and damaged (`tests/helpers/log_damage.py`). What is imported is compared with what
was written. `--gigabytes N` instead measures the memory of importing one file of that size.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _common import write_result
from _write_logs import records

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.helpers.log_damage import CALLS, FILES, LINES, RECORDS, SHAPES, compare, write  # noqa: E402
from tests.helpers.log_writers import Spoken, Turn, openai, spoken  # noqa: E402

SEARCH = (
    "policy=noisy", "policy.noise=0.4", "search.algorithm=best_of_n", "search.simulations=9", "tasks.n=125",
    "pairs.kinds=[trajectory]",
)  # fmt: skip
PER_FILE = 10  # conversations in each damaged file
_SHOWN = 5  # sentences about what was lost, and about what was invented


def command(name: str, *keys: str) -> float:
    """Run a command; return its seconds. A command that fails ends this script with its output."""
    started = time.perf_counter()
    line = [sys.executable, "-m", f"offline_agent.pipelines.{name}", *keys, "tracking.uri=null"]
    done = subprocess.run(line, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return time.perf_counter() - started


def attempts(run: Path) -> Iterator[Spoken]:
    """Yield the attempts of a search as conversations, each with a last word that tells it from the others."""
    for number, record in enumerate(records(run)):
        messages = list(record["messages"])
        system = messages.pop(0)["content"] if messages[0]["role"] == "system" else None
        turns: list[Turn] = []
        for message in messages[1:]:
            if message["role"] == "assistant":
                functions = [call["function"] for call in message.get("tool_calls", ())]
                calls = [(function["name"], json.loads(function["arguments"])) for function in functions]
                turns.append(Turn(message["content"] or "", calls))
            elif message["role"] == "tool":
                turns[-1].results.append(message["content"])
            else:
                turns[-1].reply = message["content"]
        turns.append(Turn(f"That was attempt {number}."))
        yield Spoken(system, messages[0]["content"], turns, record["task_id"], record["session_id"],
                     bool(record["success"]), record["tools"])  # fmt: skip


def conversations(folder: Path, count: int) -> list[Spoken]:
    """Return so many attempts, and a fifth as many random conversations with parallel calls."""
    command("build_prefs", *SEARCH, f"run_dir={folder / 'search'}")
    out = list(attempts(folder / "search"))[:count]
    rng = random.Random(1)
    for number in range(count // 5):
        one = spoken(rng, number)
        one.turns[-1].text += f" #random {number}"
        out.append(one)
    rng.shuffle(out)
    return out


def row(said: list[Spoken], format: str, folder: Path) -> dict[str, Any]:
    """Write, import and compare the logs of a format."""
    source, run = folder / format, folder / f"run-{format}"
    expected = write(said, format, source, random.Random(format), PER_FILE)
    size = sum(path.stat().st_size for path in source.iterdir())
    seconds = command("import_logs", f"source={source}", f"run_dir={run}")
    found = compare(run, expected)
    for sentence in (*found.lost[:_SHOWN], *found.invented[:_SHOWN]):
        print(f"{format}: {sentence}", file=sys.stderr)
    damaged = sum(one.damage is not None for one in expected)
    return {
        "format": format, "records": len(expected), "damaged": damaged, "imported": found.read,
        "refused by name": found.refused, "lost": len(found.lost), "invented": len(found.invented),
        "seconds": round(seconds, 1), "MB/s": round(size / 1e6 / seconds, 1),
    }  # fmt: skip


def memory(folder: Path, gigabytes: float) -> dict[str, Any]:
    """Import one file of so many gigabytes; return the peak memory of the process, and the rate."""
    rng, path, number = random.Random(0), folder / "log.jsonl", 0
    with open(path, "w") as file:
        while file.tell() < gigabytes * 1e9:
            one = spoken(rng, number)
            one.task = f"task-{number // 8}"
            one.turns[0].text += " word" * rng.randint(0, 20_000)
            file.write(json.dumps(openai(one, rng)) + "\n")
            number += 1
    seconds = command("import_logs", f"source={path}", f"run_dir={folder / 'run'}")
    summary = json.loads((folder / "run" / "summary.json").read_text())
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    size = path.stat().st_size
    return {
        "GB": round(size / 1e9, 2), "records": number, "episodes": summary["episodes"], "peak MiB": round(peak),
        "seconds": round(seconds), "MB/s": round(size / 1e6 / seconds, 1),
    }  # fmt: skip


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1000, help="attempts written in each format")
    parser.add_argument("--formats", nargs="*", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--gigabytes", type=float, help="measure the memory of one file of this size instead")
    parser.add_argument("--out", type=Path, help="the file of the figures")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    with tempfile.TemporaryDirectory() as name:
        if options.gigabytes:
            write_result("log_memory", [memory(Path(name), options.gigabytes)], None, options.out)
            return
        said = conversations(Path(name), options.records)
        rows = [row(said, format, Path(name)) for format in options.formats]
    damages = len(RECORDS) + len(CALLS) + len(LINES) + len(FILES) + 2
    facts = {"kinds of damage": damages, "command": "python benchmarks/log_damage.py"}
    write_result("log_damage", rows, facts, options.out)


if __name__ == "__main__":
    main()
