"""Search, judge and learn from tool-call trajectories, offline first."""

from offline_agent.errors import ToolError

__all__ = ["ToolError"]
__version__ = "0.1.0"
