"""Recipes of `arms.py`: ways to collect, rounds, arms, and the suites they are tried on, as keys of the commands."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from offline_agent.policies.hf.gguf import cache


@dataclass(frozen=True)
class Round:
    """One round of an arm.

    Attributes:
        collect: Name in `COLLECT` of the keys of `build_prefs`; "" = an online round, which collects nothing.
        times: Factor of the epochs of fine-tuning on the successes; 0 = no fine-tuning.
        dpo: Keys of `train_dpo` on the pairs, after the fine-tuning; None = none.
        pairs: Which pairs it learns from in `Suite.alone` updates: one of `_pairs.WAYS`, or `step`, the run's own step
            pairs; "" = all of the run, for the epochs that `dpo` says.
        longer: How much `times` of the control with longer fine-tuning is greater, where there is `dpo`; on FrozenLake
            the control takes about as many updates as fine-tuning and `dpo` together.
        agree: Attempts at a held-out task, of which the one with the commonest end counts; 0 = each attempt counts.
        again: Whether the warm start is fine-tuned anew on the successes of all rounds so far, in place of the model
            so far on those of this round.
        further: Whether fine-tuning goes on for `Suite.alone` updates, on a new schedule: the control of `pairs`.
        online: Keys of `refine_grpo`, in an online round.
        against: The round that it is compared with, after the same rounds; "" = only the usual controls.
    """

    collect: str
    times: int = 1
    dpo: tuple[str, ...] | None = None
    pairs: str = ""
    longer: int = 1
    agree: int = 0
    again: bool = False
    further: bool = False
    online: tuple[str, ...] | None = None
    against: str = ""


_SETTLED = (
    "search.simulations=16", "search.until=success", "search.repeated_states=close",
    "pairs.per_node=4", "pairs.per_task=32", "pairs.per_depth=16",
)  # fmt: skip
_STATES = (*_SETTLED, "pairs.decisive=true")
COLLECT: dict[str, tuple[str, ...]] = {
    "attempts": ("search.algorithm=best_of_n", "search.simulations=4"),
    "retries": ("search.algorithm=best_of_n", "search.simulations=16", "search.until=success"),
    "need": ("search.simulations=16", "search.until=success"),
    "states": _STATES,
    "settled": _SETTLED,
}
"""Ways to collect. `need`: four attempts, and a tree from them where all four failed; `retries`: further plain attempts
there, the control of `need`; `states`: as `need`, over states in place of histories, with decisive pairs;
`settled`: as `states`, without decisive pairs."""

_BOTH = ("data.kinds=[step,trajectory]",)
_LONG = (*_BOTH, "optimizer.learning_rate=1e-4", "optimizer.epochs=4", "dpo.sft=0.3")
_TWICE = (*_BOTH, "optimizer.learning_rate=1e-4", "optimizer.epochs=8", "dpo.sft=0.3")
MANY = "optimizer.epochs=1000"  # more than `optimizer.max_updates` takes
_ALONE = (*_LONG[1:2], MANY, "dpo.sft=0.3")
"""However many pairs there are, `Suite.alone` updates."""

ROUNDS: dict[str, Round] = {
    "attempts": Round("attempts"),
    "retries": Round("retries"),
    "need": Round("need"),
    "states": Round("states"),
    "states, pairs alone": Round("states", times=0, dpo=_LONG, against="states+thrice, all data"),
    "states, all data": Round("states", again=True),
    "states+updates, all data": Round("states", times=2, again=True),
    "states+updates+further, all data": Round("states", times=2, again=True, further=True),
    "states+thrice, all data": Round("states", times=3, again=True),
    "states+four times, all data": Round("states", times=4, again=True),
    "states+ten times, all data": Round("states", times=10, again=True),
    "states+updates+dpo, all data": Round("states", times=2, again=True, dpo=_LONG),
    "states+thrice+dpo, all data": Round("states", times=3, again=True, dpo=_LONG),
    "states+thrice+dpo twice, all data": Round("states", times=3, again=True, dpo=_TWICE, longer=2),
    "states+updates+dpo+agree, all data": Round("states", times=2, again=True, dpo=_LONG, agree=4),
    "settled+updates+dpo, all data": Round(
        "settled", times=2, again=True, dpo=_LONG, against="states+updates+dpo, all data"
    ),
    "states+updates+step, all data": Round(
        "states", times=2, again=True, dpo=(*_ALONE, "data.kinds=[step]"), pairs="step"
    ),
    "states+updates+estimated, all data": Round(
        "states", times=2, again=True, dpo=_ALONE, pairs="estimated", against="states+thrice, all data"
    ),
    "states+updates+critical, all data": Round(
        "states", times=2, again=True, dpo=_ALONE, pairs="critical", against="states+updates+estimated, all data"
    ),
    "states+updates+likely, all data": Round(
        "states", times=2, again=True, dpo=_ALONE, pairs="likely", against="states+updates+critical, all data"
    ),
    "states+updates+solver, all data": Round(
        "states", times=2, again=True, dpo=_ALONE, pairs="solver", against="states+updates+critical, all data"
    ),
    "retries+updates+estimated, all data": Round(
        "retries", times=2, again=True, dpo=_ALONE, pairs="estimated", against="retries+thrice, all data"
    ),
    "retries+thrice, all data": Round("retries", times=3, again=True),
    "retries+nine times, all data": Round("retries", times=9, again=True),
    "retries+ten times, all data": Round("retries", times=10, again=True),
    "attempts, all data": Round("attempts", again=True),
    "retries, all data": Round("retries", again=True),
    "attempts+updates, all data": Round("attempts", times=2, again=True),
    "retries+updates, all data": Round("retries", times=2, again=True),
    "retries+updates+dpo, all data": Round("retries", times=2, again=True, dpo=_LONG),
    "need, all data": Round("need", again=True),
    "need+updates, all data": Round("need", times=2, again=True),
    "need+dpo, all data": Round("need", again=True, dpo=_BOTH),
    "grpo": Round("", times=0, online=()),
}

ARMS: dict[str, tuple[str, ...]] = {
    "attempts": ("attempts",) * 5,
    "attempts, all data": ("attempts", *("attempts, all data",) * 4),
    "attempts, all data, more updates": ("attempts", *("attempts, all data",) * 3, "attempts+updates, all data"),
    "retries, all data, more updates": ("retries", "retries, all data", "retries+updates, all data"),
    "need, all data": ("need", "need, all data", "need, all data"),
    "need, more updates": ("need", "need, all data", "need+updates, all data"),
    "need, then dpo": ("need", "need, all data", "need+dpo, all data"),
    "states, more updates": ("states", "states, all data", "states+updates, all data"),
    "states, thrice the updates": ("states", "states, all data", "states+thrice, all data"),
    "states, four times the updates": ("states", "states, all data", "states+four times, all data"),
    "states, then dpo": ("states", "states, all data", "states+updates+dpo, all data"),
    "states, thrice the updates, then dpo": ("states", "states, all data", "states+thrice+dpo, all data"),
    "states, thrice the updates, then dpo twice": ("states", "states, all data", "states+thrice+dpo twice, all data"),
    "states, then dpo, then agreement": ("states", "states, all data", "states+updates+dpo+agree, all data"),
    "one round, more updates": ("states+updates, all data",),
    "one round, thrice the updates": ("states+thrice, all data",),
    "one round, ten times the updates": ("states+ten times, all data",),
    "one round of retries, thrice the updates": ("retries+thrice, all data",),
    "one round of retries, ten times the updates": ("retries+ten times, all data",),
    "one round, then further updates": ("states+updates+further, all data",),
    "one round, then dpo": ("states+updates+dpo, all data",),
    "one round, then dpo of settled pairs": ("settled+updates+dpo, all data",),
    "one round, then step pairs": ("states+updates+step, all data",),
    "one round, then estimated pairs": ("states+updates+estimated, all data",),
    "one round, then critical pairs": ("states+updates+critical, all data",),
    "one round, then likely pairs": ("states+updates+likely, all data",),
    "one round, then the solver's pairs": ("states+updates+solver, all data",),
    "one round of retries, then estimated pairs": ("retries+updates+estimated, all data",),
    "one round, then searched again": ("states+thrice, all data", "states, pairs alone"),
    "two rounds, thrice the updates": ("states+thrice, all data", "states+thrice, all data"),
    "retries, four rounds": ("retries", "retries, all data", "retries, all data", "retries+thrice, all data"),
    "retries, thrice the updates": ("retries", "retries, all data", "retries+thrice, all data"),
    "retries, nine times the updates": ("retries", "retries, all data", "retries+nine times, all data"),
    "retries, then dpo": ("retries", "retries, all data", "retries+updates+dpo, all data"),
    "grpo": ("grpo",) * 4,
    "grpo, two rounds": ("grpo",) * 2,
    "grpo, three rounds": ("grpo",) * 3,
    "states, then dpo, then one grpo": ("states", "states, all data", "states+updates+dpo, all data", "grpo"),
    "states, then dpo, then grpo": ("states", "states, all data", "states+updates+dpo, all data", "grpo", "grpo"),
}
"""Rounds by arm."""

ORDER: tuple[tuple[str, ...], ...] = (
    (),
    ARMS["one round, more updates"],
    ARMS["one round, then dpo"],
    ARMS["states, then dpo"],
    ARMS["states, then dpo, then agreement"],
)
"""AgentQ's order: warm start, fine-tuning, preferences, iterated, with more than one attempt at test time (a vote)."""

