"""ASGI application with OpenAI's API for the policies of one EnvRunner."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from rllib_llm.engines.base import Generation
from rllib_llm.errors import ConfigError, RLlibLLMError
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
    ServedModels,
    parse_chat,
    parse_completion,
)
from rllib_llm.openai_api.responses import Choice, Events, choice_of
from rllib_llm.serving.engine_loop import EngineLoop, EngineStoppedError
from rllib_llm.serving.metrics import CONTENT_TYPE, ServerMetrics
from rllib_llm.serving.policies import PolicyModel, policy_models
from rllib_llm.serving.team import TEAM, TeamModel, team_problem

if TYPE_CHECKING:
    from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner

_PAGE = "docs/serving.md"
_TEAM_THREADS = 64
_CLOSED = 499  # a status of nginx, for metrics: the client has disconnected
_T = TypeVar("_T")
logger = logging.getLogger("rllib_llm")


class PolicyServer:
    """Answers requests to the policies of an EnvRunner, in shared batches.

    Args:
        runner: The EnvRunner.
        key: Key that requests must carry; None: none.

    Raises:
        ConfigError: If no policy of the run writes text.
    """

    def __init__(self, runner: LLMEnvRunner, key: str | None = None):
        if not runner.engines:
            raise ConfigError(
                f"The policies {', '.join(runner.config.module_ids)} choose among "
                "listed actions, act in numbers or are scripted; none writes text, so "
                "none can be served."
            )
        self._key = key
        self.loop = EngineLoop(runner.engines.values(), runner.num_threads)
        self.policies = policy_models(runner, self.loop)
        problem = team_problem(runner)
        self.team = None if problem else TeamModel(runner, self.loop)
        self._no_team = problem
        sampling = {name: model.sampling for name, model in self.policies.items()}
        if self.team is not None:
            sampling[TEAM] = self.team.sampling
        self.models = ServedModels(sampling, trains=False, page=_PAGE)
        self.metrics = ServerMetrics()
        self._threads = ThreadPoolExecutor(_TEAM_THREADS, "serving_team")

    def require_healthy(self) -> None:
        """Raise an EngineStoppedError if the engine has failed."""
        if self.loop.failure is not None:
            raise EngineStoppedError(self.loop.failure)

    def close(self) -> None:
        """Stop the engines' thread; unfinished requests fail."""
        self.loop.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def app(self) -> Starlette:
        """Return the ASGI application, whose shutdown closes the server."""

        @contextlib.asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            yield
            await asyncio.to_thread(self.close)

        app = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/metrics", self._metrics),
                Route("/v1/models", self._list_models),
                Route("/v1/models/{model:path}", self._model),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/completions", self._completion, methods=["POST"]),
            ],
            exception_handlers={
                RequestError: _answer_error,
                EngineStoppedError: _answer_error,
                HTTPException: _answer_http_error,
                Exception: _answer_error,
            },
            lifespan=lifespan,
        )
        app.state.server = self
        return app

    # Routes ---------------------------------------------------------------------------

    async def _health(self, request: Request) -> Response:
        self.require_healthy()
        return JSONResponse({"status": "ok", "running": self.loop.num_pending})

    async def _metrics(self, request: Request) -> Response:
        text = await asyncio.to_thread(self.metrics.text)
        return Response(text, media_type=CONTENT_TYPE)

    async def _list_models(self, request: Request) -> Response:
        self._check_key(request)
        return JSONResponse(responses.models(list(self.models.sampling)))

    async def _model(self, request: Request) -> Response:
        self._check_key(request)
        name = request.path_params["model"]
        self._require_model(name)
        return JSONResponse(responses.model(name))

    async def _chat(self, request: Request) -> Response:
        return await self._measured(request, parse_chat)

    async def _completion(self, request: Request) -> Response:
        return await self._measured(request, parse_completion)

    def _check_key(self, request: Request) -> None:
        if self._key is None:
            return
        kind, _, key = request.headers.get("Authorization", "").partition(" ")
        given = key.strip().encode(errors="replace")
        if kind.lower() != "bearer" or not hmac.compare_digest(
            given, self._key.encode()
        ):
            raise RequestError(
                "The key is missing or wrong. Send the server's key, as "
                "'Authorization: Bearer KEY'.",
                status=401,
                code="invalid_api_key",
            )

    def _require_model(self, name: str) -> None:
        if name == TEAM and self._no_team is not None and TEAM not in self.policies:
            raise RequestError(
                f"This run has no model {TEAM!r}: {self._no_team} Its models are "
                f"{', '.join(self.models.sampling)}.",
                status=404,
                code="model_not_found",
                param="model",
            )
        self.models.require(name)

    async def _measured(
        self, request: Request, parse: Callable[[Any, ServedModels], ParsedCall]
    ) -> Response:
        """Answer a request, and count it when its response has ended."""
        account = _Account(self.metrics, request.url.path)
        try:
            self._check_key(request)
            body = parse_json(await _body(request))
            model = body.get("model") if isinstance(body, dict) else None
            if isinstance(model, str) and model:
                self._require_model(model)
            call = parse(body, self.models)
            account.model = call.model
            return await self._answer(request, call, account)
        except RequestError as error:
            account.close(error.status)
            raise
        except ClientDisconnect:
            account.close(_CLOSED)
            return Response(status_code=_CLOSED)
        except EngineStoppedError as error:
            account.close(503)
            raise _unavailable(error) from error
        except BaseException as error:
            is_cancelled = isinstance(error, asyncio.CancelledError)
            account.close(_CLOSED if is_cancelled else 500)
            raise

    # Answers --------------------------------------------------------------------------

    async def _answer(
        self, request: Request, call: ParsedCall, account: _Account
    ) -> Response:
        self.require_healthy()  # before a stream begins, which has status 200
        if self.team is not None and call.model == TEAM:
            reply = self._team_choices(self.team, call)
        else:
            model = self.policies[call.model]
            try:
                prompt = model.prompt(call)
            except RLlibLLMError as error:
                code = getattr(error, "code", "invalid_request")
                raise RequestError(str(error), code=code) from error
            if call.stream and not (call.tools or call.logprobs or call.token_ids):
                events = self._stream(model, call, prompt, account)
                return _event_stream(events)
            reply = self._policy_choices(model, call, prompt)
        choices = await _until_disconnect(request, reply)
        account.count(choices)
        account.close(200)
        if not call.stream:
            return JSONResponse(responses.response(call, choices))
        whole = list(responses.chunks(call, choices))

        async def events_of() -> AsyncIterator[bytes]:
            for each in whole:
                yield each

        return _event_stream(events_of())

    async def _team_choices(self, team: TeamModel, call: ParsedCall) -> list[Choice]:
        question = team.check(call)
        running = asyncio.get_running_loop()
        replies = await asyncio.gather(
            *(
                running.run_in_executor(self._threads, team.reply, call, question, i)
                for i in range(call.samples)
            )
        )
        return [choice_of(call, reply) for reply in replies]

    async def _policy_choices(
        self, model: PolicyModel, call: ParsedCall, prompt: list[int]
    ) -> list[Choice]:
        futures = [
            asyncio.wrap_future(model.generate(call, prompt, i))
            for i in range(call.samples)
        ]
        try:
            results = await asyncio.gather(*futures)
        finally:
            for future in futures:
                future.cancel()
        return [choice_of(call, model.reply(call, prompt, done)) for done in results]

    async def _stream(
        self, model: PolicyModel, call: ParsedCall, prompt: list[int], account: _Account
    ) -> AsyncIterator[bytes]:
        """Yield a response's events while its tokens are sampled."""
        events, status = Events(call), _CLOSED
        arrived: asyncio.Queue[tuple[int, list[int] | None]] = asyncio.Queue()
        running = asyncio.get_running_loop()

        def put(index: int, tokens: list[int] | None, _: object = None) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                running.call_soon_threadsafe(arrived.put_nowait, (index, tokens))

        futures = []
        try:
            for index in range(call.samples):
                arrival = functools.partial(put, index)
                future = model.generate(call, prompt, index, arrival)
                future.add_done_callback(functools.partial(put, index, None))
                futures.append(future)
                if call.is_chat:
                    yield events.opening(index)
            choices: dict[int, Choice] = {}
            sent = dict.fromkeys(range(call.samples), "")
            while len(choices) < call.samples:
                index, ids = await arrived.get()
                if ids is None:
                    done: Generation = futures[index].result()
                    choice = choice_of(call, model.reply(call, prompt, done))
                    choices[index] = choice
                    text = choice.message.content
                else:
                    text = model.text_so_far(call, ids)
                new, sent[index] = text[len(sent[index]) :], text
                if new:
                    yield events.text(index, new)
                if ids is None:
                    yield events.finish(index, choices[index].finish_reason)
            ordered = [choices[i] for i in range(call.samples)]
            account.count(ordered)
            status = 200
            for event in events.end(ordered):
                yield event
        except Exception as error:
            status = 503 if isinstance(error, EngineStoppedError) else 500
            yield events.error(_as_request_error(error))
        finally:
            for future in futures:
                future.cancel()
            account.close(status)


