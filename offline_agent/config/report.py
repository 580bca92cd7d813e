"""The keys of `report`."""

from __future__ import annotations

from offline_agent.config.base import Section, key


class ReportConfig(Section):
    """Keys of `report`."""

    run_dir: str = key("", "the run, of any command; it may be unfinished")
    out: str | None = key(None, "the file that is written; null = report.html in run_dir")
    model: str | None = key(
        None, "path of a trained model: the tokens of the pairs that are shown are scored with it, and coloured by how "
        "training changed them; null = they are not; a run of train_dpo has its own in RUN_DIR/model",
    )  # fmt: skip
