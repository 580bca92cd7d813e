"""The boundary: what a broken environment does to the rest of the program, which is nothing."""

import math
from queue import SimpleQueue

import pytest

from offline_agent.envs.base import EnvSpec, ToolError
from offline_agent.envs.pool import EnvPool
from offline_agent.errors import EnvironmentFault, Interruption
from offline_agent.records import Action, Task, ToolCall, Verdict
from tests.helpers import hostile_environments as hostile
from tests.helpers.hostile_environments import Honest

TASK = Task("goal-9", "train", {"goal": 9})


def opened(cls, args=None, **options):
    episode = EnvSpec(cls, args, **options).open()
    episode.reset(TASK)
    return episode


def pick(n):
    return Action(f"pick {n}", call=ToolCall("pick", {"n": n}))


def test_a_whole_episode():
    episode = opened(Honest)
    assert episode.verdict() == Verdict(0.0, False, "Honest.get_reward")
    assert episode.step(pick(2)) == ("2 so far, 2 to go.", "tool", False, None, None, None)
    assert episode.step(pick(3.0)).observation == "5 so far, 1 to go."
    assert episode.step(pick(4)) == ("9 so far, 0 to go.", "tool", True, None, None, None)
    assert episode.terminated
    assert episode.verdict() == Verdict(1.0, True, "Honest.get_reward")
    with pytest.raises(RuntimeError, match="is over"):
        episode.step(pick(1))


def test_stepping_before_reset():
    with pytest.raises(RuntimeError, match="not reset"):
        EnvSpec(Honest).open().step(pick(1))


def test_a_final_answer_ends_the_episode():
    episode = opened(Honest)
    assert episode.step(Action("I am done.")) == (None, "user", True, None, None, None)
    assert episode.terminated and episode.verdict().success is False


def test_the_scripted_user_speaks_again():
    episode = opened(hostile.NeverEnds)
    assert episode.step(Action("Done?")) == ("And now?", "user", False, None, None, None)
    assert not episode.terminated


@pytest.mark.parametrize("fault", ["invalid_json", "bad_call", "several_calls", "empty", "no_end"])
def test_faulty_turns_never_reach_the_environment(fault):
    episode = opened(Honest)
    result = episode.step(Action("{", fault=fault, detail="Close the brace."))
    assert result == ("Error: Close the brace.", "user", False, fault, None, None)
    assert fault in episode.step(Action("{", fault=fault)).observation
    assert episode.fingerprint() == "[]"


def test_bad_calls_never_reach_the_environment():
    episode = opened(Honest)
    assert episode.step(Action("x", call=ToolCall("peek", {}))).fault == "unknown_tool"
    assert episode.step(Action("x", call=ToolCall("reset", {"goal": 1}))).fault == "unknown_tool"
    assert episode.step(Action("x", call=ToolCall("get_reward", {}))).fault == "unknown_tool"
    assert episode.step(Action("x", call=ToolCall("__init__", {}))).fault == "unknown_tool"
    assert episode.step(pick("2")).fault == "bad_arguments"
    assert episode.fingerprint() == "[]"


class Refuses(Honest):
    def __init__(self, error):
        self.error = error

    def pick(self, n: int) -> str:
        """Pick.

        Args:
            n: n
        """
        raise self.error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("n is too large"), "Error: n is too large"),
        (TypeError("no"), "Error: no"),
        (KeyError("chair"), "Error: chair"),
        (IndexError(), "Error: IndexError"),
        (ToolError("Error: not here"), "Error: not here"),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"), "Error: 'utf-8' codec"),
    ],
)
def test_errors_that_mean_bad_input_are_told_to_the_policy(error, told):
    result = opened(Refuses, {"error": error}).step(pick(1))
    assert result.observation.startswith(told) and result[1:] == ("tool", False, "tool_error", None, None)


def test_a_tool_names_its_own_class_of_error():
    assert opened(Refuses, {"error": ToolError("gone", "unknown_tool")}).step(pick(1)).fault == "unknown_tool"


@pytest.mark.parametrize(
    "error", [OSError("disk"), RuntimeError("bug"), AttributeError("x"), MemoryError(), SystemExit(1)]
)
def test_other_errors_break_the_environment_and_keep_their_cause(error):
    with pytest.raises(EnvironmentFault, match="Refuses: pick") as caught:
        opened(Refuses, {"error": error}).step(pick(1))
    assert caught.value.__cause__ is error and "goal-9" in str(caught.value)


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "GeneratorExit", "SystemExit", "CancelledError", "Own"])
def test_errors_that_are_no_exceptions_are_told_for_what_they_are_and_not_as_a_time_out(error):
    pool, answers = EnvPool(1, 2.0), SimpleQueue()
    pool.submit(lambda: opened(hostile.Raises, {"error": error}).step(pick(5)), answers.put)
    pool.submit(lambda: opened(Honest).step(pick(5)).observation, answers.put)
    first, second = answers.get(timeout=20), answers.get(timeout=20)
    assert isinstance(first, EnvironmentFault) and f"Raises: pick() raised {error}" in str(first)
    assert second == "5 so far, 2 to go."  # by the same thread
    pool.close()


