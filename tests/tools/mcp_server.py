"""An MCP server over stdin and stdout, for the tests."""

import os

try:
    from mcp.server import MCPServer
except ImportError:  # mcp 1
    from mcp.server.fastmcp import FastMCP as MCPServer

app = MCPServer("toys")


@app.tool()
def double(number: int) -> int:
    """Return twice the number."""
    return 2 * number


@app.tool()
def pid() -> int:
    """Return the server's process id."""
    return os.getpid()


@app.tool()
def fail(why: str) -> str:
    """Raise an exception."""
    raise ValueError(why)


@app.tool()
def die() -> str:
    """End the server."""
    os._exit(3)


if __name__ == "__main__":
    app.run("stdio")
