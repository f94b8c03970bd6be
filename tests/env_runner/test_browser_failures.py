"""Browsers that die while episodes are sampled: the episodes are repeated."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from runner_helpers import make_runner

pytest.importorskip("selenium")

from rllib_llm.envs import make_env
from rllib_llm.envs.adapters.miniwob import MiniWob
from rllib_llm.envs.browser import client
from rllib_llm.envs.browser.actions import read_action
from rllib_llm.envs.browser.chromium import find_program
from rllib_llm.errors import MissingExtraError
from rllib_llm.offline.demonstrations import demonstrations

pytestmark = pytest.mark.slow
if not find_program(client.BINARIES) or not find_program(client.DRIVERS):
    pytest.skip("no Chromium with its chromedriver", allow_module_level=True)
try:
    make_env("miniwob-v0")
except MissingExtraError as error:
    pytest.skip(str(error), allow_module_level=True)


ARMED = "armed"


class Doomed(MiniWob):
    """Does what the expert says; kills its browser once per page, if it is armed."""

    folder: str

    def start(self, rng, folder: str = "", task: str = "enter-text"):
        self.folder = folder
        return super().start(rng, task)

    def parse(self, completion):
        return read_action(self.expert_action(self.np_random), self.state.elements)

    def reply(self, action):
        mark = Path(self.folder) / str(self._game[1])
        if (Path(self.folder) / ARMED).exists() and not mark.exists():
            mark.touch()
            os.killpg(self._pages.browser.pid, signal.SIGKILL)
        return super().reply(action)


def test_no_demonstration_is_lost(tmp_path):
    (tmp_path / ARMED).touch()

    def made():
        return Doomed({"folder": str(tmp_path)})

    demos = demonstrations(
        made, 4, seed=0, mistake_rate=0.0, most_envs=2, max_retries=2
    )
    assert [demo.success for demo in demos] == [True] * 4
    assert len(list(tmp_path.iterdir())) == 1 + 4


def test_no_episode_is_lost(tmp_path):
    runner = make_runner(
        Doomed, env_config={"folder": str(tmp_path)}, slots=2, step_timeout_s=120.0
    )
    (tmp_path / ARMED).touch()  # not before: the tokenizer's texts take 300 episodes
    episodes = runner.sample(num_episodes=4)
    assert [e.get_return() for e in episodes] == [1.0] * 4
    assert not runner.failures and len(list(tmp_path.iterdir())) == 1 + 4
    runner.stop()