def test_a_signal_that_ends_the_run_is_no_fault_of_the_environment():
    with pytest.raises(Interruption):
        opened(Refuses, {"error": Interruption()}).step(pick(1))


def test_broken_environments_are_wrapped_wherever_they_break():
    with pytest.raises(EnvironmentFault, match="OSError: no database"):
        EnvSpec(hostile.RaisesInInit).open()
    with pytest.raises(EnvironmentFault, match="OSError: no world"):
        opened(hostile.RaisesInReset)
    with pytest.raises(EnvironmentFault, match="`terminated` is True after reset"):
        EnvSpec(hostile.OverAtOnce).open().reset(Task("goal-4", "train", {"goal": 4}))
    with pytest.raises(EnvironmentFault, match="SystemExit"):
        opened(hostile.ExitsInTool).step(pick(1))
    episode = opened(hostile.RaisesInTool)
    assert episode.step(pick(1)).fault is None
    with pytest.raises(EnvironmentFault, match="the connection was lost"):
        episode.step(pick(5))


@pytest.mark.parametrize("anew", [["leave"], ["enter", "enter"], ["enter", "leave", "leave"], ["again"]])
def test_sub_agents_begin_and_end_in_turn(anew):
    class Jumps(Honest):
        def pick(self, n: int) -> str:
            """Pick a number.

            Args:
                n: The number.
            """
            self._anew = anew[n]
            return "picked"

    episode = opened(Jumps)
    for number in range(len(anew) - 1):
        episode.step(pick(number))
        episode = episode.copy()
    with pytest.raises(EnvironmentFault, match=f"_anew is '{anew[-1]}'"):
        episode.step(pick(len(anew) - 1))


def test_ten_megabytes_are_cut_with_a_note():
    result = opened(hostile.Huge).step(pick(1))
    assert len(result.observation) < 8100
    assert result.observation.endswith("[cut here: 8000 of 10000018 characters shown]")
    assert len(opened(hostile.Huge, max_observation_chars=100).step(pick(1)).observation) < 200


def test_text_is_clean():
    observation = opened(hostile.BadUnicode).step(pick(1)).observation
    assert observation == "1 so far, 2 to go. \ufffd \x00 \uffff"
    observation.encode("utf-8")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("text", "text"),
        (None, ""),
        (3, "3"),
        (True, "True"),
        (["a", {"b": None}], '["a", {"b": null}]'),
        ({"ü": math.inf}, '{"ü": Infinity}'),
        ((1, 2), "[1, 2]"),
        (b"\xff", "\ufffd"),
        ({"k": {1}}, '{"k": "{1}"}'),
        ("\ud83d\ude00", "\U0001f600"),
        (["\ud800"], '["\ufffd"]'),
    ],
)
def test_observations_become_text(value, text):
    assert opened(hostile.Returns, {"value": value}).step(pick(1)).observation == text


def test_an_observation_that_cannot_become_text_breaks_the_environment():
    class Bad:
        def __str__(self):
            raise OSError("no text")

    with pytest.raises(EnvironmentFault, match="no text"):
        opened(hostile.Returns, {"value": Bad()}).step(pick(1))
    loop: list = []
    loop.append(loop)
    with pytest.raises(EnvironmentFault, match="Circular"):
        opened(hostile.Returns, {"value": loop}).step(pick(1))


