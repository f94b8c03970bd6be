"""Mappings from agents to policies: accepted ones, and errors of others."""

import pytest
from multi_toys import Scripted, made
from team_helpers import Alone, Pair, random_script, team_config, tiny_model

from rllib_llm import GRPOConfig, LLMPPOConfig
from rllib_llm.algorithms.config.sections import apply_section
from rllib_llm.algorithms.marft.marft import MARFTConfig
from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner
from rllib_llm.errors import ConfigError, EnvContractError
from rllib_llm.policy_mapping import MappedPolicies


def ppo(**sections):
    return team_config(Pair, LLMPPOConfig, **sections)


def marft(**sections):
    return team_config(Pair, **sections)


def only_b(module_id, batch=None):
    return module_id == "b"


def test_a_table_maps_names_stems_and_all_others():
    mapping = MappedPolicies({"bob": "x", "bob_1": "y", "*": "z"})
    found = [mapping(a) for a in ("bob_0", "bob_1", "bob", "ann_0")]
    assert found == ["x", "y", "x", "z"]
    with pytest.raises(ConfigError, match=r"'bab_0'.*Did you mean 'bob_0'"):
        MappedPolicies({"bob_0": "x"})("bab_0")


@pytest.mark.parametrize(
    "mapping",
    [{"ann": "a", "ben": "b"}, "team_helpers:by_seed", {"ben_0": "b", "*": "a"}],
)
def test_a_mapping_may_be_a_table_a_name_or_a_function(mapping):
    config = ppo(mapping=mapping)
    config.validate()
    assert config.module_ids == config.trained_module_ids == ("a", "b")


def test_one_name_stands_for_all_agents():
    config = ppo(policies=["a"], mapping="a")
    config.validate()
    assert config.trained_module_ids == ("a",)


def test_policies_to_train_is_a_list_or_a_function():
    assert ppo(train=["b"]).trained_module_ids == ("b",)
    assert ppo(train=only_b).trained_module_ids == ("a", "b")
    for given in (["b"], only_b):
        config = ppo(train=given)
        config.validate()


def test_settings_of_policies_become_rllibs_overrides():
    policies = {
        "a": {"training": {"lr": 1e-5, "clip_param": 0.1}},
        "b": {"generation": {"temperature": 0.7}, "language_model": {"lora": {}}},
    }
    config = ppo(policies=policies)
    config.validate()
    a, b = (config.get_config_for_module(m) for m in "ab")
    assert (a.lr, a.clip_param, a.temperature, a.lm_lora) == (1e-5, 0.1, 1.0, None)
    assert (b.lr, b.clip_param, b.temperature) == (1e-2, config.clip_param, 0.7)
    assert b.lm_lora["rank"] >= 1
    config.validate()  # twice changes nothing
    assert config.get_config_for_module("a").lr == 1e-5


def test_yaml_gives_the_same_policies():
    config = team_config(Pair, LLMPPOConfig, policies=None)
    apply_section(
        config,
        "multi_agent",
        {
            "policies": {
                "a": {"training": {"lr": 1e-5}},
                "b": {"scripted_policy": "team_helpers:random_script"},
            },
            "policy_mapping_fn": {"ann": "a", "ben": "b"},
            "policies_to_train": ["a"],
        },
    )
    config.validate()
    assert config.script_of("b") is random_script
    assert config.llm_module_ids == config.trained_module_ids == ("a",)
    assert config.get_config_for_module("a").lr == 1e-5


