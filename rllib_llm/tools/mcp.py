"""Tools of MCP servers (Model Context Protocol) that run as child processes."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from rllib_llm.errors import ConfigError, MissingExtraError
from rllib_llm.tools import running
from rllib_llm.tools.tool import Tool, ToolSettings, ToolUnavailable

_listed: dict[Any, list[dict[str, Any]]] = {}
_connections: dict[Any, asyncio.Task[_Connection]] = {}


class McpServer:
    """An MCP server over stdin and stdout, used as a source of tools.

    The server starts with the first environment of a process. All environments of the
    process share it, so its state outlives episodes. If it dies, it is restarted.

    Args:
        command: Program to start, e.g. ``"python"``.
        args: Arguments of the program.
        env: Environment variables beside those that MCP passes on.
        tools: Names of the tools to use; None: all.
        start_timeout_s: Time to start and to list the tools, in seconds.
        timeout_s, retries, cost: As in :class:`ToolSettings`, for each of its tools.

    Raises:
        MissingExtraError: If the package ``mcp`` is not installed.
    """

    def __init__(
        self,
        command: str,
        args: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        tools: Sequence[str] | None = None,
        start_timeout_s: float = 30.0,
        timeout_s: float = 30.0,
        retries: int = 1,
        cost: float = 0.0,
    ):
        _import()
        self.command, self.args, self.env = command, list(args), dict(env or {})
        self.tools = None if tools is None else list(tools)
        self.start_timeout_s = start_timeout_s
        self.settings = ToolSettings(timeout_s=timeout_s, retries=retries, cost=cost)

    @property
    def _key(self) -> Any:
        return self.command, *self.args, *sorted(self.env.items())

    def as_tools(self) -> list[Tool]:
        """Return the server's tools, starting it if it is not running.

        Raises:
            ToolUnavailable: If the server does not start or does not answer.
            ConfigError: If the server lacks one of ``tools``.
        """
        if self._key not in _listed:
            _listed[self._key] = self._wait(self._list())
        tools = {
            listed["name"]: Tool(
                listed["name"],
                {"type": "function", "function": listed},
                functools.partial(self._call, listed["name"]),
                self.settings,
            )
            for listed in _listed[self._key]
        }
        for name in self.tools or ():
            if name not in tools:
                raise ConfigError(
                    f"The MCP server {self.command!r} has no tool {name!r}. Use one of "
                    f"its tools: {', '.join(tools) or 'none'}."
                )
        return [t for name, t in tools.items() if name in (self.tools or tools)]

    def close(self) -> None:
        """Stop the server, if this process has started it."""
        self._wait(self._close())

    def _wait(self, work: Any) -> Any:
        future = asyncio.run_coroutine_threadsafe(work, running.background_loop())
        return future.result()

    async def _list(self) -> list[dict[str, Any]]:
        session = await self._session()
        types, listed, cursor = _import().types, [], None
        while True:
            page = await session.list_tools(
                params=types.PaginatedRequestParams(cursor=cursor)
            )
            page_fields = page.model_dump(
                by_alias=True
            )  # names as sent, in mcp 1 and 2
            listed += page_fields["tools"]
            cursor = page_fields.get("nextCursor")
            if not cursor:
                break
        return [
            {
                "name": tool["name"],
                "description": tool.get("description") or tool["name"],
                "parameters": tool["inputSchema"],
            }
            for tool in listed
        ]

    async def _call(self, tool_name: str, /, **arguments: Any) -> str:
        session = await self._session()
        try:
            result = await session.call_tool(tool_name, arguments)
        except Exception as error:  # errors of the tool itself arrive as a result
            await self._close()
            raise _unavailable(self.command, error) from error
        result_fields = result.model_dump(by_alias=True)
        text = "\n".join(
            part["text"] if part["type"] == "text" else f"({part['type']})"
            for part in result_fields["content"]
        )
        if result_fields.get("isError"):
            raise ValueError(text)
        return text

    async def _session(self) -> Any:
        """Return the session, starting the server if it is not running."""
        key = (asyncio.get_running_loop(), self._key)
        if key not in _connections:
            connection = _Connection(self)
            _connections[key] = asyncio.ensure_future(connection.open())
        try:
            # Other calls may await the same start: do not cancel it with this one.
            return (await asyncio.shield(_connections[key])).session
        except Exception as error:  # processes, pipes and anyio raise many types
            _connections.pop(key, None)
            raise _unavailable(self.command, error) from error

    async def _close(self) -> None:
        opened = _connections.pop((asyncio.get_running_loop(), self._key), None)
        if opened is not None and opened.done() and opened.exception() is None:
            await opened.result().close()


class _Connection:
    """A running server, opened and closed in one task, which anyio requires."""

    def __init__(self, server: McpServer):
        self._server = server
        self.session: Any = None

    async def open(self) -> _Connection:
        """Start the server."""
        self._opened = asyncio.get_running_loop().create_future()
        self._ended = asyncio.Event()
        self._task = asyncio.ensure_future(self._run())
        try:
            limit = self._server.start_timeout_s
            await asyncio.wait_for(asyncio.shield(self._opened), limit)
        except BaseException:
            # Cancellation as well: no other code would end the server.
            self._task.cancel()
            raise
        return self

    async def close(self) -> None:
        """End the server."""
        self._ended.set()
        await asyncio.wait([self._task], timeout=5.0)

    async def _run(self) -> None:
        mcp = _import()
        server = self._server
        from mcp.client.stdio import get_default_environment, stdio_client

        parameters = mcp.StdioServerParameters(
            command=server.command,
            args=server.args,
            env={**get_default_environment(), **server.env},
        )
        try:
            async with (
                stdio_client(parameters) as (read, write),
                mcp.ClientSession(read, write) as session,
            ):
                await session.initialize()
                self.session = session
                self._opened.set_result(None)
                await self._ended.wait()
        except Exception as error:  # any type: open() raises it
            if not self._opened.done():
                self._opened.set_exception(error)


def _unavailable(command: str, error: Exception) -> ToolUnavailable:
    what = str(error) or type(error).__name__
    return ToolUnavailable(
        f"The MCP server {command!r} does not answer: {what}. Check that the command "
        "starts an MCP server on its standard input and output."
    )


def _import() -> Any:
    try:
        import mcp
    except ImportError as error:
        raise MissingExtraError.for_extra("mcp", "mcp") from error
    return mcp
