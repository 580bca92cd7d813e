"""What the rules of a collapse make of a run: it stops at the last update before the first of them held."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from offline_agent.pipelines.stages import online
from offline_agent.training.collapse import Finding


@pytest.mark.parametrize("order", [1, -1])
def test_of_several_findings_that_stop_the_earliest_counts(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(online, "checklist", lambda events: ())
    run = object.__new__(online.OnlineRun)
    found = [Finding("echo_trap", 30, "calls repeat", True, 12), Finding("collapse", 30, "entropy fell", True, 28)]
    run._watch = lambda record: found[::order]
    run._seen, run._told = 0, {}
    events = SimpleNamespace(read=lambda: ())
    run.session = SimpleNamespace(say=lambda text: None, run=SimpleNamespace(events=lambda: events))  # type: ignore[assignment]
    assert run.look({"update": 30}) == 11
