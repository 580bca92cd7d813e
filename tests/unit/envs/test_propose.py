"""Proposing as an environment: one call, checked by opening it; examples are train tasks, whatever the split."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from offline_agent import catalog
from offline_agent.envs.base import EnvSpec
from offline_agent.envs.conformance import check_environment
from offline_agent.envs.countdown import Countdown
from offline_agent.errors import ConfigError
from offline_agent.records import Action, Task, ToolCall
from tests.helpers.bandit import ENV
from tests.helpers.guessing import Guessing

NUMBERS = {"numbers": [2, 3, 10], "target": 60}


class Named(Countdown):
    """Tasks that are names alone."""

    @classmethod
    def tasks(cls, split: str) -> Iterator[dict[str, Any]]:  # type: ignore[override]
        yield from ({"task_id": f"{split}-{n}"} for n in range(5))


class Guess(Guessing):
    """A number that must be positive; 50 is guessed already."""

    @classmethod
    def tasks(cls, split: str) -> Iterator[dict[str, Any]]:
        start = {"train": 1, "validation": 10, "test": 20}[split]
        for n in range(start, start + 5):
            yield {"number": n, "words": [["a", "b"]], "hint": None if n == 1 else "x"}

    def reset(self, number: int, words: Any, hint: str | None = None, task_id: str = "") -> str:
        if number < 1:
            raise ValueError("too small")
        self._number, self.terminated = number, False
        return "guess"


def _proposed(spec: EnvSpec, examples: list[dict[str, Any]], arguments: dict[str, Any]) -> tuple[Any, Any]:
    episode = spec.open()
    episode.reset(Task("t", "train", {"examples": examples}))
    assert episode.verdict().success is False  # nothing was proposed yet
    answer = episode.step(Action("propose", call=ToolCall("propose", arguments)))
    return answer, episode.verdict()


@pytest.mark.parametrize("name", ["countdown", "shop", ENV.removeprefix("env=")])
def test_it_passes_the_conformance_suite(name: str) -> None:
    report = check_environment(EnvSpec.load(f"propose:{name}"), tasks=2)
    assert report.passed, report


def test_what_opens_and_is_no_example_is_a_success() -> None:
    spec = EnvSpec(_class(Guess))
    given = {"number": 7, "words": [["a"]]}
    answer, verdict = _proposed(spec, [{"number": 8}], given)
    assert verdict.success and answer.terminated and answer.observation == "It begins: guess"
    for arguments, why in (
        ({"number": 8, "words": []}, "an example"), ({"number": 0, "words": []}, "too small"),
        ({"number": 50, "words": []}, "holds at reset"),
    ):  # fmt: skip
        answer, verdict = _proposed(spec, [{"words": [], "number": 8}], arguments)
        assert verdict.success is False and answer.terminated and why in verdict.evidence["why"]
    answer, verdict = _proposed(spec, [{"number": 8}], {"number": "many", "words": []})
    assert verdict.success is False and answer.fault == "bad_arguments"


def test_parameters_are_those_of_reset_and_no_held_out_task_is_shown() -> None:
    spec = EnvSpec(_class(Guess))
    shape = spec.tools.schemas[0]["function"]["parameters"]
    assert shape["required"] == ["number", "words"] and set(shape["properties"]) == {"number", "words", "hint"}
    assert shape["properties"]["words"]["items"] == {"type": "array", "items": {"type": "string"}}
    assert shape["properties"]["hint"]["nullable"] is True  # from the annotation
    assert "guess(number: integer): Guess." in spec.system_prompt
    for split in ("train", "validation", "test"):
        for task in itertools.islice(spec.tasks(split), 5):
            examples, wanted = task.args["examples"], task.args["wanted"]
            assert wanted not in examples and {one["number"] for one in (*examples, wanted)} <= {1, 2, 3, 4, 5}


def test_what_has_nothing_to_propose_is_refused() -> None:
    with pytest.raises(ConfigError, match="names alone cannot be proposed"):
        _class(Named)


def test_it_is_an_adapter_of_this_package() -> None:
    assert "propose:" in catalog.listing("env")["offline-agent 0.1.0"]
    spec = EnvSpec.load("propose:countdown", {"n": 3})
    assert spec.identity["distribution"] == "offline-agent 0.1.0" and spec.identity["class"] == "propose:countdown"


def _class(kind: type) -> type:
    from offline_agent.envs.propose import adapt

    return adapt(f"{__name__}:{kind.__name__}", {})
