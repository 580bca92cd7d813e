"""The loop: search, fine-tune, train on preferences where asked, evaluate, and promote what is not worse.

Run `python -m offline_agent.pipelines.iterate --help` for the keys.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from offline_agent.config.build_prefs import TasksSection
from offline_agent.config.iterate import IterateConfig
from offline_agent.config.training import TrainConfig
from offline_agent.errors import ConfigError, OfflineAgentError, collect
from offline_agent.launch.loop_stages import LoopStages, model_folder
from offline_agent.pipelines.entry import main
from offline_agent.pipelines.stages.iterations import Iterations
from offline_agent.report.training import show_loop
from offline_agent.runner.components import completed
from offline_agent.runner.pipeline import Command, Facts, Session

if TYPE_CHECKING:
    from offline_agent.envs.base import EnvSpec
    from offline_agent.launch.stages import Stage
    from offline_agent.records import Task


@dataclass(frozen=True, slots=True)
class LoopInputs:
    """The loaded inputs of the loop itself; each stage loads its own."""

    spec: EnvSpec
    tasks: list[Task]
    held_out: list[Task]


def prepare(config: IterateConfig) -> tuple[LoopInputs, Facts]:
    """Look at everything that can be found faulty before hours are spent; see `runner.pipeline.Command.prepare`."""
    from offline_agent.evaluation.task_sources import load_source
    from offline_agent.runner.components import (
        check_sandbox,
        hash_tasks,
        make_environment,
        make_reward,
        make_tasks,
        own_critic,
    )
    from offline_agent.search.settings import SearchSettings
    from offline_agent.store.provenance import hash_path

    faults: list[str] = []
    spec, tasks, held_out, hashes = None, [], [], {}
    try:
        make_reward(config)
        own_critic(config.search.critic)
        plan = LoopStages(config, Path("/"), "")
        spec = make_environment(config.model_copy(update={"judge": plan.judge(plan.start())}))
        check_sandbox(spec, trusted=False)
        if config.curriculum.source is not None:
            load_source(config.curriculum.source, spec)
            if not config.curriculum.enabled:
                faults.append("curriculum.source: it needs curriculum.enabled=true; false takes the split's in order")
        if config.held_out.judge == "environment" and not hasattr(spec.cls, "get_reward"):
            faults.append(
                f"held_out.judge: got environment, but {spec.name} has no get_reward to judge with; leave it out, "
                "or give the environment one"
            )
        tasks = make_tasks(spec, _pool(config))
        first = tasks if config.tasks.n is None else tasks[: config.tasks.n]
        hashes["task_set"] = hash_tasks(first)
        trees = SearchSettings.of_tree(config.search, len(first), action_tokens=config.policy.max_tokens or 0)
        faults += trees.budget_faults(len(first))
        held_out = list(itertools.islice(spec.tasks(config.held_out.split), config.held_out.pool))
        hashes["held_out_tasks"] = hash_tasks(held_out)
        if len(held_out) < 2:
            faults.append(
                f"held_out.n: {spec.name} has {len(held_out)} {config.held_out.split} tasks; the gate compares over "
                "tasks and needs 2 or more"
            )
    except OfflineAgentError as error:
        faults += error.faults if isinstance(error, ConfigError) else [str(error)]
    faults += _other_faults(config)
    folder = collect(faults, lambda: _checked(model_folder(config.policy.model)))
    if folder is not None:
        hashes["model"] = hash_path(folder)
        faults += _stage_faults(config, folder)
    if faults or spec is None:
        raise ConfigError(faults)
    facts = Facts({"hashes": hashes, "env": spec.identity}, {"environment": spec.name})
    return LoopInputs(spec, tasks, held_out), facts


def _pool(config: IterateConfig) -> TasksSection:
    """Return the tasks that the iterations choose from: as many as they could search if each took only new ones."""
    n = config.tasks.n
    return config.tasks.model_copy(update={"n": None if n is None else n * config.iterations})


def _stage_faults(config: IterateConfig, folder: Path) -> Iterator[str]:
    """Yield the faults for which a later stage would refuse to start, after hours of search.

    Args:
        config: The configuration of the loop.
        folder: Of the first model, whose modules and limits all later models have.
    """
    from offline_agent.runner.training import max_length
    from offline_agent.training.models import adapted, skeleton

    found: list[str] = []
    plan, root = LoopStages(config, Path("/"), ""), Path("/")
    start = plan.start()

    def built(make: Callable[[], Stage], wanted: bool = True) -> BaseModel | None:
        try:
            return make().config if wanted else None
        except ValidationError as error:
            found.extend(str(one["msg"]) for one in error.errors())
        return None

    built(lambda: plan.build_prefs(0, start, root))
    built(lambda: plan.evaluate(0, "evaluate", start, root))
    fine = built(lambda: plan.train_sft(0, start, ()), config.sft.enabled)
    pairs = built(lambda: plan.train_dpo(0, start, root, ()), config.dpo.enabled)
    model = collect(found, lambda: skeleton(folder, "policy.model"))
    if model is not None:
        collect(found, lambda: adapted(model, config.lora.targets))
    for name, stage in (("sft", fine), ("dpo", pairs)):
        if model is not None and isinstance(stage, TrainConfig):
            found += [f"{name}.{fault}" for fault in _refused(partial(max_length, stage, model))]
    yield from found


def _refused(make: Callable[[], Any]) -> list[str]:
    found: list[str] = []
    collect(found, make)
    return found


def _other_faults(config: IterateConfig) -> Iterator[str]:
    """Yield what is wrong with earlier runs that are named."""
    for run in config.dpo.anchor.runs if config.dpo.enabled else ():
        if not (Path(run) / "manifest.json").is_file():
            yield f"dpo.anchor.runs: {run} is no run directory (it has no manifest.json); name one of build_prefs"
    for run in config.buffer:
        if not (Path(run) / "summary.json").is_file() or not (Path(run) / "filtered").is_dir():
            yield f"buffer: {run} has no summary.json or no filtered/; name a finished refine_grpo or build_prefs run"


def _checked(folder: Path) -> Path:
    if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
        raise ConfigError(
            f"policy.model: {folder} has no config.json or no *.safetensors; give a folder that save_pretrained wrote"
        )
    return folder


def run(inputs: LoopInputs, session: Session[IterateConfig]) -> Mapping[str, Any]:
    """Go through the loop; see `runner.pipeline.Command.run`."""
    return Iterations(inputs.spec, inputs.tasks, inputs.held_out, session).run()


COMMAND: Command[IterateConfig, LoopInputs] = Command(
    name="iterate", config=IterateConfig, prepare=prepare, run=run, show=show_loop, complete=completed
)

if __name__ == "__main__":
    sys.exit(main(COMMAND))
