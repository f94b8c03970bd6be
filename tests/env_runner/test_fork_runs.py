"""Trees of whole runs: several EnvRunners, and one that dies."""

import os
import sys

import fork_toys
import pytest
import ray
from fork_toys import Diary
from runner_helpers import TINY

from rllib_llm import GRPOConfig
from rllib_llm.data.episode_data import episode_data

LEAVES, GROUPS = 8, 4
# Other processes cannot import the tests.
for module in (fork_toys, sys.modules[__name__]):
    ray.cloudpickle.register_pickle_by_value(module)


class Dying(Diary):
    """Ends its process in the third turn, unless a file says that it has done so."""

    def start(self, rng, mark: str = "") -> str:
        self.mark = mark
        return super().start(rng)

    def reply(self, action):
        if self.mark and len(self.entries) == 2:
            try:
                os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return super().reply(action)
            os._exit(1)
        return super().reply(action)


def sampled(num_env_runners, mark=""):
    """Return the leaves of the first groups, as texts by group and rollout."""
    config = (
        GRPOConfig()
        .environment(Dying, env_config={"mark": str(mark)})
        .language_model(tiny=TINY)
        .env_runners(num_env_runners=num_env_runners, num_envs_per_env_runner=8)
        .generation(max_new_tokens=4)
        .rollouts(
            episodes_per_iteration=LEAVES * GROUPS,
            group_size=LEAVES,
            fork={"name": "every_turn", "first": 1},
        )
    )
    algo = config.build_algo()
    episodes = algo.sample_groups(GROUPS)
    algo.stop()
    found = {}
    for episode in episodes:
        data = episode_data(episode)
        key = data.task.group_id, data.task.rollout
        assert key not in found, "a leaf is there twice"
        found[key] = (
            [(branch.turn, branch.rollout) for branch in data.path],
            list(episode.get_observations()),
            list(episode.get_actions()),
            list(episode.get_rewards()),
        )
    return found


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_trees_of_one_runner_and_of_two_of_which_one_dies_are_the_same(tmp_path):
    alone = sampled(1)
    assert len(alone) == LEAVES * GROUPS
    assert sum(len(path) > 1 for path, *_ in alone.values()) == GROUPS * (LEAVES - 1)
    mark = tmp_path / "died"
    assert sampled(2, mark) == alone
    assert mark.exists()
