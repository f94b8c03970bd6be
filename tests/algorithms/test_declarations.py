"""A setting is one declaration: defaults, methods, help and checks follow from it."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from typing import Annotated

import pytest
from annotated_types import Interval
from ray import cloudpickle
from ray.rllib.algorithms.algorithm_config import NotProvided
from ray.rllib.algorithms.ppo.ppo import PPOConfig

from rllib_llm.algorithms.config.declarations import (
    DeclaredSettings,
    fluent_method,
    setting,
)
from rllib_llm.algorithms.config.llm_config import LLMConfigMixin
from rllib_llm.algorithms.config.schema import (
    SECTIONS,
    declarations,
    declared_settings,
    settings_of,
)
from rllib_llm.algorithms.grpo.grpo import GRPOConfig
from rllib_llm.algorithms.ppo.llm_ppo import LLMPPOConfig
from rllib_llm.algorithms.registry import ALGORITHMS
from rllib_llm.algorithms.selfplay.self_play import SelfPlayConfig
from rllib_llm.errors import ConfigError
from rllib_llm.schema import NonNegativeFloat

CONFIGS = {name: ALGORITHMS.get(name).config_class() for name in ALGORITHMS.names()}


class _Bonus(GRPOConfig):
    """A config with a setting of its own and other defaults."""

    bonus: NonNegativeFloat = setting(0.5, "Reward of a solved task.")
    weights: dict[str, float] = setting({}, "Weights by name.")
    group_size = setting(4)
    lr = setting(3e-4)
    turn_discount: Annotated[float, Interval(ge=0.5, le=1)] = setting(0.9)


class _Bare(LLMConfigMixin, PPOConfig):
    def __init__(self, algo_class=None):
        super().__init__(algo_class=algo_class)
        self._set_llm_defaults()


def test_a_declaration_is_the_whole_setting():
    config = _Bonus()
    assert (config.bonus, config.group_size, config.lr) == (0.5, 4, 3e-4)
    assert config.training(bonus=2.0, lr=1e-5, critic_lr=None) is config
    assert (config.bonus, config.lr) == (2.0, 1e-5)
    declared = settings_of(_Bonus)["training.bonus"]
    assert declared.doc == "Reward of a solved task." and not declared.is_rllib
    assert (declared.rule, declared.default) == ("a number >= 0", 0.5)
    with pytest.raises(ConfigError, match=r"training\.bonus=-1 must be a number >= 0"):
        config.training(bonus=-1)
    assert "bonus" in inspect.signature(_Bonus.training).parameters
    assert "bonus (a number >= 0): Reward of" in inspect.getdoc(_Bonus.training)


def test_a_subclass_changes_a_default_or_a_type_alone():
    group_size = settings_of(_Bonus)["rollouts.group_size"]
    before = settings_of(GRPOConfig)["rollouts.group_size"]
    assert (group_size.default, before.default) == (4, 8)
    assert (group_size.doc, group_size.kind) == (before.doc, before.kind)
    discount = settings_of(_Bonus)["training.turn_discount"]
    assert (discount.default, discount.bounds) == (0.9, (0.5, 1))
    assert discount.doc == settings_of(GRPOConfig)["training.turn_discount"].doc
    assert _Bonus().training(turn_discount=0.6).turn_discount == 0.6
    with pytest.raises(ConfigError, match=r"turn_discount=0\.1 must be a number in"):
        _Bonus().training(turn_discount=0.1)
    GRPOConfig().training(turn_discount=0.1)


def test_no_two_configs_share_a_default():
    first, second = _Bonus(), _Bonus()
    first.weights["a"] = 1.0
    first.engine_kwargs["b"] = 1
    assert second.weights == {} and second.engine_kwargs == {}


def test_a_default_of_nothing_is_refused():
    class Wrong(GRPOConfig):
        groupsize = setting(4)

    with pytest.raises(TypeError, match=r"Wrong: groupsize = setting\(4\) changes"):
        Wrong()


def test_a_class_has_one_method_with_settings():
    with pytest.raises(TypeError, match="Two has the methods rollouts, learners"):

        class Two(DeclaredSettings):
            rollouts = fluent_method()
            learners = fluent_method()


@pytest.mark.parametrize("config_class", CONFIGS.values(), ids=CONFIGS)
def test_settings_are_attributes_of_objects_alone(config_class):
    config = config_class()
    for name, declared in declarations(config_class).items():
        assert declared.attribute is None or name in vars(config)
        # LLMConfigMixin has the value for algorithms without this setting.
        assert name == "observation_weight" or not hasattr(config_class, name)


@pytest.mark.parametrize("config_class", CONFIGS.values(), ids=CONFIGS)
def test_signatures_and_help_have_every_declared_setting(config_class):
    for section in SECTIONS:
        declared = declared_settings(config_class, section)
        if not declared:
            continue
        method = getattr(config_class, section)
        parameters = dict(inspect.signature(method).parameters)
        assert parameters.pop("self")
        settings = [
            s for s in settings_of(config_class).values() if s.section == section
        ]
        rllib = ", ".join(s.key for s in settings if s.is_rllib)
        assert (parameters.pop("kwargs", None) is not None) == (rllib != "")
        assert list(parameters) == list(declared)
        text = " ".join(inspect.getdoc(method).split())
        assert rllib in text
        assert not text.startswith("Args:")
        for key, parameter in parameters.items():
            assert parameter.kind is parameter.KEYWORD_ONLY
            assert parameter.annotation and parameter.default is NotProvided
            assert declared[key].doc in text


def test_the_nearest_declaration_counts():
    baseline = "advantage_baseline"
    parameters = inspect.signature(SelfPlayConfig.training).parameters
    assert "ROLE" in parameters[baseline].annotation
    assert SelfPlayConfig().training(advantage_baseline="role").advantage_baseline
    with pytest.raises(ConfigError, match="advantage_baseline='role' must be one of"):
        GRPOConfig().training(advantage_baseline="role")


def test_a_config_without_methods_has_the_shared_settings():
    config = _Bare().training(critic_lr=1e-3, lr=1e-4, clip_param=0.1)
    assert (config.critic_lr, config.lr, config.clip_param) == (1e-3, 1e-4, 0.1)


class _Written(LLMPPOConfig):
    """A config whose method is written as RLlib's are."""

    def __init__(self, algo_class=None):
        super().__init__(algo_class=algo_class)
        self.bonus = 0.5

    def training(self, *, bonus: float = NotProvided, **kwargs):
        super().training(**kwargs)
        if bonus is not NotProvided:
            self.bonus = bonus
        return self


