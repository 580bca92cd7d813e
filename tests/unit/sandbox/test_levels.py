"""Which level is chosen, and why a stronger one was not."""

from __future__ import annotations

import pytest

from offline_agent.sandbox import Sandbox, launch


def test_packages_below_tmp_leave_the_level_that_sees_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone catches a stronger level in which programs cannot import what is installed."""
    monkeypatch.setattr(launch, "site_packages", lambda: ["/tmp/clone/.venv/lib/python3.11/site-packages"])
    sandbox = Sandbox()
    try:
        assert sandbox.level == "limits"
    finally:
        sandbox.close()
    assert "/tmp/clone/.venv" in sandbox.refusals["namespaces"] and "elsewhere" in sandbox.refusals["namespaces"]
