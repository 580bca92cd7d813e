"""Conformance suite of policies: `check_policy(policy, contexts)` returns the breaches of the contract."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from offline_agent.errors import PolicyError
from offline_agent.policies.base import Answer, Policy, Proposals, ProposeRequest
from offline_agent.records import Action, Context

SEEDS = (11, 12, 13)
WAIT = 120.0


def check_policy(policy: Policy, contexts: Sequence[Context], temperature: float = 0.7) -> list[str]:
    """Return one line per breach of the contract; an empty list is a pass.

    Args:
        policy: The policy.
        contexts: At least two histories; one that extends another makes the check stricter.
        temperature: Temperature of the sampled requests.
    """
    checks: list[Callable[[], Iterator[str]]] = [
        lambda: _shapes(policy, contexts, temperature),
        lambda: _determinism(policy, contexts, temperature),
        lambda: _batches(policy, contexts, temperature),
        lambda: _greedy(policy, contexts),
        lambda: _engine(policy, contexts, temperature),
    ]
    if len(contexts) < 2:
        return ["give at least two contexts"]
    faults: list[str] = []
    for check in checks:
        try:
            faults += check()
        except Exception as error:  # raised by the policy's own code: a breach
            faults.append(f"raised {type(error).__name__}: {error}")
    return faults


def _shapes(policy: Policy, contexts: Sequence[Context], temperature: float) -> Iterator[str]:
    if not policy.name or not isinstance(policy.identity, dict):
        yield "name must be a non-empty string and identity a dict"
    if list(policy.propose([])) != []:
        yield "propose([]) must be []"
    answers = policy.propose([ProposeRequest(context, SEEDS, temperature) for context in contexts])
    if len(answers) != len(contexts):
        yield f"propose gave {len(answers)} answers to {len(contexts)} requests"
    for context, answer in zip(contexts, answers, strict=False):
        if isinstance(answer, PolicyError):
            yield f"a plain request failed: {answer}"
        elif len(answer.actions) != len(SEEDS):
            yield f"{len(SEEDS)} seeds gave {len(answer.actions)} actions"
        else:
            for action in answer.actions:
                yield from _action(policy, action, context.tools)
            sampled = [action for action in answer.actions if action.token_ids is not None]
            if sampled and answer.usage.generated < sum(len(action.token_ids or ()) for action in sampled):
                yield f"usage counts {answer.usage.generated} generated tokens, the actions have more"


def _action(policy: Policy, action: Action, tools: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if (action.fault is None) != (action.detail is None):
        yield f"fault and detail go together; got {action.fault!r} and {action.detail!r}"
    if action.call is not None and action.fault is not None:
        yield "an action with a fault has a call"
    if action.logps is not None and (action.token_ids is None or len(action.logps) != len(action.token_ids)):
        yield "log-probs must be as many as ids"
    if action.logps is not None and not all(math.isfinite(p) and p <= 1e-6 for p in action.logps):
        yield "log-probs must be finite and at most 0"
    if action.token_ids is None:
        return
    if policy.renderer is None:
        yield "there are ids but no renderer to read them"
        return
    if len(action.token_ids) > policy.max_tokens:
        yield f"an action has {len(action.token_ids)} ids, max_tokens is {policy.max_tokens}"
    read = policy.renderer.parse(action.token_ids, action.logps, tools)
    if (read.text, read.call, read.fault) != (action.text, action.call, action.fault):
        yield f"the ids read {read.text[:60]!r}, the action says {action.text[:60]!r}"


def _determinism(policy: Policy, contexts: Sequence[Context], temperature: float) -> Iterator[str]:
    context = contexts[0]
    first = _ask(policy, context, SEEDS, temperature)
    if _texts(first) != _texts(_ask(policy, context, SEEDS, temperature)):
        yield "the same request gave other actions the second time"
    backwards = _texts(_ask(policy, context, SEEDS[::-1], temperature))[::-1]
    if policy.batch_invariant and _texts(first) != backwards:
        yield "a sample depends on which other seeds were asked for with it"
    if policy.batch_invariant and _texts(first)[:1] != _texts(_ask(policy, context, SEEDS[:1], temperature)):
        yield "a sample depends on how many were asked for"


def _batches(policy: Policy, contexts: Sequence[Context], temperature: float) -> Iterator[str]:
    if not policy.batch_invariant:
        return
    requests = [ProposeRequest(context, SEEDS, temperature) for context in contexts]
    together = [_texts(_good(answer)) for answer in policy.propose(requests)]
    alone = [_texts(_ask(policy, context, SEEDS, temperature)) for context in contexts]
    if together != alone:
        yield "batch_invariant is set, but answers depend on the other requests of the batch"


def _greedy(policy: Policy, contexts: Sequence[Context]) -> Iterator[str]:
    for context in contexts[:2]:
        if len(set(_texts(_ask(policy, context, SEEDS, 0.0)))) != 1:
            yield "temperature 0 must be greedy: every seed the same action"


def _engine(policy: Policy, contexts: Sequence[Context], temperature: float) -> Iterator[str]:
    """Check the engine with one request per context and one request that cannot be answered."""
    wanted = [ProposeRequest(context, SEEDS[:1], temperature) for context in contexts]
    broken = ProposeRequest(None, SEEDS[:1], temperature)  # type: ignore[arg-type]
    answers: dict[int, list[Answer]] = {index: [] for index in range(len(wanted) + 1)}
    left, done = threading.Semaphore(0), policy.engine()

    def keep(index: int) -> Callable[[Answer], None]:
        def store(answer: Answer) -> None:
            answers[index].append(answer)
            left.release()

        return store

    try:
        for index, request in enumerate([broken, *wanted]):
            done.submit(request, keep(index))
        for _ in answers:
            if not left.acquire(timeout=WAIT):
                yield f"the engine answered {sum(map(len, answers.values()))} of {len(answers)} requests"
                return
    finally:
        done.close()
    if any(len(got) != 1 for got in answers.values()):
        yield "the engine must answer every request exactly once"
    if not isinstance(answers[0][0], PolicyError):
        yield "a request that cannot be answered must get a PolicyError"
    failed = [answers[index][0] for index in range(1, len(wanted) + 1) if isinstance(answers[index][0], PolicyError)]
    if failed:
        yield f"a faulty request spoiled others: {failed[0]}"
    if done.busy_seconds < 0:
        yield "busy_seconds must not be negative"
    late: list[Answer] = []
    if type(done).__name__ != "InlineEngine":
        done.submit(wanted[0], late.append)
        if len(late) != 1 or not isinstance(late[0], PolicyError):
            yield "a closed engine must answer with a PolicyError"


def _ask(policy: Policy, context: Context, seeds: tuple[int, ...], temperature: float) -> Proposals:
    return _good(policy.propose([ProposeRequest(context, seeds, temperature)])[0])


def _good(answer: Answer) -> Proposals:
    if isinstance(answer, PolicyError):
        raise answer
    return answer


def _texts(proposals: Proposals) -> list[tuple[str, tuple[int, ...] | None]]:
    return [(action.text, action.token_ids) for action in proposals.actions]
