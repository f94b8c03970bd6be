"""Places where settings show as an Algorithm runs: its step, evaluation, resources."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core.learner.torch import torch_learner
from setting_looks import (
    MANY_STEPS,
    config_of,
    episodes_of,
    learner_of,
    updated,
)
from setting_places import Fake, Silent
from team_helpers import SIZES, Run, make_team_learner

from rllib_llm.algorithms.algorithm import LLMAlgorithm
from rllib_llm.algorithms.driver.first_evaluation import EvaluatesFirst
from rllib_llm.algorithms.learner.training_data import LLMTrainingData
from rllib_llm.algorithms.ppo.llm_ppo_learner import LLMPPOTorchLearner
from rllib_llm.callbacks import result_keys
from rllib_llm.data.episode_data import agent_episodes
from rllib_llm.errors import ConfigError
from rllib_llm.modules.tiny import save_tiny_model
from rllib_llm.modules.tiny_vlm import save_tiny_vlm


class Unmeasured(Silent):
    """Metrics that keep nothing."""

    def log_time(self, *args, **kwargs):
        return contextlib.nullcontext()

    def peek(self, *args, default=0, **kwargs):
        return default


def weights_in(learner: Any) -> dict[str, np.ndarray]:
    """Return the weights of every module, flat."""
    return {
        m: torch.cat(
            [
                p.detach().float().flatten()
                for p in learner.module[m].unwrapped().parameters()
            ]
        ).numpy()
        for m in sorted(learner.module.keys())
    }


def trained(algo: str, env: Any = None, **sections: Any) -> dict[str, np.ndarray]:
    """Return all weights after the Algorithm's own ``training_step``."""
    training = {**MANY_STEPS, **sections.pop("training", {})}
    config = config_of(algo, env, training=training, **sections)
    learner, episodes = learner_of(config), episodes_of(algo, env)
    fake = Fake(config, episodes)
    fake.metrics = Unmeasured()
    fake.collect = lambda: episodes
    fake.phase = lambda *args, **more: contextlib.nullcontext()
    fake.learner_group = learner
    fake._sync_weights = lambda: None
    LLMAlgorithm.training_step(fake)
    return weights_in(learner)


def reported(algo: str, env: Any = None, **sections: Any) -> set[str]:
    """Return the names of what a Learner reports of an update."""
    _, results = updated(algo, env, **sections)
    return set(results["default_policy"])


def all_rows(algo: str, env: Any = None, **sections: Any) -> dict[str, Any]:
    """Return the rows of every module, the central critic's included."""
    learner = learner_of(config_of(algo, env, **sections))
    learner._choose_modules()
    data = LLMTrainingData(episodes=episodes_of(algo, env))
    batch = learner._make_batch_if_necessary(training_data=data)
    return {
        m: {k: v.float().numpy() for k, v in dict(b).items() if torch.is_tensor(v)}
        for m, b in batch.policy_batches.items()
    }


def team_run(algo: str, env: Any = None, **sections: Any) -> Any:
    """Return the agents' policies in real episodes, and the learned weights."""
    try:
        run = Run(config_of(algo, env, **sections))
    except ConfigError as error:
        return type(error).__name__
    episodes = run.sample(2)
    speakers = [
        [(part.agent_id, part.module_id) for part in agent_episodes(e)]
        for e in episodes
    ]
    before = weights_in(run.learner)
    run.update(episodes)
    after = weights_in(run.learner)
    return [speakers, {m: after[m] - before[m] for m in after}]


@functools.cache
def answering_model() -> str:
    """A tiny model whose chat template has a switch."""
    folder = Path(tempfile.mkdtemp(prefix="switch_model_"))
    save_tiny_model(folder, ["hello"], seed=0, **SIZES)
    (template,) = folder.glob("chat_template.jinja")
    text = template.read_text(encoding="utf-8")
    template.write_text("{% if loud is defined %}Shout. {% endif %}" + text)
    return str(folder)


def picture_model() -> str:
    """A tiny vision-language model."""
    folder = Path(tempfile.mkdtemp(prefix="picture_model_"))
    save_tiny_vlm(folder, ["hello"], seed=0, hidden_size=32)
    return str(folder)


class Stepping:
    """An Algorithm's step without anything to train."""

    def step(self):
        return {}


