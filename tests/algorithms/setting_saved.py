"""Effects of the settings that save episodes, and of those that read them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from component_helpers import trajectory
from learner_helpers import fake_episode, make_config
from saving_helpers import Driver
from setting_places import demonstrated

from rllib_llm import LLMPPOConfig, SFTConfig
from rllib_llm.algorithms.driver.saved_episodes import EpisodeSaver
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.places import Branch
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.data.turn_table import Trajectory, TurnTable
from rllib_llm.data.types import TurnResult
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.errors import ConfigError
from rllib_llm.offline.conversation_files import parse_row

SAVED = tempfile.TemporaryDirectory()
TEXT_FILES = {"file_extensions": ["txt"]}
LABELS = {"save_episodes": SAVED.name, "save_as": "self_labels"}


def saved(algo: str, env: Any = None, **sections: Any) -> Any:
    """Return the number of rows that are saved; None: nothing is."""
    config = make_config(LLMPPOConfig).rollouts(**sections["rollouts"])
    config.validate()
    driver = Driver()
    driver.setup(config)
    return None if driver._saver is None else save(driver._saver)


def save(saver: EpisodeSaver, iteration: int = 1) -> int:
    """Save four episodes, of which two are solved; return how many it kept."""
    episodes = [fake_episode(i) for i in range(4)]
    for number, episode in enumerate(episodes):
        episode_data(episode).success = number % 2 == 0
    return saver.save(SampledEpisodes(episodes), iteration)


def rows_saved(config: Any, episodes: Any, **more: Any) -> list[Any]:
    """Return the rows that a driver writes of the episodes; the file is deleted."""
    driver = Driver()
    vars(driver).update(more)
    driver.setup(config)
    driver.save_episodes(episodes)
    files = list(Path(SAVED.name).glob("*000001.jsonl"))
    rows = [json.loads(line) for f in files for line in f.read_text().splitlines()]
    for file in files:
        file.unlink()
    return rows


def spliced(algo: str, env: Any = None, **sections: Any) -> Any:
    """Return the replies of a correction."""
    config = make_config(LLMPPOConfig).rollouts(**sections["rollouts"])
    config.validate()
    members = [_sampled(["a", "a"], True), _sampled(["b", "b"], False, rollout=1)]
    (row,) = rows_saved(config, SimpleNamespace(trajectories=members))
    return [m["content"] for m in row["messages"] if m["role"] == "assistant"]


class Word(TextEnv):
    """Two turns, of which the last one must end with "good"."""

    def start(self, rng: Any) -> str:
        self.turns = 0
        return "So?"

    def reply(self, action: str) -> TurnResult:
        self.turns += 1
        good = self.turns == 2 and action.endswith("good")
        return TurnResult("So?", float(good), self.turns == 2, success=good)


def calibrated(algo: str, env: Any = None, **sections: Any) -> Any:
    """Return the number of calibrations; the only low reply is 0.5 below the best."""
    config = make_config(LLMPPOConfig).environment(Word)
    config.rollouts(**sections["rollouts"]).validate()
    leaves = [
        (["a", "good"], (Branch(0, 0),)),
        (["b", "good"], (Branch(0, 1),)),
        (["b", "bad"], (Branch(0, 1), Branch(1, 2))),
    ]
    members = [
        _sampled(texts, texts[-1] == "good", rollout=number, path=path)
        for number, (texts, path) in enumerate(leaves)
    ]
    table = TurnTable(members)
    return len(rows_saved(config, SimpleNamespace(table=lambda: table)))


def labelled(algo: str, env: Any = None, **sections: Any) -> Any:
    """Return the replies of a row; the call lowers the answer's loss by at most 2."""
    config = make_config(LLMPPOConfig).environment("python_tool-v0")
    config.rollouts(**sections["rollouts"]).validate()
    infos = [{"tool": name, "gold_answers": ["12"]} for name in ("sum", None)]
    episodes = SimpleNamespace(trajectories=[_sampled(["a", "b"], False, infos=infos)])
    # Without the call, without its result, and with it.
    likelihoods = [np.full(20, value) for value in (-3.0, -3.0, -1.0)]
    learners = SimpleNamespace(map_units=lambda name, units: likelihoods)
    return rows_saved(config, episodes, learner_group=learners)


def _sampled(texts: list[str], solved: bool, **fields: Any) -> Trajectory:
    """Return an episode that says the texts."""
    return trajectory(
        rewards=[*[0.0] * (len(texts) - 1), float(solved)],
        observations=["So?"] * len(texts),
        completions=texts,
        messages=[
            {"role": role, "content": content}
            for text in texts
            for role, content in (("user", "So?"), ("assistant", text))
        ],
        **fields,
    )


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


def read_by_ray(algo: str, env: Any = None, **sections: Any) -> Any:
    """Return the number of rows of a file of text, or the error."""
    given = {"files": [_file("a", 0.0, "txt")], **sections["data"]}
    try:
        rows = SFTConfig().data(**given).stored_rows(parse_row)
    except ConfigError as error:
        return type(error)
    assert rows is not None
    return len(rows)


def _file(reply: str, reward: float, suffix: str = "jsonl") -> str:
    """Return the path of a file with one saved episode."""
    turn = {"observation": "Guess.", "completion": reply, "reward": reward}
    path = Path(SAVED.name) / f"{reply}.{suffix}"
    path.write_text(json.dumps({"agents": [{"turns": [turn]}]}))
    return str(path)
