import copy
import random
import string

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.shop import Shop
from offline_agent.envs.shop.catalogue import DEPARTMENTS, catalogue
from offline_agent.envs.shop.demonstrate import decide
from offline_agent.envs.shop.goals import MAX_LOOKS, SPLITS, Goal, goals, reward, split_of
from offline_agent.errors import Refusal
from offline_agent.records import Action, Task, ToolCall

TOOLS = {"search", "open", "next", "previous", "back", "choose", "buy"}


def visit(task, noise, seed, max_steps=15):
    rng, shop = random.Random(seed), Shop()
    observation, messages = shop.reset(**task), []
    messages.append({"role": "user", "content": observation})
    while not shop.terminated and len(messages) < 2 * max_steps:
        message = Shop.demonstrate(task, messages, rng, noise)
        function = message["tool_calls"][0]["function"]
        observation = getattr(shop, function["name"])(**function["arguments"])
        messages += [message, {"role": "tool", "content": observation}]
    return shop, messages


def test_catalogue_is_large_and_the_same_every_time():
    shop = catalogue()
    assert len(shop.products) >= 1000
    assert type(shop)().products == shop.products
    assert all(item.price % 10 and 11 <= item.price <= 89 for item in shop.products)
    assert all(item.keyword not in item.attributes for item in shop.products)
    assert all(item.title_attribute in item.attributes for item in shop.products)


def test_option_values_name_one_option_only():
    for department in DEPARTMENTS.values():
        values = [value for group in department.options.values() for value in group]
        assert len(values) == len(set(values))


def test_splits_are_disjoint_large_and_stable():
    by_split = {split: {repr(sorted(goal.task().items())) for goal in goals(split)} for split in SPLITS}
    assert {split: len(found) for split, found in by_split.items()} == SPLITS
    assert SPLITS["train"] >= 1000 and min(SPLITS["validation"], SPLITS["test"]) >= 300
    searched = {split: {(g.kind, frozenset(g.attributes)) for g in goals(split)} for split in SPLITS}
    for one, other in (("train", "validation"), ("train", "test"), ("validation", "test")):
        assert not by_split[one] & by_split[other]
        assert not searched[one] & searched[other]
    assert list(Shop.tasks("test"))[:3] == list(Shop.tasks("test"))[:3]
    with pytest.raises(ValueError, match="no split 'dev'"):
        Shop.tasks("dev")


def test_the_right_product_is_seldom_the_first_hit_and_always_near():
    shop, first = catalogue(), 0
    chosen = goals("validation")
    for goal in chosen:
        hits = [shop.products[number] for number in shop.search(goal.query())]
        affordable = [item for item in hits if item.price <= goal.max_price and item.kind == goal.kind]
        place = next(place for place, item in enumerate(affordable, 1) if goal.fits(item))
        assert place <= MAX_LOOKS
        first += goal.fits(hits[0])
    assert first / len(chosen) < 0.25


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_oracle_always_reaches_one(split):
    for task in list(Shop.tasks(split))[:60]:
        shop, _ = visit(task, 0.0, 0)
        verdict = shop.get_reward()
        assert verdict.score == 1.0 and verdict.success is True, task


def test_doing_nothing_scores_zero():
    shop = Shop()
    shop.reset(**next(Shop.tasks("train")))
    verdict = shop.get_reward()
    assert (verdict.score, verdict.success) == (0.0, False)


