"""vLLM in this process, on the real thing: `python -m tests.vllm.colocated MODEL FOLDER`.

Run it with the Python that has vLLM. Needs of this package's requirements only those that vLLM brings along.
"""

from __future__ import annotations

import sys
from time import perf_counter

from offline_agent.envs.base import EnvSpec
from offline_agent.errors import PolicyError
from offline_agent.policies.base import Proposals, ProposeRequest
from offline_agent.policies.hf.policy import HFPolicy
from offline_agent.policies.vllm.policy import ColocatedPolicy
from offline_agent.policies.weights import probe_of
from offline_agent.records import Action, Context, Task, ToolCall
from offline_agent.rendering.parsing import call_text
from tests.helpers.policy_conformance import check_policy
from tests.vllm.kit import close, load, logps_of, perturbed

SEEDS = (1, 2, 3, 4)
LARGEST_MISMATCH = 1e-3


def main(model: str, folder: str) -> int:
    """Check the contract, take new weights from memory, compare log-probs with the trainer's."""
    started = perf_counter()
    policy = ColocatedPolicy(model, max_tokens=64, slots=16)
    print(f"vLLM {policy.identity['vllm']} in this process after {perf_counter() - started:.0f} s")
    contexts = histories()
    faults = check_policy(policy, contexts)
    print(f"contract {'broken' if faults else 'kept'}", *faults, sep="\n  ")
    assert not faults

    old, new = load(model), perturbed(model, folder)
    ids = policy.renderer.context_ids(contexts[-1])[::-1]  # begins as no prompt does: the probe itself fills the cache
    first = sampled(policy, contexts)
    mismatch(policy, first, contexts, model)
    kept = usage(policy, contexts[-1])
    assert kept > 0, "vLLM keeps no prefixes; nothing can be seen of their reset"

    taken = policy.take_weights(new, probe_of(new, ids))
    print(f"from memory: {taken.seconds:.2f} s, probe off by {taken.gap:.2g}, moved by {taken.shift:.2g}")
    assert taken.shift is not None and taken.shift > LARGEST_MISMATCH
    after = usage(policy, contexts[-1])
    print(f"prefix cache: {kept} tokens kept before, {after} after")
    assert after == 0
    second = sampled(policy, contexts)
    assert [a.text for row in first for a in row] != [a.text for row in second for a in row]
    mismatch(policy, second, contexts, folder)

    taken = policy.take_weights(old, probe_of(old, ids))
    print(f"the first weights: {taken.seconds:.2f} s, probe off by {taken.gap:.2g}")
    third = sampled(policy, contexts)
    same = sum(a.text == b.text for one, two in zip(first, third, strict=True) for a, b in zip(one, two, strict=True))
    print(f"the first weights again: {same} of {len(SEEDS) * len(contexts)} actions as at the beginning")
    assert same >= len(contexts) * len(SEEDS) // 2

    try:
        policy.take_weights(new, probe_of(old, ids))
    except PolicyError as error:
        print(f"weights that are not the probe's: {str(error)[:120]}…")
    else:
        raise AssertionError("weights that are not the probe's were taken")
    assert isinstance(policy.propose([ProposeRequest(contexts[0], (1,))])[0], PolicyError)
    policy.close()
    return 0


def histories() -> list[Context]:
    """Return starts and continuations in the shop, made by hand: its search engine is not among vLLM's requirements."""
    spec, out = EnvSpec.load("shop"), []
    for number, wish in enumerate(("Buy a red mug under 20 dollars.", "Find a green lamp.", "Order two blue towels.")):
        context = Context(Task(str(number), "validation", {}), spec.system_prompt, spec.tools.schemas, wish)
        call = ToolCall("search", {"query": wish})
        look = Action(call_text("I look.", call), "I look.", call)
        out += [context, context.child(look, "2 results: a mug for 12.00 and a lamp for 9.00. " * 8)]
    return out


def sampled(policy: ColocatedPolicy, contexts: list[Context]) -> list[tuple[Action, ...]]:
    """Return one row of actions for each history."""
    answers = policy.propose([ProposeRequest(context, SEEDS, 1.0) for context in contexts])
    for answer in answers:
        assert isinstance(answer, Proposals), answer
    return [answer.actions for answer in answers if isinstance(answer, Proposals)]


def usage(policy: ColocatedPolicy, context: Context) -> int:
    """Return how many tokens of a prompt were not computed anew."""
    answer = policy.propose([ProposeRequest(context, (1,))])[0]
    assert isinstance(answer, Proposals), answer
    return answer.usage.cached


def mismatch(policy: ColocatedPolicy, rows: list[tuple[Action, ...]], contexts: list[Context], weights: str) -> None:
    """Print how far vLLM's log-probs of its own samples are from the trainer's."""
    trainer, gaps = HFPolicy(weights, max_tokens=64), []
    for context, actions in zip(contexts, rows, strict=True):
        for action in actions:
            gaps += close(logps_of(trainer, context, action.token_ids or ()), action.logps or ())
    trainer.close()
    print(f"log-probs: {len(gaps)} tokens, |vLLM - trainer| mean {sum(gaps) / len(gaps):.2g} max {max(gaps):.2g}")
    assert max(gaps) < LARGEST_MISMATCH


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
