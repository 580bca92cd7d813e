"""Agents of several parts: each turn's row has the prompt that the policy read, however its history went on."""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.conformance import check_environment
from offline_agent.envs.parts import ASK, SUB, SUMMARY
from offline_agent.envs.pool import EnvPool
from offline_agent.errors import ConfigError, DataError
from offline_agent.policies.base import Proposals, ProposeRequest
from offline_agent.policies.engines import InlineEngine
from offline_agent.preferences.dataset.export import trajectory_row
from offline_agent.records import Action, Task, ToolCall
from offline_agent.rendering.columns import starts_of
from offline_agent.rendering.renderer import Renderer
from offline_agent.rollouts.attempts import Attempt, AttemptRequest, from_record, to_record
from offline_agent.rollouts.episodes import Episodes
from offline_agent.search.serialization import tree_from_json
from offline_agent.search.settings import SearchSettings
from offline_agent.training.data.conversations import Encoder
from tests.helpers import rendering as kit
from tests.helpers.search import Guess, Paths, search

TASK = Task("t", "train", {"code": "123"})
FIRST = "The code is 123."


def turn(said: Any) -> tuple[str, ToolCall | None]:
    """Return thought and call of a turn of a script: a door's number, a sub-agent's task in capitals, or words."""
    if isinstance(said, int):
        return f"I think of {said}.", ToolCall("door", {"number": said})
    return ("", ToolCall("delegate", {"task": said})) if said.isupper() else (said, None)


class Script:
    """Says given turns, sampled as it were, and remembers what it was shown."""

    name, batch_invariant, max_tokens = "script", True, 8
    identity: dict[str, object] = {}

    def __init__(self, renderer: Renderer, turns: Sequence[Any]) -> None:
        self.renderer, self.turns, self.seen = renderer, list(turns), list[Any]()

    def propose(self, requests: Sequence[ProposeRequest]) -> list[Any]:
        """Answer with the next turn."""
        (request,) = requests
        thought, call = turn(self.turns[len(self.seen)])
        ids = self.renderer.encode_action(Action(self.renderer.write(thought, call), thought, call))
        action = self.renderer.parse(ids, [-0.5] * len(ids), request.context.tools)
        self.seen.append((self.renderer.context_ids(request.context), list(ids), request.context))
        return [Proposals((action,))]


def played(renderer: Renderer, said: Sequence[Any], **args: Any) -> tuple[Attempt, list[Any], list[Any]]:
    """Return an attempt, the ids of each turn and of its prompt, and the messages that the policy was shown."""
    policy, pool = Script(renderer, said), EnvPool(0, 20.0)
    spec = EnvSpec.load("parts:tests.helpers.search:Paths", args) if args else EnvSpec(Paths)
    ask = [AttemptRequest(TASK, "sampled", 0)]
    try:
        (attempt,) = Episodes(spec, InlineEngine(policy), pool, segment=renderer.segment).play(ask)
    finally:
        pool.close()
    return attempt, [entry[:2] for entry in policy.seen], [entry[2] for entry in policy.seen]


def laid_out(renderer: Renderer, attempt: Attempt) -> list[Any]:
    """Return prompt and ids of each run of the mask of an attempt's row."""
    trajectory = attempt.trajectory()
    assert trajectory is not None
    row = trajectory_row(trajectory, renderer)
    out = []
    for start, end in pairwise((0, *starts_of(row, "sequence"), len(row["input_ids"]))):
        ids, mask = row["input_ids"][start:end], row["action_mask"][start:end]
        edges = [at for at in range(len(ids)) if mask[at] != (mask[at - 1] if at else 0)]
        edges += [len(ids)] * (len(edges) % 2)
        out += [(ids[:a], ids[a:b]) for a, b in zip(edges[::2], edges[1::2], strict=True)]
    return out


