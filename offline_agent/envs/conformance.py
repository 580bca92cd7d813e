"""Conformance suite: the checks that every environment must pass before it is searched or trained on.

`python -c "from offline_agent.envs.conformance import check; check('my_module:MyEnv')"` prints the report.
"""

from __future__ import annotations

import itertools
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from offline_agent import outgoing
from offline_agent.envs.base import EnvSpec, environment_class, missing_members
from offline_agent.envs.boundary import shown
from offline_agent.envs.checks.episode_length import EpisodeLength
from offline_agent.envs.checks.suite import Checks
from offline_agent.envs.checks.tools import NEVER, NotApplicable
from offline_agent.envs.checks.trial import duration
from offline_agent.envs.pool import Call
from offline_agent.envs.settings import DEFAULT_STEPS, LimitsSection
from offline_agent.errors import ConfigError, OfflineAgentError, in_words
from offline_agent.judges.judge import Judge, make_judge

_ENDLESS = "one call of it does not return"


@dataclass(frozen=True)
class Check:
    """One check's outcome.

    Attributes:
        name: Name of the check.
        passed: None where it does not apply.
        detail: The faults, each with how to correct it; why it does not apply; or what was left out. "" otherwise.
        traceback: Of the errors behind the faults, where the environment raised; else "".
    """

    name: str
    passed: bool | None
    detail: str = ""
    traceback: str = ""

    def __str__(self) -> str:
        mark = {True: "ok     ", False: "FAILED ", None: "-      "}[self.passed]
        line = f"{mark}{self.name}{': ' if self.detail else ''}{self.detail}"
        traces = self.traceback.splitlines() if self.passed is False else []
        return "\n".join([line, *(f"           {trace}" for trace in traces)])


@dataclass(frozen=True)
class Report:
    """All checks of one environment, in the order they ran.

    Attributes:
        environment: Its name.
        checks: The checks.
        notes: What it costs, and what that means.
    """

    environment: str
    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(c for c in self.checks if c.passed is False)

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.failures

    def __str__(self) -> str:
        return "\n".join([*map(str, self.checks), *self.notes, self.verdict])

    @property
    def verdict(self) -> str:
        """The last line."""
        return f"{self.environment}: {'passed' if self.passed else 'FAILED'}"


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
    print(outgoing.shown("\n".join([*report.notes, report.verdict])))
    return report


def check_environment(
    spec: EnvSpec,
    *,
    tasks: int = 3,
    max_steps: int = 120,
    seconds: float = 60.0,
    ended: Callable[[Check], None] = lambda done: None,
) -> Report:
    """Run the checks that every environment must pass; return the report.

    Args:
        spec: The environment.
        tasks: Number of tasks of each split that are played.
        max_steps: Most actions in one episode; the oracle must succeed within them.
        seconds: Longest any one check may take. After half of it a check begins no further task, and says so; one that
            takes longer fails, and ends at its next call.
        ended: Gets each check when it has ended.
    """
    checks = Checks(spec, tasks, max_steps, seconds)
    out: list[Check] = []
    try:
        for name, function in checks.all():
            out.append(run_check(name, function, seconds, checks))
            ended(out[-1])
            if name == "tasks":
                if not out[-1].passed:
                    break
                costs = run_check("costs", checks.measure, seconds, checks, grace=seconds)
                if _ENDLESS in costs.detail:  # it would hang every other check too
                    out.append(costs)
                    ended(costs)
                    break
    finally:
        spec.watch = None
        checks.surroundings.put_back()
    return Report(spec.name, tuple(out), tuple(_notes(checks)))


def _notes(checks: Checks) -> Iterator[str]:
    """Yield its tools, what it costs and what that means for a search."""
    if checks.tools:
        yield f"tools: {', '.join(checks.tools)}"
    if len(checks.openings) > 1 and len(set(checks.openings)) == 1:
        yield (
            f"all {len(checks.openings)} tasks played begin with the same text: where they differ in nothing else "
            "either, no task is held out, and success on another split shows what was memorised"
        )
    if (costs := checks.costs) is not None:
        from offline_agent.config.build_prefs import SearchSection

        search, workers = SearchSection(), LimitsSection().workers
        steps, source = checks.length or EpisodeLength(DEFAULT_STEPS, "the expert was not done in time")
        task = costs.search_seconds(search.simulations, steps)
        yield f"an episode has at most {steps} actions by default ({source}); search.max_steps= changes it"
        yield f"costs: {costs}"
        yield (
            f"a search with the defaults (search.simulations={search.simulations}, search.max_steps={steps}) spends at "
            f"most {duration(task)} in the environment for a task, {duration(100 * task)} for 100 tasks, "
            f"{duration(100 * task / workers)} where limits.workers={workers} calls wait at once and do not compute"
        )


def run_check(
    name: str, function: Callable[[], Iterable[str]], seconds: float, checks: Checks, grace: float = 0.0
) -> Check:
    """Run one check in a thread of its own, so that an environment that hangs cannot hang the suite.

    Args:
        name: Name of the check.
        function: Yields its faults, in words; raises NotApplicable where it does not apply.
        seconds: Longest it may take; then it fails, and ends at its next call.
        checks: The checks that it is one of, for the tasks left out and the watch over calls.
        grace: Seconds after these in which it must come to its next call, else that call does not return; 0 = any.
    """
    outcome: list[Check] = []
    call = Call()
    checks.left_out = 0

    def run() -> None:
        try:
            with call.made_here():
                faults = list(itertools.islice(function(), 5))
            left = f"{checks.left_out} tasks were left out, for want of time (seconds={seconds:g})"
            message = "; ".join(faults) if faults or not checks.left_out else left
            traces = [shown(e) for tool, e in checks.watch.errors.items() if name == NEVER and f"{tool}: " in message]
            outcome.append(Check(name, not faults, message, "\n".join(traces)))
        except NotApplicable as reason:
            outcome.append(Check(name, None, str(reason)))
        except OfflineAgentError as error:
            outcome.append(Check(name, False, str(error), "" if error.__cause__ is None else shown(error.__cause__)))
        except BaseException as error:  # e.g. from the demonstrate hook, which no boundary wraps
            outcome.append(Check(name, False, in_words(error), shown(error)))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if outcome:
        return outcome[0]
    checks.watch.give_up(thread)
    call.end()
    where = _place_in_environment(thread, checks.spec.cls)
    thread.join(grace)
    endless = f"; {_ENDLESS}" if grace and thread.is_alive() else ""
    message = f"it was not done after {seconds:g} s{where}{endless}; give it more with seconds=, or fewer tasks="
    return Check(name, False, message)


def _place_in_environment(thread: threading.Thread, cls: type) -> str:
    """Return in which line of the environment's module a thread is; "" where it is in none."""
    frame = sys._current_frames().get(thread.ident or 0)
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    calls = [] if frame is None else traceback.extract_stack(frame)
    for call in reversed(calls):
        if call.filename == file:
            return f", and is in {file}:{call.lineno}, {call.name}"
    return ""


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
    import sys

    sys.exit(main(sys.argv[1:]))
