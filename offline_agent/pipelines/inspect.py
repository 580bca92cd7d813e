"""A run on the terminal: `python -m offline_agent.pipelines.inspect RUN_DIR [tree=TASK | pair=N | ...]`.

Without a key: what the run is, what it holds, and how to look at it. The output is plain text, for a pipe as well.

  tree=TASK [node=N]    a search tree, a node a line; or one node: conversation, proposals, verdict, pairs
  pair=N                a pair; kind=KIND and task=TASK restrict them
  trajectory=TASK       what was done at a task
  full=true             texts whole instead of a line each

report.html in the run directory shows the same in a browser.

Exit status: 0 shown, 1 a file cannot be read, 2 the request was wrong.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from offline_agent.errors import ConfigError, DataError, did_you_mean
from offline_agent.report.html import pairs as page_pairs
from offline_agent.report.html import tree_view
from offline_agent.report.html.page import closing
from offline_agent.report.html.reading import RunFiles
from offline_agent.report.html.text import number, pretty, read, turn
from offline_agent.runner.arguments import FLAG, TEXT, WHOLE, read_keys, tool
from offline_agent.runner.next_steps import command
from offline_agent.runner.terminal import say, show
from offline_agent.store.run_directory import tree_path

_TABLES = ("attempts", "trajectories", "trajectories_against", "filtered", "preferences", "multiturn_preferences")


class Shortener:
    """Shortens texts to one line, or leaves them whole.

    Args:
        full: Whether they are left whole.
        width: Most characters of a line.
    """

    def __init__(self, full: bool, width: int = 120) -> None:
        self.full, self.width = full, width

    def text(self, text: str, indent: str = "") -> str:
        """Return a text; a whole one goes on in the lines below, indented."""
        if self.full:
            return text.replace("\n", "\n" + indent)
        flat = " ".join(text.split())
        most = max(20, self.width - len(indent))
        return flat if len(flat) <= most else f"{flat[:most]} …"

    def turns(self, messages: Iterable[Mapping[str, Any]], indent: str = "  ") -> Iterator[str]:
        """Return the lines of messages."""
        return (self.shown(turn(message), indent) for message in messages)

    def shown(self, one: Mapping[str, str], indent: str = "  ") -> str:
        """Return a message as the page shows it (`turn`)."""
        who = f"{indent}[{one['role']}{' ' + one['name'] if one['name'] else ''}] "
        said = ("\n" if self.full else " → ").join(part for part in (one["text"], one["calls"]) if part)
        return who + self.text(said, " " * len(who))


def overview(run: RunFiles) -> Iterator[str]:
    """Yield what a run is, its figures, what it holds, and how to look at it."""
    manifest = run.manifest
    yield f"{run.path}: {run.command}, {manifest.get('status')}, {manifest.get('started')}"
    yield from closing(run).splitlines() or ["It has no summary yet; give its command again to go on."]
    counts = {name: len(run.light(name, ("task_id",))) for name in _TABLES}
    held = [f"{name} {count:,}" for name, count in counts.items() if count]
    held += [f"trees {len(list((run.path / 'trees').glob('*.json.gz'))):,}"] if (run.path / "trees").is_dir() else []
    yield f"holds: {', '.join(held) or 'no rows'}"
    for kind, rule, count, _ in run.reasons()[:5]:
        yield f"refused: {count:,} {kind}: {rule}"
    ways = [f"tree={run.tree_ids()[0]}"] if run.tree_ids() else []
    ways += ["pair=0"] if run.pairs else []
    ways += [f"trajectory={run.trajectories[0]['task_id']}"] if run.trajectories else []
    yield from (f"  {command('inspect', [str(run.path), way])}" for way in ways)


def tree(run: RunFiles, task: str, node: int | None, short: Shortener) -> Iterator[str]:
    """Yield a tree as lines, a node each; or one node with all that is known of it.

    Raises:
        ConfigError: There is no such tree or node.
    """
    there_is = tree_path(run.path, task).exists()
    data = run.tree(task) if there_is else None
    if there_is and data is None:
        raise DataError(run.faults[-1])
    if data is None:
        there = run.tree_ids()
        raise ConfigError(f"tree: got {task!r}, allowed: {_some(there)}.{did_you_mean(task, there)}")
    view = tree_view.view(data, 0, run.pairs_at(), {})
    if node is not None:
        if node not in view["panels"]:
            raise ConfigError(f"node: got {node}, allowed: 0 to {max(view['panels'])}")
        yield from _node(view, node, short)
        return
    yield f"{view['id']}: {view['words']}; ended: {view['stopped']}"
    if view["quarantined"]:
        yield f"in quarantine: {view['quarantined']}"
    depth = 0
    for word, name in view["outline"]:
        if word == "close":
            depth -= 1
            continue
        panel = view["panels"][name]
        shown = dict(panel["figures"])
        value = shown.get("Q, all", shown.get("value"))
        end = "" if panel["state"] == "open" else f"  {panel['ends']}"
        gave = f"  gave pairs: {len(panel['pairs'])}" if panel["pairs"] else ""
        label = short.text(panel["label"], "  " * depth + " " * 30)
        prior = f" prior {shown['prior']}" if "prior" in shown else ""
        yield f"{'  ' * depth}{name} {label}  [visits {shown['visits']} Q {value}{prior}]{end}{gave}"
        depth += 1


def _node(view: Mapping[str, Any], node: int, short: Shortener) -> Iterator[str]:
    way, at = [], node
    while at is not None:
        way.append(at)
        at = view["panels"][at]["parent"]
    panel = view["panels"][node]
    yield f"{view['id']}, node {node}: {panel['ends']}"
    yield from (short.shown(said) for place in reversed(way) for said in view["panels"][place]["turns"])
    yield "figures: " + "; ".join(f"{name}: {value}" for name, value in panel["figures"])
    for proposal in panel["proposals"]:
        where = "not executed" if proposal["child"] is None else f"node {proposal['child']}"
        label = short.text(proposal["label"], " " * 60)
        yield (
            f"proposal: {label}  [prior {proposal['prior']}, visits {proposal['visits']}, Q {proposal['value']}, "
            f"verifier {proposal['verifier']}, {where}]"
        )
    if panel["verdict"]:
        verdict = panel["verdict"]
        yield f"verdict: {verdict['by']} gives {verdict['score']}{'; ' + verdict['error'] if verdict['error'] else ''}"
        yield f"  {short.text(verdict['evidence'], '  ')}"
    yield from (f"pair: {line}" for line in panel["pairs"])


def pair(run: RunFiles, at: int, kind: str | None, task: str | None, short: Shortener) -> Iterator[str]:
    """Yield one pair: history, both sides, values, verdicts, provenance.

    Args:
        run: The run.
        at: Its number among those that fit, from 0.
        kind, task: Of the pairs that are counted; None = all.
        short: Shortens texts.

    Raises:
        ConfigError: There is no such pair.
    """
    fitting = [row for row in run.pairs if kind in (None, row["kind"]) and task in (None, row["task_id"])]
    if at >= len(fitting):
        allowed = f"0 to {len(fitting) - 1}" if fitting else "none: the run has no such pair"
        raise ConfigError(f"pair: got {at}, allowed: {allowed}")
    (row,) = run.whole([fitting[at]["at"]])
    view = page_pairs.view(row, at)
    yield f"pair {at} of {len(fitting):,}: {view['kind']}, task {view['task']}, {view['provenance'][0]}"
    sure = f"P(first action better) {view['confidence']}, P(rest better) {view['rest']}"
    yield f"margin {view['margin']}, {sure}, weight {view['weight']}"
    yield f"history, {len(row['prompt'])} messages:"
    yield from short.turns(row["prompt"] if short.full else row["prompt"][-2:])
    for side in view["sides"]:
        verdict = f"; {side['verdict']}" if side["verdict"] else ""
        yield f"{side['name']}: value {side['value']} of {side['visits']} rollouts{verdict}"
        yield from short.turns(row[side["name"]])
        if side["evidence"]:
            yield f"  evidence: {short.text(side['evidence'], '  ')}"
    if row["chosen_mask"] is not None:
        masks = {side: row[f"{side}_mask"] for side in ("chosen", "rejected")}
        told = ", ".join(f"{side} {sum(mask)} of {len(mask)}" for side, mask in masks.items())
        yield f"tokens trained on: {told}"


def trajectories(run: RunFiles, task: str, short: Shortener) -> Iterator[str]:
    """Yield the trajectories of a task; raises ConfigError where it has none."""
    found = [row for row in run.trajectories if row["task_id"] == task]
    if not found:
        there = list(dict.fromkeys(row["task_id"] for row in run.trajectories))
        raise ConfigError(f"trajectory: got {task!r}, allowed: {_some(there)}.{did_you_mean(task, there)}")
    for at, row in enumerate(run.whole([one["at"] for one in found])):
        end = "solved" if row["success"] else "unjudged" if row["success"] is None else "not solved"
        told = f"{row['origin']}, {row['steps']} steps, {end}, reward {number(row['reward'])}"
        yield f"trajectory {at} of {len(found)}: {told}"
        yield from short.turns(row["messages"])
        if row["verdict"]:
            yield f"  verdict: {short.text(pretty(read(row['verdict'])), '  ')}"


def _some(names: Iterable[str], most: int = 8) -> str:
    told = list(names)
    return ", ".join(told[:most]) + (f" and {len(told) - most} more" if len(told) > most else "") or "none"


_VIEWS = ("tree", "pair", "trajectory")
_KEYS: dict[str, str | tuple[str, ...]] = {
    "tree": TEXT, "pair": WHOLE, "trajectory": TEXT, "node": WHOLE,
    "kind": ("step", "trajectory", "hindsight", "minimal"), "task": TEXT, "full": FLAG,
}  # fmt: skip
_OF = {"node": "tree", "kind": "pair", "task": "pair"}


def main(arguments: Sequence[str]) -> int:
    """Print a part of a run; returns the exit status."""
    return tool("inspect", __doc__ or "", arguments, _show)


def _show(arguments: Sequence[str]) -> None:
    (run_dir,), keys = read_keys(arguments, _KEYS)
    if len(views := [name for name in _VIEWS if name in keys]) > 1:
        raise ConfigError(f"give one of {', '.join(_VIEWS)}, got {', '.join(views)}")
    for name, view in _OF.items():
        if name in keys and view not in keys:
            raise ConfigError(f"{name}: it is of {view}=…, which is not given")
    for line in _lines(run_dir, keys):
        show(line)


def _lines(run_dir: Path, keys: Mapping[str, Any]) -> Iterator[str]:
    run = RunFiles(run_dir)
    run.manifest  # noqa: B018 - raises where this is no run
    short = Shortener(keys.get("full") == "true", shutil.get_terminal_size((120, 24)).columns)
    if "tree" in keys:
        yield from tree(run, keys["tree"], keys.get("node"), short)
    elif "pair" in keys:
        yield from pair(run, keys["pair"], keys.get("kind"), keys.get("task"), short)
    elif "trajectory" in keys:
        yield from trajectories(run, keys["trajectory"], short)
    else:
        yield from overview(run)
    for fault in run.faults:
        say(f"inspect: left out: {fault}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
