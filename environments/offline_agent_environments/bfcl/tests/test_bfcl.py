"""BFCL: the ground truth passes, everything less does not, and the traps of the package are not stepped into."""

import random
import subprocess
import sys

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.errors import ConfigError, DataError
from offline_agent.records import Action, Task, ToolCall
from offline_agent_environments.bfcl import BFCL, data, execution
from offline_agent_environments.bfcl.demonstrate import next_turn

pytestmark = pytest.mark.skipif(not data.installed(), reason=f"bfcl-eval is not installed ({data.INSTALL})")


@pytest.fixture(scope="module")
def spec():
    return EnvSpec(BFCL)


def _task(task_id):
    return Task(task_id, "train", {"task_id": task_id})


def _action(message):
    text = message["content"]
    if not message.get("tool_calls"):
        return Action(text)
    function = message["tool_calls"][0]["function"]
    return Action(text, call=ToolCall(function["name"], function["arguments"]))


def _play(spec, task, noise=0.0, seed=0, limit=80, keep=lambda i, action: True):
    episode = spec.open()
    messages = [{"role": "user", "content": episode.reset(task)}]
    rng = random.Random(seed)
    for i in range(limit):
        if episode.terminated:
            break
        action = _action(spec.demonstrate(task.args, messages, rng, noise))
        messages.append(action.message())
        if keep(i, action):
            result = episode.step(action)
            messages.append({"role": result.role, "content": result.observation})
        else:
            messages.append({"role": "tool", "content": "{}"})  # left out, and nobody the wiser
    return episode, messages


def _call(name, /, **arguments):
    return Action(name, call=ToolCall(name, arguments))


def test_800_tasks_in_three_splits(spec):
    tasks = [t for split in ("train", "validation", "test") for t in spec.tasks(split)]
    assert len({t.task_id for t in tasks}) == 800
    of = {}
    for task in tasks:
        index = task.task_id.rpartition("_")[2]
        assert of.setdefault(index, task.split) == task.split  # variants of one index stay together
    sizes = {s: sum(t.split == s for t in tasks) for s in ("train", "validation", "test")}
    assert sizes == {"train": 496, "validation": 152, "test": 152}
    assert {t.task_id for t in EnvSpec(BFCL, {"categories": "base, miss_func"}).tasks("test")} < {
        t.task_id for t in tasks
    }


def test_no_world_and_no_request_is_in_two_splits():
    seen: dict[str, str] = {}
    for category in data.CATEGORIES:
        for index, entry in data.entries(category).items():
            split = data.split_of()[index]
            for fact in [repr(sorted(entry.config.items())), *(t for t in entry.turns if t and len(t) > 40)]:
                assert seen.setdefault(fact, split) == split, (entry.id, fact[:80])


def test_the_first_tasks_cover_all_domains(spec):
    first = [t.task_id for t, _ in zip(spec.tasks("train"), range(4), strict=False)]
    assert len({c for task_id in first for c in data.entry(task_id).classes}) >= 4


@pytest.mark.parametrize("category", data.CATEGORIES)
@pytest.mark.parametrize("check", ["state", "benchmark"])
def test_the_ground_truth_passes_every_turn(category, check):
    spec = EnvSpec(BFCL, {"check": check})
    for index in range(200):
        task = _task(f"multi_turn_{category}_{index}")
        verdict = _play(spec, task)[0].verdict()
        assert verdict.success and verdict.score == 1.0, (task.task_id, verdict)


def test_the_ground_truth_without_its_last_call_of_effect_fails(spec):
    rejected = 0
    for index in range(0, 200, 4):
        task = _task(f"multi_turn_base_{index}")
        calls = sum(len(turn) for turn in data.possible(task.task_id))
        seen = iter(range(1000))
        episode, _ = _play(spec, task, keep=lambda i, a, n=calls, it=seen: a.call is None or next(it) < n - 1)
        rejected += not episode.verdict().success
    assert rejected >= 45  # the rest end in a call that changes nothing in a turn that was passed before it


def test_answers_alone_score_nothing(spec):
    for index in range(0, 200, 5):
        for category in data.CATEGORIES:
            episode = spec.open()
            episode.reset(_task(f"multi_turn_{category}_{index}"))
            while not episode.terminated:
                episode.step(Action("Done."))
            verdict = episode.verdict()
            assert (verdict.score, verdict.success) == (0.0, False)


