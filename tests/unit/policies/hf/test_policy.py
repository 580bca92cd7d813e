import json
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import GenerationConfig

from offline_agent.errors import ConfigError, ContextFull, PolicyError
from offline_agent.policies.base import Proposals, ProposeRequest
from offline_agent.policies.hf import loading
from offline_agent.policies.hf.architecture import Unpackable, check_layers
from offline_agent.policies.hf.checks import verify_batch_invariance
from offline_agent.policies.hf.kv_cache import SlotCache
from offline_agent.policies.hf.loading import action_limit, action_limit_of
from offline_agent.policies.hf.policy import HFPolicy
from tests.helpers import forked, whole_prompts
from tests.helpers import hf as kit
from tests.helpers import rendering as rendering_kit


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return kit.save("qwen3", tmp_path_factory.mktemp("model"))


@pytest.fixture
def policy(folder):
    return HFPolicy(folder, max_tokens=12, slots=6)


def ids_of(answers):
    return [[action.token_ids for action in answer.actions] for answer in answers]


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen2", "gemma", "mistral", "gpt2"])
def test_greedy_is_what_generate_answers(family, tmp_path):
    kit.save(family, tmp_path)
    policy = HFPolicy(tmp_path, max_tokens=16, slots=3)
    contexts = [kit.start(i, text) for i, text in enumerate(["Find", "A very long wish, " * 9, "Buy a hat."])]
    contexts.append(kit.follow(contexts[0], kit.ask(policy, ProposeRequest(contexts[0], (1,)))[0].actions[0]))
    answers = kit.ask(policy, *[ProposeRequest(context, (0,), 0.0) for context in contexts])
    assert [ids[0] for ids in ids_of(answers)] == kit.generated(policy, tmp_path, contexts)
    assert policy.batch_invariant


def test_logps_are_the_models_at_temperature_one(policy, folder):
    context = kit.start()
    for action in kit.ask(policy, ProposeRequest(context, (1, 2, 3), 0.5))[0].actions:
        wanted = kit.full_logps(folder, policy.renderer.context_ids(context), action.token_ids)
        assert list(action.logps) == pytest.approx(wanted, abs=1e-4)


def test_actions_end_with_the_turn_or_are_cut(policy):
    answers = kit.ask(policy, *[ProposeRequest(kit.start(i), tuple(range(20)), 2.0, 40) for i in range(3)])
    actions = [action for answer in answers for action in answer.actions]
    ended = [action for action in actions if action.token_ids[-1] in policy.renderer.eos_ids]
    assert 0 < len(ended) < len(actions)
    for action in actions:
        assert len(action.logps) == len(action.token_ids)
        assert not set(action.token_ids[:-1]) & policy.renderer.eos_ids
        if action not in ended:
            assert action.fault == "no_end"
            assert len(action.token_ids) == 40
    assert [answer.usage.generated for answer in answers] == [
        sum(len(action.token_ids) for action in answer.actions) for answer in answers
    ]


def test_seeds_make_samples_and_nothing_else_does(policy):
    context = kit.start()
    first = kit.ask(policy, ProposeRequest(context, (5, 6, 5)))[0].actions
    assert first[0] == first[2] != first[1]
    assert kit.ask(policy, ProposeRequest(context, (6,)))[0].actions[0] == first[1]
    assert kit.ask(policy, ProposeRequest(context, (6,), 0.1))[0].actions[0] != first[1]


def test_what_is_known_is_not_computed_again(policy):
    context = kit.start()
    size = len(policy.renderer.context_ids(context))
    first = kit.ask(policy, ProposeRequest(context, (1, 2, 3)))[0]
    assert (first.usage.prefilled, first.usage.cached) == (size, 0)
    again = kit.ask(policy, ProposeRequest(context, (9,)))[0]
    assert (again.usage.prefilled, again.usage.cached) == (0, size)
    child = kit.follow(context, first.actions[1])
    added = len(policy.renderer.segment(child)) - len(first.actions[1].token_ids)
    later = kit.ask(policy, ProposeRequest(child, (1,)))[0]
    assert later.usage.prefilled == added + 1  # the last sampled id was never fed to the model


