"""An MCP server over HTTP whose counters have handles of their own, drawn at random: python mcp_http.py PORT."""

from __future__ import annotations

import sys
import uuid

from mcp.server.mcpserver import MCPServer

server = MCPServer("counters", log_level="CRITICAL")
totals: dict[str, int] = {}


@server.tool()
def open_counter() -> str:
    """Open a counter and return its handle."""
    handle = uuid.uuid4().hex
    totals[handle] = 0
    return handle


@server.tool()
def count(counter: str, n: int = 1) -> str:
    """Add a number to a counter."""
    totals[counter] += n
    return f"{totals[counter]} so far"


@server.tool()
def which(counter: str) -> str:
    """Say which counter it is."""
    return f"This is counter {counter}."


if __name__ == "__main__":
    server.run("streamable-http", port=int(sys.argv[1]))
