"""Success of a policy that reads the instruction of ``ui_r1_pictures`` and no picture.

Run:  python benchmarks/ui_instruction_alone.py

For each instruction it plays the expert's most frequent action of the training tasks.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter, defaultdict

import numpy as np

from rllib_llm.envs import make_env
from rllib_llm.recipes import load_recipe


def main() -> None:
    """Count actions by instruction on training tasks, and play held-out ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=int, default=6000)
    parser.add_argument("--held-out", type=int, default=2000)
    args = parser.parse_args()
    options = load_recipe("ui_r1_pictures").build_config().env_config
    env = make_env("ui_pictures-v0", dict(options))
    actions: dict[str, Counter[str]] = defaultdict(Counter)
    for seed in range(args.train):
        text, _ = env.reset(seed=seed)
        best = env.unwrapped.expert_action(np.random.default_rng(seed))
        actions[text][best] += 1
    usual = {text: found.most_common(1)[0][0] for text, found in actions.items()}
    solved = []
    for seed in range(args.held_out):
        text, _ = env.reset(seed=seed, options={"split": "test"})
        _, _, _, _, info = env.step(usual.get(text, ""))
        solved.append(bool(info["success"]))
    print(f"{len(usual)} instructions, success {statistics.fmean(solved):.3f}")


if __name__ == "__main__":
    main()
