"""Digests of the weights after a few iterations, to compare two versions of the code.

Trains small versions of shipped examples and prints, for each, a SHA-256 digest of all
weights and the returns of every iteration. A change that must not alter behaviour, such
as a move of files, prints the same lines before and after on the same machine:

    python scripts/weights_digest.py > before.txt
    python scripts/weights_digest.py | diff before.txt -

One environment at a time: with several, the batches of a forward pass depend on timing,
and sums of floats on the batches.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from typing import Any

import numpy as np

from rllib_llm.recipes import load_recipe

SMALL = (
    "rollouts.episodes_per_iteration=16",
    "env_runners.num_envs_per_env_runner=1",
    "training.minibatch_size=4",
    "evaluation.evaluation_interval=null",
)
IMITATION = "sft.demonstrations=200"
EXAMPLES = {
    "frozen_lake_ppo": (IMITATION,),
    "guess_number_grpo": (IMITATION, "rollouts.group_size=4"),
    "duo_action": (IMITATION,),
}
ITERATIONS = 5


def main() -> None:
    """Print a line for each example, or for those named as arguments."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["RLLIB_LLM_CACHE"] = cache  # SFT is compared too
        for name in sys.argv[1:] or EXAMPLES:
            digest, returns = train(name)
            values = " ".join(f"{value:.9g}" for value in returns)
            sys.stdout.write(f"{name} {digest} {values}\n")
            sys.stdout.flush()


def train(name: str) -> tuple[str, list[float]]:
    """Train an example.

    Args:
        name: A key of ``EXAMPLES``.

    Returns:
        The digest of its weights, and the mean return of each iteration.
    """
    recipe = load_recipe(name, (*SMALL, *EXAMPLES[name]))
    algo = recipe.build_config().build_algo()
    try:
        results = [algo.train() for _ in range(ITERATIONS)]
        weights = algo.learner_group.get_weights()
    finally:
        algo.stop()
    means = [result["env_runners"]["episode_return_mean"] for result in results]
    return digest_of(weights), means


def digest_of(weights: Any) -> str:
    """Return the SHA-256 digest of nested arrays with their names, in sorted order."""
    total = hashlib.sha256()

    def add(path: str, value: Any) -> None:
        if isinstance(value, dict):
            for key in sorted(value):
                add(f"{path}/{key}", value[key])
            return
        array = np.ascontiguousarray(value)
        total.update(f"{path} {array.dtype} {array.shape}".encode())
        total.update(array.tobytes())

    add("", weights)
    return total.hexdigest()


if __name__ == "__main__":
    main()