def test_a_turn_ends_with_an_answer_and_the_user_speaks_again(spec):
    entry = data.entry("multi_turn_base_3")
    episode = spec.open()
    assert episode.reset(_task(entry.id)) == entry.turns[0]
    assert episode.step(_call("find", path=".", name="test")).fault is None
    assert episode.step(Action("Found them.")) == (entry.turns[1], "user", False, None, None, None)
    assert episode.step(Action("Copied.")) == (None, "user", True, None, None, None)
    verdict = episode.verdict()
    assert (verdict.score, verdict.success) == (0.5, False)
    turns = verdict.evidence["turns"]
    assert turns[0]["passed"] and not turns[1]["passed"]
    assert "GorillaFileSystem.root" in turns[1]["differences"]
    strict = EnvSpec(BFCL, {"partial_credit": False}).open()
    strict.reset(_task(entry.id))
    strict.step(_call("find", path=".", name="test"))
    assert strict.verdict().score == 0.0


def test_functions_are_held_back_until_their_turn(spec):
    task_id = "multi_turn_miss_func_3"  # `find` and `ls` come in turn 1
    assert data.entry(task_id).held_back == {1: ("find", "ls")}
    episode = spec.open()
    episode.reset(_task(task_id))
    assert not {"find", "ls"} & set(episode.tools.names)
    early = episode.step(_call("ls"))
    assert early.fault == "unknown_tool" and "there is no tool 'ls'" in early.observation
    told = episode.step(Action("I cannot."))
    assert told.role == "user" and '"name": "find"' in told.observation and "What about now?" in told.observation
    assert episode.step(_call("ls")).fault is None


def test_tools_are_the_documents(spec):
    episode = spec.open()
    episode.reset(_task("multi_turn_base_0"))
    schemas = {s["function"]["name"]: s["function"] for s in episode.tools.schemas}
    assert schemas["cd"]["parameters"]["type"] == "object"
    assert set(schemas) == {n for c in data.entry("multi_turn_base_0").classes for n in data.documents()[c]}
    update = data.documents()["TicketAPI"]["edit_ticket"]["function"]["parameters"]["properties"]["updates"]
    assert update["type"] == "object" and update["properties"]["priority"]["type"] == "integer"
    assert len(spec.tools.names) == 128
    result = episode.step(_call("place_order", order_type="Buy", symbol="A", price=1.0, amount=1))
    assert result.fault == "unknown_tool"  # another task's


def test_class_tools_are_transformers_schemas(spec):
    from transformers.utils import get_json_schema

    instance = BFCL()
    assert [get_json_schema(getattr(instance, name)) for name in spec.tools.names] == list(spec.tools.schemas)


def test_nothing_a_policy_writes_is_evaluated(spec, tmp_path):
    episode = spec.open()
    episode.reset(_task("multi_turn_base_0"))
    target = tmp_path / "owned"
    code = f"__import__('pathlib').Path({str(target)!r}).touch()"
    episode.step(_call("cd", folder=code))
    episode.step(_call(code))
    episode.step(_call("_load_scenario", scenario={}))
    episode.step(_call("echo", content=code, file_name="a.py"))
    assert not target.exists()


@pytest.mark.parametrize(
    "text", ["f(", "__import__('os')", "cd(folder=open('x'))", "a.cd(folder='x')", "cd(*x)", "cd(1, 2)", "1"]
)
def test_ground_truth_that_is_no_plain_call_is_refused(text):
    with pytest.raises(DataError, match="ground truth"):
        data.parse_call(text, data.documents()["GorillaFileSystem"])
    assert data.parse_call("cd('x')", data.documents()["GorillaFileSystem"]) == ToolCall("cd", {"folder": "x"})


