"""The main job: tasks, searched; trees, mined; preference pairs and filtered trajectories, written.

Run `python -m offline_agent.pipelines.build_prefs --help` for the keys.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from typing import Any

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.errors import ConfigError
from offline_agent.pipelines.entry import main
from offline_agent.pipelines.stages.search import audit_first, gather_trees, search, tree_settings
from offline_agent.pipelines.stages.tables import mine
from offline_agent.report.build_prefs import show
from offline_agent.report.mining import Figures
from offline_agent.runner.components import Parts, completed, facts_of, make_parts
from offline_agent.runner.pipeline import Command, Facts, Session, Spread


def prepare(config: BuildPrefsConfig) -> tuple[Parts, Facts]:
    """Make the parts; see `runner.pipeline.Command.prepare`."""
    parts = make_parts(config)
    faults = tree_settings(config, parts).budget_faults(len(parts.tasks))
    if faults:
        raise ConfigError(faults)
    return parts, facts_of(config, parts)


def run(parts: Parts, session: Session[BuildPrefsConfig]) -> Mapping[str, Any]:
    """Search, mine, write; see `runner.pipeline.Command.run`."""
    gc.freeze()  # what is loaded by now lives as long as the run: the collector need not walk it again and again
    if session.config.search.repeated_states == "close" and not parts.spec.fingerprints:
        session.say(f"build_prefs: search.repeated_states=close does nothing: {parts.spec.name} has no `fingerprint`")
    figures = Figures(session.run.path, len(parts.tasks), session.run.resumed)
    parts.spec.keep_in(session.run.path)
    engine = parts.policy.engine()
    try:
        search(parts, session, engine, figures)
        audit_first(session, parts.spec, parts.tasks)  # of a run whose shards searched; otherwise `search` did it
        mine(parts, session, figures)
    finally:
        engine.close()
        parts.policy.close()
    return figures.summary(parts, session.config)


def share(parts: Parts, session: Session[BuildPrefsConfig]) -> Mapping[str, Any]:
    """Search alone, for a run that mines the trees of all its shards; see `runner.pipeline.Spread.share`."""
    gc.freeze()
    figures = Figures(session.run.path, len(parts.tasks), session.run.resumed)
    parts.spec.keep_in(session.run.path)
    engine = parts.policy.engine()
    try:
        search(parts, session, engine, figures)
    finally:
        engine.close()
        parts.policy.close()
    return {"tasks": len(parts.tasks), "seconds": figures.seconds, "this_session": figures.session}


COMMAND: Command[BuildPrefsConfig, Parts] = Command(
    name="build_prefs",
    config=BuildPrefsConfig,
    prepare=prepare,
    run=run,
    show=show,
    complete=completed,
    spread=Spread(tasks=lambda parts: len(parts.tasks), share=share, gather=gather_trees),
)

if __name__ == "__main__":
    sys.exit(main(COMMAND))
