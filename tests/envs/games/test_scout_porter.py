"""Scout and porter: observations, rewards, and the best policies."""

import itertools

import numpy as np
import pytest

from rllib_llm.envs import MultiAgentAdapter, make_env

AGENTS = ("scout_0", "porter_0")


def finish(goods, message, walked, **options):
    """Play one game; return each agent's return, and the last step."""
    env = MultiAgentAdapter(make_env("scout_porter-v0", options))
    env.reset(seed=0)
    env.unwrapped.goods = goods
    env.step({"scout_0": message})
    step = env.step({"porter_0": walked})
    return dict.fromkeys(AGENTS, 0.0) | dict(step.rewards), step


def test_porter_observes_the_word_but_not_the_goods():
    env = make_env("scout_porter-v0", {"doors": 3})
    env.reset(seed=0)
    env.goods = "gold"
    assert env.prompt_for("scout_0") == "Goods: gold. Doors: red blue gold. Say one."
    env.step("It is gold, no, blue")
    assert env.observe("porter_0")["text"] == (
        "scout_0 says blue. Doors: red blue gold. Walk to one."
    )
    assert env.prompt_for("scout_0") == ""


@pytest.mark.parametrize(
    ("message", "walked", "scout", "porter", "metrics"),
    [
        ("gold", "gold", 0.0, 1.0, {"honesty": 1.0, "trust": 1.0}),
        ("gold", "blue", 0.0, 0.0, {"honesty": 1.0, "trust": 0.0}),
        ("blue", "blue", 0.25, 0.0, {"honesty": 0.0, "trust": 1.0}),
        ("blue", "gold", 0.0, 1.0, {"honesty": 0.0, "trust": 0.0}),
        ("blue", "red", 0.0, 0.0, {"honesty": 0.0, "trust": 0.0}),
    ],
)
def test_rewards_of_scout_and_porter(message, walked, scout, porter, metrics):
    rewards, step = finish("gold", message, walked, tip=0.25)
    assert rewards == {"scout_0": scout, "porter_0": porter}
    assert step.success is (porter == 1.0) and step.terminated
    assert step.metrics == metrics


def test_scouts_best_policy_lies_and_the_teams_best_policy_arrives():
    """Try every table of messages of a scout, beside a porter that trusts it."""
    doors, tip = ("red", "blue", "gold"), 0.5
    found = {}
    for words in itertools.product(doors, repeat=len(doors)):
        message = dict(zip(doors, words, strict=True))
        returns = [
            finish(goods, word, word, tip=tip)[0] for goods, word in message.items()
        ]
        honesty = np.mean([word == goods for goods, word in message.items()])
        scout, porter = (np.mean([e[a] for e in returns]) for a in AGENTS)
        found[words] = honesty, scout, scout + porter
    own = max(found.values(), key=lambda entry: entry[1])
    team = max(found.values(), key=lambda entry: entry[2])
    assert own == pytest.approx((0.0, tip, tip))
    assert team == pytest.approx((1.0, 0.0, 1.0))


@pytest.mark.parametrize(
    ("agent", "text", "action"),
    [
        ("scout_0", "red", "red"),
        ("scout_0", "not RED: Blue!", "blue"),
        ("scout_0", "teal", None),  # no door of a game of four
        ("porter_0", "reddish", None),
        ("porter_0", "", None),
    ],
)
def test_parsing(agent, text, action):
    env = make_env("scout_porter-v0")
    env.reset(seed=0)
    assert env.parse(agent, text) == action


@pytest.mark.parametrize("doors", [3, 6])
def test_goods_lie_behind_any_door(doors):
    env = make_env("scout_porter-v0", {"doors": doors})
    seen = []
    for seed in range(60 * doors):
        env.reset(seed=seed)
        seen.append(env.doors.index(env.goods))
    assert np.bincount(seen, minlength=doors).min() > 40
