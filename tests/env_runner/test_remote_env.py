"""Environments in actors with runtime environments of their own."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import ray

from rllib_llm import GRPOConfig
from rllib_llm.env_runner.remote_env import EnvActor
from rllib_llm.envs import make_env
from rllib_llm.envs.child_process import EnvProcessError
from rllib_llm.envs.make import has_numbered_tasks
from rllib_llm.errors import ConfigError
from rllib_llm.remote_calls import TimeLimit

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]
HERE = Path(__file__).parent / "clashing"


def options(version, name="Versioned", **env_config):
    """Return the options of an environment with one of two versions of a package."""
    here = os.environ.get("PYTHONPATH", "")
    paths = os.pathsep.join([str(HERE / version), str(HERE), here])
    return {
        "env": f"clashing_envs:{name}",
        "env_config": env_config,
        "runtime_env": {"env_vars": {"PYTHONPATH": paths}},
    }


@pytest.fixture(scope="module")
def alone(ray_session):
    env = make_env("remote", options("one", word="tell"))
    yield env
    env.close()


def test_the_package_is_not_here():
    assert importlib.util.find_spec("clash") is None


def test_an_episode(alone):
    observation, info = alone.reset(seed=3, options={"split": "train"})
    assert observation.startswith("tell 1, not ") and isinstance(info, dict)
    assert alone.reset(seed=3)[0] == observation
    _, reward, terminated, truncated, info = alone.step("1")
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)


def test_attributes_and_methods_of_the_innermost_environment(alone):
    assert alone.unwrapped.max_turns == 1
    assert not hasattr(alone, "no_such_thing")
    here, there = np.random.default_rng(0), np.random.default_rng(0)
    actions = [alone.unwrapped.random_action(there) for _ in range(4)]
    assert actions == [str(here.integers(9)) for _ in range(4)]
    assert there.random() == here.random()


def test_errors_of_the_environment_are_its_own(alone):
    alone.reset(seed=0)
    with pytest.raises(KeyError, match="an error of its own") as error:
        alone.step("fail")
    assert "clashing_envs.py" in "".join(error.value.__notes__)
    assert alone.reset(seed=0)[0].startswith("tell 1")


def test_an_actor_that_dies_is_a_failure_of_the_environment(alone):
    alone.reset(seed=0)
    with pytest.raises(EnvProcessError, match="died in run"):
        alone.step("exit")
    assert alone.reset(seed=0)[0].startswith("tell 1")


def test_killing_ends_the_actor_and_the_next_call_starts_one(alone):
    alone.reset(seed=0)
    handle = alone._actor._handle
    alone.kill()
    with pytest.raises(ray.exceptions.RayActorError):
        while True:  # Ray ends an actor a moment later
            ray.get(handle.agents.remote(), timeout=60)
    assert alone.reset(seed=0)[0].startswith("tell 1")


def test_an_actor_that_does_not_answer_is_ended():
    env = make_env("remote", {**options("one"), "timeout_s": 20})
    env.reset(seed=0)
    env._actor._limit = TimeLimit(0.5, "env_config.timeout_s")
    with pytest.raises(
        EnvProcessError,
        match=r"'clashing_envs:Versioned' in run\(\) did not answer within 0.5 s "
        r"\(env_config.timeout_s\).*was ended",
    ):
        env.step("hang")
    env._actor._limit = TimeLimit(60, "env_config.timeout_s")
    assert env.reset(seed=0)[0].startswith("say 1")
    env.close()


def test_closed_environments_leave_one_actor_for_the_next():
    first = make_env("remote", options("two"))
    first.reset(seed=0)
    handle = first._actor._handle
    first.close()
    second = make_env("remote", options("two"))
    assert second._actor._handle is handle
    second.close()


def test_numbered_tasks_are_those_of_the_environment():
    assert has_numbered_tasks("remote", options("one"))
    assert not has_numbered_tasks("remote", {"env": "guess_number-v0"})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "must have env"),
        ({"env": "guess_number-v0", "runtime": {}}, "Did you mean 'runtime_env'"),
        ({"env": "guess_number-v0", "timeout_s": 0}, "timeout_s=0 of a remote"),
        ({"env": "guess_number-v0", "runtime_env": {"pip": 3}}, "not one of Ray's"),
        (
            {
                "env": "guess_number-v0",
                "runtime_env": {"image_uri": "docker.io/a/b:1", "pip": ["c"]},
            },
            "image_uri.*cannot be used together",
        ),
        (
            {"env": "guess_number-v0", "runtime_env": {"py_modules": ["/a/b"]}},
            "not one of Ray's for actors",
        ),
        ({"env": "no_such-v0"}, "no_such-v0"),
        ({"env": "guess_number-v0", "env_config": {"uper": 3}}, "uper"),
    ],
)
def test_bad_options_are_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        make_env("remote", given)


def test_a_container_is_passed_to_ray():
    container = {"image_uri": "docker.io/a/b:1", "env_vars": {"A": "1"}}
    made = EnvActor({"env": "guess_number-v0", "runtime_env": container})
    assert made._options["runtime_env"].to_dict() == container


def config(env, env_config):
    return (
        GRPOConfig()
        .environment(env, env_config=env_config)
        .language_model(tiny={"hidden_size": 32, "num_hidden_layers": 1})
        .generation(max_new_tokens=4)
        .rollouts(episodes_per_iteration=8, group_size=2)
        .training(lr=1e-3, drop_zero_variance_groups=False)
        .evaluation(evaluation_interval=None)
    )


def installed(folder, version):
    """Return the options of an environment whose package pip installs."""
    (folder / "setup.py").write_text(
        "from setuptools import setup\n"
        f"setup(name='clash', version='{version}', packages=['clash'])\n"
    )
    name = {1: "one", 2: "two"}[version]
    shutil.copytree(HERE / name / "clash", folder / "clash")
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "-q", "-w", str(folder), str(folder)], check=True)
    (wheel,) = folder.glob("*.whl")
    given = options(name)
    given["runtime_env"] = {
        "pip": [str(wheel)],
        "env_vars": {
            "PYTHONPATH": f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        },
    }
    return given


@pytest.mark.slow
@pytest.mark.parametrize("by_pip", [False, True])
def test_two_environments_with_clashing_packages_train_in_one_run(tmp_path, by_pip):
    given = {"one": options("one"), "two": options("two")}
    if by_pip:
        pytest.importorskip("virtualenv")
        for number, name in enumerate(given, start=1):
            (tmp_path / name).mkdir()
            given[name] = installed(tmp_path / name, number)
    members = [
        {"env": "remote", "name": name, "env_config": env_config}
        for name, env_config in given.items()
    ]
    made = config("mixture", {"environments": members})
    algo = made.env_runners(num_envs_per_env_runner=2).build_algo()
    played = []
    collect = algo.collect
    algo.collect = lambda: played.append(collect()) or played[-1]
    result = algo.train()
    seen = {e.get_observations(0)[:5] for episodes in played for e in episodes}
    assert seen == {"say 1", "say 2"}
    assert result["env_runners"]["num_episodes"] == 8
    algo.stop()


@pytest.mark.slow
def test_agents_of_a_team_play_in_an_actor():
    team = config("remote", options("two", "Pair"))
    policies = {"ann_0": "ann", "bob_0": "bob"}
    team.multi_agent(
        policies=["ann", "bob"],
        policy_mapping_fn=lambda agent, episode, **kwargs: policies[agent],
    )
    algo = team.env_runners(num_envs_per_env_runner=2).build_algo()
    assert algo.train()["env_runners"]["num_episodes"] == 8
    env = algo.config.make_text_env()
    assert env.possible_agents == ["ann_0", "bob_0"]
    assert env.system_prompt_for("bob_0") == "Be brief."
    assert env.number_spaces("ann_0") is None
    env.close()
    algo.stop()
