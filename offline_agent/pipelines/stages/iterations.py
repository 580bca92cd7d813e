"""The iterations of `iterate`: stages one after another, the gate, and the model that goes on."""

from __future__ import annotations

import itertools
import shlex
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_agent.config.iterate import IterateConfig
from offline_agent.envs.propose import prompts, proposable
from offline_agent.launch.loop_stages import LoopStages, Model, model_folder, place_model, write_tasks
from offline_agent.launch.stages import Stage, run_stage
from offline_agent.pipelines.stages.held_out import Iteration, Judging
from offline_agent.pipelines.stages.proposing import Proposing
from offline_agent.records import Task
from offline_agent.rendering.styles import template_text
from offline_agent.report.closing import interval
from offline_agent.runner.next_steps import environment_keys
from offline_agent.runner.pipeline import Session
from offline_agent.store.columns import PAIR_TABLES
from offline_agent.store.files import read_json
from offline_agent.store.provenance import hash_path

if TYPE_CHECKING:
    from offline_agent.envs.base import EnvSpec
    from offline_agent.evaluation.curriculum import Choice


class Iterations:
    """The loop of one run. Everything it decides follows from what the stages wrote, so it can be begun anew.

    Args:
        spec: The environment.
        tasks: The tasks that the iterations choose from.
        held_out: Tasks that their evaluations are on, some for each.
        session: The run.
    """

    def __init__(
        self, spec: EnvSpec, tasks: Sequence[Task], held_out: Sequence[Task], session: Session[IterateConfig]
    ) -> None:
        self.environment, self.tasks, self.session, self.config = spec.name, tasks, session, session.config
        self.run_dir = session.run.path.resolve()
        self.plan = LoopStages(self.config, self.run_dir, session.run.manifest["run_id"])
        self.model = self.plan.start()
        self.built: list[Path] = []  # run directories of build_prefs, oldest first
        self.played = [Path(run).resolve() for run in self.config.buffer]  # whatever has verified successes
        self.judging = Judging(self.plan, held_out, self._run, session.say)
        self.proposing = Proposing(spec, tasks, self.config, session.run.quarantine)
        self.told = {record["iteration"] for record in session.run.events().read() if "iteration" in record}
        self.again = f"give the same command again with run_dir={shlex.quote(str(session.run.path))}"

    def run(self) -> dict[str, Any]:
        """Go through all iterations and return the summary."""
        records: list[dict[str, Any]] = []
        stopped = None
        started = self._evaluate_start()
        for number in range(self.config.iterations):
            choice = self._choose(number)
            if not choice.tasks:
                stopped = f"before iteration {number}: only tasks that are always solved are left; give it other tasks"
                self.session.say(f"iterate: stopped {stopped}")
                break
            records.append(self._iterate(Iteration(number, choice)))
        self._place()
        return self._summary(records, started, stopped)

    # -- the parts of an iteration ------------------------------------------------------------------------------

    def _evaluate_start(self) -> dict[str, Any]:
        self.model = self.judging.incumbent(0, self.model, {})
        figures = self.judging.success(self.model)
        self.session.say(f"iterate: the start, {interval(figures)} of the held-out tasks' attempts succeed")
        return figures

    def _choose(self, number: int) -> Choice:
        from offline_agent.evaluation.curriculum import Choice, choose, success_rates

        tasks, n, curriculum = self.tasks, self.config.tasks.n, self.config.curriculum
        if curriculum.source is not None:
            tasks = self.proposing.pool(self.plan.folder(number), self.built, partial(self._propose, number))
        if curriculum.enabled:
            return choose(tasks, success_rates(self.built), n, curriculum, self.plan.seed(number, "curriculum"))
        size = min(n or len(tasks), len(tasks))
        chosen = [tasks[(number * size + index) % len(tasks)] for index in range(size)]
        return Choice(chosen, max(0, min(size, len(tasks) - number * size)), 0)

    def _propose(self, number: int, wanted: int) -> Path:
        """Have the policy propose tasks; return the run directory."""
        file = self.plan.folder(number) / "propose.jsonl"
        drawn = prompts([proposable(task.args) for task in self.tasks], self.plan.seed(number, "examples"))
        some = enumerate(itertools.islice(drawn, wanted))
        write_tasks(file, (Task(f"propose-{number}-{n:06d}", "train", args) for n, args in some))
        stage = self.plan.propose(number, self.model, file)
        self._run(stage, {}, {self.model.name: self.model.folder})
        return stage.path

    def _iterate(self, one: Iteration) -> dict[str, Any]:
        before = self.model
        pairs = self._search(one)
        tuned = self._fine_tune(one)
        self._train_on_pairs(one, tuned or before, pairs)
        if one.candidates:  # on new tasks: it may owe its place to luck on the old ones
            before = self.model = self.judging.incumbent(one.number, before, one.seconds)
        decisions = self.judging.judge(one.number, before, one.candidates, one.seconds)
        record = self.judging.record(one, before, decisions)
        self._promote(one, record)
        return record

    def _search(self, one: Iteration) -> Path:
        file, tasks = self.plan.folder(one.number) / "tasks.jsonl", one.choice.tasks
        write_tasks(file, tasks)
        self.session.say(
            f"iterate: iteration {one.number} of {self.config.iterations}: {len(tasks)} tasks, {one.choice.new} of "
            f"them new, {one.choice.solved} always solved so far; the model is {self.model.name}"
        )
        stage = self.plan.build_prefs(one.number, self.model, file)
        one.built = self._run(stage, one.seconds, {self.model.name: self.model.folder})
        self.built.append(stage.path)
        self.played.append(stage.path)
        if self.config.curriculum.source is not None:
            folder = self.plan.folder(one.number)
            one.proposed = self.proposing.figures(folder, stage.path)
            if (folder / "propose").is_dir():  # the proposer's calls are learnt as the solver's successes are
                reward = self.plan.reward(one.number)
                self._run(reward, one.seconds, {"propose": folder / "propose" / "trees"})
                self.played.append(reward.path)
        found = f"{one.built['filtered']} verified successes"
        if self.config.dpo.enabled:
            found = f"{one.built['pairs_total']} pairs of {one.built['tasks_with_pairs']} tasks, {found}"
        self.session.say(f"iterate: iteration {one.number}: {found}")
        return stage.path

    def _fine_tune(self, one: Iteration) -> Model | None:
        if not self.config.sft.enabled:
            return None
        if not self._with_successes():
            one.notes.append("no fine-tuning: the search found no verified success")
            return None
        begin = self.plan.start() if self.config.sft.begin == "start" else self.model
        stage = self.plan.train_sft(one.number, begin, self._with_successes())
        self._run(stage, one.seconds, {begin.name: begin.folder, **self._filtered()})
        one.candidates.append(Model(stage.label, str(stage.path / "model")))
        return one.candidates[-1]

    def _train_on_pairs(self, one: Iteration, model: Model, pairs: Path) -> None:
        if not self.config.dpo.enabled:
            return
        if not any(one.built["pairs"].get(kind) for kind in self.config.dpo.kinds):
            others = ", ".join(f"{count} of kind {kind}" for kind, count in one.built["pairs"].items() if count)
            one.notes.append(
                f"no preference training: the search made no pair of the kinds in dpo.kinds "
                f"({', '.join(self.config.dpo.kinds)}); it made {others or 'none at all'}"
            )
            return
        stage = self.plan.train_dpo(one.number, model, pairs, self._with_successes())
        made = {f"{pairs.parent.name}/{table}": pairs / table for table in PAIR_TABLES if (pairs / table).is_dir()}
        consumed = {model.name: model.folder, **made}
        if not self.config.dpo.anchor.runs:
            consumed |= self._filtered()
        self._run(stage, one.seconds, consumed)
        one.candidates.append(Model(stage.label, str(stage.path / "model")))


    def _promote(self, one: Iteration, record: dict[str, Any]) -> None:
        by_stage = {candidate.name.rpartition("/")[2]: candidate for candidate in one.candidates}
        promoted = record["promoted"]
        if promoted is not None:
            self.model = by_stage[promoted]
            if one.number not in self.told:  # else a later one may be there already
                self._place()
        why = "" if one.candidates else f"; {record['reason']}"
        verdict = "promoted" if promoted else "kept"
        self.session.say(f"iterate: iteration {one.number}: {verdict} {self.model.name}{why}")
        if one.number not in self.told:  # else MLflow has it too
            self._track(record)
            self.session.run.events().append(record)
        record["seconds"] = one.seconds

    def _track(self, record: Mapping[str, Any]) -> None:
        """Send a point of the curves over iterations, and the name of the promoted model."""
        tracker, number, promoted = self.session.tracker, record["iteration"], record["promoted"]
        success = self.judging.success(self.model)["mean"]
        figures = {"promoted": float(promoted is not None), "pairs": record["pairs_total"], "success": success}
        figures["incumbent/success"] = record["incumbent"]["success"]["mean"]
        for name, candidate in record["candidates"].items():
            figures[f"{name}/success"] = candidate["success"]["mean"]
            figures[f"{name}/confidence_not_worse"] = candidate["confidence_not_worse"]
        tracker.metrics(figures, step=number)
        if promoted is not None:
            tracker.tags({"promoted": self.model.name})

    def _place(self) -> None:
        """Copy the incumbent to `model/`, unless it is there."""
        source, target = self.model.folder, self.run_dir / "model"
        replaced = self._replaced_tokenizer()
        if any(replaced) or not target.is_dir() or hash_path(source) != hash_path(target):
            place_model(source, target, *replaced)

    # -- small things ---------------------------------------------------------------------------------------------

    def _run(self, stage: Stage, seconds: dict[str, float], consumed: Mapping[str, Path]) -> dict[str, Any]:
        """Run a stage; note in MLflow what it consumed: `<stage>.parent.<what>` = its content's hash."""
        begun = time.perf_counter()
        summary = run_stage(stage, self.session.say, self.again)
        seconds[stage.name] = round(time.perf_counter() - begun, 1)
        tags = {f"{stage.label}.parent.{maker}": hash_path(path) for maker, path in consumed.items()}
        self.session.tracker.tags(tags)
        return summary

    def _filtered(self) -> dict[str, Path]:
        made = ((run, "" if run in self.built else f"{run.name}/") for run in self._with_successes())
        return {f"{run.parent.name}/{name}filtered": run / "filtered" for run, name in made}

    def _with_successes(self) -> list[Path]:
        """Return the runs that have verified successes, the newest first."""
        return [run for run in reversed(self.played) if read_json(run / "summary.json")["filtered"]]

    def _replaced_tokenizer(self) -> tuple[Path | None, str | None]:
        """Return the tokenizer and template that the configuration gives the first model; trained ones have theirs."""
        policy = self.config.policy
        template = (policy.model_extra or {}).get("chat_template")
        if self.model.name != "start" or (policy.tokenizer is None and template is None):
            return None, None
        folder = None if policy.tokenizer is None else model_folder(policy.tokenizer)
        return folder, None if template is None else template_text(str(template))

    def _summary(self, records: list[dict[str, Any]], start: dict[str, Any], stopped: str | None) -> dict[str, Any]:
        end = self.judging.success(self.model)
        return {
            "environment": self.environment,
            "environment_keys": environment_keys(self.config.resolved()),
            "start_model": self.config.policy.model or "embedded default",
            "seed": self.config.seed,
            "held_out": self.config.held_out.model_dump(mode="json"),
            "gate": self.config.gate.model_dump(mode="json"),
            "start": start,
            "end": end,
            "model": {"from": self.model.name, "path": str(self.session.run.path / "model"),
                      "hash": hash_path(self.run_dir / "model")},
            "iterations": records,
            "stopped": stopped,
        }  # fmt: skip
