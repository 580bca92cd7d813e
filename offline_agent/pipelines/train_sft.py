"""Likelihood training: a warm start from demonstrations, or rejection fine-tuning on verified successes.

Run `python -m offline_agent.pipelines.train_sft --help` for the keys.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from offline_agent.config.training import TrainSftConfig
from offline_agent.envs.base import EnvSpec
from offline_agent.errors import ConfigError, DataError, collect
from offline_agent.judges.judge import make_judge
from offline_agent.pipelines.entry import main
from offline_agent.records import Task
from offline_agent.rendering.vision import PATCH
from offline_agent.report.training import show_training
from offline_agent.runner import training
from offline_agent.runner.components import completed, hash_tasks, load_environment, make_tasks
from offline_agent.runner.pipeline import Command, Facts, Session
from offline_agent.store.columns import table_schema

if TYPE_CHECKING:
    from offline_agent.training.data.rows import LoadReport, TrajectoryRow
    from offline_agent.training.models import Trainable

TABLE = "demonstrations"
READING = "reading"


@dataclass
class SftInputs:
    """The loaded model and data of a training.

    Attributes:
        spec, tasks: The environment and tasks to demonstrate; None where rows are read.
        trainable: Model, tokenizer and renderer; None while a new model waits for demonstrations, whose texts its
            tokenizer is learnt from.
        rows, report: The training rows; None before the demonstrations.
    """

    spec: EnvSpec | None = None
    tasks: list[Task] = field(default_factory=list)
    trainable: Trainable | None = None
    rows: list[TrajectoryRow] | None = None
    report: LoadReport | None = None


def prepare(config: TrainSftConfig) -> tuple[SftInputs, Facts]:
    """Load model and rows, or look at what is to be demonstrated; see `runner.pipeline.Command.prepare`."""
    given = bool(config.data.runs or config.data.files)
    faults = _faults(config, given)
    inputs = SftInputs()
    if not given:
        inputs.spec = collect(faults, lambda: _demonstrable(config))
        if (spec := inputs.spec) is not None:
            inputs.tasks = collect(faults, lambda: make_tasks(spec, config.tasks))
    if faults:
        raise ConfigError(faults)
    if not config.scratch.layers:
        inputs.trainable = training.load(config)
    if given:
        _load(inputs, config)
    return inputs, _facts(config, inputs)


def _faults(config: TrainSftConfig, given: bool) -> list[str]:
    faults = []
    if config.scratch.layers:
        faults += [
            f"model.{name}: got {value!r}, but scratch.layers={config.scratch.layers} asks for a new model with a "
            "tokenizer of its own; set one of them"
            for name in ("path", "tokenizer", "chat_template")
            if (value := getattr(config.model, name)) is not None
        ]
    elif config.scratch.reading:
        faults.append(
            f"scratch.reading: got {config.scratch.reading:g}, but only a new model reads first; set scratch.layers, "
            "or leave it at 0"
        )
    if not given and config.tasks.split != "train":
        faults.append(
            f"tasks.split: got {config.tasks.split!r}; what a policy is measured on must not be trained on. "
            "Allowed: train"
        )
    return faults


def _load(inputs: SftInputs, config: TrainSftConfig) -> None:
    """Fill in the rows of `data` and, where it is new, the model: equal data and seed give equal weights and ids."""
    from offline_agent.training.data.rows import load_trajectories
    from offline_agent.training.data.selection import Selection, texts

    data = config.data
    rules = Selection(
        data.negatives, True, data.success, data.unknown, data.per_task, from_messages=bool(config.scratch.layers)
    )
    if inputs.trainable is None:
        inputs.trainable = _new(config, texts(data.runs, data.files, rules))
    model, _, renderer = inputs.trainable
    longest = training.max_length(config, model)
    inputs.rows, inputs.report = load_trajectories(data.runs, data.files, renderer, max_length=longest, rules=rules)


def _demonstrable(config: TrainSftConfig) -> EnvSpec:
    """Return the environment; raises ConfigError where it has no expert."""
    judge = make_judge(config.judge.name, dict(config.judge.model_extra or {}))
    spec = load_environment(config.env, judge)
    if spec.demonstrate is None:
        raise ConfigError(
            f"env: {spec.name} has no scripted expert to learn from; give it a class method "
            "demonstrate(task, messages, rng, noise), or name data.runs or data.files, such as the run of a search "
            "(build_prefs policy=random)"
        )
    return spec


def _facts(config: TrainSftConfig, inputs: SftInputs) -> Facts:
    manifest, tags = training.facts(config, inputs.trainable, inputs.report)
    if config.scratch.layers:
        tags["model"] = "new"
    if inputs.spec is not None:
        manifest["hashes"]["task_set"] = hash_tasks(inputs.tasks)
        manifest["env"] = inputs.spec.identity
        tags["environment"] = inputs.spec.name
    return Facts(manifest, tags)


def run(inputs: SftInputs, session: Session[TrainSftConfig]) -> Mapping[str, Any]:
    """Demonstrate where that is asked for, and train; see `runner.pipeline.Command.run`."""
    demonstrated = None
    if inputs.rows is None:
        demonstrated = _demonstrate(inputs, session)
    assert inputs.trainable is not None and inputs.rows is not None and inputs.report is not None
    from offline_agent.training.offline.sft import train_sft

    if session.config.scratch.layers:
        from offline_agent.training.scratch import allow_actions

        allow_actions(inputs.trainable.model, (row.action_mask for row in inputs.rows))
    reading = _read(inputs, session) if session.config.scratch.reading else None
    summary = training.train(session, inputs.trainable, inputs.rows, inputs.report, train_sft)
    summary["data"]["source"] = TABLE if demonstrated else "runs" if session.config.data.runs else "files"
    if inputs.spec is not None and demonstrated:
        summary |= {"environment": inputs.spec.name, "demonstrations": demonstrated}
    return {**summary, "reading": reading} if reading else summary


# -- demonstrations ------------------------------------------------------------------------------------------------


def _demonstrate(inputs: SftInputs, session: Session[TrainSftConfig]) -> dict[str, Any]:
    """Fill in rows and, where it is new, the model; what an earlier session recorded is read back."""
    from offline_agent.training.data.rows import load_trajectories
    from offline_agent.training.data.selection import Selection

    config, folder = session.config, session.run.path
    counts = next(iter(session.run.events(TABLE).read()), None) if (folder / TABLE).is_dir() else None
    if counts is None:
        counts = _record(inputs, session)
    elif inputs.trainable is None:
        from offline_agent.training.models import load_trainable

        inputs.trainable = load_trainable(str(folder / "start"), dtype=config.model.weights_dtype)
    assert inputs.trainable is not None
    inputs.rows, inputs.report = load_trajectories(
        (),
        [str(file) for file in sorted((folder / TABLE).glob("*.parquet"))],
        inputs.trainable.renderer,
        max_length=training.max_length(config, inputs.trainable.model),
        rules=Selection(verified=config.demonstrations.only_successes, per_task=config.data.per_task),
    )
    return dict(counts)


def _record(inputs: SftInputs, session: Session[TrainSftConfig]) -> dict[str, Any]:
    """Have the expert do the tasks, write the table, and make the new model where one is asked for."""
    from offline_agent.preferences.dataset.export import trajectory_row
    from offline_agent.rollouts.demonstrations import demonstrate, texts
    from offline_agent.training.models import save_plain

    config, spec = session.config, inputs.spec
    assert spec is not None
    spec.keep_in(session.run.path)
    session.progress.start(len(inputs.tasks), "demonstrating")
    done = demonstrate(
        spec,
        inputs.tasks,
        None if inputs.trainable is None else inputs.trainable.renderer,
        config.demonstrations,
        seed=config.seed,
        tick=session.progress.update,
    )
    for name, reason in done.left_out:
        session.run.quarantine("demonstration", name, reason)
    if not done.trajectories:
        raise DataError(
            f"env: none of {done.attempts} demonstrations can be learnt from, e.g. {': '.join(done.left_out[0])}. "
            "Raise demonstrations.max_steps, lower demonstrations.noise, or take other tasks"
        )
    if inputs.trainable is None:
        inputs.trainable = _new(config, texts(done.trajectories))
        new = inputs.trainable
        save_plain(new.model, new.tokenizer, session.run.path / "start")  # a resumed run starts from the same
    renderer = inputs.trainable.renderer
    rows = (trajectory_row(trajectory, renderer) for trajectory in done.trajectories)
    session.run.write_rows(TABLE, rows, table_schema("trajectories"))
    counts = {"attempts": done.attempts, "successes": done.successes, "kept": len(done.trajectories)}
    session.run.events(TABLE).append(counts)  # last: an earlier session that did not come so far is done again
    return counts


def _new(config: TrainSftConfig, texts: Iterator[str]) -> Trainable:
    """Return the new model."""
    from offline_agent.policies.hf.embedding import read_pictures
    from offline_agent.rendering.renderer import Renderer
    from offline_agent.training.models import Trainable
    from offline_agent.training.scratch import new_model, with_tower

    processor, shape = None, config.scratch
    model, tokenizer = new_model(texts, shape, seed=config.seed, dtype=config.model.weights_dtype)
    if shape.pictures:
        model, processor = with_tower(model, tokenizer, shape, config.seed)
    renderer = Renderer(tokenizer, processor)
    read_pictures(model, renderer.vision, "scratch")
    return Trainable(model, tokenizer, renderer)


def _read(inputs: SftInputs, session: Session[TrainSftConfig]) -> dict[str, Any]:
    """Have the new model predict whole trajectories, in place, before it is trained on the policy's own words alone.

    It is to learn the environment's language and to copy from it; nothing is preferred here. A session that finds it
    done takes the weights from there.
    """
    from offline_agent.training.models import load_trainable, save_plain, set_threads
    from offline_agent.training.offline.sft import train_sft
    from offline_agent.training.trainer import TrainRun

    config, folder = session.config, session.run.path / READING
    done = session.run.events(f"{READING}-done")
    counts = next(iter(done.read()), None)
    assert inputs.trainable is not None and inputs.rows is not None
    if counts is not None:
        inputs.trainable = load_trainable(str(folder / "model"), dtype=config.model.weights_dtype)
        return dict(counts)
    model, tokenizer, _ = inputs.trainable
    set_threads(config.threads, model)
    # patches of pictures are no ids that could be predicted
    whole = [replace(row, action_mask=tuple(int(id < PATCH) for id in row.input_ids)) for row in inputs.rows]
    chosen = training.settings(config).model_copy(update={"epochs": config.scratch.reading, "max_updates": None})
    session.progress.start(training.updates(chosen, len(whole)), READING)
    started = time.perf_counter()
    log = training.Recorder(session, READING)
    result = train_sft(model, tokenizer, whole, chosen, TrainRun(folder, log, session.say))
    save_plain(model, tokenizer, folder / "model")
    counts = training.of_result(result, time.perf_counter() - started)
    done.append(counts)  # last: what is not finished goes on from its checkpoint
    return counts


COMMAND: Command[TrainSftConfig, SftInputs] = Command(
    name="train_sft", config=TrainSftConfig, prepare=prepare, run=run, show=show_training, complete=completed
)

if __name__ == "__main__":
    sys.exit(main(COMMAND))
