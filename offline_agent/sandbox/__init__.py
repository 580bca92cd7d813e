"""Running what a policy wrote: without network, the user's files and variables, and within limits."""

from offline_agent.sandbox.limits import Limits, Result
from offline_agent.sandbox.process import SandboxError
from offline_agent.sandbox.sandbox import Sandbox, Session, check_trust, shared
from offline_agent.sandbox.settings import configure, settings

__all__ = ["Limits", "Result", "Sandbox", "SandboxError", "Session", "check_trust", "configure", "settings", "shared"]
