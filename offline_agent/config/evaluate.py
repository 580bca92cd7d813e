"""The keys of `evaluate`, beside those of `build_prefs`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import model_validator

from offline_agent.config.build_prefs import EnvConfig, PolicySection, RewardSection, TasksSection
from offline_agent.envs.settings import OWN_STEPS
from offline_agent.errors import ConfigError, DataError
from offline_agent.outgoing import MASK
from offline_agent.search.settings import SearchSection
from offline_agent.sections import Section, confidence_key, key, section
from offline_agent.store.manifest import data_policy, read_manifest


class TestTimeSection(Section):
    """Search at test time."""

    __test__ = False  # not a test case of pytest's

    algorithm: Literal["none", "best_of_n", "mcts"] = key("none", "none = the policy alone")
    simulations: int = key(16, "samples of best_of_n, simulations of mcts", ge=1)
    judge: str = key(
        "verifier", "who chooses: verifier = it may be asked at test time; of best_of_n also agreement = most common "
        "end, or a judge of turns as rollouts.turn_judge = the highest value of the last turn"
    )  # fmt: skip

    @model_validator(mode="after")
    def _possible(self) -> TestTimeSection:
        if self.judge not in ("verifier", "agreement") and ":" not in self.judge and not os.path.isdir(self.judge):
            told = "allowed: verifier, agreement, module:callable, or a folder that train_reward wrote"
            raise ValueError(f"test_time.judge: got {self.judge!r}, {told}")
        if self.algorithm == "mcts" and self.judge != "verifier":
            raise ValueError("test_time.judge: mcts backs up what the verifier says; use test_time.judge=verifier")
        return self


DATA = "data"


class AgainstSection(Section):
    """Whom to compare with, on the same tasks."""

    run: str | None = key(
        DATA, "a search (build_prefs) whose policy is played in this run too; data = the search that made the data of "
        "policy.model, where its folder names one of this environment and its policy needs no server; null = none; "
        "`compare` compares finished evaluations",
    )  # fmt: skip
    model: str | None = key(None, "another model for the same kind of policy, evaluated in this run; null = none")

    def named(self) -> str | None:
        """Return the key that the user set; None where the model's folder says whom to compare with, if anybody."""
        return "model" if self.model is not None else "run" if self.run not in (None, DATA) else None


class EvaluateTasks(TasksSection):
    """The choice of tasks."""

    split: Literal["train", "validation", "test"] = key("validation", "the environment's split")
    n: int | None = key(50, "number of tasks; null = all", ge=1, grows=("evaluate",))


class EvaluateConfig(EnvConfig):
    """Keys of `evaluate`."""

    about: ClassVar[str] = (
        "Play a policy on held-out tasks and report success with intervals; compare two policies on the same tasks."
    )
    examples: ClassVar[tuple[tuple[str, str], ...]] = (
        ("", "the embedded model on 50 validation tasks of the shop"),
        ("policy.model=runs/dpo/model against.model=my/model", "compare two models on the same tasks"),
        ("policy.model=my/model test_time.algorithm=mcts test_time.simulations=16", "with search at test time"),
    )

    tasks: EvaluateTasks = section(EvaluateTasks, "which tasks")
    policy: PolicySection = section(PolicySection, "the policy that is evaluated")
    attempts: int = key(
        4, "sampled attempts of each task at policy.temperature; 0 = none", ge=0, le=10**6, grows=("evaluate",)
    )
    greedy: bool = key(True, "also one greedy attempt of each task")
    max_steps: int = key(
        0, f"actions in one episode; one that uses them up is a failure of its own kind; {OWN_STEPS}", ge=0, le=10**5
    )
    in_flight: int = key(64, "episodes played at once", ge=1, le=10**6, free=True)
    test_time: TestTimeSection = section(TestTimeSection, "search at test time")
    search: SearchSection = section(SearchSection, "the search of test_time.algorithm=mcts")
    reward: RewardSection = section(RewardSection, "weights of the composite reward that guides mcts")
    against: AgainstSection = section(AgainstSection, "whom to compare with")
    confidence: float = confidence_key(0.95, "of the intervals")
    resamples: int = key(10_000, "bootstrap resamples of the tasks", ge=100, le=10**7)

    def against_run(self) -> str | None:
        """Return the run directory to compare with; None where there is none."""
        if self.against.run != DATA:
            return self.against.run
        return None if self.against.model is not None else data_policy(self.policy.model)

    def other_policy(self) -> PolicySection | None:
        """Return the policy that is played beside the one that is evaluated; None where none is.

        Raises:
            ConfigError: The policy of the search `against.run` cannot be made again from what is stored.
        """
        if self.against.model is not None:
            return self.policy.model_copy(update={"model": self.against.model})
        run = self.against_run()
        if run is None:
            return None
        try:
            manifest = read_manifest(Path(run))
            if manifest["command"] != "build_prefs":
                raise ValueError(f"a run of {manifest['command']}; `compare` compares finished evaluations")
            stored, env = json.dumps(manifest["config"]["policy"]), manifest["config"]["env"]
            found = PolicySection.model_validate_json(stored)
        except (DataError, ValueError, TypeError, KeyError) as error:
            if self.against.run == DATA:
                return None  # what the model's folder names may be gone
            raise ConfigError(f"against.run: {run} is no search (build_prefs): {error}") from error
        if self.against.run == DATA:
            same = env == self.env.model_dump(mode="json")
            return found if same and found.url is None else None
        if MASK in stored:
            raise ConfigError(
                f"against.run: the policy of {run} had a secret key, which is not stored; evaluate that "
                "policy with it, and name that run here"
            )
        return found

    @model_validator(mode="after")
    def _something(self) -> EvaluateConfig:
        if not self.attempts and not self.greedy and self.test_time.algorithm == "none":
            raise ValueError("attempts: nothing to play; set attempts=4, greedy=true or test_time.algorithm=mcts")
        if self.against.run not in (None, DATA) and self.against.model is not None:
            raise ValueError("against: give either against.run or against.model")
        return self
