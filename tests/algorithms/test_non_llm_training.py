"""Non-LLM RLModules beside language models: settings, updates, schedules, errors."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from non_llm_toys import MLP, Beside, Discretely, Errand, NonLLMRun
from non_llm_toys import non_llm_config as config_of
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import (
    DefaultPPOTorchRLModule,
)
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.learner import Learner
from ray.rllib.core.rl_module import MultiRLModuleSpec, RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from side_by_side import update_side_by_side
from team_helpers import Pair, assert_bit_equal, random_script

from rllib_llm import GRPOConfig, LLMPPOConfig, MARFTConfig
from rllib_llm.connectors.learner.non_llm_batches import stock_episode
from rllib_llm.errors import ConfigError

PPO_LIKE = [LLMPPOConfig, MARFTConfig]


def with_training(**training):
    return {**MLP, "training": training}


def moved(before, after):
    return any(not torch.equal(before[n], after[n]) for n in before)


# Settings -----------------------------------------------------------------------------


def test_kinds_of_policies():
    config = config_of(train=["talk"])
    assert config.module_ids == ("run", "talk")
    assert config.llm_module_ids == config.trained_module_ids == ("talk",)
    assert config.non_llm_module_ids == ("run",) and not config.trained_non_llm_ids
    assert config_of().trained_non_llm_ids == ("run",)


def test_rllibs_spec_gives_the_same_module():
    spec = RLModuleSpec(
        module_class=DefaultPPOTorchRLModule, model_config={"fcnet_hiddens": [16]}
    )
    in_section = config_of(runner={"rl_module": spec})
    by_method = config_of(policies={"talk": {}, "run": {}})
    by_method.rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs={"run": spec}))
    by_name = config_of(
        runner={
            "rl_module": {
                "module_class": "ray.rllib.algorithms.ppo.torch."
                "default_ppo_torch_rl_module:DefaultPPOTorchRLModule",
                "model_config": {"fcnet_hiddens": [16]},
            }
        }
    )
    weights = []
    for config in (in_section, by_method, by_name):
        run = NonLLMRun(config)
        assert isinstance(run.runner.module["run"], DefaultPPOTorchRLModule)
        weights.append({n: w.shape for n, w in run.weights("run").items()})
        assert run.update(run.sample(2))["run"]["policy_loss"].peek() is not None
    assert weights[0] == weights[1] == weights[2]
    assert weights[0]["pi.net.mlp.0.weight"] == (2, 16)


def test_a_recipe_sets_rl_modules_in_yaml():
    from rllib_llm import yaml_io
    from rllib_llm.recipes import recipe_from_dict

    text = """
    algo: LLMPPO
    env: "non_llm_toys:Errand"
    multi_agent:
      policies:
        talk: {}
        run:
          rl_module: {model_config: {fcnet_hiddens: [32]}}
          training: {lr: 3e-3}
      policy_mapping_fn: {speaker: talk, runner: run}
    stop: {training_iteration: 1}
    """
    config = recipe_from_dict(yaml_io.parse(text, "here"), "here").build_config()
    config.validate()
    assert config.non_llm_module_ids == ("run",)
    assert config.rl_module_of("run").model_config == {"fcnet_hiddens": [32]}
    assert config.get_config_for_module("run").lr == 3e-3


def test_model_config_of_the_run_is_the_default():
    config = config_of(runner={"rl_module": {}})
    config.rl_module(model_config={"fcnet_hiddens": [5]})
    shapes = {tuple(w.shape) for w in NonLLMRun(config).weights("run").values()}
    assert (5, 2) in shapes


class Spoken(Errand):
    def spaces_for(self, agent):
        return None


class Nested(Errand):
    def spaces_for(self, agent):
        spaces = super().spaces_for(agent)
        return spaces and (Dict({"inner": spaces[0]}), spaces[1])

    def observed(self):
        return {"inner": super().observed()}


class Shifted(Errand):
    acts = Discrete(2, start=1)


class Whole(Errand):
    acts = Box(0, 3, (1,), np.int64)


class Unequal(Beside):
    def __init__(self, env_config=None):
        super().__init__()
        self.action_spaces["runner_1"] = Discrete(9)


class Valueless(TorchRLModule):
    pass


BOTH = {"talk": {}, "run": {**MLP, "scripted_policy": random_script}}
REFUSED = {
    "text for an MLP": (Spoken, {}, r"'runner_0' the policy 'run'.*reads numbers"),
    "text games": (
        Pair,
        {"mapping": {"ann": "talk", "ben": "run"}},
        r"'ben_0' the policy 'run'.*spaces_for",
    ),
    "nested": (Nested, {}, r"'runner_0' observes Dict.*flatten"),
    "start": (Shifted, {}, r"do not start at 0"),
    "whole numbers": (Whole, {}, r"'runner_0' acts in Box.*float Box"),
    "unequal": (Unequal, {}, r"'runner_1' has the spaces.*other agents of the policy"),
    "numbers for an LM": (
        Errand,
        {"mapping": "talk", "train": ["talk"]},
        r"'runner_0' has numeric observations.*'talk'",
    ),
    "numbers for a script": (
        Errand,
        {"policies": {"talk": {}, "run": {"scripted_policy": random_script}}},
        r"'runner_0' has numeric observations.*rl_module",
    ),
    "two things": (Errand, {"policies": BOTH}, r"'run' is an RLModule, and something"),
    "no agent": (
        Errand,
        {"policies": {"talk": {}, "run": MLP, "idle": MLP}, "train": ["talk"]},
        r"'idle' has no agent to take its spaces from",
    ),
    "no language model": (
        Errand,
        {
            "policies": {
                "run": MLP,
                "scripted_policy": {"scripted_policy": random_script},
            },
            "mapping": {"speaker": "scripted_policy", "runner": "run"},
        },
        r"no language model.*RLlib's PPO",
    ),
    "keys": (
        Errand,
        {"runner": {"rl_module": {"modelconfig": {}}}},
        r"rl_module.modelconfig is not a setting. Did you mean 'model_config'",
    ),
    "model config": (
        Errand,
        {"runner": {"rl_module": {"model_config": {"fcnet_hidden": [3]}}}},
        r"fcnet_hidden is not a setting.*Did you mean 'fcnet_hiddens'",
    ),
    "recurrent": (
        Errand,
        {"runner": {"rl_module": {"model_config": {"use_lstm": True}}}},
        r"use_lstm=True",
    ),
    "class": (
        Errand,
        {"runner": {"rl_module": {"module_class": Valueless}}},
        r"subclass of ValueFunctionAPI",
    ),
    "no module": (
        Errand,
        {"runner": {"rl_module": {"module_class": dict}}},
        r"subclass of TorchRLModule",
    ),
    "mlp": (Errand, {"runner": {"rl_module": "mlp"}}, r"rl_module='mlp' must be"),
    "section": (
        Errand,
        {"runner": {**MLP, "generation": {"temperature": 0.5}}},
        r"run.generation.temperature does not concern an RLModule",
    ),
    "setting": (
        Errand,
        {"runner": with_training(gamma_token=0.5)},
        r"run.training.gamma_token does not concern an RLModule",
    ),
    "stock runner": (
        Errand,
        {"env_runners": {"env_runner_cls": MultiAgentEnvRunner}},
        r"needs LLMEnvRunner",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_work_is_refused_before_anything_is_built(what):
    env, settings, message = REFUSED[what]
    with pytest.raises(ConfigError, match=message):
        config_of(env, **settings).validate()


def test_grpo_refuses_to_train_an_mlp_but_samples_beside_one():
    groups = {"rollouts": {"group_size": 2}}
    with pytest.raises(ConfigError, match=r"'run' is trained by RLlib's PPO.*GRPO has"):
        config_of(config_class=GRPOConfig, **groups).validate()
    run = NonLLMRun(config_of(config_class=GRPOConfig, train=["talk"], **groups))
    before = run.weights("run")
    run.update(run.sample(2))
    assert_bit_equal(before, run.weights("run"))


def test_marft_needs_a_trained_language_model():
    with pytest.raises(ConfigError, match="MARFT's advantages pass.*use LLMPPO"):
        config_of(config_class=MARFTConfig, train=["run"]).validate()


# Updates ------------------------------------------------------------------------------


@pytest.mark.parametrize("config_class", PPO_LIKE)
def test_both_learn_each_at_its_own_rate(config_class):
    run = NonLLMRun(config_of(config_class=config_class, runner=with_training(lr=1e-3)))
    talk, mlp = run.weights("talk"), run.weights("run")
    run.update(run.sample(4))
    # The first step of Adam is as long as the learning rate, whatever the gradient.
    assert moved(talk, run.weights("talk"))
    steps = [(w - mlp[n]).abs().max() for n, w in run.weights("run").items()]
    assert max(steps) == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("still", ["talk", "run"])
def test_a_rate_of_zero_moves_nothing(still):
    policies = {"talk": {}, "run": MLP}
    policies[still] = {**policies[still], "training": {"lr": 0.0}}
    run = NonLLMRun(config_of(policies=policies))
    before = {m: run.weights(m) for m in policies}
    run.update(run.sample(4))
    for module_id in policies:
        if module_id == still:
            assert_bit_equal(before[module_id], run.weights(module_id))
        else:
            assert moved(before[module_id], run.weights(module_id))


@pytest.mark.parametrize("trained", ["talk", "run"])
def test_frozen_policies_stay_to_the_bit_and_act_on(trained):
    run = NonLLMRun(config_of(train=[trained]))
    before = {m: run.weights(m) for m in ("talk", "run")}
    for _ in range(2):
        run.update(run.sample(4))
    (still,) = {"talk", "run"} - {trained}
    assert_bit_equal(before[still], run.weights(still))
    assert moved(before[trained], run.weights(trained))


@pytest.mark.parametrize("config_class", PPO_LIKE)
def test_the_step_is_that_of_a_stock_ppo_learner(config_class):
    training = {"lr": 1e-2, "gamma": 0.9, "lambda_": 0.8, "entropy_coeff": 0.01}
    runner = {**MLP, "training": {**training, "use_kl_loss": True, "kl_coeff": 0.3}}
    run = NonLLMRun(config_of(config_class=config_class, runner=runner))
    episodes = run.sample(4)
    module = run.learner.module["run"].unwrapped()
    stock = (
        PPOConfig()
        .training(
            **training,
            use_kl_loss=True,
            kl_coeff=0.3,
            grad_clip=1.0,
            vf_loss_coeff=run.config.vf_loss_coeff,
            vf_clip_param=run.config.vf_clip_param,
            clip_param=run.config.clip_param,
            num_epochs=1,
            minibatch_size=None,
        )
        .rl_module(model_config={"fcnet_hiddens": [16]})
        .build_learner(spaces={"default_policy": (Errand.reads, Errand.acts)})
    )
    stock.module["default_policy"].unwrapped().load_state_dict(module.state_dict())
    parts = [stock_episode(e.agent_episodes["runner_0"]) for e in episodes]
    for part in parts:  # the stock Learner has one policy
        part.agent_id = part.module_id = part.multi_agent_episode_id = None
    stock.update(episodes=parts, timesteps={}, num_epochs=1)
    run.update(episodes)
    theirs = stock.module["default_policy"].unwrapped().state_dict()
    for name, value in module.state_dict().items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-5, atol=1e-6)


def test_every_time_step_is_learnt_from_once_per_epoch(monkeypatch):
    run = NonLLMRun(config_of(rollouts={"episodes_per_iteration": 5}))
    episodes, seen = run.sample(5), []
    backward = run.learner._backward_non_llm

    def keep(module_id, data):
        seen.append(data)
        return backward(module_id, data)

    monkeypatch.setattr(run.learner, "_backward_non_llm", keep)
    run.update(episodes, num_epochs=2, minibatch_size=2)
    assert len(seen) == 6
    for epoch in (seen[:3], seen[3:]):
        rows = torch.cat([d[Columns.OBS][d[Columns.LOSS_MASK]] for d in epoch])
        observations = [
            e.agent_episodes["runner_0"].get_observations()[:-1] for e in episodes
        ]
        want = np.concatenate([np.stack(each) for each in observations])
        assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, want.tolist()))


class Absent(Errand):
    """In half of the games the runner does nothing."""

    def start(self, rng, rounds: int = 3):
        super().start(rng, rounds)
        self.runs = rng.random() < 0.5

    def next_agent(self):
        return super().next_agent() if self.runs else "speaker_0"


def test_several_learners_take_the_same_steps(monkeypatch):
    """Also where one of them has no time step of the MLP."""
    config = config_of(Absent, rollouts={"episodes_per_iteration": 4, "max_turns": 4})
    runs = [NonLLMRun(config) for _ in range(2)]
    runs[1].learner.set_state(runs[0].learner.get_state())
    episodes = runs[0].sample(12)
    with_runner = [e for e in episodes if "runner_0" in e.agent_episodes]
    without = [e for e in episodes if "runner_0" not in e.agent_episodes]
    assert with_runner and without
    before = runs[0].weights("run")
    pair = [with_runner[0], without[0]]
    learners = [run.learner for run in runs]
    update_side_by_side(learners, pair, monkeypatch)
    assert_bit_equal(runs[0].weights("run"), runs[1].weights("run"))
    assert moved(before, runs[0].weights("run"))


@pytest.mark.parametrize("schedule", ["alternate", "sequential"])
def test_marfts_schedules_let_the_mlp_learn_every_time(schedule):
    class Two(Errand):
        possible_agents = ["speaker_0", "scribe_0", "runner_0"]

        def apply(self, agent, action):
            return super().apply("speaker_0" if agent == "scribe_0" else agent, action)

    config = config_of(
        Two,
        MARFTConfig,
        policies={"talk": {}, "write": {}, "run": MLP},
        mapping={"speaker": "talk", "scribe": "write", "runner": "run"},
        training={"update_schedule": schedule, "alternate_every": 1},
    )
    run = NonLLMRun(config)
    for learning in ("talk", "write"):
        before = {m: run.weights(m) for m in config.module_ids}
        run.update(run.sample(4))
        changed = {m for m in before if moved(before[m], run.weights(m))}
        both = {"talk", "write"} if schedule == "sequential" else {learning}
        assert changed == both | {"run"}


def test_an_mlp_learns_while_the_critic_of_the_language_model_warms_up():
    run = NonLLMRun(config_of(training={"critic_warmup_iters": 1}))
    before = {m: run.weights(m) for m in ("talk", "run")}
    run.update(run.sample(4))
    talk = {n: w for n, w in run.weights("talk").items() if "value_head" not in n}
    assert_bit_equal(talk, {n: before["talk"][n] for n in talk})
    assert moved(before["run"], run.weights("run"))


def test_losses_of_minibatches_are_averaged_by_time_steps():
    run = NonLLMRun(config_of(runner=with_training(lr=0.0)))
    episodes = run.sample(4)
    whole = run.update(episodes)["run"]
    parts = run.update(episodes, minibatch_size=1)["run"]
    for key in ("vf_loss", "entropy"):
        assert parts[key].peek() == pytest.approx(whole[key].peek(), rel=1e-5)


@pytest.mark.parametrize("team_reward", ["mean", "sum"])
def test_team_rewards_include_those_of_the_non_llm_agent(team_reward):
    config = config_of(Discretely, MARFTConfig, training={"team_reward": team_reward})
    run = NonLLMRun(config)
    result = run.update(run.sample(4))
    assert np.isfinite(result["talk"]["policy_loss"].peek())


# State --------------------------------------------------------------------------------


def test_a_learners_state_goes_on_to_the_bit():
    config = config_of()
    straight, resumed = NonLLMRun(config), NonLLMRun(config)
    straight.update(straight.sample(4))
    resumed.learner.set_state(straight.learner.get_state())
    episodes = straight.sample(4)
    for run in (straight, resumed):
        run.update(episodes)
    for module_id in ("talk", "run"):
        assert_bit_equal(straight.weights(module_id), resumed.weights(module_id))


def test_the_runner_samples_with_the_learners_own_tensors():
    run = NonLLMRun(config_of())
    mine = dict(run.runner.module["run"].named_parameters())
    theirs = dict(run.learner.module["run"].unwrapped().named_parameters())
    assert "vf.net.mlp.0.weight" in theirs.keys() - mine.keys()
    for name, tensor in mine.items():
        assert tensor.data_ptr() == theirs[name].data_ptr(), name
    run.update(run.sample(4))
    assert run.runner.actors["run"].weights_seq_no == 1
    (episode,) = run.sample(1)
    turn = episode.agent_episodes["runner_0"].get_extra_model_outputs("turn", 0)
    assert turn.weights_seq_no == 1


def test_weights_reach_other_runners():
    from rllib_llm.algorithms.driver.weight_sync import _Pack
    from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner

    run = NonLLMRun(config_of())
    other = LLMEnvRunner(config=run.config, worker_index=1)
    run.update(run.sample(4))
    assert isinstance(run.learner, Learner)
    for everything in (True, False):
        call = _Pack("bfloat16", everything)
        packed = call.packed(run.learner)
        assert set(packed) == {"talk", "run"}
        other.receive_weights(packed, 1)
        assert other.has_all_weights
        state = run.learner.module["run"].unwrapped().state_dict()
        for name, value in other.module["run"].state_dict().items():
            assert torch.equal(value, state[name]), name  # not rounded to bfloat16
        run.update(run.sample(4))
