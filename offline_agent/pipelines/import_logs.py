"""Logs of agents as a run: episodes, linked into trees by equal prefixes; preference pairs and verified trajectories.

Run `python -m offline_agent.pipelines.import_logs --help` for the keys; docs/logs.md has the formats and the rules.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from offline_agent import catalog
from offline_agent.config.import_logs import ImportLogsConfig
from offline_agent.errors import ConfigError, DataError
from offline_agent.formats import FORMATS, Format, chosen, recognise, records
from offline_agent.formats.agents.harbor import once
from offline_agent.formats.inverse import Observations
from offline_agent.judges.judge import Judge, make_judge
from offline_agent.logs import files
from offline_agent.logs.coding import ruled
from offline_agent.logs.episode import Fields, LoggedEpisode
from offline_agent.logs.labels import Labels
from offline_agent.logs.linking import Rules, link
from offline_agent.logs.replays import Replays
from offline_agent.logs.repository import Repository
from offline_agent.logs.sessions import Outcomes
from offline_agent.logs.tokens import TokenCheck
from offline_agent.pipelines.entry import main
from offline_agent.pipelines.stages.tables import Mined, RefusalLog, write_mined
from offline_agent.preferences.mining import Miner, rows_of
from offline_agent.preferences.records import Refusal
from offline_agent.preferences.settings import FilteredSection
from offline_agent.rendering.renderer import Renderer
from offline_agent.report.import_logs import ImportFigures, show
from offline_agent.report.mining import Figures, figures_of
from offline_agent.runner.components import load_environment
from offline_agent.runner.pipeline import Command, Facts, Session
from offline_agent.search.serialization import tree_to_json
from offline_agent.search.tree import SearchTree
from offline_agent.store.provenance import hash_json, hash_path
from offline_agent.store.scratch_files import TextFile

_SAMPLE = 20  # records of a file that are looked at before anything is written


@dataclass(frozen=True)
class Inputs:
    """The logs and who judges them.

    Attributes:
        paths: The files, in order.
        formats: The formats that are tried, by name.
        fields: The fields that tell of an episode.
        judge: None = the logs alone tell outcomes.
        replays: Replays episodes where their environment is at hand, and judges those without an outcome; None = it is
            not.
        renderer: Of the tokenizer whose ids the logs have; None = ids are not read.
        rules: Read outcomes of coding sessions off their logs, and replay them.
        labels: Names the calls of logs without actions; None = the logs have them.
    """

    paths: list[Path]
    formats: Mapping[str, Format]
    fields: Fields
    judge: Judge | None
    replays: Replays | None
    renderer: Renderer | None
    rules: Rules
    labels: Labels | None


def prepare(config: ImportLogsConfig) -> tuple[Inputs, Facts]:
    """Find the logs and look at their first records; see `runner.pipeline.Command.prepare`."""
    if not config.source:
        raise ConfigError("source: nothing to read; name files or folders of logs, source=PATH")
    found = files.find(config.source)
    paths = once(found)
    judge = make_judge(config.judge.name, dict(config.judge.model_extra or {}))
    labels = _labels(config)
    formats = chosen(config.format) if labels is None else {Observations.NAME: Observations(labels)}
    _check_format(paths, formats)
    fields = Fields(**dict(config.log), split=config.split)
    replays = _replays(config, judge)
    hashes = {"logs": hash_json({str(path): hash_path(path) for path in found})}
    if labels is not None:
        hashes["labels"] = labels.model_hash
    renderer = None
    if config.tokenizer is not None:
        renderer = Renderer.load(config.tokenizer, config.chat_template)
        hashes |= {"tokenizer": renderer.tokenizer_hash, "chat_template": renderer.template_hash}
    elif config.chat_template is not None:
        raise ConfigError("chat_template: it goes with tokenizer=PATH, whose template it replaces")
    facts = {"hashes": hashes, "judge": None if judge is None else judge.identity}
    if replays is not None:
        facts["env"] = replays.identity
    repository = None if config.replay.repository is None else Repository(config.replay)
    rules = partial(ruled, rules=fields.rules, replay=repository)
    return Inputs(paths, formats, fields, judge, replays, renderer, rules, labels), Facts(facts)


def _labels(config: ImportLogsConfig) -> Labels | None:
    """Return what names the calls; None where no model is named.

    Raises:
        ConfigError: The model cannot be loaded, or a key beside it has no meaning.
    """
    label = config.label
    if label.held_out is not None and (label.model is None or not Path(label.held_out).is_file()):
        raise ConfigError(f"label.held_out: got {label.held_out}, allowed: a file, with label.model=MODEL beside it")
    if label.model is None:
        return None
    if config.format != "auto":
        raise ConfigError(f"format: got {config.format}, allowed with label.model: auto, since it reads observations")
    try:
        return Labels(catalog.resolve("policy", "hf")(label.model), label.least, label.held_out)
    except ConfigError as error:
        raise ConfigError([f"label.model: {fault.removeprefix('policy.model: ')}" for fault in error.faults]) from error


def _replays(config: ImportLogsConfig, judge: Judge | None) -> Replays | None:
    """Return what replays episodes; None where no environment is named."""
    if config.env.name == "none":
        return None
    limits = config.limits
    spec = load_environment(config.env, judge, max_observation_chars=limits.max_observation_chars)
    return Replays(spec, limits.step_seconds, limits.reset_seconds)


def _check_format(paths: list[Path], formats: Mapping[str, Format]) -> None:
    """Raise ConfigError where no file begins with records that can be read."""
    seen = []
    for path in paths:
        for _, record in zip(range(_SAMPLE), _records(path), strict=False):
            if record.damage is None and recognise(record.value, formats) is not None:
                return
            seen.append(f"{record.name}: {record.damage or _unknown(record.value, formats)}")
    told = "\n  ".join(seen[:3]) or "all files are empty, or hold nothing that a model was asked or said"
    allowed = ", ".join(formats)
    raise ConfigError(f"source: no record of {len(paths)} files can be read; allowed: {allowed}:\n  {told}")


def _records(path: Path) -> Iterator[files.Record]:
    """Yield the records of a file; one that cannot be opened is one damaged record."""
    try:
        yield from records(path)
    except DataError as error:
        yield files.Record(str(path), None, str(error))


def _unknown(value: Any, formats: Mapping[str, Format]) -> str:
    request = value.get("request", value) if isinstance(value, dict) else None
    if isinstance(request, dict) and request.get("messages") == []:
        return "messages: the list is empty"
    what = f"an object with {', '.join(value)}" if isinstance(value, dict) else f"a {type(value).__name__}"
    wanted = "none of the formats" if formats is FORMATS else f"not {next(iter(formats))}"
    return f"{what:.200}; it is {wanted}; name a function of yours that reads it, format=module:function"


def run(inputs: Inputs, session: Session[ImportLogsConfig]) -> Mapping[str, Any]:
    """Read, link, mine, write; see `runner.pipeline.Command.run`."""
    figures = ImportFigures(Figures(session.run.path, 0, session.run.resumed))
    if inputs.judge is not None:
        inputs.judge.keep_in(session.run.path / "judge")
    refused = RefusalLog(session.run, figures.mined)
    if inputs.labels is not None:
        figures.labels = {"by": inputs.labels.model_hash, "held_out": inputs.labels.measured()}
    with closing(TextFile(session.run.path, "episodes")) as kept:
        groups, outcomes = _read(inputs, session, figures, refused, kept)
        session.progress.start(len(groups), "linking and building pairs")
        certain = inputs.judge is None or inputs.judge.deterministic
        filtered = FilteredSection(per_task=session.config.filtered.per_task)
        with closing(Miner(None, session.config.pairs, filtered, certain=certain)) as miner:
            trees = _trees(groups, kept, inputs, outcomes, session, figures, refused)
            mined = _rows(trees, miner, inputs.renderer, figures)
            write_mined(session, mined, figures.mined, (inputs.renderer, None))
    if inputs.replays is not None:
        figures.replayed(inputs.replays)
        inputs.replays.close()
    return figures.summary(session.config)


def _read(
    inputs: Inputs, session: Session[ImportLogsConfig], figures: ImportFigures, refused: RefusalLog, kept: TextFile
) -> tuple[dict[str, list[int]], Outcomes]:
    """Keep every episode in a scratch file; return the numbers of those of each task, in the order of the logs, and the
    outcomes that records of their own tell.
    """
    places: list[tuple[str | None, str]] = []  # session and task of each episode
    outcomes = Outcomes(inputs.fields)
    session.progress.start(len(inputs.paths), "reading")
    for number, path in enumerate(inputs.paths, 1):
        for record in _records(path):
            figures.counts["records"] += 1
            session.progress.update(number - 1, records=f"{figures.counts['records']:,}", episodes=len(kept))
            if record.damage is not None:
                refused.append(Refusal("log", record.name, record.damage))
                continue
            found = recognise(record.value, inputs.formats)
            if found is None and _tells_outcome(record, outcomes, refused):
                continue
            if found is None:
                refused.append(Refusal("log", record.name, _unknown(record.value, inputs.formats)))
                continue
            if found not in figures.formats:
                session.say(f"import_logs: {path}: {found[0]}, because it has {found[1]}")
            figures.formats[found] += 1
            before = len(kept), figures.mined.refusals["log"]
            for episode, text in _episodes(record, inputs.formats[found[0]], inputs.fields, refused):
                places.append((episode.session, episode.group))
                _note(episode, inputs, session, figures)
                kept.add(text)
            if before == (len(kept), figures.mined.refusals["log"]):
                figures.counts["without_conversation"] += 1
        session.progress.update(number, episodes=len(kept))
    figures.unmatched = list(outcomes.unmatched({session for session, _ in places}))
    for refusal in figures.unmatched:
        refused.append(refusal)
    figures.counts["episodes_read"] = len(kept)
    figures.counts["outcomes_apart"] = len(outcomes) - len({one.facts["session"] for one in figures.unmatched})
    groups: dict[str, list[int]] = {}
    for number, (name, group) in enumerate(places):
        groups.setdefault(outcomes.task(name) or group, []).append(number)
    return groups, outcomes


def _note(episode: LoggedEpisode, inputs: Inputs, session: Session[ImportLogsConfig], figures: ImportFigures) -> None:
    """Count, and name in the quarantine, what was not read of an episode that is kept, or read by a rule."""
    if episode.unread is not None and inputs.judge is None and inputs.replays is None:
        figures.counts["unread_outcomes"] += 1
        why = "no number and no truth value; the episode is kept without an outcome"
        session.run.quarantine("outcome", episode.name, f"{episode.unread}, {why}")
    figures.counts["labelled"] += episode.turns if episode.labels else 0
    if left := episode.labels.get("left_out"):
        figures.counts["labels_cut"] += 1
        why = f"cut before call {episode.turns + 1}, which is not sure enough; {left} observations are left out"
        session.run.quarantine("label", episode.name, why, **episode.labels)
    called = any(message.get("tool_calls") for message in episode.messages)
    figures.counts["without_tools"] += called and not episode.tools
    if episode.left is not None:
        figures.counts["left_out"] += 1
        session.run.quarantine("left_out", episode.name, f"left out: {episode.left}; the episode is kept")
    if episode.by_place:
        figures.counts["results_by_place"] += episode.by_place
        why = "results have no tool_call_id: each is taken for the first open call; the episode is kept"
        session.run.quarantine("result", episode.name, f"{episode.by_place} {why}")


def _tells_outcome(record: files.Record, outcomes: Outcomes, refused: RefusalLog) -> bool:
    try:
        return outcomes.take(record.value, record.name)
    except (DataError, TypeError, ValueError) as error:  # a table's values may be what JSON lacks
        refused.append(Refusal("log", record.name, str(error)))
        return True


def _episodes(
    record: files.Record, format: Format, fields: Fields, refused: RefusalLog
) -> Iterator[tuple[LoggedEpisode, str]]:
    """Yield the episodes of a record, each with its JSON text; all of them or none."""
    try:
        found = tuple(format.read(record.value, record.name, fields))
        yield from tuple((episode, json.dumps(episode.to_json(), allow_nan=False)) for episode in found)
    except DataError as error:
        refused.append(Refusal("log", record.name, str(error)))
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        refused.append(Refusal("log", record.name, f"no {format.NAME} record ({type(error).__name__}: {error})"))


def _trees(
    groups: Mapping[str, list[int]],
    kept: TextFile,
    inputs: Inputs,
    outcomes: Outcomes,
    session: Session[ImportLogsConfig],
    figures: ImportFigures,
    refused: RefusalLog,
) -> Iterator[SearchTree]:
    """Yield the trees of each task, written to the run directory."""
    tokens = None if inputs.renderer is None else TokenCheck(inputs.renderer)
    for task, numbers in groups.items():
        episodes = [LoggedEpisode.from_json(json.loads(kept[number])) for number in numbers]
        episodes = [one if one.group == task else replace(one, task=task) for one in episodes]
        judge = inputs.replays or inputs.judge  # with an environment, the judge is the one of its episodes
        linked = link(episodes, judge, tokens, outcomes if len(outcomes) else None, inputs.rules)
        for refusal in linked.refusals:
            refused.append(refusal)
        figures.linked(linked)
        for tree in linked.trees:
            if inputs.replays is not None:
                inputs.replays.confirm(tree)
            session.run.write_tree(tree.tree_id, tree_to_json(tree))
            yield tree


def _rows(
    trees: Iterator[SearchTree], miner: Miner, renderer: Renderer | None, figures: ImportFigures
) -> Iterator[Mined]:
    """Yield what is mined of each tree."""
    for tree in trees:
        found = rows_of(miner.mine(tree), renderer, None)
        figures.rows(found.trajectories)
        yield figures_of(tree), found


COMMAND: Command[ImportLogsConfig, Inputs] = Command(
    name="import_logs", config=ImportLogsConfig, prepare=prepare, run=run, show=show, alone=True
)

if __name__ == "__main__":
    sys.exit(main(COMMAND))