def test_a_history_remembers_where_it_ends_in_the_trie(policy, folder):
    context = kit.start()
    kit.ask(policy, ProposeRequest(context, (1,)))
    trie, node, size = context.cache
    assert trie.match(tuple(policy.renderer.context_ids(context)))[0][-1][0] is node
    assert size == len(policy.renderer.context_ids(context))
    other = HFPolicy(folder, max_tokens=12, slots=2)  # another policy's memory is of no use, and does no harm
    assert ids_of(kit.ask(other, ProposeRequest(context, (1,)))) == ids_of(
        kit.ask(policy, ProposeRequest(context, (1,)))
    )
    policy.forget()
    assert node.kv is None
    assert kit.ask(policy, ProposeRequest(context, (1,)))[0].usage.prefilled == size


def test_starts_that_arrive_together_share_the_system_prompt(policy):
    contexts = [kit.start(i) for i in range(20)]
    kit.ask(policy, *[ProposeRequest(context, (1,)) for context in contexts])
    prompts = [policy.renderer.context_ids(context) for context in contexts]
    assert policy.counts.prefilled <= 1.1 * kit.trie_size(prompts)
    assert policy.counts.prefilled < sum(map(len, prompts)) / 3


def test_prefilled_stays_near_the_trie_over_growing_histories(policy):
    contexts, prompts = [kit.start(i) for i in range(5)], []
    for turn in range(4):
        answers = kit.ask(policy, *[ProposeRequest(context, (turn, 7, 8)) for context in contexts])
        prompts += [policy.renderer.context_ids(context) for context in contexts]
        contexts = [kit.follow(c, a.actions[i]) for c, a in zip(contexts, answers, strict=True) for i in (0, 1)][:9]
    assert policy.counts.prefilled <= 1.1 * kit.trie_size(prompts)


def test_more_samples_than_slots_and_no_memory(folder, policy):
    contexts = [kit.start(i) for i in range(3)]
    requests = [ProposeRequest(context, tuple(range(7))) for context in contexts]
    wanted = ids_of(kit.ask(policy, *requests))
    poor = HFPolicy(folder, max_tokens=12, slots=2, cache_bytes=0)
    answers = kit.ask(poor, *requests)
    assert ids_of(answers) == wanted
    assert poor.counts.prefilled == sum(answer.usage.prefilled for answer in answers)  # again and again
    assert poor._core.trie.bytes == 0


def conversations(policy, count=24, turns=8):
    """Hold conversations at the same time, each a turn further as soon as its answer is there; return the answers."""
    answers = {}

    def go_on(context, number, turn):
        def done(answer):
            answers[number, turn] = answer.actions[0].token_ids
            if turn + 1 < turns:
                go_on(kit.follow(context, answer.actions[0]), number, turn + 1)

        policy.submit(ProposeRequest(context, (number,)), done, None)

    for number in range(count):
        go_on(kit.start(number), number, 0)
    while policy.pump():
        pass
    return answers


