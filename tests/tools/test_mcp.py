"""MCP servers as sources of tools, with a real server over stdio."""

from __future__ import annotations

import builtins
import os
import pickle
import sys
from pathlib import Path

import pytest

from rllib_llm.errors import ConfigError, MissingExtraError
from rllib_llm.tools import McpServer, ToolSet, ToolUnavailable

SERVER = str(Path(__file__).parent / "mcp_server.py")


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    real = builtins.__import__

    def without_mcp(name, *args, **kwargs):
        if name == "mcp":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_mcp)
    with pytest.raises(MissingExtraError, match=r"rllib-llm\[mcp\]"):
        McpServer("python")


@pytest.fixture
def server():
    pytest.importorskip("mcp")
    # The variable distinguishes it from the servers of the other tests.
    started = McpServer(
        sys.executable, [SERVER], env={"TEST": os.urandom(4).hex()}, retries=0
    )
    yield started
    started.close()


def run(sources, name, **arguments):
    tools = ToolSet(sources, tool_format="hermes")
    (result,) = tools.run(tools.parse(tools.write_call(name, **arguments)))
    return result


def test_tools_of_a_server_are_listed_and_run(server):
    tools = ToolSet([server], tool_format="hermes")
    assert set(tools.tools) == {"double", "pid", "fail", "die", "wait"}
    (double,) = [s for s in tools.schemas if s["function"]["name"] == "double"]
    assert double["function"]["description"] == "Return twice the number."
    assert double["function"]["parameters"]["required"] == ["number"]
    assert run(server, "double", number=4).text == "8"
    assert run(server, "double", number="x").status == "malformed"


def test_errors_become_results(server):
    result = run(server, "fail", why="no")
    assert result.status == "error"
    assert result.text.startswith("Error: Error executing tool fail")


def test_one_server_is_shared_and_restarted_after_its_death(server):
    first = run(server, "pid").text
    assert run(pickle.loads(pickle.dumps(server)), "pid").text == first
    with pytest.raises(ToolUnavailable, match="does not answer"):
        run(server, "die")
    assert run(server, "pid").text != first


def test_tools_can_be_selected(server):
    server.tools = ["double"]
    assert set(ToolSet(server).tools) == {"double"}
    server.tools = ["halve"]
    with pytest.raises(ConfigError, match="has no tool 'halve'"):
        ToolSet(server)


def test_a_server_that_does_not_start_raises():
    pytest.importorskip("mcp")
    broken = McpServer(
        sys.executable, ["-c", "raise SystemExit(1)"], start_timeout_s=20
    )
    with pytest.raises(ToolUnavailable, match="does not answer"):
        broken.as_tools()
    absent = McpServer("no-such-program-here")
    with pytest.raises(ToolUnavailable, match="does not answer"):
        absent.as_tools()