def test_the_careless_customer_fails_often_recovers_often_and_never_miscopies():
    successes = recovered = 0
    tasks = list(Shop.tasks("train"))[:150]
    for number, task in enumerate(tasks):
        shop, messages = visit(task, 0.6, number)
        successes += bool(shop.get_reward().success)
        said = " ".join(str(message["content"]) for message in messages[:1])
        for call, answer in zip(messages[1::2], messages[2::2], strict=True):
            function = call["tool_calls"][0]["function"]
            assert function["name"] in TOOLS
            for value in function["arguments"].values():
                assert set(str(value).split()) <= set(said.replace(",", " ").replace(".", " ").split()) | set("12345")
            said += " " + answer["content"]
            assert answer["content"] not in ("error: no product is open", "error: search first", "error: go back first")
        texts = [message["content"] for message in messages]
        for place, text in enumerate(texts[:-1]):
            if text == "error: no such option":
                recovered += messages[place + 1]["tool_calls"][0]["function"]["name"] == "back"
    assert 0.3 < successes / len(tasks) < 0.8
    assert recovered > 10


@pytest.mark.parametrize("noise", [0.0, 0.9])
def test_both_customers_say_truly_what_a_product_has_when_they_open_it(noise):
    marks_seen = set()
    for number, task in enumerate(list(Shop.tasks("train"))[:40]):
        _, messages = visit(task, noise, number)
        wanted = [*task["attributes"], *task["options"].values()]
        befores = [None, *messages[1::2]]
        for before, page, turn in zip(befores, messages[::2], messages[1::2], strict=False):
            opened = before is not None and before["tool_calls"][0]["function"]["name"] == "open"
            assert bool(turn["content"]) == opened
            if not opened:
                continue
            marks = [mark.split() for mark in turn["content"].split(", ")]
            assert [word for word, _ in marks] == wanted
            listed = set(page["content"].replace(",", " ").replace(":", " ").split())
            assert all((mark == "yes") == (word in listed) for word, mark in marks), (page, marks)
            marks_seen |= {mark for _, mark in marks}
    assert marks_seen == ({"yes", "no"} if noise else {"yes"})  # the oracle opens what fits


def test_more_noise_is_worse():
    tasks = list(Shop.tasks("train"))[:200]

    def rate(noise):
        wins = 0
        for number, task in enumerate(tasks):
            rng, shop = random.Random(number), Shop()
            observation = shop.reset(**task)
            for _ in range(15):
                name, arguments = decide(shop, observation, rng, noise)
                observation = getattr(shop, name)(**arguments)
                if shop.terminated:
                    break
            wins += bool(shop.get_reward().success)
        return wins / len(tasks)

    careful, usual, reckless = rate(0.05), rate(0.3), rate(1.0)
    assert careful > 0.9 and careful > usual > reckless


def test_reward_is_webshops():
    item = next(item for item in catalogue().products if item.kind == "rain jacket")
    color = item.options["color"][0]
    other = next(word for word in DEPARTMENTS["clothing"].attributes if word not in item.attributes)
    goal = Goal("rain jacket", (item.attributes[0], other), {"color": color, "size": "nothing"}, item.price)
    score, evidence = reward(goal, item, {"color": color})
    assert score == pytest.approx((1 + 1 + 1) / (2 + 2 + 1))
    assert evidence["attributes_matched"] == [item.attributes[0]] and evidence["price_ok"] is True
    assert reward(Goal("ski jacket", (), {}, 99), item, {})[0] == 0.5
    assert reward(Goal("shirt", (), {}, 99), item, {})[0] == pytest.approx(0.1)
    assert reward(Goal("mug", (), {}, 99), item, {})[0] == 0.0
    assert reward(Goal("rain jacket", (), {}, item.price - 1), item, {})[0] == 0.0
    assert reward(Goal("no such thing", (), {}, 99), item, {})[0] == 0.0


def test_achieved_goal_is_a_task_the_same_purchase_fulfils():
    relabelled = 0
    for number, task in enumerate(list(Shop.tasks("train"))[:200]):
        shop, messages = visit(task, 0.9, number)
        goal = shop.achieved_goal
        if not shop.terminated:
            assert goal is None
        if goal is None:
            continue
        again = Shop()
        assert again.reset(**goal) == goal["instruction"]
        for message in messages[1::2]:
            function = message["tool_calls"][0]["function"]
            getattr(again, function["name"])(**function["arguments"])
        assert again.get_reward().score == 1.0
        assert split_of(goal["kind"], goal["attributes"]) == "train"
        relabelled += not shop.get_reward().success
    assert relabelled > 20


