"""webshop_text-v0: WebShop's pages and reward, on a synthetic catalogue."""

import dataclasses
import os
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

from rllib_llm.envs import make_env
from rllib_llm.envs.transcript import expert_policy, play, random_policy
from rllib_llm.envs.webshop.families import ATTRIBUTES, FAMILIES, USES
from rllib_llm.envs.webshop.reward import Goal, score, type_factor
from rllib_llm.envs.webshop.shop import MAX_RESULTS, catalogue
from rllib_llm.errors import ConfigError

NAME = "webshop_text-v0"
LEVELS = [
    {"short": True, "products": 60, "families": 2, "results": 3},
    {"attributes": 0, "options": 0, "products": 20},
    {"hidden": 1, "options": 2},
    {"attributes": 3, "options": 2, "hidden": 2, "results": 5},
    {"products": 5000, "results": 3},
]


def shop(size=400, families=10, seed=0, short=False):
    return list(catalogue(size, families, seed, short).products.values())


def started(config=None, seed=0):
    env = make_env(NAME, config)
    env.reset(seed=seed)
    return env


def say(env, *actions):
    """Play the texts as turns; return the last observation."""
    for action in actions:
        text, *_ = env.step(action)
    return text


# The reward -----------------------------------------------------------------------


def published(goal, bought, chosen):
    """Return the reward as the paper defines it, from sets and in exact fractions."""
    wanted = goal.product
    title = {word.lower() for word in wanted.brand.split() + wanted.type.split()}
    title |= {word.lower() for word in wanted.uses}
    other = {word.lower() for word in bought.brand.split() + bought.type.split()}
    other |= {word.lower() for word in bought.uses}
    match = Fraction(sum(word in other for word in title), len(title))
    levels = [wanted.family.department, wanted.family.name, wanted.type]
    theirs = [bought.family.department, bought.family.name, bought.type]
    if match == 0:
        r_type = Fraction(0)
    elif match < Fraction(1, 10):
        r_type = Fraction(1, 10)
    elif match <= Fraction(1, 5) and (
        levels[2] != theirs[2] and sum(level in theirs for level in levels) < 2
    ):
        r_type = Fraction(1, 2)
    else:
        r_type = Fraction(1)
    asked = 0
    hits = 0
    for attribute in goal.attributes:
        asked += 1
        hits += attribute in bought.attributes
    for pair in goal.options.items():
        asked += 1
        hits += pair in chosen.items()
    return r_type * Fraction(hits + int(bought.price <= goal.highest), asked + 1)


def any_goal(rng, product):
    options = {
        name: str(rng.choice(values))
        for name, values in product.options.items()
        if rng.random() < 0.5
    }
    asked = product.attributes[: int(rng.integers(ATTRIBUTES + 1))]
    return Goal(product, asked, options, float(product.price + rng.integers(30)))


def any_choice(rng, product):
    return {
        name: str(rng.choice(values))
        for name, values in product.options.items()
        if rng.random() < 0.7
    }


def test_the_reward_is_the_published_one():
    rng, products = np.random.default_rng(0), shop()
    # Titles of up to 14 nouns, as on real pages, so that overlaps below 0.1 occur.
    longer = [
        dataclasses.replace(p, uses=tuple(rng.permutation(USES)[: rng.integers(13)]))
        for p in products
    ]
    factors = set()
    for _ in range(3_000):
        pool = products if rng.random() < 0.5 else longer
        wanted, bought = (pool[i] for i in rng.integers(len(pool), size=2))
        if rng.random() < 0.3:
            bought = dataclasses.replace(bought, family=wanted.family, type=wanted.type)
        goal, chosen = any_goal(rng, wanted), any_choice(rng, bought)
        worth = score(goal, bought, chosen)
        expected = published(goal, bought, chosen)
        assert worth.reward == pytest.approx(float(expected), abs=1e-12)
        assert 0 <= worth.reward <= 1
        assert worth.is_full == (expected == 1)
        factors.add(worth.type)
    assert factors == {0.0, 0.1, 0.5, 1.0}


