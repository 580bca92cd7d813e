"""Training of the page: curves of the updates with the marks of the watch, iterations, and success over calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from offline_agent.report.html.charts import line
from offline_agent.report.html.reading import RunFiles
from offline_agent.report.html.text import number, percent

_ABOUT = {
    "loss": "the loss that is minimised",
    "preference": "the preference loss alone; log 2 = 0.693 where the model does not differ from its reference",
    "sft": "negative log-probability of the chosen sides, a token",
    "anchor": "negative log-probability of the replayed successes, a token",
    "accuracy": "share of the pairs whose chosen side gained more than the rejected one, of those where they differ",
    "margin": "how much more the chosen side gained, times beta",
    "rewards_chosen": "gain of the chosen side over the reference, times beta",
    "rewards_rejected": "gain of the rejected side over the reference, times beta",
    "entropy": "nats a token of the policy's",
    "grad_norm": "norm of the gradient before clipping",
    "gradient": "norm of the gradient before clipping",
    "learning_rate": "",
    "success_mean": "share of the round's episodes that were solved",
    "reward_mean": "mean reward of the round's episodes",
    "group_spread": "standard deviation of the rewards within a group",
    "shared_states": "share of the turns whose state another turn of the group has too",
    "zero_spread": "share of the groups whose episodes all have the same reward: nothing to learn from",
    "kl": "distance to the reference, nats a token",
    "length": "agent tokens of an episode",
    "steps": "actions of an episode",
    "truncated": "share of the episodes cut by a limit of the policy",
    "invalid_calls": "share of the calls that could not be executed as written",
    "repeated_calls": "share of the calls that repeat the one before",
    "mismatch": "mean difference of the log-probabilities of sampler and trainer, nats",
    "unscored": "share of the episodes without a score",
}
"""Figures of updates that are drawn, in this order, with their meaning."""


def charts(run: RunFiles) -> list[dict[str, Any]]:
    """Return the curves of a run's updates; empty where there are none."""
    records = [record for record in run.events() if "update" in record]
    marks = [(float(update), f"{rule}: {text}") for rule, update, text in run.summary.get("findings") or ()]
    out = []
    for name, about in _ABOUT.items():
        found = [(float(record["update"]), float(record[name])) for record in records if record.get(name) is not None]
        out.append(line(name.replace("_", " "), found, marks, about))
    for name, about in (("success_mean", "success"), ("reward_mean", "reward")):
        found = [
            (float(record["env_steps"]), float(record[name]))
            for record in records
            if record.get(name) is not None and record.get("env_steps") is not None
        ]
        steps = "the same over the environment's steps, the cost that counts"
        out.append(line(f"{about} over calls", found, (), steps, "call"))
    return [chart for chart in out if chart is not None]


def findings(run: RunFiles) -> list[tuple[str, str]]:
    """Return (rule and update, text) of the watch's findings, and of its checklist where there are findings."""
    summary = run.summary
    out = [(f"{rule}, update {update}", text) for rule, update, text in summary.get("findings") or ()]
    if out:
        out += [(f"check: {name}", text) for name, text in summary.get("checklist") or ()]
    return out


def ends(run: RunFiles) -> list[tuple[str, str, str]]:
    """Return (figure, mean at the start, mean at the end) of a training run."""
    training = run.summary.get("training") or {}
    out = []
    for first, last in (("first", "last"), ("rounds_first", "rounds_last")):
        before, after = training.get(first) or {}, training.get(last) or {}
        out += [(name.replace("_", " "), number(before.get(name), 4), number(after.get(name), 4)) for name in after]
    return list({name: (name, before, after) for name, before, after in out}.values())


def iterations(run: RunFiles) -> list[dict[str, Any]]:
    """Return a line for each model that each iteration of `iterate` judged, with the tool calls of the loop until then.

    Calls of searches and of online rounds are counted, those of evaluations are not.
    """
    out, calls = [], 0
    for record in run.summary.get("iterations") or ():
        folder = run.path / f"iteration-{record['iteration']}"
        counts = record["tasks"]
        shared = {"iteration": record["iteration"], "searched": counts["searched"], "pairs": record["pairs_total"]}
        incumbent = record["incumbent"]
        out.append({**shared, "model": "incumbent", **_success(incumbent["success"]), "calls": calls, "verdict": "",
                    "reason": ""})  # fmt: skip
        calls += int(RunFiles(folder / "build_prefs").json("summary.json").get("tool_calls") or 0)
        for name, candidate in record["candidates"].items():
            if name == "refine_grpo":
                rollouts = RunFiles(folder / name).json("summary.json").get("rollouts") or {}
                calls += int(rollouts.get("env_steps") or 0)
            won = name == record["promoted"]
            verdict = "promoted" if won else "passed" if candidate["passed"] else "refused"
            out.append({**shared, "model": _PHASES.get(name, name), **_success(candidate["success"]),
                        "calls": calls, "verdict": verdict,
                        "reason": str(candidate.get("reason", "")).partition(": ")[2]})  # fmt: skip
        for note in record.get("notes") or ():
            out.append({**shared, "model": "–", **_success({}), "calls": calls, "verdict": "", "reason": note})
    return out


_PHASES = {
    "train_sft": "offline: fine-tuned", "train_dpo": "offline: preferences", "refine_grpo": "online: refined",
}  # fmt: skip
"""Models of an iteration by the stage that made them."""


def online(run: RunFiles) -> list[tuple[str, str, str, str]]:
    """Return (model, success, where it was measured, environment steps) of `refine_grpo`, before and after."""
    if run.command != "refine_grpo":
        return []
    out = []
    training, rollouts = run.summary.get("training") or {}, run.summary.get("rollouts") or {}
    ends = (("rounds_first", "the first rounds, offline model", None),
            ("rounds_last", "the last rounds, online model", rollouts.get("env_steps")))  # fmt: skip
    for key, name, steps in ends:
        if (mean := (training.get(key) or {}).get("success_mean")) is not None:
            out.append((name, percent(mean), "episodes of training tasks", number(steps)))
    return out


def over_calls(run: RunFiles) -> dict[str, Any] | None:
    """Return the curve of held-out success over the tool calls of a loop's searches; None for another command."""
    if run.command != "iterate":
        return None
    points, calls = [], 0
    for record in run.summary.get("iterations") or ():
        points.append((float(calls), record["incumbent"]["success"]["mean"]))
        searched = RunFiles(run.path / f"iteration-{record['iteration']}" / "build_prefs").json("summary.json")
        calls += int(searched.get("tool_calls") or 0)
    end = (run.summary.get("end") or {}).get("mean")
    known = [(x, y) for x, y in [*points, (float(calls), end)] if y is not None]
    about = "held-out success of the model that was kept, over the tool calls of all searches until then; "
    about += "each iteration is judged on tasks of its own"
    return line("held-out success over calls", known, (), about, "call")


def stages(run: RunFiles) -> Iterator[tuple[str, str, bool]]:
    """Yield (name, command, whether it has a page of its own) of the stages that are inside a run directory."""
    for file in sorted(run.path.glob("*/manifest.json")) + sorted(run.path.glob("iteration-*/*/manifest.json")):
        folder = file.parent
        yield str(folder.relative_to(run.path)), RunFiles(folder).json("manifest.json").get("command", "?"), (
            folder / "report.html"
        ).is_file()


def _success(figures: Mapping[str, Any]) -> dict[str, Any]:
    mean, low, high = (figures.get(name) for name in ("mean", "low", "high"))
    words = f"{percent(mean)} ({percent(low)} to {percent(high)})" if figures else ""
    return {"mean": mean, "low": low, "high": high, "words": words}
