"""Actions and observations: those of OpenEnv for tools."""

from openenv.core.env_server.mcp_types import CallToolAction as CountdownAction
from openenv.core.env_server.mcp_types import CallToolObservation as CountdownObservation

__all__ = ["CountdownAction", "CountdownObservation"]
