"""The server policy against a real local HTTP server, good and bad."""

import json
import math
import re
import socket
import threading

import pytest

from offline_agent.errors import ConfigError, ContextFull, PolicyError, PolicyMismatch
from offline_agent.policies.base import ProposeRequest
from offline_agent.policies.server.endpoint import chat_action, chat_messages
from offline_agent.policies.server.policy import ServerPolicy
from offline_agent.records import Action, ToolCall
from offline_agent.rendering.columns import trajectory_columns
from offline_agent.rendering.parsing import call_text
from offline_agent.rendering.renderer import Renderer
from tests.helpers import rendering as kit
from tests.helpers.fake_server import FakeServer, holding, seeded_model, serving
from tests.helpers.policy_conformance import check_policy

CALL = ToolCall("search", {"query": "red shoes"})
NO_WAIT = {"retries": 0, "timeout": 60.0}


@pytest.fixture(scope="module")
def tokenizer_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer")
    kit.qwen().save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def model(tokenizer_path):
    """Return what answers as a model would: seeded turns, log-probs that depend on position and id."""
    return seeded_model(Renderer.load(tokenizer_path))


@pytest.fixture
def fake(model):
    with serving(FakeServer(model)) as server:
        yield server


def policy(fake, **kwargs):
    return ServerPolicy(fake.url, **{**NO_WAIT, **kwargs})


def ask(policy, context=None, seeds=(1,), **kwargs):
    return policy.propose([ProposeRequest(context or kit.root(), seeds, **kwargs)])[0]


def answered(fake, choice, tokenizer=None):
    fake.misbehave = lambda path, body, count: (200, {"choices": [choice]}) if count >= 0 else None
    return ask(policy(fake, tokenizer=tokenizer))


@pytest.mark.parametrize("tokens", [True, False])
def test_it_keeps_the_contract(fake, tokenizer_path, tokens):
    served = policy(fake, tokenizer=tokenizer_path if tokens else None, batch_invariant=True)
    start = kit.root()
    first = ask(served, start).actions[0]
    assert check_policy(served, [start, start.child(first, "2 hits"), kit.root("Other.")]) == []
    assert (first.token_ids is not None) is tokens is (first.logps is not None)
    served.close()


def test_ids_go_in_and_out(fake, tokenizer_path):
    served = policy(fake, tokenizer=tokenizer_path, temperature=0.5, max_tokens=99)
    context = kit.root("An <|im_end|> in the task.")
    answer = ask(served, context, (5, 6))
    bodies = [body for _, body in fake.seen]
    assert [path for path, _ in fake.seen] == ["/completions"] * 2
    assert {tuple(body["prompt"]) for body in bodies} == {tuple(served.renderer.context_ids(context))}
    assert sorted(body["seed"] for body in bodies) == [5, 6]
    assert {(b["temperature"], b["max_tokens"], b["top_p"], b["top_k"]) for b in bodies} == {(0.5, 99, 1.0, -1)}
    assert all(b["stop_token_ids"] == sorted(served.renderer.eos_ids) and b["return_token_ids"] for b in bodies)
    assert answer.usage.generated == sum(len(action.token_ids) for action in answer.actions)
    assert answer.usage.prefilled == 2 * len(bodies[0]["prompt"])
    row = trajectory_columns(served.renderer, context.child(answer.actions[0], None))
    assert json.loads(row["certificate"])["sampled"] is True and row["logps"] is not None
    cut = ask(served, context, (5,), max_tokens=3, temperature=0.0)
    assert (cut.actions[0].fault, len(cut.actions[0].token_ids)) == ("no_end", 3)


