"""The keys of `build_prefs`, beside those of the parts that it is made of: each is declared where it is used."""

from __future__ import annotations

import os
import re
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, field_validator, model_validator

from offline_agent.envs.settings import LimitsSection
from offline_agent.errors import ConfigError
from offline_agent.outgoing import masked
from offline_agent.preferences.settings import FilteredSection, PairsSection
from offline_agent.search.settings import SearchSection
from offline_agent.sections import Plugged, Section, key, section


class RaySection(Section):
    """Tasks of launcher=ray."""

    address: str | None = key(
        None, "of a running cluster: host:port, or auto; null = a Ray on this machine, started and stopped with the "
        "command", free=True,
    )  # fmt: skip
    workers: int | None = key(
        None, "shards that build_prefs and evaluate are cut into (what was cut first holds), and most of them at once; "
        "null = as many as fit into the cluster at the first start",
        ge=1, le=10**6, free=True,
    )  # fmt: skip
    cpus: float = key(1.0, "CPUs reserved for each shard", ge=0, free=True)
    gpus: float = key(0.0, "GPUs reserved for it; 0 = none (policy=server)", ge=0, free=True)
    deaths: int = key(
        3, "how often a task of Ray's is started again, in its run directory, whose node or process is gone", ge=0,
        free=True,
    )  # fmt: skip


class SlurmSection(Section):
    """Jobs of launcher=slurm."""

    shards: int = key(
        8, "jobs that the tasks of build_prefs and evaluate are cut into; what was submitted first holds", ge=1,
        free=True,
    )  # fmt: skip
    at_once: int | None = key(None, "most shards that run at once; null = as many as Slurm starts", ge=1, free=True)
    partition: str | None = key(None, "null = Slurm's default", free=True)
    time: str | None = key(
        None, "limit of one job: minutes, H:MM:SS or D-H:MM:SS (in quotes in YAML); null = the partition's", free=True
    )
    cpus: int = key(2, "cores of a job", ge=1, free=True)
    memory: str | None = key(None, "of a job, on each node, e.g. 32G; null = the partition's default", free=True)
    gpus: int = key(0, "of a job", ge=0, free=True)
    nodes: int = key(1, "of a training job", ge=1, free=True)
    train_cpus: int | None = key(None, "cores of a training job on each node; null = slurm.cpus", ge=1, free=True)
    train_memory: str | None = key(None, "of a training job on each node; null = slurm.memory", free=True)
    train_gpus: int | None = key(None, "of a training job on each node; null = slurm.gpus", ge=0, free=True)
    processes: int | None = key(
        None, "of a training job on each node; null = one for each of its GPUs, or a single one", ge=1, free=True
    )
    sharded: bool = key(
        False, "a training job shards the weights over its processes (FSDP2) in place of a copy in each", free=True
    )
    setup: tuple[str, ...] = key((), "shell lines before the command, e.g. [module load cuda]", strict=False, free=True)
    arguments: tuple[str, ...] = key(
        (), "more arguments of sbatch, e.g. [--account=LAB,--qos=high]", strict=False, free=True
    )
    signal_seconds: int = key(
        120, "this long before its time is up a job is told, ends in good order and is requeued", ge=0, le=65535,
        free=True,
    )  # fmt: skip
    requeues: int = key(100, "most times one job is requeued", ge=0, free=True)
    poll_seconds: float = key(5.0, "between two looks at the jobs that are waited for", gt=0, free=True)
    python: str | None = key(None, "the interpreter on the nodes; null = the one that submits", free=True)


