from collections.abc import Callable
from typing import Any

import pytest
import torch

from offline_agent.errors import ConfigError
from offline_agent.training.prefix_sharing.attention import NAME
from offline_agent.training.prefix_sharing.log_probabilities import Scorer
from offline_agent.training.prefix_sharing.trie import Sequence, pack
from tests.helpers.sharing import FAMILIES, VOCABULARY, apart, close, gradients, loss, model, together, tree

SHARED = ("llama", "qwen3", "gemma3_text", "mistral", "qwen2", "cohere", "granite", "phi3", "gpt2")


def compare(llm: Any, scorer: Scorer, sequences: list[Sequence], run: Callable[[], Any] | None = None) -> None:
    """Hold log-probabilities and gradients against passes of one sequence each."""
    packed = pack(sequences)
    known = apart(llm, sequences)
    loss(known).backward()
    grads = gradients(llm)
    found = together(scorer(llm, packed).logps, packed)
    for one, other in zip(found, known, strict=True):
        assert one.shape == other.shape
        if len(one):
            assert float((one - other).detach().abs().max()) <= 1e-5
    loss(found).backward()
    close(gradients(llm), grads)


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_and_gradients_are_those_of_separate_passes(family: str) -> None:
    llm = model(family)
    scorer = Scorer(llm)
    assert scorer.shares == (family in SHARED), scorer.reason
    assert scorer.head == "scored"
    compare(llm, scorer, tree(4))
    compare(llm, Scorer(llm, share=False), tree(5))


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_attention_by_blocks_is_exact(family: str) -> None:
    llm = model(family)
    scorer = Scorer(llm, way="blocks")
    assert scorer.shares
    compare(llm, scorer, tree(6, depth=4))


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_flex_attention_scores_alike(family: str) -> None:
    llm = model(family)
    assert "FlexAttention has no backward pass here" in str(Scorer(llm, way="flex").reason)
    llm.requires_grad_(False)  # so it is on a CPU
    scorer = Scorer(llm, way="flex")
    assert scorer.shares and scorer.way == "flex", scorer.reason
    sequences = [*tree(7), *[Sequence((*range(90), 3 + i, *range(60)), (*[0] * 90, *[1] * 61)) for i in range(3)]]
    packed = pack(sequences)
    with torch.no_grad():
        found = scorer(llm, packed).logps
        known = Scorer(llm, share=False)(llm, packed).logps
    assert float((found - known).abs().max()) <= 1e-5


def test_a_long_history_under_many_short_leaves() -> None:
    llm = model("qwen3")
    history = tuple(i % VOCABULARY for i in range(700))
    leaves = [(7 * i % VOCABULARY, *range(5 + i % 7)) for i in range(12)]
    compare(llm, Scorer(llm), [Sequence(history + leaf, (*[0] * 700, *[1] * len(leaf))) for leaf in leaves])


def test_why_a_model_falls_back_is_said() -> None:
    assert Scorer(model("gemma2")).reason == "its attention uses softcap"
    assert Scorer(model("bloom")).reason is not None
    assert Scorer(model("llama"), share=False).reason == "switched off"
    scaled = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    assert "longest sequence" in str(Scorer(model("llama", rope_parameters=scaled)).reason)


def test_a_window_that_the_attention_is_not_told_of_is_noticed() -> None:
    llm = model("gemma3_text", sliding_window=500)  # far longer than the probe
    assert Scorer(llm).shares
    llm.model.layers[0].self_attn.sliding_window = None
    assert Scorer(llm).reason == "layer 0 has a window, but its attention asks for none"


def test_a_layer_with_an_attention_of_its_own_is_noticed() -> None:
    llm = model("llama")
    layer = llm.model.layers[1].self_attn
    config = layer.config
    other = type(config).from_dict(config.to_dict())

    class Apart(type(layer)):  # type: ignore[misc]
        def forward(self, *args: Any, **options: Any) -> Any:
            self.config = other
            other._attn_implementation_internal = "sdpa"
            return super().forward(*args, **options)

    layer.__class__ = Apart
    assert "2 of its 3 layers" in str(Scorer(llm).reason)


def test_a_mask_of_the_models_own_is_noticed() -> None:
    llm = model("llama")

    def masked(module: Any, args: Any, options: dict[str, Any]) -> Any:
        return args, {**options, "attention_mask": torch.zeros(1, 1, *[options["hidden_states"].shape[1]] * 2)}

    llm.model.layers[1].self_attn.register_forward_pre_hook(masked, with_kwargs=True)
    assert Scorer(llm).reason == "it makes an attention mask of its own"


def test_bidirectional_attention_is_noticed() -> None:
    llm = model("llama")
    llm.model.layers[2].self_attn.is_causal = False
    assert Scorer(llm).reason == "its attention is not causal"


