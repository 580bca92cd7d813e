"""An answer depends on the request alone, bit for bit: not on the batch, the order, or what is kept."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_agent.policies.base import ProposeRequest
from offline_agent.policies.hf.policy import HFPolicy
from tests.helpers import hf as kit


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def policies(request, tmp_path_factory):
    """Roomy and poor policies over the same model, one of each number of heads a key-value head."""
    folder = kit.save(request.param, tmp_path_factory.mktemp(request.param))
    return [
        HFPolicy(folder, max_tokens=10, slots=16),
        HFPolicy(folder, max_tokens=10, slots=3, cache_bytes=40_000),
    ]


@pytest.fixture(scope="module")
def histories(policies):
    """A tree of histories of 150 to 600 ids."""
    roots = [kit.start(i, "red shoes " * (1 + 6 * i)) for i in range(3)]
    out = list(roots)
    for depth in range(3):
        for i, context in enumerate(list(out)[-4:]):
            action = kit.ask(policies[0], ProposeRequest(context, (depth,)))[0].actions[0]
            out.append(kit.follow(context, action, "page of results: " + "item 42, " * (2 + 5 * i)))
    assert max(len(policies[0].renderer.context_ids(context)) for context in out) > 400
    return out


requests = st.lists(
    st.tuples(
        st.integers(0, 14),
        st.lists(st.integers(0, 50), min_size=1, max_size=5),
        st.sampled_from([0.0, 0.7, 1.5]),
        st.integers(1, 14),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=8)
@given(requests, st.randoms(use_true_random=False), st.booleans())
def test_answers_depend_on_the_request_alone(policies, histories, wanted, rng, forget):
    asked = [ProposeRequest(histories[h % len(histories)], tuple(s), t, m) for h, s, t, m in wanted]
    together = [answer.actions for answer in kit.ask(policies[0], *asked)]
    if forget:
        policies[0].forget()
    order = list(range(len(asked)))
    rng.shuffle(order)
    for policy in policies:
        shuffled = kit.ask(policy, *[asked[i] for i in order])
        assert [shuffled[order.index(i)].actions for i in range(len(asked))] == together
    i = order[0]
    request = asked[i]
    alone = [kit.ask(policies[1], request._replace(seeds=(seed,)))[0].actions[0] for seed in request.seeds]
    assert tuple(alone) == together[i]