class SandboxSection(Section):
    """The sandbox."""

    allow: Literal["bubblewrap", "namespaces", "limits"] = key(
        "namespaces", "weakest level at which code of a model runs; a run that would have a weaker one is refused "
        "(docs/sandbox.md says what each contains); the strongest that works here is used in any case", free=True,
    )  # fmt: skip
    command: tuple[str, ...] | None = key(
        None, "a command that starts a container and runs in it what follows, in place of the sandbox's own, e.g. "
        "[docker, run, -i, --rm, --network=none, python:3.11-slim]; each call starts one", strict=False,
    )  # fmt: skip

    @field_validator("command")
    @classmethod
    def _not_empty(cls, command: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if command is not None and not all(command):
            raise ValueError(f"sandbox.command: got {list(command)!r}, allowed: a list of texts, none empty, or null")
        return command or None


def known_name(kind: Literal["env", "judge", "policy"], name: str) -> str:
    """Return a name that the catalog knows, or a path to a class; raises ValueError for any other."""
    from offline_agent import catalog

    try:
        catalog.check(kind, name)
    except ConfigError as error:
        raise ValueError(str(error)) from error
    return name


class EnvSection(Plugged):
    """The environment."""

    argument_note: ClassVar[str] = "any argument of the environment's constructor, e.g. env.game=coin"
    _known = field_validator("name")(lambda name: known_name("env", name))
    name: str = key(
        "shop", "countdown, math, shop, a name of an installed package (--help env lists them), or module:Class of "
        "your own (docs/environments.md)",
    )  # fmt: skip
    python: str | None = key(
        None, "path of the Python interpreter (3.11 or newer) that has what the environment needs; it runs there, in "
        "processes of its own, and needs nothing of this program installed; null = this one",
    )  # fmt: skip
    isolate: Literal["auto", "none", "process"] = key(
        "auto", "process = environments run in processes of their own, where a crash costs one branch and a snapshot "
        "is a fork; auto = where a search finds that copies are no snapshots and forks are, or that the "
        "environment changes the process it runs in", free=True,
    )  # fmt: skip

    @model_validator(mode="after")
    def _elsewhere_is_isolated(self) -> EnvSection:
        if self.python is not None and self.isolate == "none":
            raise ValueError(
                "env.isolate: got none with env.python, which runs it in other processes; allowed: auto, process"
            )
        return self


class JudgeSection(Plugged):
    """The judge that gives the verdicts."""

    argument_note: ClassVar[str] = "any argument of the judge, e.g. judge.threshold=0.8 with judge=f1"
    _known = field_validator("name")(lambda name: known_name("judge", name))
    name: str = key(
        "environment", "environment = the environment's own get_reward; all_of, any_of, ensemble, exact_match, f1, "
        "goal_state, hybrid, llm, mean_of, planned, purchase, reward_model, rows, subgoals, "
        "symbolic, unit_tests, a name of an installed package (--help judge lists them), or module:callable of your "
        "own, whose verdicts then take its place everywhere (docs/verifiers.md)",
    )  # fmt: skip


class TasksSection(Section):
    """The choice of tasks."""

    split: Literal["train", "validation", "test"] = key("train", "the environment's split")
    n: int | None = key(24, "number of tasks; null = all", ge=1, grows=("build_prefs",))
    offset: int = key(0, "tasks to skip at the beginning of the split", ge=0)
    file: str | None = key(None, "a JSON-lines file of tasks (reset's arguments) instead of the environment's own")


class PolicySection(Plugged):
    """The policy that proposes actions."""

    argument_note: ClassVar[str] = "any other argument of the policy's constructor, e.g. policy.noise=0.3"
    _known = field_validator("name")(lambda name: known_name("policy", name))
    name: str = key("hf", "oracle, noisy, random, hf, server, colocated, or module:Class (policy=NAME for short)")
    model: str | None = key(None, "hf: a local path or hub name, null = the embedded default; server: the served name")
    url: str | tuple[str, ...] | None = key(
        None, "server: the endpoint, e.g. http://localhost:8000/v1; or several: [URL,URL], of one model. May differ on "
        "resume, as long as the model is the same",
    )
    tokenizer: str | None = key(None, "path or name, where it is not the model's own")
    temperature: float = key(0.7, "sampling temperature; 0 = greedy", ge=0, le=100)
    max_tokens: int | None = key(
        None,
        "most tokens of one action; null = the model's own: max_new_tokens of its generation_config.json, else an "
        "eighth of its context, from 64 to 1,024",
        ge=1,
    )

    @field_validator("url", mode="before")
    @classmethod
    def _several(cls, url: Any) -> Any:
        """Read a list, also one that was typed as a text, as key=value is."""
        if isinstance(url, str) and ("," in url or url.startswith("[")):
            return tuple(part.strip(" '\"") for part in url.strip("[] ").split(",") if part.strip())
        return tuple(url) if isinstance(url, list) else url


class RewardSection(Section):
    """Weights of the composite reward: the value that a search backs up, and the reward of an online episode.

    Pairs and evaluations compare the verdicts themselves: shaping shall not make a pair, nor a figure.
    """

    model_config = ConfigDict(extra="allow")
    argument_note: ClassVar[str] = "any argument of the composite reward, e.g. reward.format=0.2"


class TrackingSection(Section):
    """MLflow."""

    uri: str | None = key("sqlite:///mlflow.db", "MLflow's tracking URI; null = no tracking", free=True)
    experiment: str = key("offline_agent", "MLflow's experiment", min_length=1, free=True)
    parent: str | None = key(None, "run id of the run this one is part of (iterate sets it)", free=True)
    iteration: int | None = key(None, "the iteration it is a stage of (iterate sets it)", ge=0, le=10_000, free=True)

    @field_validator("uri")
    @classmethod
    def _address(cls, uri: str | None) -> str | None:
        if uri is not None and not re.search(r"[:/]|^databricks$", uri):  # a word, such as "none"
            raise ValueError(f"tracking.uri: got {uri!r}, allowed: null = none, sqlite:///FILE, http://HOST, ./FOLDER")
        return uri


class PlanSection(Section):
    """The expected costs of a run."""

    probe: int = key(
        20, "tasks done beforehand, by a process of its own in a directory that is removed", ge=1, free=True
    )
    updates: int = key(3, "updates (of refine_grpo: rounds) that such a probe trains", ge=1, free=True)


LONGEST_NAME, LONGEST_PATH = 255, 3500
"""Bytes of a file's name, and of a run directory's path with room for the names below it, on usual file systems."""


class RunConfig(Section):
    """Keys of every command.

    Attributes:
        about: Purpose of the command, in one sentence, for `--help`.
        examples: Arguments of the command, each with what it does, for `--help`.
    """

    about: ClassVar[str] = ""
    examples: ClassVar[tuple[tuple[str, str], ...]] = ()

    run_dir: str | None = key(None, "where all is written; an existing one is resumed; null = a new one", free=True)
    seed: int = key(0, "everything random follows from it", ge=0, le=2**63 - 1)
    report: bool = key(True, "write report.html, a page to look at, into run_dir at the end", free=True)
    tracking: TrackingSection = section(TrackingSection, "MLflow")
    launcher: Literal["local", "ray", "slurm"] = key("local", "where it runs", free=True)
    ray: RaySection = section(RaySection, "tasks of launcher=ray")
    slurm: SlurmSection = section(SlurmSection, "jobs of launcher=slurm")
    plan: PlanSection = section(PlanSection, "what a run is expected to cost")

    @field_validator("run_dir")
    @classmethod
    def _short_enough(cls, run_dir: str | None) -> str | None:
        names = [] if run_dir is None else os.path.abspath(run_dir).split(os.sep)
        if any(len(os.fsencode(name)) > LONGEST_NAME for name in names):
            raise ValueError(f"run_dir: a name of more than {LONGEST_NAME} bytes in {run_dir!r:.80}; shorten it")
        if sum(len(os.fsencode(name)) + 1 for name in names) > LONGEST_PATH:
            raise ValueError(f"run_dir: a path of more than {LONGEST_PATH} bytes: {run_dir!r:.80}; shorten it")
        return run_dir

    def resolved(self) -> dict[str, Any]:
        """Return every key with its value, as JSON, for manifest and tracking; secrets are masked."""
        return dict(masked(self.model_dump(mode="json"), numbers=True))


class EnvConfig(RunConfig):
    """Keys of every command that plays an environment."""

    env: EnvSection = section(EnvSection, "the environment")
    judge: JudgeSection = section(JudgeSection, "who gives the verdicts")
    limits: LimitsSection = section(LimitsSection, "what an environment may take")
    sandbox: SandboxSection = section(SandboxSection, "where code runs that a policy wrote")


class BuildPrefsConfig(EnvConfig):
    """Keys of `build_prefs`."""

    about: ClassVar[str] = "Search tasks with MCTS over tool calls; write preference pairs and filtered trajectories."
    examples: ClassVar[tuple[tuple[str, str], ...]] = (
        ("", "the embedded shop and model"),
        ("tasks.n=200 search.simulations=64 run_dir=runs/search", "more tasks and simulations, in a named directory"),
        ("env=my_package.my_env:MyEnv policy=server policy.url=http://localhost:8000/v1 policy.model=my/model",
         "an environment of your own, and a model behind an OpenAI-compatible server"),
    )  # fmt: skip

    tasks: TasksSection = section(TasksSection, "which tasks")
    policy: PolicySection = section(PolicySection, "the policy that proposes actions")
    search: SearchSection = section(SearchSection, "the search")
    reward: RewardSection = section(RewardSection, "weights of the composite reward that the search backs up")
    pairs: PairsSection = section(PairsSection, "which preference pairs are built")
    filtered: FilteredSection = section(FilteredSection, "trajectories for rejection fine-tuning")
    audit: Literal["cheap", "off"] = key(
        "cheap", "cheap checks of environment and verifier on three tasks, in about two seconds, before the search: "
        "what they find is said and kept in the manifest (docs/audit.md)", free=True,
    )  # fmt: skip
