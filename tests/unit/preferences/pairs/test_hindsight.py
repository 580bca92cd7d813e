from __future__ import annotations

from typing import Any

from offline_agent.envs.base import EnvSpec
from offline_agent.preferences.pairs.hindsight import Hindsight, evaluation_tasks
from offline_agent.preferences.pairs.trajectory import trajectories
from offline_agent.preferences.replayer import Replayer
from offline_agent.records import Action, Task, ToolCall
from tests.helpers import preferences as kit


def mine(tree: Any, spec: EnvSpec = kit.SPEC) -> Any:
    return Hindsight(spec, evaluation_tasks(spec)).mine(tree, Replayer(spec, None))


def reasons(tree: Any, spec: EnvSpec = kit.SPEC) -> list[str]:
    found, pairs, refusals = mine(tree, spec)
    assert not found and not pairs
    return [refusal.reason for refusal in refusals]


def test_a_failure_becomes_a_success_of_the_goal_it_reached() -> None:
    tree = kit.grow(["A B leave", "C A leave"])
    (found,), (pair,), refusals = mine(tree)
    assert not refusals and found.task.args["wanted"] == "CA" and found.task.split == "train"
    assert found.task.task_id != tree.task.task_id and found.task.task_id.startswith(tree.task.task_id)
    assert found.trajectory.origin == "hindsight" and found.trajectory.verdict.success
    messages = found.trajectory.context.messages()
    assert messages[1]["content"] == "Press buttonc then buttona." and "buttonb" not in str(messages)
    assert pair.kind == "hindsight" and pair.prefix.task == found.task and pair.prefix.depth == 0
    assert [s.action.text for s in pair.chosen] == ["C", "A", "leave"]
    assert [s.action.text for s in pair.rejected] == ["A", "B", "leave"]
    assert pair.verdict_rejected.success is False and pair.verdict_chosen.success is True


def test_pairs_share_history_under_the_new_request() -> None:
    tree = kit.grow(["C A leave", "C look B leave"])
    found, pairs, _ = mine(tree)
    assert [p.prefix.depth for p in pairs] == [1, 1] and {p.prefix.messages()[1]["content"] for p in pairs} == {
        "Press buttonc then buttona.", "Press buttonc then buttonb."
    }  # fmt: skip


def test_not_a_goal_of_the_evaluation_splits() -> None:
    assert reasons(kit.grow(["B A leave"])) == ["it is an evaluation goal"]
    assert reasons(kit.grow(["B B leave"])) == ["it is an evaluation goal"]
    assert not Hindsight(kit.SPEC, evaluation_tasks(kit.SPEC)).is_evaluation_goal({"wanted": "CA", "hint": "x"})
    assert Hindsight(kit.SPEC, evaluation_tasks(kit.SPEC)).is_evaluation_goal({"wanted": "BA"})


def test_not_a_goal_that_a_thought_names() -> None:
    actions = [kit.act("C", "buttonb comes last, so first this: "), *kit.acts("A leave")]
    (reason,) = reasons(kit.grow([actions]))
    assert reason == "a thought names the old goal: buttonb"
    actions = [kit.act("C", "buttona comes first, but "), *kit.acts("A leave")]
    assert len(mine(kit.grow([actions]))[0]) == 1  # it is in the new goal too


def test_a_final_answer_is_all_thought() -> None:
    tree = kit.grow([[*kit.acts("C A"), Action("I pressed buttonb", "I pressed buttonb")]])
    assert reasons(tree) == ["a thought names the old goal: buttonb"]


class Loud(kit.Vault):
    """A vault that answers a question by repeating it."""

    def ask(self, about: str) -> str:
        """Ask.

        Args:
            about: What about.
        """
        return f"{about}?" if about != "all" else "buttona buttonb buttonc"


def ask(about: str) -> Action:
    return Action(f"ask {about}", "", ToolCall("ask", {"about": about}))


def test_arguments_may_name_only_what_was_read() -> None:
    spec = EnvSpec(Loud)
    tree = kit.grow([[*kit.acts("C A"), ask("buttonb"), kit.act("leave")]], spec)
    assert reasons(tree, spec) == ["an argument names the old goal: buttonb"]
    tree = kit.grow([[ask("all"), ask("buttonb"), *kit.acts("C A leave")]], spec)
    assert len(mine(tree, spec)[0]) == 1
    tree = kit.grow([[ask("buttonc"), *kit.acts("C A leave")]], spec)
    assert len(mine(tree, spec)[0]) == 1  # it is in the new goal


def test_the_rejected_side_may_ask_for_the_wrong_thing() -> None:
    spec = EnvSpec(Loud)
    tree = kit.grow(["C A leave", [ask("buttonb"), *kit.acts("A B leave")]], spec)
    (pair,) = mine(tree, spec)[1]
    assert pair.rejected[0].action.text == "ask buttonb"


