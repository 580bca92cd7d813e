"""Keys and settings of the online stage: rounds, their sampler, the critic. No tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import model_validator

from offline_agent.envs.settings import OWN_STEPS
from offline_agent.records import Trajectory
from offline_agent.sections import Section, key
from offline_agent.training.online.objectives import Correction, ObjectiveSection


class RolloutsSection(Section):
    """The roll-outs of a round."""

    tasks: int = key(8, "groups, one task each", ge=1)
    size: int = key(8, "roll-outs of a group; 16 is markedly more stable than 4", ge=2)
    temperature: float = key(1.0, "sampling temperature", gt=0)
    max_steps: int = key(0, f"actions in one episode; one that uses them up failed; {OWN_STEPS}", ge=0)
    max_tokens: int = key(
        0, "most tokens of one action; an episode with a longer one failed; 0 = the model's own, as policy.max_tokens",
        ge=0,
    )  # fmt: skip
    credit: Literal["trajectory", "turn_reward", "state"] = key(
        "trajectory",
        "turn_reward = what the environment says that a turn and later ones earned, compared within the group; "
        "state = the episode's, and the turn's return over its state's",
    )
    outcome: float = key(
        1.0, "credit=turn_reward: share of the episode's reward that its last turn earns besides; 0 where the rewards "
        "of turns add up to it", ge=0,
    )  # fmt: skip
    state_weight: float = key(1.0, "credit=state: weight of the comparison within a state", ge=0)
    state_discount: float = key(0.95, "credit=state: discount of the episode's reward, a turn", ge=0, le=1)
    turn_judge: str | None = key(
        None, "credit=turn_reward: the folder of a step model (train_reward labels=steps), or a module:callable that "
        "takes a trajectory and returns what each turn earned, in [0, 1], in place of the environment's turn_reward; "
        "it is divided by the number of turns"
    )  # fmt: skip
    reward: Literal["score", "success"] = key("score", "what an episode is worth: its score, or 1 for success, else 0")
    choice: Literal["learnability", "uniform"] = key(
        "learnability", "how tasks are drawn: by p(1-p) of their success rate p, or all alike"
    )
    rest: int = key(20, "rounds that a task stays away after its whole group succeeded", ge=0)
    redraws: int = key(2, "rounds' worth of tasks that may take the place of groups without spread (dynamic)", ge=0)
    in_flight: int = key(64, "episodes played at once", ge=1, free=True)
    behind: int = key(
        0, "versions of the weights that the sampler may be behind the trainer; from 1 on, rounds are played while "
        "earlier ones are trained on; 0 = one after the other", ge=0,
    )  # fmt: skip


class GroupSettings(RolloutsSection):
    """Settings of rounds: the keys, and what a run decides.

    Attributes:
        judge: Says of a trajectory what each turn earned, in [0, 1], in place of the environment (`turn_judge`).
    """

    judge: Callable[[Trajectory], Sequence[float]] | None = None


class CriticSection(Section):
    """The value head of objectives with a critic (ppo)."""

    gamma: float = key(1.0, "discount a token", gt=0, le=1)
    lam: float = key(
        1.0, "lambda of generalised advantage estimation, a token; below 1 a verdict fades over the tokens before it",
        ge=0, le=1,
    )  # fmt: skip
    clip: float | None = key(0.2, "how far a value may move in a round; null = any", gt=0)
    learning_rate: float | None = key(None, "of the value head; null = ten times optimizer.learning_rate", gt=0)
    trunk: bool = key(False, "whether the value loss also trains the model below the head")


class SamplerSection(Section):
    """The sampler of the actions."""

    name: Literal["hf", "server", "colocated"] = key("hf", "hf: here; server: a vLLM server; colocated: vLLM in here")
    url: str | None = key(
        None, "server: the endpoint, e.g. http://localhost:8000/v1; several with commas between them", free=True
    )
    served: str | None = key(None, "server: the served model's name; null = the only one")
    correction: Correction | None = key(
        None,
        "importance weights for samplers whose log-probabilities differ from the trainer's; they are known at "
        "rollouts.temperature=1 alone; null = token_truncate, off for hf, which computes as the trainer does, with "
        "rollouts.behind=0",
    )
    cap: float = key(3.0, "largest importance weight", gt=0)
    tolerance: float | None = key(
        None, "server, colocated: largest log-probability difference of a probe, nats, at which new weights count as "
        "arrived; null = 0.01, with model.dtype=bfloat16 or mixed 0.5", gt=0,
    )  # fmt: skip
    memory: float = key(0.3, "colocated: share of the GPU's memory that vLLM takes", gt=0, le=1)
    sleep: int = key(0, "colocated: 1 = vLLM gives its memory back while the model is trained", ge=0, le=1)

    def weights(self, behind: int) -> Correction:
        """Return the importance weights: the key's, or those that fit the sampler and `rollouts.behind`."""
        return self.correction or ("off" if self.name == "hf" and not behind else "token_truncate")

    @model_validator(mode="after")
    def _has_an_address(self) -> SamplerSection:
        if self.name == "server" and not self.url:
            raise ValueError("sampler.url: sampler.name=server needs the endpoint, e.g. http://localhost:8000/v1")
        return self


@dataclass(frozen=True)
class OnlineSettings:
    """Settings of how roll-outs become updates: `rounds`, sections, and `rollouts.behind`."""

    rounds: int
    objective: ObjectiveSection = ObjectiveSection()
    critic: CriticSection = CriticSection()
    sampler: SamplerSection = SamplerSection()
    behind: int = 0

    @property
    def per_round(self) -> int:
        """Updates of one round."""
        return self.objective.passes * self.objective.minibatches
