"""Two iterations of tuned examples, SFT before RL included."""

from __future__ import annotations

import contextlib
import time

from part import Part, run

EXAMPLES = ("delay_probe", "tool_probe", "guess_number_grpo", "frozen_lake_ppo")
ITERATIONS = 2


def main(part: Part) -> None:
    """Write one row per example."""
    if part.device_name == "standin":
        part.skip("RLlib's schedules refuse the stand-in: use --device cpu")
    import ray

    from rllib_llm.recipes import load_recipe

    ray.init(include_dashboard=False, log_to_driver=False)
    for name in EXAMPLES[:1] if part.is_small else EXAMPLES:
        config = load_recipe(name).build_config()
        config.evaluation(evaluation_interval=None)
        if part.device_name == "cuda":
            config.learners(num_gpus_per_learner=1)
        start = time.perf_counter()
        # A CUDA device is found by RLlib itself.
        is_found = part.device_name == "cuda"
        with contextlib.nullcontext() if is_found else part.placed():
            algo = config.build_algo()
        built = time.perf_counter() - start
        results = [algo.train() for _ in range(ITERATIONS)]
        algo.stop()
        part.row(
            example=name,
            sft_and_building_s=built,
            s_per_iteration=float(results[-1]["time_this_iter_s"]),
            return_mean=float(results[-1]["env_runners"]["episode_return_mean"]),
        )


if __name__ == "__main__":
    run(main, "torch", "transformers", "ray", "gymnasium")
