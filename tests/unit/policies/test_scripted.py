"""Scripted policies: whose turns they make, from which seeds, and arguments that fit any schema."""

import random

import pytest

from offline_agent.arguments.sources import SeenText
from offline_agent.arguments.values import argument_values
from offline_agent.envs.tools import ToolSet
from offline_agent.errors import ConfigError, PolicyError
from offline_agent.policies.base import ProposeRequest
from offline_agent.policies.scripted import NoisyPolicy, OraclePolicy, RandomPolicy
from offline_agent.records import Context, Task, ToolCall
from offline_agent.rendering.columns import check_row, trajectory_columns
from offline_agent.rendering.parsing import call_text
from offline_agent.rendering.renderer import Renderer
from tests.helpers import rendering as kit


def demonstrate(task, messages, rng, noise):
    if len(messages) > 2:
        return {"role": "assistant", "content": f"Bought {task['goal']}."}
    query = "junk" if rng.random() < noise else task["goal"]
    call = {"name": "search", "arguments": {"query": f"{query} {rng.randrange(10**6)}"}}
    return {"role": "assistant", "content": "I look.", "tool_calls": [{"type": "function", "function": call}]}


def start(goal="shoes"):
    return Context(Task(f"t-{goal}", "train", {"goal": goal}), "You shop.", kit.TOOLS, f"Find {goal} for 12.50 or 7.")


def ask(policy, context, seeds=(1, 2, 3), temperature=None):
    return policy.propose([ProposeRequest(context, seeds, temperature)])[0]


def test_the_oracle_does_what_the_demonstrator_says():
    policy, context = OraclePolicy(demonstrate), start()
    action = ask(policy, context).actions[0]
    assert action.call.name == "search" and action.call.arguments["query"].startswith("shoes")
    assert action.text == call_text("I look.", action.call) and action.token_ids is None
    last = ask(policy, context.child(action, "2 hits")).actions[0]
    assert (last.text, last.call, last.fault) == ("Bought shoes.", None, None)


def test_noise_is_seeded_per_sample():
    policy, context = NoisyPolicy(demonstrate, noise=0.5), start()
    answer = ask(policy, context, tuple(range(40)))
    assert ask(policy, context, (7,)).actions[0] == answer.actions[7]
    careless = sum("junk" in action.call.arguments["query"] for action in answer.actions)
    assert 8 < careless < 32
    assert policy.identity == {"kind": "noisy", "noise": 0.5}


def test_temperature_zero_depends_on_the_history_alone():
    policy = NoisyPolicy(demonstrate, noise=0.5)
    for goal in ("shoes", "lamp"):
        actions = {action.text for action in ask(policy, start(goal), (1, 2, 3, 4), 0.0).actions}
        assert len(actions) == 1 and actions == {ask(policy, start(goal), (9,), 0.0).actions[0].text}
    greedy = {ask(policy, start(f"g{i}"), (1,), 0.0).actions[0].call.arguments["query"].split()[0] for i in range(40)}
    assert "junk" in greedy and len(greedy) > 2  # careless in some states, careful in others


def test_configuration_faults():
    with pytest.raises(ConfigError, match="policy=oracle: the environment has no demonstrator"):
        OraclePolicy(None)
    with pytest.raises(ConfigError, match="policy.noise"):
        NoisyPolicy(demonstrate, noise=1.5)
    with pytest.raises(ConfigError, match="answer_probability"):
        RandomPolicy(answer_probability=-1)
    with pytest.raises(ConfigError, match="no tokenizer"):
        RandomPolicy(tokenizer="/there/is/no/such/folder")
    with pytest.raises(ConfigError, match="give policy.tokenizer too"):
        NoisyPolicy(demonstrate, chat_template="qwen")


@pytest.mark.parametrize("kind", [OraclePolicy, NoisyPolicy, RandomPolicy])
def test_a_chat_template_replaces_that_of_the_tokenizer(kind, tmp_path):
    kit.qwen().save_pretrained(tmp_path)
    first = () if kind is RandomPolicy else (demonstrate,)
    own, other = (kind(*first, tokenizer=str(tmp_path), chat_template=name) for name in (None, "plain"))
    assert other.renderer.template_hash != own.renderer.template_hash


def divide(*_):
    return 1 / 0


@pytest.mark.parametrize(
    "hook, said",
    [
        (divide, f"ZeroDivisionError: division by zero in line {divide.__code__.co_firstlineno + 1} of {__file__}"),
        (lambda *_: {"content": "", "tool_calls": [{}, {}]}, "2 calls"),
        (lambda *_: {"content": "", "tool_calls": [{"function": {"name": "x"}}]}, "KeyError"),
    ],
)
def test_a_demonstrator_that_breaks_is_that_requests_error(hook, said):
    def broken(task, messages, rng, noise):
        return hook() if task["goal"] == "bad" else demonstrate(task, messages, rng, noise)

    policy = NoisyPolicy(broken)
    bad, good = policy.propose([ProposeRequest(start("bad"), (1,)), ProposeRequest(start("good"), (1,))])
    assert isinstance(bad, PolicyError) and said in str(bad)
    assert len(good.actions) == 1


def test_an_empty_turn_is_a_fault():
    action = ask(OraclePolicy(lambda *_: {"role": "assistant", "content": None}), start()).actions[0]
    assert action.fault == "empty" and action.detail


def test_with_a_renderer_turns_are_in_its_format():
    policy = OraclePolicy(demonstrate, renderer=Renderer(kit.llama()))
    action = ask(policy, start()).actions[0]
    assert action.text.startswith('I look.\n{"name": "search", "parameters"')
    assert policy.renderer.parse_text(action.text).call == action.call
    check_row(policy.renderer, trajectory_columns(policy.renderer, start().child(action, None)))


