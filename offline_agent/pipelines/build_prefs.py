"""The main job: tasks, searched; trees, mined; preference pairs and filtered trajectories, written.

Run `python -m offline_agent.pipelines.build_prefs --help` for the keys.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.errors import ConfigError
from offline_agent.pipelines.entry import main
from offline_agent.pipelines.stages.search import audit_first, gather_trees, search, tree_settings
from offline_agent.pipelines.stages.tables import mine
from offline_agent.records import POLICY_CUTS, Action, Context, Step, Task, ToolCall
from offline_agent.report.build_prefs import show
from offline_agent.report.mining import Figures
from offline_agent.runner.components import Parts, facts_of, make_parts
from offline_agent.runner.limits import completed
from offline_agent.runner.next_steps import tell_environment
from offline_agent.runner.pipeline import Command, Facts, Session, Spread
from offline_agent.search.serialization import tree_from_json
from offline_agent.search.tree import Node, SearchTree
from offline_agent.store.manifest import read_manifest
from offline_agent.store.provenance import hash_path
from offline_agent.store.run_directory import read_tree


def prepare(config: BuildPrefsConfig) -> tuple[Parts, Facts]:
    """Make the parts; see `runner.pipeline.Command.prepare`."""
    parts, fault = make_parts(config), ""
    if config.search.roots is not None:
        parts = replace(parts, histories=histories_of(config, parts.tasks))
        if not parts.histories:
            fault = (
                f"search.roots: {config.search.roots} has no failed attempt of two actions or more at any of the "
                f"{len(parts.tasks)} tasks, such as {parts.tasks[0].task_id!r}; are its tasks called otherwise "
                "(log.task), or are there other tasks (tasks.*)?"
            )
    faults = tree_settings(config, parts).budget_faults(len(parts.tasks))
    if faults:
        raise ConfigError(faults)
    facts = facts_of(config, parts, fault=fault)
    if config.search.roots is not None:
        facts.manifest["hashes"]["roots"] = hash_path(Path(config.search.roots) / "trees")
    return parts, facts


def run(parts: Parts, session: Session[BuildPrefsConfig]) -> Mapping[str, Any]:
    """Search, mine, write; see `runner.pipeline.Command.run`."""
    gc.freeze()  # what is loaded by now lives as long as the run: the collector need not walk it again and again
    tell_environment(session, session.config.policy.model)
    if session.config.search.roots is not None:
        session.say(
            f"build_prefs: {len(parts.histories):,} of {len(parts.tasks):,} trees begin in the middle of a failed "
            f"attempt of {session.config.search.roots}, the others at the start of their tasks"
        )
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


_WITH_TREES = ("build_prefs", "import_logs")


def histories_of(config: BuildPrefsConfig, tasks: Sequence[Task]) -> dict[str, tuple[Step, ...]]:
    """Return by task the steps at whose end its tree begins.

    They are the first `search.roots_share` of the actions, at least one and not all, of the first failed attempt at
    the task that has two actions or more and that an environment can be given: no turn with several calls, and none
    without a call before the last.

    Raises:
        ConfigError: `search.roots` is no finished run with trees, or another key does not go with it: every fault.
    """
    faults, run = [], Path(config.search.roots or "")
    if not (run / "manifest.json").is_file():
        raise ConfigError(f"search.roots: {run} is no run directory: it has no manifest.json")
    manifest = read_manifest(run)
    if manifest.get("command") not in _WITH_TREES or manifest.get("status") != "done":
        faults.append(
            f"search.roots: {run} is a run of {manifest.get('command')} (status {manifest.get('status')}); wanted is a "
            f"finished run of {' or '.join(_WITH_TREES)}"
        )
    if set(config.pairs.kinds) - {"step", "trajectory"}:
        faults.append(
            "pairs: hindsight and minimal pairs replay whole episodes, and these trees begin in the middle of one; "
            "give pairs.kinds=[step,trajectory]"
        )
    if faults:
        raise ConfigError(faults)
    wanted, found = {task.task_id for task in tasks}, {}
    for file in sorted((run / "trees").glob("*.json.gz")):
        tree = tree_from_json(read_tree(file))
        id = tree.task.task_id
        if id in wanted and id not in found and (history := _history(tree, config.search.roots_share)):
            found[id] = history
    return found


def _history(tree: SearchTree, share: float) -> tuple[Step, ...]:
    """Return the first steps of a tree's first failed attempt; none where it has none that can be replayed."""
    for end in tree.terminals():
        if end.quarantined is None and _failed(end):
            nodes = end.context.lineage()[1:]
            count = min(max(1, int(share * len(nodes))), len(nodes) - 1)
            if count > 0 and all(map(_playable, nodes[:count])):
                return tuple(map(_step, nodes[:count]))
    return ()


def _failed(end: Node) -> bool:
    return end.cut in POLICY_CUTS or (end.cut is None and end.verdict is not None and end.verdict.success is False)


def _playable(node: Context) -> bool:
    """Return whether a turn can be taken in an environment, which goes on after it."""
    assert node.action is not None  # it is not the start
    calls = node.action.message().get("tool_calls", ())
    return len(calls) == 1 or (node.action.recorded is None and node.action.fault is not None)


def _step(node: Context) -> Step:
    """Return a turn as one of the prompt: without the ids and log-probabilities of whoever sampled it."""
    action = node.action
    assert action is not None  # it is not the start
    message = action.recorded
    if message is None:
        return Step(replace(action, token_ids=None, logps=None), "", node.observation, node.role)
    function, said = message["tool_calls"][0]["function"], str(message["content"])
    observation = "\n".join(str(answer["content"]) for answer in node.recorded or ())
    return Step(Action(said, said, ToolCall(function["name"], function["arguments"])), "", observation, node.role)


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
