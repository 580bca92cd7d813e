"""Other verdicts for a run's trajectories, and its pairs made anew: a run of its own beside the one that is judged.

Run `python -m offline_agent.pipelines.rejudge --help` for the keys; docs/logs.md says what it can and cannot do.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offline_agent.config.judging import RejudgeConfig
from offline_agent.errors import ConfigError, DataError
from offline_agent.judges.judge import ENVIRONMENT, Judge, make_judge
from offline_agent.pipelines.entry import main
from offline_agent.pipelines.stages.tables import Mined, RefusalLog, write_mined
from offline_agent.policies.base import DEFAULT_MODEL
from offline_agent.preferences.mining import Miner, rows_of
from offline_agent.preferences.records import Refusal
from offline_agent.preferences.revaluation import Revalued, revalue
from offline_agent.preferences.settings import FilteredSection
from offline_agent.rendering.renderer import Renderer
from offline_agent.report.judging import RejudgeFigures, show_rejudge
from offline_agent.report.mining import Figures, figures_of
from offline_agent.runner.pipeline import Command, Facts, Session
from offline_agent.search.serialization import tree_from_json, tree_to_json
from offline_agent.search.tree import SearchTree
from offline_agent.store.files import safe_name
from offline_agent.store.manifest import read_manifest
from offline_agent.store.provenance import hash_json, hash_path
from offline_agent.store.run_directory import read_tree, trees_in_quarantine

_COMMANDS = ("build_prefs", "import_logs")
_AHEAD = 4  # tasks for each worker that wait for those before them


@dataclass(frozen=True)
class Inputs:
    """The run that is judged, and the judge.

    Attributes:
        source: Its directory.
        trees: The files of its trees, in name order.
        judge: The judge.
        renderer: Of its token ids; None = it has none.
        model: Hash of the model that sampled them; None where it is not known.
        values: Arguments of `revalue` that say how the run values an end.
    """

    source: Path
    trees: Sequence[Path]
    judge: Judge
    renderer: Renderer | None
    model: str | None
    values: Mapping[str, Any]


def place(config: RejudgeConfig) -> RejudgeConfig:
    """Return the configuration with the new run as `run_dir`; see `runner.pipeline.Command.complete`.

    Where `run_dir` is a run that this command wrote, that run goes on. Where `source` is named, nothing is to be done.
    """
    if config.source and config.run_dir:
        return config
    if not config.run_dir:
        raise ConfigError("run_dir: name the run whose trajectories are judged, run_dir=RUN_DIR")
    named = Path(config.run_dir)
    manifest = _manifest(named)
    if manifest.get("command") == "rejudge":
        return config.model_copy(update={"source": manifest["config"]["source"]})
    judge = make_judge(config.judge.name, dict(config.judge.model_extra or {}))
    if judge is None:
        raise ConfigError(f"judge: got {ENVIRONMENT}, whose verdicts the run has; name another judge, judge=NAME")
    name = f"{judge.name}-{judge.version}"
    if judge.args:
        name += f"-{hash_json(judge.args)[:8]}"
    out = Path(config.out) if config.out else named / "verdicts" / safe_name(name)
    return config.model_copy(update={"source": str(named), "run_dir": str(out)})


def _manifest(run: Path) -> Mapping[str, Any]:
    if not (run / "manifest.json").is_file():
        raise ConfigError(f"run_dir: {run} is no run directory: it has no manifest.json")
    return read_manifest(run)


def prepare(config: RejudgeConfig) -> tuple[Inputs, Facts]:
    """Check the run and the judge; see `runner.pipeline.Command.prepare`."""
    source = Path(config.source or "")
    manifest, faults = _manifest(source), []
    command, status, told = manifest.get("command"), manifest.get("status"), manifest.get("config", {})
    if command not in _COMMANDS:
        faults.append(f"run_dir: {source} is a run of {command}; judged are trees, those of {' and '.join(_COMMANDS)}")
    elif status != "done":
        faults.append(f"run_dir: {source} is unfinished (status {status!r}); give its command again first")
    elif told.get("reward"):
        faults.append(
            f"run_dir: {source} backed up a composite reward (reward.*), which another verdict cannot be put into; "
            "give build_prefs again with judge=NAME and another run_dir"
        )
    trees = sorted((source / "trees").glob("*.json.gz"))
    if not faults and not trees:
        faults.append(f"run_dir: {source} has no trees")
    judge = make_judge(config.judge.name, dict(config.judge.model_extra or {}))
    if faults or judge is None:
        raise ConfigError(faults or f"judge: got {ENVIRONMENT}; name another judge, judge=NAME")
    judge.check(tree_from_json(read_tree(trees[0])).task)
    renderer = _renderer(config, manifest)
    hashes: dict[str, Any] = {"trees": hash_path(source / "trees")}
    if renderer is not None:
        hashes |= {"tokenizer": renderer.tokenizer_hash, "chat_template": renderer.template_hash}
    search = told.get("search", {})
    values = {
        "by_success": search.get("value") == "success", "gamma": float(search.get("gamma", 1.0)),
        "independent": command == "import_logs" or search.get("algorithm") == "best_of_n",
    }  # fmt: skip
    model = manifest.get("hashes", {}).get("model")
    kept = {name: manifest[name] for name in ("env", "policy") if name in manifest}
    facts = {**kept, "hashes": hashes, "judge": judge.identity, "judged_run": manifest.get("run_id")}
    return Inputs(source, trees, judge, renderer, None if model is None else str(model), values), Facts(facts)


def _renderer(config: RejudgeConfig, manifest: Mapping[str, Any]) -> Renderer | None:
    """Return the renderer of the run's token ids; None where it has none.

    Raises:
        ConfigError: It is not the tokenizer or the template of the run.
    """
    known, told = manifest.get("hashes", {}), manifest.get("config", {})
    if "tokenizer" not in known:
        if config.tokenizer is not None:
            raise ConfigError(f"tokenizer: got {config.tokenizer}, but the run has no token ids; leave it out")
        return None
    policy = told.get("policy", {})
    path = config.tokenizer or told.get("tokenizer") or policy.get("tokenizer") or policy.get("model") or DEFAULT_MODEL
    template = config.chat_template or told.get("chat_template") or policy.get("chat_template")
    renderer = Renderer.load(path, template)
    if (renderer.tokenizer_hash, renderer.template_hash) != (known["tokenizer"], known.get("chat_template")):
        raise ConfigError(
            f"tokenizer: {path} is not what the run's token ids were made with; name its tokenizer, tokenizer=PATH "
            "(and chat_template=… where it had another one)"
        )
    return renderer


def run(inputs: Inputs, session: Session[RejudgeConfig]) -> Mapping[str, Any]:
    """Judge, mine, write; see `runner.pipeline.Command.run`."""
    figures = RejudgeFigures(Figures(session.run.path, len(inputs.trees), session.run.resumed), inputs.source)
    refused = RefusalLog(session.run, figures.mined)
    session.progress.start(len(inputs.trees), "judging and building pairs")
    kept = FilteredSection(per_task=session.config.filtered.per_task)
    with closing(Miner(None, session.config.pairs, kept, certain=inputs.judge.deterministic)) as miner:
        trees = _trees(inputs, session, figures, refused)
        rendering = inputs.renderer, inputs.model
        write_mined(session, _rows(trees, miner, inputs), figures.mined, rendering)
    return figures.summary(session.config)


def _trees(
    inputs: Inputs, session: Session[RejudgeConfig], figures: RejudgeFigures, refused: RefusalLog
) -> Iterator[SearchTree]:
    """Yield the trees with the new verdicts, in name order, written to the run directory."""
    noise = trees_in_quarantine(inputs.source)

    def judge(file: Path) -> tuple[SearchTree, Revalued]:
        tree = tree_from_json(read_tree(file))
        if tree.tree_id in noise and tree.quarantined is None:
            tree.quarantined = f"{inputs.source} has it in quarantine"  # since its replays, which no judge mends
        return tree, revalue(tree, inputs.judge, **inputs.values)

    waiting: deque[Future[tuple[SearchTree, Revalued]]] = deque()
    files = iter(inputs.trees)
    with ThreadPoolExecutor(session.config.workers) as pool:
        try:
            for _ in range(_AHEAD * session.config.workers):
                waiting += [pool.submit(judge, file) for file in [next(files, None)] if file is not None]
            while waiting:
                tree, found = waiting.popleft().result()
                waiting += [pool.submit(judge, file) for file in [next(files, None)] if file is not None]
                figures.take(tree, found)
                for node, reason in found.unscored:
                    refused.append(Refusal("verdict", f"{tree.tree_id}/node {node}", reason))
                session.run.write_tree(tree.tree_id, tree_to_json(tree))
                yield tree
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _rows(trees: Iterator[SearchTree], miner: Miner, inputs: Inputs) -> Iterator[Mined]:
    for tree in trees:
        try:
            rows = rows_of(miner.mine(tree), inputs.renderer, inputs.model)
            yield figures_of(tree), rows
        except DataError as error:
            raise DataError(f"tree {tree.tree_id} of {inputs.source}: {error}") from error


COMMAND: Command[RejudgeConfig, Inputs] = Command(
    name="rejudge", config=RejudgeConfig, prepare=prepare, run=run, show=show_rejudge, alone=True, complete=place
)

if __name__ == "__main__":
    sys.exit(main(COMMAND))