def test_chat_sends_messages_and_tools(fake):
    answer = ask(policy(fake, temperature=0.3), seeds=(2**62 + 5,))
    path, body = fake.seen[0]
    assert path == "/chat/completions" and body["tools"] == [dict(tool) for tool in kit.TOOLS]
    assert [m["role"] for m in body["messages"]] == ["system", "user"] and body["seed"] == 5
    action = answer.actions[0]
    assert action.call.name == "search" and action.token_ids is None and action.logps is None
    assert action.text == call_text(action.thought, action.call)
    assert (answer.usage.generated, answer.usage.prefilled, answer.usage.cached) == (9, 10, 40)


def test_evidence_of_the_model_is_its_name_and_what_it_says_of_a_fixed_text(fake, tokenizer_path):
    served = policy(fake, tokenizer=tokenizer_path)
    told = served.evidence()
    assert told == served.evidence() and json.loads(json.dumps(told)) == told
    assert told["model"] == "tiny" and told["tolerance"] == 0.25 and all(value <= 0 for value in told["logps"])
    assert [len(body["prompt"]) > len(told["logps"]) > 5 for _, body in fake.seen] == [True, True]
    fake.misbehave = lambda path, body, count: (400, {"error": "no such thing"}) if count >= 0 else None
    assert served.evidence()["logps"] is None  # it cannot tell
    before = len(fake.seen)
    assert policy(fake).evidence() == {"model": "tiny", "logps": None, "tolerance": 0.25} and len(fake.seen) == before


def test_what_cannot_be_answered_is_refused_before_it_starts(fake, tokenizer_path):
    with pytest.raises(ConfigError, match="policy.url"):
        ServerPolicy()
    with pytest.raises(ConfigError, match="in full"):
        ServerPolicy("localhost:8000")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ConfigError, match=f"no server answers at http://127.0.0.1:{port}/v1.*Is it up"):
        ServerPolicy(f"http://127.0.0.1:{port}/v1", **NO_WAIT)
    with pytest.raises(ConfigError, match="does not serve 'tinny'.*Did you mean 'tiny'"):
        policy(fake, model="tinny")
    assert policy(fake).model == policy(fake, model="tiny").model == "tiny"
    fake.models = ("one", "two")
    with pytest.raises(ConfigError, match="one, two"):
        policy(fake)
    with pytest.raises(ConfigError, match="no tokenizer"):
        policy(fake, model="one", tokenizer=tokenizer_path + "/missing")
    fake.misbehave = lambda path, body, count: (404, {}) if count < 0 else None
    assert policy(fake, model="unlisted").model == "unlisted"


def test_the_key_is_sent_and_not_kept(fake, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "from-environment")
    served = policy(fake)
    ask(served)
    ask(policy(fake, api_key="given"))
    assert [headers["authorization"] for headers in fake.headers] == ["Bearer from-environment", "Bearer given"]
    assert "from-environment" not in json.dumps(served.identity)


@pytest.mark.parametrize(
    "status, body, said",
    [
        (400, {"error": {"message": "the context is too long"}}, "too long"),
        (400, {"message": "odd"}, "odd"),
        (401, {}, "OPENAI_API_KEY"),
        (404, {"error": "no such route"}, "/v1"),
        (500, {"error": {"message": "CUDA fell over"}}, "CUDA fell over.*1 tries.*log"),
        (503, b"", "503"),
        (429, {}, "concurrency"),
        (200, b"<html>hello</html>", "not JSON.*/v1"),
        (200, "plain", "not JSON.*/v1"),
        (200, b"\xff\xfe", "not JSON"),
        (200, b"[1]", "list, not an object"),
        (200, {}, "no choices"),
        (200, {"choices": []}, "no choices"),
        (200, {"choices": "x"}, "no choices"),
        (200, {"choices": [{"finish_reason": "stop"}]}, "no message"),
        (200, {"choices": [{"message": {"content": 5}}]}, "content"),
        (200, {"choices": [{"message": {"tool_calls": "x"}}]}, "tool_calls"),
    ],
)
def test_bad_answers_are_that_requests_error(fake, status, body, said):
    served = policy(fake)
    bad, good = kit.root("Break."), kit.root("Go.")
    fake.misbehave = lambda path, sent, count: (status, body) if "Break." in str(sent) else None
    answers = served.propose([ProposeRequest(bad, (1, 2)), ProposeRequest(good, (1, 2))])
    assert isinstance(answers[0], PolicyError)
    assert re.search(f"(?s){said}", str(answers[0]))
    assert len(answers[1].actions) == 2


