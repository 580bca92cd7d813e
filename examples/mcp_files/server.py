"""An MCP server with the files of one folder: it lists, reads, writes, moves and deletes them, and keeps nothing else.

python examples/mcp_files/server.py FOLDER
"""

import sys
from pathlib import Path

try:
    from mcp.server.mcpserver import MCPServer as Server
    from mcp.server.mcpserver.exceptions import ToolError
except ImportError:  # mcp 1.x
    from mcp.server.fastmcp import FastMCP as Server
    from mcp.server.fastmcp.exceptions import ToolError

server = Server("files", log_level="CRITICAL")  # a traceback for each refused call would take longer than the call
ROOT = Path(sys.argv[1]).absolute()


def _inside(path: str) -> Path:
    found = (ROOT / path).resolve()
    if not found.is_relative_to(ROOT.resolve()):
        raise ToolError(f"{path} is outside of the folder")
    return found


def _file(path: str) -> Path:
    if not _inside(path).is_file():
        raise ToolError(f"there is no file {path}")
    return _inside(path)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ToolError(f"{folder.name} is no folder") from error


@server.tool()
def list_files() -> str:
    """List all files."""
    return "\n".join(sorted(str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file())) or "(no files)"


@server.tool()
def read_file(path: str) -> str:
    """Read a file."""
    return _file(path).read_text()


@server.tool()
def write_file(path: str, text: str) -> str:
    """Write a file, and the folders above it."""
    target = _inside(path)
    if target.is_dir():
        raise ToolError(f"{path} is a folder")
    _make_folder(target.parent)
    target.write_text(text)
    return f"wrote {path}"


@server.tool()
def move_file(source: str, target: str) -> str:
    """Move a file to another path that is free."""
    start, end = _file(source), _inside(target)
    if end.exists():
        raise ToolError(f"{target} exists already")
    _make_folder(end.parent)
    start.rename(end)
    return f"moved {source} to {target}"


@server.tool()
def delete_file(path: str) -> str:
    """Delete a file."""
    _file(path).unlink()
    return f"deleted {path}"


if __name__ == "__main__":
    server.run("stdio")