def test_histories_that_do_not_all_fit_do_not_evict_each_other_at_every_turn(folder):
    roomy = HFPolicy(folder, max_tokens=12, slots=4)
    wanted = conversations(roomy)
    poor = HFPolicy(folder, max_tokens=12, slots=4, cache_bytes=roomy._core.trie.bytes * 3 // 10)
    assert conversations(poor) == wanted and len(wanted) == 24 * 8
    assert poor.counts.prefilled < 2.5 * roomy.counts.prefilled  # 4.5 times as many in the order of arrival


def test_one_slot_is_enough(folder, policy):
    requests = [ProposeRequest(kit.start(i), (1, 2)) for i in range(2)]
    assert ids_of(kit.ask(HFPolicy(folder, max_tokens=12, slots=1), *requests)) == ids_of(kit.ask(policy, *requests))


def test_a_new_process_gives_the_same_bits(folder, policy):
    answers = kit.ask(policy, *[ProposeRequest(kit.start(i), (1, 2), 0.9) for i in range(3)])
    code = (
        "import sys, json; from tests.helpers import hf as kit; from offline_agent.policies.hf.policy import HFPolicy\n"
        "from offline_agent.policies.base import ProposeRequest\n"
        "policy = HFPolicy(sys.argv[1], max_tokens=12, slots=3)\n"
        "out = [kit.ask(policy, ProposeRequest(kit.start(i), (1, 2), 0.9))[0].actions for i in (2, 1, 0)][::-1]\n"
        "print(json.dumps([[(a.token_ids, [x.hex() for x in a.logps]) for a in actions] for actions in out]))"
    )
    root = Path(__file__).parents[4]
    run = forked.run([sys.executable, "-c", code, str(folder)], cwd=root)
    wanted = [[[list(a.token_ids), [x.hex() for x in a.logps]] for a in answer.actions] for answer in answers]
    assert json.loads(run.stdout.splitlines()[-1]) == wanted


def test_logps_are_the_models(policy, folder):
    context = kit.start()
    prompt = policy.renderer.context_ids(context)
    for action in kit.ask(policy, ProposeRequest(context, (1, 2, 3), 1.0))[0].actions:
        known = kit.full_logps(folder, prompt, action.token_ids)
        assert list(action.logps) == pytest.approx(known, abs=1e-3)


def test_a_prompt_that_is_too_long_fails_alone(folder):
    policy = HFPolicy(folder, max_tokens=12, slots=4, max_context=400)
    long = kit.start(1, "word " * 300)
    size = len(policy.renderer.context_ids(long))
    good, bad = policy.propose([ProposeRequest(kit.start(), (1,)), ProposeRequest(long, (1,))])
    assert isinstance(good, Proposals)
    assert isinstance(bad, ContextFull)
    for part in (str(size), "400", "policy.max_context", "search.max_steps"):
        assert part in str(bad)


def test_histories_outgrow_the_first_memory(folder, policy):
    context = kit.start(0, "word " * 120)
    prompt = policy.renderer.context_ids(context)
    assert len(prompt) > policy._core.cache.capacity
    action = kit.ask(policy, ProposeRequest(context, (3,), 0.0))[0].actions[0]
    assert [action.token_ids] == kit.generated(policy, folder, [context])


def test_long_histories_take_slots_away_not_memory(folder, policy, monkeypatch):
    limit = 6 * 384 * policy._core.cache.token_bytes
    monkeypatch.setattr(loading, "free_memory", lambda: 6 * limit)
    poor = HFPolicy(folder, max_tokens=12, slots=64)
    assert poor._core.cache.slots == 6
    texts = ["Find", "word " * 120, "Buy", "word " * 140, "Look"]
    requests = [ProposeRequest(kit.start(i, text), (1, 2, 3)) for i, text in enumerate(texts)]
    assert ids_of(kit.ask(poor, *requests)) == ids_of(kit.ask(policy, *requests))
    cache = poor._core.cache
    assert 0 < cache.data.numel() * cache.data.element_size() <= cache.limit == poor._core.trie.budget == limit
    assert poor._core._free == list(range(poor._core.cache.slots)) and len(poor._core._free) < 6


def test_no_seeds_is_an_empty_answer(policy):
    assert kit.ask(policy, ProposeRequest(kit.start(), ()))[0].actions == ()


@pytest.mark.parametrize(
    "request_", [ProposeRequest(kit.start(), (1,), -1.0), ProposeRequest(kit.start(), (1,), 1.0, 0)]
)
def test_impossible_requests_are_refused(policy, request_):
    (answer,) = policy.propose([request_])
    assert isinstance(answer, PolicyError)


def test_a_model_that_breaks_fails_what_was_in_the_batch_and_goes_on(policy, monkeypatch):
    monkeypatch.setattr(policy._core, "_forward", lambda *_: (_ for _ in ()).throw(RuntimeError("out of memory")))
    answers = policy.propose([ProposeRequest(kit.start(i), (1, 2)) for i in range(3)])
    assert ["RuntimeError: out of memory" in str(answer) for answer in answers] == [True] * 3
    assert all(isinstance(answer.__cause__, RuntimeError) for answer in answers)
    monkeypatch.undo()
    monkeypatch.setattr(policy._core, "_forward", policy._runner.logits)
    assert len(kit.ask(policy, ProposeRequest(kit.start(), (1, 2, 3)))[0].actions) == 3
    assert sorted(policy._core._free) == list(range(6))


def test_weights_that_are_no_numbers_are_said_to_be(policy):
    with torch.no_grad():
        policy.model.model.norm.weight.fill_(float("nan"))
    (answer,) = policy.propose([ProposeRequest(kit.start(), (1, 2))])
    assert isinstance(answer, PolicyError)
    assert "not numbers" in str(answer)
    assert not policy._core.busy


def test_identity_names_what_answers_depend_on(policy, folder, tmp_path):
    assert policy.identity["batch_invariant"] is True
    assert policy.identity["tokenizer_hash"] == policy.renderer.tokenizer_hash
    json.dumps(policy.identity)
    other = HFPolicy(kit.save("qwen3", tmp_path, initializer_range=0.2), slots=2)
    assert other.identity["model_hash"] != policy.identity["model_hash"]
    assert HFPolicy(folder, slots=2).identity["model_hash"] == policy.identity["model_hash"]


@pytest.mark.parametrize("fault", ["batch", "length", "pieces"])
def test_invariance_is_found_out_not_asserted(policy, monkeypatch, fault):
    from offline_agent.policies.hf.attention import SlotPlan

    assert policy.batch_invariant
    attend = SlotPlan._attend

    def rounding_otherwise(self, query, keys, values, mask):
        wrong = {"batch": query.shape[0] > 1, "length": keys.shape[2] > 320, "pieces": query.shape[1] == 8}[fault]
        return attend(self, query, keys, values, mask) * (1 + 1e-6 * wrong)

    monkeypatch.setattr(SlotPlan, "_attend", rounding_otherwise)
    cache = SlotCache(24, policy._core.cache.shape, torch.float32, torch.device("cpu"), 1 << 30)
    assert not verify_batch_invariance(policy._runner, cache)


def test_a_prompt_for_which_the_last_free_slots_are_given_up_waits_for_one_in_use(policy):
    texts = ["Find", "Find a hat.", "A very long wish, " * 40]
    contexts = [kit.start(i, text) for i, text in enumerate(texts)]
    cache = policy._core.cache
    room = len(policy.renderer.context_ids(contexts[2])) + 12
    assert room > cache.capacity
    cache.limit = 2 * cache.token_bytes * (room + 127)  # two slots for it, and both are in use
    requests = [ProposeRequest(context, (1,)) for context in contexts]
    kit.ask(policy, *requests[:2])  # known prompts: both begin at once
    answers = kit.ask(policy, *requests)
    assert all(len(answer.actions) == 1 for answer in answers) and cache.slots == 2


def test_guesses_change_nothing_but_the_number_of_steps(folder, policy):
    plain = HFPolicy(folder, max_tokens=12, slots=6)
    plain._core._draft_tokens = 0
    contexts = [kit.start(i) for i in range(4)]
    requests = [ProposeRequest(context, (1, 2, 3), t, 12) for context in contexts for t in (0.0, 0.3)]
    assert ids_of(kit.ask(policy, *requests)) == ids_of(kit.ask(plain, *requests))
    policy._core.trie.clear()
    again = kit.ask(policy, *requests)  # everything has been seen: many guesses come true
    assert [answer.actions for answer in again] == [answer.actions for answer in kit.ask(plain, *requests)]
    assert plain.counts.guessed == 0
    assert policy.counts.guessed > policy.counts.confirmed > 30
    assert policy.counts.steps < plain.counts.steps


class Collector:
    """Waits for answers."""

    def __init__(self, wanted):
        self.answers = {}
        self._left = threading.Semaphore(0)
        self._wanted = wanted

    def done(self, key):
        def keep(answer):
            assert key not in self.answers
            self.answers[key] = answer
            self._left.release()

        return keep

    def wait(self):
        for _ in range(self._wanted):
            assert self._left.acquire(timeout=60)
        return self.answers


def test_the_engine_answers_requests_of_many_threads_once(policy):
    requests = [ProposeRequest(kit.start(i % 7), (i, i + 1)) for i in range(24)]
    wanted = ids_of(kit.ask(policy, *requests))
    policy.forget()
    engine, collector = policy.engine(), Collector(24)
    threads = [
        threading.Thread(target=lambda k=k: [engine.submit(requests[i], collector.done(i)) for i in range(k, 24, 4)])
        for k in range(4)
    ]
    for thread in threads:
        thread.start()
    got = collector.wait()
    assert ids_of([got[i] for i in range(24)]) == wanted
    assert engine.busy_seconds > 0
    engine.close()


def test_a_callback_may_submit(policy):
    engine, collector = policy.engine(), Collector(2)

    def first(answer):
        engine.submit(ProposeRequest(kit.follow(kit.start(), answer.actions[0]), (2,)), collector.done("second"))
        collector.done("first")(answer)

    engine.submit(ProposeRequest(kit.start(), (1,)), first)
    assert set(collector.wait()) == {"first", "second"}
    engine.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_callback_that_raises_leaves_nobody_waiting(policy):
    engine, collector = policy.engine(), Collector(9)

    def careless(answer):
        raise RuntimeError("a mistake")

    engine.submit(ProposeRequest(kit.start(), (1,), 1.0, 2), careless)
    for i in range(9):
        engine.submit(ProposeRequest(kit.start(i), (1, 2, 3), 3.0, 60), collector.done(i))
    for answer in collector.wait().values():
        assert isinstance(answer, Proposals) or "a mistake" in str(answer) or "closed" in str(answer)
    engine.close()


def test_propose_works_beside_an_engine(policy):
    engine, collector = policy.engine(), Collector(8)
    for i in range(8):
        engine.submit(ProposeRequest(kit.start(i), (1,)), collector.done(i))
    beside = ids_of(kit.ask(policy, ProposeRequest(kit.start(3), (1,))))[0]
    assert ids_of([collector.wait()[3]])[0] == beside
    engine.close()


def test_a_closed_engine_answers_what_is_left_with_an_error(folder):
    policy = HFPolicy(folder, max_tokens=500, slots=2)
    engine, collector = policy.engine(), Collector(30)
    for i in range(30):
        engine.submit(ProposeRequest(kit.start(i), (1, 2, 3), 3.0), collector.done(i))
    engine.close()
    answers = collector.wait()
    assert any(isinstance(answer, PolicyError) and "closed" in str(answer) for answer in answers.values())
    late = Collector(1)
    engine.submit(ProposeRequest(kit.start(), (1,)), late.done(0))
    assert isinstance(late.wait()[0], PolicyError)
    assert len(kit.ask(policy, ProposeRequest(kit.start(), (1,), None, 3))) == 1


def test_engines_do_not_close_each_others_requests(policy):
    first, second, collector = policy.engine(), policy.engine(), Collector(6)
    for i in range(6):
        second.submit(ProposeRequest(kit.start(i), (1,)), collector.done(i))
    first.close()
    assert all(isinstance(answer, Proposals) for answer in collector.wait().values())
    second.close()


def test_a_closed_policy_says_so(policy):
    policy.close()
    (answer,) = policy.propose([ProposeRequest(kit.start(), (1,))])
    assert isinstance(answer, PolicyError)
    assert "closed" in str(answer)


def test_a_number_format_that_is_slow_here_is_warned_of(monkeypatch, caplog):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    loading.choose_device("cpu", None)
    assert not caplog.text
    loading.choose_device("cpu", "bfloat16")
    assert "slow in bfloat16" in caplog.text


def test_loading_errors_say_what_to_do(folder, tmp_path):
    (tmp_path / "my_modal").mkdir()
    with pytest.raises(ConfigError, match=r"Did you mean 'my_modal'"):
        HFPolicy(tmp_path / "my_model")
    with pytest.raises(ConfigError, match=r"no config\.json"):
        HFPolicy(tmp_path / "my_modal")
    (tmp_path / "my_modal" / "config.json").write_text((folder / "config.json").read_text())
    (tmp_path / "my_modal" / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"no \*\.safetensors"):
        HFPolicy(tmp_path / "my_modal")
    (tmp_path / "my_modal" / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(ConfigError, match="cannot be loaded as a causal language model"):
        HFPolicy(tmp_path / "my_modal")


@pytest.mark.parametrize(("context", "room"), [(256, 64), (2048, 256), (4096, 512), (32768, 1024), (1 << 20, 1024)])
def test_without_a_limit_of_its_own_a_model_may_fill_an_eighth_of_its_context_with_an_action(context, room):
    assert action_limit(context) == room
    assert action_limit(context, GenerationConfig(max_new_tokens=96)) == 96


def test_the_limit_of_an_action_is_in_the_models_folder(tmp_path):
    kit.save("llama", tmp_path)
    assert action_limit_of(str(tmp_path)) == HFPolicy(tmp_path, slots=2).max_tokens == 128
    GenerationConfig(max_new_tokens=99).save_pretrained(tmp_path)
    policy = HFPolicy(tmp_path, slots=2)
    assert action_limit_of(str(tmp_path)) == policy.max_tokens == policy.identity["max_tokens"] == 99
    assert HFPolicy(tmp_path, slots=2, max_tokens=7).max_tokens == 7


def test_wrong_arguments_are_listed_together(folder):
    with pytest.raises(ConfigError) as caught:
        HFPolicy(folder, temperature=-1, max_tokens=0, slots=0)
    assert [fault.split(":")[0] for fault in caught.value.faults] == [
        "policy.temperature", "policy.max_tokens", "policy.slots",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="Did you mean 'float32'"):
        HFPolicy(folder, dtype="float23")


def test_a_tokenizer_with_more_ids_than_the_model(folder, tmp_path):
    kit.save("qwen3", tmp_path, vocab_size=100)
    with pytest.raises(ConfigError, match="policy.tokenizer"):
        HFPolicy(tmp_path)


def test_a_tokenizer_without_a_template(folder, tmp_path):
    tokenizer = rendering_kit.byte_level(rendering_kit.CONTROLS, rendering_kit.QWEN25)
    kit.save("qwen3", tmp_path)
    (tmp_path / "chat_template.jinja").unlink(missing_ok=True)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="template"):
        HFPolicy(tmp_path)


LONGROPE = {
    "hidden_size": 64, "original_max_position_embeddings": 512, "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 512,
        "short_factor": [1.0] * 8, "long_factor": [8.0] * 8,
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "changes", "reason"),
    [
        ("gemma2", {}, "softcap"),
        ("bloom", {}, ""),
        ("llama4_text", {"attention_chunk_size": 64}, "chunked_attention"),
        ("lfm2", {"layer_types": ["conv", "full_attention"], "initializer_range": 0.02}, "conv"),
        ("phi3", LONGROPE, "policy.max_context=512"),
    ],
)
def test_models_with_another_attention_are_refused(family, changes, reason, tmp_path):
    kit.save(family, tmp_path, **changes)
    with pytest.raises(ConfigError, match=f"'{family}'.*{reason}.*policy=server"):
        HFPolicy(tmp_path)


