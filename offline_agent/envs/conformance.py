"""Conformance suite: the checks that every environment must pass before it is searched or trained on.

`python -c "from offline_agent.envs.conformance import check; check('my_module:MyEnv')"` prints the report.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from offline_agent import outgoing
from offline_agent.envs.base import EnvSpec, environment_class, missing_members
from offline_agent.envs.checks.registry import CONFORMANCE, AuditSection, Finding, Report
from offline_agent.envs.checks.suite import ENDLESS, Suite
from offline_agent.errors import ConfigError
from offline_agent.judges.judge import Judge, make_judge


def check(
    name_or_path: str, args: Mapping[str, Any] | None = None, judge: Judge | None = None, **limits: Any
) -> Report:
    """Load an environment, check it, with a judge in place of its `get_reward` where one is given; print the report.

    Args:
        name_or_path: See `EnvSpec.load`.
        args: Arguments of its constructor.
        judge: The judge.
        limits: See `check_environment`.

    Raises:
        ConfigError: There is no such environment, or it does not meet the contract: every fault, those that a search
            would find later included.
    """
    args = dict(args or {})
    python = args.pop("python", None)
    try:
        spec = EnvSpec.load(name_or_path, args, python=python, judge=judge)
    except ConfigError as error:
        if python is not None:
            raise
        cls = environment_class(name_or_path, args)
        raise ConfigError([*error.faults, *missing_members(cls, judge)]) from error
    if faults := list(missing_members(spec.cls, judge)):
        raise ConfigError(faults)
    report = check_environment(spec, **limits, ended=lambda done: print(outgoing.shown(str(done)), flush=True))
    print(outgoing.shown(report.conclusion))
    return report


def check_environment(
    spec: EnvSpec,
    *,
    tasks: int = 3,
    max_steps: int = 120,
    seconds: float = 60.0,
    ended: Callable[[Finding], None] = lambda done: None,
) -> Report:
    """Run the checks that every environment must pass; return the report.

    Args:
        spec: The environment.
        tasks: Number of tasks of each split that are played.
        max_steps: Most actions in one episode; the oracle must succeed within them.
        seconds: Longest any one check may take. After half of it a check begins no further task, and says so; one that
            takes longer fails, and ends at its next call.
        ended: Gets each finding when its check has ended.
    """
    suite = Suite(spec, AuditSection(tasks=tasks, max_steps=max_steps, seconds=seconds))
    findings: list[Finding] = []
    with suite:
        for method, name in CONFORMANCE.items():
            findings.append(suite.find(name, method, seconds))
            ended(findings[-1])
            if method == "tasks":
                if findings[-1].status == "fail":
                    break
                costs = suite.find("costs", "measure", seconds, grace=seconds)
                if ENDLESS in costs.evidence:  # it would hang every other check too
                    findings.append(costs)
                    ended(costs)
                    break
    return Report({"name": spec.name}, tuple(findings), tuple(_notes(suite)))


def _notes(checks: Suite) -> Iterator[str]:
    """Yield its tools, and what its tasks have in common."""
    if checks.tools:
        yield f"tools: {', '.join(checks.tools)}"
    if len(checks.openings) > 1 and len(set(checks.openings)) == 1:
        yield (
            f"all {len(checks.openings)} tasks played begin with the same text: where they differ in nothing else "
            "either, no task is held out, and success on another split shows what was memorised"
        )


def main(arguments: Sequence[str]) -> int:
    """Check the environments named on the command line; return 0 if all pass, 1 if one fails, 2 for wrong usage."""
    sys.path.insert(0, "")  # the caller's environments lie in the current directory
    usage = (
        "usage: python -m offline_agent.envs.conformance NAME|module:Class ... [tasks=N] [seconds=S] [max_steps=N]\n"
        "           [env.ARGUMENT=...] [env.python=PATH] [judge=NAME judge.ARGUMENT=...]"
    )
    if "--help" in arguments or "-h" in arguments:
        print(f"{usage}\n\n{__doc__}")
        return 0
    keys = [argument for argument in arguments if re.match(r"[\w.]+=", argument)]  # a command in a name may have "="
    names = [argument for argument in arguments if argument not in keys]
    if not names:
        print(usage, file=sys.stderr)
        return 2
    try:
        args, judge, limits = _given(keys)
        return int(not all([check(name, args, judge, **limits).passed for name in names]))
    except ConfigError as error:
        print(outgoing.shown(f"conformance: {error}"), file=sys.stderr)
        return 2


def _given(keys: Sequence[str]) -> tuple[dict[str, Any], Judge | None, dict[str, Any]]:
    """Return the environment's arguments, the judge, and the limits that the command line gives."""
    from offline_agent.config.build_prefs import JudgeSection
    from offline_agent.config.loading import load
    from offline_agent.sections import Plugged, Section, key, section

    class Arguments(Plugged):
        name: str = ""

    class Keys(Section):
        tasks: int = key(3, "tasks of each split that are played", ge=1)
        seconds: float = key(60.0, "longest any one check may take", gt=0)
        max_steps: int = key(120, "most actions in one episode", ge=1)
        env: Arguments = section(Arguments, "arguments of the environment's constructor")
        judge: JudgeSection = section(JudgeSection, "who gives the verdicts")

    chosen = load(Keys, overrides=keys)
    limits = {name: getattr(chosen, name) for name in ("tasks", "seconds", "max_steps")}
    judge = make_judge(chosen.judge.name, chosen.judge.model_extra or {})
    return dict(chosen.env.model_extra or {}), judge, limits


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