@pytest.mark.parametrize(
    ("reward", "told"),
    [
        (2.0, "2.0"),
        (-0.1, "-0.1"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (None, "None"),
        ("good", "good"),
        ([1], "list"),
        (10**400, "too large"),
    ],
)
def test_no_score_is_invented(reward, told):
    verdict = opened(hostile.Rewards, {"reward": reward}).verdict()
    assert (verdict.score, verdict.success) == (None, None) and told in verdict.error


@pytest.mark.parametrize(("reward", "score"), [(1, 1.0), (True, 1.0), (0, 0.0), (0.5, 0.5), ("0.25", 0.25)])
def test_scores(reward, score):
    verdict = opened(hostile.Rewards, {"reward": reward}).verdict()
    assert (verdict.score, verdict.success, verdict.error) == (score, score == 1.0, None)


def test_a_verifier_that_raises_gives_no_score():
    verdict = opened(hostile.VerifierRaises).verdict()
    assert verdict.score is None and "ZeroDivisionError" in verdict.error

    class None_:
        def reset(self, goal: int) -> str:
            return ""

    verdict = EnvSpec(None_).open().verdict()
    assert verdict.score is None and "get_reward" in verdict.error


def test_a_verdict_is_kept_and_its_evidence_made_json():
    given = Verdict(0.5, False, "mine", "7", {"why": {"a", "b"} - {"b"}})
    assert opened(hostile.Rewards, {"reward": given}).verdict() == Verdict(0.5, False, "mine", "7", {"why": "{'a'}"})


def test_copies_are_independent():
    episode = opened(Honest)
    episode.step(pick(1))
    twin = episode.copy()
    assert twin.step(pick(8)).observation == "9 so far, 1 to go."
    assert episode.fingerprint() == "[1]" and twin.fingerprint() == "[1, 8]"
    assert episode.step(pick(2)).observation == "3 so far, 1 to go."
    done = opened(Honest)
    done.step(Action("done"))
    assert done.copy().terminated


def test_what_cannot_be_copied_says_what_to_do():
    with pytest.raises(EnvironmentFault, match="replay_only = True"):
        opened(hostile.Uncopyable).copy()
    with pytest.raises(EnvironmentFault, match="restored by replay"):
        opened(hostile.AnswersDifferently).copy()


def test_reset_does_not_hand_out_the_tasks_own_arguments():
    class Greedy(Honest):
        def reset(self, goal: dict) -> str:
            goal["spoilt"] = True
            return ""

    task = Task("t", "train", {"goal": {"n": 1}})
    EnvSpec(Greedy).open().reset(task)
    assert task.args == {"goal": {"n": 1}}


def test_irreversible_tools_need_a_sandbox():
    class Rocket(Honest):
        irreversible = {"pick"}

    with pytest.raises(EnvironmentFault, match="irreversible"):
        opened(Rocket).step(pick(1))
    assert opened(Rocket, sandboxed=True).step(pick(1)).fault is None


def test_coroutines_are_awaited():
    class Later(Honest):
        async def pick(self, n: int) -> str:
            """Pick.

            Args:
                n: n
            """
            return f"later {n}"

        async def get_reward(self) -> float:
            return 1.0

    episode = opened(Later)
    assert episode.step(pick(1)).observation == "later 1" and episode.verdict().score == 1.0


def test_optional_properties():
    class Full(Honest):
        system_prompt = "class"

        def __init__(self, prompt: str = "instance"):
            self.system_prompt = prompt

        @property
        def achieved_goal(self):
            return {"goal": sum(self.picked)} if self.picked else None

    episode = opened(Full)
    assert episode.system_prompt == "instance" and episode.achieved_goal() is None
    episode.step(pick(4))
    assert episode.achieved_goal() == {"goal": 4}
    assert opened(hostile.Returns).achieved_goal() is None

    class Wrong(Honest):
        achieved_goal = "nine"
        fingerprint = property(lambda self: 1 / 0)

    with pytest.raises(EnvironmentFault, match="achieved_goal must be a dict"):
        opened(Wrong).achieved_goal()
    with pytest.raises(EnvironmentFault, match="fingerprint raised ZeroDivisionError"):
        opened(Wrong).fingerprint()


def test_closing():
    log = []

    class Held(Honest):
        def __enter__(self):
            log.append("in")

        def __exit__(self, *_):
            log.append("out")

    opened(Held).close()
    assert log == ["in", "out"]
    opened(Honest).close()


def test_what_a_call_earned_is_read_after_it():
    episode = opened(hostile.Earns, {"earned": 0.25})
    assert EnvSpec(hostile.Earns).turn_rewards and not EnvSpec(Honest).turn_rewards
    assert episode.turn_reward() is None  # nothing was done yet
    assert episode.step(pick(2)) == ("2 so far, 2 to go.", "tool", False, None, 0.25, None)
    # what the environment did not do, or did not hear of, earned nothing; it is not the last call's once more
    assert episode.step(pick(11)).reward == episode.step(pick("2")).reward == 0.0
    assert episode.step(Action("{", fault="invalid_json", detail="Close the brace.")).reward == 0.0
    assert episode.step(Action("x", call=ToolCall("peek", {}))).reward == 0.0
    assert episode.copy().turn_reward() == 0.25
    assert episode.step(Action("I am done.")).reward == 0.0


def test_what_a_call_earned_may_be_unknown():
    assert opened(hostile.EarnsUnsaid).step(pick(2)).reward is None
    assert opened(Honest).step(Action("I am done.")).reward is None


@pytest.mark.parametrize("earned", [1.5, -0.1, math.nan, "much", {}])
def test_what_no_call_can_have_earned_is_a_fault(earned):
    with pytest.raises(EnvironmentFault, match="turn_reward is .*allowed: a number in"):
        opened(hostile.Earns, {"earned": earned}).step(pick(2))
