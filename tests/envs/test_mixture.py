"""Mixtures of environments: their description, their episodes, their checks."""

import numpy as np
import pytest
from multi_toys import Scripted, made, over

from rllib_llm.data.types import MIXTURE_ENVIRONMENT, TurnResult
from rllib_llm.env_runner.agents import agents_of, program_envs, role_prompts
from rllib_llm.envs import check_env, make_env
from rllib_llm.envs.mixture import check_mixture
from rllib_llm.envs.mixture_members import read_members
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.errors import ConfigError
from rllib_llm.offline.demonstrations import demonstrate_together

GUESS = {"env": "guess_number-v0", "env_config": {"upper": 7}}
LAKE = {"env": "frozen_lake-v0", "env_config": {"size": 3}}


def described(*environments):
    return {"environments": list(environments)}


class Polite(TextEnv):
    """Has a system prompt."""

    system_prompt = "Be polite."
    max_turns = 1

    def start(self, rng):
        return "Hello."

    def reply(self, action):
        return TurnResult("Bye.", terminated=True)


@pytest.mark.parametrize(
    ("environments", "message"),
    [
        ("guess_number-v0", "must be a list of two or more"),
        ([GUESS], "must be a list of two or more"),
        ([GUESS, "frozen_lake-v0"], "environment 2 is 'frozen_lake-v0'; it must be a"),
        ([GUESS, {"weight": 1}], r"environment 2 has env=None"),
        ([GUESS, {"env": "mixture"}], "cannot be nested"),
        ([GUESS, {**LAKE, "wieght": 2}], "has no entry 'wieght'. Did you mean"),
        ([GUESS, {**LAKE, "weight": 0}], "weight=0; it must be a finite number > 0"),
        ([GUESS, {**LAKE, "weight": -1}], "weight=-1; it must be a finite number > 0"),
        ([GUESS, {**LAKE, "weight": float("nan")}], "weight=nan; it must be a finite"),
        ([GUESS, {**LAKE, "weight": float("inf")}], "weight=inf; it must be a finite"),
        ([GUESS, {**LAKE, "weight": True}], "weight=True; it must be a finite"),
        ([GUESS, {**LAKE, "weight": "2"}], "weight='2'; it must be a finite"),
        ([GUESS, {**LAKE, "env_config": 3}], "env_config=3; it must map options"),
        ([GUESS, GUESS], "environments 1 and 2 are both named 'guess_number-v0'"),
        ([GUESS, {**LAKE, "name": "a/b"}], "the name 'a/b'; it must consist of"),
    ],
)
def test_faults_of_a_description_are_named(environments, message):
    with pytest.raises(ConfigError, match=message):
        read_members({"environments": environments})


def test_other_options_are_refused():
    with pytest.raises(ConfigError, match="no option 'size'"):
        read_members({**described(GUESS, LAKE), "size": 3})


def test_names_do_not_contain_separators_of_metrics():
    members = read_members(
        described({"env": "textarena/Wordle-v0"}, {"env": "a.b:Env", "name": "own"})
    )
    assert [member.name for member in members] == ["Wordle-v0", "own"]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"env": "frozen_lake-v9"}, "mixture, frozen_lake-v9: Unknown environment"),
        ({**LAKE, "env_config": {"sise": 3}}, "mixture, frozen_lake-v0:.*'sise'"),
        ({"env": "secret_sum-v0"}, r"one agent \(guess_number-v0\) and with several"),
    ],
)
def test_environments_that_do_not_fit_are_named(other, message):
    with pytest.raises(ConfigError, match=message):
        check_mixture(described(GUESS, other))


def test_the_option_names_the_environment():
    env = make_env("mixture", described(GUESS, LAKE))
    for name, word in (("frozen_lake-v0", "S"), ("guess_number-v0", "number")):
        options = {MIXTURE_ENVIRONMENT: name, "split": "train"}
        assert word in env.reset(seed=0, options=options)[0]
    with pytest.raises(ConfigError, match="no environment 'taxi'"):
        env.reset(seed=0, options={MIXTURE_ENVIRONMENT: "taxi"})
    env.close()


