"""Main figures of a run for the overview of the page: one table of functions by command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from offline_agent.report.html.evaluation import comparisons
from offline_agent.report.html.evaluation import figures as modes_of
from offline_agent.report.html.reading import RunFiles
from offline_agent.report.html.text import number, percent

Figure = tuple[str, str, float | None, float | None, float | None, str]
"""Name, value as text, value and interval in [0, 1] for the bar (None = no bar), note."""


def figures(run: RunFiles) -> list[Figure]:
    """Return the main figures of a run; those of a command that is not known are the numbers of its summary."""
    known = {
        "audit": _of_audit, "build_prefs": _of_search, "calibrate": _of_calibration, "evaluate": _of_evaluation,
        "import_logs": _of_logs, "iterate": _of_loop, "refine_grpo": _of_training, "rejudge": _of_second_judge,
        "train_dpo": _of_training, "train_reward": _of_reward_model, "train_sft": _of_training,
    }  # fmt: skip
    if not run.summary:
        return []
    return list(known.get(run.command, _numbers)(run.summary))


def _of_search(summary: Mapping[str, Any]) -> Iterator[Figure]:
    success, tasks = summary["success"], summary["tasks"]
    note = "Wilson's interval over tasks, as if the attempts at one task were all alike: it is wide rather than narrow"
    for name, key, about in (
        ("success, plain policy, sampled", "plain_sampled", f"{success['plain_rollouts']} rollouts; {note}"),
        ("success, plain policy, greedy", "plain_greedy", "one rollout a task"),
        ("success, best of search", "best_of_search", "tasks with a verified success in their tree"),
    ):
        share = success[key]
        yield _share(name, share, *interval(share, tasks), about)
    pairs = ", ".join(f"{kind} {count:,}" for kind, count in summary["pairs"].items())
    yield "pairs", number(summary["pairs_total"]), None, None, None, pairs
    paired = summary["tasks_with_pairs"] / tasks if tasks else None
    yield _share("tasks with pairs", paired, *interval(paired, tasks), f"{summary['tasks_with_pairs']} of {tasks}")
    about = f"of {summary['trajectories']:,} trajectories"
    yield "verified successes for training", number(summary["filtered"]), None, None, None, about
    about = f"{summary['nodes']:,} nodes"
    yield "simulations", number(summary["simulations"]), None, None, None, about


def _of_evaluation(summary: Mapping[str, Any]) -> Iterator[Figure]:
    for one in modes_of(summary):
        note = f"{one['attempts']} attempts, {one['steps']} steps each"
        yield f"success, {one['policy']}, {one['mode']}", one["words"], one["mean"], one["low"], one["high"], note
    for mode, difference, p_value, tasks in comparisons(summary):
        note = f"paired over tasks: {tasks}; p {p_value}"
        yield f"candidate less against, {mode}", difference, None, None, None, note


def _of_logs(summary: Mapping[str, Any]) -> Iterator[Figure]:
    for name in ("records", "episodes", "tasks", "judged", "pairs_total", "filtered", "trajectories"):
        if isinstance(summary.get(name), int):
            yield name.replace("_", " "), number(summary[name]), None, None, None, ""


def _of_second_judge(summary: Mapping[str, Any]) -> Iterator[Figure]:
    yield "verdicts", number(summary["judged"]), None, None, None, f"{summary['unscored']:,} could not be judged"
    for name, key, note in (
        ("now a success", "raised", "were a failure"),
        ("now a failure", "lowered", "were a success"),
        ("pairs", "pairs_total", ""),
        ("verified successes for training", "filtered", ""),
    ):
        yield name, number(summary[key]), None, None, None, note


def _of_audit(summary: Mapping[str, Any]) -> Iterator[Figure]:
    yield "verdict", str(summary["verdict"]), None, None, None, "fail where a check of that severity fails"
    for status, count in summary["counts"].items():
        yield f"checks: {status}", number(count), None, None, None, ""


def _of_calibration(summary: Mapping[str, Any]) -> Iterator[Figure]:
    parts = (
        (summary["pointwise"], summary["judge"], ("agreement", "false_positives", "false_negatives")),
        (summary["pairwise"], summary["compare"], ("accuracy", "chose_first", "swayed_by_order")),
    )
    for found, name, keys in parts:
        for key in keys if found is not None else ():
            one = found[key]
            about = f"of {one['of']:,}"
            yield _share(f"{key.replace('_', ' ')}, {name}", one["value"], one["low"], one["high"], about)
    yield "biases proven", number(len(summary["biases"])), None, None, None, "; ".join(summary["biases"])


def _of_reward_model(summary: Mapping[str, Any]) -> Iterator[Figure]:
    for name, key in (("before", "held_out_before"), ("after", "held_out")):
        part = summary[key]
        one = part["agreement"]
        note = f"{part['judged']:,} trajectories of {part['tasks']:,} tasks; the commoner verdict alone: "
        note += percent(part["majority"])
        yield _share(f"agreement on held-out tasks, {name}", one["value"], one["low"], one["high"], note)


def _of_loop(summary: Mapping[str, Any]) -> Iterator[Figure]:
    for name, key in (("success at the start", "start"), ("success at the end", "end")):
        found = summary[key]
        yield _share(name, found["mean"], found["low"], found["high"], "held-out tasks")
    yield "iterations", number(len(summary["iterations"])), None, None, None, summary["stopped"] or ""


def _of_training(summary: Mapping[str, Any]) -> Iterator[Figure]:
    made = summary["training"]
    first, last = made["loss_first"], made["loss_last"]
    yield "loss", f"{number(first, 4)} → {number(last, 4)}", None, None, None, "means at both ends"
    for where in (("first", "last"), ("rounds_first", "rounds_last")):
        before, after = (made.get(name) or {} for name in where)
        for name in ("accuracy", "success_mean", "reward_mean"):
            if name in after:
                words = f"{number(before.get(name), 3)} → {number(after[name], 3)}"
                yield name.replace("_", " "), words, None, None, None, "means at both ends"
    yield "updates", number(made["updates"]), None, None, None, f"{made['seconds']:.1f} s"
    model = summary["model"]
    yield "weights trained", number(model["trained"]), None, None, None, f"of {model['parameters']:,}"


def _numbers(summary: Mapping[str, Any], prefix: str = "") -> Iterator[Figure]:
    for name, value in summary.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name} / ")
        elif isinstance(value, int | float) and name != "schema_version":
            yield f"{prefix}{name}", number(value), None, None, None, ""


def _share(name: str, share: float | None, low: float | None, high: float | None, note: str) -> Figure:
    between = "" if low is None or high is None else f" ({percent(low)} to {percent(high)})"
    return name, percent(share) + between, share, low, high, note


def interval(share: float | None, n: int) -> tuple[float | None, float | None]:
    """Return Wilson's 95 % interval of a share among n tasks; (None, None) where there is none."""
    from offline_agent.evaluation.statistics import wilson

    return (None, None) if share is None or n < 1 else wilson(share, n)