@pytest.mark.parametrize(
    ("family", "changes", "room"),
    [("phi3", LONGROPE, 512), ("mistral", {"sliding_window": 200}, None), ("ministral3", {"sliding_window": 90}, None)],
)
def test_histories_of_all_lengths_together_are_scored_as_by_plain_passes(family, changes, room, tmp_path):
    kit.save(family, tmp_path, **changes)
    policy = HFPolicy(tmp_path, slots=4, max_context=room)
    config = policy.model.config
    assert getattr(config, "sliding_window", None) == changes.get("sliding_window")  # lowered for the check alone
    assert config.rope_parameters.get("original_max_position_embeddings", 512) >= 512
    contexts = [kit.start(0, "red " * words) for words in (1, 9, 50 if room else 150)]
    answers = kit.ask(policy, *[ProposeRequest(context, (1,), 1.0, 9) for context in contexts])
    for context, answer in zip(contexts, answers, strict=True):
        (action,) = answer.actions
        wanted = kit.full_logps(tmp_path, policy.renderer.context_ids(context), action.token_ids)
        assert list(action.logps) == pytest.approx(wanted, abs=1e-4)


def test_rotary_angles_that_are_not_known_are_refused():
    config = SimpleNamespace(num_hidden_layers=1, rope_parameters={"full_attention": {"rope_type": "new"}})
    with pytest.raises(Unpackable, match="'new'"):
        check_layers(config, [None])


