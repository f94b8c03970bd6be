"""Environments read hostile text without an exception, in time linear in its length."""

from __future__ import annotations

import time

import pytest
from hostile_texts import FIXED, random_texts

from rllib_llm.envs import TEXT_ENVS, MultiAgentTextEnv, TextEnv, make_env
from rllib_llm.errors import ConfigError, MissingExtraError
from rllib_llm.tools.tool_set import ToolSet

TEXTS = [*FIXED.values(), *random_texts(20)]
LIMIT_S = 2.0  # of 60,000 characters; unclosed tags took 15 s where they were quadratic


def add(a: int, b: float = 0.0) -> float:
    """Add numbers.

    Args:
        a: One.
        b: Another.
    """
    return a + b


def in_time(read, *arguments):
    began = time.perf_counter()
    read(*arguments)
    assert time.perf_counter() - began < LIMIT_S, repr(arguments[-1][:40])


# Replies in agent-v0 and external-v0 go to a program; the others need a server.
ELSEWHERE = {"agent-v0", "external-v0", "openenv-v0", "openenv_game-v0"}


@pytest.mark.parametrize("name", sorted(set(TEXT_ENVS.names()) - ELSEWHERE))
def test_actions_are_read(name):
    try:
        env = make_env(name)
        env.reset(seed=0)
    except (MissingExtraError, ConfigError) as error:
        if isinstance(error, ConfigError) and "chromium-driver" not in str(error):
            raise
        pytest.skip(str(error))
    game = env.unwrapped
    for text in TEXTS:
        if isinstance(game, TextEnv):
            in_time(game.parse, text)
        elif isinstance(game, MultiAgentTextEnv):
            in_time(game.parse, game.possible_agents[0], text)
        else:
            env.reset(seed=0)
            in_time(env.step, text)
    env.close()


@pytest.mark.parametrize("tool_format", ["hermes", "llama3", "tags", "auto"])
def test_calls_of_tools_are_read(tool_format):
    tools = ToolSet([add], tool_format=tool_format)
    wrapped = [
        '<tool_call>{{"name": "add", "arguments": {{"a": {0}}}}}</tool_call>',
        '{{"name": "add", "parameters": {{"a": 1, "b": {0}}}}}',
        "<add>{0}</add>",
    ]
    for text in [*TEXTS, *(w.format(t) for w in wrapped for t in TEXTS)]:
        in_time(tools.parse, text)
        for call in tools.parse(text):
            assert call.problem is not None or call.name == "add"
            repr(call.arguments)
