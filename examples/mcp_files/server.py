"""An MCP server with the files of one folder: it lists, reads, writes, moves and deletes them, and keeps nothing else.

python examples/mcp_files/server.py FOLDER
"""

import sys
from pathlib import Path

try:
    from mcp.server.mcpserver import MCPServer as Server
except ImportError:  # mcp 1.x
    from mcp.server.fastmcp import FastMCP as Server

server = Server("files", log_level="WARNING")
ROOT = Path(sys.argv[1]).absolute()


def _inside(path: str) -> Path:
    found = (ROOT / path).resolve()
    if not found.is_relative_to(ROOT.resolve()):
        raise ValueError(f"{path} is outside of the folder")
    return found


@server.tool()
def list_files() -> str:
    """List all files."""
    return "\n".join(sorted(str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file())) or "(no files)"


@server.tool()
def read_file(path: str) -> str:
    """Read a file."""
    return _inside(path).read_text()


@server.tool()
def write_file(path: str, text: str) -> str:
    """Write a file, and the folders above it."""
    target = _inside(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    return f"wrote {path}"


@server.tool()
def move_file(source: str, target: str) -> str:
    """Move a file to another path that is free."""
    start, end = _inside(source), _inside(target)
    if not start.is_file() or end.exists():
        raise ValueError(f"{source} is no file" if not start.is_file() else f"{target} exists already")
    end.parent.mkdir(parents=True, exist_ok=True)
    start.rename(end)
    return f"moved {source} to {target}"


@server.tool()
def delete_file(path: str) -> str:
    """Delete a file."""
    _inside(path).unlink()
    return f"deleted {path}"


if __name__ == "__main__":
    server.run("stdio")
