"""GAE over messages and tokens of several agents: slow loops and invariances."""

import numpy as np
import pytest

from rllib_llm.advantages.column_keys import combined_keys
from rllib_llm.advantages.gae import token_gae
from rllib_llm.advantages.multi_agent_gae import message_gae, two_level_gae

ATOL = 1e-9


def slow_gae(
    rewards, values, episodes, order, bootstraps, *, gamma, lambda_, gw, lw, own
):
    """Walk each episode backwards, step by step and token by token.

    ``values`` and ``own`` are lists of lists, one per message.
    """
    advantages = [None] * len(rewards)
    targets = [None] * len(rewards)
    for episode in sorted(set(episodes)):
        places = sorted({o for e, o in zip(episodes, order) if e == episode})
        value_after, passed_back = bootstraps[episode], 0.0
        for place in reversed(places):
            members = [
                k
                for k in range(len(rewards))
                if (episodes[k], order[k]) == (episode, place)
            ]
            before = sum(values[k][0] for k in members) / len(members)
            joint_reward = sum(rewards[k] for k in members)
            for k in members:
                v = [before, *values[k][1:]]
                a = [0.0] * len(v)
                a[-1] = own[k][-1] + joint_reward + gamma * value_after - v[-1]
                a[-1] += gamma * lambda_ * passed_back
                for j in range(len(v) - 2, -1, -1):
                    delta = own[k][j] + gw * v[j + 1] - v[j]
                    a[j] = delta + gw * lw * a[j + 1]
                advantages[k] = a
                targets[k] = [x + y for x, y in zip(v, a)]
            value_after = before
            passed_back = sum(advantages[k][0] for k in members) / len(members)
    return np.concatenate(advantages), np.concatenate(targets)


def make_batch(seed, *, simultaneous, longest=6):
    """Three episodes, interleaved; the one in the middle was cut short."""
    rng = np.random.default_rng(seed)
    count = 17
    episodes = rng.permutation(np.repeat([4, 7, 9], [8, 6, 3]))
    order = np.zeros(count, dtype=int)
    for episode in (4, 7, 9):
        rows = episodes == episode
        high = rows.sum() // 2 if simultaneous else None
        order[rows] = rng.integers(high, size=rows.sum()) if high else range(rows.sum())
    lengths = rng.integers(1, longest + 1, size=count)
    return {
        "rewards": rng.normal(size=count),
        "values": [rng.normal(size=n) for n in lengths],
        "own": [rng.normal(size=n) for n in lengths],
        "messages": np.repeat(np.arange(count), lengths),
        "episodes": episodes,
        "order": order,
        "bootstraps": {4: 0.0, 7: 0.6, 9: 0.0},
    }


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("simultaneous", [False, True])
def test_two_levels_equal_the_definition(seed, simultaneous):
    b = make_batch(seed, simultaneous=simultaneous)
    settings = {"gamma": 0.93, "lambda_": 0.8}
    got = two_level_gae(
        b["rewards"],
        np.concatenate(b["values"]),
        b["messages"],
        b["episodes"],
        **settings,
        gamma_token=0.9,
        lambda_token=0.7,
        order=b["order"],
        bootstrap_values=np.array(list(b["bootstraps"].values())),
        token_rewards=np.concatenate(b["own"]),
    )
    expected = slow_gae(
        b["rewards"],
        b["values"],
        b["episodes"],
        b["order"],
        b["bootstraps"],
        **settings,
        gw=0.9,
        lw=0.7,
        own=b["own"],
    )
    np.testing.assert_allclose(got, expected, atol=ATOL)
    assert got[0].dtype == np.float64


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("simultaneous", [False, True])
def test_messages_equal_the_definition(seed, simultaneous):
    b = make_batch(seed, simultaneous=simultaneous, longest=1)
    settings = {"gamma": 0.93, "lambda_": 0.8}
    got = message_gae(
        b["rewards"],
        np.concatenate(b["values"]),
        b["episodes"],
        **settings,
        order=b["order"],
        bootstrap_values=np.array(list(b["bootstraps"].values())),
    )
    expected = slow_gae(
        b["rewards"],
        b["values"],
        b["episodes"],
        b["order"],
        b["bootstraps"],
        **settings,
        gw=1.0,
        lw=1.0,
        own=[[0.0]] * 17,
    )
    np.testing.assert_allclose(got, expected, atol=ATOL)