def test_not_a_goal_that_held_at_reset() -> None:
    class Open(kit.Vault):
        @property
        def achieved_goal(self) -> dict[str, Any] | None:
            return {"wanted": self._pressed, "hint": f"Press {self._pressed or 'nothing'}."}

    spec = EnvSpec(Open)
    assert reasons(kit.grow(["look leave"], spec), spec) == ["it held at reset"]


def test_not_a_goal_the_environment_does_not_verify() -> None:
    class Boastful(kit.Vault):
        @property
        def achieved_goal(self) -> dict[str, Any] | None:
            return {"wanted": "CCC", "hint": "Press it."}

        def get_reward(self) -> float:
            return float(self._pressed == self._wanted)

    spec = EnvSpec(Boastful)
    (reason,) = reasons(kit.grow(["C A leave"], spec), spec)
    assert "held at reset" in reason  # it says so of every state

    class Late(Boastful):
        @property
        def achieved_goal(self) -> dict[str, Any] | None:
            return {"wanted": "CCC", "hint": "Press it."} if self.terminated else None

    spec = EnvSpec(Late)
    assert reasons(kit.grow(["C A leave"], spec), spec) == ["the replay under the new goal is no success (score 0)"]


def test_not_where_the_environment_answers_differently() -> None:
    spec = EnvSpec(kit.Moody)
    assert reasons(kit.grow(["C A leave"], spec), spec) == ["the environment answered differently on replay"]


def test_not_where_the_final_state_does_not_achieve_it() -> None:
    tree = kit.grow(["C A leave"])
    next(tree.terminals()).goal = {"wanted": "CAC", "hint": "x"}
    assert reasons(tree) == ["the final state, reached again by replay, does not achieve the goal"]


def test_not_where_the_environment_says_why_not() -> None:
    spec = EnvSpec(kit.Sealed)
    assert reasons(kit.grow(["C A leave"], spec), spec) == ["a wrong combination is not another vault's right one"]

    class Mute(kit.Vault):
        achieved_goal = None  # type: ignore[assignment]

    silent = type("Silent", (), {k: v for k, v in vars(kit.Vault).items() if k != "achieved_goal"})
    spec = EnvSpec(silent)
    assert "no achieved_goal" in reasons(kit.grow(["C A leave"], spec), spec)[0]
    assert evaluation_tasks(spec) == []


def test_a_broken_replay_is_a_refusal() -> None:
    class Brittle(kit.Vault):
        def reset(self, wanted: str, hint: str) -> str:
            if wanted == "CA":
                raise RuntimeError("no such vault")
            return super().reset(wanted, hint)

    spec = EnvSpec(Brittle)
    (reason,) = reasons(kit.grow(["C A leave"], spec), spec)
    assert "the replay broke" in reason and "no such vault" in reason


def test_successes_truncated_and_quarantined_branches_are_left_alone() -> None:
    tree = kit.grow(["A B leave", "C A leave", "C C C look look look look look"])
    tree.path([n for n in tree.terminals() if n.terminated][1])[-1].quarantined = "noise"
    assert mine(tree) == ([], [], [])


def test_one_success_per_goal_and_limits() -> None:
    tree = kit.grow(["C A leave", "C look A leave", "C C leave"])
    assert [f.task.args["wanted"] for f in mine(tree)[0]] == ["CA", "CC"]


def test_the_order_of_the_same_tree_is_the_same() -> None:
    tree = kit.grow(["C A leave", "A C leave", "C C leave", "A B leave"])
    first, second = mine(tree), mine(tree)
    assert [(p.chosen_edge, p.rejected_edge, p.q_chosen) for p in first[1]] == [
        (p.chosen_edge, p.rejected_edge, p.q_chosen) for p in second[1]
    ]
    assert len(first[1]) >= 4


def test_log_probabilities_of_another_history_are_dropped() -> None:
    actions = [Action(a.text, a.thought, a.call, token_ids=(1,), logps=(-0.5,)) for a in kit.acts("C A leave")]
    tree = kit.grow([actions, "A B leave"])
    (found,), (pair,), _ = mine(tree)
    assert all(s.action.logps is None and s.action.token_ids == (1,) for s in (*found.trajectory.steps, *pair.chosen))
    assert next(trajectories(tree)).steps[0].action.logps == (-0.5,)


def test_a_task_of_another_split_keeps_it() -> None:
    tree = kit.grow(["C A leave"], of=Task("v", "validation", {"wanted": "AB", "hint": "Press it."}))
    assert mine(tree)[0][0].task.split == "validation"
