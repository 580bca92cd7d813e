"""A vault to search, trees grown from scripted rollouts, and renderers, for the tests of what is built from trees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from offline_agent.envs.base import EnvSpec, ToolError
from offline_agent.records import Action, Context, Task, ToolCall, Verdict
from offline_agent.search.tree import Edge, Node, SearchTree


class Vault:
    """Press the wanted buttons, in order, then leave. Looking changes nothing; C jams until A was pressed."""

    system_prompt = "Open the vault."
    version = "3"
    broken = False

    def __init__(self) -> None:
        self.terminated = False
        self._wanted = ""
        self._pressed = ""

    @classmethod
    def tasks(cls, split: str) -> Iterator[dict[str, Any]]:
        names = {"train": ["AB", "BC", "CA"], "validation": ["BA"], "test": ["BB"]}
        return iter([{"wanted": name, "hint": f"Press {_spelt(name)}."} for name in names[split]])

    def reset(self, wanted: str, hint: str) -> str:
        self.terminated, self._wanted, self._pressed = False, wanted, ""
        return hint

    def press(self, button: str) -> str:
        """Press a button.

        Args:
            button: A, B or C.
        """
        if button not in ("A", "B", "C"):
            raise ToolError(f"there is no button {button}")
        self._pressed += button
        return f"{button} is down"

    def look(self) -> str:
        """Look around."""
        return f"{len(self._pressed)} down"

    def leave(self) -> str:
        """Leave."""
        self.terminated = True
        return "bye"

    def get_reward(self) -> float:
        if self._pressed == self._wanted:
            return 1.0
        return 0.5 if self._pressed[:1] == self._wanted[:1] and self._pressed else 0.0

    @property
    def achieved_goal(self) -> dict[str, Any] | None:
        if not self._pressed:
            return None
        return {"wanted": self._pressed, "hint": f"Press {_spelt(self._pressed)}."}


class Sealed(Vault):
    """A vault whose wrong combination is no other vault's right one."""

    hindsight = "a wrong combination is not another vault's right one"


class Moody(Vault):
    """A vault that says something else each time it is pressed."""

    _count = 0

    def press(self, button: str) -> str:
        """Press a button.

        Args:
            button: A, B or C.
        """
        Moody._count += 1
        return f"{super().press(button)} ({Moody._count})"


def _spelt(buttons: str) -> str:
    return " then ".join(f"button{b.lower()}" for b in buttons)


SPEC = EnvSpec(Vault)


def task(wanted: str = "AB", split: str = "train") -> Task:
    return Task(f"vault-{wanted}", split, {"wanted": wanted, "hint": f"Press {_spelt(wanted)}."})


def act(word: str, thought: str = "") -> Action:
    """`A`, `B`, `C` press; `look`, `leave`; `X` is no button; `fly` is no tool; `?` is no JSON; the rest answers."""
    if word == "?":
        return Action("<tool_call>{", fault="invalid_json", detail="write JSON")
    calls = {"look": ("look", {}), "leave": ("leave", {}), "fly": ("fly", {})}
    if len(word) == 1:
        calls[word] = ("press", {"button": word})
    if word not in calls:
        return Action(word, word)
    name, arguments = calls[word]
    return Action(f"{thought}{word}", thought, ToolCall(name, arguments))


def acts(words: str) -> list[Action]:
    return [act(word) for word in words.split()]


def grow(
    rollouts: Sequence[str | Sequence[Action]],
    spec: EnvSpec = SPEC,
    of: Task | None = None,
    max_steps: int = 8,
) -> SearchTree:
    """Return the tree that these rollouts leave, one simulation each, with the sums a search keeps."""
    of = task() if of is None else of
    episode = spec.open()
    tree = SearchTree(Context(of, spec.system_prompt, spec.tools.schemas, episode.reset(of)))
    for rollout in rollouts:
        _rollout(tree, spec, acts(rollout) if isinstance(rollout, str) else list(rollout), max_steps)
    return tree


def _rollout(tree: SearchTree, spec: EnvSpec, actions: list[Action], max_steps: int) -> None:
    episode = spec.open()
    episode.reset(tree.task)
    node, path = tree.root, []
    for action in actions:
        edge, _ = tree.add_proposal(node, action, episode.tools.canonical_key(action))
        result = episode.step(edge.actions[0])
        if edge.child is None:
            child = tree.add_child(edge, node.context.child(edge.actions[0], result.observation, result.role))
            edge.fault = result.fault
            child.terminated = result.terminated
            child.cut = "max_steps" if not result.terminated and child.depth >= max_steps else None
            if result.terminated:
                child.verdict, child.goal = episode.verdict(), episode.achieved_goal()
        path.append(edge)
        node = edge.child
        if result.terminated:
            break
    for edge in path:
        edge.visits += 1
        if node.verdict is not None and node.verdict.score is not None:
            edge.verified += 1
            edge.score_sum += node.verdict.score
            edge.successes += bool(node.verdict.success)
            edge.value_sum += node.verdict.score
        else:
            edge.truncated += 1
    episode.close()


def fan(*sides: tuple[float, float], truncated: Sequence[int] = (), of: Task | None = None) -> SearchTree:
    """Return a root with one open child per (successes, failures), which is all that is known of it."""
    of = task() if of is None else of
    context = Context(of, "", (), "start")
    tree = SearchTree(context)
    for number, (good, bad) in enumerate(sides):
        edge = sided(tree, tree.root, act("ABC"[number] if number < 3 else f"way {number}"), good, bad)
        if number < len(truncated):
            edge.truncated = truncated[number]
            edge.visits += truncated[number]
    return tree


def sided(tree: SearchTree, node: Node, action: Action, good: float, bad: float) -> Edge:
    """Add an executed edge with those sums."""
    edge, _ = tree.add_proposal(node, action, f"key {action.text}")
    tree.add_child(edge, node.context.child(action, "on"))
    edge.verified = edge.visits = round(good + bad)
    edge.score_sum = edge.value_sum = good
    edge.successes = int(good)
    return edge


def end(edge: Edge, score: float | None) -> None:
    """Make an edge end the episode with that score."""
    assert edge.child is not None
    edge.child.terminated = True
    edge.child.verdict = (
        Verdict(None, None, "kit", error="broke") if score is None else Verdict(score, score == 1.0, "kit")
    )


def chain(tree: SearchTree, edge: Edge, draws: Sequence[tuple[str, int, float]]) -> None:
    """Give the child of an edge its own ends: (word, proposals, score) each."""
    assert edge.child is not None
    for word, count, score in draws:
        below = sided(tree, edge.child, act(word), score, 1 - score)
        below.count = count
        end(below, score)
