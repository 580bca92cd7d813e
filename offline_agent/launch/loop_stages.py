"""Stages of `iterate`: their configurations, made from the configuration of the loop, and the models between them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offline_agent.config.build_prefs import BuildPrefsConfig, JudgeSection, PolicySection, TasksSection
from offline_agent.config.evaluate import AgainstSection, EvaluateConfig, EvaluateTasks, TestTimeSection
from offline_agent.config.import_logs import LogPairsSection
from offline_agent.config.iterate import IterateConfig, with_model
from offline_agent.config.judging import RejudgeConfig
from offline_agent.config.training import DpoDataSection, ModelSection, SftDataSection, TrainDpoConfig, TrainSftConfig
from offline_agent.errors import ConfigError
from offline_agent.launch.stages import Stage
from offline_agent.policies.base import DEFAULT_MODEL
from offline_agent.preferences.settings import PairsSection
from offline_agent.records import Task
from offline_agent.search.settings import SearchSection
from offline_agent.seeding import derive_seed
from offline_agent.store.files import disk_errors, sync_folder, write_atomic

PROPOSALS = 4  # of each prompt; the first is greedy
_SEEDS = 1 << 31  # libraries take seeds of 32 bits
_NOT_NEEDED = ("*.bin", "*.pt", "*.pth", "*.gguf", "*.onnx", "*.msgpack", "*.h5")
_TOKENIZER_FILES = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "*.jinja")


@dataclass(frozen=True, slots=True)
class Model:
    """A model of the loop.

    Attributes:
        name: `start`, or the stage that made it, e.g. `iteration-0/train_dpo`.
        path: Its folder, or a hub name; None = the embedded default.
        evaluation: Run directory of its last evaluation on held-out tasks; None = not evaluated yet.
    """

    name: str
    path: str | None
    evaluation: Path | None = None

    @property
    def folder(self) -> Path:
        """The folder with its weights; see `model_folder`."""
        return model_folder(self.path)


@dataclass(frozen=True, slots=True)
class LoopStages:
    """Makes the stages of the loop.

    Args:
        config: Configuration of the loop.
        run_dir: Run directory of the loop, an absolute path.
        parent: Run id of the loop, under which the stages are tracked.
    """

    config: IterateConfig
    run_dir: Path
    parent: str

    def folder(self, iteration: int) -> Path:
        """Return the folder of an iteration."""
        return self.run_dir / f"iteration-{iteration}"

    def start(self) -> Model:
        """Return the first model of the loop."""
        return Model("start", absolute(self.config.policy.model))

    def build_prefs(self, iteration: int, model: Model, tasks: Path) -> Stage:
        """Return the stage that searches the tasks of a file with a model."""
        loop = self.config
        config = BuildPrefsConfig(
            **_of(loop, "env", "limits", "sandbox", "search", "reward", "pairs", "filtered"),
            **self._common(iteration, "build_prefs"),
            judge=self.judge(model),
            tasks=TasksSection(split=loop.tasks.split, n=None, file=str(tasks)),
            policy=self._policy(model),
            audit=loop.audit if iteration == 0 else "off",  # the environment is the same in every iteration
        )
        return Stage("build_prefs", "build_prefs", config)

    def propose(self, iteration: int, model: Model, tasks: Path) -> Stage:
        """Return the stage in which a model proposes tasks: `PROPOSALS` after each of a file's examples."""
        loop = self.config
        config = BuildPrefsConfig(
            **_of(loop, "limits", "sandbox"),
            **self._common(iteration, "propose"),
            env=loop.env.model_copy(update={"name": f"propose:{loop.env.name}"}),
            tasks=TasksSection(split=loop.tasks.split, n=None, file=str(tasks)),
            policy=self._policy(model),
            search=SearchSection(algorithm="best_of_n", simulations=PROPOSALS, value="success", max_steps=1),
            pairs=PairsSection(kinds=(), rejudge=0.0),
            audit="off",
        )
        return Stage("propose", "build_prefs", config)

    def reward(self, iteration: int) -> Stage:
        """Return the stage that judges an iteration's proposals by what they were rewarded with."""
        folder = self.folder(iteration)
        judge = {"name": "offline_agent.evaluation.proposer:Learnability", "proposed": str(folder / "proposed.json")}
        config = RejudgeConfig(
            **{**self._common(iteration, "reward"), "launcher": "local"},
            source=str(folder / "propose"),
            judge=JudgeSection(**judge),
            pairs=LogPairsSection(kinds=()),
        )
        return Stage("reward", "rejudge", config)

    def train_sft(self, iteration: int, model: Model, runs: Iterable[Path]) -> Stage:
        """Return the stage that fine-tunes a model on the successes of runs, the newest first."""
        stage = self.config.sft
        config = TrainSftConfig(
            **self._common(iteration, "train_sft"),
            **self._training(model),
            **_of(stage, "optimizer", "batch"),
            data=SftDataSection(runs=tuple(map(str, runs)), per_task=stage.per_task),
            env=self.config.env,
            judge=self.judge(model),
        )
        return Stage("train_sft", "train_sft", config)

    def train_dpo(self, iteration: int, model: Model, pairs: Path, runs: Iterable[Path]) -> Stage:
        """Return the stage that trains a model on preferences.

        Args:
            iteration: The iteration.
            model: The model that is trained; also the reference.
            pairs: The run of `build_prefs` whose pairs are used.
            runs: Runs whose successes are the anchor if the configuration names none; empty = no anchor.
        """
        stage = self.config.dpo
        anchor = stage.anchor
        if not anchor.runs:
            found = tuple(map(str, runs))
            anchor = anchor.model_copy(update={"runs": found, "rows": anchor.rows if found else 0})
        config = TrainDpoConfig(
            **self._common(iteration, "train_dpo"),
            **self._training(model),
            **_of(stage, "optimizer", "batch"),
            data=DpoDataSection(runs=(str(pairs),), kinds=stage.kinds),
            dpo=stage.loss,
            anchor=anchor,
        )
        return Stage("train_dpo", "train_dpo", config)

    def evaluate(self, iteration: int, name: str, model: Model, tasks: Path) -> Stage:
        """Return the stage that evaluates a model on held-out tasks; all models of an iteration have the same seed."""
        held_out = self.config.held_out
        config = EvaluateConfig(
            **self._common(iteration, name, seed=self.seed(iteration, "held_out")),
            **_of(self.config, "env", "limits", "sandbox"),
            judge=JudgeSection() if held_out.judge == "environment" else self.config.judge,
            tasks=EvaluateTasks(split=held_out.split, n=None, file=str(tasks)),
            policy=self._policy(model),
            attempts=held_out.attempts,
            max_steps=self.config.search.max_steps,
            # `evaluate` refuses values that differ from the keys that decide them
            search=SearchSection(max_steps=self.config.search.max_steps, simulations=TestTimeSection().simulations),
            against=AgainstSection(run=None),
        )
        return Stage(name, "evaluate", config)

    def judge(self, model: Model) -> JudgeSection:
        """Return the judge of an iteration that is searched with a model, which is the judge where it judges itself."""
        return with_model(self.config.judge, lambda: str(model.folder))

    def seed(self, iteration: int, what: str) -> int:
        """Return the seed of a part of an iteration."""
        return derive_seed(self.config.seed, "iteration", iteration, what) % _SEEDS

    def _common(self, iteration: int, name: str, seed: int | None = None) -> dict[str, Any]:
        alone = self.config.launcher == "ray" and name.startswith(("train", "refine"))  # Ray does not spread these
        return {
            "run_dir": str(self.folder(iteration) / name),
            "seed": self.seed(iteration, name) if seed is None else seed,
            "tracking": self.config.tracking.model_copy(update={"parent": self.parent, "iteration": iteration}),
            "launcher": "local" if alone else self.config.launcher,
            **_of(self.config, "report", "ray", "slurm"),
        }

    def _policy(self, model: Model) -> PolicySection:
        policy = self.config.policy
        return policy.model_copy(update={"model": model.path, "tokenizer": absolute(policy.tokenizer)})

    def _training(self, model: Model) -> dict[str, Any]:
        policy = self.config.policy
        template = (policy.model_extra or {}).get("chat_template")
        names = {"path": model.path, "tokenizer": absolute(policy.tokenizer), "chat_template": template}
        section = ModelSection(**names, dtype=self.config.dtype)
        return {"model": section, "lora": self.config.lora, "threads": self.config.threads}