class _Derived(_Written):
    malus: NonNegativeFloat = setting(0.0, "Subtracted.")


def test_declared_and_written_methods_call_each_other():
    config = _Derived().training(bonus=1.0, malus=2.0, gamma_token=0.9, lr=1e-5)
    assert (config.bonus, config.malus) == (1.0, 2.0)
    assert (config.gamma_token, config.lr) == (0.9, 1e-5)
    assert settings_of(_Derived)["training.bonus"].default == 0.5


class _Both(GRPOConfig):
    """A config that declares one setting of ``training`` and writes another."""

    bonus: NonNegativeFloat = setting(0.5, "Reward of a solved task.")

    def __init__(self, algo_class=None):
        super().__init__(algo_class=algo_class)
        self.malus = 0.0

    def training(self, *, malus: float = NotProvided, **kwargs):
        super().training(**kwargs)
        if malus is not NotProvided:
            self.malus = malus
        return self


def test_a_class_may_declare_settings_and_write_the_method():
    config = _Both().training(bonus=1.0, malus=2.0, dual_clip=3.0, lr=1e-5)
    assert (config.bonus, config.malus) == (1.0, 2.0)
    assert (config.dual_clip, config.lr) == (3.0, 1e-5)
    assert settings_of(_Both)["training.malus"].default == 0.0
    with pytest.raises(ConfigError, match=r"training\.malus='much' must be a number"):
        config.training(malus="much")


class _Small(DeclaredSettings):
    """Defaults that several configs can share."""

    group_size = setting(2)
    turn_discount: Annotated[float, Interval(ge=0.5, le=1)] = setting(0.9)


class _SmallGRPO(_Small, GRPOConfig):
    pass


def test_defaults_of_a_mixin_keep_the_rest_of_the_declaration():
    settings, before = settings_of(_SmallGRPO), settings_of(GRPOConfig)
    for path, default in (("rollouts.group_size", 2), ("training.turn_discount", 0.9)):
        assert settings[path].default == default
        assert settings[path].doc == before[path].doc != ""
    assert _SmallGRPO().rollouts(group_size=3).training(turn_discount=0.5).lr == 1e-4


def test_configs_and_their_classes_can_be_sent_to_other_processes():
    copied = pickle.loads(pickle.dumps(GRPOConfig().training(dual_clip=3.0)))
    assert copied.training(dual_clip=4.0).dual_clip == 4.0
    source = (
        "import sys; from ray import cloudpickle\n"
        "from rllib_llm.algorithms.config.declarations import setting\n"
        "from rllib_llm.algorithms.grpo.grpo import GRPOConfig\n"
        "class Own(GRPOConfig):\n"
        "    bonus: float = setting(0.5, 'Reward.')\n"
        "sys.stdout.buffer.write(cloudpickle.dumps(Own().training(bonus=2.0)))\n"
    )
    sent = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, check=True
    ).stdout
    config = cloudpickle.loads(sent)
    assert config.bonus == 2.0 and type(config)().bonus == 0.5
    with pytest.raises(ConfigError, match=r"training\.bonus='much' must be a number"):
        config.training(bonus="much")
