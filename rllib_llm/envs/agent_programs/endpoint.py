"""HTTP server of the OpenAI-compatible endpoint, one per process."""

from __future__ import annotations

import asyncio
import collections
import hashlib
import hmac
import importlib.util
import logging
import os
import threading
from typing import TYPE_CHECKING, Any

from rllib_llm.envs.agent_programs.session import Session
from rllib_llm.errors import MissingExtraError
from rllib_llm.openai_api import responses
from rllib_llm.openai_api.request_fields import (
    BODY_TIMEOUT_S,
    MOST_BODY_BYTES,
    RequestError,
    http_error,
    late_body,
    parse_json,
)
from rllib_llm.openai_api.requests import (
    ParsedCall,
    parse_chat,
    parse_completion,
)
from rllib_llm.openai_api.responses import Choice

if TYPE_CHECKING:
    from aiohttp import web

_MOST_ENDED = 10_000  # episodes whose end is remembered
_START_TIMEOUT_S = 30.0
_BACKLOG = 1024

logger = logging.getLogger("rllib_llm")


class Endpoint:
    """Serves the requests of all running episodes of this process.

    The server runs in a thread of its own and listens on 127.0.0.1 only. Episodes have
    addresses of their own, ``{url}/episodes/NAME/v1``.

    Raises:
        MissingExtraError: Without the package ``aiohttp`` (extra ``agents``).
    """

    _lock = threading.Lock()
    _running: Endpoint | None = None

    def __init__(self) -> None:
        if importlib.util.find_spec("aiohttp") is None:
            raise MissingExtraError.for_extra("aiohttp", "agents")
        self._sessions: dict[str, Session] = {}
        self._ended: collections.OrderedDict[str, Session] = collections.OrderedDict()
        self._guard = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        started = threading.Event()
        self.port = 0
        self._error: BaseException | None = None
        threading.Thread(
            target=self._run, args=(started,), daemon=True, name="agent_endpoint"
        ).start()
        if not started.wait(_START_TIMEOUT_S):
            raise TimeoutError(
                f"The endpoint did not start within {_START_TIMEOUT_S:g} s. Check that "
                "this machine is not overloaded."
            )
        if self._error is not None:
            raise self._error

    @classmethod
    def of_process(cls) -> Endpoint:
        """Return the endpoint of this process, started at the first call."""
        with cls._lock:
            running = cls._running
            # A forked process has the object, but not its thread.
            if running is None or running._pid != os.getpid():
                running = cls._running = cls()
            return running

    def open(self, session: Session) -> str:
        """Accept an episode's requests; return its base address."""
        with self._guard:
            self._sessions[session.episode] = session
        return f"http://127.0.0.1:{self.port}/episodes/{session.episode}/v1"

    def close(self, session: Session, reason: str) -> None:
        """Refuse an episode's requests from now on, waiting ones included."""
        session.close(reason)
        with self._guard:
            if self._sessions.pop(session.episode, None) is not None:
                self._ended[session.episode] = session
                if len(self._ended) > _MOST_ENDED:
                    self._ended.popitem(last=False)

    @property
    def num_episodes(self) -> int:
        """Number of episodes that accept requests."""
        return len(self._sessions)

    # Server ---------------------------------------------------------------------------

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self.port = self._loop.run_until_complete(self._start())
        except BaseException as error:  # the caller's thread raises it
            self._error = error
            return
        finally:
            started.set()
        self._loop.run_forever()

    async def _start(self) -> int:
        from aiohttp import web

        app = web.Application(
            client_max_size=MOST_BODY_BYTES, middlewares=[_as_json_errors()]
        )
        at = "/episodes/{episode}/v1"
        app.router.add_post(f"{at}/chat/completions", self._chat)
        app.router.add_post(f"{at}/completions", self._completion)
        app.router.add_get(f"{at}/models", self._models)
        app.router.add_get(f"{at}/models/{{model}}", self._model)
        # Cancellation is how a handler learns that its program has disconnected.
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=_BACKLOG)
        await site.start()
        return runner.addresses[0][1]

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        session, body = await self._accepted(request)
        call = parse_chat(parse_json(body), session.models)
        return await self._answer(request, session, call, body)

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        session, body = await self._accepted(request)
        call = parse_completion(parse_json(body), session.models)
        return await self._answer(request, session, call, body)

    async def _models(self, request: web.Request) -> web.Response:
        from aiohttp import web

        session = self._session(request)
        return web.json_response(responses.models(list(session.models.sampling)))

    async def _model(self, request: web.Request) -> web.Response:
        from aiohttp import web

        session, name = self._session(request), request.match_info["model"]
        session.models.require(name)
        return web.json_response(responses.model(name))

    async def _accepted(self, request: web.Request) -> tuple[Session, bytes]:
        """Return the session of a request whose key is right, and its body."""
        session = self._session(request)
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                return session, await request.read()
        except TimeoutError as error:
            raise late_body() from error

    def _session(self, request: web.Request) -> Session:
        name = request.match_info["episode"]
        with self._guard:
            session = self._sessions.get(name) or self._ended.get(name)
        if session is None:
            raise RequestError(
                f"There is no episode {name[:40]!r} here. Use the base_url that the "
                "program received.",
                status=404,
                code="episode_not_found",
            )
        self._check_key(request.headers.get("Authorization", ""), session)
        session.require_running()
        return session

    def _check_key(self, header: str, session: Session) -> None:
        kind, _, key = header.partition(" ")
        given = key.strip().encode(errors="replace")
        if kind.lower() == "bearer" and hmac.compare_digest(
            given, session.key.encode()
        ):
            return
        with self._guard:
            others = list(self._sessions.values())
        if any(hmac.compare_digest(given, other.key.encode()) for other in others):
            raise RequestError(
                "The key is that of another episode. Use the key that the program "
                "received with this base_url.",
                status=403,
                code="wrong_episode",
            )
        raise RequestError(
            "The key is missing or wrong. Send the key that the program received, as "
            "'Authorization: Bearer KEY'.",
            status=401,
            code="invalid_api_key",
        )

    async def _answer(
        self, request: web.Request, session: Session, call: ParsedCall, body: bytes
    ) -> web.StreamResponse:
        from aiohttp import web

        digest = hashlib.blake2b(request.path.encode() + b"\0" + body).hexdigest()
        calls = session.submit(call, digest)
        try:
            choices: list[Choice] = await asyncio.gather(*(c.future for c in calls))
        except RequestError:
            session.finish(calls)
            raise
        except asyncio.CancelledError:  # the program has disconnected
            session.orphan(calls)
            raise
        answer = web.StreamResponse()
        if call.stream:
            answer.content_type = "text/event-stream"
            answer.headers["Cache-Control"] = "no-store"
        else:
            answer = web.json_response(responses.response(call, choices))
        try:
            await answer.prepare(request)
            if call.stream:
                for chunk in responses.chunks(call, choices):
                    await answer.write(chunk)
            await answer.write_eof()
        except (asyncio.CancelledError, ConnectionError) as error:
            session.orphan(calls)
            if isinstance(error, asyncio.CancelledError):
                raise
        else:
            session.finish(calls)
        return answer


def _as_json_errors() -> Any:
    """Return the middleware that answers errors in the form of OpenAI's API."""
    from aiohttp import web

    @web.middleware
    async def middleware(request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            return await handler(request)
        except RequestError as error:
            return web.json_response(error.body(), status=error.status)
        except web.HTTPException as error:
            refused = http_error(error.status, error.reason)
            return web.json_response(refused.body(), status=error.status)
        except Exception as error:
            logger.exception("The endpoint failed on %s", request.path)
            failed = RequestError(
                f"The endpoint failed: {type(error).__name__}. See the log of the "
                "EnvRunner.",
                status=500,
                code="internal_error",
            )
            return web.json_response(failed.body(), status=500)

    return middleware
