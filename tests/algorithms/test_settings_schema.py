"""Every setting is declared once: listed, documented, checked by call and attribute."""

import math

import pytest
from ray import tune
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

from rllib_llm.algorithms.config.check_calls import check_attributes
from rllib_llm.algorithms.config.schema import SECTIONS, settings_of
from rllib_llm.algorithms.grpo.grpo import GRPOConfig
from rllib_llm.algorithms.ppo.llm_ppo import LLMPPOConfig
from rllib_llm.algorithms.registry import ALGORITHMS
from rllib_llm.errors import ConfigError
from rllib_llm.schema import find_problem

CONFIGS = {name: ALGORITHMS.get(name).config_class() for name in ALGORITHMS.names()}
# What no setting takes, and what most do not.
NONSENSE = object()
WRONG = (NONSENSE, math.nan, -math.inf, "no such thing", [[]], -1, 0, 1.5, True, None)


@pytest.mark.parametrize("config_class", CONFIGS.values(), ids=CONFIGS)
def test_settings_are_declared_whole(config_class):
    for setting in settings_of(config_class).values():
        assert find_problem(setting.path, setting.default, setting.kind) is None
        assert setting.doc, f"the docstring has no word about {setting.path}"
        assert setting.attribute or setting.section == "alarms"
        assert setting.rule != "anything" and "NoneType" not in setting.rule
        if "number" in setting.rule:
            assert setting.bounds != (None, None), f"{setting.path} has no range"


@pytest.mark.parametrize("config_class", CONFIGS.values(), ids=CONFIGS)
def test_nonsense_is_refused_by_calls_and_by_attributes(config_class):
    config = config_class()
    for setting in settings_of(config_class).values():
        wrong = [
            value
            for value in WRONG
            if find_problem(setting.path, value, setting.kind) is not None
        ]
        assert NONSENSE in wrong, setting.path
        for value in wrong:
            with pytest.raises(ConfigError) as refused:
                getattr(config, setting.section)(**{setting.key: value})
            assert str(refused.value).startswith(setting.path)
        if setting.attribute is None:
            continue
        before = getattr(config, setting.attribute)
        setattr(config, setting.attribute, wrong[-1])
        with pytest.raises(ConfigError) as refused:
            check_attributes(config)
        assert str(refused.value).startswith(setting.path)
        setattr(config, setting.attribute, before)
    check_attributes(config)


@pytest.mark.parametrize("config_class", CONFIGS.values(), ids=CONFIGS)
def test_every_section_and_algorithm_is_listed(config_class):
    settings = settings_of(config_class)
    own = {setting.section for setting in settings.values() if not setting.is_rllib}
    sections = {s for s in SECTIONS if hasattr(config_class, s)}
    assert own >= {s for s in sections if s in SECTIONS[: SECTIONS.index("alarms") + 1]}
    assert [s.attribute for s in settings.values() if s.attribute] != []


def test_a_setting_tells_what_docs_and_help_need():
    setting = settings_of(LLMPPOConfig)["training.gamma_token"]
    assert (setting.section, setting.key, setting.attribute) == (
        "training",
        "gamma_token",
        "gamma_token",
    )
    assert (setting.default, setting.bounds, setting.choices) == (1.0, (0, 1), ())
    assert setting.doc == "Discount per token inside a turn."
    assert setting.rule == "a number in [0, 1]" and not setting.is_rllib
    head = settings_of(LLMPPOConfig)["generation.head"]
    assert head.attribute == "action_head" and head.choices == ("generate", "score")
    assert settings_of(LLMPPOConfig)["learners.num_learners"].is_rllib
    assert settings_of(LLMPPOConfig)["training.critic_lr"].takes_none


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda c: c.rollouts(num_rollout_workers=2),
            "Unknown setting rollouts.num_rollout_workers. Use "
            "env_runners.num_env_runners.",
        ),
        (lambda c: c.language_model(lora=8), "language_model.lora=8 must be a mapping"),
        (
            lambda c: c.language_model(lora={"rank": True}),
            "language_model.lora.rank=True must be a whole number >= 1.",
        ),
        (
            lambda c: c.language_model(tiny={"num_hidden_layers": 0}),
            "language_model.tiny.num_hidden_layers=0 must be a whole number >= 1.",
        ),
        (
            lambda c: c.training(train_batch_size_per_learner=4000),
            "training.train_batch_size_per_learner has no effect on language agents: "
            "it counts time steps",
        ),
        (
            lambda c: c.training(lr=[[0, 1e-4], [0, 1e-5]]),
            "training.lr=[[0, 0.0001], [0, 1e-05]] must be a number >= 0 or a schedule",
        ),
        (
            lambda c: c.training(clip_parm=0.1),
            "Unknown setting training.clip_parm. Did you mean 'clip_param'?",
        ),
        (
            lambda c: c.training(mistake_rate=0.1),
            "Unknown setting training.mistake_rate. Use sft.mistake_rate.",
        ),
        (
            lambda c: c.env_runners(observation_filter="MeanStd"),
            "env_runners.observation_filter has no effect on language agents: RLlib "
            "reads it on its old API stack only.",
        ),
        (
            lambda c: c.env_runners(sample_timeout_s=60.0),
            "env_runners.sample_timeout_s has no effect on language agents: no episode "
            "is dropped because its EnvRunner is slow. Use rollouts.episode_timeout_s",
        ),
        (
            lambda c: c.learners(num_aggregator_actors_per_learner=1),
            "learners.num_aggregator_actors_per_learner has no effect on language "
            "agents: RLlib's asynchronous algorithms alone read it.",
        ),
        (
            lambda c: c.learners(add_default_connectors_to_learner_pipeline=False),
            "learners.add_default_connectors_to_learner_pipeline has no effect on "
            "language agents: the connectors between text and tokens are always used.",
        ),
        (
            lambda c: c.evaluation(evaluation_sample_timeout_s=None),
            "evaluation.evaluation_sample_timeout_s=None must be a number >= 0.",
        ),
        (
            lambda c: c.learners(learner_class="os:system"),
            "learners.learner_class='os:system' must be a subclass of Learner or None.",
        ),
        (
            lambda c: c.rollouts(stop_policies={"timeout": "trian"}),
            "rollouts.stop_policies.timeout='trian' must be one of",
        ),
        (
            lambda c: c.training(clip_param=tune.grid_search([0.1, -1])),
            "training.clip_param=-1 must be a number >= 0.",
        ),
    ],
)
def test_calls_from_python_are_refused_in_words(call, message):
    with pytest.raises(ConfigError) as refused:
        call(GRPOConfig())
    assert str(refused.value).startswith(message)


