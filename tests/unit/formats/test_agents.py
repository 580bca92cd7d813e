"""Logs of agents, tracers and benchmarks: what they write is read whole, and what is damaged is named."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from offline_agent import formats
from offline_agent.formats import FORMATS, recognise
from offline_agent.logs.episode import Fields, LoggedEpisode
from tests.helpers.agent_log_writers import AGENT_WRITERS
from tests.helpers.log_writers import TOOLS, spoken


@pytest.mark.parametrize("format", AGENT_WRITERS)
def test_three_hundred_logs_come_in_with_nothing_lost_and_nothing_invented(format: str, tmp_path: Path) -> None:
    rng = random.Random(7)
    said = [spoken(rng, number) for number in range(300)]
    path = tmp_path / "log.jsonl"
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(AGENT_WRITERS[format](one, rng)) + "\n" for one in said)
    records = list(formats.records(path))
    assert len(records) == 300
    for one, record in zip(said, records, strict=True):
        name, _ = recognise(record.value) or ("", "")
        assert name == format.partition("-")[0]
        (episode,) = FORMATS[name].read(record.value, record.name, Fields())
        assert list(episode.messages) == one.expected()
        assert list(episode.tools) == TOOLS
        assert (episode.task, episode.session, episode.success) == (one.task, one.session, one.success)
        assert LoggedEpisode.from_json(json.loads(json.dumps(episode.to_json()))) == episode
