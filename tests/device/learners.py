"""Learners of every kind, on the CPU and on an accelerator.

Everything here runs in the process of the fixture ``on_device``.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import torch
from learner_helpers import fake_episode
from non_llm_toys import NonLLMRun, non_llm_config
from ray.rllib.core.learner.torch import torch_learner
from team_helpers import (
    LORA,
    PairTogether,
    Run,
    gradients,
    set_group_advantages,
    team_config,
    update,
)
from test_scoring_runs import Run as ScoringRun
from test_scoring_runs import config_of as scoring_config

from rllib_llm import (
    GRPOConfig,
    LLMPPOConfig,
    MARFTConfig,
    PrefConfig,
    SelfPlayConfig,
    SFTConfig,
)
from rllib_llm.algorithms.pref.pairs import PreferencePair
from rllib_llm.algorithms.selfplay.assign_opponents import TakeTurns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.env_runner import llm_env_runner
from rllib_llm.envs.spaces import UnicodeText
from rllib_llm.offline.prepare_model import prepare_language_model

TINY = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}
MICRO_BATCH_TOKENS = 128


@dataclasses.dataclass
class Case:
    """A config with what it trains on.

    Attributes:
        config: A validated config.
        episodes: Episodes of one update.
        spaces: Spaces by module; None: text.
    """

    config: Any
    episodes: list[Any]
    spaces: dict[str, Any] | None = None

    def learner(self, device: torch.device):
        """Return a Learner on a device, with weights moved by noise."""
        text = dict.fromkeys(self.config.module_ids, (UnicodeText(), UnicodeText()))
        with placed_on(device):
            learner = self.config.build_learner(spaces=self.spaces or text)
        shake(learner)
        return learner


@contextlib.contextmanager
def placed_on(device: torch.device):
    """Let RLlib build Learners and EnvRunners on a device that it does not know."""
    with contextlib.ExitStack() as stack:
        for module in (torch_learner, llm_env_runner):
            stack.enter_context(
                mock.patch.object(module, "get_device", lambda *a, **k: device)
            )
        yield


@torch.no_grad()
def shake(learner) -> None:
    """Move weights, so that zeros of value heads and adapters pass gradients on."""
    generator = torch.Generator().manual_seed(0)
    for module_id in sorted(learner.module.keys()):
        for parameter in learner.module[module_id].unwrapped().parameters():
            noise = 0.02 * torch.randn(parameter.shape, generator=generator)
            if parameter.requires_grad:
                parameter += noise.to(parameter.device, parameter.dtype)


def random_episodes(count: int = 12, turns: int = 1) -> list[Any]:
    """Return episodes of random tokens with advantages; ``turns`` scales lengths."""
    episodes = [fake_episode(i, turns=turns * (1 + i % 4)) for i in range(count)]
    for number, episode in enumerate(episodes):
        episode_data(episode).advantage = float(np.cos(number))
        episode_data(episode).success = bool(number % 2)
    return episodes


# Cases --------------------------------------------------------------------------------


def single(config_class=GRPOConfig, model=None, turns=1, **training) -> Case:
    """Return a case of one policy."""
    config = config_class().environment("guess_number-v0")
    config.language_model(tiny=TINY, **(model or {}))
    config.training(**{"micro_batch_tokens": MICRO_BATCH_TOKENS, **training})
    config.validate()
    config.resolved_model = prepare_language_model(config)
    return Case(config, random_episodes(turns=turns))


def paired(**settings) -> Case:
    """Return a case of preference pairs."""
    case = single(PrefConfig, preference_loss="dpo", nll_weight=0.3, **settings)
    sides = case.episodes
    pairs = [PreferencePair(*sides[i : i + 2]) for i in range(0, len(sides) - 1, 2)]
    return dataclasses.replace(case, episodes=pairs)


def team(config_class=MARFTConfig, env=PairTogether, *, turns=1, **sections) -> Case:
    """Return a case of two policies and the games that they played."""
    training = {"micro_batch_tokens": MICRO_BATCH_TOKENS}
    sections["training"] = training | sections.get("training", {})
    config = team_config(
        env, config_class, env_config={"rounds": 2 * turns}, **sections
    )
    run = Run(config)
    episodes = run.sample(6)
    if hasattr(config, "advantage_baseline"):
        set_group_advantages(config, episodes)
    return Case(config, episodes)


def self_play(turns=1) -> Case:
    """Return a case of games against frozen opponents."""
    config = team_config(
        PairTogether,
        SelfPlayConfig,
        policies=None,
        training={"role_decay": 0.5, "micro_batch_tokens": MICRO_BATCH_TOKENS},
        env_config={"rounds": 2 * turns},
    )
    run, tasks = Run(config), config.build_task_source()
    assign = config.assign_league_opponents()
    tasks.agent = TakeTurns("default_policy", config.opponent_slots[0], assign, {})
    episodes = run.runner.sample(tasks=tasks.next_groups(6))
    set_group_advantages(config, episodes)
    return Case(config, episodes)


def scoring(config_class=GRPOConfig, turns=1, **training) -> Case:
    """Return a case of the scoring head."""
    config = scoring_config(config_class, env_config={"max_turns": 3 * turns})
    config.training(**{"micro_batch_tokens": 600, **training})
    episodes = ScoringRun(config).sample(6)
    for number, episode in enumerate(episodes):
        episode_data(episode).advantage = float(np.cos(number))
    return Case(config, episodes)


def beside_mlp(turns=1) -> Case:
    """Return a case of a language model and a numeric policy."""
    config = non_llm_config(
        env_config={"rounds": 3 * turns},
        training={"micro_batch_tokens": MICRO_BATCH_TOKENS},
    )
    run = NonLLMRun(config)
    return Case(config, run.sample(6), run.runner.get_spaces())


def with_adapters(turns=1, **training) -> Case:
    """Return a team whose policies are adapters on one base model."""
    return team(turns=turns, language_model={"lora": LORA}, training=training)


OWN = {"value_model": "own"}
REFERENCE = {"ref_kl_coeff": 0.1}
CASES: dict[str, Callable[..., Case]] = {
    "grpo": lambda **k: single(entropy_coeff=0.01, **k),
    "grpo_engine_logps": lambda **k: single(
        head_chunk_tokens=16, old_logps="engine", **k
    ),
    "grpo_reference": lambda **k: single(**REFERENCE, tis="token", **k),
    "grpo_gspo": lambda **k: single(
        policy_loss={"name": "gspo"}, loss_agg_mode="seq-mean-token-mean", **k
    ),
    "grpo_terms": lambda **k: single(
        loss_terms=[{"name": "entropy", "top": 0.3}, {"name": "nll_success"}], **k
    ),
    "grpo_lora": lambda **k: single(model={"lora": {"rank": 4}}, **REFERENCE, **k),
    "grpo_bfloat16": lambda **k: single(model={"dtype": "bfloat16"}, **k),
    "ppo_packed": lambda **k: single(LLMPPOConfig, packing=True, **k),
    "ppo": lambda **k: single(LLMPPOConfig, entropy_coeff=0.01, **k),
    "ppo_own_critic": lambda **k: single(
        LLMPPOConfig, model=OWN, **REFERENCE, ref_kl_in="reward", **k
    ),
    "ppo_token_loss": lambda **k: single(
        LLMPPOConfig, value_loss="huber", gae_level="turn", **k
    ),
    "sft": lambda **k: single(SFTConfig, observation_weight=0.3, **k),
    "pref": lambda **k: paired(**k),
    "marft": lambda **k: team(
        training={"critic": "shared", "update_schedule": "sequential"} | REFERENCE, **k
    ),
    "marft_token": lambda **k: team(training={"level": "token"}, **k),
    "marft_adapters": lambda **k: with_adapters(critic="central", **k),
    "self_play": self_play,
    "scoring": scoring,
    "scoring_ppo": lambda **k: scoring(LLMPPOConfig, **k),
    "mlp": beside_mlp,
}


# What the tests measure ---------------------------------------------------------------


def compare_gradients(accelerator, name: str) -> dict[str, float]:
    """Return the largest gradient, and its largest difference between both devices."""
    case = CASES[name]()
    found = [
        gradients(case.learner(device), case.episodes)
        for device in (torch.device("cpu"), accelerator.device)
    ]
    assert found[0] and found[0].keys() == found[1].keys()
    largest = gap = 0.0
    for module_id, on_cpu in found[0].items():
        assert on_cpu.keys() == found[1][module_id].keys()
        for parameter, expected in on_cpu.items():
            gradient = found[1][module_id][parameter]
            assert gradient.device == accelerator.device, parameter
            difference = (gradient.cpu() - expected).abs().max()
            gap = max(gap, float(difference))
            largest = max(largest, float(expected.abs().max()))
    return {"largest": largest, "gap": gap}


PASSES, STEPS, REST = "passes", "steps", "rest"


def count_waits(accelerator, name: str, turns: int = 1) -> dict[str, Any]:
    """Return how often the host waits in an update.

    Args:
        accelerator: The registered accelerator.
        name: One of ``CASES``.
        turns: Factor of the episodes' lengths.

    Returns:
        Numbers of ``micro_batches``, ``steps`` and trained ``tensors``, and ``waits``
        by phase, reason and line.
    """
    case = CASES[name](turns=turns)
    learner = case.learner(accelerator.device)
    update(learner, case.episodes)  # builds the optimisers' state
    numbers = {"micro_batches": 0, "steps": 0}
    step, backward = learner._uncompiled_update, learner._backward
    loss = learner.compute_loss_for_module

    def counted_loss(**kwargs):
        numbers["micro_batches"] += 1
        return loss(**kwargs)

    def counted_step(*args, **kwargs):
        numbers["steps"] += 1
        return step(*args, **kwargs)

    def counted_backward(module_id, data):
        # Policies without a language model have one pass.
        numbers["micro_batches"] += module_id in learner._non_llm_ids
        return backward(module_id, data)

    learner.compute_loss_for_module = counted_loss
    with accelerator.host_syncs() as syncs:
        syncs.phase = REST
        learner._backward = syncs.during(PASSES, counted_backward)
        # The pass of a preference loss before each step.
        learner.weigh_units = syncs.during(PASSES, learner.weigh_units)
        # RLlib keeps the method under this name when it builds the Learner.
        learner._possibly_compiled_update = syncs.during(STEPS, counted_step)
        update(learner, case.episodes)
    tensors = sum(len(p) for p in learner._optimizer_parameters.values())
    waits = {phase: dict(c) for phase, c in syncs.by_phase.items()}
    return {**numbers, "tensors": tensors, "waits": waits}


def update_without_waits(accelerator, name: str) -> dict[str, int]:
    """Return how many losses and optimiser blocks an update computed without a wait."""
    case = CASES[name]()
    learner = case.learner(accelerator.device)
    update(learner, case.episodes)  # builds the optimisers' state
    numbers = {"losses": 0, "blocks": 0}

    def checked(key, function):
        def call(*args, **kwargs):
            numbers[key] += 1
            with accelerator.no_waits():
                return function(*args, **kwargs)

        return call

    learner.compute_loss_for_module = checked("losses", learner.compute_loss_for_module)
    for optimizer in learner._optimizer_parameters:
        optimizer._step_block = checked("blocks", optimizer._step_block)
    update(learner, case.episodes)
    return numbers


def mix_devices(accelerator) -> str:
    """Return the error of an operation on tensors of two devices."""
    try:
        torch.ones(3, device=accelerator.device) + torch.ones(3)
    except RuntimeError as error:
        return str(error)
    return ""
