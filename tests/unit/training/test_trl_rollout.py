"""What GRPOTrainer is given: a row for every prompt, agent tokens alone, and nothing scored that was not judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from examples.bandit import Bandit
from offline_agent.envs.base import EnvSpec
from offline_agent.errors import ConfigError, PolicyError
from offline_agent.policies.base import DEFAULT_MODEL, Answer, Engine, Proposals, ProposeRequest, Usage
from offline_agent.policies.engines import InlineEngine
from offline_agent.records import Task, ToolCall
from offline_agent.rendering.columns import trajectory_columns
from offline_agent.rendering.renderer import Renderer
from offline_agent.training.trl_rollout import RolloutFunc, prompts, reward, rollout_func

RENDERER = Renderer.load(DEFAULT_MODEL)


class Wavering(Bandit):
    """Some machines cannot be judged, some cannot be opened."""

    def reset(self, machine: int) -> str:
        if machine == 13:
            raise OSError("the machine is broken")
        return super().reset(machine)

    def get_reward(self) -> float | None:  # type: ignore[override]
        return None if self._machine in (7, 13) else super().get_reward()


class Puller:
    """Pulls the right arm for even seeds, else the left one; says nothing where told so. Every id has logp -0.5."""

    name, batch_invariant, max_tokens = "puller", True, 64
    identity: dict[str, object] = {}

    def __init__(self, silent: Sequence[int] = (), ids: bool = True) -> None:
        self.renderer: Renderer | None = RENDERER
        self.silent, self.ids = silent, ids
        self.asked: list[ProposeRequest] = []
        self.taken: list[Any] = []

    def take_weights(self, model: Any) -> None:
        self.taken.append(model)

    def propose(self, requests: Sequence[ProposeRequest]) -> list[Answer]:
        return [self.answer(request) for request in requests]

    def answer(self, request: ProposeRequest) -> Answer:
        self.asked.append(request)
        if request.context.task.args["machine"] in self.silent:
            return PolicyError("no answer")
        text = RENDERER.write("", ToolCall("right" if request.seeds[0] % 2 == 0 else "left", {}))
        action = RENDERER.parse_text(text)
        if not self.ids:
            return Proposals((action,))
        ids = RENDERER.encode_action(action)
        return Proposals((RENDERER.parse(ids, [-0.5] * len(ids)),), Usage(len(ids)))

    def engine(self) -> Engine:
        return InlineEngine(self)  # type: ignore[arg-type]

    def close(self) -> None:
        pass


def trainer(**changes: Any) -> SimpleNamespace:
    """Return what a roll-out function reads of a GRPOTrainer."""
    usual = dict(
        state=SimpleNamespace(global_step=0), model=SimpleNamespace(training=True), temperature=1.0, tools=[],
        accelerator=SimpleNamespace(process_index=0, unwrap_model=lambda model: model), top_p=1.0, top_k=0, min_p=None,
        repetition_penalty=1.0, processing_class=RENDERER.tokenizer, mask_truncated_completions=False,
        eos_token_ids=[RENDERER.end_id], use_vllm=False, is_fsdp_enabled=False, is_deepspeed_enabled=False,
    )  # fmt: skip
    return SimpleNamespace(**{**usual, **changes})


def asked(*machines: int) -> list[Any]:
    tasks = {m: Task(f"machine-{m}", "train", {"machine": m}) for m in machines}
    rows = dict(zip(tasks, prompts(tasks.values())["prompt"], strict=True))
    return [rows[machine] for machine in machines]


def playing(policy: Puller, env: type = Bandit, **options: Any) -> RolloutFunc:
    return rollout_func(EnvSpec(env), policy, max_steps=2, **options)


@pytest.fixture
def policy() -> Puller:
    return Puller()


@pytest.fixture
def play(policy: Puller) -> Iterator[RolloutFunc]:
    with playing(policy) as made:
        yield made


def test_every_prompt_gets_an_episode_of_its_own_in_its_place(play: RolloutFunc, policy: Puller) -> None:
    machines = [3, 1, 3, 2, 1, 3]
    out = play(asked(*machines), trainer())
    assert [a.task.args["machine"] for a in play.attempts] == machines
    assert len({request.seeds for request in policy.asked}) == len(machines)
    for ids, attempt in zip(out["prompt_ids"], play.attempts, strict=True):
        assert f"Machine {attempt.task.args['machine']} " in RENDERER.decode(ids)
    assert out["reward"] == [a.verdict.score for a in play.attempts] and None not in out["reward"]
    assert all(len(values) == len(machines) for values in out.values())


def test_rows_are_what_the_certificate_says(play: RolloutFunc) -> None:
    out = play(asked(1, 2), trainer())
    for at, attempt in enumerate(play.attempts):
        columns = trajectory_columns(RENDERER, attempt.context)
        start = len(out["prompt_ids"][at])
        assert out["prompt_ids"][at] + out["completion_ids"][at] == columns["input_ids"]
        assert [0] * start + out["env_mask"][at] == columns["action_mask"]
        assert out["logprobs"][at] == columns["logps"][start:]
        assert RENDERER.decode(out["completion_ids"][at]).startswith("<tool_call>")


def test_an_episode_that_ends_on_an_observation_ends_with_its_last_turn(play: RolloutFunc) -> None:
    out = play(asked(1), trainer())
    assert play.attempts[0].steps[-1].observation is not None
    assert out["completion_ids"][0][-1] == RENDERER.end_id and out["env_mask"][0][-1] == 1


@pytest.mark.parametrize(
    ("machine", "why"), [(7, "cannot be judged"), (13, "the machine is broken"), (5, "the policy failed: no answer")]
)
def test_what_was_not_judged_is_unscored_and_not_one_token_of_it_counts(machine: int, why: str) -> None:
    with playing(Puller(silent=[5]), Wavering) as play:
        out = play(asked(2, machine), trainer())
    assert out["reward"][0] is not None and sum(out["env_mask"][0]) > 0
    assert out["reward"][1] is None and out["success"][1] is None and why in out["error"][1]
    assert len(out["completion_ids"][1]) >= 1 and len(out["prompt_ids"][1]) >= 1  # TRL fails on an empty one
    assert sum(out["env_mask"][1]) == 0
    assert len(out["env_mask"][1]) == len(out["completion_ids"][1]) == len(out["logprobs"][1])


def test_seeds_depend_on_the_trainers_step_and_the_process_but_not_on_what_was_evaluated_before() -> None:
    def seeds(*calls: dict[str, Any]) -> list[int]:
        policy = Puller()
        with playing(policy) as play:
            for call in calls:
                before = len(policy.asked)
                play(asked(1, 1), trainer(**call))
        return [request.seeds[0] for request in policy.asked[before:]]

    def at(step: int, rank: int = 0, training: bool = True) -> dict[str, Any]:
        accelerator = SimpleNamespace(process_index=rank, unwrap_model=lambda model: model)
        model = SimpleNamespace(training=training)
        return {"state": SimpleNamespace(global_step=step), "accelerator": accelerator, "model": model}

    third = seeds(at(0), at(1), at(2))
    assert third == seeds(at(2)) == seeds(at(2, training=False), at(2))
    others = [seeds(at(1)), seeds(at(2), at(2)), seeds(at(2, rank=1)), seeds(at(2, training=False))]
    assert len({*third, *(seed for pair in others for seed in pair)}) == 10


def test_weights_are_taken_once_for_each_of_the_trainers_steps(play: RolloutFunc, policy: Puller) -> None:
    one = trainer()
    for step in (0, 0, 1, 1, 2):
        one.state.global_step = step
        play(asked(1), one)
    assert policy.taken == [one.model] * 3


def test_refresh_stands_in_for_taking_weights(policy: Puller) -> None:
    told: list[Any] = []
    with playing(policy, refresh=told.append) as play:
        one = trainer(is_fsdp_enabled=True)
        play(asked(1), one)
    assert told == [one] and not policy.taken


def test_the_temperature_is_the_trainers_and_logprobs_are_left_out_where_theirs_are_others(
    play: RolloutFunc, policy: Puller
) -> None:
    out = play(asked(1), trainer(temperature=0.7))
    assert {request.temperature for request in policy.asked} == {0.7} and out["logprobs"] is None


def test_settings_under_which_other_tokens_would_be_trained_are_refused_all_at_once(play: RolloutFunc) -> None:
    other = SimpleNamespace(get_vocab=lambda: {"a": 0})
    wrong = trainer(
        tools=[print], top_p=0.9, processing_class=other, mask_truncated_completions=True, eos_token_ids=[0],
        use_vllm=True, temperature=0.5, is_deepspeed_enabled=True,
    )  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        play(asked(1), wrong)
    faults = "\n".join(caught.value.faults)
    assert len(caught.value.faults) == 6
    for word in ("env_mask", "top_p: got 0.9", "processing_class", "mask_truncated", "use_vllm", "sharded"):
        assert word in faults


def test_a_prompt_without_a_task_is_refused(play: RolloutFunc) -> None:
    with pytest.raises(ConfigError, match=r"prompt 1 names no task.*prompts\(tasks\)"):
        play([*asked(1), [{"role": "user", "content": "Pull."}]], trainer())


def test_policies_that_cannot_be_trained_with_this_are_refused() -> None:
    policy = Puller()
    policy.renderer = None
    with pytest.raises(ConfigError, match="no tokenizer"):
        playing(policy)
    with pytest.raises(ConfigError, match="take_weights"):
        rollout_func(EnvSpec(Bandit), SimpleNamespace(name="server", renderer=RENDERER))  # type: ignore[arg-type]
    with playing(Puller(ids=False)) as play, pytest.raises(ConfigError, match="no token ids"):
        play(asked(1), trainer())


def test_rewards_are_passed_on_and_those_of_other_rollouts_refused() -> None:
    told: dict[str, float] = {}
    got = reward(
        [0, 0, 0], reward=[1.0, None, 0.5], success=[True, None, False], log_metric=told.__setitem__, prompts=[]
    )
    assert got == [1.0, None, 0.5] and told == {"success": 0.5, "unscored": 1 / 3}
    with pytest.raises(ConfigError, match="rollout_func"):
        reward([0, 0])


def trained(folder: Path, policy: Puller, env: type, machines: Sequence[int], **changes: Any) -> tuple[Any, Any]:
    """Take one update of a plain GRPOTrainer; return it and the batch its loss was given."""
    from transformers import AutoModelForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    settings = dict(
        output_dir=str(folder), max_steps=1, per_device_train_batch_size=8, num_generations=4, learning_rate=1e-3,
        use_cpu=True, bf16=False, gradient_checkpointing=False, report_to="none", save_strategy="no",
        shuffle_dataset=False, disable_tqdm=True, mask_truncated_completions=True, beta=0.1,
    )  # fmt: skip
    with playing(policy, env) as play:
        made = GRPOTrainer(
            AutoModelForCausalLM.from_pretrained(DEFAULT_MODEL), reward, GRPOConfig(**{**settings, **changes}),
            prompts(Task(f"machine-{m}", "train", {"machine": m}) for m in machines),
            processing_class=RENDERER.tokenizer, rollout_func=play,
        )  # fmt: skip
        batches: list[Any] = []
        loss = made._compute_loss
        made._compute_loss = lambda model, inputs: (batches.append(inputs), loss(model, inputs))[1]
        made.train()
    return made, batches[0]


@pytest.mark.parametrize("loss", ["grpo", "dapo"])
def test_trl_leaves_unscored_episodes_out_of_group_mask_and_weights(tmp_path: Path, loss: str) -> None:
    policy = Puller(silent=[5])
    made, batch = trained(tmp_path, policy, Wavering, [2, 5], loss_type=loss)
    masks = (batch["completion_mask"] * batch["tool_mask"]).sum(1)
    unscored = masks == 0
    assert unscored.sum() == 4 and (batch["advantages"][unscored] == 0).all()
    assert int(batch["num_items_in_batch"]) == int(masks.sum())
    assert made.state.log_history[0]["unscored"] == 0.5
    assert all(bool(torch.isfinite(weights).all()) for weights in made.model.parameters())


def test_a_batch_in_which_nothing_was_judged_changes_nothing(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    made, batch = trained(tmp_path, Puller(), Wavering, [7, 13], weight_decay=0.0)
    assert int((batch["completion_mask"] * batch["tool_mask"]).sum()) == 0
    before = dict(AutoModelForCausalLM.from_pretrained(DEFAULT_MODEL).named_parameters())
    assert all(torch.equal(weights, before[name]) for name, weights in made.model.named_parameters())
