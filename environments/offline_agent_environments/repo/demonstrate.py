"""A scripted developer: reads, mends, runs the tests, submits; with noise it breaks something and mends that too."""

from __future__ import annotations

import difflib
import random
from collections.abc import Mapping, Sequence

from offline_agent.records import Message, call_message
from offline_agent_environments.mutation import mutated
from offline_agent_environments.repo.checkout import Checkout


def next_turn(
    begun: Checkout, right: Checkout, messages: Sequence[Message], rng: random.Random, noise: float
) -> Message:
    """Return the next assistant message.

    Args:
        begun: The files at the beginning.
        right: The files as they should be.
        messages: The conversation so far; its edits are repeated.
        rng: The source of its errors.
        noise: Probability, in [0, 1], of a wrong edit, and of submitting after an edit without a look at the tests.
    """
    now, names = begun, []
    for message in messages:
        for made in message.get("tool_calls") or ():
            name, arguments = made["function"]["name"], made["function"]["arguments"]
            names.append(name)
            if name == "edit":
                now = edited(now, arguments) or now
    wrong = [path for path in sorted(right.files) if now.files.get(path) != right.files[path]]
    if wrong:
        path = wrong[0]
        if names[-1:] == ["edit"] and noise > 0 and rng.random() < noise:
            return call_message("submit", {})  # it believes that it is done
        if not names and path in now.files:
            return call_message("read_file", {"path": path})
        if noise > 0 and rng.random() < noise and path in now.files:
            text = now.text(path)
            other = mutated(text, rng)
            if other != text:
                return call_message("edit", {"path": path, **_change(text, other)})
            return call_message("submit", {})
        there = now.text(path) if path in now.files else ""
        return call_message("edit", {"path": path, **_change(there, right.text(path))})
    if names[-1:] != ["run_tests"] and not (noise > 0 and rng.random() < noise):
        return call_message("run_tests", {})
    return call_message("submit", {})


def edited(tree: Checkout, arguments: Mapping[str, str]) -> Checkout | None:
    """Return the files after an edit; None where it is refused."""
    path, old, new = arguments["path"], arguments["old"], arguments["new"]
    if path not in tree.files:
        return tree.replaced(path, new) if old == "" else None
    text = tree.text(path)
    return tree.replaced(path, text.replace(old, new)) if old and text.count(old) == 1 else None


def _change(before: str, after: str) -> dict[str, str]:
    """Return the first difference of two texts as whole lines that stand once in the text before."""
    if not before:
        return {"old": "", "new": after}
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        while i1 == i2 or before.count("".join(old[i1:i2])) != 1:
            if i1 > 0:
                i1, j1 = i1 - 1, j1 - 1
            elif i2 < len(old):
                i2, j2 = i2 + 1, j2 + 1
            else:
                break
        return {"old": "".join(old[i1:i2]), "new": "".join(new[j1:j2])}
    return {"old": before, "new": after}
