"""Further effects of settings, and games to show them."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import ray
import torch
from setting_looks import (
    alarmed,
    config_of,
    module_of,
    one_pass,
    runner_of,
    updated,
)
from team_helpers import Alone, PairTogether, make_team_learner

from rllib_llm import GRPO, GRPOConfig, SelfPlay, SelfPlayConfig
from rllib_llm.algorithms.algorithm import LLMAlgorithm
from rllib_llm.algorithms.driver import placement
from rllib_llm.algorithms.driver.build_vllm_engines import with_engine_bundle
from rllib_llm.algorithms.driver.rewards_filters_curriculum import DriverComponents
from rllib_llm.algorithms.driver.weight_transfer import weight_sync_of
from rllib_llm.algorithms.grpo.grpo import estimators_of_policies
from rllib_llm.algorithms.learner.llm_learner import LLMLearnerMixin
from rllib_llm.data import columns
from rllib_llm.data.added_texts import AddedText, FixedTexts
from rllib_llm.data.episode_data import agent_episodes, episode_data
from rllib_llm.data.types import TurnResult
from rllib_llm.engines import SamplingParams, generate
from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner
from rllib_llm.env_runner.replay import Replay
from rllib_llm.errors import (
    ConfigError,
    EnvContractError,
    RLlibLLMError,
)
from rllib_llm.offline.conversation_files import parse_row
from rllib_llm.offline.prepare_model import prepare_language_model

# Environments -------------------------------------------------------------------------


class Failing(Alone):
    """Fails in the first attempts of every episode."""

    attempts: dict[int, int] = {}

    def reset(self, *, seed=None, options=None):
        self.seeded = seed
        return super().reset(seed=seed, options=options)

    def reply(self, action):
        tried = Failing.attempts.get(self.seeded, 0)
        Failing.attempts[self.seeded] = tried + 1
        if tried < 2:
            raise RuntimeError("out of order")
        return super().reply(action)


class Broken(Alone):
    """Fails always."""

    def reply(self, action):
        raise RuntimeError("out of order")


class Slow(Alone):
    """Takes 0.2 s for every step."""

    def reply(self, action):
        time.sleep(0.2)
        return TurnResult("On.", reward=1.0, terminated=self.turn == 3)


class Listed(Alone):
    """Lists its actions."""

    def admissible_actions(self):
        return ["a", "a long one", "b c"]


class Noted:
    """A component of texts: the same one before all first messages."""

    of = None

    def assign(self, task, iteration):
        source = FixedTexts((AddedText(1, "Say it twice."),))
        return dataclasses.replace(task, prompt_text=source)

    def asked(self, table):
        return []

    def observe(self, table, answers):
        return {}

    def shared(self):
        return None


def survived(algo, env=None, **sections):
    """Return the number of remaining episodes, or the error."""
    Failing.attempts.clear()
    runner = runner_of(algo, env, **sections)
    try:
        tasks = runner.config.build_task_source().next_groups(2)
        return len(runner.sample(tasks=tasks))
    except EnvContractError as error:
        return str(error)[:20]


# Further places to look ---------------------------------------------------------------


def about(see: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a look at the default policy's module."""
    return lambda algo, env=None, **sections: see(module_of(algo, **sections))


