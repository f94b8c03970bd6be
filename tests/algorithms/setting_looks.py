"""Effects of settings on a runner, a Learner, a module, alarms."""

from __future__ import annotations

import functools
import types
from typing import Any

import numpy as np
import torch
from team_helpers import (
    Alone,
    Pair,
    Run,
    make_team_learner,
    set_group_advantages,
    team_config,
    tiny_model,
    wake_critic,
)

from rllib_llm import GRPOConfig, LLMPPOConfig, MARFTConfig, SelfPlayConfig
from rllib_llm.algorithms.driver.rewards_filters_curriculum import DriverComponents
from rllib_llm.algorithms.learner.training_data import LLMTrainingData
from rllib_llm.algorithms.sft.sft_config import SFTConfig
from rllib_llm.data import columns
from rllib_llm.data.episode_data import agent_episodes, episode_data
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.env_runner.task_groups import TaskSource
from rllib_llm.monitoring.alarms.alarm_actions import Guard
from rllib_llm.offline.prepare_ref_model import prepare_ref_model

ALGOS = {
    "PPO": LLMPPOConfig,
    "GRPO": GRPOConfig,
    "MARFT": MARFTConfig,
    "SFT": SFTConfig,
    "SelfPlay": SelfPlayConfig,
}
MANY_STEPS = {"num_epochs": 3, "minibatch_size": 4}
SECTIONS = {
    "PPO": {"training": {"lr": 1e-2}},
    "GRPO": {
        "training": {"lr": 1e-2, "drop_zero_variance_groups": False},
        "rollouts": {"group_size": 4},
    },
    "MARFT": {"training": {"lr": 1e-2}},
    "SFT": {"training": {"lr": 1e-2}},
    "SelfPlay": {"training": {"lr": 1e-2}},
}


def config_of(algo: str, env: Any = None, **sections: Any) -> Any:
    """Return a small validated configuration.

    Args:
        algo: A name of ``ALGOS``; MARFT has two policies of a team.
        env: The environment.
        sections: Settings by section, over those of ``SECTIONS``.
    """
    of_team = algo in ("MARFT", "SelfPlay")
    given = {k: dict(v) for k, v in SECTIONS[algo].items()}
    for name, values in sections.items():
        given[name] = {**given.get(name, {}), **values}
    given["rollouts"] = {"episodes_per_iteration": 8, **given.get("rollouts", {})}
    settings = {} if of_team and algo == "MARFT" else {"policies": None}
    config = team_config(
        env or (Pair if of_team else Alone),
        ALGOS[algo],
        slots=1,
        **settings,
        **{k: v for k, v in given.items() if v},
    )
    config.validate()
    return config


@functools.cache
def episodes_of(algo: str, env: Any = None) -> list[Any]:
    """Return episodes of the base configuration, to learn from."""
    config = config_of("MARFT" if algo == "MARFT" else "PPO", env)
    if algo == "MARFT":
        run = Run(config, learner=False)
        return run.runner.sample(tasks=TaskSource(seed=3).next_groups(8))
    config = config_of("PPO", env, rollouts={"max_turns": 2})
    run = Run(config, learner=False)
    source = TaskSource(seed=3, group_size=4)
    return run.runner.sample(tasks=source.next_groups(2))


def learner_of(config: Any) -> Any:
    """Return a Learner with non-zero values and a changed policy."""
    learner = make_team_learner(config)
    generator = torch.Generator().manual_seed(1)
    for module_id in learner.module.keys():
        module = learner.module[module_id].unwrapped()
        if hasattr(module, "value_head"):
            wake_critic(learner, module_id)
        if not hasattr(module, "lm"):
            continue
        with torch.no_grad():
            for parameter in module.lm.parameters():
                if parameter.requires_grad:
                    noise = torch.randn(parameter.shape, generator=generator)
                    parameter += (0.05 * noise).to(parameter)
    return learner


def update(algo: str, env: Any = None, **sections: Any) -> np.ndarray:
    """Return all weights after an update of several steps."""
    learner, _ = updated(algo, env, **sections)
    found = [
        p.detach().float().flatten()
        for m in sorted(learner.module.keys())
        for p in learner.module[m].unwrapped().parameters()
    ]
    return torch.cat(found).numpy()


def updated(algo: str, env: Any = None, **sections: Any) -> tuple[Any, Any]:
    """Return the Learner after an update, and what it reported."""
    training = {**MANY_STEPS, **sections.pop("training", {})}
    config = config_of(algo, env, training=training, **sections)
    # As an Algorithm prepares it before there are Learners.
    config.resolved_ref_model = prepare_ref_model(config, config.lm_model)
    learner = learner_of(config)
    episodes = episodes_of(algo, env)
    if algo == "GRPO":
        set_group_advantages(config, episodes)
    results = learner.update(
        training_data=LLMTrainingData(episodes=episodes),
        timesteps={"num_env_steps_sampled_lifetime": 50},
        num_epochs=config.num_epochs,
        minibatch_size=config.minibatch_size,
    )
    return learner, results


