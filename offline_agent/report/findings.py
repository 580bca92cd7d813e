"""Reasons why a `build_prefs` run found little or nothing, with advice; from its summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_MOST = 0.5  # share of the tasks or of the candidates above which one cause is named
_SCRIPTED = ("oracle", "noisy")
_FEW = 100  # successes below which a new model of random search has learnt next to nothing (docs/environments.md)


def findings(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each cause, the first cause first: why there is little, and how to get more."""
    tasks, best = summary["tasks"], summary["success"]["best_of_search"]
    if summary["quarantined"]["trees"] > _MOST * tasks or (not summary["cuts"]["episodes"] and quarantined(summary)):
        yield _quarantined(summary)
    elif not best:
        yield _no_success(summary)
    elif not summary["pairs_total"]:
        yield _no_pair(summary)
    elif summary["policy"] == "random" and best < _MOST and summary["filtered"] < _FEW:
        yield (
            f"policy=random solved {best:.0%} of {summary['tasks']} tasks and leaves {summary['filtered']} successes. "
            "A new model learns little from so few: raise tasks.n or search.simulations, give the class `demonstrate` "
            "and take policy=noisy, or begin with a model that is trained already (docs/environments.md, 'Where random "
            "search is not enough')"
        )
    if summary["kept_unmatched"]:
        longer = "longer" if summary["kept_unmatched_longer"] else "shorter"
        yield (
            f"Length matching would drop {summary['kept_unmatched']} of {summary['pairs_total']} pairs, because the "
            f"better sides are {longer} than the others. So all are kept; a loss that counts tokens may learn the "
            f"length: prefer dpo.loss=sigmoid_norm, which averages over tokens, or look whether {longer} answers are "
            "right here"
        )


def quarantined(summary: Mapping[str, Any]) -> int:
    """Return the number of trees, branches and rows in quarantine."""
    return sum(summary["quarantined"].values())


def _quarantined(summary: Mapping[str, Any]) -> str:
    trees, branches = summary["quarantined"]["trees"], summary["quarantined"]["branches"]
    return (
        f"{trees} of {summary['tasks']} trees and {branches} branches are in quarantine"
        f"{commonest(summary['quarantine_reasons'])}. This says nothing about the policy: mend the environment, "
        "python -m offline_agent.envs.conformance checks it"
    )


def _no_success(summary: Mapping[str, Any]) -> str:
    told = f"No tree has a success among {summary['cuts']['episodes']:,} ends, so there is nothing to learn from. "
    policy = summary["policy"]
    if policy == "random":
        return told + (
            "policy=random draws arguments from ranges, examples and texts that it has read: give parameters a Literal "
            "type, or quote examples and ranges in their docstrings; give the class `demonstrate`; take a model; or "
            "raise search.simulations"
        )
    if policy in _SCRIPTED:
        return told + (
            f"policy={policy} plays the environment's own `demonstrate`: python -m offline_agent.envs.conformance "
            "checks whether it solves the tasks; raise search.max_steps if it needs more actions"
        )
    return told + (
        "Give the model a warm start (train_sft on demonstrations, on a log in data.files, or on the run of a search "
        "with policy=random), take easier tasks, or raise search.simulations"
    )


def _no_pair(summary: Mapping[str, Any]) -> str:
    success, cuts = summary["success"], summary["cuts"]
    if success["best_of_search"] == 1.0 and success["plain_sampled"] == 1.0:
        return (
            f"No pair: every one of {cuts['episodes']:,} ends is a success, so there is nothing to compare. Take "
            "harder tasks, or a higher policy.temperature"
        )
    refused = sum(summary["refused"].values())
    if refused:
        return (
            f"No pair: {refused} candidates were refused{commonest(summary['refusal_reasons'])}. quarantine.jsonl has "
            "the reason of each; docs/pairs.md has the rules and their keys"
        )
    return (
        f"No pair: {success['best_of_search']:.0%} of the tasks have a success, but none has a success and a failure "
        "that differ after a common history. Raise search.simulations or policy.temperature"
    )


def commonest(reasons: Mapping[str, int]) -> str:
    """Return the commonest of some reasons for the end of a sentence; "" where there is none."""
    if not reasons:
        return ""
    reason, count = max(reasons.items(), key=lambda item: (item[1], item[0]))
    return f", most often ({count}) because: {reason}"
