"""Learners and episodes for tests, without Ray and without sampling."""

from __future__ import annotations

import numpy as np
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllib_llm import LLMPPOConfig
from rllib_llm.algorithms.learner.training_data import LLMTrainingData
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.types import (
    DEFAULT_STOP_POLICIES,
    FinishReason,
    Prompt,
    StopReason,
    Task,
    Turn,
)
from rllib_llm.envs.spaces import UnicodeText
from rllib_llm.offline.prepare_model import prepare_language_model

TINY = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}


def make_config(config_class=LLMPPOConfig, **training):
    config = (
        config_class()
        .environment("guess_number-v0")
        .language_model(tiny=TINY)
        .training(**training)
    )
    config.validate()
    config.resolved_model = prepare_language_model(config)
    return config


def make_learner(config):
    spaces = {DEFAULT_MODULE_ID: (UnicodeText(), UnicodeText())}
    learner = config.build_learner(spaces=spaces)
    learner.build()
    return learner


def policy(learner):
    return learner.module[DEFAULT_MODULE_ID].unwrapped()


def moved(config):
    """A learner whose policy is neither the reference nor the one that sampled."""
    learner = make_learner(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in policy(learner).lm.parameters():
            p += 0.02 * torch.randn(p.shape, generator=generator)
    return learner


def weights(learner):
    return {n: p.detach().clone() for n, p in policy(learner).named_parameters()}


def fake_episode(
    seed: int,
    *,
    turns: int = 3,
    stop: StopReason = StopReason.TERMINATED,
    reward: float | None = None,
    breaks: bool = False,
    group: int = 0,
):
    """An episode of random tokens; ``breaks`` edits the context before turn 1."""
    rng = np.random.default_rng(seed)
    space = UnicodeText()
    episode = SingleAgentEpisode(observation_space=space, action_space=space)
    episode.add_env_reset(observation="start", infos={})
    data = episode_data(episode)
    data.task = Task(group_id=group, rollout=seed, seed=group)
    data.stop_reason, data.stop_policy = stop, DEFAULT_STOP_POLICIES[stop]
    truncated = stop is not StopReason.TERMINATED
    for index in range(turns):
        last = index == turns - 1
        turn = Turn(
            prompt_ids=rng.integers(20, 200, rng.integers(3, 8)).astype(np.int32),
            extends=not (breaks and index == 1),
            action_ids=rng.integers(20, 200, rng.integers(2, 6)).astype(np.int32),
            action_logps=-rng.random(8).astype(np.float32),
            finish=FinishReason.STOP,
            env_t=index,
        )
        turn.action_logps = turn.action_logps[: len(turn.action_ids)]
        final = reward if reward is not None else float(rng.normal())
        data.record(turn)
        episode.add_env_step(
            observation="next",
            action="x",
            reward=final if last else 0.0,
            infos={},
            terminated=last and not truncated,
            truncated=last and truncated,
            extra_model_outputs={columns.TURN: turn},
        )
    if truncated:
        data.prompt = Prompt(rng.integers(20, 200, 5).tolist(), extends=True)
    return episode


def update(learner, episodes, **kwargs):
    return learner.update(
        training_data=LLMTrainingData(episodes=episodes), timesteps={}, **kwargs
    )


def make_batch(learner, episodes):
    batch = learner._make_batch_if_necessary(
        training_data=LLMTrainingData(episodes=episodes)
    )
    return dict(batch.policy_batches[DEFAULT_MODULE_ID])


def gradients(learner, episodes):
    """The summed gradient of one whole-batch step, without taking the step."""
    taken = {}

    def keep(grads):
        names = {p: n for n, p in policy(learner).named_parameters()}
        taken.update({names[p]: g.clone() for p, g in grads.items()})

    learner.apply_gradients = keep
    learner.config.grad_clip = None
    update(learner, episodes)
    return taken


def assert_close(a, b, atol=2e-6):
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=atol, rtol=1e-4)
