"""Environments of verifiers as programs of agent-v0.

The last test needs ``RLLIB_LLM_VERIFIERS``: a Python with verifiers 0.4 and uv, which
verifiers uses to install the packages of its harness.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from rllib_llm.envs.agent_programs.examples import with_verifiers
from rllib_llm.envs.agent_programs.results import read_result
from rllib_llm.envs.make import make_playable

PYTHON = os.environ.get("RLLIB_LLM_VERIFIERS")


def read(*given):
    return with_verifiers.read_arguments(["doors-v1", *given])


def test_each_split_has_its_own_tasks():
    arguments = read("--train", "0:3", "--test", "3:5")
    for split, tasks in (("train", {0, 1, 2}), ("test", {3, 4})):
        drawn = [{"seed": seed, "split": split} for seed in range(9)]
        assert {with_verifiers.position(task, arguments) for task in drawn} == tasks


def test_a_split_without_tasks_is_refused():
    with pytest.raises(SystemExit, match="Set --test START:STOP"):
        with_verifiers.position({"seed": 0, "split": "test"}, read("--train", "0:3"))


@pytest.mark.parametrize("tasks", ["3:3", "4:3", "x:3", "3"])
def test_wrong_positions_are_refused(tasks, capsys):
    with pytest.raises(SystemExit):
        read("--train", tasks)
    assert "--train" in capsys.readouterr().err


def expert_reply(model, messages, task, rng):
    """Return the word that the prompt asks for."""
    return messages[-1]["content"].removeprefix("Say ").removesuffix(".")


def trace(name, model, rewards, **metrics):
    scores = {k: v and SimpleNamespace(score=v) for k, v in rewards.items()}
    agent = SimpleNamespace(name=name, config=SimpleNamespace(model=model))
    total = sum(filter(None, rewards.values()))
    return SimpleNamespace(agent=agent, rewards=scores, metrics=metrics, reward=total)


def test_rewards_belong_to_the_model_of_each_agent():
    traces = [
        trace("solver", "solver", {"right": 1.0, "short": 0.5}, words=3),
        trace("judge", "default_policy", {"right": 0.25, "fair": None}),
        trace("judge", "default_policy", {}, words=None),
    ]
    result = with_verifiers.result_of(SimpleNamespace(traces=traces))
    assert result["reward"] == {"solver": 1.5, "default_policy": 0.25}
    assert result["metrics"] == {
        "solver/right": 1.0,
        "solver/short": 0.5,
        "solver/words": 3.0,
        "judge/right": 0.25,
    }
    read_result(result, ["solver", "default_policy"], "The program")


@pytest.mark.slow
@pytest.mark.skipif(PYTHON is None, reason="RLLIB_LLM_VERIFIERS is not set")
def test_episodes_of_verifiers_are_recorded(monkeypatch):
    pytest.importorskip("aiohttp")
    from team_helpers import Run, team_config

    from rllib_llm import LLMPPOConfig
    from rllib_llm.data.episode_data import episode_data
    from rllib_llm.data.types import Task
    from rllib_llm.offline.demonstrations import demonstrate_together

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    command = [PYTHON, with_verifiers.__file__, "doors-v1", "--train", "0:4"]
    config = team_config(
        "agent-v0",
        LLMPPOConfig,
        env_config={"program": command},
        policies=("p",),
        mapping={"default_policy": "p"},
        rollouts={"step_timeout_s": 120.0},
        slots=2,
    )
    run = Run(config, learner=False)
    episodes = run.runner.sample(tasks=[Task(i, 0, i) for i in range(2)])
    assert len(episodes) == 2
    for seed, episode in enumerate(episodes):
        part = episode.agent_episodes["default_policy"]
        assert (
            f"Say {('red', 'blue')[seed]}." in episode_data(part).messages[0]["content"]
        )
        assert part.get_return() in (0.0, 1.0)
        assert episode_data(episode).success is (part.get_return() == 1.0)
    run.runner.stop()
    scripts = {"expert_reply": f"{__name__}:expert_reply"}
    env = make_playable("agent-v0", {"program": command, **scripts})
    assert demonstrate_together(env, seed=3, mistake_rate=0.0)[0].success
    env.close()