def _of(config: Any, *names: str) -> dict[str, Any]:
    """Return values of a configuration, by name."""
    return {name: getattr(config, name) for name in names}


def write_tasks(file: Path, tasks: Iterable[Task]) -> None:
    """Write tasks atomically to a file for `tasks.file`."""
    lines = [json.dumps({"task_id": task.task_id, **task.args}) + "\n" for task in tasks]
    write_atomic(file, "".join(lines).encode())


def absolute(path_or_name: str | None) -> str | None:
    """Return the absolute path of a folder or file; a hub name and None are returned unchanged."""
    if path_or_name is None:
        return None
    folder = Path(path_or_name).expanduser()
    return str(folder.resolve()) if folder.exists() else path_or_name


def model_folder(path_or_name: str | None) -> Path:
    """Return the folder of a model: the given one, that of the embedded default, or one in the cache of the hub.

    Raises:
        ConfigError: There is no such folder, and no such model in the cache or on the hub.
    """
    from offline_agent.policies.hf.gguf import plain_folder

    if path_or_name is None:
        return DEFAULT_MODEL
    folder = Path(plain_folder(path_or_name, "policy.model")).expanduser()
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download

    try:
        with suppress(OSError, ValueError):  # a cached model needs no network
            return Path(snapshot_download(path_or_name, local_files_only=True))
        return Path(snapshot_download(path_or_name, ignore_patterns=list(_NOT_NEEDED)))
    except Exception as error:  # no such name, no network, or an unreadable cache
        raise ConfigError(
            f"policy.model: got {path_or_name!r}, allowed: a folder that exists, or the name of a model on the hub "
            f"that this machine can reach ({type(error).__name__}: {str(error).strip().splitlines()[0]})"
        ) from error


