"""TextWorldExpress: many games in one Java machine, gold paths that repeat, and messages when Java is missing."""

import itertools
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.errors import ConfigError, EnvironmentFault
from offline_agent.records import Action, Task, ToolCall
from offline_agent_environments.textworld import TextWorld, server
from offline_agent_environments.textworld.demonstrate import follow, to_do

needs_java = pytest.mark.skipif(server.missing() is not None, reason=str(server.missing()))


def first_tasks(game, split="train", n=3):
    return list(itertools.islice(EnvSpec(TextWorld, {"game": game}).tasks(split), n))


def act(command):
    return Action(command, call=ToolCall("act", {"command": command}))


def _play(spec, task, noise=0.0, seed=0, limit=150):
    episode = spec.open()
    messages = [{"role": "user", "content": episode.reset(task)}]
    rng = random.Random(seed)
    for _ in range(limit):
        if episode.terminated:
            break
        message = spec.demonstrate(task.args, messages, rng, noise)
        messages.append(message)
        calls = message.get("tool_calls")
        result = episode.step(
            act(calls[0]["function"]["arguments"]["command"]) if calls else Action(message["content"])
        )
        messages.append({"role": result.role, "content": result.observation})
    verdict = episode.verdict()
    episode.close()
    return verdict, [m["content"] for m in messages]


@needs_java
@pytest.mark.parametrize("game", server.GAMES)
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_the_gold_path_wins(game, split):
    spec = EnvSpec(TextWorld, {"game": game})
    for task in first_tasks(game, split, 5):
        verdict, _ = _play(spec, task)
        assert verdict.success and verdict.score == 1.0, (task.task_id, verdict)


@needs_java
def test_gold_paths_repeat_in_another_java_machine():
    asked = [(g, "", "train", seed) for g in ("cookingworld", "twc", "coin") for seed in (18, 19)]
    here = [list(server.server().gold(*key)) for key in asked]
    other = server.JavaServer()
    try:
        assert [list(other.gold(*key)) for key in asked[::-1]][::-1] == here
        assert [list(server.server().gold(*key)) for key in asked] == here and all(here)
    finally:
        other._gateway.shutdown()


@needs_java
def test_a_thousand_seeds_a_fold():
    spec = EnvSpec(TextWorld, {"game": "coin"})
    seeds = {split: [t.args["seed"] for t in spec.tasks(split)] for split in ("train", "validation", "test")}
    with server.server().take("coin", "") as interface, interface.asked("tell its seeds") as java:
        assert seeds["train"] == list(java.getSeedsTrain())
        assert seeds["validation"] == list(java.getSeedsDev())
        assert seeds["test"] == list(java.getSeedsTest())


@needs_java
def test_several_games_take_turns():
    tasks = first_tasks("coin, twc", n=4)
    assert [t.task_id for t in tasks] == ["coin-train-0", "twc-train-0", "coin-train-1", "twc-train-1"]


@needs_java
def test_playing_by_hand():
    episode = EnvSpec(TextWorld).open()
    first = episode.reset(first_tasks("cookingworld")[0])
    assert first.startswith("You are hungry!") and "You are in the kitchen" in first
    assert episode.tools.names == ("act", "commands")
    assert episode.verdict().score == 0.0
    listed = episode.step(Action("c", call=ToolCall("commands", {}))).observation.split("\n")
    assert listed == sorted(listed) and "open fridge" in listed
    assert episode.step(act("  Open   FRIDGE ")).observation.startswith("You open the fridge")
    wrong = episode.step(act("opn fridge door"))
    assert wrong.fault == "tool_error" and "commands()" in wrong.observation
    assert "Did you mean 'take knife'" in episode.step(act("take knif")).observation
    assert episode.step(Action("I give up.")).terminated
    verdict = episode.verdict()
    assert verdict.success is False and verdict.evidence["commands"] == 3 + 1 - 1
    with pytest.raises(EnvironmentFault, match="replay"):
        episode.copy()
    episode.close()


@needs_java
@pytest.mark.parametrize("game", ["cookingworld", "twc", "coin"])
def test_what_calls_earn_adds_up_to_the_score(game):
    spec = EnvSpec(TextWorld, {"game": game})
    for task in first_tasks(game):
        episode = spec.open()
        episode.reset(task)
        begun, earned = episode.verdict().score, []
        for command in server.gold_path(*(task.args[k] for k in ("game", "params", "fold", "seed"))):
            assert episode.step(Action("c", call=ToolCall("commands", {}))).reward == 0.0
            earned.append(episode.step(act(command)).reward)
            assert begun + sum(earned) == pytest.approx(episode.verdict().score)
        assert episode.verdict().success and sum(one > 0 for one in earned) > (0 if game == "coin" else 1)
        episode.close()


@needs_java
def test_many_games_at_once_do_not_touch_each_other():
    spec = EnvSpec(TextWorld, {"game": "coin,twc,mapreader"})
    tasks = list(itertools.islice(spec.tasks("train"), 24))
    alone = [_play(spec, task, 0.2, i) for i, task in enumerate(tasks)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda it: _play(spec, it[1], 0.2, it[0]), enumerate(tasks)))
    assert together == alone