def test_three_agents_by_hand():
    """planner, coder, planner; the next agent would be the coder, worth 5."""
    advantages, targets = message_gae(
        [0.0, 1.0, 2.0],
        [1.0, 2.0, 3.0],
        ["e", "e", "e"],
        gamma=0.5,
        lambda_=0.5,
        bootstrap_values=5.0,
    )
    last = 2.0 + 0.5 * 5.0 - 3.0
    middle = 1.0 + 0.5 * 3.0 - 2.0 + 0.25 * last
    first = 0.0 + 0.5 * 2.0 - 1.0 + 0.25 * middle
    np.testing.assert_allclose(advantages, [first, middle, last], atol=ATOL)
    np.testing.assert_allclose(targets - advantages, [1.0, 2.0, 3.0], atol=ATOL)


def test_truncated_bootstraps_and_terminated_does_not():
    arguments = ([0.0, 0.0], [1.0, 1.0], [0, 1])
    settings = {"gamma": 0.9, "lambda_": 0.9}
    got, _ = message_gae(*arguments, **settings, bootstrap_values=[0.0, 2.0])
    np.testing.assert_allclose(got, [-1.0, 0.9 * 2.0 - 1.0], atol=ATOL)


@pytest.mark.parametrize("seed", range(3))
def test_one_agent_equals_token_gae(seed):
    """Per message: the turn chain. Per token: two discounts, by place in the turn."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 9, size=12)
    messages = np.repeat(np.arange(12), lengths)
    rewards, values = rng.normal(size=12), rng.normal(size=lengths.sum())
    settings = {"gamma": 0.97, "lambda_": 0.9}
    ends = np.diff(messages, append=12) != 0
    per_token = np.zeros(len(values))
    per_token[ends] = rewards
    expected = token_gae(
        per_token,
        values,
        gamma=np.where(ends, 0.97, 0.99),
        lambda_=np.where(ends, 0.9, 0.8),
        bootstrap_value=0.4,
    )
    got = two_level_gae(
        rewards,
        values,
        messages,
        np.zeros(12),
        **settings,
        gamma_token=0.99,
        lambda_token=0.8,
        bootstrap_values=0.4,
    )
    np.testing.assert_allclose(got, expected, atol=1e-12)
    turns = message_gae(rewards, values[:12], np.zeros(12), **settings)
    expected = token_gae(rewards, values[:12], **settings)
    np.testing.assert_allclose(turns, expected, atol=1e-12)


@pytest.mark.parametrize("simultaneous", [False, True])
def test_first_token_has_the_message_advantage(simultaneous):
    """At token discounts 1, A[k,1] = A[k] and A[k,j] = A[k] + V[k,1] - V[k,j]."""
    b = make_batch(3, simultaneous=simultaneous)
    settings = {"gamma": 0.9, "lambda_": 0.8, "order": b["order"]}
    values = np.concatenate(b["values"])
    first = np.flatnonzero(np.diff(b["messages"], prepend=-1))
    per_message, _ = message_gae(
        b["rewards"], values[first], b["episodes"], **settings, bootstrap_values=0.3
    )
    per_token, _ = two_level_gae(
        b["rewards"],
        values,
        b["messages"],
        b["episodes"],
        **settings,
        bootstrap_values=0.3,
    )
    np.testing.assert_allclose(per_token[first], per_message, atol=ATOL)
    steps = combined_keys(b["episodes"], b["order"])
    shared = np.bincount(steps, values[first]) / np.bincount(steps)
    start = (per_message + shared[steps])[b["messages"]]
    later = np.delete(np.arange(len(values)), first)
    np.testing.assert_allclose(
        per_token[later], start[later] - values[later], atol=ATOL
    )


def test_splitting_a_message_changes_nothing_without_discounts():
    rng = np.random.default_rng(0)
    values = rng.normal(size=9)
    whole = np.array([0, 0, 0, 1, 1, 1, 1, 1, 2])
    split = np.array([0, 0, 0, 1, 1, 2, 2, 2, 3])
    plain = {"gamma": 1.0, "lambda_": 1.0}
    one = two_level_gae([0.0, 0.5, 1.0], values, whole, [0] * 3, **plain)
    two = two_level_gae([0.0, 0.0, 0.5, 1.0], values, split, [0] * 4, **plain)
    np.testing.assert_allclose(two, one, atol=ATOL)
    discounted = {"gamma": 0.9, "lambda_": 0.9}
    one = two_level_gae([0.0, 0.5, 1.0], values, whole, [0] * 3, **discounted)
    two = two_level_gae([0.0, 0.0, 0.5, 1.0], values, split, [0] * 4, **discounted)
    assert np.abs(two[0] - one[0]).max() > 0.01


def test_advantages_of_long_messages_do_not_fade():
    """MARFT's one discount for both levels loses it; the tokens' own does not."""
    length = 512
    arguments = ([1.0], np.zeros(length), np.zeros(length, dtype=int), [0])
    outer = {"gamma": 0.99, "lambda_": 0.95}
    kept, _ = two_level_gae(*arguments, **outer)
    assert (kept == 1.0).all()
    lost, _ = two_level_gae(*arguments, **outer, gamma_token=0.99, lambda_token=0.95)
    assert lost[0] == pytest.approx(0.9405**511, rel=1e-9) and lost[0] < 1e-13


def test_simultaneous_messages_share_one_step():
    """Members get one advantage; the step is one decision with the summed reward."""
    rewards, values = np.array([0.2, 0.3, 1.0]), np.array([0.4, 0.6, 0.9])
    settings = {"gamma": 0.9, "lambda_": 0.8}
    got, targets = message_gae(rewards, values, [0] * 3, **settings, order=[0, 0, 1])
    chain, chain_targets = message_gae([0.5, 1.0], [0.5, 0.9], [0, 0], **settings)
    np.testing.assert_allclose(got, chain[[0, 0, 1]], atol=ATOL)
    np.testing.assert_allclose(targets, chain_targets[[0, 0, 1]], atol=ATOL)


def test_one_message_per_place_equals_the_chain():
    b = make_batch(1, simultaneous=False)
    values = np.concatenate(b["values"])[:17]
    settings = {"gamma": 0.9, "lambda_": 0.8}
    implicit = message_gae(b["rewards"], values, b["episodes"], **settings)
    explicit = message_gae(
        b["rewards"], values, b["episodes"], **settings, order=3 * b["order"] + 5
    )
    assert (np.array(implicit) == np.array(explicit)).all()


def test_central_values_are_mappo_per_step():
    """C3's baseline: one flat buffer, a done flag at each episode's last step."""
    rng = np.random.default_rng(2)
    episodes = np.repeat([0, 1, 2], [3, 1, 4])
    rewards, values = rng.normal(size=8), rng.normal(size=8)
    done = np.diff(episodes, append=3) != 0
    expected, following = np.zeros(8), 0.0
    for k in reversed(range(8)):
        alive = 0.0 if done[k] else 1.0
        next_value = values[k + 1] if k < 7 else 0.0
        delta = rewards[k] + 0.95 * alive * next_value - values[k]
        following = delta + 0.95 * 0.9 * alive * following
        expected[k] = following
    got, _ = message_gae(rewards, values, episodes, gamma=0.95, lambda_=0.9)
    np.testing.assert_allclose(got, expected, atol=ATOL)


def test_chains_per_agent_are_ippo():
    rng = np.random.default_rng(5)
    episodes, agents = rng.integers(3, size=30), rng.integers(2, size=30)
    rewards, values = rng.normal(size=30), rng.normal(size=30)
    settings = {"gamma": 0.95, "lambda_": 0.9}
    got, _ = message_gae(rewards, values, combined_keys(episodes, agents), **settings)
    for episode in range(3):
        for agent in range(2):
            rows = (episodes == episode) & (agents == agent)
            expected, _ = token_gae(rewards[rows], values[rows], **settings)
            np.testing.assert_allclose(got[rows], expected, atol=ATOL)


@pytest.mark.parametrize("simultaneous", [False, True])
def test_order_of_rows_and_other_episodes_do_not_matter(simultaneous):
    b = make_batch(4, simultaneous=simultaneous)
    values = np.concatenate(b["values"])
    settings = {"gamma": 0.9, "lambda_": 0.8, "gamma_token": 0.95, "lambda_token": 0.9}

    def run(rows):
        tokens = np.concatenate([np.flatnonzero(b["messages"] == k) for k in rows])
        place = {k: i for i, k in enumerate(rows)}
        return tokens, two_level_gae(
            b["rewards"][rows],
            values[tokens],
            np.array([place[m] for m in b["messages"][tokens]]),
            b["episodes"][rows],
            **settings,
            order=b["order"][rows],
        )

    whole = np.array(run(np.arange(17))[1])
    tokens, shuffled = run(np.random.default_rng(0).permutation(17))
    # Sums over the members of a step run in another order.
    np.testing.assert_allclose(shuffled, whole[:, tokens], atol=1e-12)
    tokens, alone = run(np.flatnonzero(b["episodes"] == 7))
    assert (np.array(alone) == whole[:, tokens]).all()


def test_tokens_of_messages_may_interleave():
    """Rows of several agents, token by token, need not be sorted first."""
    b = make_batch(2, simultaneous=True)
    values, messages = np.concatenate(b["values"]), b["messages"]
    settings = {"gamma": 0.9, "lambda_": 0.8, "lambda_token": 0.7}

    def run(tokens):
        return np.array(
            two_level_gae(
                b["rewards"],
                values[tokens],
                messages[tokens],
                b["episodes"],
                **settings,
            )
        )

    shuffled = np.random.default_rng(0).permutation(messages)
    places = np.argsort(np.argsort(shuffled, kind="stable"))  # in time order
    assert (run(places) == run(np.arange(len(values)))[:, places]).all()


def test_no_messages_give_nothing():
    for result in (
        message_gae([], [], [], gamma=1.0, lambda_=1.0),
        two_level_gae([], [], [], [], gamma=1.0, lambda_=1.0),
    ):
        assert [array.shape for array in result] == [(0,), (0,)]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"gamma": 1.1}, "gamma is 1.1"),
        ({"lambda_token": np.nan}, "lambda_token is nan"),
        ({"rewards": [0.0, np.nan]}, r"rewards\[1\] is nan"),
        ({"values": [0.0, 0.0, np.inf]}, r"values\[2\] is inf"),
        ({"episodes": [0]}, r"rewards \[2\], episodes \[1\]"),
        ({"order": [0, 1, 2]}, r"order \[3\]"),
        ({"messages": [0, 1]}, r"values \[3\], messages \[2\]"),
        ({"messages": [0, 0, 0]}, "Message 1 has 0 tokens"),
        ({"messages": [0, 1, 2]}, "Message 2 has 1 tokens and rewards has 2"),
        ({"messages": [0, 1, -1]}, "least entry -1"),
        ({"messages": [0.0, 1.0, 1.0]}, "dtype float64"),
        (
            {"bootstrap_values": [0.0, 0.0]},
            r"shape \[2\]. It must be one number or \[1",
        ),
        ({"bootstrap_values": np.nan}, r"bootstrap_values\[0\] is nan"),
        ({"token_rewards": [0.0]}, r"token_rewards \[1\]"),
    ],
)
def test_errors_name_the_value(changed, message):
    arguments = {
        "rewards": [0.0, 1.0],
        "values": [0.0, 0.0, 0.0],
        "messages": [0, 0, 1],
        "episodes": [0, 0],
        "gamma": 1.0,
        "lambda_": 1.0,
    } | changed
    with pytest.raises(ValueError, match=message):
        two_level_gae(**arguments)


def test_message_values_must_fit_rewards():
    with pytest.raises(ValueError, match=r"rewards \[2\], values \[3\]"):
        message_gae([0.0, 1.0], np.zeros(3), [0, 0], gamma=1.0, lambda_=1.0)
