"""Small self-play runs and functions that inspect them."""

from __future__ import annotations

import copy
import re

import numpy as np
from ray.rllib.core import DEFAULT_MODULE_ID

from rllib_llm import SelfPlayConfig

TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "initializer_range": 0.15,
}
LEARNER = "default_policy"


def any_word(turn) -> str:
    """Return a random legal word of a Kuhn prompt, as a scripted player."""
    return str(turn.rng.choice(re.findall(r"pass|bet", turn.observation)[-2:]))


def kuhn(episodes=16, *, league=None, **training):
    """Return a config for Kuhn poker with short prompts and an SFT model."""
    small = {"pool_size": 2, "snapshot_min_games": 4, "snapshot_max_games": 12}
    is_mirror = (league or {}).get("opponents") == "mirror"
    league = ({} if is_mirror else small) | (league or {})
    return (
        SelfPlayConfig()
        .environment("open_spiel/kuhn_poker-v0", env_config={"style": "short"})
        .language_model(tiny=TINY)
        .generation(max_new_tokens=5)
        .rollouts(episodes_per_iteration=episodes)
        .sft(demonstrations=200, mistake_rate=1.0, lr=5e-3)
        .league(**league)
        .training(lr=5e-3, **training)
    )


def weights(algo, module_id, where="learner"):
    """Return a policy's values, by name, on the Learner or on the EnvRunners."""
    if where == "learner":
        module = algo.learner_group._learner.module[module_id].unwrapped()
        return copy.deepcopy(module.get_state(inference_only=True))
    (found,) = algo.env_runner_group.foreach_env_runner(
        lambda runner: runner.modules[module_id].get_state(inference_only=True),
        local_env_runner=where == "local",
    )
    return found


def same(a, b):
    """Return whether two states are equal, bit for bit."""
    return set(a) == set(b) and all(np.array_equal(a[k], b[k]) for k in a)


def books(algo):
    """Return the complete state of the league."""
    return algo.matchmaker.state_dict(), algo._advantage_estimators[
        DEFAULT_MODULE_ID
    ].get_state()


def played(algo, monkeypatch):
    """Return a list that fills with the episodes of each iteration."""
    seen, sample = [], algo.sample_groups

    def record(count):
        seen.append(sample(count))
        return seen[-1]

    monkeypatch.setattr(algo, "sample_groups", record)
    return seen