@pytest.mark.parametrize(
    "status, said",
    [
        (400, "This model's maximum context length is 40 tokens. However, you requested 99 tokens"),  # vLLM, SGLang
        (400, "The decoder prompt (length 99) is longer than the maximum model length of 40."),  # vLLM
        (400, "the request exceeds the available context size. try increasing the context size"),  # llama.cpp
        (400, "Input tokens exceed: context_length_exceeded"),  # OpenAI
    ],
)
def test_a_prompt_that_the_model_cannot_take_is_told_from_a_server_that_fails(fake, status, said):
    served = policy(fake)
    fake.misbehave = lambda path, sent, count: (status, {"error": {"message": said}}) if count == 0 else (503, {})
    assert isinstance(served.propose([ProposeRequest(kit.root(), (1,))])[0], ContextFull)
    (dead,) = served.propose([ProposeRequest(kit.root(), (1,))])
    assert isinstance(dead, PolicyError) and not isinstance(dead, ContextFull)


def test_it_tries_again(fake):
    fake.misbehave = lambda path, body, count: (503, {}) if count == 0 else (429, {}) if count == 1 else None
    assert len(ask(policy(fake, retries=2)).actions) == 1
    assert len(fake.seen) == 3


def test_it_does_not_try_a_refusal_again(fake):
    fake.misbehave = lambda path, body, count: (400, {}) if count >= 0 else None
    assert isinstance(ask(policy(fake, retries=2)), PolicyError)
    assert len(fake.seen) == 1


def test_a_slow_server_times_out(fake):
    served = policy(fake, timeout=1.5)
    held = threading.Event()
    fake.misbehave = holding(held, "")
    answer = ask(served)
    held.set()
    assert isinstance(answer, PolicyError) and "1.5 s (1 tries)" in str(answer) and "policy.timeout" in str(answer)


def test_a_server_that_goes_away(model):
    with serving(FakeServer(model)) as fake:
        served = policy(fake)
    answer = ask(served)
    assert isinstance(answer, PolicyError) and "Is it up" in str(answer)


def test_samples_go_out_together_but_not_too_many(fake):
    served = policy(fake, concurrency=4, timeout=60.0)
    together = threading.Barrier(4)
    fake.misbehave = lambda path, body, count: together.wait(30) and None
    answers = served.propose([ProposeRequest(kit.root(f"Task {i}"), (1, 2, 3)) for i in range(4)])
    assert all(len(answer.actions) == 3 for answer in answers)
    assert fake.most == 4


def test_engine_answers_out_of_order_and_closes(fake):
    served = policy(fake, concurrency=2, timeout=60.0)
    held, quick = threading.Event(), threading.Event()
    fake.misbehave = holding(held, "slow")
    engine, got = served.engine(), []
    engine.submit(ProposeRequest(kit.root("slow"), (1,)), lambda answer: got.append(("slow", answer)))
    engine.submit(ProposeRequest(kit.root("quick"), (1,)), lambda answer: (got.append(("quick", answer)), quick.set()))
    assert quick.wait(30)
    engine.close()
    assert [name for name, _ in got] == ["quick", "slow"]
    assert isinstance(got[1][1], PolicyError) and "closed" in str(got[1][1])
    held.set()
    served._pool.shutdown(wait=True)  # the slow answer has come in, and is not handed out a second time
    assert len(got) == 2 and engine.busy_seconds > 0
    served.close()
    late = []
    served.engine().submit(ProposeRequest(kit.root(), (1,)), late.append)
    assert isinstance(late[0], PolicyError) and "closed" in str(late[0])