SCRIPTS: list[tuple[dict[str, Any], Sequence[Any]]] = [
    ({"turns": 2}, (1, 2, "1 and 2 are behind me.", 3)),
    ({"characters": 60}, (1, 2, 9, 3)),  # a call in place of a summary
    ({"delegate": True}, (1, "GO", 2, "Done: 2.", 3)),
    ({"turns": 1, "delegate": True}, (1, "Been through 1.", "GO", 2, "Now 2.", "It is done.", "All but one.", 3)),
]


@pytest.mark.parametrize("template", [kit.CHATML_TURNS, kit.FORGETFUL], ids=["appended", "rendered anew"])
@pytest.mark.parametrize(("args", "script"), SCRIPTS)
def test_each_turn_is_learnt_after_the_prompt_that_the_policy_read(
    args: dict[str, Any], script: Sequence[Any], template: str
) -> None:
    renderer = Renderer(kit.byte_level(kit.CONTROLS, template))
    attempt, turns, _ = played(renderer, script, **args)
    assert attempt.terminated and len(turns) == len(script) and attempt.verdict.verifier == "Paths.get_reward"
    assert laid_out(renderer, attempt) == turns  # none twice, and nothing but what was sampled
    record = json.loads(json.dumps(to_record(attempt, "x")))
    assert attempt.context is not None
    again = from_record(record, TASK, {"x": (attempt.context.system, attempt.context.tools)})
    assert laid_out(renderer, again) == turns and again.steps == attempt.steps
    copied = dataclasses.replace(attempt, context=pickle.loads(pickle.dumps(attempt.context)))
    assert laid_out(renderer, copied) == turns


def test_a_call_in_place_of_a_summary_is_not_carried_out_and_its_words_are_the_summary() -> None:
    attempt, _, shown = played(Renderer(kit.byte_level(kit.CONTROLS, kit.CHATML_TURNS)), SCRIPTS[1][1], **SCRIPTS[1][0])
    assert attempt.verdict.evidence == {} and [step.observation for step in attempt.steps][-1] == "Behind you: 123."
    (told,) = shown[3].messages()
    assert told["content"].startswith(f"{FIRST}\n{SUMMARY}\nI think of 9.") and '"number": 9' in told["content"]


def test_what_the_policy_reads_after_a_summary_and_in_a_sub_agent() -> None:
    renderer = Renderer(kit.byte_level(kit.CONTROLS, kit.CHATML_TURNS))
    attempt, _, shown = played(renderer, SCRIPTS[3][1], **SCRIPTS[3][0])
    reads = [[message["content"] for message in one.messages()] for one in shown]
    assert reads[1] == [FIRST, "I think of 1.", f"{ASK}\nBehind you: 1."]
    assert reads[2] == [f"{FIRST}\n{SUMMARY}\nBeen through 1."]
    assert reads[3] == [f"{SUB}\nGO"]
    assert reads[5] == [f"{SUB}\nGO\n{SUMMARY}\nNow 2."]
    assert reads[6] == [*reads[2], "", f"{ASK}\nIt is done."] and shown[6].messages()[-1]["role"] == "tool"
    assert reads[7] == [f"{FIRST}\n{SUMMARY}\nAll but one."]
    tools = [[tool["function"]["name"] for tool in one.tools] for one in shown]
    assert tools == [["door", "delegate"] if at not in (3, 4, 5) else ["door"] for at in range(8)]
    went_on = [None, "compact", "enter", None, "compact", "leave", "compact", None]
    assert [step.anew for step in attempt.steps] == went_on
    # the ids say which prompt a turn had; messages alone would teach turns after prompts that nobody read
    assert attempt.context is not None
    with pytest.raises(DataError, match="goes on anew"):
        Encoder(renderer).trajectory(attempt.context.messages(), list(attempt.context.tools), False)


def test_an_episode_within_its_limits_is_the_environments_own() -> None:
    renderer = Renderer(kit.byte_level(kit.CONTROLS, kit.CHATML_TURNS))
    plain, parts = (played(renderer, (1, 2, 3), **args)[0] for args in ({}, {"turns": 4, "characters": 900}))
    one, other = (trajectory_row(attempt.trajectory(), renderer) for attempt in (plain, parts))  # type: ignore[arg-type]
    assert one == other
    assert plain.prefilled == parts.prefilled


