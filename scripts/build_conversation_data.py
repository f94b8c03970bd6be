"""Write conversations of an environment's scripted expert as a data file for SFT.

    python scripts/build_conversation_data.py frozen_lake-v0 size=3 slippery=false \
        --count 400 > rllib_llm/envs/data/frozen_lake_conversations.jsonl

Each line holds ``messages`` of one solved training task, in chat format.
"""

from __future__ import annotations

import argparse
import json
import sys

from rllib_llm.envs.make import make_env
from rllib_llm.offline.demonstrations import demonstrate
from rllib_llm.recipes.overrides import apply_overrides
from rllib_llm.seeding import stable_seed


def main() -> None:
    """Print the lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("env")
    parser.add_argument("options", nargs="*", help="env_config, as KEY=VALUE")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--mistake-rate", type=float, default=0.0)
    args = parser.parse_args()
    env = make_env(args.env, apply_overrides({}, args.options))
    seed = written = 0
    while written < args.count:
        task = stable_seed(0, "conversation", seed)
        demo = demonstrate(env, seed=task, mistake_rate=args.mistake_rate)
        seed += 1
        if not demo.success:
            continue
        messages = []
        for read, reply in zip(demo.observations, demo.completions, strict=False):
            messages.append({"role": "user", "content": read})
            messages.append({"role": "assistant", "content": reply})
        sys.stdout.write(json.dumps({"messages": messages}) + "\n")
        written += 1


if __name__ == "__main__":
    main()
