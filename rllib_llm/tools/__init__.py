"""Tools that models call: functions, classes, processes, MCP servers.

Importing this package loads neither torch nor ray. See docs/tools.md for its use.
"""

from rllib_llm.tools.formats import FORMATS, Call
from rllib_llm.tools.mcp import McpServer
from rllib_llm.tools.tool import Tool, ToolSettings, ToolUnavailable, tool, tools_of
from rllib_llm.tools.tool_set import Result, ToolSet

__all__ = [
    "FORMATS",
    "Call",
    "McpServer",
    "Result",
    "Tool",
    "ToolSet",
    "ToolSettings",
    "ToolUnavailable",
    "tool",
    "tools_of",
]
