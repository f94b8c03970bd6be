"""Secret sum: rewards, private information, and its exact values."""

import itertools

import numpy as np
import pytest

from rllib_llm.envs import MultiAgentAdapter, make_env
from rllib_llm.envs.games.secret_sum import NAMES, answer_rewards
from rllib_llm.envs.games.secret_sum_values import exact_advantage, exact_values
from rllib_llm.envs.one_player import OnePlayer
from rllib_llm.envs.transcript import expert_policy, play


def uniform(agents, n):
    return [np.full((n, n, n), 1 / n)] * agents


def expert(agents, n):
    received, own = np.indices((n, n))
    table = np.zeros((n, n, n))
    table[received, own, (received + own) % n] = 1.0
    return [table] * agents


def random_policies(agents, n, seed=0):
    return list(np.random.default_rng(seed).dirichlet(np.ones(n), (agents, n, n)))


@pytest.mark.parametrize("agents", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("numbers", [2, 5, 10])
def test_the_chain_of_experts_always_answers_right(agents, numbers):
    env = OnePlayer(
        MultiAgentAdapter(
            make_env("secret_sum-v0", {"agents": agents, "numbers": numbers})
        )
    )
    for seed in range(20):
        transcript = play(env, seed, expert_policy)
        rewards = dict(transcript.infos[-1]["rewards"])
        assert rewards == dict.fromkeys(NAMES[:agents], 1.0)
        assert len(transcript.actions) == agents


def test_agents_observe_their_number_and_the_last_message():
    env = make_env("secret_sum-v0", {"agents": 3, "numbers": 10})
    texts = {}
    for secrets in ([1, 2, 3], [1, 7, 8]):
        env.reset(seed=0)
        env.secrets = secrets
        for agent, message in zip(NAMES, (4, 5, 6)):
            texts.setdefault(agent, []).append(env.prompt_for(agent))
            env.step(f"say {message}")
    # Alice's number did not change, so she reads the same.
    assert texts["alice_0"][0] == texts["alice_0"][1]
    assert texts["bob_0"][1] == "alice_0 says 4. You have 7. Tell carol_0 0 to 9."
    assert texts["carol_0"][1] == "bob_0 says 5. You have 8. Say the sum modulo 10."


def test_no_policy_of_the_last_agent_alone_beats_chance():
    n = 4
    silent = np.zeros((n, n, n))
    silent[:, :, 0] = 1.0  # alice says 0, whatever she has
    answers = expert(1, n)[0]
    pairs = itertools.product(range(n), repeat=2)
    value = np.mean([exact_values([silent, answers], s, [])[0] for s in pairs])
    assert value == pytest.approx(1 / n)


@pytest.mark.parametrize(
    ("numbers", "partial", "expected"),
    [
        (4, 0.0, [0, 0, 1, 0]),
        (4, 0.6, [0, 0.6, 1, 0.6]),
        (6, 0.5, [0.25, 0.5, 1, 0.5, 0.25, 0]),
        (2, 0.9, [1, 0]),
        (3, 0.9, [0, 0, 1]),
    ],
)
def test_partial_reward_falls_with_the_distance(numbers, partial, expected):
    assert answer_rewards([1, 1], numbers, partial) == pytest.approx(expected)


def test_partial_reward_is_not_a_success():
    env = MultiAgentAdapter(make_env("secret_sum-v0", {"partial": 0.5}))
    env.reset(seed=0)
    env.unwrapped.secrets = [1, 1]
    env.step({"alice_0": "say 1"})
    step = env.step({"bob_0": "say 3"})
    assert step.rewards == [("alice_0", 0.5), ("bob_0", 0.5)]
    assert step.success is False and step.is_over


def slow_value(policies, secrets, messages, partial):
    """Enumerate all messages that are still possible."""
    n = policies[0].shape[-1]
    total = 0.0
    for rest in itertools.product(range(n), repeat=len(policies) - len(messages)):
        whole, probability = [*messages, *rest], 1.0
        for k in range(len(messages), len(policies)):
            received = whole[k - 1] if k else 0
            probability *= policies[k][received, secrets[k], whole[k]]
        off = abs(whole[-1] - sum(secrets) % n)
        distance = min(off, n - off)
        far = max(n // 2, 1)
        reward = 1.0 if distance == 0 else partial * (far - distance) / max(far - 1, 1)
        total += probability * reward
    return total


@pytest.mark.parametrize("agents", [2, 3, 4])
@pytest.mark.parametrize("partial", [0.0, 0.4])
def test_exact_values_match_enumeration(agents, partial):
    n = 3
    policies = random_policies(agents, n)
    rng = np.random.default_rng(1)
    for _ in range(5):
        secrets, messages = rng.integers(n, size=(2, agents))
        values = exact_values(policies, secrets, messages, partial)
        slow = [
            slow_value(policies, secrets, list(messages[:k]), partial)
            for k in range(agents + 1)
        ]
        np.testing.assert_allclose(values, slow, atol=1e-12)


def test_advantages_add_up_and_average_to_zero():
    n, secrets = 4, [3, 2, 1]
    policies = random_policies(3, n)
    messages = [1, 0, 2]
    values = exact_values(policies, secrets, messages)
    advantages = exact_advantage(policies, secrets, messages)
    assert advantages.sum() == pytest.approx(values[-1] - values[0])
    assert values[-1] == 1.0
    for k, received in enumerate([0, *messages[:2]]):
        mean = sum(
            p * exact_advantage(policies, secrets, [*messages[:k], a])[k]
            for a, p in enumerate(policies[k][received, secrets[k]])
        )
        assert mean == pytest.approx(0.0, abs=1e-12)


def test_advantage_is_negative_for_the_agent_at_fault():
    n, secrets = 4, [3, 2]
    policies = [0.9 * e + 0.1 * u for e, u in zip(expert(2, n), uniform(2, n))]
    good, bad = (
        exact_advantage(policies, secrets, messages) for messages in ([3, 1], [2, 0])
    )
    assert (good > 0).all()
    assert bad[0] < -0.5 and abs(bad[1]) < 0.1
    assert exact_values(expert(2, n), secrets, [])[0] == 1.0
    assert make_env("secret_sum-v0").optimal_value() == 1.0


def test_sampled_returns_agree_with_the_exact_value():
    n, agents = 4, 3
    policies = random_policies(agents, n, seed=3)
    env = MultiAgentAdapter(make_env("secret_sum-v0", {"agents": agents, "numbers": n}))
    rng, returns, step = np.random.default_rng(0), [], None
    for _ in range(3000):
        step = env.reset(seed=5)
        for k, agent in enumerate(NAMES[:agents]):
            game = env.unwrapped
            received = game.messages[-1] if game.messages else 0
            message = rng.choice(n, p=policies[k][received, game.secrets[k]])
            step = env.step({agent: f"say {message}"})
        returns.append(dict(step.rewards).get("bob_0", 0.0))
    exact = exact_values(policies, env.unwrapped.secrets, [])[0]
    assert np.mean(returns) == pytest.approx(exact, abs=4 * np.std(returns) / 3000**0.5)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("say 3", 3),
        ("I have 2, so SAY 1.", 1),
        ("say 1 or say 2", 2),
        ("say 4", None),
        ("say", None),
        ("3", None),
        ("say -1", None),
    ],
)
def test_the_last_number_in_range_counts(text, number):
    env = make_env("secret_sum-v0")
    env.reset(seed=0)
    assert env.parse("alice_0", text) == number
