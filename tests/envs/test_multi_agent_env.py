"""MultiAgentTextEnv: PettingZoo's contract, and what its authors may rely on."""

import copy
import pickle

import numpy as np
import pytest
from multi_toys import Scripted, Together, made, over
from pettingzoo.test import api_test, parallel_api_test, seed_test

from rllib_llm.envs import MultiAgentTextEnv, Outcome, make_env, register_text_env
from rllib_llm.errors import ConfigError, EnvContractError

# PettingZoo's tests wonder about observations that are no arrays.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def start(cls, plan=(), config=None, **attributes):
    env = made(cls, plan, **attributes)(config)
    env.reset(seed=0)
    return env


def say(env, *texts):
    for text in texts:
        env.step(text)


def calls(env, kind="prompt"):
    return [b for a, b in env.log if a == kind]


def test_turns_go_round_and_every_turn_has_one_prompt():
    env = start(Scripted)
    seen = []
    for _ in range(5):
        agent = env.agent_selection
        texts = {env.observe(agent)["text"] for _ in range(3)}
        assert len(texts) == 1 and env.last()[0] == env.observe(agent)
        seen.append(agent)
        env.step("x")
    assert seen == ["ann_0", "ben_0", "cid_0", "ann_0", "ben_0"]
    assert calls(env) == [*seen, "cid_0"]


def test_next_agent_decides_who_acts():
    env = start(Scripted, next_agent=lambda self: ("ben_0", "ann_0")[self.turn % 2])
    assert env.agent_selection == "ben_0"
    say(env, "x")
    assert env.agent_selection == "ann_0"
    with pytest.raises(EnvContractError, match="'dan_0'.*live agents"):
        start(Scripted, next_agent=lambda self: "dan_0")


def test_simultaneous_prompts_come_before_any_text_is_applied():
    env = start(Together)
    say(env, "a", "b")
    assert env.log == [("prompt", a) for a in env.possible_agents]
    say(env, "c")
    assert env.log[3:7] == [
        ("ann_0", "a"),
        ("ben_0", "b"),
        ("cid_0", "c"),
        ("round", 1),
    ]
    assert env.turn == 1


def test_rewards_reach_waiting_agents_and_add_up():
    plan = [Outcome({"cid_0": 1.0}), Outcome({"cid_0": 2.0, "ann_0": -1.0})]
    env = start(Scripted, plan)
    say(env, "x", "x")
    assert env.rewards == {"ann_0": -1.0, "ben_0": 0.0, "cid_0": 2.0}
    assert env.agent_selection == "cid_0"
    assert env.last()[1] == 3.0
    assert env.grants == [("cid_0", 2.0), ("ann_0", -1.0)]


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Outcome({"bob_0": 1.0}), "1.0 went to 'bob_0'.*Did you mean 'ben_0'.*ann_0"),
        (Outcome({"ben_0": float("nan")}), "'ben_0' with nan.*finite"),
        (Outcome(terminated=["zoe_0"]), "ends 'zoe_0'.*possible_agents"),
        ("done", "returned str; it must return an Outcome"),
    ],
)
def test_broken_outcomes_are_named(outcome, words):
    env = start(Scripted, [outcome])
    with pytest.raises(EnvContractError, match=words):
        env.step("x")


def test_early_leavers_are_skipped_and_the_rest_goes_on():
    env = start(Scripted, [Outcome(terminated="ann_0"), None, None, over()])
    say(env, "x")
    assert env.agent_selection == "ann_0" and env.last()[2:4] == (True, False)
    assert env.last()[0] == {"text": ""}
    env.step(None)
    assert env.agents == ["ben_0", "cid_0"] == env.live_agents
    assert env.agent_selection == "ben_0"
    say(env, "x", "x")
    assert env.agent_selection == "ben_0"
    say(env, "x")
    assert env.terminations == {"ben_0": True, "cid_0": True}
    say(env, None, None)
    assert env.agents == []
    with pytest.raises(EnvContractError, match=r"Call reset\(\) first"):
        env.step("x")