BAD = [
    # Agents and policies.
    (lambda: ppo(mapping={"ann": "a"}), r"no policy to the agent 'ben_0'"),
    (
        lambda: ppo(mapping={"ann": "a", "ben": "bb"}),
        r"'ben_0' to 'bb', which is no policy. Did you mean 'b'",
    ),
    (
        lambda: ppo(mapping="a"),
        r"'b' is to be trained, but policy_mapping_fn gives it no agent",
    ),
    (lambda: ppo(mapping="no_such_module:f"), r"cannot be imported"),
    (lambda: ppo(train=["bb"]), r"policies_to_train names 'bb'.*Did you mean 'b'"),
    (lambda: ppo(train=[]), r"No policy is trained"),
    (
        lambda: ppo(
            policies={"a": None, "b": {"scripted_policy": random_script}}, train=["b"]
        ),
        r"names 'b', which is scripted",
    ),
    (
        lambda: ppo(policies={m: {"scripted_policy": random_script} for m in "ab"}),
        r"No policy is trained",
    ),
    (
        lambda: team_config(Alone, LLMPPOConfig),
        r"has a single agent. Use an environment of PettingZoo",
    ),
    # Settings of a policy.
    (
        lambda: ppo(policies={"a": {"trainin": {"lr": 1.0}}, "b": None}),
        r"multi_agent.policies.a.trainin: .*Did you mean 'training'",
    ),
    (
        lambda: ppo(policies={"a": {"rollouts": {"max_turns": 1}}, "b": None}),
        r"multi_agent.policies.a.rollouts: only",
    ),
    (
        lambda: ppo(policies={"a": {"training": {"clip_parm": 1.0}}, "b": None}),
        r"training.clip_parm. Did you mean 'clip_param'",
    ),
    *(
        (
            lambda s=section, k=key, v=value: ppo(
                policies={"a": {s: {k: v}}, "b": None}
            ),
            rf"multi_agent.policies.a.{section}.{key} is one for the whole run",
        )
        for section, key, value in (
            ("training", "num_epochs", 3),
            ("training", "minibatch_size", 2),
            ("generation", "engine", "torch"),
            ("language_model", "history", "rerender"),
        )
    ),
    (
        lambda: ppo(policies={"a": {"generation": {"temperature": 0.0}}, "b": None}),
        r"temperature=0.0 must be > 0",
    ),
    # MARFT.
    (lambda: marft(training={"level": "actoin"}), r"level=.*Did you mean 'action'"),
    (lambda: marft(training={"critic": "centrl"}), r"critic=.*Did you mean 'central'"),
    (
        lambda: marft(training={"update_schedule": "alternte"}),
        r"update_schedule=.*Did you mean 'alternate'",
    ),
    (lambda: marft(training={"whiten_by": "agnt"}), r"whiten_by=.*'agent'"),
    (lambda: marft(training={"team_reward": "men"}), r"team_reward=.*'mean'"),
    (lambda: marft(training={"message_logp": "summ"}), r"message_logp=.*'sum'"),
    (lambda: marft(training={"alternate_every": 0}), r"alternate_every=0 must be"),
    (
        lambda: marft(training={"sequential_ratio_clip": 1.0}),
        r"sequential_ratio_clip=1.0 must be a number in \(0, 1\)",
    ),
    *(
        (
            lambda s=schedule: marft(
                policies=["a"], mapping="a", training={"update_schedule": s}
            ),
            rf"update_schedule='{schedule}' updates policies in turn",
        )
        for schedule in ("alternate", "sequential")
    ),
    (
        lambda: team_config(Alone, MARFTConfig, policies=None),
        r"MARFT trains teams, but .* has a single agent. Use LLMPPO",
    ),
    (
        lambda: marft(
            policies={"a": None, "b": {"language_model": {"model": tiny_model(1)}}}
        ),
        r"critic='shared' reads all policies' tokens.*Use critic='own'",
    ),
    (
        lambda: marft(policies=["a", "critic"], mapping={"ann": "a", "ben": "critic"}),
        r"'critic' is the ModuleID of the critic='shared'",
    ),
    (
        lambda: marft(policies={"a": {"training": {"gamma": 0.5}}, "b": None}),
        r"gamma is .* needs one value. Set it in training, not per policy",
    ),
]


@pytest.mark.parametrize(("build", "message"), BAD)
def test_bad_input_is_refused_with_a_remedy(build, message):
    with pytest.raises(ConfigError, match=message):
        build().validate()


def test_different_bases_are_fine_with_critics_of_their_own():
    other = {"language_model": {"model": tiny_model(1)}}
    marft(policies={"a": None, "b": other}, training={"critic": "own"}).validate()


def test_a_policy_may_be_called_critic_where_there_is_no_common_one():
    for config_class, training in (
        (LLMPPOConfig, {}),
        (MARFTConfig, {"critic": "own"}),
    ):
        config = team_config(
            Pair,
            config_class,
            policies=["a", "critic"],
            mapping={"ann": "a", "ben": "critic"},
            training=training,
        )
        config.validate()


def test_grpo_compares_agents_as_configured():
    config = team_config(Pair, GRPOConfig, rollouts={"group_size": 2})
    with pytest.raises(ConfigError, match="Did you mean 'agent'"):
        config.training(advantage_group_by="agnt")


def test_rewards_of_undeclared_agents_are_refused():
    from rllib_llm.envs import Outcome

    env = made(Scripted, [Outcome({"dan_0": 1.0})], possible_agents=["ann_0", "ben_0"])
    config = team_config(env, LLMPPOConfig)
    config.validate()
    runner = LLMEnvRunner(config=config, worker_index=0)
    with pytest.raises(EnvContractError, match=r"'dan_0'.*Agents: ann_0, ben_0"):
        runner.sample(num_episodes=1)


def test_an_engine_of_one_policy_is_refused_for_several(monkeypatch):
    monkeypatch.setattr(
        "rllib_llm.algorithms.config.validation.validate_engine", lambda _: None
    )
    with pytest.raises(ConfigError, match="weights of one policy.*engine='torch'"):
        marft(generation={"engine": "vllm"}).validate()


def test_a_game_may_be_named_by_its_class():
    for _ in range(2):  # RLlib's registry knows the name from the first time on
        config = team_config("team_helpers:Pair", LLMPPOConfig)
        config.validate()
        assert config.make_text_env().possible_agents == ["ann_0", "ben_0"]