class FirstEvaluated(EvaluatesFirst, Stepping):
    """Counts evaluations."""

    iteration = 0

    def __init__(self, config):
        self.config, self.num_evaluations = config, 0

    def evaluate(self):
        self.num_evaluations += 1
        return {"env_runners": {"num_episodes": 1}}


def first_step(algo: str, env: Any = None, **sections: Any) -> Any:
    """Return how often the first step evaluates, and whether its result says so."""
    config = config_of(algo).copy(copy_frozen=False)
    for name, values in sections.items():
        getattr(config, name)(**values)
    run = FirstEvaluated(config)
    return [result_keys.FIRST_EVALUATION in run.step(), run.num_evaluations]


def evaluation_of(see: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a look at the configuration of evaluation's EnvRunners."""

    def look(algo: str, env: Any = None, **sections: Any) -> Any:
        config = config_of(algo, env, **sections)
        return see(config.get_evaluation_config_object())

    return look


# A real Algorithm ---------------------------------------------------------------------


def connect() -> None:
    """Start Ray, unless it runs."""
    import ray

    if not ray.is_initialized():
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)


@functools.cache
def algorithm() -> Any:
    """An Algorithm without remote EnvRunners, which evaluates if asked to."""
    connect()
    config = config_of("PPO").copy(copy_frozen=False)
    config.evaluation(evaluation_interval=1, evaluation_before_training=False)
    config.evaluation(evaluation_duration=2)
    return config.build_algo()


@contextlib.contextmanager
def configured_run(sections: dict[str, Any]) -> Iterator[Any]:
    """Give the Algorithm other settings for a while; it reads them as it goes on."""
    run = algorithm()
    before, config = run.config, run.config.copy(copy_frozen=False)
    for name, values in sections.items():
        getattr(config, name)(**values)
    run.config = config
    try:
        yield run
    finally:
        run.config = before


def evaluations(algo: str, env: Any = None, **sections: Any) -> Any:
    """Return the evaluated episodes of two iterations; None: there was none."""
    with configured_run(sections) as run:
        found = [run.train().get("evaluation", {}) for _ in range(2)]
    return [each.get("env_runners", each).get("num_episodes") for each in found]


def evaluated_alone(algo: str, env: Any = None, **sections: Any) -> Any:
    """Return how many episodes ``evaluate`` plays."""
    with configured_run(sections) as run:
        return run.evaluate()["env_runners"]["num_episodes"]


def steps_in_iteration(algo: str, env: Any = None, **sections: Any) -> bool:
    """Return whether an iteration has more than one training step."""
    seen = []
    inner = LLMAlgorithm.training_step

    def count(self):
        seen.append(1)
        return inner(self)

    with pytest.MonkeyPatch.context() as patch, configured_run(sections) as run:
        run.config.evaluation(evaluation_interval=None)
        patch.setattr(LLMAlgorithm, "training_step", count)
        run.train()
    return len(seen) > 1


# The Learner's class and connectors ---------------------------------------------------


class OwnLearner(LLMPPOTorchLearner):
    """A Learner that somebody wrote."""


class Marker(ConnectorV2):
    """A connector that somebody wrote: it counts its calls."""

    num_calls = 0

    def __call__(self, *, batch, **kwargs):
        Marker.num_calls += 1
        return batch


def marker(*args: Any) -> Marker:
    """Make the connector, as RLlib asks for it."""
    return Marker()


def learner_built(algo: str, env: Any = None, **sections: Any) -> Any:
    """Return the class of the Learner and its arguments."""
    learner = make_team_learner(config_of(algo, env, **sections))
    return type(learner).__name__, dict(learner.config.learner_config_dict)


def offloaded(algo: str, env: Any = None, **sections: Any) -> bool:
    """Return whether the optimisers keep their state in host memory."""
    with pytest.MonkeyPatch.context() as patch:
        # There is no GPU to place it on.
        patch.setattr(torch_learner, "get_device", lambda *_: torch.device("cpu"))
        learner = make_team_learner(config_of(algo, env, **sections))
    return all(o.offload for o in learner._optimizer_parameters)


def marked(algo: str, env: Any = None, **sections: Any) -> int:
    """Return how often an own connector is called in an update."""
    Marker.num_calls = 0
    updated(algo, env, **sections)
    return Marker.num_calls
