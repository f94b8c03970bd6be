"""The example programs, each with its client, against a real EnvRunner."""

import importlib.util
import shutil
from pathlib import Path

import pytest
from team_helpers import Run, team_config

from rllib_llm import LLMPPOConfig
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.types import Task
from rllib_llm.envs.agent_programs import examples
from rllib_llm.envs.agent_programs.examples import delivery

pytest.importorskip("aiohttp")

FOLDER = Path(examples.__file__).parent
PACKAGE = "rllib_llm.envs.agent_programs.examples"
GRADED = {"tasks": f"{PACKAGE}.delivery:task", "reward": f"{PACKAGE}.delivery:reward"}
PROGRAMS = {
    "openai": {"program": f"{PACKAGE}.with_openai:program", **GRADED},
    "langgraph": {"program": f"{PACKAGE}.with_langgraph:program", **GRADED},
    "agents": {"program": f"{PACKAGE}.with_agents_sdk:program", **GRADED},
    "curl": {
        "program": ["sh", str(FOLDER / "with_curl.sh")],
        "tasks": GRADED["tasks"],
    },
    "node": {"program": f"node {FOLDER / 'with_node.mjs'}", "tasks": GRADED["tasks"]},
}
MODULES = {"openai": "openai", "langgraph": "langgraph", "agents": "agents"}


def run_of(name, **sections):
    if name in MODULES:
        if importlib.util.find_spec(MODULES[name]) is None:
            pytest.skip(f"{MODULES[name]} is not installed")
    elif shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    config = team_config(
        "agent-v0",
        LLMPPOConfig,
        env_config={**PROGRAMS[name], "models": ["planner", "worker"]},
        policies=("p", "w"),
        mapping={"planner": "p", "worker": "w"},
        rollouts={"step_timeout_s": 60.0},
        slots=4,
        **sections,
    )
    return Run(config, learner=False)


@pytest.mark.parametrize("name", PROGRAMS)
def test_example(name):
    run = run_of(name)
    episodes = run.runner.sample(tasks=[Task(i, 0, i) for i in range(4)])
    assert len(episodes) == 4
    for episode in episodes:
        planner = episode.agent_episodes["planner"]
        worker = episode.agent_episodes["worker"]
        assert planner.module_id == "p" and worker.module_id == "w"
        prompt = episode_data(planner).messages[-2]["content"]
        task = delivery.task(episode_data(episode).task.seed, "train")
        assert delivery.planner_prompt(task) in prompt
        assert "Walk to one." in episode_data(worker).messages[0]["content"]
        assert episode_data(episode).success in (True, False)
        for part in (planner, worker):
            for turn in part.get_extra_model_outputs(columns.TURN):
                assert len(turn.action_ids) == len(turn.action_logps) > 0


def test_scripted_replies_solve_the_task():
    from rllib_llm.envs.make import make_playable
    from rllib_llm.offline.demonstrations import demonstrate_together

    config = {
        **PROGRAMS["openai"],
        "models": ["planner", "worker"],
        "expert_reply": f"{PACKAGE}.delivery:expert_reply",
        "random_reply": f"{PACKAGE}.delivery:random_reply",
    }
    pytest.importorskip("openai")
    env = make_playable("agent-v0", config)
    solved = [
        demonstrate_together(env, seed=seed, mistake_rate=rate)[0].success
        for seed in range(8)
        for rate in (0.0, 1.0)
    ]
    env.close()
    assert all(solved[::2]) and not all(solved[1::2])
