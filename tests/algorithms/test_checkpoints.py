"""Checkpoints of an algorithm: what they hold, and damaged ones are refused."""

from __future__ import annotations

import json

import pytest

from rllib_llm import GRPO, GRPOConfig
from rllib_llm.errors import CheckpointError, ConfigError

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]

TINY = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64}


def config():
    return (
        GRPOConfig()
        .environment("copy_probe-v0")
        .language_model(tiny=TINY)
        .generation(max_new_tokens=3)
        .rollouts(episodes_per_iteration=8, group_size=4)
        .rollouts(curriculum={"name": "threshold", "levels": [{"words": 2}]})
        .env_runners(num_envs_per_env_runner=8)
    )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, ray_session):
    """A checkpoint after one iteration, and the state that it was made of."""
    algo = config().build_algo()
    algo.train()
    folder = tmp_path_factory.mktemp("checkpoints") / "one"
    algo.save_to_path(folder)
    state = algo.package_state()
    algo.stop()
    return folder, state


def test_package_state_is_json_and_round_trips(checkpoint):
    folder, state = checkpoint
    stored = json.loads((folder / "llm" / "state.json").read_text())
    assert stored["llm_tasks"] == {"cursor": 2} and stored["training_iteration"] == 1
    pickled = (folder / "algorithm_state.pkl").read_bytes()
    assert b"llm_" not in pickled
    algo = GRPO.from_checkpoint(folder)
    assert algo.package_state() == state
    assert algo.get_state()["llm"] == state
    algo.stop()


def test_a_damaged_checkpoint_is_refused_before_it_is_unpickled(checkpoint, tmp_path):
    import shutil

    folder = tmp_path / "copy"
    shutil.copytree(checkpoint[0], folder)
    pickled = folder / "class_and_ctor_args.pkl"
    pickled.write_bytes(pickled.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match=r"class_and_ctor_args\.pkl has other"):
        GRPO.from_checkpoint(folder)
    (folder / "manifest.json").unlink()
    algo = config().build_algo()
    with pytest.raises(CheckpointError, match="written last, is missing"):
        algo.restore_from_path(folder)
    algo.stop()


class Forgetful:
    """A curriculum whose state JSON cannot hold."""

    def __init__(self) -> None:
        self.state = object()

    def assign(self, task, iteration):
        return task

    def observe(self, table):
        """Learn nothing."""

    def get_state(self):
        return self.state

    def set_state(self, state):
        self.state = state


def test_state_that_json_cannot_hold_is_refused_at_the_start():
    bad = config().rollouts(curriculum="test_checkpoints:Forgetful")
    with pytest.raises(ConfigError, match="llm_driver_components.*builtins.object"):
        bad.build_algo()
