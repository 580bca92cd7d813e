"""Token ids of logs: whether those of an episode are one sequence of its own tokens, and how rendering it differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from offline_agent import pictures
from offline_agent.errors import PolicyError
from offline_agent.logs.conversation import is_turn
from offline_agent.logs.episode import TurnTokens
from offline_agent.records import Action, Message
from offline_agent.rendering.columns import says
from offline_agent.rendering.renderer import Renderer

_RENDERED = 1000  # episodes that are rendered turn by turn, at most; the first ones


class TokenCheck:
    """Checks the ids of episodes with a tokenizer.

    Args:
        renderer: Of the tokenizer that the server used.
    """

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._left = _RENDERED

    def fault(self, messages: Sequence[Message], tokens: Sequence[TurnTokens | None], tools: Any) -> str | None:
        """Return why the ids of an episode are no proof of what was sampled; None where they are.

        They are where each turn's ids decode to the turn that was logged, and have an end. A prompt need not go on with
        the turn before: where a server renders the history anew, each turn has a prompt of its own.

        Args:
            messages: The episode's.
            tokens: One entry for each of its turns.
            tools: The schemas of its tools.
        """
        if pictures.in_messages(messages):
            return "it has pictures, whose patches have the same ids in a log whatever they show"
        turns = list(filter(is_turn, messages))
        for number, (turn, known) in enumerate(zip(turns, tokens, strict=False)):
            if known is None:
                return "the ids of a turn are not in the log"
            if max(*known.prompt, *known.sampled) >= self._renderer.vocab_size:
                return "ids beyond the tokenizer's vocabulary"
            action = self.action(known, turn, tools)
            if action is None:
                return "the ids of a turn decode to another turn than the logged one"
            if number + 1 < len(turns) and known.sampled[-1] not in self._renderer.eos_ids:
                return "the ids of a turn have no end"
        return None if len(tokens) == len(turns) and turns else "the ids of a turn are not in the log"

    def action(self, tokens: TurnTokens, message: Message, tools: Any) -> Action | None:
        """Return the turn that ids decode to, with the message of the log; None where that says something else."""
        try:
            found = self._renderer.parse(tokens.sampled, tokens.logps, tools or ())
        except PolicyError:
            return None
        said = found.message()
        if not says(said.get("content") or "", message):
            return None
        if _calls(said) != _calls(message):
            return None
        return Action(
            found.text, found.thought, found.call, found.fault, found.detail, tokens.sampled, tokens.logps, message
        )

    def stable(self, messages: Sequence[Message], tools: Any) -> tuple[bool, bool] | None:
        """Return whether a conversation that is rendered in one piece, as trainers do with messages alone, begins with
        what the chat template renders up to each turn and for that turn's prompt: as ids, and as text.

        Templates that leave out earlier reasoning, or write the last turn in another way, do not: a policy that
        learns from the one is asked with the other. None after the first 1,000 conversations: a share needs no more.
        """
        if not self._left:
            return None
        self._left -= 1
        whole = self._rendered(messages, tools, False)
        if whole is None:
            return False, False
        same_ids = same_text = True
        text = self._renderer.decode(whole)
        for number, message in enumerate(messages):
            if not is_turn(message):
                continue
            for part in (self._rendered(messages[:number], tools, True),
                         self._rendered(messages[: number + 1], tools, False)):  # fmt: skip
                same_ids &= part is not None and whole[: len(part)] == part
                same_text &= part is not None and text.startswith(self._renderer.decode(part))
        return same_ids, same_text

    def _rendered(self, messages: Sequence[Message], tools: Any, prompt: bool) -> list[int] | None:
        """Return the ids of messages by the tokenizer's template; None where it refuses them."""
        try:
            encoded = self._renderer.tokenizer.apply_chat_template(
                list(messages), tools=list(tools) or None, add_generation_prompt=prompt, return_dict=True
            )
        except Exception:  # a template raises what it likes
            return None
        return [int(id) for id in encoded["input_ids"]]

    def rendered_alike(self, messages: Sequence[Message], tools: Any, prompt: Sequence[int]) -> tuple[bool, bool]:
        """Return whether the chat template renders messages to the same ids as a prompt, and to the same text."""
        ids = self._rendered(messages, tools, True)
        if ids is None:
            return False, False
        return ids == list(prompt), self._renderer.decode(ids) == self._renderer.decode(prompt)


def _calls(message: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
