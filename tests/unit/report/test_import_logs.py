from __future__ import annotations

import json
from pathlib import Path

from offline_agent.report.import_logs import next_steps
from offline_agent.store.files import write_json
from tests.helpers import rows as kit


def test_next_lines_say_that_other_trainers_cannot_take_pairs_of_several_turns(tmp_path: Path) -> None:
    """Alone catches a user led from a log to an export whose files of pairs are empty."""
    summary = {"pairs_total": 1, "filtered": 0, "pairs": {"trajectory": 1}}
    kit.run(tmp_path / "long", [kit.pair(1, "tea cup", "mug", kind="trajectory")])
    kit.run(tmp_path / "short", [kit.pair(0)])
    for name, told in (("long", True), ("short", False)):
        manifest = json.loads((tmp_path / name / "manifest.json").read_text())
        write_json(tmp_path / name / "manifest.json", {**manifest, "command": "import_logs"})
        text = "\n".join(next_steps(summary, tmp_path / name))
        assert "train_dpo" in text and ("pairs.min_visits=1" in text) == told
