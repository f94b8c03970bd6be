"""Tools of MCP servers (Model Context Protocol): programs, and addresses over HTTP."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from rllib_llm.errors import ConfigError
from rllib_llm.tools import running
from rllib_llm.tools.mcp_connection import Address, Connection, Program, import_mcp
from rllib_llm.tools.tool import Tool, ToolSettings, ToolTimeout, ToolUnavailable

_PING_S = 5.0  # a working server answers at once, whatever its tools do
_listed: dict[Any, list[dict[str, Any]]] = {}
_connections: dict[Any, asyncio.Task[Connection]] = {}


class McpServer:
    """An MCP server, used as a source of tools: a program or an address.

    A program (``command``) is started with the first environment of a process and used
    over stdin and stdout. An address (``url``) is that of a running server with the
    transport streamable HTTP. All environments of the process share the connection, so
    the server's state outlives episodes. If it ends, the next call opens it again.

    Args:
        command: Program to start, e.g. ``"python"``; None with ``url``.
        args: Arguments of the program.
        env: Environment variables beside those that MCP passes on.
        url: Address of a running server, e.g. ``"http://localhost:8000/mcp"``.
        headers: HTTP headers for ``url``, e.g. ``{"Authorization": "Bearer ..."}``.
        tools: Names of the tools to use; None: all.
        start_timeout_s: Time to start or to reach the server, and time to list its
            tools, each in seconds.
        timeout_s, retries, cost: As in :class:`ToolSettings`, for each of its tools. If
            a server at an address answers neither a call in ``timeout_s`` nor a ping in
            five seconds after it, it counts as unavailable.

    Raises:
        MissingExtraError: If the package ``mcp`` is not installed.
        ConfigError: If neither or both of ``command`` and ``url`` are given, ``url`` is
            not an HTTP address, or a setting belongs to the other kind of server.
    """

    def __init__(
        self,
        command: str | None = None,
        args: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        url: str | None = None,
        headers: Mapping[str, str] | None = None,
        tools: Sequence[str] | None = None,
        start_timeout_s: float = 30.0,
        timeout_s: float = 30.0,
        retries: int = 1,
        cost: float = 0.0,
    ):
        import_mcp()
        _check(command, args, env, url, headers)
        self.server: Program | Address
        if command is not None:
            self.server = Program(command, args, env or {})
        else:
            self.server = Address(url or "", headers or {})
        self.tools = None if tools is None else list(tools)
        self.start_timeout_s = start_timeout_s
        self.settings = ToolSettings(timeout_s=timeout_s, retries=retries, cost=cost)

    @property
    def _key(self) -> Any:
        return self.server.key

    def as_tools(self) -> list[Tool]:
        """Return the server's tools, starting or reaching it if it is not connected.

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
                connect_s=self.start_timeout_s + 2 * _PING_S,
            )
            for listed in _listed[self._key]
        }
        for name in self.tools or ():
            if name not in tools:
                raise ConfigError(
                    f"The MCP server {self.server.name!r} has no tool {name!r}. Use "
                    f"one of its tools: {', '.join(tools) or 'none'}."
                )
        return [t for name, t in tools.items() if name in (self.tools or tools)]

    def close(self) -> None:
        """End the connection, and the program, if this process has started it."""
        self._wait(self._close(None))

    def _wait(self, work: Any) -> Any:
        future = asyncio.run_coroutine_threadsafe(work, running.background_loop())
        return future.result()

    async def _list(self) -> list[dict[str, Any]]:
        connection = await self._connection()
        try:
            listed = await asyncio.wait_for(
                connection.ask(_each_page(connection.session)), self.start_timeout_s
            )
        except Exception as error:
            await self._close(connection)
            raise self._unavailable(error) from error
        return [
            {
                "name": tool["name"],
                "description": tool.get("description") or tool["name"],
                "parameters": tool["inputSchema"],
            }
            for tool in listed
        ]

    async def _call(self, tool_name: str, /, **arguments: Any) -> str:
        connection = await self._connection()
        request = connection.session.call_tool(tool_name, arguments)
        limit = self.settings.timeout_s
        try:
            result = await asyncio.wait_for(connection.ask(request), limit)
        except TimeoutError as error:
            await self._require_ping(connection)
            raise ToolTimeout from error
        except Exception as error:  # errors of the tool itself arrive as a result
            await self._close(connection)
            raise self._unavailable(error) from error
        result_fields = result.model_dump(by_alias=True)
        text = "\n".join(
            part["text"] if part["type"] == "text" else f"({part['type']})"
            for part in result_fields["content"]
        )
        if result_fields.get("isError"):
            raise ValueError(text)
        return text

    async def _require_ping(self, connection: Connection) -> None:
        """Distinguish a slow tool from a server that cannot be reached any more."""
        if isinstance(self.server, Program):
            return  # its death ends the connection; a slow tool may block its answers
        try:
            await asyncio.wait_for(
                connection.ask(connection.session.send_ping()), _PING_S
            )
        except Exception as error:
            await self._close(connection)
            silent = f"no answer to a call in {self.settings.timeout_s:g} s, nor to a "
            raise self._unavailable(TimeoutError(silent + "ping after it")) from error

    async def _connection(self) -> Connection:
        """Return the connection, opening it if there is none."""
        key = (asyncio.get_running_loop(), self._key)
        opening = _connections.get(key)
        if opening is None:
            connection = Connection(self.server, self.start_timeout_s)
            opening = _connections[key] = asyncio.ensure_future(connection.open())
        try:
            # Other calls may await the same start: do not cancel it with this one.
            return await asyncio.shield(opening)
        except Exception as error:  # processes, sockets and anyio raise many types
            _connections.pop(key, None)
            raise self._unavailable(error) from error

    async def _close(self, used: Connection | None) -> None:
        """End the connection; if ``used`` is given, unless another has replaced it."""
        key = (asyncio.get_running_loop(), self._key)
        opening = _connections.get(key)
        if opening is None or not opening.done() or _has_failed(opening):
            return
        if used is None or opening.result() is used:
            del _connections[key]
            await opening.result().close()

    def _unavailable(self, error: Exception) -> ToolUnavailable:
        what = str(error) or type(error).__name__
        return ToolUnavailable(
            f"The MCP server {self.server.name!r} does not answer: {what}. "
            f"{self.server.remedy}"
        )


def _has_failed(opening: asyncio.Task[Connection]) -> bool:
    return opening.cancelled() or opening.exception() is not None


async def _each_page(session: Any) -> list[dict[str, Any]]:
    types, listed, cursor = import_mcp().types, [], None
    while True:
        page = await session.list_tools(
            params=types.PaginatedRequestParams(cursor=cursor)
        )
        page_fields = page.model_dump(by_alias=True)  # names as sent, in mcp 1 and 2
        listed += page_fields["tools"]
        cursor = page_fields.get("nextCursor")
        if not cursor:
            return listed


def _check(
    command: str | None, args: Sequence[str], env: Any, url: str | None, headers: Any
) -> None:
    if (command is None) == (url is None):
        raise ConfigError(
            f"McpServer(command={command!r}, url={url!r}) needs exactly one of the "
            "two: command for a program to start, url for a running server."
        )
    kind, wrong = ("url", {"args": args, "env": env})
    if url is None:
        kind, wrong = ("command", {"headers": headers})
    for name, value in wrong.items():
        if value:
            raise ConfigError(
                f"McpServer({name}={value!r}) has no effect with {kind}=. Remove it."
            )
    if url is not None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"url={url!r} is not an address of an MCP server. Write http:// or "
                "https://, a host and a path, e.g. 'http://localhost:8000/mcp'."
            )
