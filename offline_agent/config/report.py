"""The keys of `report`."""

from __future__ import annotations

from offline_agent.sections import Section, key


class ReportConfig(Section):
    """Keys of `report`."""

    run_dir: str = key("", "the run, of any command; it may be unfinished")
    out: str | None = key(None, "the file that is written; null = report.html in run_dir")
