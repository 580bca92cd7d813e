"""The held-out evaluations of a loop: tasks of its own for each iteration, the incumbent beside the candidates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.errors import TrainingError
from offline_agent.launch.loop_stages import LoopStages, Model, write_tasks
from offline_agent.report.closing import interval

if TYPE_CHECKING:
    from offline_agent.evaluation.curriculum import Choice
    from offline_agent.evaluation.gate import Decision, Look
    from offline_agent.launch.stages import Say, Stage
    from offline_agent.records import Task

Run = Callable[["Stage", dict[str, float], Mapping[str, Path]], dict[str, Any]]


@dataclass
class Iteration:
    """The results that one iteration of the loop has so far."""

    number: int
    choice: Choice
    built: Mapping[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    candidates: list[Model] = field(default_factory=list)
    proposed: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Judging:
    """Evaluates models and asks the gate about them.

    Args:
        plan: Makes the stages.
        tasks: Held-out tasks that the iterations' are drawn from.
        run: Runs a stage, notes its seconds and what it consumed, and returns its summary.
        say: Called with each line for the user.
    """

    plan: LoopStages
    tasks: Sequence[Task]
    run: Run
    say: Say
    summaries: dict[Path, Mapping[str, Any]] = field(default_factory=dict)
    looks: list[Look] = field(default_factory=list)

    def incumbent(self, iteration: int, model: Model, seconds: dict[str, float]) -> Model:
        """Return the model, evaluated on the iteration's tasks; it is not played again where it was already."""
        if model.evaluation is not None and model.evaluation.parent == self.plan.folder(iteration):
            return model
        return self._evaluated(iteration, "evaluate_incumbent", model, seconds)

    def judge(
        self, iteration: int, incumbent: Model, candidates: list[Model], seconds: dict[str, float]
    ) -> dict[str, Decision]:
        """Return the gate's decision on each candidate, by the stage that made it.

        Args:
            iteration: Its number.
            incumbent: Evaluated on this iteration's tasks: one that was chosen for its figures gets new ones first.
            candidates: In the order in which they were trained; replaced by the evaluated ones.
            seconds: Takes what each stage took.
        """
        from offline_agent.evaluation.gate import Look, decide, needed_confidence, outcomes

        assert incumbent.evaluation is not None  # evaluated by `incumbent`
        gate = self.plan.config.gate
        decisions: dict[str, Decision] = {}
        if not candidates:
            return decisions
        needed = needed_confidence(gate.confidence, self.looks, len(candidates))
        for number, candidate in enumerate(candidates):
            maker = candidate.name.rpartition("/")[2]
            last = number == len(candidates) - 1
            name = "evaluate" if last else f"evaluate_{maker.removeprefix('train_')}"
            judged = self._evaluated(iteration, name, candidate, seconds)
            candidates[number] = judged
            assert judged.evaluation is not None  # just made
            decision = decisions[maker] = decide(
                outcomes(judged.evaluation), outcomes(incumbent.evaluation), gate, needed=needed,
                seed=self.plan.seed(iteration, "gate"),
            )  # fmt: skip
            self.say(
                f"iterate: iteration {iteration}: {maker} succeeds in {interval(self.success(judged))}, the incumbent "
                f"in {interval(self.success(incumbent))}; {decision.reason}"
            )
        self.looks.append(Look(len(candidates), sum(decision.passed for decision in decisions.values())))
        return decisions

    def success(self, model: Model) -> dict[str, Any]:
        """Return mean, low and high of the sampled attempts' success in a model's last evaluation."""
        assert model.evaluation is not None  # every model is evaluated before it is spoken of
        try:
            figures = self.summaries[model.evaluation]["modes"]["sampled"]["success"]
            return {name: figures[name] for name in ("mean", "low", "high")}
        except KeyError as error:
            raise TrainingError(f"{model.evaluation / 'summary.json'}: no figure {error} in it") from error

    def record(self, one: Iteration, incumbent: Model, decisions: Mapping[str, Decision]) -> dict[str, Any]:
        """Return what an iteration came to, as in summary.json."""
        from offline_agent.evaluation.gate import best

        promoted = best(decisions)
        if promoted is not None:
            reason = decisions[promoted].reason
        elif decisions:
            reason = "; ".join(f"{name} {decision.reason}" for name, decision in decisions.items())
        else:
            reason = "nothing was trained: " + "; ".join(one.notes)
        return {
            "iteration": one.number,
            "tasks": {"searched": len(one.choice.tasks), "new": one.choice.new, "solved": one.choice.solved},
            "simulations": one.built["simulations"],
            "search_success": one.built["success"],
            "pairs": one.built["pairs"],
            "pairs_total": one.built["pairs_total"],
            "filtered": one.built["filtered"],
            "incumbent": {"model": incumbent.name, "success": self.success(incumbent)},
            "candidates": {
                candidate.name.rpartition("/")[2]: {"success": self.success(candidate), **decision.to_json()}
                for candidate, decision in zip(one.candidates, decisions.values(), strict=True)
            },
            "promoted": promoted,
            "reason": reason,
            "notes": one.notes,
            **({"proposed": one.proposed} if one.proposed else {}),
        }

    def _evaluated(self, iteration: int, name: str, model: Model, seconds: dict[str, float]) -> Model:
        from offline_agent.evaluation.gate import rotated

        config = self.plan.config
        numbers = rotated(len(self.tasks), config.held_out.n, iteration, config.seed)
        file = self.plan.folder(iteration) / "held_out.jsonl"
        write_tasks(file, (self.tasks[number] for number in numbers))
        stage = self.plan.evaluate(iteration, name, model, file)
        self.summaries[stage.path] = self.run(stage, seconds, {model.name: model.folder})
        return replace(model, evaluation=stage.path)