PLAIN = {
    name for name, one in ROUNDS.items() if one.collect in ("attempts", "retries") and one.dpo is None
}
"""Rounds without a tree and without preferences: the control."""
ONLINE = {name for name, one in ROUNDS.items() if one.online is not None}
"""Online rounds."""


@dataclass(frozen=True)
class Suite:
    """One environment.

    Attributes:
        environment: Keys that name it.
        collect: Keys of every `build_prefs`.
        tuning: Keys of every `train_sft` beside its epochs.
        epochs: Of a `train_sft`.
        dpo: Keys of every `train_dpo`.
        alone: Updates of a `train_dpo` on pairs of one kind, and of `Round.further`.
        kind: Further keys of a `train_dpo` on pairs of one kind; they replace those of `dpo` and of the round.
        online: Keys of every `refine_grpo`.
        evaluate: Keys of every `evaluate`.
        warm: Keys of the `train_sft` that makes the warm start; none = the embedded default.
        warm_each: Whether each seed trains a warm start of its own; else all seeds share one.
        tasks: New train tasks of a round.
        first: The first seed's first train task; those before it made the warm start.
        apart: Distance of the seeds' first train tasks; where an arm takes more tasks, seeds share some of them.
        pool: Train tasks that an online round draws from.
        fold: The first held-out task of each split; test tasks before it were looked at earlier.
        held_out: Held-out tasks.
    """

    environment: tuple[str, ...]
    collect: tuple[str, ...]
    tuning: tuple[str, ...]
    dpo: tuple[str, ...]
    epochs: int
    alone: int = 60
    kind: tuple[str, ...] = ()
    online: tuple[str, ...] = ()
    evaluate: tuple[str, ...] = ()
    warm: tuple[str, ...] = ()
    warm_each: bool = False
    tasks: int = 300
    first: int = 0
    apart: int = 1500
    pool: int = 1500
    fold: int = 0
    held_out: int = 200

    def sft(self, times: int = 1) -> tuple[str, ...]:
        """Return the keys of a `train_sft`, with so many times the suite's epochs."""
        return (*self.tuning, f"optimizer.epochs={times * self.epochs}")

    def in_float32(self) -> Suite:
        """Return the suite without keys of bfloat16, for processors that have no instructions for it."""
        removed = ("policy.dtype=bfloat16", "model.dtype=mixed")
        changes: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple):
                changes[field.name] = tuple(key for key in value if key not in removed)
        return replace(self, **changes)

    def start(self, seed: int) -> tuple[str, tuple[str, ...]]:
        """Return the run directory of a seed's warm start, from the seed's folder, and its `train_sft`'s keys."""
        return ("warm", (*self.warm, f"seed={seed}")) if self.warm_each else ("../warm", self.warm)