def test_an_episode_equals_that_of_the_environment_alone():
    env = make_env("mixture", described(GUESS, LAKE))
    alone = make_env("frozen_lake-v0", {"size": 3})
    options = {MIXTURE_ENVIRONMENT: "frozen_lake-v0", "split": "test"}
    assert env.reset(seed=5, options=options) == alone.reset(
        seed=5, options={"split": "test"}
    )
    rng, other = np.random.default_rng(0), np.random.default_rng(0)
    over_ = False
    while not over_:
        action = env.unwrapped.expert_action(rng)
        assert action == alone.expert_action(other)
        result = env.step(action)
        assert result == alone.step(action)
        over_ = result[2] or result[3]
    assert env.max_turns == max(alone.max_turns, make_env(**_spec(GUESS)).max_turns)


def _spec(entry):
    return {"spec": entry["env"], "env_config": entry["env_config"]}


def test_without_the_option_seeds_draw_by_weight():
    env = make_env("mixture", described({**GUESS, "weight": 3}, LAKE))
    first = [env.reset(seed=seed)[0] for seed in range(400)]
    assert first[:20] == [env.reset(seed=seed)[0] for seed in range(20)]
    share = np.mean(["number" in text for text in first])
    assert 0.68 < share < 0.82


def test_system_prompts_come_with_the_episode():
    env = make_env("mixture", described({"env": Polite, "name": "polite"}, GUESS))
    assert role_prompts(env) == {}
    _, info = env.reset(seed=0, options={MIXTURE_ENVIRONMENT: "polite"})
    assert info["system_prompt"] == "Be polite."
    _, info = env.reset(seed=0, options={MIXTURE_ENVIRONMENT: "guess_number-v0"})
    assert "system_prompt" not in info


def test_snapshots_restore_the_environment_too():
    env, other = (make_env("mixture", described(GUESS, LAKE)) for _ in range(2))
    env.reset(seed=3, options={MIXTURE_ENVIRONMENT: "frozen_lake-v0"})
    state = env.snapshot()
    other.reset(seed=4, options={MIXTURE_ENVIRONMENT: "guess_number-v0"})
    other.restore(state)
    action = env.expert_action(np.random.default_rng(0))
    assert other.step(action) == env.step(action)


def test_games_have_the_agents_of_all():
    pair = made(Scripted, (over(),), possible_agents=["ann_0", "eve_0"])
    pair.system_prompt = "You are {agent}."
    env = make_env(
        "mixture",
        described(
            {"env": made(Scripted, (over(),)), "name": "three"},
            {"env": pair, "name": "pair"},
        ),
    )
    assert agents_of(env) == ["ann_0", "ben_0", "cid_0", "eve_0"]
    step = env.reset(seed=0, options={MIXTURE_ENVIRONMENT: "pair"})
    assert list(step.observations) == ["ann_0"]
    assert step.infos["ann_0"]["system_prompt"] == "You are {agent}."
    assert env.step({"ann_0": "hi"}).is_over
    env.close()


def test_demonstrations_come_from_the_game_of_the_episode():
    games = described({"env": "secret_sum-v0"}, {"env": "negotiation-v0"})
    env = make_env("mixture", games)
    agents = set()
    for seed in range(8):
        for demo in demonstrate_together(env, seed=seed, mistake_rate=0.2):
            assert len(demo.observations) == len(demo.completions) + 1
            agents.add(demo.agent_id)
    assert agents <= set(agents_of(env)) and len(agents) >= 2


def test_programs_of_a_mixture_get_the_policies():
    program = {"env": "agent-v0", "env_config": {"program": "a:b", "models": ["ann"]}}
    game = {"env": made(Scripted, (over(),)), "name": "game"}
    env = make_env("mixture", described(game, program))
    assert agents_of(env) == ["ann_0", "ben_0", "cid_0", "ann"]
    (serving,) = program_envs(env)
    assert serving.possible_agents == ["ann"]
    assert program_envs(make_env("guess_number-v0")) == []


def test_each_environment_is_checked():
    report = check_env("mixture", described(GUESS, LAKE), seeds=range(2))
    assert report.ok, str(report)
    assert {key.partition(":")[0] for key in report.measurements} == {
        "guess_number-v0",
        "frozen_lake-v0",
    }
    broken = check_env(
        "mixture", described({"env": Polite, "name": "polite"}, GUESS), seeds=range(2)
    )
    assert all(problem.startswith("polite: ") for problem in broken.problems)