def test_each_thing_that_is_missing_costs_its_share():
    rng = np.random.default_rng(1)
    for product in shop():
        goal = any_goal(rng, product)
        asked = len(goal.attributes) + len(goal.options) + 1
        assert score(goal, product, goal.options).reward == 1.0
        assert score(goal, product, goal.options).is_full
        dear = dataclasses.replace(product, price=goal.highest + 0.01)
        plain = dataclasses.replace(product, attributes=product.attributes[1:])
        for bought, chosen, costs in (
            (dear, goal.options, True),
            (plain, goal.options, bool(goal.attributes)),
            (product, dict(list(goal.options.items())[1:]), bool(goal.options)),
        ):
            worth = score(goal, bought, chosen)
            assert worth.reward == pytest.approx(1 - costs / asked)
            assert worth.is_full is not costs
        assert score(goal, product, dict.fromkeys(goal.options, "else")).options == 0
        more = {**goal.options, "engraving": "yes"}  # nobody asked for it
        assert score(goal, product, more).reward == 1.0


def test_the_type_is_judged_by_nouns_type_and_category():
    products = shop(seed=3)
    one = dataclasses.replace(
        next(p for p in products if p.type == "desk lamp"),
        uses=("office", "gift", "winter"),
    )
    other = next(p for p in products if p.type == "yoga mat")

    def factor(**changed):
        return type_factor(one, dataclasses.replace(other, brand="Nobody", **changed))

    assert factor(uses=("studio",)) == 0.0
    assert factor(uses=("gift", "studio")) == 0.5  # one noun in six
    assert factor(uses=("gift", "winter")) == 1.0  # two
    assert factor(uses=("studio",), type="floor lamp") == 0.5
    lamp = {"type": "floor lamp", "family": one.family, "uses": ("studio",)}
    assert factor(**lamp) == 1.0  # two levels of the category
    long = dataclasses.replace(one, uses=USES[:9])  # twelve nouns
    assert type_factor(long, dataclasses.replace(other, uses=USES[:1])) == 0.1


# Pages ----------------------------------------------------------------------------


def test_results_are_turned_page_by_page():
    env = started({"results": 20})
    text = say(env, "search[lamp]")
    total = len(env.visit.result_ids)
    assert 40 < total <= MAX_RESULTS
    assert f"[Back to Search] Page 1 (Total results: {total}) [Next >]\n" in text
    assert text.count("\n[b0") == 20
    text = say(env, "click[next >]")
    assert f"Page 2 (Total results: {total}) [< Prev] [Next >]" in text
    text = say(env, "click[Next >]")
    assert f"Page 3 (Total results: {total}) [< Prev]\n" in text
    assert text.count("\n[b0") == total - 40
    assert "Page 2" in say(env, "click[< prev]")
    assert "Total results: 0" in say(env, "click[back to search]", "search[zzz]")
    assert env.admissible_actions() == ["click[back to search]"]


def test_parts_lead_back_to_the_item_and_that_to_its_page_of_results():
    env = started({"results": 3})
    say(env, "search[lamp]", "click[next >]")
    product = env.visit.on_page()[1]
    item = say(env, f"click[{product.id}]")
    assert f"Price: ${product.price:.2f} Rating: {product.rating}" in item
    assert product.title() in item
    for part, observed in (
        ("description", product.attributes[0]),
        ("features", "\n- ".join(product.attributes)),
        ("reviews", "\n".join(product.remarks)),
    ):
        assert observed in say(env, f"click[{part}]")
        assert env.admissible_actions() == ["click[back to search]", "click[< prev]"]
        assert say(env, "click[< prev]") == item
    assert "Page 2" in say(env, "click[< prev]")


def test_options_are_chosen_one_per_name_and_forgotten_with_the_item():
    env = started({"max_turns": 30})
    say(env, "search[lamp]")
    product = env.visit.on_page()[0]
    colors, sizes = product.options["color"], product.options["size"]
    say(env, f"click[{product.id}]", f"click[{colors[0]}]", f"click[{sizes[1]}]")
    text = say(env, f"click[{colors[1]}]")
    assert f"color = {colors[1]}: [{colors[0]}] [{colors[1]}]" in text
    assert env.visit.chosen == {"color": colors[1], "size": sizes[1]}
    assert "color = " in say(env, "click[features]", "click[< prev]")
    assert "color: " in say(env, "click[< prev]", f"click[{product.id}]")
    assert env.visit.chosen == {}


