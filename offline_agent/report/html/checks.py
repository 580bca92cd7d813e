"""Checks of the page: `audit.json` and `calibration.json` of a run, with status and evidence."""

from __future__ import annotations

from typing import Any

from offline_agent.report.html.reading import RunFiles
from offline_agent.report.html.text import pretty

FILES = {"audit.json": "Audit: is the environment with its verifier fit to train on?",
         "calibration.json": "Calibration: do judges say what the verifier says?"}  # fmt: skip
_GOOD, _BAD = "pass", "fail"


def checks(run: RunFiles) -> list[dict[str, Any]]:
    """Return the sections: heading, file and checks, each with `name`, `status`, `tone` and `evidence` as text.

    An audit's checks are its `results`; a calibration's are its `biases`. What else a file has is shown as JSON.
    """
    out = []
    for name, heading in FILES.items():
        data = run.json(name)
        if not data:
            continue
        found = [_check(one) for one in data.get("results", ()) if isinstance(one, dict)]
        found += [_entry(one, "warn", "") for one in data.get("biases", ()) if isinstance(one, str)]
        rest = {key: value for key, value in data.items() if key not in ("results", "biases", "report_version")}
        out.append({"heading": heading, "file": name, "rest": pretty(rest) if rest else "", "checks": found})
    return out


def _check(one: dict[str, Any]) -> dict[str, Any]:
    told = {key: one[key] for key in ("evidence", "measured") if one.get(key) not in (None, "", {})}
    name = ": ".join(str(one[key]) for key in ("check_id", "about") if one.get(key))
    return _entry(name, str(one.get("status")), pretty(told) if told else "")


def _entry(name: str, status: str, evidence: str) -> dict[str, Any]:
    tone = "good" if status == _GOOD else "bad" if status == _BAD else "warn"
    return {"name": name, "status": status, "tone": tone, "evidence": evidence}
