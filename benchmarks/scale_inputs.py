"""Inputs of benchmarks/scale_model.py: constants, architectures, memory.

Bytes of Learners and of keys and values are those of the package's own plan.
"""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from typing import Any

GB = 1e9
BF16, FLOAT32 = 2, 4
OPTIMIZER = 8  # AdamW's moments, bytes per float32 parameter
GPUS_PER_NODE = 8
# Memory in GB, its bandwidth in TB/s, dense bfloat16 TFLOP/s (data sheets, SXM).
GPUS = {"H100": (80.0, 3.35, 989.0), "H200": (141.0, 4.8, 989.0)}
# Hidden and intermediate sizes, layers, heads, tied embeddings; 8 key-value heads of
# 128 (the config.json of Qwen3; 72B: of Qwen2.5).
ARCHITECTURES = {
    "0.6B": (1024, 3072, 28, 16, True),
    "1.7B": (2048, 6144, 28, 16, True),
    "4B": (2560, 9728, 36, 32, True),
    "8B": (4096, 12288, 36, 32, False),
    "14B": (5120, 17408, 40, 40, False),
    "32B": (5120, 25600, 64, 64, False),
    "72B": (8192, 29568, 80, 64, False),
}
MEASURED = "measured on CPUs, docs/performance.md"


def constant(default: float, source: str) -> Any:
    """Return a field of :class:`Constants` with its source."""
    return dataclasses.field(default=default, metadata={"source": source})


@dataclasses.dataclass(frozen=True)
class Constants:
    """All numbers that the formulas take; names end with their units."""

    memory_gb: float = constant(GPUS["H100"][0], "data sheet of the GPU")
    hbm_tb_s: float = constant(GPUS["H100"][1], "data sheet of the GPU")
    bf16_tflops: float = constant(GPUS["H100"][2], "data sheet of the GPU")
    nvlink_gb_s: float = constant(450, "data sheet, H100 and H200: 900, both ways")
    network_gb_s: float = constant(50, "data sheet, DGX H100: 400 Gb/s per GPU")
    host_memory_gb: float = constant(2000, "data sheet, DGX H100, 8 GPUs")
    memory_share: float = constant(0.9, "vLLM's default of gpu_memory_utilization")
    compute_share: float = constant(0.4, "assumption: part of the peak in products")
    hbm_share: float = constant(0.6, "assumption: part of the bandwidth in decoding")
    padding: float = constant(0.0, f"{MEASURED}, Packed rows (apart: 0.10 to 0.26)")
    turn_ms: float = constant(0.6, f"{MEASURED}, The endpoint, first row")
    driver_us: float = constant(
        0.8, f"{MEASURED}, Growth: rest of the longest context, per token"
    )
    pack_gb_s: float = constant(1.9, f"{MEASURED}, Scale on paper")
    load_gb_s: float = constant(6.4, f"{MEASURED}, Scale on paper")
    episodes_per_gpu: float = constant(16, "workload")
    prompt_tokens: float = constant(1024, "workload: not sampled, per episode")
    sampled_tokens: float = constant(2048, "workload: per episode")
    turns: float = constant(4, "workload: per episode")
    longest: float = constant(2.0, "workload: longest episode, in mean lengths")
    micro_batch_tokens: float = constant(8192, "setting")

    @property
    def context_tokens(self) -> float:
        """Tokens of an episode at its end."""
        return self.prompt_tokens + self.sampled_tokens

    @property
    def flops(self) -> float:
        """Floating-point operations per second of a GPU."""
        return self.bf16_tflops * 1e12 * self.compute_share

    @property
    def hbm_bytes(self) -> float:
        """Bytes per second that decoding reads."""
        return self.hbm_tb_s * 1e12 * self.hbm_share

    @property
    def usable_bytes(self) -> float:
        """Bytes of a GPU that the run may use."""
        return self.memory_gb * GB * self.memory_share


@dataclasses.dataclass(frozen=True)
class Model:
    """Numbers of an architecture.

    Attributes:
        parameters: All of them.
        multiplied: Those that a token is multiplied with: all but input embeddings,
            unless these are the output layer as well.
        attention_width: Heads times their size, times layers.
        kv_bytes: Keys and values of a token in bfloat16.
    """

    parameters: int
    multiplied: int
    attention_width: int
    kv_bytes: int


@functools.cache
def config_folder(name: str) -> str:
    """Return a folder with an architecture's config.json and a small tokenizer."""
    from transformers import Qwen3Config

    from rllib_llm.modules.tiny import build_tokenizer

    width, inner, layers, heads, is_tied = ARCHITECTURES[name]
    folder = tempfile.mkdtemp(prefix=f"qwen3-{name}-")
    Qwen3Config(
        vocab_size=151_936,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40_960,
        tie_word_embeddings=is_tied,
    ).save_pretrained(folder)
    # A config asks for its vocabulary; memory does not depend on it.
    build_tokenizer(["guess 1 to 9: higher, lower, correct"] * 4, 400).save_pretrained(
        folder
    )
    return folder


def config_of(name: str, learners: int, micro_batch_tokens: int, dtype: str) -> Any:
    """Return the validated GRPOConfig of a run, for an architecture without weights."""
    from rllib_llm import GRPOConfig

    config = GRPOConfig().environment("guess_number-v0")
    config.language_model(dtype=dtype, gradient_checkpointing=True)
    config.generation(max_new_tokens=8, max_context_tokens=1024)
    config.env_runners(num_envs_per_env_runner=1)  # keys and values of one episode
    config.rollouts(episodes_per_iteration=8 * learners, group_size=8)
    config.training(micro_batch_tokens=micro_batch_tokens, head_chunk_tokens=1024)
    if learners > 1:
        config.learners(
            num_learners=learners,
            num_gpus_per_learner=1,
            sharding="fsdp2",
            sharding_kwargs={"param_dtype": "bfloat16"},
        )
    config.validate()
    config.resolved_model = config_folder(name)
    return config


@functools.cache
def model_of(name: str) -> Model:
    """Return an architecture's numbers; keys and values are those of the plan."""
    from rllib_llm.algorithms.driver.memory_plan import plan_memory

    width, _, layers, heads, is_tied = ARCHITECTURES[name]
    config = config_of(name, 1, 1024, "bfloat16")
    count, _, plan = plan_memory(config)
    return Model(
        parameters=count,
        multiplied=count if is_tied else count - 151_936 * width,
        attention_width=layers * heads * 128,
        kv_bytes=plan.kv_cache // 1024,
    )


@functools.cache
def learner_bytes(name: str, learners: int, micro_batch_tokens: int) -> int:
    """Return the planned peak of a Learner's update, with activations."""
    from transformers import AutoConfig

    from rllib_llm.algorithms.driver.memory_plan import plan_memory
    from rllib_llm.doctor.activations import activation_bytes

    config = config_of(name, learners, micro_batch_tokens, "float32")
    activations = activation_bytes(
        AutoConfig.from_pretrained(config_folder(name)),
        micro_batch_tokens,
        element_size=BF16,
        gradient_checkpointing=True,
        head_chunk_tokens=1024,
    )
    return plan_memory(config)[2].of_training + activations