def test_episodes_of_one_task_share_nothing(spec):
    task = _task("multi_turn_base_3")
    one, two = spec.open(), spec.open()
    one.reset(task), two.reset(task)
    before = two.step(_call("ls")).observation
    one.step(_call("mkdir", dir_name="mine"))
    assert two.step(_call("ls")).observation == before
    copy = one.copy()
    copy.step(_call("mkdir", dir_name="copys"))
    assert "copys" not in one.step(_call("ls")).observation
    assert "copys" in copy.step(_call("ls")).observation
    again = spec.open()
    again.reset(task)
    assert again.step(_call("ls")).observation == before  # the package caches instances by name; we do not


def test_decimal_precision_does_not_leak_between_calls(spec):
    import decimal

    before = decimal.getcontext().prec
    task_id = next(e.id for e in data.entries("base").values() if "MathAPI" in e.classes)
    episode = spec.open()
    episode.reset(_task(task_id))
    assert episode.step(_call("square_root", number=2.0, precision=3)).observation.startswith(
        "{'result': Decimal('1.41')"
    )
    assert decimal.getcontext().prec == before


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("square_root", {"number": 2.0, "precision": 10**9}),
        ("logarithm", {"value": 3.0, "base": 2.0, "precision": 10**9}),
        ("power", {"base": 2**60, "exponent": 2**60}),
        ("round_number", {"number": 5, "decimal_places": -10_000_000}),
        ("round_number", {"number": 5, "decimal_places": 10**400}),
        ("round_number", {"number": 10**4000, "decimal_places": 2}),
        ("mean", {"numbers": [1, 10**4000]}),
    ],
)
def test_no_number_keeps_a_tool_busy_for_good(spec, name, arguments):
    task_id = next(e.id for e in data.entries("base").values() if "MathAPI" in e.classes)
    episode = spec.open()
    episode.reset(_task(task_id))
    result = episode.step(_call(name, **arguments))
    assert result.fault == "tool_error" and " must be from " in result.observation


def test_numbers_are_rounded_to_hundreds_too(spec):
    task_id = next(e.id for e in data.entries("base").values() if "MathAPI" in e.classes)
    episode = spec.open()
    episode.reset(_task(task_id))
    assert episode.step(_call("round_number", number=1234, decimal_places=-2)).observation == '{"result": 1200.0}'


def test_a_turn_that_only_asks_needs_the_answer(spec):
    index = next(i for i in range(200) if not execution.truth(f"multi_turn_base_{i}").changes[0])
    task_id = f"multi_turn_base_{index}"
    episode = spec.open()
    episode.reset(_task(task_id))
    name = next(n for n in episode.tools.names if n not in {c.name for c in data.possible(task_id)[0]})
    episode.step(_call(name))
    episode._env._results += ("{}",)  # a call was made, though it brought nothing
    turn = episode.verdict().evidence["turns"][0]
    assert turn["calls"] >= 1 and not turn["passed"] and turn["missing_results"] and "differences" not in turn


def test_noise_makes_the_demonstrator_worse_by_degrees(spec):
    tasks = [_task(f"multi_turn_base_{i}") for i in range(0, 200, 4)]
    rates = [sum(bool(_play(spec, t, n, i)[0].verdict().success) for i, t in enumerate(tasks)) for n in (0.0, 0.2, 0.6)]
    assert rates[0] == 50 > rates[1] > rates[2] > 0


def test_the_demonstrator_is_a_function_of_history_and_seed():
    entry = data.entry("multi_turn_base_3")
    messages = [{"role": "user", "content": entry.turns[0]}]
    drawn = [next_turn(entry, messages, random.Random(7), 0.5) for _ in range(2)]
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    ("args", "told"),
    [({"categories": "bse"}, "Did you mean 'base'"), ({"check": "stat"}, "Did you mean 'state'")],
)
def test_wrong_arguments(args, told):
    with pytest.raises(ConfigError, match=told):
        EnvSpec(BFCL, args).open()
    with pytest.raises(ConfigError, match="no task"):
        data.entry("multi_turn_base_200")


def test_without_the_package_the_message_says_what_to_run():
    code = (
        "import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'bfcl_eval' else real(name, *a)\n"
        "from offline_agent.envs.base import EnvSpec\n"
        "from offline_agent.errors import ConfigError\n"
        "try: list(EnvSpec.load('bfcl').tasks('train'))\n"
        "except ConfigError as error: print(error)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install --no-deps bfcl-eval==2026.3.23 && pip install mpmath" in out