def mask_policy_after(algo: str, env: Any = None, **sections: Any) -> np.ndarray:
    """Return the mask policy's weights after an update."""
    learner, _ = updated(algo, env, **sections)
    module = learner.module["default_policy"].unwrapped()
    weights = [p.detach().flatten() for p in module.mask_policy.parameters()]
    return torch.cat(weights).numpy()


def one_pass(algo: str, env: Any = None, **sections: Any) -> np.ndarray:
    """Return all weights after the only step of an update."""
    training = {"num_epochs": 1, "minibatch_size": None, **sections.pop("training", {})}
    return update(algo, env, training=training, **sections)


def rows(algo: str, env: Any = None, **sections: Any) -> dict[str, Any]:
    """Return the batch that a Learner's connectors build for one policy."""
    learner = learner_of(config_of(algo, env, **sections))
    learner._choose_modules()
    data = LLMTrainingData(episodes=episodes_of(algo, env))
    batch = learner._make_batch_if_necessary(training_data=data)
    first = batch.policy_batches[sorted(batch.policy_batches)[0]]
    return {k: v.float().numpy() for k, v in dict(first).items() if _is_tensor(v)}


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def sampled_turns(
    algo: str, env: Any = None, *, explore: bool = True, **sections: Any
) -> Any:
    """Return the recorded turns of some episodes of an EnvRunner."""
    config = config_of(algo, env, **sections)
    if config.lm_model == "tiny":  # prepared, as an Algorithm would
        config.resolved_model = tiny_model()
    run = Run(config, learner=False)
    source = config.build_task_source()
    episodes = run.runner.sample(tasks=source.next_groups(3), explore=explore)
    found = []
    for episode in episodes:
        for part in agent_episodes(episode):
            data = episode_data(part)
            turns = part.get_extra_model_outputs(columns.TURN)
            found.append(
                {
                    "ids": [t.action_ids.tolist() for t in turns],
                    "logps": np.concatenate([t.action_logps for t in turns]),
                    "extends": [t.extends for t in turns],
                    "messages": data.messages,
                    "rewards": part.get_rewards(),
                    "stop": (episode_data(episode).stop_reason, data.stop_policy),
                }
            )
    return found


def module_of(algo: str, **sections: Any) -> Any:
    """Return the default policy's module as a Learner builds it."""
    config = config_of(algo, **sections)
    return make_team_learner(config).module["default_policy"].unwrapped()


def runner_of(algo: str, env: Any = None, **sections: Any) -> Any:
    """Return an EnvRunner."""
    return Run(config_of(algo, env, **sections), learner=False).runner


def driven(algo: str, env: Any = None, **sections: Any) -> Any:
    """Return an iteration's rewards, filtered episodes and tasks."""
    config = config_of(algo, env, **sections)
    components = DriverComponents(config)
    runner = Run(config, learner=False).runner
    tasks = components.assign(config.build_task_source().next_groups(2), 0)
    episodes = SampledEpisodes(runner.sample(tasks=tasks))
    parts = components.assign_rewards(episodes, 0)
    left, shares = components.select(episodes)
    lengths = [len(e) for e in episodes]
    return [parts, [list(e.get_rewards()) for e in left], shares, lengths]


def result(iteration: int, **values: float) -> dict[str, Any]:
    """Return an iteration's result with what alarms read."""
    learner = {k: v for k, v in values.items() if "/" not in k}
    run = {k: v for k, v in values.items() if "/" in k}
    found: dict[str, Any] = {
        "training_iteration": iteration,
        "done": False,
        "learners": {"default_policy": learner},
        "env_runners": {},
    }
    for path, value in run.items():
        node = found
        *parents, last = path.strip("/").split("/")
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return found


def alarmed(
    series: list[dict[str, float]], logdir: Any = "/nowhere", **alarms: Any
) -> Any:
    """Return a guard's reports and actions for a series of results."""
    sent_metrics: list[Any] = []
    algorithm = types.SimpleNamespace(
        logdir=logdir,
        iteration=0,
        lower_lr=lambda *given: sent_metrics.append(("lower", *given)),
        lr_scales=dict,
        rollback_state=lambda: {"at": algorithm.iteration},
        roll_back=lambda state: sent_metrics.append(("back", state["at"])),
    )
    guard = Guard(GRPOConfig().alarms(**alarms), algorithm)
    reports = []
    for iteration, values in enumerate(series, start=1):
        guard.before_iteration()
        algorithm.iteration = iteration
        seen = result(iteration, **values)
        guard.after_iteration(seen)
        reports.append(seen["alarms"])
    return [reports, sent_metrics]
