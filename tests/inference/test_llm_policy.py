"""LLMPolicy: conversations give the episodes of evaluation; chat()."""

import numpy as np
import pytest
from team_helpers import (
    LORA,
    Alone,
    PairTogether,
    Run,
    single_config,
    team_config,
    worth,
)

from rllib_llm import LLMPolicy, SelfPlayConfig
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.types import StopReason, TurnResult
from rllib_llm.envs import TextEnv, ToolEnv
from rllib_llm.errors import ConfigError, EpisodeOverError
from rllib_llm.evaluation.outcomes import play_tasks
from rllib_llm.inference.conversation import Conversation

TASKS = 6


def by_hand(policy, tasks, *, greedy):
    """Play tasks with the loop that a user writes for one agent."""
    env, returns = policy.make_env(), []
    for task in tasks:
        talk = policy.conversation(task, greedy=greedy)
        observation, info = env.reset(seed=task.seed, options=task.options)
        rewards, over = [], False
        while not over and talk.stop_reason is None:
            try:
                text = talk.reply(observation, info)
            except EpisodeOverError:
                break
            observation, reward, terminated, truncated, info = env.step(text)
            rewards.append(reward)
            over = terminated or truncated
        returns.append(sum(rewards))  # as RLlib adds them
        talk.close()
    return returns


def by_hands(policy, tasks, *, greedy):
    """Play tasks with the loop that a user writes for several agents."""
    env, returns = policy.make_env(), []
    for task in tasks:
        with policy.conversation(task, greedy=greedy) as talk:
            step = env.reset(seed=task.seed, options=task.options)
            returns.append(dict.fromkeys(policy.agents, 0.0))
            while not step.is_over:
                try:
                    step = env.step(talk.replies(step.observations, step.infos))
                except EpisodeOverError:
                    break
                for agent, reward in step.rewards:
                    returns[-1][agent] += reward
    return returns


def evaluated(policy, tasks, *, greedy):
    outcomes = play_tasks(None, tasks, greedy=greedy, runner=policy.runner)
    return [outcome.agent_returns or outcome.episode_return for outcome in outcomes]


def assert_equal(returns, expected):
    """Compare up to the order in which an agent's rewards are added."""
    assert len(returns) == len(expected)
    for one, other in zip(returns, expected):
        assert one == pytest.approx(other, rel=1e-12)


