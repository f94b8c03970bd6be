"""MCP servers at an address: the settings, and a real server over HTTP."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rllib_llm.envs import ToolEnv
from rllib_llm.errors import ConfigError
from rllib_llm.tools import McpServer, ToolSet, ToolUnavailable

pytest.importorskip("mcp")
SERVER = str(Path(__file__).parent / "mcp_server.py")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "exactly one of the two"),
        ({"command": "python", "url": "http://localhost/mcp"}, "exactly one of the"),
        ({"url": "localhost:8000/mcp"}, "not an address of an MCP server"),
        ({"url": "http:///mcp"}, "not an address of an MCP server"),
        ({"url": "http://localhost/mcp", "env": {"A": "1"}}, "env=.*no effect"),
        ({"url": "http://localhost/mcp", "args": ["x"]}, "args=.*no effect"),
        ({"command": "python", "headers": {"A": "1"}}, "headers=.*no effect"),
    ],
)
def test_settings_of_the_wrong_kind_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        McpServer(**settings)


@pytest.fixture
def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_server(port):
    process = subprocess.Popen(
        [sys.executable, SERVER, str(port)], stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port), 1),
        ):
            return process
        time.sleep(0.05)
    process.kill()
    raise AssertionError("The server of the test did not start.")


@pytest.fixture
def process(port):
    started = start_server(port)
    yield started
    started.kill()
    started.wait()


def source(port, path="/mcp", **settings):
    given = {"retries": 0, "headers": {"X-Test": os.urandom(4).hex()}, **settings}
    return McpServer(url=f"http://127.0.0.1:{port}{path}", **given)


def run(sources, name, **arguments):
    tools = ToolSet(sources, tool_format="hermes")
    (result,) = tools.run(tools.parse(tools.write_call(name, **arguments)))
    return result


def test_tools_of_a_server_are_listed_and_run(port, process):
    server = source(port)
    assert set(ToolSet(server).tools) == {"double", "pid", "fail", "die", "wait"}
    assert run(server, "double", number=4).text == "8"
    assert run(server, "double", number="x").status == "malformed"
    failed = run(server, "fail", why="no")
    assert (failed.status, failed.text[:28]) == (
        "error",
        "Error: Error executing tool ",
    )
    assert run(server, "pid").text == str(process.pid)
    server.close()
    assert run(server, "double", number=2).text == "4"
    server.close()


def test_headers_are_sent():
    """A socket in place of a server reads the first request."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        server = source(
            listening.getsockname()[1], headers={"X-Key": "seven"}, start_timeout_s=0.5
        )
        with pytest.raises(ToolUnavailable):
            server.as_tools()
        connection, _ = listening.accept()
        with connection:
            request = connection.recv(65536).decode().lower()
    assert request.startswith("post /mcp")
    assert "x-key: seven" in request


def test_a_slow_tool_is_read_by_the_model(port, process):
    server = source(port, timeout_s=0.5)
    result = run(server, "wait", seconds=3)
    assert result.status == "timeout"
    assert result.text == "Error: wait took longer than 0.5 s."
    server.close()


def test_a_server_that_does_not_answer_is_unavailable(port, process, monkeypatch):
    monkeypatch.setattr("rllib_llm.tools.mcp._PING_S", 0.5)
    server = source(port, timeout_s=0.5)
    assert run(server, "double", number=4).text == "8"
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(ToolUnavailable, match=r"nor to a ping after it"):
        run(server, "double", number=4)
    process.send_signal(signal.SIGCONT)
    assert run(server, "double", number=4).text == "8"
    server.close()


class Doubling(ToolEnv):
    """Double a number by the server's tool."""

    def start(self, rng) -> str:
        """Ask."""
        self.tools = [self.server]
        return "What is twice 4?"

    def judge(self, answer: str) -> float:
        """Return 1 for the right number."""
        return float(answer == "8")


def test_a_server_that_dies_ends_the_episode_without_a_reward(port, process):
    """The exception of step drops the episode; the next one finds the new server."""
    server = source(port)
    env = Doubling({"tool_format": "hermes"})
    env.server = server
    env.reset(seed=0)
    text, *_ = env.step(env.write_call("double", number=4))
    assert "8" in text
    with pytest.raises(ToolUnavailable, match=r"127\.0\.0\.1.*does not answer"):
        env.step(env.write_call("die"))
    assert process.wait(10) == 3
    env.reset(seed=0)
    with pytest.raises(ToolUnavailable, match="streamable HTTP runs at this address"):
        env.step(env.write_call("double", number=4))
    second = start_server(port)
    try:
        assert run(server, "pid").text == str(second.pid)
        server.close()
    finally:
        second.kill()
        second.wait()


def test_a_restarted_server_costs_a_retry(port, process):
    server = source(port, retries=3)
    assert run(server, "pid").text == str(process.pid)
    process.kill()
    process.wait()
    second = start_server(port)
    try:
        result = run(server, "pid")
        assert (result.text, result.retries) == (str(second.pid), 1)
        server.close()
    finally:
        second.kill()
        second.wait()


def test_a_bad_address_is_named_with_the_remedy(port, process):
    with pytest.raises(ToolUnavailable, match=r"/wrong.*its path is often /mcp"):
        source(port, "/wrong", start_timeout_s=5).as_tools()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        mute = source(silent.getsockname()[1], start_timeout_s=0.5)
        began = time.monotonic()
        with pytest.raises(ToolUnavailable, match=r"no answer in 0\.5 s"):
            mute.as_tools()
        assert time.monotonic() - began < 10
    absent = source(1, start_timeout_s=5)
    with pytest.raises(ToolUnavailable, match=r"127\.0\.0\.1:1.*does not answer"):
        absent.as_tools()
