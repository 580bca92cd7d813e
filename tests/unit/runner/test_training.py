from __future__ import annotations

from unittest.mock import MagicMock

from offline_agent.runner.training import Recorder


def test_each_bar_of_a_histogram_is_a_figure_of_tracking() -> None:
    session = MagicMock()
    session.run.events.return_value.read.return_value = [{"update": 1}]
    recorder = Recorder(session, "critic")
    for update in (1, 2):
        recorder({"update": update, "loss": 0.5, "tools": {"left": 1.0}})
        session.tracker.metrics.assert_called_with({"critic.loss": 0.5, "critic.tools/left": 1.0}, step=update)
    session.run.events.return_value.append.assert_called_once()  # the first was in the log
