"""Entry point of every command: exit status, launchers, run directory, tracking, progress, closing summary."""

from __future__ import annotations

import gc
import shlex
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from offline_agent import crash_notes
from offline_agent.config.loading import load, to_yaml
from offline_agent.errors import ConfigError, OfflineAgentError, in_words
from offline_agent.outgoing import masked
from offline_agent.runner.arguments import asks_help, help_topic, parse, resume_line, stored_config, usage
from offline_agent.runner.pipeline import DONE, FAILED, WRONG, C, Command, Facts, P, Session, Spread, open_run, refuse
from offline_agent.runner.signals import Stopped, signals, supervised
from offline_agent.runner.terminal import Progress, say, show

if TYPE_CHECKING:
    from offline_agent.config.build_prefs import RunConfig
    from offline_agent.store.run_directory import RunDirectory

T = TypeVar("T")


def main(command: Command[C, P], argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status: 0 done, 1 failed while running, 2 wrong request.

    Args:
        command: The command.
        argv: Arguments without the name of the program; None = those of `sys.argv`, run in a child process
            (`runner.signals`).
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not asks_help(arguments):
        work = partial(_main, command, arguments)
        if argv is None:
            return supervised(command.name, work)
        try:
            return work()
        finally:
            gc.unfreeze()  # commands freeze what they load, and this process goes on
    try:
        show(usage(command.name, command.config, command.spread is not None, help_topic(arguments)))
    except ConfigError as error:
        say(f"{command.name}: {error}")
        return WRONG
    return DONE


class _Ended(Exception):
    """The command ended before anything was written; the user knows why. Its argument is the exit status."""


def _main(command: Command[C, P], arguments: list[str]) -> int:
    try:
        return _unwritten(command, "preparing", lambda: _set_up(command, arguments))()
    except _Ended as end:
        return int(end.args[0])


def _unwritten(command: Command[C, P], part: str, work: Callable[[], T]) -> T:
    """Return the result of work that writes nothing; raise `_Ended` where it fails or is stopped."""
    try:
        with signals(), Progress(f"{command.name}: {part}"):
            return work()
    except ConfigError as error:
        raise _Ended(refuse(command, error)) from error
    except OfflineAgentError as error:
        say(f"{command.name}: {error}")
    except Stopped as stop:
        say(f"{command.name}: stopped by {stop}; nothing was written")
    raise _Ended(FAILED)


def _set_up(command: Command[C, P], arguments: list[str]) -> Callable[[], int]:
    """Check and prepare the request; return the function that does the work. Nothing is written here.

    Raises:
        OfflineAgentError: The request is wrong, or a component cannot be loaded.
    """
    asked = parse(arguments)
    stored = stored_config(command, asked.overrides) if asked.file is None else None
    config = stored or load(command.config, asked.file, asked.overrides)
    if asked.print_config:
        show(to_yaml(config).rstrip())
        return lambda: DONE
    config = command.complete(config)
    launched = None if asked.plan else _launcher(command, config, asked.part)
    prepared, facts = command.prepare(config)
    if asked.plan:
        del prepared  # the probe loads the model itself; two copies may not fit
        return lambda: _plan(command, config)
    work = launched or partial(_carry_out, arguments=arguments, part=asked.part)
    return partial(work, command, config, prepared, facts)


def _plan(command: Command[C, P], config: C) -> int:
    """Print the expected cost of the run; no file is left."""
    from offline_agent.launch.plan import plan

    show(_unwritten(command, "measuring", lambda: plan(command.name, config, say)))
    return DONE


def _carry_out(
    command: Command[C, P], config: C, prepared: P, facts: Facts, arguments: list[str], part: str | None
) -> int:
    config, run = _unwritten(command, "opening the run", lambda: open_run(command, config, facts))
    line = resume_line(command.name, arguments, run.path)
    if crash_notes.notes is not None:
        crash_notes.notes.again = line
    try:
        with signals():  # until it is told: a terminal's Ctrl-C comes a second time, passed on
            try:
                with run:
                    summary = _work(command, config, prepared, facts, run, part)
            except Stopped as stop:
                say(f"{command.name}: stopped by {stop}. Finished work is in {run.path}. To go on: {line}")
                return FAILED
    except OfflineAgentError as error:
        say(f"{command.name}: {error}")  # status 1 for a ConfigError too: files were written
        return FAILED
    except Exception:
        say(
            f"{traceback.format_exc()}{command.name}: a fault of the program (above). Results so far are in "
            f"{run.path}; to go on: {line}"
        )
        return FAILED
    return FAILED if part != "--shard" and command.failed(summary) else DONE


def _work(
    command: Command[C, P], config: C, prepared: P, facts: Facts, run: RunDirectory, part: str | None
) -> Mapping[str, Any]:
    """Do the work, write and show its summary; return it."""
    from offline_agent.sandbox.trust import fall
    from offline_agent.store.tracking import TrackedRun, numbers, open_tracker

    progress, tracking, place = Progress(command.name).begin(), config.tracking, run.path.resolve()
    stage = {} if tracking.iteration is None else {"iteration": str(tracking.iteration)}
    stage |= {"git_commit": commit} if (commit := run.manifest.get("git_commit")) else {}
    tracked = TrackedRun(
        f"{place.parent.name}/{place.name}" if tracking.parent else f"{command.name} {place.name}",
        run.manifest["run_id"],
        config.resolved(),
        {"pipeline": command.name, "run_dir": str(place), **stage, **facts.tags},
        tracking.parent,
    )
    tracker = open_tracker(tracking.uri, tracking.experiment, tracked, progress.say)
    try:
        session = Session(config, run, tracker, progress, progress.say)
        summary = _run(command, prepared, session, part)
        progress.start(None, "writing results")
        summary = masked(summary)
        run.write_summary(summary)
        run.finish(**fall())
        tracker.metrics(dict(numbers(summary)))
        tracker.tags(_made(summary))
        for name in ("manifest.json", "summary.json"):
            tracker.artifact(run.path / name)
        page = _report(command, session) if config.report and part != "--shard" else None
        progress.close()
        show("shard done" if part == "--shard" else command.show(summary, run.path))  # before the wait for tracking
        if page is not None:
            show(f"report: {page}")  # no part of the table: the page holds the table, also where it is written anew
    except BaseException as error:
        progress.close()
        if isinstance(error, Stopped) and tracking.uri is not None:
            say(f"{command.name}: {error}: tracking is being told; another Ctrl-C skips that")
        tracker.close("KILLED" if isinstance(error, Stopped) else "FAILED")
        raise
    try:
        tracker.close()
    except Stopped as stop:
        say(f"{command.name}: stopped by {stop} while it waited for MLflow; the run is done")
    return summary


def _report(command: Command[C, P], session: Session[C]) -> Path | None:
    """Write the page of the run, send it to tracking, and return its path; None where it could not be written.

    The run is done, whatever happens here.
    """
    from offline_agent.report.html.page import write

    page: Path | None = None
    try:
        page = write(session.run.path).path
        session.tracker.artifact(page)
    except (Stopped, Exception) as error:  # a fault of the page must not cost the run
        why = f"stopped by {error}" if isinstance(error, Stopped) else in_words(error)
        again = f"python -m offline_agent.pipelines.report run_dir={shlex.quote(str(session.run.path))}"
        session.say(f"{command.name}: report.html was not written ({why}); the run is done. {again}")
    return page


def _run(command: Command[C, P], prepared: P, session: Session[C], part: str | None) -> Mapping[str, Any]:
    if command.spread is not None and part == "--shard":
        return command.spread.share(prepared, session)
    if command.spread is None or (part != "--merge" and session.config.launcher != "ray"):
        return command.run(prepared, session)
    made = _merge(command.spread, prepared, session)
    return {**command.run(prepared, session), "shards": made}


def _made(summary: Mapping[str, Any]) -> dict[str, str]:
    """Return the folder and the hash of the model that came out, as tags; none where none did."""
    made = summary.get("model")
    made = made if isinstance(made, Mapping) else {"path": made, "hash": summary.get("hash")}
    if not made.get("hash"):
        return {}
    of_weights = {} if "from" in made else {"output_model_hash": made["hash"]}  # `iterate` hashes the files
    return {"output_model": made["path"], **of_weights}


def _launcher(command: Command[Any, Any], config: RunConfig, part: str | None) -> Callable[..., int] | None:
    from offline_agent.launch import torchrun

    if command.alone and config.launcher != "local":
        raise ConfigError(f"launcher: got {config.launcher}, allowed: local; one process runs {command.name}")
    if torchrun.count() > 1:
        torchrun.check(command.name, config, torchrun.count())
        from offline_agent.training.state import join

        join()
    if torchrun.rank():
        return torchrun.follow
    if config.launcher != "slurm" and part == "--submit":
        raise ConfigError(f"--submit: got launcher={config.launcher}; it goes with launcher=slurm")
    if command.spread is None and part in ("--merge", "--shard"):
        raise ConfigError(f"{part}: {command.name} is not cut into shards; leave it out")
    if config.launcher == "ray" and part is None:
        from offline_agent.launch import ray

        ray.check(command, config)
    if config.launcher != "slurm" or part in ("--merge", "--shard"):
        return None
    from offline_agent.launch.slurm import launcher as slurm

    return slurm.launcher(command, config, wait=part is None)


def _merge(spread: Spread[Any, Any], prepared: Any, session: Session[Any]) -> Any:
    from offline_agent.launch.shards import merge

    if session.config.launcher == "ray":
        from offline_agent.launch import ray

        ray.run_shards(spread.tasks(prepared), session)
    return merge(spread, prepared, session)
