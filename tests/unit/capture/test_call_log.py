from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from offline_agent import formats
from offline_agent.capture.exchange import CallLog


@pytest.mark.parametrize("taken", [0, 7])
def test_what_a_full_disk_cut_costs_no_other_outcome(
    taken: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = CallLog(tmp_path)
    real, left = os.write, [taken]

    def full(fd: int, data: bytes) -> int:
        if not left or not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data[: left.pop()])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        log.outcome("lost", {"success": True})
    monkeypatch.undo()
    for session in ("a", "b"):
        log.outcome(session, {"success": True})
    log.close()
    read = list(formats.records(log.path))
    assert [record.value["session_id"] for record in read if record.damage is None] == ["a", "b"]
    assert len([record for record in read if record.damage is not None]) == (taken > 0)