def test_late_joiners_take_part_from_then_on():
    def apply(self, agent, action):
        if action == "come":
            self.join("cid_0")
            return Outcome({"cid_0": 0.5})

    env = start(Scripted, late_agents=("cid_0",), apply=apply)
    assert env.agents == ["ann_0", "ben_0"]
    say(env, "x", "come")
    assert env.agents == ["ann_0", "ben_0", "cid_0"]
    assert env.agent_selection == "cid_0" and env.last()[1] == 0.5
    with pytest.raises(EnvContractError, match="'cid_0' has joined before"):
        env.join("cid_0")
    with pytest.raises(EnvContractError, match="'dan_0'"):
        env.join("dan_0")


def test_turn_limit_truncates_everyone_with_a_last_observation():
    env = start(Scripted, config={"max_turns": 2})
    say(env, "x", "x")
    assert env.truncations == dict.fromkeys(env.possible_agents, True)
    assert env.observe("ann_0")["text"] == "hello ann_0, turn 2"
    assert env.infos["cid_0"]["stop_reason"] == "max_turns"
    assert env.infos["cid_0"]["success"] is False
    assert calls(env)[2:] == env.possible_agents


def test_turn_limit_counts_rounds_of_simultaneous_games():
    env = start(Together, config={"max_turns": 2})
    say(env, *"abc", *"abc")
    assert all(env.truncations.values()) and env.turn == 2


def test_end_by_the_game_wins_over_the_limit():
    env = start(Scripted, [over({"ann_0": 1.0}, success=True)], config={"max_turns": 1})
    say(env, "x")
    assert not any(env.truncations.values())
    assert env.infos["ben_0"] == {"success": True, "stop_reason": "terminated"}
    assert env.infos["ann_0"]["parsed_action"] == "x"


def test_invalid_action_retry_asks_the_same_agent_with_a_hint():
    env = start(Scripted, config={"invalid_action_reward": -0.25})
    say(env, "?")
    assert env.agent_selection == "ann_0"
    assert env.observe("ann_0")["text"] == "Say something."
    assert env.rewards["ann_0"] == -0.25 and env.turn == 1
    assert env.infos["ann_0"]["invalid_action"] is True
    assert calls(env) == ["ann_0"]
    say(env, "x")
    assert env.agent_selection == "ben_0" and ("ann_0", "x") in env.log


def test_invalid_action_in_a_simultaneous_round_holds_the_round():
    env = start(Together)
    say(env, "a", "?", "c")
    assert env.pending == ["ben_0"] and env.turn == 1
    assert ("ann_0", "a") not in env.log
    say(env, "b")
    applied = [entry for entry in env.log if entry[0] in env.possible_agents]
    assert applied == [("ann_0", "a"), ("ben_0", "b"), ("cid_0", "c")]
    assert env.pending == env.possible_agents and env.turn == 2


def test_invalid_action_end_is_a_parse_error_for_all():
    env = start(Scripted, config={"invalid_action": "end"})
    say(env, "?")
    assert all(env.terminations.values())
    assert env.infos["cid_0"] == {"success": False, "stop_reason": "parse_error"}


def test_metrics_stand_in_the_actors_info():
    env = start(Scripted, [Outcome(metrics={"pareto": 1.0})])
    say(env, "x")
    assert env.infos["ann_0"]["metrics"] == {"pareto": 1.0}
    assert env.infos["ben_0"] == {}


def test_success_is_none_without_has_success():
    env = start(Scripted, [over()], has_success=False)
    say(env, "x")
    assert env.infos["ann_0"]["success"] is None


def test_snapshot_and_restore_repeat_the_future():
    def apply(self, agent, action):
        drawn = float(self.np_random.integers(1000))
        return Outcome({agent: drawn})

    env = start(Scripted, apply=apply)
    say(env, "x", "x")
    spaces = env.observation_space("ann_0"), env.action_space("ann_0")
    state = env.snapshot()

    def future():
        rewards = []
        for _ in range(5):
            env.step("y")
            rewards.append(dict(env.rewards))
        return rewards, env.agent_selection, list(env.log)

    first = future()
    env.scratch = 1
    for _ in range(2):
        env.restore(state)
        assert not hasattr(env, "scratch")
        assert future() == first
    assert (env.observation_space("ann_0"), env.action_space("ann_0")) == spaces
    assert env.observation_space("ann_0") is spaces[0]
    assert env.agents is not state["agents"]


