"""Open connections to MCP servers, over stdin and stdout or over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from rllib_llm.errors import MissingExtraError

_CLOSE_S = 5.0


class Program:
    """A server that is started as a child process.

    Args:
        command, args: Program to start, and its arguments.
        env: Environment variables beside those that MCP passes on.
    """

    remedy = (
        "Check that the command starts an MCP server on its standard input and output."
    )

    def __init__(self, command: str, args: Sequence[str], env: Mapping[str, str]):
        self.name, self.args, self.env = command, list(args), dict(env)

    @property
    def key(self) -> Any:
        """Equal for servers that can share a process."""
        return "program", self.name, *self.args, *sorted(self.env.items())

    @asynccontextmanager
    async def streams(self, connect_s: float) -> AsyncIterator[Any]:
        """Start the program; yield what to read from and what to write to."""
        from mcp.client.stdio import get_default_environment, stdio_client

        parameters = import_mcp().StdioServerParameters(
            command=self.name,
            args=self.args,
            env={**get_default_environment(), **self.env},
        )
        async with stdio_client(parameters) as (read, write):
            yield read, write


class Address:
    """A running server, reached over streamable HTTP.

    Args:
        url: Address of its endpoint.
        headers: HTTP headers of every request.
    """

    remedy = (
        "Check that an MCP server with the transport streamable HTTP runs at this "
        "address (its path is often /mcp), and that headers grant access."
    )

    def __init__(self, url: str, headers: Mapping[str, str]):
        self.name, self.headers = url, dict(headers)

    @property
    def key(self) -> Any:
        """Equal for servers that can share a session."""
        return "address", self.name, *sorted(self.headers.items())

    @asynccontextmanager
    async def streams(self, connect_s: float) -> AsyncIterator[Any]:
        """Open a session; yield what to read from and what to write to."""
        from mcp.client import streamable_http

        # mcp 2 takes clients of httpx2, mcp 1 those of httpx.
        httpx: Any = (
            vars(streamable_http).get("httpx2") or vars(streamable_http)["httpx"]
        )
        # Calls have their own limit: see McpServer.
        limits = httpx.Timeout(connect_s, read=None)
        async with (
            httpx.AsyncClient(headers=self.headers, timeout=limits) as client,
            streamable_http.streamable_http_client(
                self.name, http_client=client
            ) as opened,
        ):
            yield opened[:2]  # mcp 1 adds a function


class Connection:
    """A session with a server, opened and closed in one task, as anyio requires."""

    def __init__(self, server: Program | Address, connect_s: float):
        self._server, self._connect_s = server, connect_s
        self._error: Exception | None = None
        self.session: Any = None

    async def open(self) -> Connection:
        """Start the server or reach it, and agree on a version of the protocol."""
        self._opened = asyncio.get_running_loop().create_future()
        self._ended = asyncio.Event()
        self._task = asyncio.ensure_future(self._run())
        try:
            await asyncio.wait_for(asyncio.shield(self._opened), self._connect_s)
        except TimeoutError as error:
            self._give_up()
            raise TimeoutError(f"no answer in {self._connect_s:g} s") from error
        except BaseException:
            # Cancellation as well: no other code would end the server.
            self._give_up()
            raise
        return self

    def _give_up(self) -> None:
        self._opened.cancel()  # nothing will read a later error
        self._task.cancel()

    async def ask(self, request: Any) -> Any:
        """Return the answer to a request; raise if the connection ends before it.

        Raises:
            ConnectionError: If the connection ends.
        """
        answer = asyncio.ensure_future(request)
        try:
            await asyncio.wait(
                {answer, self._task}, return_when=asyncio.FIRST_COMPLETED
            )
            if self._task.done():
                reason = self._error or "the connection was closed"
                raise ConnectionError(str(reason) or type(reason).__name__)
            return answer.result()
        finally:
            answer.cancel()

    async def close(self) -> None:
        """End the session, and the server if it is a child process."""
        self._ended.set()
        await asyncio.wait([self._task], timeout=_CLOSE_S)
        self._task.cancel()  # where an HTTP server does not answer

    async def _run(self) -> None:
        try:
            async with (
                self._server.streams(self._connect_s) as (read, write),
                import_mcp().ClientSession(read, write) as session,
            ):
                await session.initialize()
                self.session = session
                self._opened.set_result(None)
                await self._ended.wait()
        except Exception as error:  # processes, sockets and anyio raise many types
            self._error = _first(error)
            if not self._opened.done():
                self._opened.set_exception(self._error)
        finally:
            if not self._opened.done():
                self._opened.cancel()


def _first(error: Exception) -> Exception:
    """Return the first error inside of the groups that anyio raises."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def import_mcp() -> Any:
    """Import the package ``mcp``.

    Raises:
        MissingExtraError: If it is not installed.
    """
    try:
        import mcp
    except ImportError as error:
        raise MissingExtraError.for_extra("mcp", "mcp") from error
    return mcp
