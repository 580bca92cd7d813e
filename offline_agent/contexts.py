"""Histories of turns: what was said and done, and what of it a policy is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offline_agent.records import Action, Anew, Message, Recorded, Role, Task


class Context:
    """One history as the policy sees it; immutable. The contexts of a search tree form a trie of conversations.

    Attributes:
        task: The task.
        system: The environment's system prompt; "" for none.
        tools: JSON schemas of the tools, one per tool.
        parent: The history before the last turn; None at the start of an episode.
        action: The last turn; None at the start of an episode.
        observation: The reply to the action; None where the episode ended with the action.
        role: Role of the observation: `tool`, or `user` where a scripted user speaks.
        depth: Number of actions taken.
        segment: int [m], ids that this context adds to its parent's (the action's sampled ids, the observation,
            the next role header); set by `rendering.renderer.Renderer`, None before.
        recorded: The messages of a log that this context adds after the action: at the start of an episode the system
            prompt too. None where `system` and `observation` say it all.
        anew: See `Anew`.
        view: The history that a policy is given in place of this one, once a turn had `anew`; None before.
        caller: The history that ends with the call that began the present sub-agent; None where none is at work.
        cache: A place for the policy's own cache; nothing else reads it.
    """

    __slots__ = (
        "task", "system", "tools", "parent", "action", "observation", "role", "depth", "segment", "recorded", "anew",
        "view", "caller", "cache", "__weakref__",
    )  # fmt: skip

    def __init__(
        self,
        task: Task,
        system: str,
        tools: Sequence[Mapping[str, Any]],
        observation: str | None,
        parent: Context | None = None,
        action: Action | None = None,
        role: Role = "user",
        recorded: Recorded | None = None,
        anew: Anew | None = None,
    ) -> None:
        self.task = task
        self.system = system
        self.tools = tools
        self.observation = observation
        self.parent = parent
        self.action = action
        self.role: Role = role
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.segment: tuple[int, ...] | None = None
        self.recorded = recorded
        self.anew = anew
        self.view: Context | None = None
        self.caller: Context | None = None
        self.cache: Any = None
        if parent is not None and action is not None and (anew is not None or parent.view is not None):
            self._go_on(parent, action)

    def _go_on(self, parent: Context, action: Action) -> None:
        """Set `view` and `caller`."""
        before, self.caller = parent.shown, parent.caller
        if self.anew is None:
            self.view = before.child(action, self.observation, self.role, self.recorded)
        elif self.anew == "leave":
            if self.caller is None or self.caller.parent is None or self.caller.action is None:
                raise ValueError(f"task {self.task.task_id}: no sub-agent has begun that could be left")
            self.view = self.caller.parent.child(self.caller.action, self.observation)
            self.caller = None
        else:
            tools = before.tools
            if self.anew == "enter":
                self.caller = before.child(action, None)
                called = None if action.call is None else action.call.name
                tools = tuple(one for one in tools if one["function"]["name"] != called)
            self.view = Context(self.task, before.system, tools, self.observation)

    @property
    def shown(self) -> Context:
        """The history that a policy is given here: this one, unless a turn had `anew`."""
        return self if self.view is None else self.view

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy the history alone: what a renderer or a policy keeps in it is theirs."""
        return Context, (
            self.task, self.system, self.tools, self.observation, self.parent, self.action, self.role, self.recorded,
            self.anew,
        )  # fmt: skip

    def child(
        self,
        action: Action,
        observation: str | None,
        role: Role = "tool",
        recorded: Recorded | None = None,
        anew: Anew | None = None,
    ) -> Context:
        """Return this history extended by one action and the observation, or the messages of a log, that follow it."""
        return Context(self.task, self.system, self.tools, observation, self, action, role, recorded, anew)

    def lineage(self) -> list[Context]:
        """Return the contexts from the start of the episode to this one, this one included."""
        out: list[Context] = []
        node: Context | None = self
        while node is not None:
            out.append(node)
            node = node.parent
        return out[::-1]

    def messages(self) -> list[Message]:
        """Return the whole history in TRL's conversational format; an observation of a turn with `anew` says so."""
        nodes = self.lineage()
        system = self.system and nodes[0].recorded is None
        out: list[Message] = [{"role": "system", "content": self.system}] if system else []
        for node in nodes:
            if node.action is not None:
                out.append(node.action.message())
            if node.recorded is not None:
                out.extend(map(dict, node.recorded))
            elif node.observation is not None:
                out.append({"role": node.role, "content": node.observation})
                if node.role == "tool" and node.action is not None and node.action.call is not None:
                    out[-1]["name"] = node.action.call.name
                if node.anew is not None:
                    out[-1]["anew"] = node.anew
        return out

    def actions(self) -> list[Action]:
        """Return the actions taken so far, first to last."""
        return [node.action for node in self.lineage() if node.action is not None]
