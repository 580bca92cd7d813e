"""New weights for a served model, on the real thing: `python -m tests.vllm.weights URL MODEL TOKENIZER FOLDER`."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.pool import EnvPool
from offline_agent.errors import PolicyError
from offline_agent.policies.base import ProposeRequest
from offline_agent.policies.hf.policy import HFPolicy
from offline_agent.policies.server.policy import ServerPolicy
from offline_agent.policies.weights import probe_of
from offline_agent.records import POLICY_CUTS, Context
from offline_agent.rollouts.attempts import Attempt
from offline_agent.rollouts.episodes import AttemptRequest, Episodes
from tests.vllm.kit import close, load, logps_of, perturbed

MAX_STEPS = 4
LARGEST_MISMATCH = 1e-3  # nats; float32 on both sides


def main(url: str, model: str, tokenizer: str, folder: str) -> int:
    """Roll out, update, roll out; raise AssertionError where an answer is from the wrong weights."""
    server = ServerPolicy(url, model, tokenizer=tokenizer, max_tokens=64)
    server.check_takes_weights()
    old, new = load(tokenizer), perturbed(tokenizer, folder)

    first = rollouts(server)
    again = rollouts(server)
    same = sum(turns(a) == turns(b) for a, b in zip(first, again, strict=True))
    print(f"{len(first)} roll-outs; {same} the same when played again")
    mismatch("before the update", first, HFPolicy(tokenizer, max_tokens=64))

    context = first[0].context.lineage()[1]
    assert server.renderer is not None
    ids = server.renderer.context_ids(context)[::-1]  # begins as no prompt does: the probe itself fills the cache
    request = ProposeRequest(context, (1,))
    server.propose([request])
    cached = server.propose([request])[0].usage.cached  # type: ignore[union-attr]
    assert cached > 0, "the server keeps no prefixes; nothing can be seen of their reset"

    taken = server.take_weights(folder, probe_of(new, ids))
    print(f"update: {taken.seconds:.2f} s, probe off by {taken.gap:.2g}, moved by {taken.shift:.2g}")
    assert taken.shift is not None and taken.shift > LARGEST_MISMATCH
    usage = server.propose([request])[0].usage  # type: ignore[union-attr]
    print(f"prefix cache: {cached} of the prompt's tokens kept before, {usage.cached} after")
    assert usage.cached == 0, "what was kept under the old weights was used under the new ones"

    changed = rollouts(server)
    different = sum(turns(a) != turns(b) for a, b in zip(first, changed, strict=True))
    print(f"{different} of {len(changed)} roll-outs changed")
    assert different > 0
    mismatch("after the update", changed, HFPolicy(folder, max_tokens=64))

    refused(server, folder, probe_of(old, ids))
    in_flight(server, tokenizer, probe_of(old, ids), context)
    back = rollouts(server)
    same = sum(turns(a) == turns(b) for a, b in zip(first, back, strict=True))
    print(f"the first weights again: {same} of {len(back)} roll-outs as at the beginning")
    assert same >= len(back) // 2
    server.close()
    return 0


def rollouts(policy: ServerPolicy) -> list[Attempt]:
    """Play four tasks of the shop twice each, in the order of their tasks."""
    spec = EnvSpec.load("shop")
    tasks = list(islice(spec.tasks("validation"), 4))
    pool, engine = EnvPool(2, 30.0), policy.engine()
    try:
        episodes = Episodes(spec, engine, pool, seed=7, max_steps=MAX_STEPS, temperature=1.0)
        played = list(episodes.play(AttemptRequest(task, "sampled", number) for task in tasks for number in range(2)))
    finally:
        engine.close()
        pool.close()
    # The policy's own failures are played and worth 0: far from its first weights it may write a turn that never ends.
    broken = [attempt.verdict.error for attempt in played if attempt.reward is None]
    assert not broken, broken
    cut = Counter(attempt.cut_by for attempt in played if attempt.cut_by is not None)
    assert set(cut) <= set(POLICY_CUTS), cut
    print(f"{len(played)} roll-outs, {sum(cut.values())} of them cut: {dict(cut)}")
    return sorted(played, key=lambda attempt: (attempt.task.task_id, attempt.number))


def turns(attempt: Attempt) -> list[str]:
    """Return what the policy wrote."""
    return [action.text for action in attempt.context.actions()]


def mismatch(when: str, attempts: Sequence[Attempt], trainer: HFPolicy) -> None:
    """Print how far the server's log-probs of its own samples are from the trainer's; importance weights need that."""
    gaps: list[float] = []
    for attempt in attempts:
        for node in attempt.context.lineage():
            if node.action is not None and node.parent is not None:
                ids, logps = node.action.token_ids, node.action.logps
                assert ids is not None and logps is not None, "a roll-out without log-probs"
                gaps += close(logps_of(trainer, node.parent, ids), logps)
    trainer.close()
    mean = sum(gaps) / len(gaps)
    print(f"log-probs {when}: {len(gaps)} tokens, |server - trainer| mean {mean:.2g} max {max(gaps):.2g}")
    assert max(gaps) < LARGEST_MISMATCH


def refused(server: ServerPolicy, folder: str, wrong: Any) -> None:
    """Take weights that are not the probe's, and see that nothing is answered from them."""
    try:
        server.take_weights(folder, wrong)
    except PolicyError as error:
        print(f"weights that are not the probe's: {str(error)[:120]}…")
    else:
        raise AssertionError("weights that are not the probe's were taken")
    answer = server.propose([ProposeRequest(Context(_task(), "", (), "Hello."), (1,))])[0]
    assert isinstance(answer, PolicyError), "an answer from weights that nobody knows"


def in_flight(server: ServerPolicy, folder: str, probe: Any, context: Context) -> None:
    """Update while requests are out: all of them are answered."""
    server.take_weights(folder, probe)
    answers: list[Any] = []
    engine, left = server.engine(), threading.Semaphore(0)

    def keep(answer: Any) -> None:
        answers.append(answer)
        left.release()

    for seed in range(12):
        engine.submit(ProposeRequest(context, (seed,)), keep)
    started = perf_counter()
    taken = server.take_weights(Path(folder), probe)
    for _ in range(12):
        assert left.acquire(timeout=120)
    engine.close()
    assert not any(isinstance(answer, PolicyError) for answer in answers), answers
    seconds = perf_counter() - started
    print(f"12 requests in flight: all answered; the update waited {taken.waited:.2f} s of {seconds:.2f}")


def _task() -> Any:
    from offline_agent.records import Task

    return Task("none", "validation", {})


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
