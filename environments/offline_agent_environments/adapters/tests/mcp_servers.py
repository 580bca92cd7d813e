"""MCP servers over stdio that know one era of the protocol alone, written without its library.

python mcp_servers.py old|new: `count` counts in the server, `end` ends it, `show` shows each kind of content and has
another tool listed.
"""

from __future__ import annotations

import json
import sys
from typing import Any

NUMBER = {"type": "object", "properties": {"n": {"type": "integer", "default": 1}}}
NONE: dict[str, Any] = {"type": "object", "properties": {}}
TOOLS = [
    {"name": "count", "description": "Add a number.", "inputSchema": NUMBER},
    {"name": "end", "description": "End the server.", "inputSchema": NONE},
    {"name": "show", "description": "Show.", "inputSchema": NONE},
]
KINDS: list[dict[str, Any]] = [
    {"type": "resource", "resource": {"uri": "memo://1", "mimeType": "text/plain", "text": "a memo"}},
    {"type": "resource", "resource": {"uri": "memo://2", "mimeType": "image/png", "blob": "AAAA"}},
    {"type": "resource_link", "name": "report", "uri": "memo://3"},
    {"type": "text", "text": ""},
    {"type": "image", "data": "AAAA", "mimeType": "image/png"},
]
SERVER = {"capabilities": {"tools": {"listChanged": True}}, "serverInfo": {"name": "count", "version": "1"}}
KEPT = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


class Refused(Exception):
    """A request that this era does not have."""


class Count:
    """A server of one era."""

    def __init__(self, era: str) -> None:
        self.era, self.total, self.greeted = era, 0, era == "new"

    def answer(self, method: str, given: dict[str, Any]) -> dict[str, Any]:
        """Return the result of a request."""
        if method == "initialize" and self.era == "old":
            self.greeted = True
            return {"protocolVersion": "2025-06-18", **SERVER}
        if method == "server/discover" and self.era == "new":
            return {"supportedVersions": ["2026-07-28"], **SERVER, **KEPT}
        if not self.greeted or method not in ("tools/list", "tools/call"):
            raise Refused(method)
        more = KEPT if self.era == "new" else {}
        if method == "tools/list":
            return {"tools": TOOLS, **more}
        if given["name"] == "end":
            print("the last words", file=sys.stderr, flush=True)
            sys.exit(3)
        if given["name"] == "show":
            return {"content": KINDS, **({"resultType": "complete"} if more else {})}
        self.total += given["arguments"].get("n", 1)
        text = {"type": "text", "text": f"{self.total} so far"}
        return {"content": [text], "isError": self.total < 0, **({"resultType": "complete"} if more else {})}


def main(era: str) -> None:
    """Answer requests, a line each."""
    server = Count(era)
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            try:
                answer = {"result": server.answer(request["method"], request.get("params") or {})}
            except Refused:
                answer = {"error": {"code": -32601, "message": "no such method"}}
            print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
