"""Effects of the settings that save episodes, and of those that read them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from learner_helpers import fake_episode, make_config
from setting_places import demonstrated

from rllib_llm import LLMPPOConfig, SFTConfig
from rllib_llm.algorithms.driver.saved_episodes import EpisodeSaver, SavesEpisodes
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.offline.conversation_files import parse_row

SAVED = tempfile.TemporaryDirectory()


class _Base:
    def setup(self, config: Any) -> None:
        self.config = config


class _Driver(SavesEpisodes, _Base):
    pass


def saved(algo: str, env: Any = None, **sections: Any) -> Any:
    """Return the number of rows that are saved; None: nothing is."""
    config = make_config(LLMPPOConfig).rollouts(**sections["rollouts"])
    config.validate()
    driver = _Driver()
    driver.setup(config)
    return None if driver._saver is None else save(driver._saver)


def save(saver: EpisodeSaver, iteration: int = 1) -> int:
    """Save four episodes, of which two are solved; return how many it kept."""
    episodes = [fake_episode(i) for i in range(4)]
    for number, episode in enumerate(episodes):
        episode_data(episode).success = number % 2 == 0
    return saver.save(SampledEpisodes(episodes), iteration)


def imitated_rows(algo: str, env: Any = None, **sections: Any) -> Any:
    """Return the replies that are imitated, of two files."""
    files = [_file(name, reward) for name, reward in (("a", 0.0), ("b", 1.0))]
    given = {"files": files, **sections["data"]}
    return demonstrated("SFT", env, data=given)


def read_prompts(algo: str, env: Any = None, **sections: Any) -> Any:
    """Return the prompts of a file's rows."""
    given = {"files": [_file("a", 0.0)], **sections["data"]}
    rows = SFTConfig().data(**given).stored_rows(parse_row)
    assert rows is not None
    return [row.agents[0].turns[0].messages for row in rows.in_passes(0, 0, 1)]


def _file(reply: str, reward: float) -> str:
    """Return the path of a file with one saved episode."""
    turn = {"observation": "Guess.", "completion": reply, "reward": reward}
    path = Path(SAVED.name) / f"{reply}.jsonl"
    path.write_text(json.dumps({"agents": [{"turns": [turn]}]}))
    return str(path)