def test_a_head_that_does_something_unknown_is_left_to_the_model() -> None:
    class Odd(type(model("llama"))):  # type: ignore[misc]
        def forward(self, *args: Any, **options: Any) -> Any:
            out = super().forward(*args, **options)
            out.logits = out.logits * 0.5 + 0.01 * out.logits.square()
            return out

    llm = model("llama")
    llm.__class__ = Odd
    scorer = Scorer(llm)
    assert scorer.head == "all" and scorer.shares, scorer.reason
    compare(llm, scorer, tree(4))


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_computes_the_same_again(reentrant: bool) -> None:
    llm = model("gemma3_text")
    scorer = Scorer(llm)
    packed = pack(tree(4))
    loss(together(scorer(llm, packed).logps, packed)).backward()
    known = gradients(llm)
    llm.train()
    llm.gradient_checkpointing_enable({"use_reentrant": reentrant})
    llm.enable_input_require_grads()
    before = [module.__dict__.get("_gradient_checkpointing_func") for module in llm.modules()]
    calls = count_calls(llm.model.layers[0].mlp)
    loss(together(scorer(llm, packed).logps, packed)).backward()
    assert len(calls) == 2  # really computed twice
    close(gradients(llm), known, 1e-5)
    assert before == [module.__dict__.get("_gradient_checkpointing_func") for module in llm.modules()]


def count_calls(module: Any) -> list[int]:
    calls: list[int] = []
    module.register_forward_pre_hook(lambda *_: calls.append(1))
    return calls


