"""meta_plan: one plan, executors who play with it, the mean of their returns."""

import numpy as np
import pytest

from rllib_llm.envs import MultiAgentAdapter, make_env

TASK = {"task_config": {"grounds": 5, "steps": 2, "world": None}}


def game(seed=0, **config):
    env = MultiAgentAdapter(make_env("meta_plan-v0", {**TASK, **config}))
    return env, env.reset(seed=seed)


def rewards_of(step):
    total = {}
    for agent, reward in step.rewards:
        total[agent] = total.get(agent, 0.0) + reward
    return total


def test_executors_read_the_plan_and_play_the_same_instance():
    env, step = game(executors=3)
    opening = env.unwrapped.opening
    assert step.observations == {"planner_0": f"{opening}\nPlan."}
    step = env.step({"planner_0": "left\n\nup"})
    assert set(step.observations.values()) == {f"Plan:\n- left\n- up\n\n{opening}"}
    assert list(step.observations) == [f"executor_{i}" for i in range(3)]


def test_the_planner_gets_the_mean_of_independent_returns():
    for seed in range(10):
        env, _ = game(seed, executors=4)
        env.step({"planner_0": "up"})
        rng = np.random.default_rng(seed)
        executors = [f"executor_{i}" for i in range(4)]
        returns = dict.fromkeys([*executors, "planner_0"], 0.0)
        for _ in range(2):
            step = env.step({a: str(rng.choice(["up", "left"])) for a in executors})
            for agent, reward in rewards_of(step).items():
                returns[agent] += reward
        planner = returns.pop("planner_0")
        assert step.is_over and planner == pytest.approx(
            np.mean(list(returns.values()))
        )
        assert step.success == (returns["executor_0"] == 1.0)
        # Each plays a copy: what one does changes nothing for another.
        for agent, copy in env.unwrapped.copies.items():
            assert copy.taken == 2 and copy.right / 2 == pytest.approx(returns[agent])


def test_executors_may_end_at_different_times():
    env, _ = game(executors=2)
    env.step({"planner_0": "up"})
    step = env.step({"executor_0": "nothing", "executor_1": "up"})
    assert not step.is_over and list(step.observations) == ["executor_1"]
    step = env.step({"executor_1": "up"})
    assert step.is_over and not step.success and "planner_0" in rewards_of(step)


def test_experts_follow_the_plan_not_the_task():
    env, _ = game(seed=1)
    right = env.unwrapped.expert_action("planner_0", np.random.default_rng(0))
    assert len(right.splitlines()) == 2
    env.step({"planner_0": "On mud up.\nOn ice left."})
    rng = np.random.default_rng(0)
    for line in ("On mud up.", "On ice left."):
        agents = env.unwrapped.live_agents
        actions = {a: env.unwrapped.expert_action(a, rng) for a in agents}
        assert set(actions.values()) == {line}
        env.step(actions)


def test_a_task_with_several_agents_is_refused():
    with pytest.raises(Exception, match="single-agent"):
        game(task="secret_sum-v0", task_config=None)