class _Account:
    """Counts of one request, written once."""

    def __init__(self, metrics: ServerMetrics, path: str):
        self._metrics, self._path, self._started = metrics, path, time.perf_counter()
        self._is_open = True
        self.model = ""  # only names of models: others would be labels without end
        metrics.running.inc()

    def count(self, choices: list[Choice]) -> None:
        """Count the tokens of a response."""
        usage = responses.usage(choices)
        self._metrics.count_tokens(
            self.model, usage["prompt_tokens"], usage["completion_tokens"]
        )

    def close(self, status: int) -> None:
        """Count the request with its status; later calls have no effect."""
        if not self._is_open:
            return
        self._is_open = False
        self._metrics.running.dec()
        self._metrics.requests.labels(self.model, self._path, str(status)).inc()
        seconds = time.perf_counter() - self._started
        self._metrics.seconds.labels(self.model, self._path).observe(seconds)


async def _body(request: Request) -> bytes:
    """Return a request's body, at most MOST_BODY_BYTES long."""
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for part in request.stream():
                size += len(part)
                if size > MOST_BODY_BYTES:
                    raise http_error(413, "Content Too Large")
                parts.append(part)
    except TimeoutError as error:
        raise late_body() from error
    return b"".join(parts)


async def _until_disconnect(request: Request, reply: Awaitable[_T]) -> _T:
    """Await a reply; give it up if the client disconnects."""
    replying = asyncio.ensure_future(reply)
    leaving = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({replying, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not replying.done():
            raise ClientDisconnect
        return replying.result()
    finally:
        for task in (replying, leaving):
            task.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _event_stream(events: AsyncIterator[bytes]) -> StreamingResponse:
    return StreamingResponse(
        events,
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store"},
    )


def _unavailable(error: EngineStoppedError) -> RequestError:
    return RequestError(str(error), status=503, code="unavailable")


def _as_request_error(error: BaseException) -> RequestError:
    if isinstance(error, RequestError):
        return error
    if isinstance(error, EngineStoppedError):
        return _unavailable(error)
    logger.error("The server failed", exc_info=error)
    return RequestError(
        f"The server failed: {type(error).__name__}. See the log of the replica.",
        status=500,
        code="internal_error",
    )


async def _answer_error(request: Request, error: Exception) -> Response:
    refused = _as_request_error(error)
    return JSONResponse(refused.body(), status_code=refused.status)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    refused = http_error(error.status_code, error.detail)
    return JSONResponse(refused.body(), status_code=error.status_code)
