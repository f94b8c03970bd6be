"""Real OpenEnv servers: environments of this package, and others.

OpenEnv needs mcp 1, the package's other extras mcp 2. RLLIB_LLM_OPENENV is the Python
of a virtual environment with the extra openenv-server, in which the servers run;
without it they run in this one, if OpenEnv is installed here.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rllib_llm.envs import make_env
from rllib_llm.envs.make import make_playable
from rllib_llm.errors import ConfigError, MissingExtraError

PYTHON = os.environ.get("RLLIB_LLM_OPENENV")
SERVER = str(Path(__file__).parent / "openenv_board.py")


def test_a_missing_package_is_named(monkeypatch):
    from rllib_llm.envs.adapters.openenv_server import openenv_app

    monkeypatch.setitem(sys.modules, "openenv.core", None)
    with pytest.raises(MissingExtraError, match=r"rllib-llm\[openenv-server\]"):
        openenv_app("frozen_lake-v0")


@pytest.fixture
def serve():
    if PYTHON is None:
        pytest.importorskip("openenv")
    processes = []

    def start(kind):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [SERVER, kind, str(port)]
        if kind.endswith("-v0"):
            command = ["-m", "rllib_llm", "serve-env", kind, "--max-sessions", "2"]
            command += ["--port", str(port)]
        processes.append(subprocess.Popen([PYTHON or sys.executable, *command]))
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and processes[-1].poll() is None:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port), 1),
            ):
                return f"http://127.0.0.1:{port}", processes[-1]
            time.sleep(0.1)
        raise AssertionError("The server of the test did not start.")

    yield start
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_episodes_are_those_of_the_environment_itself(serve):
    url, process = serve("frozen_lake-v0")
    local = make_env("frozen_lake-v0")
    config = {"url": url, "send_split": True, "timeout_s": 20.0}
    served = [make_env("openenv-v0", config) for _ in range(2)]
    for seed in range(6):
        options = {"split": "test" if seed % 2 else "train"}
        prompt, _ = local.reset(seed=seed, options=options)
        for env in served:
            assert env.reset(seed=seed, options=options)[0] == prompt
        over = False
        while not over:
            action = local.expert_action(np.random.default_rng(0))
            expected = local.step(action)
            for env in served:
                step = env.step(action)
                assert step[:4] == expected[:4]
                assert step[4]["success"] == expected[4]["success"]
            over = expected[2] or expected[3]
    from rllib_llm.envs.adapters.openenv_client import OpenEnvUnavailable

    third = make_env("openenv-v0", config)
    with pytest.raises(OpenEnvUnavailable):
        third.reset(seed=0)
    served[0].reset(seed=0)
    process.kill()
    with pytest.raises(OpenEnvUnavailable, match="does not answer"):
        served[0].step("right")


@pytest.mark.slow
def test_other_environments_are_played_by_their_schema(serve):
    env = make_env("openenv-v0", {"url": serve("cells")[0]})
    text, _ = env.reset(seed=0)
    assert text.startswith('{"board": ["...", "...", "..."]}\nAnswer with a JSON obj')
    assert env.step("1, 2")[4]["invalid_action"]
    assert env.step('{"row": 1, "column": 2}')[1:3] == (1.0, True)
    env.close()
    env = make_env("openenv-v0", {"url": serve("counts")[0], "success_return": 1.0})
    text, _ = env.reset(seed=0)
    assert text.endswith("Answer with a number: amount.")
    assert env.step("I take 7")[4]["success"] is True


@pytest.mark.slow
def test_games_of_several_agents_are_played(serve):
    local = make_playable("secret_sum-v0")
    config = {"url": serve("secret_sum-v0")[0], "send_split": True, "timeout_s": 20.0}
    served = make_playable("openenv_game-v0", config)
    assert served.possible_agents == local.possible_agents
    for seed in range(4):
        expected, step = local.reset(seed=seed), served.reset(seed=seed)
        while not expected.is_over:
            assert step.observations == expected.observations
            rng = np.random.default_rng(seed)
            expert = local.unwrapped.expert_action
            texts = {agent: expert(agent, rng) for agent in expected.observations}
            expected, step = local.step(texts), served.step(texts)
            assert step.rewards == expected.rewards
        assert step.is_over and step.success is expected.success is True
    more = make_playable("openenv_game-v0", {**config, "reset_options": {"numbers": 3}})
    three = local.reset(seed=9, options={"numbers": 3}).observations
    assert more.reset(seed=9).observations == three
    for env in (served, more):
        env.close()


@pytest.mark.slow
def test_options_of_the_environment_reach_it(serve):
    url = serve("frozen_lake-v0")[0]
    env = make_env("openenv-v0", {"url": url, "reset_options": {"size": 5}})
    local = make_env("frozen_lake-v0", {"size": 5})
    assert env.reset(seed=3)[0] == local.reset(seed=3)[0]
    env.close()


def test_what_is_no_environment_of_texts_is_refused(monkeypatch):
    from rllib_llm.envs.adapters import openenv_server

    monkeypatch.setattr(openenv_server, "_import_openenv", lambda: None)
    members = [{"env": "frozen_lake-v0"}, {"env": "taxi-v0"}]
    with pytest.raises(ConfigError, match="which cannot be served"):
        openenv_server.openenv_app("mixture", {"environments": members})