class Thinker(Alone):
    """Returns longer observations at every turn, so that contexts overflow."""

    max_turns = 40

    def reply(self, action):
        return TurnResult("And now? " * self.turn, reward=len(action) / 7)


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The one.
        b: The other.
    """
    return a + b


class Caller(ToolEnv):
    """Calls a tool twice for any completion; the third one is the answer."""

    tools = (add,)
    max_turns = 4

    def start(self, rng):
        return f"Number {int(rng.integers(100))}."

    def parse(self, completion):
        if self.turn < 3:
            return super().parse(self.write_call("add", a=len(completion), b=self.turn))
        return f"It is {completion}"

    def judge(self, answer):
        return worth(answer)


SINGLE = {
    "tools": {"env": Caller},
    "append": {},
    "rerender": {"language_model": {"history": "rerender"}},
    "latest": {"language_model": {"history": "latest"}},
    "short": {"env": Thinker, "generation": {"max_context_tokens": 300}},
    "few turns": {"env": Thinker, "rollouts": {"max_turns": 3}},
    "few tokens": {"env": Thinker, "rollouts": {"max_tokens_per_episode": 10}},
}


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("settings", SINGLE.values(), ids=SINGLE.keys())
def test_conversations_equal_evaluation(settings, greedy):
    policy = LLMPolicy(Run(single_config(**settings), learner=False).runner)
    tasks = policy.held_out_tasks(TASKS)
    returns = by_hand(policy, tasks, greedy=greedy)
    assert returns == evaluated(policy, tasks, greedy=greedy)
    assert greedy or len(set(returns)) > 1


TEAMS = {
    "in turn": {},
    "at once": {"env": PairTogether},
    "adapters": {"language_model": {"lora": LORA}},
    "self-play": {"config_class": SelfPlayConfig, "policies": None},
    "one budget": {"rollouts": {"max_tokens_per_episode": 14}},
}


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("settings", TEAMS.values(), ids=TEAMS.keys())
def test_conversations_of_a_team_equal_evaluation(settings, greedy):
    policy = LLMPolicy(Run(team_config(**settings), learner=False).runner)
    tasks = policy.held_out_tasks(TASKS)
    returns = by_hands(policy, tasks, greedy=greedy)
    assert_equal(returns, evaluated(policy, tasks, greedy=greedy))


def test_a_conversation_keeps_the_sampled_tokens():
    runner = Run(single_config(), learner=False).runner
    policy = LLMPolicy(runner)
    (task,) = policy.held_out_tasks(1)
    (episode,) = runner.sample(tasks=[task], explore=True)
    talk, env = policy.conversation(seed=task.seed), policy.make_env()
    observation, info = env.reset(seed=task.seed, options=task.options)
    for _ in range(len(episode)):
        text = talk.reply(observation, info)
        observation, _, over, cut, info = env.step(text)
        if over or cut:
            break
    agent = talk._recorder.agent_states[0]
    assert agent.data.ids == episode_data(episode).ids
    assert talk.messages[0] == {"role": "system", "content": "Be brief."}


def test_chat_equals_a_conversation():
    policy = LLMPolicy(Run(single_config(), learner=False).runner)
    talk = policy.conversation(seed=5)
    first = talk.reply("Number 3.")
    assert policy.chat("Number 3.", seed=5) == first
    second = talk.reply("On 1.")
    messages = [m for m in talk.messages if m["role"] != "system"][:3]
    again = policy.conversation(seed=5)
    again.append_turn(messages[0]["content"], messages[1]["content"])
    assert isinstance(again.reply(messages[2]["content"]), str)
    chatted = policy.chat(messages, seed=5)
    assert [isinstance(t, str) for t in (chatted, second)] == [True, True]
    other = policy.conversation(seed=5, system="Shout.")
    other.reply("Number 3.")
    assert other.messages[0]["content"] == "Shout."
    rng = {policy.chat("Number 3.") for _ in range(4)}
    assert len(rng) > 1  # a new seed every time
    assert len({policy.chat("Number 3.", greedy=True) for _ in range(3)}) == 1


def test_appended_turns_reach_the_engine():
    """A greedy reply depends on an appended turn as on a sampled one."""
    policy = LLMPolicy(Run(single_config(), learner=False).runner)
    for before in ("a", "something else entirely"):
        talk = policy.conversation(greedy=True)
        talk.append_turn("Number 1.", before)
        answer = talk.reply("On 1.")
        renderer = policy.config.chat_renderer()
        ids = renderer.first(
            [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Number 1."},
            ]
        )
        ids = [*ids, *renderer.encode_reply(before)]
        ids += renderer.delta("On 1.", last_sampled_id=ids[-1])
        assert talk._recorder.agent_states[0].data.ids[: len(ids)] == ids
        assert answer == greedy_text(policy, ids)


def greedy_text(policy, ids):
    """Decode without the engine, one full forward pass per token."""
    import torch

    lm, renderer = policy.runner.module.lm, policy.config.chat_renderer()
    start = len(ids)
    for _ in range(policy.config.max_new_tokens):
        with torch.no_grad():
            ids = [*ids, int(lm(input_ids=torch.tensor([ids])).logits[0, -1].argmax())]
        if ids[-1] in renderer.stop_token_ids:
            break
    return renderer.decode(ids[start:])


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda p: p.chat([]), "must alternate"),
        (lambda p: p.chat([{"role": "tool", "content": "x"}]), "must alternate"),
        (lambda p: p.chat("x", agent="bob"), "agent='bob' does not exist"),
        (lambda p: p.conversation(policies={"*": "b"}), "no policy 'b'"),
        (lambda p: p.conversation(p.held_out_tasks(1)[0], seed=1), "no effect"),
        (lambda p: LLMPolicy(p.runner, "main"), "no policy 'main'"),
    ],
)
def test_invalid_arguments_are_refused(call, message):
    policy = LLMPolicy(Run(single_config(), learner=False).runner)
    with pytest.raises(ConfigError, match=message):
        call(policy)


def test_policies_of_agents():
    policy = LLMPolicy(Run(team_config(), learner=False).runner)
    assert policy.agents == ["ann_0", "ben_0"] and policy.policies == ("a", "b")
    with pytest.raises(ConfigError, match="several agents"):
        policy.chat("Hello")
    talk = policy.conversation(seed=1)
    talk.reply("ann_0 5, turn 0.", agent="ann_0")
    talk.reply("ben_0 5, turn 1.", agent="ben_0")
    assert [talk.policy_of(a) for a in policy.agents] == ["a", "b"]
    swapped = policy.conversation(seed=1, policies={"ann": "b", "ben": "a"})
    swapped.reply("ann_0 5, turn 0.", agent="ann_0")
    assert swapped.policy_of("ann_0") == "b" and swapped.policy_of("ben_0") is None
    only = LLMPolicy(policy.runner, "b").conversation(seed=1)
    assert (
        only.reply("ann_0 5, turn 0.", agent="ann_0")
        == swapped.messages_of("ann_0")[-1]["content"]
    )


class Greeter(Alone):
    """Has an option."""

    def start(self, rng, greeting: str = "Number"):
        return f"{greeting} {int(rng.integers(100))}."


def test_the_same_weights_in_another_environment():
    config = single_config(env=Greeter, env_config={"greeting": "Nummer"})
    policy = LLMPolicy(Run(config, learner=False).runner)
    for env, given, options, first in (
        (Greeter, {"max_turns": 2}, {"greeting": "Nummer", "max_turns": 2}, "Nummer"),
        (Alone, {"max_turns": 2}, {"max_turns": 2}, "Number"),
    ):
        other = policy.in_env(env, given)
        assert other.config.env_config == options
        assert policy.config.env_config == {"greeting": "Nummer"}
        assert other.make_env().reset(seed=0)[0].startswith(first)
        theirs = dict(other.runner.module.lm.named_parameters())
        for name, parameter in policy.runner.module.lm.named_parameters():
            assert theirs[name].data_ptr() == parameter.data_ptr()
        observation = "Number 3."
        replies = [p.chat(observation, seed=2) for p in (policy, other)]
        assert replies[0] == replies[1]


def test_a_team_in_a_single_agent_environment_is_refused():
    policy = LLMPolicy(Run(team_config(), learner=False).runner)
    with pytest.raises(ConfigError, match="has a single agent, but the run trained a"):
        policy.in_env(Alone)


def test_a_full_context_raises():
    settings = {"env": Thinker, "generation": {"max_context_tokens": 120}}
    policy = LLMPolicy(Run(single_config(**settings), learner=False).runner)
    talk = policy.conversation(seed=0)
    with pytest.raises(EpisodeOverError, match="context_overflow"):
        for _ in range(30):
            talk.reply("Go on and on.")
    assert talk.stop_reason is StopReason.CONTEXT_OVERFLOW
    with pytest.raises(EpisodeOverError, match="Start a new"):
        talk.reply("Please.")


class Rock(TextEnv):
    """Lasts two turns with a list of admissible actions."""

    max_turns = 2

    def start(self, rng):
        self.good = ["rock", "paper"][int(rng.integers(2))]
        return "Rock or paper?"

    def admissible_actions(self):
        return ["rock", "paper"]

    def reply(self, action):
        return TurnResult("Next.", reward=float(action == self.good))


@pytest.mark.parametrize("greedy", [True, False])
def test_choices_among_admissible_actions(greedy):
    config = single_config(env=Rock, generation={"head": "score", "max_new_tokens": 32})
    policy = LLMPolicy(Run(config, learner=False).runner)
    tasks = policy.held_out_tasks(TASKS)
    returns = by_hand(policy, tasks, greedy=greedy)
    assert returns == evaluated(policy, tasks, greedy=greedy)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("kind", ["single", "team", "adapters"])
def test_a_checkpoint_acts_as_in_evaluation(kind, greedy, ray_session, tmp_path):
    config = single_config() if kind == "single" else team_config(**TEAMS.get(kind, {}))
    algo = config.build_algo()
    algo.train()
    algo.save_to_path(tmp_path / "checkpoint_000000")
    tasks = LLMPolicy.from_algorithm(algo).held_out_tasks(TASKS)
    expected = play_tasks(algo, tasks, greedy=greedy)
    algo.stop()
    policy = LLMPolicy.from_checkpoint(tmp_path / "checkpoint_000000")
    play = by_hand if kind == "single" else by_hands
    returns = [o.agent_returns or o.episode_return for o in expected]
    assert_equal(play(policy, tasks, greedy=greedy), returns)


def test_close_ends_the_engines_session():
    policy = LLMPolicy(Run(single_config(), learner=False).runner)
    engine = policy.runner.engine
    with policy.conversation(seed=0) as talk:
        assert isinstance(talk, Conversation)
        talk.reply("Number 3.")
        assert len(engine._sessions) == 1
    assert not engine._sessions and np.isfinite(engine.stats()["decoded_tokens"])
