"""The client: `reset(split="test", index=3)`, `list_tools()`, `step(CountdownAction(tool_name=..., arguments=...))`."""

from openenv.core.mcp_client import MCPToolClient


class CountdownEnv(MCPToolClient):
    """A session of a server."""
