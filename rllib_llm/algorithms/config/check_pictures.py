"""Checks of policies that read pictures: what does not carry them is refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rllib_llm.algorithms.config.check_candidates import BEST
from rllib_llm.engines.vllm_pictures import check_family, check_layers
from rllib_llm.errors import ConfigError
from rllib_llm.modules.gguf_models import is_gguf
from rllib_llm.modules.lora import lora_settings
from rllib_llm.modules.tiny import BUILT_MODELS
from rllib_llm.pictures.spec import image_spec

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig

_ALGORITHMS = ("GRPO", "LLMPPO", "SFT", "Pref", "MARFT", "SelfPlay")


def reads_pictures(config: LLMConfig) -> bool:
    """Return whether a policy's model reads pictures, before it is built as well."""
    model = config.lm_model
    if model in BUILT_MODELS or is_gguf(model):
        return model == "tiny-vlm"
    # A hub id may have to be downloaded: it is checked once the model is resolved.
    if config.resolved_model is None and not _is_folder(model):
        return False
    return image_spec(config.resolved_model or model) is not None


def reads_text_alone(config: LLMConfig) -> bool:
    """Return whether a policy's model is there already, and reads no pictures."""
    model = config.lm_model
    is_here = model in BUILT_MODELS or is_gguf(model) or _is_folder(model)
    return (is_here or config.resolved_model is not None) and not reads_pictures(config)


def _is_folder(model: str) -> bool:
    try:
        return (Path(model).expanduser() / "config.json").is_file()
    except (OSError, RuntimeError, ValueError):
        return False  # no valid path, which is refused where the model is checked


def validate_pictures(config: LLMConfig) -> None:
    """Check the settings of a policy whose model reads pictures.

    Raises:
        ConfigError: If one of them does not carry pictures, or if ``freeze`` names
            parts that a model of text does not have.
    """
    if not reads_pictures(config):
        if config.lm_freeze:
            raise ConfigError(
                f"language_model.freeze={list(config.lm_freeze)} would have no effect: "
                f"{config.lm_model!r} reads text alone. Leave it out, or use a "
                "vision-language model."
            )
        if config.lm_lora and lora_settings(config.lm_lora)["parts"] != ["text"]:
            raise ConfigError(
                f"language_model.lora.parts={config.lm_lora['parts']} names parts of "
                f"vision-language models, but {config.lm_model!r} reads text alone. "
                "Leave it out, or use a vision-language model."
            )
        return
    name = getattr(config.algo_class, "__name__", "")
    if name not in _ALGORITHMS:
        raise ConfigError(
            f"{name} does not carry pictures, and {config.lm_model!r} reads them. Use "
            f"{', '.join(_ALGORITHMS)}, or a model of text (docs/pictures.md)."
        )
    reference_is_base = (
        config.lm_lora and config.uses_reference and not config.ref_model
    )
    if reference_is_base and config.trained_beside_adapters():
        raise ConfigError(
            f"language_model.freeze={config.resolved_freeze()} trains a part of "
            f"{config.lm_model!r} beside its adapters, but the reference policy "
            "(ref_kl_coeff, or a component) is the model without adapters, which "
            "changes with it. Set freeze to ['vision', 'projector'], add the part to "
            "lora.parts, or set lora to null."
        )
    if config.generation_engine != "torch":
        _check_vllm(config)
    for setting, value, remedy in _unsupported(config):
        raise ConfigError(
            f"{setting}={value!r} does not carry pictures, and {config.lm_model!r} "
            f"reads them. {remedy}, or use a model of text (docs/pictures.md)."
        )


def _check_vllm(config: LLMConfig) -> None:
    """Check that vLLM can sample with a policy that reads pictures.

    Raises:
        ConfigError: If it cannot.
    """
    engine = config.generation_engine
    if config.lm_model in BUILT_MODELS:
        raise ConfigError(
            f"generation.engine={engine!r} does not carry pictures of "
            f"{config.lm_model!r}, which has no processor for vLLM. Use "
            "engine='torch', or the folder of a checkpoint."
        )
    model = config.resolved_model or config.lm_model
    spec = image_spec(model)
    assert spec is not None  # it reads pictures
    check_layers(model, engine)
    check_family(spec.family, engine, adapters=bool(config.lm_lora))
    if not config.lm_lora:
        return
    if config.trained_beside_adapters():
        raise ConfigError(
            f"language_model.freeze={config.resolved_freeze()} trains a part of "
            f"{config.lm_model!r} beside its adapters, but engine={engine!r} gets the "
            "adapters alone. Set freeze to ['vision', 'projector'], lora to null, or "
            "use engine='torch'."
        )
    parts = lora_settings(config.lm_lora)["parts"]
    if parts != ["text"]:
        raise ConfigError(
            f"language_model.lora.parts={parts}, but engine={engine!r} adapts the text "
            "part alone. Set it to ['text'], or use engine='torch'."
        )


def _unsupported(config: LLMConfig) -> list[tuple[str, object, str]]:
    """Return the settings that do not carry pictures: name, value, remedy."""
    from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner

    leave_out = "Leave it out"
    runner = config.env_runner_cls
    is_stock = runner is not None and not issubclass(runner, LLMEnvRunner)
    settings: list[tuple[bool, str, object, str]] = [
        (is_stock, "env_runner_cls", runner, leave_out),
        (
            config.action_head != "generate",
            "generation.head",
            config.action_head,
            "Use head='generate'",
        ),
        (
            config.history == "rerender",
            "language_model.history",
            config.history,
            "Use history='append' or 'latest'",
        ),
        (
            getattr(config, "scorer_loss", None) == "causal",
            "scorer.loss",
            "causal",
            "Use another one",
        ),
        (
            config.save_as not in ("episodes", BEST),
            "rollouts.save_as",
            config.save_as,
            f"Use save_as='episodes' or {BEST!r}",
        ),
    ]
    for setting, attribute in (
        ("language_model.compile", "lm_compile"),
        ("scorer.privileged", "scorer_privileged"),
    ):
        value = getattr(config, attribute, None)
        settings.append((bool(value), setting, value, leave_out))
    return [(name, value, remedy) for holds, name, value, remedy in settings if holds]
