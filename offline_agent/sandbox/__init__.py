"""Running what a policy wrote: without network, the user's files and variables, and within limits."""

from offline_agent.sandbox.calls import Entry, Folder, Limits, Result
from offline_agent.sandbox.process import SandboxError, Session
from offline_agent.sandbox.sandbox import Sandbox
from offline_agent.sandbox.trust import check_trust, configure, shared

__all__ = [
    "Entry", "Folder", "Limits", "Result", "Sandbox", "SandboxError", "Session", "check_trust", "configure", "shared",
]  # fmt: skip