def place_model(source: Path, target: Path, tokenizer: Path | None = None, template: str | None = None) -> None:
    """Copy the folder of a model atomically; an existing target is replaced.

    Args:
        source: The folder.
        target: The new folder.
        tokenizer: A folder whose tokenizer replaces that of the model; None = keep it.
        template: Text of a chat template that replaces that of the tokenizer; None = keep it.

    Raises:
        DataError: The disk is full or not writable; the old target is unchanged.
    """
    fresh, old = target.with_name(f".{target.name}.new"), target.with_name(f".{target.name}.old")
    with disk_errors(target, "copying the model"):
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(source, fresh, ignore=shutil.ignore_patterns(".*"))
        if tokenizer is not None:
            for pattern in _TOKENIZER_FILES:
                for file in tokenizer.glob(pattern):
                    shutil.copyfile(file, fresh / file.name)
        if template is not None:
            (fresh / "chat_template.jinja").write_text(template, encoding="utf-8")
        for file in fresh.rglob("*"):
            if file.is_file():
                with open(file, "rb") as stream:
                    os.fsync(stream.fileno())
        sync_folder(fresh)
        shutil.rmtree(old, ignore_errors=True)
        if target.exists():
            target.rename(old)
        fresh.rename(target)
        sync_folder(target.parent)
        shutil.rmtree(old, ignore_errors=True)
