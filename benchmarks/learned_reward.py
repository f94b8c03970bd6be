"""A learned reward: accuracy under label noise, and over-optimisation against KL.

Reward models are trained on comparisons of sampled episodes, a share of which is wrong;
GRPO then maximises their score alone. The true return is that of the environment.

Run: python benchmarks/learned_reward.py --out benchmarks/results/learned_reward.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from rllib_llm import GRPOConfig, RewardModelConfig
from rllib_llm.algorithms.algorithm import LLMAlgorithm
from rllib_llm.evaluation.summary import evaluate_algorithm

NOISE = (0.0, 0.1, 0.3)
SEEDS = (0, 1, 2)
TRUE = "true"


def _common(config: Any, seed: int) -> Any:
    return (
        config.environment("guess_number-v0", env_config={"upper": 15, "max_turns": 4})
        .language_model(model="tiny")
        .generation(max_new_tokens=8)
        .rollouts(episodes_per_iteration=128, group_size=8)
        .sft(demonstrations=1200, mistake_rate=0.5, epochs=2, lr=2e-3, minibatch_size=4)
        .debugging(seed=seed)
    )


def train_reward_model(
    noise: float, seed: int, iterations: int, folder: Path
) -> dict[str, Any]:
    """Train a reward model, export it into ``folder``, return its accuracy."""
    config = _common(RewardModelConfig(), seed).training(
        lr=1e-3, minibatch_size=16, centering=1e-3, label_noise=noise
    )
    started, algo = time.process_time(), config.build_algo()
    pairs = sum(algo.train()["num_pairs"] for _ in range(iterations))
    held_out = algo.evaluate_on_pairs(None, 50)
    algo.scored_module().save_model(folder)
    algo.stop()
    return {
        "pairs": pairs,
        "accuracy": held_out.accuracy.mean,
        "log_loss": held_out.log_loss,
        "calibration_error": held_out.calibration_error,
        "cpu_s": time.process_time() - started,
    }


def optimise(reward: Path | None, seed: int, iterations: int) -> list[dict[str, Any]]:
    """Return the curve of a GRPO run: score, true success and KL by iteration.

    Args:
        reward: Folder of the reward model; None: the environment's reward.
        seed: Seed of the run.
        iterations: Number of iterations.
    """
    config = _common(GRPOConfig(), seed).training(
        lr=1e-3, minibatch_size=64, ref_kl_coeff=1e-9
    )
    if reward is not None:
        config.rollouts(
            rewards=[
                {"name": "environment", "weight": 0.0},
                {"name": "scored", "model": str(reward), "normalize": True},
            ]
        )
    algo, curve = config.build_algo(), []
    curve.append({"iteration": 0, "kl": 0.0, **_held_out(algo)})
    for number in range(1, iterations + 1):
        result = algo.train()
        sampled, learned = result["env_runners"], result["learners"]["default_policy"]
        point = {
            "iteration": number,
            # Nats per token of the policy before this iteration's update.
            "kl": float(learned.get("ref_kl", float("nan"))),
            "score": float(result.get("reward_parts", {}).get("scored", float("nan"))),
            "train_success": float(sampled["success_rate"]),
            "tokens": int(sampled["num_completion_tokens_lifetime"]),
        }
        if number % 5 == 0:
            point |= _held_out(algo)
        curve.append(point)
    algo.stop()
    return curve


def _held_out(algo: LLMAlgorithm) -> dict[str, float]:
    evaluation, _ = evaluate_algorithm(algo, 100, greedy=False)
    assert evaluation.success is not None and evaluation.episode_return is not None
    return {
        "success": evaluation.success.mean,
        "return": evaluation.episode_return.mean,
    }


def main() -> None:
    """Run all noises and seeds; write after every run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="*", default=SEEDS)
    parser.add_argument("--noise", type=float, nargs="*", default=NOISE)
    parser.add_argument("--pairs-iterations", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=30)
    args = parser.parse_args()
    results: dict[str, Any] = {}
    for seed in args.seeds:
        for noise in (*args.noise, TRUE):
            started, entry = time.process_time(), {}
            with tempfile.TemporaryDirectory() as work:
                folder = None
                if noise != TRUE:
                    folder = Path(work) / "reward_model"
                    entry = train_reward_model(
                        noise, seed, args.pairs_iterations, folder
                    )
                entry["curve"] = optimise(folder, seed, args.iterations)
            entry["total_cpu_s"] = time.process_time() - started
            results[f"{noise}/{seed}"] = entry
            args.out.write_text(json.dumps(results, indent=1))
            last = entry["curve"][-1]
            print(noise, seed, entry.get("accuracy"), last, flush=True)


if __name__ == "__main__":
    main()