def test_bfloat16_works_and_says_what_it_is(folder):
    policy = HFPolicy(folder, dtype="bfloat16", slots=2, max_tokens=5)
    assert policy.identity["dtype"] == "bfloat16"
    assert len(kit.ask(policy, ProposeRequest(kit.start(), (1, 2)))[0].actions) == 2


@pytest.mark.parametrize("adapted", [False, True])
def test_new_weights_answer_and_nothing_of_the_old_ones_is_kept(policy, folder, adapted):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    context = kit.start()
    before = kit.ask(policy, ProposeRequest(context, (1, 2)))[0].actions
    model = AutoModelForCausalLM.from_pretrained(folder)
    if adapted:
        model = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear"))
    torch.manual_seed(3)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if not adapted or "lora_" in name:
                weights.add_(0.3 * torch.randn_like(weights))
    kept = {name: weights.clone() for name, weights in model.named_parameters()}
    assert policy._core.trie.bytes
    policy.take_weights(model)
    assert not policy._core.trie.bytes
    after = kit.ask(policy, ProposeRequest(context, (1, 2)))[0].actions
    assert after != before
    ids = policy.renderer.context_ids(context)
    full = torch.tensor([[*ids, *after[0].token_ids]])
    logps = torch.log_softmax(model.eval()(full).logits[0, :-1], -1).gather(-1, full[0, 1:, None])[len(ids) - 1 :, 0]
    assert list(after[0].logps) == pytest.approx(logps.tolist(), abs=1e-4)
    assert all(torch.equal(weights, kept[name]) for name, weights in model.named_parameters())