def test_buttons_of_a_page_have_different_names():
    env = started({"products": 2_000})
    for id_ in env.visit.shop.products:
        env.visit.item, env.visit.page = id_, "item"
        names = [button.lower() for button in env.visit.buttons()]
        assert len({*names}) == len(names)
        assert not {"[", "]"} & {*"".join(names)}


def test_actions_without_a_button_change_nothing():
    env = started()
    first = say(env, "click[buy now]")
    assert first.endswith("[Search]")
    assert env.more_info() == {"tool": "click", "query": None, "tool_error": True}
    page = say(env, "search[lamp]")
    assert env.more_info() == {"tool": "search", "query": "lamp", "tool_error": False}
    assert say(env, "search[mug]") == page  # there is no search bar
    assert env.more_info()["tool_error"]
    for action in ("click[search]", "click[buy now]", "click[b0aaaaaaaa]"):
        text, reward, terminated, _, info = env.step(action)
        assert (text, reward, terminated) == (page, 0.0, False)
        assert not info["invalid_action"]
    text, _, _, _, info = env.step("I would buy it.")
    assert info["invalid_action"]
    assert text == env.format_hint
    assert env.visit.query == "lamp"


@pytest.mark.parametrize(
    ("completion", "action"),
    [
        ("search[red lamp]", ("search", "red lamp")),
        ("Click[ Buy Now ]", ("click", "Buy Now")),
        ("First click[red], then click[buy now]", ("click", "buy now")),
        ("Thought: cheap.\nAction: click [< Prev]", ("click", "< Prev")),
        ("search[]", None),
        ("click[ ]", None),
        ("click[a[b]]", None),
        ("click buy now", None),
        ("research[lamp]", None),
    ],
)
def test_the_last_action_of_a_text_counts(completion, action):
    assert make_env(NAME).parse(completion) == action


def test_a_purchase_ends_the_episode_and_says_what_matched():
    env = started({"attributes": 3, "options": 2})
    goal = env.goal
    say(env, "search[any]", "click[back to search]", f"search[{goal.product.id}]")
    text, reward, terminated, _, info = (
        say(env, f"click[{goal.product.id}]"),
        *env.step("click[buy now]")[1:],
    )
    assert "Buy Now" in text
    assert reward == pytest.approx(4 / 6)
    assert terminated
    assert info["success"] is False
    assert info["metrics"] == {
        "r_type": 1.0,
        "attributes": 3.0,
        "options": 0.0,
        "price": 1.0,
    }


# Goals, splits, policies ----------------------------------------------------------


@pytest.mark.parametrize("config", LEVELS, ids=str)
def test_the_expert_buys_what_is_asked_for(config):
    env = make_env(NAME, config)
    for seed in range(100):
        options = {"split": ("train", "test")[seed % 2]}
        played = play(env, seed, expert_policy, options=options)
        assert played.success, str(played)
        assert sum(played.rewards) == 1.0


@pytest.mark.parametrize("config", LEVELS, ids=str)
def test_the_expert_recovers_from_any_mistakes(config):
    env = make_env(NAME, {**config, "max_turns": 100})
    recovered = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        env.reset(seed=seed)
        over = False
        for _ in range(6):
            over = over or env.step(env.random_action(rng))[2]
        while not over:
            _, reward, over, cut, _ = env.step(env.expert_action(rng))
            assert not cut
            recovered += reward == 1.0 and over
            assert reward in (0.0, 1.0)
    assert recovered > 20  # the others bought something at random


def test_expert_buys_seen_products_only():
    env = make_env(NAME, {"attributes": 3, "options": 2, "hidden": 2})
    for seed in range(60):
        played = play(env, seed, expert_policy)
        observed = " ".join(played.observations[1:]).lower()
        assert all(value in observed for value in env.goal.options.values())
        assert all(f"- {attribute}" in observed for attribute in env.goal.attributes)
        assert "click[features]" in played.actions