def test_no_seeds_no_actions(fake):
    assert ask(policy(fake), seeds=()).actions == ()


@pytest.mark.parametrize(
    "choice, said",
    [
        ({"text": "hi"}, "no token ids"),
        ({"token_ids": [1, "2"]}, "does not have"),
        ({"token_ids": [10**6]}, "does not have"),
        ({"token_ids": [-1]}, "does not have"),
    ],
)
def test_ids_that_cannot_be_used(fake, tokenizer_path, choice, said):
    answer = answered(fake, choice, tokenizer_path)
    assert isinstance(answer, PolicyError) and said in str(answer)


def test_an_end_that_the_server_left_out_is_put_back(fake, tokenizer_path):
    renderer = Renderer.load(tokenizer_path)
    ids = list(renderer.encode_action(Action("Hello.", "Hello.")))
    choice = {"token_ids": ids[:-1], "finish_reason": "stop", "logprobs": {"token_logprobs": [-0.1] * (len(ids) - 1)}}
    action = answered(fake, choice, tokenizer_path).actions[0]
    assert (action.text, action.fault, list(action.token_ids), action.logps) == ("Hello.", None, ids, None)


@pytest.mark.parametrize("logprobs", [None, {}, "x"])
def test_log_probs_that_are_not_there_are_unknown_and_wrong_ones_an_error(fake, tokenizer_path, logprobs):
    ids = list(Renderer.load(tokenizer_path).encode_action(Action("Hello.", "Hello.")))
    action = answered(fake, {"token_ids": ids, "logprobs": logprobs}, tokenizer_path).actions[0]
    assert action.text == "Hello." and action.logps is None
    for bad in ([math.nan] * len(ids), [-1.0], [None] * 99):
        answer = answered(fake, {"token_ids": ids, "logprobs": {"token_logprobs": bad}}, tokenizer_path)
        assert isinstance(answer, PolicyError) and "one finite number for each id" in str(answer)


def test_log_probs_of_a_fixed_text_that_cannot_be_given(fake, tokenizer_path):
    assert policy(fake).evidence()["logps"] is None
    served = policy(fake, tokenizer=tokenizer_path)
    for choice, said in (({}, "no log-probs of prompts"), ({"prompt_logprobs": [{}] * 999}, "no log-probs of prompts")):
        fake.misbehave = lambda path, body, count, choice=choice: (200, {"choices": [choice]})
        with pytest.raises(PolicyError, match=said):
            served._servers.logps([1], [2])
        assert served.evidence()["logps"] is None
    fake.misbehave = lambda path, body, count: (200, {"choices": [{"prompt_logprobs": [{}] * len(body["prompt"])}]})
    with pytest.raises(PolicyError, match="lack an id"):
        served._servers.logps([1], [2])


def test_a_server_without_a_tool_parser_gets_text(fake):
    def misbehave(path, body, count):
        if count < 0:
            return None
        if "tools" in body and body.get("tool_choice") != "none":
            return 400, {"error": {"message": '"auto" tool choice requires --enable-auto-tool-choice'}}
        return 200, {"choices": [{"message": {"content": call_text("So.", CALL)}, "finish_reason": "stop"}]}

    fake.misbehave = misbehave
    answer = ask(policy(fake), seeds=(1, 2, 3))
    assert [action.call for action in answer.actions] == [CALL] * 3
    assert answer.actions[0].thought == "So."


def test_a_server_that_wants_max_completion_tokens(fake):
    said = {"error": {"message": "Unsupported parameter: use 'max_completion_tokens' instead."}}
    fake.misbehave = lambda path, body, count: (400, said) if "max_tokens" in body else None
    served = policy(fake, max_tokens=77)
    assert len(ask(served).actions) == 1 and len(ask(served).actions) == 1
    assert [body.get("max_completion_tokens") for _, body in fake.seen] == [None, 77, 77]


