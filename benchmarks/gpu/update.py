"""Updates of a Learner at real sizes: tokens per second, and memory against the plan.

Runs without Ray's processes: the Learner is in this one.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np
from part import GIB, Part, run


@dataclasses.dataclass
class Case:
    """A config to measure.

    Attributes:
        model: Name of the architecture.
        settings: Settings of ``language_model``.
        training: Settings of ``training``.
        offload: Whether the optimiser is in host memory.
    """

    model: str
    settings: dict[str, Any]
    training: dict[str, Any] = dataclasses.field(default_factory=dict)
    offload: bool = False

    @property
    def label(self) -> str:
        """Settings, as a table shows them."""
        named = {**self.settings, **self.training}
        if self.offload:
            named["optimizer_offload"] = True
        return ", ".join(f"{key} {value}" for key, value in named.items())


BF16, LORA = {"dtype": "bfloat16"}, {"dtype": "bfloat16", "lora": {"rank": 16}}
CASES = [
    Case("0.6B", {"dtype": "float32"}),
    Case("0.6B", {"dtype": "float32", "autocast": "bfloat16"}),
    Case("0.6B", BF16),
    Case("0.6B", BF16, {"ref_kl_coeff": 0.1}),
    Case("1.7B", BF16),
    Case("1.7B", BF16, offload=True),
    Case("1.7B", LORA),
    Case("4B", LORA),
    Case("4B", BF16, offload=True),
]
# Autocast is not among them: the stand-in has no kernels for it.
SMALL = [Case("small", {"dtype": "float32"}), Case("small", BF16), Case("small", LORA)]
SMALL_OFFLOAD = Case("small", BF16, offload=True)


def main(part: Part) -> None:
    """Write one row per case."""
    cases = SMALL if part.is_small else CASES
    if part.is_small and part.device_name != "cpu":
        cases = [*SMALL, SMALL_OFFLOAD]
    for case in cases:
        if "lora" in case.settings and importlib.util.find_spec("peft") is None:
            part.row(model=case.model, settings=case.label, note="peft is missing")
            continue
        measure(part, case)
        gc.collect()
        if part.device_name == "cuda":
            import torch

            torch.cuda.empty_cache()


def config_of(part: Part, case: Case) -> Any:
    """Return a validated config of a case."""
    from rllib_llm import GRPOConfig

    config = GRPOConfig().environment("guess_number-v0")
    config.language_model(
        model=part.model_folder(case.model),
        gradient_checkpointing=not part.is_small,
        **case.settings,
    )
    config.training(
        micro_batch_tokens=64 if part.is_small else 8192,
        head_chunk_tokens=32 if part.is_small else 1024,
        grad_clip=1.0,
        **case.training,
    )
    if case.offload:
        config.learners(num_gpus_per_learner=1, optimizer_offload=True)
    config.validate()
    config.resolved_model = config.lm_model
    return config


def measure(part: Part, case: Case) -> None:
    """Write the row of one case."""
    from learner_helpers import make_learner, update

    from rllib_llm.algorithms.driver.memory_plan import plan_memory

    config = config_of(part, case)
    count, _, plan = plan_memory(config)
    batch = episodes([24] * 4 if part.is_small else [512] * 64, seed=count)
    accelerator = part.accelerator
    before = accelerator.live_bytes if accelerator else 0
    with part.placed():
        learner = make_learner(config)
    built = accelerator.live_bytes - before if accelerator else 0
    update(learner, batch)  # makes the optimiser's state
    if accelerator:
        accelerator.reset_peak()
    seconds = part.seconds(lambda: update(learner, batch))
    row: dict[str, Any] = {
        "model": case.model,
        "settings": case.label,
        "parameters": count,
        "tokens_per_s": sum(tokens_of(e) for e in batch) / seconds,
        "s": seconds,
    }
    if accelerator:
        planned = plan.of_training
        activations = activations_of(config)
        row |= {
            "built_gib": built / GIB,
            "kept_gib": (accelerator.live_bytes - before) / GIB,
            "peak_gib": (accelerator.peak_bytes - before) / GIB,
            "planned_gib": planned / GIB,
            "planned_with_activations_gib": (planned + activations) / GIB,
            "peak_bytes_per_parameter": (accelerator.peak_bytes - before) / count,
        }
    part.row(**row)


def activations_of(config: Any) -> int:
    """Return the plan's bytes of a micro-batch's activations."""
    from transformers import AutoConfig

    from rllib_llm.doctor.activations import pass_bytes

    model = AutoConfig.from_pretrained(config.lm_model)
    return pass_bytes(config, model, config.micro_batch_tokens)


def episodes(lengths: Sequence[int], *, seed: int) -> list[Any]:
    """Return episodes of one turn each: half of its tokens prompt, half sampled."""
    from learner_helpers import fake_episode

    from rllib_llm.data import columns
    from rllib_llm.data.episode_data import episode_data

    rng, found = np.random.default_rng(seed), []
    for index, tokens in enumerate(lengths):
        episode = fake_episode(index, turns=1)
        turn = episode.get_extra_model_outputs(columns.TURN)[0]
        half = tokens // 2
        turn.prompt_ids = rng.integers(20, 200, half).astype(np.int32)
        turn.action_ids = rng.integers(20, 200, half).astype(np.int32)
        turn.action_logps = np.full(half, -5.0, np.float32)
        episode_data(episode).advantage = float(np.cos(index))
        found.append(episode)
    return found


def tokens_of(episode: Any) -> int:
    """Return the tokens of an episode."""
    from rllib_llm.data import columns

    turn = episode.get_extra_model_outputs(columns.TURN)[0]
    return len(turn.prompt_ids) + len(turn.action_ids)


if __name__ == "__main__":
    run(main, "torch", "transformers", "ray", "gymnasium")
