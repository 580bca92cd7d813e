"""Search, judge and learn from tool-call trajectories, offline first."""

from offline_agent.errors import Refusal, ToolError
from offline_agent.store.tables import rows

__all__ = ["Refusal", "ToolError", "rows"]
__version__ = "0.1.0"
