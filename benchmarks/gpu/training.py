"""Iterations of GRPO at real sizes: sampling, update, weights, by engine."""

from __future__ import annotations

from typing import Any

from part import GIB, Part, require, run

# The iteration's parts, by RLlib's names.
TIMERS = ("env_runner_sampling_timer", "learner_update_timer", "synch_weights")
LORA = {"rank": 16}


def main(part: Part) -> None:
    """Write one row per model and kind of training."""
    engine = part.args.engine
    if engine != "torch":
        require(part, "vllm")
        if part.device_name != "cuda":
            part.skip("tests/engines runs vLLM on CPUs")
    require(part, "peft")
    import ray

    sync = part.args.weight_sync
    if sync == "nccl" and part.device_name == "cuda":
        import torch

        if torch.cuda.device_count() < 2:
            part.skip("NCCL needs a GPU for the Learner and one for the engine")
    ray.init(include_dashboard=False, log_to_driver=False)
    kinds = [("0.6B", None), ("0.6B", LORA), ("1.7B", LORA)]
    if sync != "object_store":  # all weights, so without LoRA
        kinds = [("0.6B", None), ("1.7B", None), ("4B", None)]
    for name, lora in kinds:
        if not part.is_small or lora is None:
            measure(part, *part.models(name), lora)


def config_of(part: Part, name: str, lora: dict[str, int] | None) -> Any:
    """Return a config that samples and trains on one device."""
    from rllib_llm import GRPOConfig

    engine, is_small = part.args.engine, part.is_small
    config = GRPOConfig().environment("guess_number-v0")
    config.language_model(
        model=part.model_folder(name),
        dtype="float32" if is_small else "bfloat16",
        lora=lora,
        gradient_checkpointing=not is_small,
    )
    config.generation(
        engine=engine, max_new_tokens=8 if is_small else 64, max_context_tokens=1024
    )
    config.rollouts(episodes_per_iteration=8 if is_small else 128, group_size=8)
    config.training(
        micro_batch_tokens=512 if is_small else 8192,
        head_chunk_tokens=1024,
        # Random weights rarely succeed, and the update is to be measured.
        drop_zero_variance_groups=False,
    )
    if engine != "torch":
        config.generation(
            engine_kwargs={"gpu_memory_utilization": 0.4}, engine_sleep=True
        )
    sync, share = part.args.weight_sync, 1 if engine == "torch" else 0.5
    if sync == "nccl":
        share = 1
    if engine == "vllm_actor":
        config.generation(engine_num_gpus=share)
        config.rollouts(weight_sync=sync)
    if part.device_name == "cuda":
        config.learners(num_gpus_per_learner=share)
    return config


def measure(part: Part, name: str, lora: dict[str, int] | None) -> None:
    """Write the row of the second iteration."""
    import contextlib

    from rllib_llm.algorithms.driver.memory_plan import plan_memory

    config = config_of(part, name, lora)
    # A CUDA device is found by RLlib itself.
    is_found = part.device_name == "cuda"
    with contextlib.nullcontext() if is_found else part.placed():
        algo = config.build_algo()
    algo.train()
    if part.accelerator is not None:
        part.accelerator.reset_peak()
    result = algo.train()
    engine = result["env_runners"]["engine"]
    learner = result["learners"]["default_policy"]
    times = {key: float(result["timers"][key]) for key in TIMERS}
    sampled = float(engine["decoded_tokens"])
    row = {
        "model": name,
        "lora": bool(lora),
        "sampling_s": times[TIMERS[0]],
        "update_s": times[TIMERS[1]],
        "weights_s": times[TIMERS[2]],
        "sampled_tokens_per_s": sampled / times[TIMERS[0]],
        "trained_tokens_per_s": learner["num_sequence_tokens"] / times[TIMERS[1]],
        "mismatch_mean": learner.get("train_inference_mismatch_mean", ""),
    }
    if part.accelerator is not None:
        plan = plan_memory(algo.config)[2]
        row |= {
            "peak_gib": part.accelerator.peak_bytes / GIB,
            "planned_gib": plan.total / GIB,
        }
    part.row(**row)
    algo.stop()


if __name__ == "__main__":
    run(
        main,
        "torch",
        "transformers",
        "ray",
        "gymnasium",
        engine=("torch", "vllm", "vllm_actor"),
        weight_sync=("object_store", "ipc", "nccl"),
    )