def configured(see: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a look at the configuration."""
    return lambda algo, env=None, **sections: see(config_of(algo, env, **sections))


def cache_rows(algo, env=None, **sections):
    config = config_of(algo, env, **sections).copy(copy_frozen=False)
    config.env_runners(num_envs_per_env_runner=64)
    return LLMEnvRunner(config=config, worker_index=0).engine.max_slots


def drafted_tokens(algo, env=None, **sections):
    """Return how many tokens of equal turns the engine drafts."""
    engine = runner_of(algo, env, **sections).engine
    params = [SamplingParams(max_new_tokens=8, seed=0, temperature=0.0)] * 8
    for _ in range(2):
        generate(engine, [[1, 2, 3]] * 8, params)
    return engine.stats()["draft_tokens"]


def evaluated(algo, env=None, **sections):
    """Return the episodes of an evaluation EnvRunner."""
    config = config_of(algo, env).copy(copy_frozen=False)
    config.in_evaluation = True
    for name, values in sections.items():
        getattr(config, name)(**values)
    runner = LLMEnvRunner(config=config, worker_index=0)
    return [
        [t.action_ids.tolist() for t in e.get_extra_model_outputs(columns.TURN)]
        for e in runner.sample(num_episodes=4)
    ]


def calls_in_update(owner, name):
    """Return a look at how often a method is called in an update."""

    def look(algo, env=None, **sections):
        counted = []
        with pytest.MonkeyPatch.context() as patch:
            inner = getattr(owner, name)

            def count(*args, **kwargs):
                counted.append(1)
                return inner(*args, **kwargs)

            is_static = isinstance(vars(owner).get(name), staticmethod)
            patch.setattr(owner, name, staticmethod(count) if is_static else count)
            updated(algo, env, **sections)
        return len(counted)

    return look


def during_backward(probe: Callable[[], Any]) -> Callable[..., Any]:
    """Return a look at what ``probe`` returns in the backward passes of an update."""

    def look(algo, env=None, **sections):
        seen = set()
        with pytest.MonkeyPatch.context() as patch:
            inner = LLMLearnerMixin._backward

            def note(*args, **kwargs):
                seen.add(probe())
                return inner(*args, **kwargs)

            patch.setattr(LLMLearnerMixin, "_backward", note)
            updated(algo, env, **sections)
        return seen

    return look


def learner_after(see: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a look at the Learner after an update."""
    return lambda algo, env=None, **sections: see(updated(algo, env, **sections)[0])


class Silent:
    """Logs nothing."""

    def log_value(self, *args, **kwargs):
        """Take it."""

    aggregate = log_value


class Fake:
    """An algorithm without EnvRunners or Learners: its driver's methods only."""

    def __new__(cls, config, episodes):
        algo = config.algo_class.__new__(config.algo_class)
        algo.config, algo.metrics = config, Silent()
        algo._iteration = 0
        algo._driver_components = DriverComponents(config)
        algo._task_source = config.build_task_source()
        algo.asked = []
        if hasattr(config, "stored_rows"):
            algo._conversations = config.stored_rows(parse_row)
        if hasattr(config, "build_advantage_estimators"):
            algo._advantage_estimators = estimators_of_policies(config)
            algo._replay = Replay(config.make_text_env)
            algo._uses_components, algo._needs_greedy = config.uses_components, False

        def play(num_groups):
            algo.asked.append(num_groups)
            return list(episodes)

        algo.play_groups = play
        return algo


def collected(algo, env=None, *, flat=False, **sections):
    """Return the numbers of sampled groups, and the trained episodes."""
    config = config_of(algo, env, **sections)
    runner = runner_of(algo, env, **sections)
    groups = max(1, 8 // config.group_size)
    tasks = config.build_task_source().next_groups(groups)
    episodes = runner.sample(tasks=tasks)
    for episode in episodes if flat else ():
        episode.set_rewards(new_data=[0.0] * len(episode))
    fake = Fake(config, episodes)
    left = fake.collect()
    rewards = [list(p.get_rewards()) for e in left for p in agent_episodes(e)]
    advantage_estimator = [
        episode_data(p).advantage for e in left for p in agent_episodes(e)
    ]
    return [fake.asked, rewards, advantage_estimator]


def alternating(algo, env=None, **sections):
    """Return the policies updated in the first updates."""
    training = {"update_schedule": "alternate", **sections.pop("training", {})}
    learner = make_team_learner(config_of(algo, env, training=training, **sections))
    seen = []
    for update_number in range(1, 6):
        learner._weights_seq_no = update_number
        seen.append([m for m in "ab" if learner.should_module_be_updated(m)])
    return seen


class Taught(Alone):
    """Has an expert."""

    def expert_action(self, rng):
        return "yes"

    def random_action(self, rng):
        return str(rng.integers(1000))


def demonstrated(algo, env=None, **sections):
    """Return the expert's turns."""
    config = config_of(algo, env, **sections)
    fake = Fake(config, [])
    return [
        [m["content"] for m in episode_data(e).messages if m["role"] == "assistant"]
        for e in fake.collect()
    ]


def imitated(algo, env=None, **sections):
    """Return the weights with which RL begins."""
    given = {"demonstrations": 4, "minibatch_size": 2, **sections.pop("sft")}
    config = config_of(algo, env, sft=given, **sections)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLLIB_LLM_CACHE", tempfile.mkdtemp())
        config.resolved_model = prepare_language_model(config)
    lm = make_team_learner(config).module["default_policy"].unwrapped().lm
    return torch.cat([p.detach().flatten() for p in lm.parameters()]).numpy()


def league(algo, env=None, **sections):
    """Return a league's choices and snapshots."""
    pytest.importorskip("openskill")
    config = config_of(algo, env, **sections)
    maker = config.build_matchmaker()
    seen = [config.opponent_slots, maker.wants_snapshot()]
    for game in range(12):
        if maker.slots and len(maker.members()) < min(3, len(maker.slots)):
            maker.add_snapshot(game)
        rivals = list(maker.members())
        rival = rivals[game % len(rivals)] if rivals else "default_policy"
        assignment = {"ann_0": "default_policy", "ben_0": rival}
        maker.record([maker.result(game, assignment, {"ann_0": 1.0})])
        seen.append(maker.wants_snapshot())
    seen += [maker.league.probabilities(), maker.metrics()]
    seen += [[maker.assignment(seed) for seed in range(20)]]
    held_out = config.build_task_source(in_evaluation=True).fixed(4)
    return [*seen, [task.assignment for task in held_out]]


def length_of(trajectory):
    """A reward."""
    return float(len(trajectory.completions[-1]))


OTHER = {"default_policy": None, "other": {"scripted_policy": length_of}}


def opponent_or_refusal(algo, env=None, **sections):
    """Return the policies in evaluation; without an opponent "other" is unused."""
    try:
        return league(algo, env, **sections)[-1]
    except ConfigError as error:
        return type(error).__name__


def engine_built(algo, env=None, **sections):
    """Return the engine's class and arguments."""
    config = GRPOConfig()
    for name, values in sections.items():
        getattr(config, name)(**values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "rllib_llm.algorithms.driver.build_vllm_engines.build_engine",
            lambda config: (config.generation_engine, config.engine_kwargs),
        )
        patch.setattr(
            "rllib_llm.algorithms.driver.build_engines.torch_engine",
            lambda *a, **k: "torch",
        )
        return config.build_generation_engine(None)


def bundles(algo, env=None, **sections):
    """Return the resources requested from Tune."""
    config = config_of(algo).copy(copy_frozen=False)
    for name, values in sections.items():
        getattr(config, name)(**values)
    request = config.algo_class.default_resource_request(config.to_dict())
    return [request.bundles, request.strategy]


def wait_for_nodes(algo, env=None, **sections):
    """Return how long an algorithm waits for nodes that do not come."""
    config, waits = config_of(algo).copy(copy_frozen=False), []
    config.resources(**sections["resources"]).env_runners(
        num_env_runners=1, custom_resources_per_env_runner={"chip": 1.0}
    )
    request = config.algo_class.default_resource_request(config)
    with (
        mock.patch.object(placement, "node_resources", lambda: [{"CPU": 8.0}]),
        mock.patch.object(ray.util, "get_current_placement_group", lambda: None),
        mock.patch.object(
            placement, "_can_be_placed", lambda b, s, wait_s: waits.append(wait_s)
        ),
        pytest.raises(ConfigError, match="1 CPU, 1 chip"),
    ):
        placement.require_nodes_of_actors(request, config)
    return waits


def engine_bundle(algo, env=None, **sections):
    """Return the resources requested from Tune with an engine actor."""
    config = GRPOConfig().generation(engine="vllm_actor", **sections["generation"])
    request = GRPO.default_resource_request(config_of("GRPO").to_dict())
    return with_engine_bundle(request, config).bundles


def engines_asleep(algo, env=None, **sections):
    """Return the calls to engines before an update."""
    config = GRPOConfig().generation(**sections["generation"])
    runner = SimpleNamespace(engines={"default_policy": mock.Mock()})
    group = SimpleNamespace(local_env_runner=runner)
    fake = SimpleNamespace(
        config=SimpleNamespace(engine_sleep=config.engine_sleep, call_limit=None),
        env_runner_group=group,
        eval_env_runner_group=None,
        _weights_version=0,
    )
    with mock.patch("rllib_llm.algorithms.algorithm.call_runners"):
        LLMAlgorithm._let_engines_sleep(fake)
    return runner.engines["default_policy"].mock_calls


def sync_dtype(algo, env=None, **sections):
    """Return the data type in which weights are sent."""
    return weight_sync_of(config_of(algo, env, **sections), None)._dtype


def transferred(algo, env=None, **sections):
    """Return how the Learners send weights to the engine."""
    config = GRPOConfig().rollouts(**{"weight_sync": "nccl"} | sections["rollouts"])
    learners = mock.MagicMock()
    with mock.patch("rllib_llm.algorithms.driver.weight_transfer.build_engine"):
        weight_sync_of(config, learners)
    if not learners.foreach_learner.called:
        return None
    (call,) = learners.foreach_learner.call_args.args
    return call.backend, call.bucket_bytes


def on_nan(algo, env=None, **sections):
    """Return the result of a non-finite gradient."""
    learner = make_team_learner(config_of(algo, env, **sections))
    learner._reset_stats()
    for parameter in learner.module["default_policy"].unwrapped().parameters():
        parameter.grad = torch.full_like(parameter, float("nan"))
    try:
        return learner._all_finite()
    except RLlibLLMError:
        return "error"


def exploited(algo, env=None, **sections):
    """Return the exploiter's updates and measurements of exploitability."""
    pytest.importorskip("openskill")
    config = SelfPlayConfig().environment(PairTogether)
    config.league(opponents="mirror", **sections["league"])
    seen = []
    fake = Fake(config, [])
    fake.matchmaker = config.build_matchmaker()
    fake._update_exploiter = lambda: seen.append("updated")
    fake.measure_exploitability = lambda: (
        seen.append("measured") or SimpleNamespace(exploitability=0.0)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LLMAlgorithm, "training_step", lambda self: seen.append("step"))
        for iteration in range(4):
            fake._iteration = iteration
            type(fake).training_step(fake)
    return [seen, [fake.matchmaker.assignment(task) for task in range(30)]]


def exploiter_noise(algo, env=None, **sections):
    """Return the noise of the exploiter."""
    asked = []
    config = SelfPlayConfig().environment(PairTogether).league(**sections["league"])
    fake = SimpleNamespace(
        config=config,
        _word_log_probs=None,
        env_runner=None,
        env_runner_group=SimpleNamespace(healthy_env_runner_ids=lambda: []),
        _send_exploiter=lambda runners: None,
    )
    module = "rllib_llm.algorithms.selfplay.self_play."
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module + "game_text", lambda config: None)
        patch.setattr(
            module + "respond", lambda text, probs, noise: asked.append(noise)
        )
        SelfPlay._update_exploiter(fake)
    return asked


def explored(algo, env=None, **sections):
    """Return the tasks that an EnvRunner draws itself."""
    config = config_of(algo, env, **sections)
    runner = LLMEnvRunner(config=config, worker_index=0)
    return [
        [t.action_ids.tolist() for t in e.get_extra_model_outputs(columns.TURN)]
        for e in runner.sample(num_episodes=4)
    ]


def more_slots(algo, env=None, **sections):
    """Return the number of concurrent episodes."""
    config = config_of(algo).copy(copy_frozen=False)
    config.env_runners(**sections["env_runners"])
    return LLMEnvRunner(config=config, worker_index=0).num_envs


def kept_on_disk(algo, env=None, **sections):
    folder = Path(tempfile.mkdtemp())
    rollback = {"entropy_collapse": {"below": 0.5, "action": "rollback"}}
    series = [{"entropy": 1.0}, {"entropy": 1.0}]
    alarmed(series, logdir=folder, **rollback, **sections["alarms"])
    return sorted(p.suffix for p in folder.rglob("*") if p.is_file())


def fired(algo, env=None, **sections):
    """Return a guard's messages while entropy collapses."""
    series = [{"entropy": e} for e in (1.0, 1.0, 1.0, 1.0, *[0.001] * 20)]
    return alarmed(series, **sections["alarms"])


def flat_collected(algo, env=None, **sections):
    return collected(algo, env, flat=True, **sections)


def gradient_norm(algo, env=None, **sections):
    """Weights after a step whose size is that of the gradient, not Adam's."""
    taken = []
    with pytest.MonkeyPatch.context() as patch:
        inner = LLMLearnerMixin.apply_gradients

        def note(learner, gradients):
            taken.extend(float(g.norm()) for g in gradients.values())
            return inner(learner, gradients)

        patch.setattr(LLMLearnerMixin, "apply_gradients", note)
        try:
            one_pass(algo, env, **sections)
        except ConfigError as error:  # the setting is needed
            return type(error).__name__
    return np.array(taken)


def prepared_size(algo, env=None, **sections):
    """The configuration of the model that is built."""
    config = GRPOConfig().environment("guess_number-v0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLLIB_LLM_CACHE", tempfile.mkdtemp())
        config.language_model(**sections["language_model"])
        folder = Path(prepare_language_model(config))
    return (folder / "config.json").read_text(encoding="utf-8")


def lowering(action="lower_lr"):
    given = {"below": 0.02, "window": 1, "action": action, "cooldown": 2}
    return {"entropy_collapse": given}
