"""Episodes whose server cannot be reached are dropped, never rewarded with zero."""

from __future__ import annotations

import pytest
from runner_helpers import make_runner

from rllib_llm.data.types import TurnResult
from rllib_llm.envs import TextEnv
from rllib_llm.envs.adapters.openenv_client import OpenEnvSession
from rllib_llm.tools import McpServer, ToolSet

NOWHERE = "http://127.0.0.1:1"


class Calling(TextEnv):
    """Every turn calls a tool of a server."""

    def start(self, rng) -> str:
        """Ask."""
        return "Call a tool."

    def reply(self, action) -> TurnResult:
        """Call."""
        ToolSet(McpServer(url=NOWHERE, start_timeout_s=5))
        return TurnResult("Called.", terminated=True)


class Served(Calling):
    """Every turn opens a session."""

    def reply(self, action) -> TurnResult:
        """Open it."""
        OpenEnvSession(NOWHERE, 5.0).reset()
        return TurnResult("Opened.", terminated=True)


@pytest.mark.parametrize(("env", "package"), [(Calling, "mcp"), (Served, "websockets")])
def test_its_episodes_are_counted_as_failed(env, package):
    pytest.importorskip(package)
    runner = make_runner(env, max_failed_fraction=1.0, max_retries=0)
    assert runner.sample(num_episodes=2) == []
    assert runner.get_metrics()["num_episodes_failed"].peek() == 2