def test_copies_and_pickles_play_on():
    env = start(Scripted, [None, over({"ben_0": 1.0})])
    say(env, "x")
    copied = copy.deepcopy(env)
    say(copied, "x")
    assert copied.rewards["ben_0"] == 1.0 and env.rewards["ben_0"] == 0.0
    shipped = make_env("secret_sum-v0")
    shipped.reset(seed=1)
    again = pickle.loads(pickle.dumps(shipped))
    assert again.last() == shipped.last()


@pytest.mark.parametrize("cls", [Scripted, Together])
def test_pettingzoo_tests_pass(cls):
    plan = [Outcome({"ben_0": 0.1 * i}) for i in range(9)] + [over({"ann_0": 1.0})]
    api_test(made(cls, plan)({"max_turns": 50}))
    seed_test(made(cls, plan))
    if cls is Together:
        parallel_api_test(made(cls, plan)().parallel_view())


def test_pettingzoo_tests_pass_with_leavers_and_joiners():
    def apply(self, agent, action):
        if self.turn == 2:
            self.join("cid_0")
        return {3: Outcome(terminated=["ann_0"]), 6: Outcome(truncated=["ben_0"])}.get(
            self.turn, Outcome({agent: 1.0})
        )

    api_test(made(Scripted, (), late_agents=("cid_0",), apply=apply)())


def test_games_in_turns_have_no_parallel_view():
    with pytest.raises(EnvContractError, match="simultaneous = True"):
        Scripted().parallel_view()


def test_options_work_as_for_single_agents():
    env = Scripted({"greeting": "hi", "max_turns": 3})
    env.reset(seed=0)
    assert env.observe("ann_0")["text"].startswith("hi ")
    assert env.options() == {"greeting": "hi"}
    env.reset(seed=0, options={"greeting": "yo", "split": "test"})
    assert env.observe("ann_0")["text"].startswith("yo ") and env.split == "test"
    with pytest.raises(ConfigError, match="Did you mean 'greeting'"):
        Scripted({"greting": "x"})
    with pytest.raises(ConfigError, match="Set it in env_config"):
        env.reset(options={"max_turns": 2})
    with pytest.raises(ConfigError, match="max_turns=0"):
        Scripted({"max_turns": 0})


def test_options_that_change_the_agents_belong_in_env_config():
    env = make_env("secret_sum-v0", {"agents": 3})
    assert env.possible_agents == ["alice_0", "bob_0", "carol_0"]
    with pytest.raises(ConfigError, match="'agents': 2.*in env_config"):
        env.reset(seed=0, options={"agents": 2})


def test_the_seed_decides_the_episode():
    env = Scripted()
    numbers = []
    for seed in (1, 2, 1):
        env.reset(seed=seed)
        numbers.append(env.number)
    assert numbers[0] == numbers[2] != numbers[1]
    assert numbers[0] == np.random.default_rng(1).integers(1000)


def test_episodes_without_a_seed_go_on_with_the_generator():
    numbers = []
    for _ in range(2):
        env = Scripted()
        env.reset(seed=1)
        env.reset()
        numbers.append(env.number)
    assert numbers[0] == numbers[1]


@pytest.mark.parametrize("names", [[], ["ann_0", "ann_0"]])
def test_agents_must_be_declared(names):
    with pytest.raises(EnvContractError, match="possible_agents"):
        made(Scripted, (), possible_agents=names)()


@pytest.mark.parametrize("text", ["", 7, None])
def test_prompts_must_be_texts(text):
    with pytest.raises(EnvContractError, match="prompt_for"):
        start(Scripted, prompt_for=lambda self, agent: text)


def test_actions_must_be_texts():
    with pytest.raises(EnvContractError, match="7 as the text of 'ann_0'"):
        start(Scripted).step(7)


def test_one_registry_names_both_kinds():
    @register_text_env("toy_talk-v0")
    class ToyTalk(Scripted):
        pass

    assert isinstance(make_env("toy_talk-v0"), ToyTalk)
    assert make_env(ToyTalk, {"greeting": "a"}).options() == {"greeting": "a"}
    assert isinstance(make_env("multi_toys:Scripted"), MultiAgentTextEnv)
    with pytest.raises(ConfigError, match="Did you mean 'secret_sum-v0'"):
        make_env("secret_sun-v0")


def test_missing_methods_are_named():
    class Nothing(MultiAgentTextEnv):
        possible_agents = ["ann_0"]

    with pytest.raises(NotImplementedError, match=r"Nothing.start\(\)"):
        Nothing().reset(seed=0)
