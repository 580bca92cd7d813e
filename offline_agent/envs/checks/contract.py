"""Checks of the contract of environments: generators that yield a fault each."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from offline_agent.envs.base import SPLITS
from offline_agent.envs.checks.registry import NotApplicable
from offline_agent.envs.checks.tools import ToolChecks
from offline_agent.envs.play import both, difference
from offline_agent.records import Action, Task

MAX_LISTED = 2_000


class ContractChecks(ToolChecks):
    """What every environment must keep; see `ToolChecks` for the arguments."""

    def tasks(self) -> Iterator[str]:
        """Every split has tasks, listed the same each time."""
        for split in SPLITS:
            self._tasks[split] = list(itertools.islice(self.spec.tasks(split), MAX_LISTED))
            again = list(itertools.islice(self.spec.tasks(split), 20))
            if not self._tasks[split]:
                yield f"split {split!r} has no tasks"
            if again != self._tasks[split][:20]:
                yield f"listing split {split!r} twice gave different tasks; seed whatever draws them"

    def splits(self) -> Iterator[str]:
        """No task is in two splits, whatever it is called there."""
        seen: dict[str, str] = {}
        for split, listed in self._tasks.items():
            for task in listed:
                facts = {k: v for k, v in task.args.items() if k not in ("task_id", "split", "fold")}
                for key in {task.task_id, json.dumps(facts, sort_keys=True) if facts else task.task_id}:
                    other = seen.setdefault(key, split)
                    if other != split:
                        yield f"{task.task_id!r} is in {other!r} and in {split!r}"

    def reset(self) -> Iterator[str]:
        """Two instances begin alike, and a second reset gives a fresh episode."""
        for task in self.some():
            before = copy.deepcopy(dict(task.args))
            with self.opened() as one, self.opened() as two:
                first = one.reset(task)
                self.openings.append(first)
                self.tools = self.tools or [_called(schema["function"]) for schema in one.tools.schemas]
                if first != (other := two.reset(task)):
                    yield f"{task.task_id}: two instances begin differently: {both(first, other)}"
                self.player.run_on(one, task, self.player.script(task)[:3])
                if (again := one.reset(task)) != first:
                    detail = f"differs, and TRL uses instances again: {both(first, again)}"
                    yield f"{task.task_id}: a second reset of the same instance {detail}"
            if dict(task.args) != before:
                yield f"{task.task_id}: reset changed its arguments"

    def oracle(self) -> Iterator[str]:
        """The expert without noise earns 1.0."""
        if self.spec.demonstrate is None:
            raise NotApplicable("there is no demonstrate hook")
        for task in self.some():
            played = self.player.expert(task)
            verdict = played.verdict
            if verdict is None or not verdict.success or verdict.score != 1.0:
                got = "nothing" if verdict is None else f"{verdict.score} ({verdict.error or dict(verdict.evidence)})"
                yield f"{task.task_id}: after {len(played.steps)} actions without noise it scored {got:.500}"

    def empty(self) -> Iterator[str]:
        """Answering nothing ends the episode with 0."""
        for task in self.some():
            played = self.player.run(task, [Action("")] * self.settings.max_steps)
            verdict = played.verdict
            if not (played.steps and played.terminated):
                yield f"{task.task_id}: {self.settings.max_steps} empty answers did not end the episode"
            elif verdict is None or verdict.success is not False or verdict.score != 0.0:
                yield f"{task.task_id}: answering nothing scored {None if verdict is None else verdict.score}, not 0"

    def reward(self) -> Iterator[str]:
        """The reward can be asked for at any time, answers alike when asked twice, and changes nothing."""
        for task in self.some():
            with self.opened() as episode:
                episode.reset(task)
                for action in [None, *self.player.script(task)]:
                    if action is not None:
                        if episode.terminated:
                            break
                        episode.step(action)
                    state, one, two = episode.fingerprint(), episode.verdict(), episode.verdict()
                    if one.error and "returned None" not in one.error:
                        yield f"{task.task_id}: {one.error}"
                        break
                    if self.spec.deterministic_verifier and one != two:
                        yield f"{task.task_id}: asked twice, get_reward answered differently: {one!r}, {two!r}"
                        break
                    if state != episode.fingerprint():
                        yield f"{task.task_id}: get_reward changed the state"
                        break

    def turns(self) -> Iterator[str]:
        """The turn reward is in [0, 1], the same when read twice, readable at any time, and given for some call."""
        if not self.spec.turn_rewards:
            raise NotApplicable("its class has no turn_reward")
        given = False
        for task in self.some():
            with self.opened() as episode:
                episode.turn_reward()  # TRL looks at every attribute of a new instance for its tools
                episode.reset(task)
                for action in self.player.script(task):
                    if episode.terminated:
                        break
                    result = episode.step(action)
                    given |= result.reward is not None and result.fault is None and action.call is not None
                    if result.fault is None and action.call is not None and episode.turn_reward() != result.reward:
                        yield f"{task.task_id}: asked twice, turn_reward answered differently"
                        break
        if not given:
            yield "turn_reward was None after every call; leave it out where there is nothing to say"

    def replay(self) -> Iterator[str]:
        """The same actions in a new instance are answered alike."""
        for task in self.some():
            script = self.player.script(task)
            detail = difference(self.player.run(task, script), self.player.run(task, script))
            if detail is not None:
                mend = "seed all chance, and keep no state elsewhere"
                yield f"{task.task_id}: the same actions in a new instance were answered differently; {mend}; {detail}"

    def copies(self) -> Iterator[str]:
        """Copies made at several points continue like the original, and do not touch it."""
        if self.spec.replay_only:
            raise NotApplicable("replay_only: states are restored by replay")
        for task in self.some():
            script = self.player.script(task)
            expected = self.player.run(task, script)
            for at in sorted({0, len(script) // 2, max(len(script) - 1, 0)}):
                with self.opened() as original:
                    start = self.player.run_on(original, task, script[:at])
                    state, here, rest = original.fingerprint(), start.context, script[at:]
                    with contextlib.closing(original.copy()) as one, contextlib.closing(original.copy()) as two:
                        first = self.player.run_on(one, task, rest, here)
                        if original.fingerprint() != state:
                            yield f"{task.task_id}: stepping a copy changed the original's fingerprint"
                        runs = [first, *(self.player.run_on(each, task, rest, here) for each in (original, two))]
                if detail := next(filter(None, (difference(expected, run, start) for run in runs)), None):
                    mend = "see __deepcopy__"
                    yield f"{task.task_id}: copies made after {at} actions share state or lack some; {mend}; {detail}"
                    break

    def goals(self) -> Iterator[str]:
        """`reset` accepts the goals that are named as achieved."""
        seen = False
        for task in self.some():
            with self.opened() as episode:
                self.player.run_on(episode, task, self.player.script(task))
                goal = episode.achieved_goal()
                if goal is None:
                    continue
                seen = True
                json.dumps(goal)
                with self.opened() as other:
                    other.reset(Task(task.task_id, task.split, goal))
        if not seen:
            raise NotApplicable("it names no achieved goal")
        yield from ()

    def process(self) -> Iterator[str]:
        """No call changes the state of the process, which the run and all other environments share."""
        if self.spec.isolated:
            raise NotApplicable("the environment runs in processes of its own")
        for task in self.some():
            self.player.run(task, self.player.script(task))
        for detail in self.surroundings.put_back():
            yield f"it left the process with {detail}; put back what is changed, or set env.isolate=process"


def _called(tool: Mapping[str, Any]) -> str:
    """Return how a tool is called, with the allowed values of its parameters, such as `move(direction: left|right)`."""
    properties = tool.get("parameters", {}).get("properties", {})
    shown = [
        f"{name}: {'|'.join(map(str, schema['enum']))}" if isinstance(schema, dict) and "enum" in schema else name
        for name, schema in properties.items()
    ]
    return f"{tool['name']}({', '.join(shown)})"
