"""Servers of tiny policies, in this process."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from team_helpers import Run, single_config

PACKAGES = ("starlette", "prometheus_client", "httpx")


class InProcess:
    """A PolicyServer, asked without a network.

    Attributes:
        server: The server.
    """

    def __init__(self, config, key=None):
        from rllib_llm.serving.app import PolicyServer

        self.run = Run(config, learner=False)
        self.server = PolicyServer(self.run.runner, key)
        self.app = self.server.app()

    def session(self, function):
        """Run ``function(client)``, a coroutine, with a client of the application."""
        import httpx

        async def main():
            # Answers to failures are part of the test, so they are not raised.
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://test", timeout=60.0
            ) as client:
                return await function(client)

        return asyncio.run(main())

    def post(self, path="/v1/chat/completions", headers=None, **body):
        """Return status and parsed body of the answer to one request."""
        answer = self.session(
            lambda client: client.post(path, json=body, headers=headers)
        )
        return answer.status_code, answer.json()

    def get(self, path, **headers):
        """Return the answer to a GET request."""
        return self.session(lambda client: client.get(path, headers=headers))

    def close(self):
        self.server.close()
        self.run.runner.stop()


def require_packages():
    """Skip the test without the packages of a server."""
    for package in PACKAGES:
        pytest.importorskip(package)


@contextlib.contextmanager
def serving(config=None, key=None):
    """Yield a server, closed at the end; by default of one policy."""
    require_packages()
    one = InProcess(config or single_config(), key)
    try:
        yield one
    finally:
        one.close()
