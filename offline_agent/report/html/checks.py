"""Checks of the page: `audit.json` and `calibration.json` of a run, with status and evidence."""

from __future__ import annotations

from typing import Any

from offline_agent.report.html.reading import RunFiles
from offline_agent.report.html.text import pretty

FILES = {"audit.json": "Audit: is the environment with its verifier fit to train on?",
         "calibration.json": "Calibration: do probabilities and judges say what happens?"}  # fmt: skip
_GOOD, _BAD = ("pass", "passed", "ok", "done"), ("fail", "failed", "broken", "error")


def checks(run: RunFiles) -> list[dict[str, Any]]:
    """Return the sections: heading, file and checks, each with `name`, `status`, `tone` and `evidence` as text.

    A file has `{"checks": [{"name", "status", "evidence"}, ...]}`; its other entries are shown as JSON.
    """
    out = []
    for name, heading in FILES.items():
        data = run.json(name)
        if not data:
            continue
        listed = data.get("checks")
        found = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
        rest = {key: value for key, value in data.items() if key not in ("checks", "schema_version")}
        out.append({
            "heading": heading, "file": name, "rest": pretty(rest) if rest else "",
            "checks": [
                {"name": one.get("name") or one.get("check"), "status": str(one.get("status")),
                 "tone": _tone(one.get("status")), "evidence": pretty(one.get("evidence")) if one.get("evidence") not in
                 (None, "", {}, []) else ""}
                for one in found
            ],
        })  # fmt: skip
    return out


def _tone(status: Any) -> str:
    word = str(status).lower()
    return "good" if word in (*_GOOD, "true") else "bad" if word in (*_BAD, "false") else "warn"
