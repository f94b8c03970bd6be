"""Serve a task of the shop on 127.0.0.1 for a person with a browser of their own.

python -m rllib_llm.envs.webshop [--seed 0] [--port 8000] [--split test]
"""

from __future__ import annotations

import argparse
import time

from rllib_llm.envs.webshop.env import WebShopText
from rllib_llm.envs.webshop.server import ShopServer


def main(arguments: list[str] | None = None) -> None:
    """Serve until the purchase, then print its score."""
    parser = argparse.ArgumentParser(
        prog="python -m rllib_llm.envs.webshop", description=__doc__
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the task")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--split", choices=("train", "test"), default="train")
    given = parser.parse_args(arguments)
    env = WebShopText()
    env.reset(seed=given.seed, options={"split": given.split})
    server = ShopServer(given.port)
    shopping = server.serve(
        env.visit, env.instruction, lambda: env.outcome().observation
    )
    print(f"Instruction: {env.instruction}\nOpen {server.address}", flush=True)
    try:
        while not env.visit.is_over:
            shopping.wait_beyond(shopping.step, timeout_s=1.0)
        print(env.outcome().observation, flush=True)
        time.sleep(1.0)  # the browser still asks for the last page
    except KeyboardInterrupt:
        print("Nothing was bought.")
    finally:
        server.close()


if __name__ == "__main__":
    main()