def test_adapters_are_trained_alike() -> None:
    from peft import LoraConfig, get_peft_model

    llm = get_peft_model(model("qwen3"), LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    torch.manual_seed(1)
    for name, weight in llm.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    scorer = Scorer(llm)
    assert scorer.shares, scorer.reason
    compare(llm, scorer, tree(4))
    packed = pack(tree(4))
    with torch.no_grad(), llm.disable_adapter():
        found, known = together(scorer(llm, packed).logps, packed), apart(llm, tree(4))
    assert max(float((a - b).abs().max()) for a, b in zip(found, known, strict=True) if len(a)) <= 1e-5


def test_a_head_with_an_adapter_and_a_bias() -> None:
    from peft import LoraConfig, get_peft_model

    plain = model("llama", tie_word_embeddings=False)
    plain.lm_head = torch.nn.Linear(48, VOCABULARY)
    llm = get_peft_model(plain, LoraConfig(r=4, target_modules=["q_proj", "lm_head"], init_lora_weights=False))
    scorer = Scorer(llm)
    assert scorer.head == "scored" and scorer.shares
    compare(llm, scorer, tree(4))


def test_the_model_is_left_as_it_was() -> None:
    llm = model("llama")
    llm.train()
    llm.model.layers[0].eval()
    state, modes = torch.get_rng_state(), [module.training for module in llm.modules()]
    scorer = Scorer(llm)
    assert modes == [module.training for module in llm.modules()]
    assert torch.equal(state, torch.get_rng_state())
    prompt = torch.tensor([[1, 2, 3, 4]])
    known = llm.generate(prompt, max_new_tokens=8, do_sample=False)
    name = llm.config._attn_implementation
    scores = scorer(llm, pack(tree(1)))
    assert llm.config._attn_implementation == name != NAME
    assert "forward" not in llm.lm_head.__dict__
    assert torch.equal(llm.generate(prompt, max_new_tokens=8, do_sample=False), known)
    scores.logps.sum().backward()


def test_a_model_is_left_as_it_was_when_it_breaks() -> None:
    llm = model("llama")
    scorer = Scorer(llm)
    name = llm.config._attn_implementation

    def broken(*_: Any) -> None:
        raise RuntimeError("no memory")

    handle = llm.model.layers[1].register_forward_pre_hook(broken)
    with pytest.raises(RuntimeError, match="no memory"):
        scorer(llm, pack(tree(1)))
    handle.remove()
    assert llm.config._attn_implementation == name
    assert "forward" not in llm.lm_head.__dict__
    compare(llm, scorer, tree(1))


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_half_precision_and_autocast(family: str) -> None:
    llm = model(family)
    packed = pack(tree(4))
    with torch.no_grad():
        exact = Scorer(llm)(llm, packed).logps
        scorer = Scorer(llm)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cast = scorer(llm, packed).logps
            apart_cast = Scorer(llm, share=False)(llm, packed).logps
        llm.to(torch.bfloat16)
        scorer = Scorer(llm)
        assert scorer.shares, scorer.reason
        half = scorer(llm, packed).logps
    for found in (cast, apart_cast, half):
        assert found.dtype == torch.float32
        assert float((found - exact).abs().max()) < 0.25
        assert float((found - exact).abs().mean()) < 0.05


def test_a_model_in_float64_is_scored_in_float64() -> None:
    llm = model("gemma3_text").double()
    packed = pack(tree(4))
    found, known = (Scorer(llm, share=share)(llm, packed).logps for share in (True, False))
    assert found.dtype == torch.float64
    assert float((found - known).detach().abs().max()) < 1e-10


def test_autocast_backward() -> None:
    llm = model("qwen3")
    scorer, packed = Scorer(llm, limit=500), pack(tree(4))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logps = scorer(llm, packed).logps
    logps.sum().backward()
    assert all(torch.isfinite(grad).all() for grad in gradients(llm).values())


@pytest.mark.parametrize("share", [True, False])
def test_entropy_is_that_of_the_distribution_and_detached(share: bool) -> None:
    llm = model("qwen3")
    packed = pack(tree(4))
    scores = Scorer(llm, share=share)(llm, packed, entropy=True)
    assert scores.entropy is not None and not scores.entropy.requires_grad
    for index, (sequence, row) in enumerate(zip(tree(4), packed.rows, strict=True)):
        logps = torch.log_softmax(llm(input_ids=torch.tensor([sequence.ids])).logits[0], -1)
        known = -(logps.exp() * logps).sum(-1)[:-1][torch.tensor(sequence.scored[1:]).bool()]
        torch.testing.assert_close(scores.entropy[row], known, atol=1e-5, rtol=0, msg=str(index))
    assert Scorer(llm, share=share)(llm, packed).entropy is None


@pytest.mark.parametrize("share", [True, False])
def test_chunks_of_the_head_change_nothing(share: bool) -> None:
    llm = model("cohere")
    packed = pack(tree(4))
    results = []
    for limit in (None, 3 * VOCABULARY, 1):
        scores = Scorer(llm, share=share, limit=limit)(llm, packed, entropy=True)
        loss(together(scores.logps, packed)).backward()
        results.append((scores.logps.detach(), scores.entropy, gradients(llm)))
    for logps, entropy, grads in results[1:]:
        torch.testing.assert_close(logps, results[0][0])
        torch.testing.assert_close(entropy, results[0][1])
        close(grads, results[0][2], 1e-5)


@pytest.mark.parametrize("share", [True, False])
def test_the_head_is_computed_where_tokens_are_scored_alone(share: bool) -> None:
    llm = model("llama")
    scorer = Scorer(llm, share=share)
    rows: list[int] = []
    own = llm.lm_head.forward
    llm.lm_head.forward = lambda hidden: (rows.append(hidden[..., 0].numel()), own(hidden))[1]  # type: ignore[func-returns-value]
    packed = pack(tree(4))
    scorer(llm, packed)
    assert sum(rows) == packed.scored
    assert "forward" in llm.lm_head.__dict__  # what was set before is set again


@pytest.mark.parametrize("share", [True, False])
def test_nothing_to_score(share: bool) -> None:
    llm = model("llama")
    scorer = Scorer(llm, share=share)
    for sequences in ([], [Sequence((1, 2, 3), (0, 0, 0))], [Sequence((4,), (0,))]):
        packed = pack(sequences)
        scores = scorer(llm, packed, entropy=True)
        assert scores.logps.shape == (0,) and scores.entropy is not None and scores.entropy.shape == (0,)
        assert [row.tolist() for row in packed.rows] == [[]] * len(sequences)


def test_a_wrapper_for_several_processes_finds_all_weights(tmp_path: Any) -> None:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        llm = model("cohere")
        packed = pack(tree(4))
        loss(together(Scorer(llm)(llm, packed).logps, packed)).backward()
        known = gradients(llm)
        wrapped = DistributedDataParallel(llm, find_unused_parameters=True)
        scorer = Scorer(wrapped)
        assert scorer.shares
        for _ in range(2):
            loss(together(scorer(wrapped, packed).logps, packed)).backward()
            close(gradients(llm), known, 1e-5)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("head", ["scored", "all"])
@pytest.mark.parametrize("share", [True, False])
def test_logits_are_divided_by_the_temperature(share: bool, head: str) -> None:
    llm = model("gemma3_text")  # softcapped: the division comes after
    scorer, packed = Scorer(llm, share=share), pack(tree(4))
    scorer.head = head
    found = together(scorer(llm, packed, temperature=0.6).logps, packed)
    for sequence, one in zip(tree(4), found, strict=True):
        ids = torch.tensor(sequence.ids)
        logps = torch.log_softmax(llm(input_ids=ids[None]).logits[0, :-1].float() / 0.6, -1)
        known = logps.gather(-1, ids[1:, None])[:, 0][torch.tensor(sequence.scored[1:], dtype=torch.bool)]
        torch.testing.assert_close(one, known, atol=1e-5, rtol=0)


@pytest.mark.parametrize("share", [True, False])
def test_hidden_states_are_those_the_head_sees(share: bool) -> None:
    llm = model("llama")
    scorer, packed = Scorer(llm, share=share), pack(tree(4))
    hidden = scorer(llm, packed, hidden=True).hidden
    assert hidden is not None and hidden.requires_grad
    for sequence, row in zip(tree(4), packed.rows, strict=True):
        known = llm.model(input_ids=torch.tensor([sequence.ids])).last_hidden_state[0, :-1]
        torch.testing.assert_close(
            hidden[row], known[torch.tensor(sequence.scored[1:], dtype=torch.bool)], atol=1e-5, rtol=0
        )
    assert scorer(llm, packed).hidden is None
    scorer.head = "all"
    with pytest.raises(ConfigError, match="critic"):
        scorer(llm, packed, hidden=True)