@needs_java
def test_interfaces_are_used_again():
    spec = EnvSpec(TextWorld, {"game": "coin"})
    task = first_tasks("coin")[0]
    one = spec.open()
    one.reset(task)
    used = one._env._interface
    one.step(act("look around"))
    one.close()
    two = spec.open()
    first = two.reset(task)
    assert two._env._interface is used
    two.step(act("move west"))
    assert two.reset(task) == first
    two.close()


@needs_java
def test_the_game_s_parameters():
    spec = EnvSpec(TextWorld, {"game": "coin", "params": "numLocations=2,includeDoors=0"})
    task = next(spec.tasks("train"))
    assert task.args["params"] and _play(spec, task)[0].success
    wrong = Task("t", "train", {**task.args, "params": "numPlaces=2"})
    with pytest.raises((ConfigError, EnvironmentFault), match="numPlaces|does not take"):
        EnvSpec(TextWorld).open().reset(wrong)


@needs_java
def test_noise_makes_the_demonstrator_worse():
    spec = EnvSpec(TextWorld, {"game": "coin"})
    tasks = first_tasks("coin", n=20)
    won = [sum(bool(_play(spec, t, n, i)[0].success) for i, t in enumerate(tasks)) for n in (0.0, 0.3, 0.7)]
    assert won[0] == 20 > won[1] > won[2]


def test_following_a_path():
    path = ("look around", "move west", "take coin", "move west", "eat coin")
    yes = lambda *commands: [(c, True) for c in commands]  # noqa: E731
    assert follow(path, []) == (0, [])
    assert follow(path, yes("look around", "move west")) == (2, [])
    assert follow(path, yes("look around", "move north")) == (1, ["north"])
    assert follow(path, yes("look around", "move north", "move south")) == (1, [])
    assert follow(path, yes("move west")) == (2, [])  # one left out
    assert follow(path, yes("inventory", "eat coin")) == (0, [])  # too far ahead
    assert follow(path, [("look around", False)]) == (1, [])  # of no effect, but the path has it
    assert follow(path, [("take coin", False)]) == (0, [])


RECIPE = """Gather all following ingredients and follow the directions to prepare this tasty meal.

Ingredients:
  pork chop
  banana

Directions:
  fry the pork chop
  chop the banana
  fry the banana
  prepare meal

"""


def test_what_is_left_of_a_recipe():
    made = [("take pork chop", "You take the pork chop."), ("open fridge", "You open the fridge. It's empty inside.")]
    assert to_do(made) == []  # nobody has read it
    made.append(("read cookbook", RECIPE))
    left = ["take banana", "fry pork chop", "chop banana", "fry banana", "prepare meal", "eat meal"]
    assert to_do(made) == left
    made += [("take banana", "Error: the game does not know how to 'take banana' here.")]
    made += [("cook banana in oven", "You roast the banana with the oven.")]
    assert to_do(made) == left
    made += [("take banana", "You take the banana.")]
    made += [("cook pork chop in stove", "You fry the pork chop with the stove.")]
    assert to_do(made) == ["chop banana", "fry banana", "prepare meal", "eat meal"]
    made += [("prepare meal", "Adding the meal to your inventory."), ("chop banana", "You chop the banana.")]
    assert to_do(made) == ["fry banana", "eat meal"]


def test_a_recipe_that_was_cut_short_is_none():
    assert to_do([("read cookbook", "Gather all\n [cut]\n  pork chop\n\nDirections:\n  fry the pork chop\n")]) == []
    assert to_do([("read cookbook", "Gather all\n\nIngredients:\n  pork [cut]")]) == []


@needs_java
def test_the_expert_says_what_is_left_of_the_recipe_until_nothing_is():
    spec = EnvSpec(TextWorld, {"game": "cookingworld", "params": "numLocations=1,numIngredients=1,includeDoors=0"})
    for task in itertools.islice(spec.tasks("train"), 3):
        verdict, said = _play(spec, task)
        turns = said[1::2]
        told = [turn.startswith("Left: ") for turn in turns]
        read = 1 + next(i for i, turn in enumerate(turns) if turn == "Next: read cookbook.")
        assert verdict.success and not any(told[:read]) and all(told[read:])
        assert turns[-1] == "Left: eat meal. Next: eat meal."


def test_wrong_games_are_answered_with_the_nearest():
    with pytest.raises(ConfigError, match="Did you mean 'coin'"):
        EnvSpec(TextWorld, {"game": "coins"}).open()


@pytest.mark.parametrize(
    ("gone", "told"), [("textworld_express", "pip install textworld-express==1.1.0"), ("java", "default-jre-headless")]
)
def test_what_is_missing_is_named(monkeypatch, gone, told):
    real = server.importlib.util.find_spec
    if gone == "java":
        monkeypatch.setattr(server.importlib.util, "find_spec", lambda name: object())
        monkeypatch.setattr(server, "java", lambda: None)
    else:
        monkeypatch.setattr(server.importlib.util, "find_spec", lambda name: None if name == gone else real(name))
    with pytest.raises(ConfigError, match=told):
        list(EnvSpec(TextWorld).tasks("train"))
    with pytest.raises(ConfigError, match=told):
        server.JavaServer()