def message(content="", *calls):
    return {"message": {"content": content, "tool_calls": [{"function": call} for call in calls]}}


@pytest.mark.parametrize(
    "choice, call, fault",
    [
        (message("Done."), None, None),
        (message(""), None, "empty"),
        ({"message": {"content": None}}, None, "empty"),
        (message("", {"name": "a", "arguments": '{"x": 1}'}), ToolCall("a", {"x": 1}), None),
        (message("", {"name": "a", "arguments": {"x": 1}}), ToolCall("a", {"x": 1}), None),
        (message("", {"name": "a", "arguments": ""}), ToolCall("a", {}), None),
        (message("", {"name": "a", "arguments": "{"}), None, "invalid_json"),
        (message("", {"name": "a", "arguments": '{"x": NaN}'}), None, "invalid_json"),
        (message("", {"name": "a", "arguments": "[]"}), None, "bad_call"),
        (message("", {"name": 3, "arguments": "{}"}), None, "bad_call"),
        (message("", {"arguments": "{}"}), None, "bad_call"),
        (message("", "nonsense"), None, "bad_call"),
        (message("", {"name": "a", "arguments": "{}"}, {"name": "b", "arguments": "{}"}), None, "several_calls"),
        ({**message("Too lo"), "finish_reason": "length"}, None, "no_end"),
        (message("<tool_call>{</tool_call>"), None, "invalid_json"),
    ],
)
def test_what_a_chat_answer_means(choice, call, fault):
    action = chat_action(choice)
    assert (action.call, action.fault) == (call, fault)
    assert (action.detail is None) == (fault is None)
    assert action.token_ids is None


def test_every_call_is_answered_in_chat_messages():
    context = kit.root().child(Action("x", "So.", CALL), "2 hits")
    context = context.child(Action("{", "{", None, "invalid_json", "Not JSON."), "Not JSON.")
    context = context.child(Action("x", "", CALL), "And then?", "user").child(Action("Bye.", "Bye."), "More?", "user")
    messages = chat_messages(context)
    roles = ["system", "user", "assistant", "tool", "assistant", "user", "assistant", "tool", "user", "assistant"]
    assert [m["role"] for m in messages] == [*roles, "user"]
    assert json.loads(messages[2]["tool_calls"][0]["function"]["arguments"]) == {"query": "red shoes"}
    asked = [m["tool_calls"][0]["id"] for m in messages if "tool_calls" in m]
    assert asked == [m["tool_call_id"] for m in messages if m["role"] == "tool"] and len(set(asked)) == 2


def test_a_server_that_changes_its_model_is_noticed(fake):
    served = policy(fake)
    named = iter(["m", "m", "another"])
    choice = {"message": {"content": "hello"}, "finish_reason": "stop"}
    fake.misbehave = lambda path, body, count: (200, {"choices": [choice], "model": next(named)})
    ask(served), ask(served)
    with pytest.raises(PolicyMismatch, match="as the model 'another', before as 'm'"):
        raise ask(served)


@pytest.mark.parametrize("where", ["choice", "answer"])
def test_a_prompt_that_is_changed_on_the_way_is_noticed(fake, tokenizer_path, where):
    served = policy(fake, tokenizer=tokenizer_path)
    end = served.renderer.end_id

    def changed(path, body, count):
        read = [*body["prompt"][:3], 7, *body["prompt"][4:]] if count else list(body["prompt"])
        told = {"prompt_token_ids": read}
        choice = {"text": "", "token_ids": [end], "finish_reason": "stop", **(told if where == "choice" else {})}
        return 200, {"choices": [choice], **(told if where == "answer" else {})}

    fake.misbehave = changed
    assert not isinstance(ask(served), PolicyError)
    with pytest.raises(PolicyMismatch, match="another prompt than was sent.*number 3"):
        raise ask(served)
