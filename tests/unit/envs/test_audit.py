"""Each check of the audit finds the environment that breaks its promise, and lets a sound one pass."""

from __future__ import annotations

import json

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.checks.registry import RULES, AuditSection, Report
from offline_agent.envs.checks.suite import audit, audit_tasks
from offline_agent.judges.judge import make_judge
from tests.helpers import audited_environments as audited
from tests.helpers import hostile_environments as hostile

LEAK, CANARY = "semantic.no_solution_leakage", "semantic.canary_floor"
BROKEN = [
    (audited.UnstableTasks, "runtime.task_declaration_accuracy", "fail", "twice gave different tasks"),
    (hostile.OverlappingSplits, "data.splits_disjoint", "fail", "is in 'train' and in 'validation'"),
    (hostile.BeginsDifferently, "runtime.seed_control", "fail", "begin differently"),
    (hostile.ExitsInTool, "runtime.tool_declaration_accuracy", "fail", "SystemExit"),
    (audited.CountsLooks, "runtime.bad_calls", "fail", "answered differently: call 1, "),
    (hostile.Rewards, "semantic.oracle_max", "fail", "must be in [0, 1]"),
    (hostile.RewardsNothing, "semantic.floor_gap", "fail", "answering nothing scored 1.0"),
    (hostile.VerifierRaises, "runtime.reward_well_formed", "fail", "ZeroDivisionError"),
    (audited.VerifierChokes, "runtime.reward_well_formed", "fail", "RecursionError"),
    (hostile.Earns, "runtime.reward_attribution", "fail", "turn_reward is 2.0"),
    (hostile.VerifierFickle, "semantic.verifier_determinism", "fail", "verdicts, with scores"),
    (hostile.AnswersDifferently, "runtime.episode_determinism", "fail", "seed all chance"),
    (audited.HashOrder, "runtime.episode_determinism/process", "fail", "the order of sets"),
    (hostile.SharesState, "semantic.replayability", "fail", "share state"),
    (audited.Leftovers, "runtime.episode_isolation", "fail", "changed this one; share no state, or set "),
    (audited.WrongGoals, "runtime.achieved_goals", "fail", "aim"),
    (hostile.Meddles, "runtime.process_state", "fail", "the variables"),
    (audited.GoldInPrompt, f"{LEAK}/prompt", "fail", "the gold answer is shown in 12 of 12 tasks"),
    (audited.GoldInTools, f"{LEAK}/tools", "fail", "the gold answer is shown in 12 of 12 tasks"),
    (audited.GoldInErrors, f"{LEAK}/errors", "fail", "expected"),
    (audited.PaysChance, f"{CANARY}/random", "fail", "random calls succeed in 100%"),
    (audited.PaysEcho, f"{CANARY}/echo_observation", "fail", "scored 1"),
    (audited.PaysPrompt, f"{CANARY}/echo_prompt", "fail", "Name the capital"),
    (audited.PaysForm, f"{CANARY}/format_only", "fail", "<answer></answer>"),
    (audited.PaysTools, f"{CANARY}/every_tool_once", "fail", "look_up"),
    (audited.PaysSubmission, f"{CANARY}/submit_at_once", "fail", "submit"),
    (audited.PaysLength, f"{CANARY}/longest_answer", "fail", "scored 1"),
]


def found(cls: type, check_id: str, **settings) -> Report:
    chosen = AuditSection(**{"tasks": 4, "max_steps": 10, "seconds": 20.0, "checks": (check_id,), **settings})
    return audit(EnvSpec(cls), chosen)


@pytest.mark.parametrize(("cls", "check_id", "status", "told"), BROKEN, ids=[f"{b[0].__name__}-{b[1]}" for b in BROKEN])
def test_a_broken_environment_is_found(cls, check_id, status, told, monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    finding = next(one for one in found(cls, check_id).findings if one.check_id == check_id)
    assert finding.status == status, finding
    assert told in finding.evidence, finding


def test_every_check_was_seen_to_fail():
    assert {check_id for _, check_id, *_ in BROKEN} == set(RULES)


@pytest.mark.parametrize("cls", [audited.Quiz, hostile.Honest])
def test_a_sound_environment_passes(cls):
    report = audit(EnvSpec(cls), AuditSection(tasks=4, max_steps=20))
    assert report.verdict == "pass", [f for f in report.findings if f.status in ("warn", "fail")]
    assert {finding.check_id for finding in report.findings} == set(RULES)
    assert {f.check_id.rpartition("/")[0] for f in report.of("pass")} >= {CANARY}
    json.dumps(report.to_json(), allow_nan=False)


def test_the_columns_that_the_judge_reads_are_gold():
    class Hinted(audited.Quiz):
        @classmethod
        def tasks(cls, split):
            return [{"country": t["country"], "city": t["gold"]} for t in audited.Quiz.tasks(split)]

        def reset(self, country: str, city: str) -> str:
            return f"{super().reset(country, city)} (not {city}!)"

        @classmethod
        def demonstrate(cls, task, messages, rng, noise):
            return {"role": "assistant", "content": task["city"]}

    settings = AuditSection(tasks=4, checks=(f"{LEAK}/prompt",))
    judge = make_judge("exact_match", {"columns": {"gold": "city"}})
    assert audit(EnvSpec(Hinted, judge=judge), settings).verdict == "fail"


def test_a_gold_answer_that_stands_in_every_prompt_is_no_leak():
    class Options(audited.Quiz):
        def reset(self, country: str, gold: str, task_id: str = "") -> str:
            return f"{super().reset(country, gold)} One of: {', '.join(g for _, g in audited.CAPITALS)}."

    finding = found(Options, f"{LEAK}/prompt").findings[-1]
    assert finding.status == "warn" and "by chance 12.0" in finding.evidence


def test_the_cheap_checks_find_a_leak_on_given_tasks_in_little_time():
    spec = EnvSpec(audited.GoldInPrompt)
    report = audit_tasks(spec, list(spec.tasks("train")), 60.0)
    assert [f.check_id for f in report.of("fail")] == [f"{LEAK}/prompt"]
    assert spec.watch is None, "calls of the run are not watched"


def test_the_cheap_checks_leave_out_those_that_there_is_no_time_for():
    spec = EnvSpec(hostile.HangsInReset, {"seconds": 1.0})
    report = audit_tasks(spec, list(spec.tasks("train"))[:2], 0.3)
    assert report.verdict == "pass" and len(report.of("skip")) == len(report.findings)
