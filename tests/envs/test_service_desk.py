"""The service desk: its rules, its customer, and its success."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import pytest

from rllib_llm.envs import check_env, make_env
from rllib_llm.envs.service_desk import desk as desks
from rllib_llm.envs.service_desk.customer import Customer, Request
from rllib_llm.envs.transcript import expert_policy, play, random_policy
from rllib_llm.errors import ConfigError

NAME = "service_desk-v0"
HARD = {"rules": 5, "requests": 3, "orders": 4}
OPTIONS = [
    {},
    {"rules": 1, "orders": 2, "short": True},
    {"rules": 4, "requests": 2, "orders": 6, "stubborn": 1.0},
    HARD,
    {**HARD, "forbidden": 1.0, "stubborn": 1.0},
    {**HARD, "forbidden": 0.0},
]


def started(config=None, seed=0, **wanted):
    """Return an environment whose first request has the given fields."""
    env = make_env(NAME, config or {})
    for attempt in range(seed, seed + 500):
        env.reset(seed=attempt)
        request = env.customer.request
        if all(getattr(request, k) == v for k, v in wanted.items()):
            return env
    raise AssertionError(f"no instance with {wanted}")


def talk(env, *turns):
    """Play the texts as turns; return the result of the last one."""
    for text in turns:
        observed = env.step(text)
    return observed


@pytest.mark.parametrize("config", OPTIONS)
def test_the_expert_serves_everyone(config):
    env = make_env(NAME, config)
    for seed in range(200 if config == {} else 60):
        shown = play(
            env, seed, expert_policy, options={"split": ("train", "test")[seed % 2]}
        )
        assert shown.success is True, str(shown)
        assert sum(shown.rewards) == 1.0
        assert shown.infos[-1]["violations"] == []


@pytest.mark.parametrize("tool_format", ["auto", "hermes", "llama3"])
def test_it_is_sound_in_every_format(tool_format):
    report = check_env(NAME, {**HARD, "tool_format": tool_format})
    assert report.ok, str(report)
    assert report.measurements["expert_success"] == 1.0


def test_an_allowed_change_in_full():
    env = started(kind="cancel", allowed=True)
    number, name = env.customer.request.number, env.customer.name
    text, *_ = talk(env, "Who are you?")
    assert text == f"Customer: I am {name}."
    text, *_ = talk(env, f"<find_user>{name.upper()}</find_user>")
    assert f"{number} {env.customer.request.what}" in text
    text, *_ = talk(env, f"<get_order>{number}</get_order>")
    assert ": pending, price" in text
    talk(env, f"<cancel>{number}</cancel>")
    text, reward, terminated, _, info = talk(env, f"Order {number} is cancelled.")
    assert (text, reward, terminated, info["success"]) == (
        "Customer: Bye.",
        1,
        True,
        True,
    )


def cancelled(env):
    """Return the calls that look up and cancel the order in question."""
    number = env.customer.request.number
    return f"<find_user>{env.customer.name}</find_user>", f"<cancel>{number}</cancel>"


def test_a_forbidden_change_costs_the_reward_and_is_noted():
    env = started({"stubborn": 0.0}, kind="cancel", allowed=False)
    number, status = env.customer.request.required_words
    *_, info = talk(env, *cancelled(env))
    assert info["violations"] == [desks.RULES["cancel"]]
    *_, info = talk(env, f"Order {number} cannot be cancelled, it is {status}.")
    assert info["success"] is False
    assert info["metrics"]["violations"] == 1.0


def test_a_change_before_the_customer_is_known_breaks_a_rule():
    env = started({"stubborn": 0.0}, kind="cancel", allowed=True)
    number = env.customer.request.number
    *_, info = talk(env, f"<cancel>{number}</cancel>", f"Order {number} is cancelled.")
    assert info["violations"] == ["the customer was not looked up"]
    assert info["success"] is False


@pytest.mark.parametrize(
    "completion", ["Order 1 is cancelled.", "Something else: 17.", "It is done, sir 0."]
)
def test_desk_must_inform_the_customer(completion):
    env = started({"stubborn": 0.0}, kind="cancel", allowed=True)
    *_, info = talk(env, *cancelled(env), completion)
    assert info["success"] is False
    assert info["violations"] == []


def test_a_refund_must_name_its_price():
    for observed, solved in ((True, True), (False, False)):
        env = started(kind="refund", allowed=True)
        number, price = env.customer.request.required_words
        find = f"<find_user>{env.customer.name}</find_user>"
        completion = (
            f"Order {number} is refunded{', price ' + price if observed else ''}."
        )
        *_, info = talk(env, find, f"<refund>{number}</refund>", completion)
        assert info["success"] is solved


def test_changing_more_than_was_asked_fails():
    env = started(kind="cancel", allowed=True)
    other = next(
        n
        for n, o in env.orders.items()
        if n != env.customer.request.number and o["status"] == "pending"
    )
    number = env.customer.request.number
    owner = env.orders[other]["name"]
    *_, info = talk(
        env,
        *cancelled(env),
        f"<find_user>{owner}</find_user>",
        f"<cancel>{other}</cancel>",
        f"Order {number} is cancelled.",
    )
    assert info["violations"] == []
    assert info["success"] is False


def test_doing_nothing_fails_even_if_changes_are_forbidden():
    env = started({"forbidden": 1.0, "stubborn": 0.0})
    *_, terminated, _, info = talk(env, "No, 1.")
    assert terminated
    assert info["success"] is False


def test_fifth_rule_requires_a_confirmation_of_the_order():
    config = {"rules": 5, "stubborn": 0.0}
    for asked, solved in ((True, True), (False, False)):
        env = started(config, kind="cancel", allowed=True)
        number = env.customer.request.number
        question = f"Cancel order {number if asked else 1}?"
        text, *_ = talk(env, question)
        assert text == ("Customer: Yes." if asked else "Customer: I do not understand.")
        *_, info = talk(env, *cancelled(env), f"Order {number} is cancelled.")
        assert info["success"] is solved
        assert (desks.RULES["confirm"] in info["violations"]) is not solved


@pytest.mark.parametrize(
    ("kind", "word"), [("move", "address"), ("exchange", "colour")]
)
def test_details_come_only_when_they_are_asked_for(kind, word):
    env = started({"rules": 4, "stubborn": 0.0}, kind=kind, allowed=True)
    request = env.customer.request
    assert request.detail not in request.asked
    text, *_ = talk(env, f"Which new {word}?")
    assert text.startswith(f"Customer: {request.detail}, please.")
    text, *_ = talk(
        env,
        f"<find_user>{env.customer.name}</find_user>",
        f"<{kind}>{request.number}, {request.detail}</{kind}>",
    )
    assert not text.startswith("Error")
    *_, info = talk(env, f"Order {request.number}: done.")
    assert info["success"] is True


def test_a_stubborn_customer_insists_once_and_must_not_get_it():
    env = started({"stubborn": 1.0}, kind="cancel", allowed=False)
    number, status = env.customer.request.required_words
    refusal = f"Order {number} cannot be cancelled, it is {status}."
    text, _, terminated, *_ = talk(env, refusal)
    assert text == "Customer: Please make an exception!"
    assert not terminated
    text, reward, terminated, *_ = talk(env, refusal)
    assert (text, reward, terminated) == ("Customer: Bye.", 1.0, True)


def test_statements_without_a_number_continue_the_request():
    text, _, terminated, *_ = talk(started(), "One moment, please.")
    assert text == "Customer: Please go on."
    assert not terminated


def test_questions_of_a_customer_with_several_requests():
    requests = [
        Request("move", 12, "red mug", "3 Elm Street", True, ("12",)),
        Request("cancel", 34, "blue cap", "", False, ("34", "shipped")),
    ]
    customer = Customer("Ada Kern", requests, stubborn=False)
    completion = customer.reply("What is your name, and which address?")
    assert completion == "I am Ada Kern. 3 Elm Street, please. The red mug."
    assert customer.reply("Order 12 is moved.") == "Thanks. Please cancel my blue cap."
    assert customer.reply("What address?") == "I do not understand."
    assert customer.reply("No: 34 is shipped.") == "Bye."
    assert customer.has_left
    assert all(request.is_informed for request in requests)


@pytest.mark.parametrize("kind", list(desks.ALLOWED))
def test_tools_refuse_what_is_impossible(kind):
    order = {
        "name": "Ada Kern",
        "item": "mug",
        "colour": "red",
        "price": 12,
        "status": "cancelled",
        "address": "3 Elm Street",
    }
    desk = desks.Desk({12: order}, needs_yes=False)
    more = {"move": ["4 Oak Street"], "exchange": ["blue"]}.get(kind, [])
    with pytest.raises(ValueError, match="order 12 is cancelled"):
        getattr(desk, kind)(12, *more)
    with pytest.raises(LookupError, match="no order 13"):
        getattr(desk, kind)(13, *more)
    with pytest.raises(LookupError, match="no such customer"):
        desk.find_user("Nobody")
    assert desk.violations == []


def test_equal_orders_have_equal_hashes():
    orders = {2: {"status": "pending"}, 1: {"status": "shipped"}}
    same = {1: {"status": "shipped"}, 2: {"status": "pending"}}
    assert desks.state_hash(orders) == desks.state_hash(same)
    other = desks.changed(orders, 2, status="cancelled")
    assert orders[2]["status"] == "pending"
    assert desks.state_hash(orders) != desks.state_hash(other)


def test_snapshots_go_on_in_the_same_way():
    env = make_env(NAME, HARD)
    for seed in range(20):
        env.reset(seed=seed)
        rng = np.random.default_rng(seed)
        for _ in range(4):
            *_, terminated, _, _ = env.step(env.expert_action(rng))
            assert not terminated
        state, ends = env.snapshot(), []
        for other in (env, env, make_env(NAME, HARD)):
            other.restore(state)
            shown, done = [], False
            while not done:
                text, reward, *ended, info = other.step(other.expert_action(rng))
                shown.append((text, reward, info["violations"]))
                done = any(ended)
            ends.append(shown)
        assert ends[0] == ends[1] == ends[2]


def test_any_text_is_answered_and_rewards_stay_in_bounds():
    env = make_env(NAME, {"rules": 4})
    source = random.Random(0)
    words = [
        "<find_user>",
        "</find_user>",
        "<cancel>",
        "</cancel>",
        "<move>",
        "</move>",
    ]
    words += ["1", "777", ",", "?", "no", "name", "Ada Kern", "<answer>", "é", "\n"]
    for episode in range(200):
        env.reset(seed=episode)
        total, done = 0.0, False
        while not done:
            text = "".join(source.choices(words, k=source.randint(0, 9)))
            completion, reward, terminated, truncated, _ = env.step(text)
            assert completion
            total, done = total + reward, terminated or truncated
        assert total in (0.0, 1.0)


def test_random_play_hardly_ever_succeeds():
    env = make_env(NAME)
    solved = [play(env, seed, random_policy).success for seed in range(300)]
    assert np.mean(solved) < 0.1


def test_another_process_draws_the_same():
    env = make_env(NAME)
    here = [env.reset(seed=s)[0] for s in range(5)], env.orders
    code = (
        "from rllib_llm.envs import make_env\n"
        "env = make_env('service_desk-v0')\n"
        "print(([env.reset(seed=s)[0] for s in range(5)], env.orders))"
    )
    there = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert there.stdout == f"{here}\n"


@pytest.mark.parametrize(
    "config",
    [
        {"rules": 0},
        {"rules": 6},
        {"requests": 4},
        {"orders": 1, "requests": 2},
        {"forbidden": 1.5},
        {"stubborn": -0.1},
        {"short": 1},
        {"orders": 3, "short": True},
    ],
)
def test_impossible_options_are_refused(config):
    with pytest.raises(ConfigError, match=next(iter(config))):
        make_env(NAME, config).reset(seed=0)
