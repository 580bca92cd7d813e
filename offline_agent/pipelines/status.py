"""Status of a run: `python -m offline_agent.pipelines.status run_dir=RUN_DIR`.

Shows shards done, running, pending, failed and lost, tasks done, the stages of a loop, and how to go on. It only reads:
it can be given at any time, from any machine that sees the run directory; without Slurm there it tells what the run
directory knows.

Exit status: 0 told, 1 the run cannot be read, 2 the request was wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from offline_agent.errors import DataError
from offline_agent.runner.arguments import read_keys, tool
from offline_agent.runner.terminal import show

if TYPE_CHECKING:
    from offline_agent.launch.slurm.jobs import JobStatus, RunStatus


def main(arguments: Sequence[str]) -> int:
    """Print what has become of a run; returns the exit status."""
    return tool("status", __doc__ or "", arguments, _show)


def _show(arguments: Sequence[str]) -> None:
    (run_dir,), _ = read_keys(arguments, {})
    for line in status(run_dir):
        show(line)


def status(run_dir: Path) -> Iterator[str]:
    """Yield the state of a run, line by line.

    Raises:
        DataError: The manifest, or the note of the shards, is broken.
    """
    from offline_agent.launch.shards import resume_command
    from offline_agent.launch.slurm.jobs import look
    from offline_agent.store.manifest import read_manifest

    manifest = read_manifest(run_dir)
    if "command" not in manifest:
        raise DataError(f"{run_dir / 'manifest.json'}: it names no command. Restore it from a copy.")
    command, word = str(manifest["command"]), str(manifest.get("status"))
    view = look(run_dir.resolve(), command, patient=True)
    yield f"{run_dir}: {command}, {_of_run(word, view)}"
    if word == "failed" and not view.active:
        yield f"  ended with {manifest.get('error')}"
    yield from _jobs(run_dir, view)
    if command == "iterate":
        yield from _stages(run_dir)
    if word != "done":
        if view.unheard is not None:
            yield f"Slurm could not be asked: {view.unheard}"
        if view.active and not _wrong(view):
            yield "The jobs go on by themselves; the same command waits for them."
        else:
            yield f"To go on: {resume_command(run_dir.resolve(), command)}"


def _of_run(word: str, view: RunStatus) -> str:
    """Say how a run stands: its manifest says `running` too while jobs wait, and after a machine has died."""
    if word != "running":
        return word
    if view.active:
        return "under way"
    return "not done" if view.merge is not None or view.job is not None else "begun, and not ended"


def _jobs(run_dir: Path, view: RunStatus) -> Iterator[str]:
    from offline_agent.launch.shards import finished

    if view.shards:
        count = view.count()
        words = ", ".join(f"{number} {word}" for word, number in count.items())
        yield f"  shards   {len(view.shards)}: {words}"
        there, tasks = sum(one.finished for _, one in view.shards), sum(shard.tasks for shard, _ in view.shards)
        if view.command == "build_prefs":
            yield f"  tasks    {there} of {tasks} searched"
        else:
            yield f"  attempts {there} played, of {tasks} tasks"
    elif view.command == "build_prefs":
        yield f"  tasks    {finished(run_dir, view.command)} searched"
    for kind, one in (("merge", view.merge), ("job", view.job)):
        if one is not None:
            yield f"  {kind:8} {_in_words(one)}"
    told = [(shard, one) for shard, one in view.shards if one.word in ("failed", "lost") or (one.active and one.why)]
    for shard, one in told:
        yield f"  shard {shard.number:<3}{_in_words(one)}"


def _in_words(one: JobStatus) -> str:
    job = f" (job {one.job})" if one.job is not None and one.word != "done" else ""
    return f"{one.word}{job}{f': {one.why}' if one.why else ''}"


def _wrong(view: RunStatus) -> bool:
    every = [one for one in (view.merge, view.job) if one is not None] + [one for _, one in view.shards]
    return any(one.word in ("failed", "lost", "begun", "new") for one in every)


def _stages(run_dir: Path) -> Iterator[str]:
    """Yield a line for every stage of a loop, and what its jobs do where it is not done."""
    from offline_agent.launch.shards import manifest_of
    from offline_agent.launch.slurm.jobs import look

    found = run_dir.glob("iteration-*/*/manifest.json")
    begun = sorted(found, key=lambda file: str((manifest_of(file.parent) or {}).get("started")))
    for path in (file.parent for file in begun):
        manifest = manifest_of(path) or {}
        view = look(path.resolve(), str(manifest.get("command")), patient=True)
        yield f"  {path.parent.name}/{path.name}: {_of_run(str(manifest.get('status')), view)}"
        if manifest.get("status") != "done":
            yield from (f"  {line}" for line in _jobs(path, view))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
