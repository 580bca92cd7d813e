"""Every policy of the catalog keeps the contract, on the embedded environment and on an odd one."""

from itertools import islice

import pytest

from offline_agent import catalog
from offline_agent.envs.base import EnvSpec
from offline_agent.errors import PolicyError
from offline_agent.policies.base import DEFAULT_MODEL, Proposals
from offline_agent.policies.engines import InlineEngine
from offline_agent.records import Action, Context, ToolCall
from offline_agent.rendering.columns import check_row, trajectory_columns
from offline_agent.rendering.parsing import call_text
from offline_agent.rendering.renderer import Renderer
from tests.helpers import rendering as kit
from tests.helpers.fake_server import FakeServer, serving, serving_all
from tests.helpers.policy_conformance import check_policy
from tests.helpers.thread_engine import ThreadEngine

CALL = ToolCall("search", {"query": "red shoes"})


@pytest.fixture(scope="module")
def spec():
    return EnvSpec.load("shop")


@pytest.fixture(scope="module")
def contexts(spec):
    """Two starts and one history of two turns, one of them faulty."""
    out = []
    for task in islice(spec.tasks("validation"), 2):
        episode = spec.open()
        out.append(Context(task, spec.system_prompt, spec.tools.schemas, episode.reset(task)))
        episode.close()
    later = out[0].child(Action(call_text("", CALL), "", CALL), "no results <|im_end|>\n\u202e 漢字")
    faulty = Action("<tool_call>{", "", None, "invalid_json", "Not JSON.")
    return [*out, later.child(faulty, "Not JSON.")]


def answer(path, body):
    """Answer as a chat model would that always searches, for what depends on the request."""
    about = "anything" if body["temperature"] == 0 else f"item {body['seed'] % 7}"
    function = {"name": "search", "arguments": f'{{"query": "{about}"}}'}
    message = {"content": "", "tool_calls": [{"id": "c", "type": "function", "function": function}]}
    return {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": {"completion_tokens": 5}}


def make(name, spec, url):
    kind = catalog.resolve("policy", name)
    if name == "colocated":
        pytest.importorskip("vllm")  # tests/vllm tries it
    if name in ("oracle", "noisy"):
        return kind(spec.demonstrate)
    return kind(url) if name == "server" else kind()


@pytest.mark.parametrize("name", sorted(catalog.POLICIES))
def test_policies_of_the_catalog(name, spec, contexts):
    with serving(FakeServer(answer)) as fake:
        policy = make(name, spec, fake.url)
        try:
            assert check_policy(policy, contexts) == []
            assert policy.name == name
        finally:
            policy.close()


def test_a_pool_of_servers(contexts):
    with serving_all(FakeServer(answer), FakeServer(answer), FakeServer(answer)) as fakes:
        policy = catalog.resolve("policy", "server")([fake.url for fake in fakes], batch_invariant=True)
        try:
            assert check_policy(policy, contexts) == []
        finally:
            policy.close()
        assert sum(bool(fake.seen) for fake in fakes) >= 2


@pytest.mark.parametrize("name", ["oracle", "noisy", "random"])
def test_scripted_policies_give_token_columns_with_a_tokenizer(name, spec, contexts):
    kind = catalog.resolve("policy", name)
    arguments = {} if name == "random" else {"demonstrate": spec.demonstrate}
    policy = kind(**arguments, tokenizer=str(DEFAULT_MODEL))
    assert check_policy(policy, contexts) == []
    action = policy.propose([request(contexts[0])])[0].actions[0]
    end = contexts[0].child(action, None)
    check_row(policy.renderer, {**trajectory_columns(policy.renderer, end), "messages": end.messages()})


def request(context):
    from offline_agent.policies.base import ProposeRequest

    return ProposeRequest(context, (1, 2))


class Good:
    """A policy that keeps the contract, and is spoilt one way at a time."""

    name = "good"
    batch_invariant = True
    max_tokens = 200
    logp = -0.5

    def __init__(self):
        self.renderer = Renderer(kit.qwen())
        self.identity = {}
        self.calls = 0

    def write(self, request, seed):
        return f"I look {0 if request.temperature == 0 else seed} at depth {request.context.depth}."

    def one(self, request):
        self.calls += 1
        try:
            ids = [self.renderer.encode_action(Action(t, t)) for t in (self.write(request, s) for s in request.seeds)]
        except AttributeError as error:
            return PolicyError(str(error))
        from offline_agent.policies.base import Usage

        actions = tuple(self.renderer.parse(row, [self.logp] * len(row)) for row in ids)
        return Proposals(actions, Usage(sum(map(len, ids))))

    def propose(self, requests):
        return [self.one(request) for request in requests]

    def engine(self):
        return ThreadEngine(self)

    def close(self):
        pass


def test_a_good_policy_passes(contexts):
    assert check_policy(Good(), contexts) == []
    assert check_policy(Good(), contexts[:1]) == ["give at least two contexts"]


class Forgetful(Good):
    def write(self, request, seed):
        self.calls += 1
        return f"Call {self.calls}"


class Crowded(Good):
    def propose(self, requests):
        self.crowd = len(requests)
        return super().propose(requests)

    def write(self, request, seed):
        return super().write(request, seed) + f" {self.crowd}"


class Neighbourly(Good):
    def write(self, request, seed):
        return super().write(request, seed) + str(request.seeds[0])


class Hot(Good):
    def write(self, request, seed):
        request.context.depth  # noqa: B018  (a broken request must still be one)
        return f"I look {seed}."


class Short(Good):
    def one(self, request):
        answer = super().one(request)
        return Proposals(answer.actions[:-1], answer.usage) if isinstance(answer, Proposals) else answer


class Liar(Good):
    def one(self, request):
        answer = super().one(request)
        if isinstance(answer, PolicyError):
            return answer
        one = answer.actions[0]
        lie = Action("Something else.", "", None, None, None, one.token_ids, one.logps)
        return Proposals((lie, *answer.actions[1:]), answer.usage)


class Certain(Good):
    logp = 0.5


class Brittle(Good):
    def propose(self, requests):
        answers = super().propose(requests)
        return [next((a for a in answers if isinstance(a, PolicyError)), a) for a in answers]


class Breaking(Good):
    def one(self, request):
        return Proposals(tuple(map(lambda seed: self.write(request, seed), request.seeds)))


class Dropping(Good):
    def engine(self):
        class Twice(InlineEngine):
            def submit(self, request, done):
                super().submit(request, done)
                super().submit(request, done)

        return Twice(self)


@pytest.mark.parametrize(
    "kind, said",
    [
        (Forgetful, "second time"),
        (Crowded, "depend on the other requests"),
        (Neighbourly, "other seeds"),
        (Hot, "greedy"),
        (Short, "seeds gave"),
        (Liar, "the ids read"),
        (Certain, "at most 0"),
        (Brittle, "spoiled others"),
        (Breaking, "raised"),
        (Dropping, "exactly once"),
    ],
)
def test_the_check_finds_what_is_wrong(kind, said, contexts):
    assert any(said in fault for fault in check_policy(kind(), contexts)), check_policy(kind(), contexts)
