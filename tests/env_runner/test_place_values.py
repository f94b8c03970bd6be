"""Monte-Carlo values of places, from the leaves of sampled trees."""

import numpy as np
import pytest
import torch
from fork_toys import group
from runner_helpers import make_runner

from rllib_llm.advantages.fork_trees import nodes_of, place_values
from rllib_llm.data import columns
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.envs.probes import CopyProbe

LEAVES = 64


class EveryTextCopyProbe(CopyProbe):
    """The probe with a word for every text, so that any policy's values are known."""

    def parse(self, completion):
        return self.words[sum(map(ord, completion)) % len(self.words)]


@pytest.fixture(scope="module")
def played():
    """Return, of four tasks, 64 continuations of the place after the first turn."""
    runner = make_runner(
        EveryTextCopyProbe,
        fork={"name": "every_turn", "first": 1, "last": 1, "branches": LEAVES - 1},
        group_size=LEAVES,
        episodes_per_iteration=LEAVES,
        slots=LEAVES,
        generation={"max_new_tokens": 1},
    )
    tasks = [group(LEAVES, number, words=8) for number in range(4)]
    episodes = [runner.sample(tasks=one) for one in tasks]
    yield runner, episodes
    runner.stop()


def exact_value(runner, episode):
    """Return the return so far, and the expected reward of the second turn."""
    first, second = episode.get_extra_model_outputs(columns.TURN)
    assert second.extends
    ids = np.concatenate([first.prompt_ids, first.action_ids, second.prompt_ids])
    with torch.no_grad():
        logits = runner.module.lm(torch.as_tensor(ids[None]).long()).logits
    chances = logits[0, -1].double().softmax(-1).numpy()
    env = EveryTextCopyProbe()
    env.words = CopyProbe.words
    wanted = episode.get_observations()[1].removeprefix("Say ")
    decode = runner.config.chat_renderer().decode
    rights = [env.parse(decode([i])) == wanted for i in range(len(chances))]
    return episode.get_rewards()[0] + 0.5 * float(chances @ rights)


def test_sixty_four_continuations_give_the_value_of_a_place(played):
    runner, groups = played
    errors = []
    for episodes in groups:
        assert len(episodes) == LEAVES
        table = SampledEpisodes(episodes).table()
        values = place_values(nodes_of(table), table.returns[table.owner])
        (at_place,) = set(values[table.turn == 1].tolist())
        (exact,) = {round(exact_value(runner, e), 9) for e in episodes}
        assert 0.01 < exact % 0.5 < 0.49  # neither certain nor impossible
        errors.append(abs(at_place - exact))
    assert max(errors) < 0.05
    assert max(errors) > 0  # estimated, not computed
