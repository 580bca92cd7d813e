"""Policies without a model: an environment's demonstrator, with or without noise, and random calls."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from offline_agent.arguments.sources import SeenText
from offline_agent.arguments.values import argument_values
from offline_agent.errors import ConfigError, PolicyError, ends_the_run, in_words
from offline_agent.policies.base import Answer, Engine, Proposals, ProposeRequest
from offline_agent.policies.engines import InlineEngine
from offline_agent.records import Action, Context, Message, ToolCall
from offline_agent.rendering.parsing import call_text
from offline_agent.rendering.renderer import Renderer
from offline_agent.seeding import derive_seed

Demonstrate = Callable[[Mapping[str, Any], Sequence[Message], random.Random, float], Message]
"""An environment's scripted expert: maps (reset's arguments, conversation, random generator, noise) to the next message
of the assistant."""


class ScriptedPolicy:
    """Base of the scripted policies: no tokens, no log-probs, immediate answers, each sample from its own seed.

    At temperature 0 a sample depends on the history alone; at any other temperature, on the history and its seed.

    Args:
        renderer: Writes the turns in its template's format and makes the token columns of stored rows (with
            `"sampled": false` in the certificate); with None these columns are null.
        tokenizer: A folder or hub name to load the renderer from, where none is given.
        chat_template: Replaces that tokenizer's own; see `Renderer.load`.

    Raises:
        ConfigError: The tokenizer cannot be used for rendering, or there is a template without one.
    """

    name: str = "scripted"
    trusted = True  # its programs are the environment's own
    batch_invariant = True
    max_tokens = 0

    def __init__(
        self, renderer: Renderer | None = None, tokenizer: str | None = None, chat_template: str | None = None
    ) -> None:
        if chat_template is not None and tokenizer is None:
            raise ConfigError("policy.chat_template: it replaces a tokenizer's; give policy.tokenizer too")
        if renderer is None and tokenizer is not None:
            renderer = Renderer.load(tokenizer, chat_template)
        self.renderer = renderer
        self.identity: dict[str, object] = {"kind": self.name}

    def propose(self, requests: Sequence[ProposeRequest]) -> list[Answer]:
        """See `base.Policy.propose`."""
        return [self._answer(request) for request in requests]

    def engine(self) -> Engine:
        """See `base.Policy.engine`."""
        return InlineEngine(self)

    def close(self) -> None:
        """Do nothing: the policy holds no resources."""

    def _answer(self, request: ProposeRequest) -> Answer:
        context = request.context
        try:
            if request.temperature == 0:
                return Proposals((self._act(context, random.Random(_seed_of(context))),) * len(request.seeds))
            return Proposals(tuple(self._act(context, random.Random(seed)) for seed in request.seeds))
        except PolicyError as error:
            return error
        except BaseException as error:  # raised by the demonstrator, which is code of the environment
            if ends_the_run(error):
                raise
            place = traceback.extract_tb(error.__traceback__)[-1]
            fault = PolicyError(
                f"the {self.name} policy raised {in_words(error)} in line {place.lineno} of {place.filename}"
            )
            fault.__cause__ = error
            return fault

    def _act(self, context: Context, rng: random.Random) -> Action:
        raise NotImplementedError

    def _write(self, thought: str, call: ToolCall | None) -> Action:
        if call is None:
            fault = None if thought.strip() else "empty"
            detail = "The turn was empty. Call a tool, or answer in words." if fault else None
            return Action(thought, thought, None, fault, detail)
        if self.renderer is None:
            return Action(call_text(thought, call), thought, call)
        text = self.renderer.write(thought, call)
        # as it reads back: some templates make reasoning of the words beside a call
        return Action(text, self.renderer.parse_text(text).thought, call)


class NoisyPolicy(ScriptedPolicy):
    """The environment's demonstrator with noise: its calls are valid, its decisions are sometimes wrong.

    Args:
        demonstrate: The environment's hook (`EnvSpec.demonstrate`).
        noise: Level of noise, in [0, 1]: 0 = the oracle, 0.3 = the default, 1 = every decision is noise.
        renderer, tokenizer, chat_template: See `ScriptedPolicy`.

    Raises:
        ConfigError: The environment has no demonstrator, or `noise` is not in [0, 1].
    """

    name = "noisy"

    def __init__(
        self,
        demonstrate: Demonstrate | None,
        noise: float = 0.3,
        renderer: Renderer | None = None,
        tokenizer: str | None = None,
        chat_template: str | None = None,
    ) -> None:
        super().__init__(renderer, tokenizer, chat_template)
        if demonstrate is None:
            raise ConfigError(
                f"policy={self.name}: the environment has no demonstrator; give it a class method "
                "demonstrate(task, messages, rng, noise), or use policy=random, hf or server"
            )
        if not 0.0 <= noise <= 1.0:
            raise ConfigError(f"policy.noise: got {noise!r}, allowed: a number from 0 (no noise) to 1")
        self._demonstrate = demonstrate
        self._noise = noise
        self.identity["noise"] = noise

    def _act(self, context: Context, rng: random.Random) -> Action:
        message = self._demonstrate(context.task.args, context.messages(), rng, self._noise)
        calls = message.get("tool_calls") or []
        if len(calls) > 1:
            raise PolicyError(f"the demonstrator made {len(calls)} calls in one turn; one at most is allowed")
        thought = message.get("content") or ""
        if not calls:
            return self._write(thought, None)
        function = calls[0].get("function", calls[0])
        return self._write(thought, ToolCall(function["name"], dict(function["arguments"])))


class OraclePolicy(NoisyPolicy):
    """The environment's demonstrator without noise.

    Args:
        demonstrate: The environment's hook (`EnvSpec.demonstrate`).
        renderer, tokenizer, chat_template: See `ScriptedPolicy`.

    Raises:
        ConfigError: The environment has no demonstrator.
    """

    name = "oracle"

    def __init__(
        self,
        demonstrate: Demonstrate | None,
        renderer: Renderer | None = None,
        tokenizer: str | None = None,
        chat_template: str | None = None,
    ) -> None:
        super().__init__(demonstrate, 0.0, renderer, tokenizer, chat_template)
        del self.identity["noise"]


class RandomPolicy(ScriptedPolicy):
    """Random calls for any environment: tools drawn uniformly, arguments from their schemas.

    Arguments respect bounds and enumerations. Other numbers are small integers, and those of ranges and numbers that
    descriptions and the conversation name; other texts are most often items of the lists in the last observation, else
    words of the conversation, examples, and texts that a tool answered well before, some of them changed
    (`arguments.values`).

    Args:
        answer_probability: Probability that a turn is a final answer (a few words of the conversation) instead of a
            call. In an environment without tools every turn is an answer.
        renderer, tokenizer, chat_template: See `ScriptedPolicy`.

    Raises:
        ConfigError: `answer_probability` is not in [0, 1].
    """

    name = "random"

    def __init__(
        self,
        answer_probability: float = 0.0,
        renderer: Renderer | None = None,
        tokenizer: str | None = None,
        chat_template: str | None = None,
    ) -> None:
        super().__init__(renderer, tokenizer, chat_template)
        if not 0.0 <= answer_probability <= 1.0:
            raise ConfigError(f"policy.answer_probability: got {answer_probability!r}, allowed: a number from 0 to 1")
        self._answer_probability = answer_probability
        self.identity["answer_probability"] = answer_probability

    def _act(self, context: Context, rng: random.Random) -> Action:
        seen = SeenText.of(context)
        if not context.tools or rng.random() < self._answer_probability:
            return self._write(seen.words(rng), None)
        schema = context.tools[rng.randrange(len(context.tools))]
        function = schema.get("function", schema)
        about = str(function.get("description") or "")
        arguments = argument_values(function.get("parameters") or {}, rng, seen, about)
        return self._write("", ToolCall(function["name"], arguments))


def _seed_of(context: Context) -> int:
    """Return a seed that depends on the history alone."""
    action = context.action.text if context.action is not None else ""
    return derive_seed(0, context.task.task_id, context.depth, action, context.observation)