def test_weights_of_another_model_are_refused(policy, tmp_path):
    from transformers import AutoModelForCausalLM

    kit.save("gpt2", tmp_path)
    with pytest.raises(PolicyError, match="is it another model"):
        policy.take_weights(AutoModelForCausalLM.from_pretrained(tmp_path))


def test_weights_do_not_change_under_a_request(policy):
    policy.submit(ProposeRequest(kit.start(), (1,)), lambda answer: None, None)
    with pytest.raises(PolicyError, match="while requests are being answered"):
        policy.take_weights(policy.model)


def test_a_prompt_that_does_not_go_on_with_the_one_before_is_computed_as_it_is(tmp_path):
    renderer = whole_prompts.renderer()
    kit.save("llama", tmp_path, vocab_size=renderer.vocab_size, max_position_embeddings=4096)
    policy = HFPolicy(tmp_path, slots=2, renderer=renderer)
    for context in whole_prompts.trajectory()[1].lineage():
        (action,) = kit.ask(policy, ProposeRequest(context, (1,), 1.0, 8))[0].actions
        wanted = kit.full_logps(tmp_path, renderer.context_ids(context), action.token_ids)
        assert list(action.logps) == pytest.approx(wanted, abs=1e-4)


def test_models_are_loaded_without_scikit_learn() -> None:
    code = """
import sys
import offline_agent.policies.hf.loading  # as commands do, before they train
import offline_agent.training.trainer
from transformers.utils import is_sklearn_available
assert "sklearn" not in sys.modules and is_sklearn_available(), "imported, or hidden from others"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