def test_prompt_tokens_of_a_history_that_began_anew_count_once_more() -> None:
    renderer = Renderer(kit.byte_level(kit.CONTROLS, kit.CHATML_TURNS))
    attempt, turns, _ = played(renderer, SCRIPTS[0][1], turns=2)
    assert attempt.prefilled == sum(len(turns[at][0]) for at in (2, 3)) - sum(len(turns[at][1]) for at in (0, 1))


def test_a_search_is_the_same_after_any_kill_without_copies_and_in_processes_of_its_own() -> None:
    settings = SearchSettings(simulations=12, max_steps=8)
    spec = EnvSpec.load("parts:tests.helpers.search:Paths", {"turns": 2})
    whole = search(spec, Guess(), settings, [TASK])
    for cut in range(0, 12, 2):
        again = search(spec, Guess(), settings, [TASK], records={"t": whole.logs["t"][:cut]})
        assert (again.trees, again.logs) == (whole.trees, whole.logs), f"cut after {cut} commits"
    assert search(spec, Guess(), settings, [TASK], live_states=1).trees == whole.trees
    isolated = EnvSpec.load("parts:tests.helpers.search:Paths", {"turns": 2}, isolated=True)
    assert search(isolated, Guess(), settings, [TASK]).trees == whole.trees
    tree, read = whole.searches["t"].tree, tree_from_json(json.loads(whole.trees["t"]))
    assert tree is not None and any(node.context.anew for node in tree.nodes)
    for node, same in zip(tree.nodes, read.nodes, strict=True):
        assert node.context.shown.messages() == same.context.shown.messages()
        if node.edge is not None:
            assert tree.steps(node)[-1].anew == node.context.anew == same.context.anew
            before, action = node.edge.parent, node.context.action
            assert action is not None and action.token_ids is not None
            assert action.token_ids[2] == before.context.shown.depth  # as the policy was shown it
            assert node.context.anew is None or node.fingerprint != before.fingerprint


class Awaited(Paths):
    """Has tools that are awaited, and tasks with names that its reset does not take."""

    tasks = classmethod(lambda cls, split: [{"task_id": "named", "code": "123"}])  # type: ignore[assignment]

    async def door(self, number: int) -> str:  # type: ignore[override]
        """Go through a door.

        Args:
            number: Which door, 0 to 9.
        """
        return super().door(number)


def test_tools_that_are_awaited_and_named_tasks() -> None:
    spec = EnvSpec.load("parts:tests.unit.envs.test_parts:Awaited", {"turns": 1})
    (task,), episode = spec.tasks("train"), spec.open()
    assert task.task_id == "named" and episode.reset(task) == FIRST
    result = episode.step(Action("", call=ToolCall("door", {"number": 1})))
    assert (result.observation, result.anew) == (f"{ASK}\nBehind you: 1.", None)


class Delegates(Paths):
    """Has a tool of the name that sub-agents are called by."""

    def delegate(self, task: str) -> str:
        """Do nothing.

        Args:
            task: Nothing.
        """
        return task


def test_two_tools_of_one_name_are_refused() -> None:
    own = EnvSpec.load("parts:tests.unit.envs.test_parts:Delegates", {"turns": 1})
    assert set(own.tools.names) == {"delegate", "door"}
    with pytest.raises(ConfigError, match="two tools are called delegate"):
        EnvSpec.load("parts:tests.unit.envs.test_parts:Delegates", {"delegate": True})


def test_bad_keys_are_refused() -> None:
    for args in ({}, {"turns": 0}, {"turns": 3, "delegate": 1}, {"characters": "many"}):
        with pytest.raises(ConfigError, match=f"^env.{list(args)[-1]}: got" if args else "with one part; give"):
            EnvSpec.load("parts:shop", args)


def test_it_passes_the_conformance_suite() -> None:
    report = check_environment(EnvSpec.load("parts:countdown", {"n": 3, "turns": 1, "delegate": True}), tasks=1)
    assert report.passed, report
