"""The policy contract against a served model: `python -m tests.vllm.contract URL MODEL TOKENIZER`."""

from __future__ import annotations

import sys
from itertools import islice
from time import perf_counter

from offline_agent.envs.base import EnvSpec
from offline_agent.policies.base import Proposals, ProposeRequest
from offline_agent.policies.server.policy import ServerPolicy
from offline_agent.records import Context
from tests.helpers.policy_conformance import check_policy


def main(url: str, model: str, tokenizer: str) -> int:
    """Check both modes; return 1 where one breaks the contract."""
    contexts = _contexts()
    bad = 0
    for mode in ("tokens", "chat"):
        policy = ServerPolicy(url, model, tokenizer=tokenizer if mode == "tokens" else None, max_tokens=64)
        faults = check_policy(policy, contexts)
        started = perf_counter()
        answers = policy.propose([ProposeRequest(context, tuple(range(4))) for context in contexts * 4])
        seconds = perf_counter() - started
        good = [answer for answer in answers if isinstance(answer, Proposals)]
        faults += sorted({str(answer) for answer in answers if not isinstance(answer, Proposals)})
        actions = [action for answer in good for action in answer.actions]
        usage = [answer.usage for answer in good]
        generated, prefilled, cached = (sum(getattr(u, k) for u in usage) for k in ("generated", "prefilled", "cached"))
        calls = sum(action.call is not None for action in actions)
        print(
            f"{mode}: contract {'broken' if faults else 'kept'}; {len(actions)} actions, {calls} of them calls, "
            f"{generated} tokens in {seconds:.1f} s; prompts {prefilled} computed, {cached} cached"
        )
        for fault in faults:
            print(f"  {fault}")
        policy.close()
        bad += bool(faults)
    return int(bad > 0)


def _contexts() -> list[Context]:
    """Return the starts of three tasks and what follows their first demonstrated actions."""
    from offline_agent.policies.scripted import OraclePolicy

    spec = EnvSpec.load("shop")
    oracle = OraclePolicy(spec.demonstrate)
    out = []
    for task in islice(spec.tasks("validation"), 3):
        episode = spec.open()
        context = Context(task, spec.system_prompt, spec.tools.schemas, episode.reset(task))
        out.append(context)
        for _ in range(2):
            action = oracle.propose([ProposeRequest(context, (0,))])[0].actions[0]  # type: ignore[union-attr]
            result = episode.step(action)
            context = context.child(action, result.observation, result.role)
            out.append(context)
        episode.close()
    return out


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