def test_random_purchases_are_worth_little():
    env = make_env(NAME)
    plays = [play(env, seed, random_policy) for seed in range(200)]
    assert np.mean([p.success for p in plays]) < 0.05
    assert 0 < np.mean([sum(p.rewards) for p in plays]) < 0.15


@pytest.mark.parametrize("config", [{}, *LEVELS[:4]], ids=str)
def test_splits_share_neither_goals_nor_products(config):
    env = make_env(NAME, config)
    asked, products = {}, {}
    for split in ("train", "test"):
        goals = []
        for seed in range(200):
            env.reset(seed=seed, options={"split": split})
            goals.append(env.goal)
        asked[split] = {(g.product.type, frozenset(g.attributes)) for g in goals}
        products[split] = {g.product.id for g in goals}
    assert not asked["train"] & asked["test"]
    assert not products["train"] & products["test"]


def test_instructions_say_what_is_asked_for():
    env = make_env(NAME, {"attributes": 2, "options": 2})
    wordings = set()
    for seed in range(100):
        prompt, _ = env.reset(seed=seed)
        goal, sampled_text = env.goal, env.instruction
        assert f"Instruction: {sampled_text}\n" in prompt
        parts = [goal.product.type, *goal.attributes, f"{goal.highest:.2f} dollars"]
        parts += [f"{name}: {value}" for name, value in goal.options.items()]
        assert all(part in sampled_text for part in parts)
        assert goal.highest % 10 == 0
        assert 10 < goal.highest - goal.product.price // 10 * 10 <= 40
        wordings.add(sampled_text[:6])
    assert len(wordings) == 3


def test_a_catalogue_without_goals_of_a_split_is_refused():
    config = {"products": 20, "families": 1, "attributes": 2, "catalogue_seed": 24}
    env = make_env(NAME, config)
    env.reset(seed=0)
    with pytest.raises(ConfigError, match="products=20 leaves no product .* 'test'"):
        env.reset(seed=0, options={"split": "test"})


# The catalogue --------------------------------------------------------------------


def test_smaller_catalogues_are_part_of_larger_ones():
    small, large, other = shop(50), shop(100), shop(50, seed=1)
    assert large[:50] == small
    assert not {p.id for p in small} & {p.id for p in other}
    ids = [p.id for p in shop(3_000)]
    assert len({*ids}) == len(ids)
    assert all(len(id_) == 10 for id_ in ids)


def test_families_are_fit_for_the_pages():
    for family in FAMILIES:
        assert len(family.types) == 4
        assert len({*family.attributes}) == 10
        assert all(len(type_.split()) == 2 for type_ in family.types)
        low, high = family.prices
        assert 0 < low < high
    types = [type_ for family in FAMILIES for type_ in family.types]
    assert len({*types}) == len(types)
    for product in shop():
        low, high = product.family.prices
        assert low <= product.price <= high
        assert len({*product.attributes}) == ATTRIBUTES
    for product in shop(short=True):
        assert 1 <= product.price <= 9
        assert product.title() == " ".join([*product.attributes, product.type])


def test_searches_rank_what_shares_most_words_first():
    known = catalogue(1_000, 10, 0, False)
    for product in list(known.products.values())[::20]:
        best = known.search(" ".join([*product.attributes, product.type]))[0]
        assert best.type == product.type
        assert {*best.attributes} == {*product.attributes}


def test_snapshots_name_the_catalogue():
    env = started({"products": 5_000})
    say(env, "search[lamp]")
    state = env.snapshot()
    assert len(state) < 5_000
    env.restore(state)
    assert env.visit.shop is catalogue(5_000, 10, 0, False)


def test_instances_do_not_depend_on_the_process():
    code = (
        "from rllib_llm.envs import make_env\n"
        "from rllib_llm.envs.transcript import play, random_policy\n"
        "env = make_env('webshop_text-v0')\n"
        "for seed in range(5): print(play(env, seed, random_policy))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            check=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
