"""Roots of trees in the middle of kept attempts (`search.roots`): which history a task's search goes on from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from offline_agent.config.build_prefs import BuildPrefsConfig
from offline_agent.errors import ConfigError
from offline_agent.records import POLICY_CUTS, Action, Context, Step, Task, ToolCall
from offline_agent.search.serialization import tree_from_json
from offline_agent.search.tree import Node, SearchTree
from offline_agent.store.manifest import read_manifest
from offline_agent.store.run_directory import read_tree

_COMMANDS = ("build_prefs", "import_logs")


def histories_of(config: BuildPrefsConfig, tasks: Sequence[Task]) -> dict[str, tuple[Step, ...]]:
    """Return by task the steps at whose end its tree begins.

    They are the first `search.roots_share` of the actions, at least one and not all, of the first failed attempt at
    the task that has two actions or more and that an environment can be given: no turn with several calls, and none
    without a call before the last.

    Raises:
        ConfigError: `search.roots` is no finished run with trees, no task of it has such an attempt, or another key
            does not go with it: every fault.
    """
    faults, run = [], Path(config.search.roots or "")
    if not (run / "manifest.json").is_file():
        raise ConfigError(f"search.roots: {run} is no run directory: it has no manifest.json")
    manifest = read_manifest(run)
    if manifest.get("command") not in _COMMANDS or manifest.get("status") != "done":
        faults.append(
            f"search.roots: {run} is a run of {manifest.get('command')} (status {manifest.get('status')}); wanted is a "
            f"finished run of {' or '.join(_COMMANDS)}"
        )
    if config.launcher == "ray":
        faults.append("launcher: got ray, allowed with search.roots: local, slurm")
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
    if not found:
        raise ConfigError(
            f"search.roots: {run} has no failed attempt of two actions or more at any of the {len(wanted)} tasks, "
            f"such as {min(wanted)!r}; are its tasks called otherwise (log.task), or are there other tasks (tasks.*)?"
        )
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