def test_evaluation_config_is_checked_by_attribute():
    config = GRPOConfig().evaluation(evaluation_config={"temperature": -1.0})
    with pytest.raises(ConfigError, match=r"evaluation_config\.temperature=-1\.0 must"):
        check_attributes(config)
    config = GRPOConfig().evaluation(evaluation_config={"temprature": 1.0})
    with pytest.raises(ConfigError, match="Did you mean 'temperature'"):
        check_attributes(config)
    config = GRPOConfig().evaluation(evaluation_config={"explore": False})
    check_attributes(config)


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("batch_mode", "truncate_episodes", "env_runners.batch_mode has no effect"),
        ("sample_timeout_s", 1.0, "env_runners.sample_timeout_s has no effect"),
        ("train_batch_size", 64, "training.train_batch_size has no effect"),
        ("use_critic", True, "training.use_critic has no effect .* the algorithm"),
        ("torch_skip_nan_gradients", False, "would have no effect: nan_policy"),
    ],
)
def test_attributes_without_effect_are_refused_however_they_are_set(
    attribute, value, message
):
    config = GRPOConfig().environment("guess_number-v0")
    setattr(config, attribute, value)
    with pytest.raises(ConfigError, match=message):
        config.validate()


def test_evaluation_config_refuses_what_has_no_effect():
    config = GRPOConfig().evaluation(evaluation_config={"batch_mode": "any"})
    with pytest.raises(
        ConfigError, match=r"evaluation_config\.batch_mode has no effect"
    ):
        check_attributes(config)
    # Without effect in the section training, where RLlib had it, but not in learners.
    settings = {"learner_config_dict": {"own": 1}}
    check_attributes(GRPOConfig().evaluation(evaluation_config=settings))


def test_a_validated_config_stays_valid():
    config = GRPOConfig().environment("guess_number-v0")
    config.evaluation(evaluation_interval=1)
    for _ in range(2):
        config.validate()
    evaluation = config.get_evaluation_config_object()
    evaluation.validate()
    GRPOConfig().update_from_dict(config.to_dict()).validate()


@pytest.mark.parametrize(
    ("section", "settings", "remedy"),
    [
        ("env_runners", {"gym_env_vectorize_mode": "async"}, "rollouts.env_processes"),
        (
            "fault_tolerance",
            {"restart_failed_sub_environments": True},
            "Use rollouts.max_retries",
        ),
        (
            "reporting",
            {"metrics_num_episodes_for_smoothing": 5},
            "means over the episodes of an iteration",
        ),
        (
            "evaluation",
            {"evaluation_force_reset_envs_before_iteration": False},
            "never continues an episode",
        ),
    ],
)
def test_settings_of_stock_runners_are_refused_without_one(section, settings, remedy):
    (name,) = settings
    config = LLMPPOConfig().environment("guess_number-v0")
    getattr(config, section)(**settings)
    with pytest.raises(
        ConfigError, match=f"{name}=.* would have no effect: .*{remedy}"
    ):
        config.validate()
    config.env_runners(env_runner_cls=SingleAgentEnvRunner).validate()


def test_merged_connector_states_need_somewhere_to_go():
    config = LLMPPOConfig().environment("guess_number-v0")
    config.env_runners(
        num_env_runners=1,
        create_local_env_runner=False,
        broadcast_env_runner_states=False,
    )
    with pytest.raises(ConfigError, match="merged states of the connectors"):
        config.validate()
    config.env_runners(merge_env_runner_states=False).validate()


def test_search_spaces_pass_and_are_stored():
    space = tune.loguniform(1e-5, 1e-3)
    config = GRPOConfig().training(lr=space).rollouts(group_size=tune.choice([2, 4]))
    assert config.lr is space
    check_attributes(config)


class _OwnConfig(GRPOConfig):
    """A subclass that uses fluent methods before it is complete."""

    def __init__(self, algo_class=None):
        super().__init__(algo_class=algo_class)
        self.training(lr=3e-4)
        self.bonus = 0.5

    def training(self, *, bonus: float = 0.5, **kwargs):
        """Set the training settings.

        Args:
            bonus: A setting of its own.
            kwargs: ``GRPOConfig.training``.
        """
        super().training(**kwargs)
        self.bonus = bonus
        return self


def test_settings_of_subclasses_are_listed_and_checked():
    setting = settings_of(_OwnConfig)["training.bonus"]
    assert (setting.attribute, setting.default) == ("bonus", 0.5)
    assert _OwnConfig().training(bonus=2.0, lr=1e-5).bonus == 2.0
    with pytest.raises(ConfigError, match=r"training\.bonus='much' must be a number"):
        _OwnConfig().training(bonus="much")
    with pytest.raises(ConfigError, match="Did you mean 'bonus'"):
        _OwnConfig().training(bonsu=1.0)
