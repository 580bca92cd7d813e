"""Checks of the page: `audit.json` and `calibration.json` of a run, with status and evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from offline_agent.report import calibrate
from offline_agent.report.html.reading import RunFiles
from offline_agent.report.html.text import pretty

FILES = {"audit.json": "Audit: is the environment with its verifier fit to train on?",
         "calibration.json": "Calibration: do judges say what the verifier says?"}  # fmt: skip
_TONES = {"pass": "good", "fail": "bad", "skip": "quiet"}
_ORDER = ("bad", "warn", "good", "quiet")


def checks(run: RunFiles) -> list[dict[str, Any]]:
    """Return the sections: heading, file, counts in words, and checks.

    A check has `name`, `about`, `status`, `tone` and `evidence` as text. An audit's checks are its `results`, those
    that fail first; a calibration's are its `biases`. What else a file has is shown as JSON.
    """
    out = []
    for name, heading in FILES.items():
        data = run.json(name)
        if not data:
            continue
        found = [_check(one) for one in data.get("results", ()) if isinstance(one, dict)]
        found += [_entry(one, "", "warn", "") for one in data.get("biases", ()) if isinstance(one, str)]
        found.sort(key=lambda one: _ORDER.index(one["tone"]))
        words = ", ".join(f"{count} {status}" for status, count in Counter(one["status"] for one in found).items())
        if "biases" in data and not found:
            words = "No bias by length or position is proven at this confidence."
        rest = {key: value for key, value in data.items() if key not in ("results", "biases", "report_version")}
        out.append({"heading": heading, "file": name, "rest": pretty(rest) if rest else "", "checks": found,
                    "words": words})  # fmt: skip
    return out


def tables(run: RunFiles) -> list[tuple[str, Sequence[str], list[tuple[str, ...]]]]:
    """Return (caption, headings, rows) of what a calibration found, by length and by position."""
    out: list[tuple[str, Sequence[str], list[tuple[str, ...]]]] = []
    if run.command != "calibrate" or not run.summary:
        return out
    summary = run.summary
    if (judged := summary["pointwise"]) is not None:
        caption = f"{summary['judge']} against the verifier"
        out.append((caption, calibrate.JUDGE_COLUMNS, list(calibrate.judge_rows(judged, summary["length"]))))
    if (compared := summary["pairwise"]) is not None:
        caption = f"{summary['compare']} against the verifier, {compared['pairs']} pairs in both orders"
        out.append((caption, ("comparisons", "share"), list(calibrate.comparator_rows(compared))))
    return out


def _check(one: dict[str, Any]) -> dict[str, Any]:
    told = {key: one[key] for key in ("evidence", "measured") if one.get(key) not in (None, "", {})}
    about = str(one.get("about") or "")
    return _entry(str(one.get("check_id") or ""), about, str(one.get("status")), pretty(told) if told else "")


def _entry(name: str, about: str, status: str, evidence: str) -> dict[str, Any]:
    tone = _TONES.get(status, "warn")
    return {"name": name, "about": about, "status": status, "tone": tone, "evidence": evidence}
