"""An MCP server for the tests, over stdin and stdout or over HTTP at a port."""

import os
import sys
import time

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


@app.tool()
def wait(seconds: float) -> str:
    """Wait."""
    time.sleep(seconds)
    return "done"


def serve(port: int) -> None:
    """Serve streamable HTTP at ``port`` of this machine."""
    if hasattr(app.settings, "port"):  # mcp 1
        app.settings.port = port
        app.run("streamable-http")
    else:
        app.run("streamable-http", port=port)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(int(sys.argv[1]))
    else:
        app.run("stdio")
