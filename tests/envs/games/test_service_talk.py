"""The service desk whose customer answers freely: what its words give away."""

import pytest

from rllib_llm.envs import MultiAgentAdapter, make_env

DESK, CUSTOMER = "desk_0", "customer_0"


def game(seed=2, **options):
    env = MultiAgentAdapter(make_env("service_talk-v0", options))
    env.reset(seed=seed)
    return env, env.unwrapped


def talk(env, statement, reply):
    step = env.step({DESK: statement})
    assert set(step.observations) == {CUSTOMER}
    return env.step({CUSTOMER: reply}), step.observations[CUSTOMER]


def test_the_customer_reads_its_card_once_and_then_the_desk():
    env, inner = game()
    step, prompt = talk(env, "Who are you?", "Guess.")
    assert prompt.startswith(f"You are {inner.customer.name}. ")
    assert inner.customer.request.asked in prompt
    assert prompt.endswith("\nDesk: Who are you?")
    assert step.observations == {DESK: "Customer: Guess."}
    _, prompt = talk(env, "Please?", "No.")
    assert prompt == "Please?"


def test_calls_of_tools_do_not_reach_the_customer():
    env, inner = game()
    step = env.step({DESK: f"<find_user>{inner.customer.name}</find_user>"})
    assert set(step.observations) == {DESK}
    assert inner.customer.request.what in step.observations[DESK]


def test_only_its_words_give_the_name_away():
    env, inner = game()
    talk(env, "What is your name?", "You first.")
    assert not inner.customer.name_given
    talk(env, "I am the desk.", f"Fine, {inner.customer.name}.")
    assert inner.customer.name_given


@pytest.mark.parametrize(("reply", "agrees"), [("Yes, do.", True), ("Wait.", False)])
def test_a_yes_counts_for_the_order_that_the_desk_named(reply, agrees):
    env, inner = game(rules=5)
    number = inner.customer.request.number
    talk(env, f"Shall order {number} be changed?", reply)
    assert (number in inner.inner.desk.confirmed) == agrees
    # A yes to a statement, or about another order, confirms nothing.
    env, inner = game(rules=5)
    talk(env, f"Order {number} could be changed.", "Yes.")
    talk(env, f"And order {number + 1}?", "Yes.")
    assert inner.customer.request.number not in inner.inner.desk.confirmed


def test_the_desk_loses_if_the_customer_leaves_too_soon():
    env, _ = game()
    step, _ = talk(env, "What is your name?", "Bye.")
    assert step.is_over and step.success is False
    assert dict(step.rewards).get(DESK, 0.0) == 0.0


def test_a_customer_that_stays_is_cut_at_the_limit():
    env, _ = game(max_turns=6)
    for _ in range(3):
        step, _ = talk(env, "Well?", "Well.")
    assert step.is_over and step.terminated == () and step.success is not True


def test_the_next_request_begins_when_the_customer_makes_it():
    env, inner = game(requests=2)
    first, second = inner.customer.requests
    talk(env, f"Order {first.number} is done.", "Thanks.")
    assert inner.customer.request is first
    talk(env, "More?", f"Yes. {second.asked}")
    assert inner.customer.request is second
