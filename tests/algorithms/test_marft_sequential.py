"""Sequential updates of three policies: each later one is corrected by all before."""

from __future__ import annotations

import copy

import numpy as np
import torch
from ray.rllib.core.columns import Columns
from team_helpers import Pair, Run, message_ratios, team_config, wake_critic, worth

from rllib_llm.data import columns
from rllib_llm.envs import Outcome

POLICIES = {"a": "ann_0", "b": "ben_0", "c": "cat_0"}


class Trio(Pair):
    """Three agents act at the same time, twice."""

    possible_agents = ["ann_0", "ben_0", "cat_0"]
    max_turns = 12
    simultaneous = True

    def apply(self, agent, action):
        self.texts.append(action)

    def end_round(self):
        pay = dict(zip(self.possible_agents, map(worth, self.texts[-3:]), strict=True))
        return Outcome(pay, terminated=len(self.texts) == 6)


def test_the_last_of_three_policies_is_corrected_once_by_each_before():
    config = team_config(
        Trio,
        policies=tuple(POLICIES),
        mapping={"ann": "a", "ben": "b", "cat": "c"},
        training={
            "update_schedule": "sequential",
            "lr": 3e-2,
            "grad_clip": None,
            "sequential_ratio_clip": 0.1,
            "sequential_factor_clip": 0.5,
        },
    )
    run = Run(config)
    wake_critic(run.learner)
    episodes = run.sample(3)
    updated, seen = [], {}
    original = run.learner._correct_others

    def look(data, policy, rest):
        for module_id in rest:
            before = data[module_id][Columns.ADVANTAGES].clone()
            seen.setdefault(str(module_id), [before])
        updated.append((policy, copy.deepcopy(run.learner.module[policy].unwrapped())))
        original(data, policy, rest)
        for module_id in rest:
            after = data[module_id][Columns.ADVANTAGES].clone()
            seen[str(module_id)].append(after)
        look.data = data

    run.learner._correct_others = look
    run.update(episodes)
    (last,) = set(POLICIES) - {policy for policy, _ in updated[:2]}
    original_advantages, once, twice = seen[last][:3]
    data = look.data[last]
    for row, joint in enumerate(data[columns.MULTI_AGENT_EPISODE_INDEX].tolist()):
        factor = np.ones(2)
        for (policy, module), corrected in zip(updated[:2], (once, twice), strict=True):
            change = message_ratios(module.lm, episodes[joint], POLICIES[policy])
            factor *= np.clip(change, 0.9, 1.1)
            for turn, expected in enumerate(np.clip(factor, 0.5, 1.5)):
                here = data[columns.TURN_IDS][row] == turn
                here &= data[Columns.LOSS_MASK][row]
                torch.testing.assert_close(
                    corrected[row][here],
                    original_advantages[row][here] * expected,
                    atol=1e-5,
                    rtol=1e-4,
                )
        assert np.all(np.abs(factor - 1) > 1e-4)
