"""Tools of MCP servers (Model Context Protocol) that are started as processes."""

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
    """A server that speaks MCP over stdin and stdout; its tools are tools.

    It is started with the first environment of a process and shared by all of them:
    what it remembers outlives episodes. If it dies, it is started anew.

    Args:
        command: What to start, e.g. ``"python"``.
        args: Its arguments.
        env: Environment variables beside those that MCP passes on.
        tools: Names of the tools to use; None: all.
        start_timeout_s: Seconds it may take to start and list its tools.
        timeout_s, retries, cost: As in :class:`ToolSettings`, for each of its tools.

    Raises:
        MissingExtraError: If the package ``mcp`` is missing.
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
        """Start the server if it is not running, and return its tools.

        Raises:
            ToolUnavailable: If it does not start or does not answer.
            ConfigError: If one of ``tools`` is not there.
        """
        if self._key not in _listed:
            _listed[self._key] = self._wait(self._list())
        found = {
            listed["name"]: Tool(
                listed["name"],
                {"type": "function", "function": listed},
                functools.partial(self._call, listed["name"]),
                self.settings,
            )
            for listed in _listed[self._key]
        }
        for name in self.tools or ():
            if name not in found:
                raise ConfigError(
                    f"The MCP server {self.command!r} has no tool {name!r}. It has "
                    f"{', '.join(found) or 'none'}."
                )
        return [t for name, t in found.items() if name in (self.tools or found)]

    def close(self) -> None:
        """End the server, if this process has started it."""
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
            told = page.model_dump(by_alias=True)  # names as sent, in mcp 1 and 2
            listed += told["tools"]
            cursor = told.get("nextCursor")
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
        except Exception as error:  # what the tool says comes as a result
            await self._close()
            raise _unavailable(self.command, error) from error
        told = result.model_dump(by_alias=True)
        text = "\n".join(
            part["text"] if part["type"] == "text" else f"({part['type']})"
            for part in told["content"]
        )
        if told.get("isError"):
            raise ValueError(text)
        return text

    async def _session(self) -> Any:
        """Return the session, starting the server if it is not running."""
        key = (asyncio.get_running_loop(), self._key)
        if key not in _connections:
            connection = _Connection(self)
            _connections[key] = asyncio.ensure_future(connection.open())
        try:
            # Others may wait for it too: do not cancel it with this call.
            return (await asyncio.shield(_connections[key])).session
        except Exception as error:
            _connections.pop(key, None)
            raise _unavailable(self.command, error) from error

    async def _close(self) -> None:
        opened = _connections.pop((asyncio.get_running_loop(), self._key), None)
        if opened is not None and opened.done() and opened.exception() is None:
            await opened.result().close()


class _Connection:
    """A running server; one task opens and closes it, as anyio demands."""

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
        except Exception as error:
            if not self._opened.done():
                self._opened.set_exception(error)


def _unavailable(command: str, error: Exception) -> ToolUnavailable:
    what = str(error) or type(error).__name__
    return ToolUnavailable(f"The MCP server {command!r} does not answer: {what}")


def _import() -> Any:
    try:
        import mcp
    except ImportError as error:
        raise MissingExtraError.for_extra("mcp", "mcp") from error
    return mcp