_COMMON = ("pairs.kinds=[step,trajectory]", "pairs.rejudge=0", "filtered.origins=[search,rollout]")
_GENTLE = ("optimizer.learning_rate=5e-5", "optimizer.epochs=2", "dpo.sft=0.1", "anchor.weight=0.5")
GRPO = ("rollouts.reward=success", "objective.kl=0.0", "optimizer.learning_rate=2e-4", "watch.stop=[mask]")
_WIDE = (*GRPO, "rollouts.tasks=16", "rollouts.size=8")
FAMILIES = "environments/offline_agent_environments"
_COOKING = ("env=textworld", "env.game=cookingworld")
_COOKING += ("env.params=numLocations=1,numIngredients=1,numDistractorItems=2,includeDoors=0",)
LAKE = ("env=examples.frozen_lake:FrozenLake",)

SMOLLM2 = str(cache() / "SmolLM2-135M-Instruct")
"""Where `make model` puts it."""
_PRETRAINED = (f"model.path={SMOLLM2}", "model.chat_template=compact")
_PLAY = ("policy.temperature=1.0", "policy.dtype=bfloat16")
# packs small enough that activations are kept
_MIXED = ("batch.rows=16", "batch.tokens=2048", "batch.gradient_checkpointing=false", "model.dtype=mixed")


