"""Whatever a policy writes: it is answered, never raises, and means the same however it is written."""

import json
import math
import random

from hypothesis import given
from hypothesis import strategies as st

from offline_agent.arguments.sources import SeenText
from offline_agent.arguments.values import argument_values
from offline_agent.envs.base import EnvSpec, ToolSet
from offline_agent.records import Action, ToolCall
from tests.helpers.hostile_environments import Honest
from tests.unit.envs.test_tools_schema import Plain

TOOLS = ToolSet.of(Plain)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(categories=None)),
    lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text(max_size=5), below, max_size=4),
    max_leaves=20,
)
NAMES = st.sampled_from([*TOOLS.names, "nobody"]) | st.text(max_size=10)
PARAMETERS = st.sampled_from("abcdef") | st.text(max_size=5)
CALLS = st.builds(ToolCall, NAMES, st.dictionaries(PARAMETERS, JSON, max_size=6) | JSON)


def drawn(schema, seed):
    shape = schema["function"].get("parameters") or {}
    return argument_values(shape, random.Random(seed), SeenText("", None))


@given(CALLS)
def test_any_call_is_valid_or_answered(call):
    arguments, fault, detail = TOOLS.validate(call)
    if arguments is None:
        assert fault in ("unknown_tool", "bad_arguments") and detail.startswith("Error: ")
        detail.encode("utf-8")
    else:
        assert fault is None and detail is None
        json.dumps(arguments, allow_nan=False).encode("utf-8")
        again, fault, _ = TOOLS.validate(ToolCall(call.name, arguments))
        assert fault is None and again == arguments  # coercion settles at once
    TOOLS.canonical_key(Action("text", call=call)).encode("utf-8")


@given(st.integers(0, 2**32), st.sampled_from(TOOLS.schemas))
def test_arguments_drawn_from_a_schema_fit_it(seed, schema):
    call = ToolCall(schema["function"]["name"], drawn(schema, seed))
    assert TOOLS.validate(call)[1] is None, TOOLS.validate(call)[2]


@given(st.integers(0, 2**32), st.sampled_from(TOOLS.schemas), st.randoms(use_true_random=False))
def test_the_key_does_not_depend_on_order_or_on_how_numbers_are_written(seed, schema, rng):
    name, arguments = schema["function"]["name"], drawn(schema, seed)
    shuffled = list(arguments.items())
    rng.shuffle(shuffled)
    rewritten = {k: float(v) if type(v) is int and k == "b" and name == "basics" else v for k, v in shuffled}
    keys = {TOOLS.canonical_key(Action(str(i), call=ToolCall(name, a))) for i, a in enumerate((arguments, rewritten))}
    assert len(keys) == 1


@given(st.lists(st.integers(-3, 12) | st.floats() | st.text(max_size=3), max_size=6))
def test_an_episode_survives_any_arguments(values):
    spec = EnvSpec(Honest)
    episode = spec.open()
    episode.reset(next(spec.tasks("train")))
    for value in values:
        if episode.terminated:
            break
        result = episode.step(Action("p", call=ToolCall("pick", {"n": value})))
        assert result.observation is not None
        fits = (
            type(value) is int or (isinstance(value, float) and math.isfinite(value) and value == int(value))
        ) and 0 <= value <= 9
        assert (result.fault is None) == fits
    assert 0.0 <= episode.verdict().score <= 1.0
