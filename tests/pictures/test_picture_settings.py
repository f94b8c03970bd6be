"""Settings of policies that read pictures: refusals before training."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from family_folders import WRITERS
from picture_helpers import picture, write_vlm
from transformers import AutoModelForImageTextToText

from rllib_llm import (
    GRPOConfig,
    LLMPPOConfig,
    MARFTConfig,
    PrefConfig,
    PromptSearchConfig,
    RewardModelConfig,
    SelfPlayConfig,
    SFTConfig,
)
from rllib_llm.algorithms.config.preflight import preflight
from rllib_llm.data.types import TurnResult
from rllib_llm.engines import vllm_setup
from rllib_llm.envs import TextEnv
from rllib_llm.errors import ConfigError, EnvContractError
from rllib_llm.offline.prepare_model import prepare_language_model
from rllib_llm.pictures.features import PictureReader
from rllib_llm.pictures.spec import image_spec


def config_of(kind=GRPOConfig, **model):
    model = {"model": "tiny-vlm", **model}
    return kind().environment("colour_grid-v0").language_model(**model)


def grpo(section, **settings):
    return getattr(config_of(), section)(**settings)


@pytest.mark.parametrize("kind", [GRPOConfig, LLMPPOConfig, SFTConfig, PrefConfig])
def test_algorithms_that_carry_pictures_are_accepted(kind):
    config_of(kind).validate()


@pytest.mark.parametrize("kind", [PromptSearchConfig, RewardModelConfig])
def test_algorithms_that_do_not_are_refused(kind):
    config = config_of(kind)
    name = kind.__name__.removesuffix("Config")
    with pytest.raises(ConfigError, match=f"{name} does not carry pictures"):
        config.validate()


@pytest.mark.parametrize("kind", [MARFTConfig, SelfPlayConfig])
def test_algorithms_of_several_agents_are_accepted(kind):
    env = "team-v0" if kind is MARFTConfig else "negotiation-v0"
    kind().environment(env).language_model(model="tiny-vlm").validate()


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (lambda: grpo("generation", head="score"), "generation.head='score'"),
        (lambda: config_of(history="rerender"), "language_model.history='rerender'"),
        (lambda: config_of(compile="eager"), "language_model.compile='eager'"),
        (
            lambda: grpo("rollouts", save_episodes=True, save_as="corrections"),
            "rollouts.save_as='corrections'",
        ),
        (
            lambda: config_of(LLMPPOConfig).scorer(loss="causal"),
            "scorer.loss='causal'",
        ),
    ],
)
def test_settings_that_do_not_carry_pictures_are_refused(config, name):
    with pytest.raises(ConfigError, match="does not carry pictures") as raised:
        config().validate()
    assert name in str(raised.value)


@pytest.fixture
def vllm(monkeypatch):
    """Let vLLM seem to be installed; its arguments are not checked."""
    monkeypatch.setattr(vllm_setup, "check_engine_kwargs", lambda *_, **__: None)


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize("engine", ["vllm", "vllm_actor"])
def test_vllm_reads_the_pictures_of_folders_and_not_of_tiny_vlm(engine, tmp_path):
    config_of(model=WRITERS["idefics3"](tmp_path)).generation(engine=engine).validate()
    with pytest.raises(ConfigError, match="'tiny-vlm', which has no processor"):
        grpo("generation", engine=engine).validate()


@pytest.mark.usefixtures("vllm")
def test_vllm_reads_one_layer_of_a_tower(tmp_path):
    config = config_of(model=WRITERS["llava_siglip"](tmp_path))
    with pytest.raises(ConfigError, match=r"vision_feature_layer=\[-2, -1\]"):
        config.generation(engine="vllm").validate()


@pytest.mark.usefixtures("vllm")
def test_vllm_has_no_adapters_for_onevision(tmp_path):
    model = {"model": WRITERS["llava_onevision"](tmp_path), "lora": {"rank": 2}}
    config = config_of(**model).generation(engine="vllm")
    with pytest.raises(ConfigError, match="no LoRA for models of type 'llava_one"):
        config.validate()


@pytest.mark.usefixtures("vllm")
def test_vllm_names_the_packages_that_a_processor_needs(vlm, monkeypatch):
    find = importlib.util.find_spec
    hidden = {"num2words", "torchvision"}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in hidden else find(name)
    )
    config = config_of(model=vlm).generation(engine="vllm")
    with pytest.raises(ConfigError, match="pip install num2words torchvision"):
        config.validate()


@pytest.mark.usefixtures("vllm")
def test_vllm_gets_adapters_alone(tmp_path):
    model = {"model": WRITERS["idefics3"](tmp_path), "lora": {"rank": 2}}
    config_of(**model).generation(engine="vllm").validate()
    config = config_of(**model, freeze=["vision"]).generation(engine="vllm")
    with pytest.raises(ConfigError, match="engine='vllm' gets the adapters alone"):
        config.validate()


def test_freeze_needs_a_model_of_pictures():
    with pytest.raises(ConfigError, match="freeze=.*reads text alone"):
        config_of(model="tiny", freeze=["vision"]).validate()
    with pytest.raises(ConfigError, match="tower"):
        config_of(freeze=["tower"])


def test_the_tower_of_a_checkpoint_is_frozen_unless_asked(vlm):
    assert config_of().resolved_freeze() == []
    assert config_of(model=vlm).resolved_freeze() == ["vision"]
    assert config_of(model=vlm, freeze=[]).resolved_freeze() == []
    assert config_of(freeze=["projector"]).resolved_freeze() == ["projector"]


@pytest.mark.parametrize(
    ("sizes", "name"),
    [
        ({"image_size": 16}, "tiny"),
        ({"image_mean": [1.0, 1.0, 1.0]}, "tiny"),
        ({"head_dim": 3}, "tiny-vlm"),
    ],
)
def test_sizes_belong_to_a_model(sizes, name):
    with pytest.raises(ConfigError, match="no setting"):
        config_of(model=name, tiny=sizes).validate()


def features(folder, level, **colours):
    """Return the features of a grey picture: [tokens, hidden]."""
    name = write_vlm(folder, **colours)
    lm = AutoModelForImageTextToText.from_pretrained(name)
    pixels = torch.full((1, 32, 32, 3), level, dtype=torch.uint8)
    with torch.no_grad():
        return PictureReader(lm, image_spec(name))(pixels)[0]


def test_the_tower_reads_colours_relative_to_their_mean_and_deviation(tmp_path):
    grey = features(tmp_path / "a", 204)  # (0.8 - 0.5) / 0.5
    scaled = {"image_mean": [0.2] * 3, "image_std": [1.0] * 3}
    torch.testing.assert_close(features(tmp_path / "b", 204, **scaled), grey)
    # The colour at 0 differs with the mean, so it changes what the tower sees.
    white = features(tmp_path / "c", 255, image_mean=[1.0] * 3)
    black = features(tmp_path / "d", 0, image_mean=[0.0] * 3)
    torch.testing.assert_close(white, black)
    assert not torch.allclose(white, features(tmp_path / "e", 255))


@pytest.mark.parametrize("key", ["image_mean", "image_std"])
def test_colours_have_three_values(key):
    with pytest.raises(ConfigError, match=rf"tiny.{key}=\[0.5\] .*three numbers"):
        config_of(tiny={key: [0.5]}).validate()
    with pytest.raises(ConfigError, match=key):
        config_of(tiny={key: [-1.0, 0.5, 0.5]}).validate()


def test_a_model_of_text_is_refused_before_training():
    config = config_of(model="tiny", tiny={"hidden_size": 32})
    config.validate()
    config.resolved_model = prepare_language_model(config)
    with pytest.raises(EnvContractError, match="reads text alone"):
        preflight(config)


class Huge(TextEnv):
    """Shows nine pictures at once."""

    def start(self, rng):
        return TurnResult("<image>" * 9, images=[picture(n) for n in range(9)])

    def reply(self, action):
        return TurnResult("Done.", terminated=True)


def test_placeholders_count_in_the_first_prompt():
    config = config_of().environment(Huge).generation(max_context_tokens=40)
    config.resolved_model = prepare_language_model(config)
    with pytest.raises(ConfigError, match="leaves no room to answer"):
        preflight(config)