def function(name, **properties):
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


def test_random_draws_tools_evenly():
    tools = tuple(function(f"tool{i}") for i in range(4))
    context = kit.root(tools=tools)
    names = [action.call.name for action in ask(RandomPolicy(), context, tuple(range(2000))).actions]
    assert all(420 < names.count(f"tool{i}") < 580 for i in range(4))


def test_random_answers_sometimes_when_told_and_always_without_tools():
    answers = [action.call is None for action in ask(RandomPolicy(0.3), start(), tuple(range(1000))).actions]
    assert 230 < sum(answers) < 370
    assert not any(action.call is None for action in ask(RandomPolicy(), start(), tuple(range(200))).actions)
    assert ask(RandomPolicy(), kit.root(tools=())).actions[0].call is None


def test_random_says_what_it_has_seen():
    context = start().child(ask(RandomPolicy(), start()).actions[0], '{"hits": [{"id": "B0042", "price": 99.5}]}')
    words = set(["You", "shop", "Find", "shoes", "for", "12.50", "or", "7", "hits", "id", "B0042", "price", "99.5"])
    said = [
        action.call.arguments.get("query", "").split() for action in ask(RandomPolicy(), context, range(300)).actions
    ]
    assert set().union(*said) >= words
    assert {len(each) for each in said} >= {1, 2, 3}


SCHEMAS = [
    {"type": "integer", "minimum": 3, "maximum": 5},
    {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5},
    {"type": "integer", "minimum": 10**6},
    {"type": "integer", "maximum": -4},
    {"type": "integer", "minimum": 1, "maximum": 30, "multipleOf": 7},
    {"type": "number", "minimum": 0.25, "maximum": 0.26},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "boolean"},
    {"type": "null"},
    {"enum": ["a", 2, None]},
    {"const": "fixed"},
    {"type": "string", "enum": ["red", "blue"]},
    {"type": "string", "minLength": 30, "maxLength": 40},
    {"type": ["string", "null"]},
    {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 2}, {"type": "null"}]},
    {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 2, "maxItems": 4},
    {"type": "array", "items": {"enum": ["x"]}, "maxItems": 0},
    {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]},
    {"type": "object", "additionalProperties": {"type": "integer", "minimum": 1, "maximum": 1}},
    {"items": {"type": "boolean"}},
    {"properties": {"deep": {"properties": {"deeper": {"const": 1}}, "required": ["deeper"]}}, "required": ["deep"]},
    {},
    {"type": "string"},
    {"type": "integer"},
    {"type": "number"},
]


KINDS = {"integer": int, "number": (int, float), "boolean": bool, "null": type(None), "string": str, "array": list,
         "object": dict}  # fmt: skip


def fits(value, schema):
    """Return whether a value is valid under a JSON schema (the parts of it used here)."""
    if "anyOf" in schema:
        return any(fits(value, entry) for entry in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        return value in schema.get("enum", [schema.get("const")])
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(isinstance(value, KINDS[k]) and (k == "boolean") == isinstance(value, bool) for k in kinds):
        return False
    if isinstance(value, (int, float)):
        return (
            schema.get("minimum", value) <= value <= schema.get("maximum", value)
            and ("exclusiveMinimum" not in schema or schema["exclusiveMinimum"] < value)
            and ("exclusiveMaximum" not in schema or value < schema["exclusiveMaximum"])
            and value % schema.get("multipleOf", value or 1) == 0
        )
    if isinstance(value, list):
        size = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value))
        return size and all(fits(item, schema.get("items", {})) for item in value)
    if isinstance(value, dict):
        known, extra = schema.get("properties", {}), schema.get("additionalProperties", {})
        present = all(name in value for name in schema.get("required", ()))
        return present and all(fits(item, known.get(name, extra)) for name, item in value.items())
    if isinstance(value, str):
        return schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
    return True


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_arguments_fit_their_schema(schema):
    seen = SeenText("The shoes cost 12.50 or 7 (was -3).", None)
    for seed in range(200):
        values = argument_values({"type": "object", "properties": {"v": schema}, "required": ["v"]},
                                 random.Random(seed), seen)  # fmt: skip
        assert fits(values["v"], schema), values


def test_arguments_without_anything_seen():
    empty = SeenText("", None)
    properties = {"s": {"type": "string"}, "i": {"type": "integer"}, "n": {"type": "number"}}
    values = argument_values({"properties": properties, "required": list(properties)}, random.Random(1), empty)
    assert set(values) == {"s", "i", "n"} and isinstance(values["i"], int) and values["s"]
    assert argument_values({}, random.Random(1), empty) == {}


def test_optional_arguments_are_left_out_half_of_the_time():
    schema = {"type": "object", "properties": {"v": {"type": "boolean"}}}
    count = sum("v" in argument_values(schema, random.Random(seed), SeenText("", None)) for seed in range(400))
    assert 140 < count < 260


def test_random_calls_pass_reflected_tools():
    """Random play can call every tool that reflection finds."""

    class Tools:
        def book(self, city: str, nights: int, tags: list[str], mode: str = "train", price: float | None = None) -> str:
            """Book.

            Args:
                city: Where.
                nights: How long.
                tags: Any.
                mode: How. (choices: ["train", "bus"])
                price: At most.
            """
            return "ok"

    tools = ToolSet.of(Tools)
    context = kit.root(tools=tools.schemas)
    for action in ask(RandomPolicy(), context, tuple(range(200))).actions:
        arguments, fault, detail = tools.validate(ToolCall(action.call.name, action.call.arguments))
        assert fault is None, (action.call, detail)
        assert arguments.get("mode") in ("train", "bus", None)