def test_copies_are_independent_and_fingerprints_tell_states_apart():
    task = next(Shop.tasks("train"))
    shop = Shop()
    shop.reset(**task)
    shop.search(Goal.from_task(task).query())
    shop.open(1)
    twin = copy.deepcopy(shop)
    assert twin.fingerprint == shop.fingerprint and twin._shop is shop._shop
    value = next(iter(shop._item.options.values()))[0]
    twin.choose(value)
    assert shop._chosen == {} and twin.fingerprint != shop.fingerprint
    shop.choose(value)
    assert twin.fingerprint == shop.fingerprint
    shop.buy()
    assert not twin.terminated and twin.fingerprint != shop.fingerprint


def test_tools_are_what_trl_would_list():
    spec = EnvSpec(Shop)
    assert set(spec.tools.names) == TOOLS
    assert spec.name == "shop" and spec.demonstrate is not None


def test_dataset_columns_are_ignored_and_missing_options_dropped():
    task = next(Shop.tasks("train"))
    shop = Shop()
    shop.reset(**{**task, "options": {**task["options"], "flavour": None}}, prompt=[])
    assert shop._goal == Goal.from_task(task)


def test_any_argument_gets_a_readable_answer():
    rng = random.Random(0)
    odd = ["", " ", "\ud800", "a" * 100_000, "<|im_end|>", "漢字 🙂", "$9", -1, 0, 10**30, 2.5, True, None, [], {}]
    odd += ["".join(rng.choices(string.printable, k=20)) for _ in range(20)]
    shop = Shop()
    shop.reset(**next(Shop.tasks("train")))
    for start in ([], [("search", "mug")], [("search", "mug"), ("open", 1)]):
        for value in odd:
            for tool in ("search", "open", "choose"):
                twin = copy.deepcopy(shop)
                for name, argument in start:
                    getattr(twin, name)(argument)
                answer = getattr(twin, tool)(value)
                assert isinstance(answer, str) and 0 < len(answer) < 400
                assert isinstance(answer, Refusal) == answer.startswith("error: ")
    for tool in ("next", "previous", "back", "buy"):
        refusal = getattr(copy.deepcopy(shop), tool)()
        assert isinstance(refusal, Refusal) and refusal.startswith("error: ")


def test_nothing_happens_after_the_purchase():
    task = next(Shop.tasks("train"))
    shop, _ = visit(task, 0.0, 0)
    before = shop.fingerprint
    answers = [shop.search("mug"), shop.open(1), shop.choose("red"), shop.next(), shop.previous(), shop.back()]
    assert {*answers, shop.buy()} == {"error: the visit is over"} and shop.fingerprint == before


def test_it_works_behind_an_episode():
    spec = EnvSpec(Shop)
    task = next(spec.tasks("validation"))
    assert isinstance(task, Task)
    episode = spec.open()
    episode.reset(task)
    result = episode.step(Action("", call=ToolCall("open", {"rank": "x"})))
    assert result.fault == "bad_arguments"
    refused = episode.step(Action("", call=ToolCall("open", {"rank": 1})))
    assert refused.observation == "error: no such rank, allowed: nothing, search first"
    assert refused.fault == "tool_error"  # so that no pair names it the better action


def test_pages_turn_and_mark_what_was_seen():
    shop = Shop()
    shop.reset(**next(Shop.tasks("train")))
    first = shop.search("steel kettle")
    assert first.startswith("page 1/5\n1 ")
    second = shop.next()
    assert second.startswith("page 2/5") and shop.previous() == first
    shop.open(2)
    assert shop.open(1) == "error: go back first"
    assert shop.back().splitlines()[2].endswith(" seen")
    assert [line for line in first.splitlines() if line.endswith("seen")] == []
    assert shop.search("zzz") == "no results"