def _countdown(n: int, pretrained: bool) -> Suite:
    """Return Countdown with n numbers, for SmolLM2-135M or a model from scratch; both learnt from the solver first."""
    environment = ("env=countdown", f"env.n={n}")
    rate = "1e-4" if pretrained else "1e-3"
    plays = 2000 if pretrained or n == 3 else 6000  # there are 8,353 train tasks with three numbers
    learner: tuple[str, ...] = _PRETRAINED
    play, batch = _PLAY, _MIXED
    if not pretrained:
        play, batch = _PLAY[:1], _MIXED[:1]
        learner = ("scratch.layers=4", "scratch.hidden_size=128", "scratch.vocabulary=300", "scratch.reading=0")
    return Suite(
        environment=environment,
        collect=(*_COMMON, "search.value=success", "filtered.per_task=6", *play),
        tuning=(f"optimizer.learning_rate={rate}", *batch),
        epochs=2 if pretrained else 4,
        alone=12 if pretrained else 60,
        dpo=(*_GENTLE, *batch),
        online=(*GRPO, "rounds=20", "rollouts.tasks=8", "rollouts.size=8", *batch[1:]),
        evaluate=play,
        warm=(*environment, *learner, f"tasks.n={plays}", "batch.rows=16",
              f"optimizer.learning_rate={rate}", f"optimizer.epochs={1 if pretrained else 4}"),
        tasks=100 if pretrained else 300,
        first=plays,
        held_out=400,
    )  # fmt: skip


SUITES = {
    "countdown": _countdown(4, pretrained=False),
    "countdown-easy": _countdown(3, pretrained=False),
    "countdown-smollm2": _countdown(4, pretrained=True),
    "countdown-easy-smollm2": _countdown(3, pretrained=True),
    "shop": Suite(
        environment=("env=shop",),
        collect=(*_COMMON, "search.value=success", "filtered.per_task=6"),
        tuning=("optimizer.learning_rate=5e-4",),
        epochs=2,
        dpo=_GENTLE,
        online=(*_WIDE, "rounds=10"),
        fold=200,
    ),
    "cookingworld": Suite(
        environment=_COOKING,
        collect=(*_COMMON, "search.max_steps=20", "filtered.per_task=4"),
        tuning=("optimizer.learning_rate=5e-4", "batch.rows=4"),
        epochs=3,
        dpo=(*_GENTLE, "batch.rows=8"),
        # the best of nine on validation games
        online=(*GRPO, "rounds=20", "rollouts.tasks=4", "rollouts.size=8", "rollouts.max_steps=20"),
        evaluate=("max_steps=20",),
        warm=("--config", f"{FAMILIES}/textworld/configs/train_sft.yaml", *_COOKING, "tasks.n=350"),
        warm_each=True,  # they solved 34 to 53 % of the test games
        tasks=150,
        first=350,
        apart=100,  # the game has 1,000 train tasks
        pool=450,
        held_out=100,
    ),
    "frozenlake": Suite(
        environment=LAKE,
        collect=(*_COMMON, "search.value=success", "filtered.per_task=6"),
        tuning=("optimizer.learning_rate=5e-4", "batch.rows=8"),
        epochs=8,  # 16 are no better for attempts
        alone=340,
        dpo=(*_GENTLE, "batch.rows=8"),
        online=(*GRPO, "rounds=20", "rollouts.tasks=8", "rollouts.size=8"),  # the best of nine on validation maps
        warm=(*LAKE, "tasks.n=100", "scratch.layers=3", "scratch.hidden_size=96", "scratch.reading=2",
              "scratch.vocabulary=400", "optimizer.learning_rate=2e-3", "optimizer.epochs=6", "batch.rows=8"),
        first=100,
        held_out=130,
    ),  # fmt: skip
    "frozenlake-smollm2": Suite(
        environment=LAKE,
        collect=(*_COMMON, "search.value=success", "filtered.per_task=6", *_PLAY),
        tuning=("optimizer.learning_rate=1e-4", *_MIXED),
        epochs=2,
        alone=64,
        dpo=(*_GENTLE, *_MIXED),
        # trajectories beside them would be three of four tokens; at 1e-4 success fell to 5 %
        kind=("batch.rows=8", "anchor.rows=0", "optimizer.learning_rate=2e-5"),
        evaluate=_PLAY,
        warm=(*LAKE, *_PRETRAINED, "tasks.n=300", "batch.rows=16", "optimizer.learning_rate=1e-4",
              "optimizer.epochs=1"),
        tasks=100,
        first=300,
        held_out=200,
    ),  # fmt: skip
}
