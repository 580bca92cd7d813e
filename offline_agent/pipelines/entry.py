"""Entry point of every command: the runner with the launchers and the planner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.errors import ConfigError
from offline_agent.runner import main as runner
from offline_agent.runner.pipeline import C, Command, P, Session, Spread

if TYPE_CHECKING:
    from offline_agent.config.build_prefs import RunConfig


def main(command: Command[C, P], argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status; see `runner.main.main`."""
    return runner.main(command, _Extensions(), argv)


class _Extensions:
    """Launchers and planner, each imported when it is used."""

    def launcher(
        self, command: Command[Any, Any], config: RunConfig, part: str | None
    ) -> Callable[..., int] | None:
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

            return ray.launcher(command, config)
        if config.launcher != "slurm" or part in ("--merge", "--shard"):
            return None
        from offline_agent.launch.slurm import launcher as slurm

        return slurm.launcher(command, config, wait=part is None)

    def merge(self, spread: Spread[Any, Any], prepared: Any, session: Session[Any]) -> Any:
        from offline_agent.launch.shards import merge

        if session.config.launcher == "ray":
            from offline_agent.launch import ray

            ray.run_shards(spread.tasks(prepared), session)
        return merge(spread, prepared, session)

    def report(self, run_dir: Path) -> Path:
        from offline_agent.report.html.page import write

        return write(run_dir).path

    def plan(self, name: str, config: RunConfig, say: Callable[[str], None]) -> Any:
        from offline_agent.launch.plan import plan

        return plan(name, config, say)
