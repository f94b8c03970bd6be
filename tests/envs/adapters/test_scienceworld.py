"""ScienceWorld's tasks; skipped where it or Java is not installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("scienceworld")
if shutil.which("java") is None:
    pytest.skip("no java", allow_module_level=True)

from rllib_llm.envs import make_env
from rllib_llm.envs.adapters import scienceworld_engine as engine
from rllib_llm.envs.transcript import expert_policy, play
from rllib_llm.errors import ConfigError

pytestmark = pytest.mark.slow


@pytest.fixture
def env():
    made = make_env("scienceworld-v0")
    yield made
    made.close()


def test_environments_share_a_process_and_the_last_one_ends_it(env):
    other = make_env("scienceworld-v0")
    env.reset(seed=0)
    other.reset(seed=1)
    (simulator,) = engine._RUNNING.values()
    assert simulator.users == 2
    env.close()
    env.close()
    assert simulator.process.poll() is None
    other.close()
    assert simulator.process.poll() is not None and not engine._RUNNING
    assert env.reset(seed=0)[0]  # it is started again


def test_a_collected_environment_stops_its_process():
    code = (
        "from rllib_llm.envs import make_env\n"
        "from rllib_llm.envs.adapters import scienceworld_engine as engine\n"
        "env = make_env('scienceworld-v0'); env.reset(seed=0)\n"
        "print(*(s.process.pid for s in engine._RUNNING.values()))\n"
    )
    pid = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
    listed = subprocess.run(["ps", "-o", "comm=", "-p", pid], capture_output=True)
    assert b"java" not in listed.stdout


def test_environments_in_threads_with_different_simplifications():
    """The simulator has one global list of simplifications."""
    settings = [["easy"], [], ["easy"], ["teleportAction"]] * 2
    made = [make_env("scienceworld-v0", {"simplifications": s}) for s in settings]

    def first_texts(env):
        return [env.reset(seed=seed)[0] for seed in range(4)]

    alone = [first_texts(env) for env in made[:4]]
    for env in made[:4]:
        env.close()
    with ThreadPoolExecutor(len(made)) as pool:
        together = list(pool.map(first_texts, made))
    assert together == alone * 2 and alone[0] != alone[1]
    assert len(engine._RUNNING) == 3
    for env in made:
        env.close()
    assert not engine._RUNNING


@pytest.mark.parametrize("task", ["boil", "lifespan-longest-lived", "chemistry-mix"])
def test_the_same_commands_are_answered_alike(env, task):
    options = {"task": task}
    first = play(env, 0, expert_policy, options=options)
    assert first.success is True and sum(first.rewards) == pytest.approx(1.0)
    other = make_env("scienceworld-v0")
    commands = iter(first.actions)
    again = play(other, 0, lambda env, rng: next(commands), options=options)
    other.close()
    assert str(again) == str(first)


def test_unknown_commands_are_invalid_actions(env):
    env.reset(seed=0)
    text, _, terminated, _, info = env.step("dance wildly")
    assert text == env.format_hint and info["invalid_action"] and not terminated
    *_, info = env.step("I think about it.\n> look around")
    assert not info["invalid_action"] and env.commands[-1] == "look around"
    assert env.step("...")[4]["invalid_action"]
    strict = make_env("scienceworld-v0", {"invalid_action": "end"})
    strict.reset(seed=0)
    _, _, terminated, _, info = strict.step("dance wildly")
    strict.close()
    assert terminated and info["stop_reason"] == "parse_error"


def test_random_play_omits_contents_of_closed_things(env):
    env.reset(seed=2)
    env.step("go to kitchen")
    hidden = "pick up tin cup"  # in the closed cupboard
    assert hidden in list(env._world.getValidActionObjectCombinations())
    possible = env._possible_commands()
    assert hidden not in possible and env.step(hidden)[4]["invalid_action"]
    assert {"put down orange in inventory", "teleport to bathroom"} < set(possible)
    env.step("open cupboard")
    assert hidden in env._possible_commands()
    assert not env.step(hidden)[4]["invalid_action"]


def test_random_play_answers_ambiguous_requests(env):
    # In this game random play meets one.
    rng = np.random.default_rng(12351)
    observation, _ = env.reset(seed=12351)
    for _ in range(20):
        action = env.random_action(rng)
        if observation.startswith("Ambiguous request"):
            assert action.isdecimal()
            assert "Ambiguous" not in env.step(action)[0]
            return
        observation, *_ = env.step(action)
    pytest.fail("No request was ambiguous; take another seed.")


def test_wrong_focus_fails(env):
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step("focus on agent")
    assert reward == -1.0 and terminated and info["success"] is False
    assert info["stop_reason"] == "terminated" and info["metrics"] == {"score": 0.0}


def test_java_is_asked_for(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(engine, "_RUNNING", {})
    with pytest.raises(ConfigError, match="default-jre-headless"):
        make_env("scienceworld-v0").reset(seed=0)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"task": "boyl"}, "Did you mean 'boil'"),
        ({"simplifications": "easy"}, "must be a list"),
        ({"simplifications": ["simple"]}, "simplifications"),
    ],
)
def test_impossible_options_are_refused(config, words):
    with pytest.raises(ConfigError, match=words):
        make_env("scienceworld-v0", config).reset(seed=0)
