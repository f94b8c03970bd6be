"""PPO learns the probes: delayed rewards, and when a tool is worth its price."""

from __future__ import annotations

import pytest

from rllib_llm.recipes import load_recipe


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize(
    "name, before, after",
    # Without a look the return of the second is 0.625 at most.
    [("delay_probe", 0.4, 0.8), ("tool_probe", 0.5, 0.75)],
)
def test_ppo_learns_the_probe(ray_session, name, before, after):
    config = load_recipe(name, ["evaluation.evaluation_interval=null"]).config
    algo = config.build_algo()
    returns = [algo.train()["env_runners"]["episode_return_mean"] for _ in range(10)]
    algo.stop()
    assert returns[0] < before
    assert returns[-1] > after
