"""The bank of texts: operations, search, the rule that writes, state, errors."""

from __future__ import annotations

import dataclasses
import pickle
import random

import numpy as np
import pytest
from component_helpers import trajectory

from rllib_llm.components.registry import bind
from rllib_llm.data.added_texts import AddedText, FixedTexts, with_texts
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.data.types import Task
from rllib_llm.errors import ConfigError
from rllib_llm.prompt_texts.bank import Bank, BankView, Entry, Retrieval
from rllib_llm.retrieval.tfidf import TfIdf


def memory(**settings):
    return bind("prompt_text", {"name": "memory", **settings}).call


def walked(task, reply, reward, *, rollout=0, ground="ice", read=(), seed=None):
    """An episode of one turn."""
    one = trajectory(task=task, rollout=rollout, rewards=(reward,))
    one.task = dataclasses.replace(one.task, seed=task if seed is None else seed)
    one.observations, one.completions = [f"On {ground}"], [reply]
    one.success, one.added_numbers = reward > 0.5, tuple(read)
    return one


def texts_of(memory, observation, task=0):
    source = memory.assign(Task(0, 0, task), 0).prompt_text
    return [added.text for added in source.texts_for(observation)]


# Operations ---------------------------------------------------------------------------


def test_a_text_is_added_replaced_by_a_better_one_or_not_needed():
    bank = Bank(capacity=10, similar=0.95)
    assert bank.write("On ice", "left", 0.2) == "add"
    assert bank.write("on ice.", "left", 0.4) == "noop"  # known: its mean is 0.3
    assert bank.entries[0].reward == pytest.approx(0.3)
    assert bank.write("On ice", "up", 0.3) == "noop"  # not better
    assert bank.write("On ice", "right", 0.9) == "update"
    assert bank.write("On sand", "up", 0.1) == "add"
    assert [(e.number, e.text, e.reward, e.count) for e in bank.entries] == [
        (1, "right", 0.9, 1),
        (2, "up", 0.1, 1),
    ]


def test_without_similarity_only_an_equal_text_is_not_new():
    bank = Bank(capacity=10, similar=None)
    given = [bank.write("On ice", text, 0.0) for text in ("left", "up", "left")]
    assert given == ["add", "add", "noop"]
    view = bank.view(Retrieval(duplicate=None))
    assert [added.text for added in view.texts_for("On ice")] == ["up", "left"]


def test_beyond_the_capacity_the_worst_text_goes():
    bank = Bank(capacity=2, similar=0.95)
    for key, reward in (("a", 0.5), ("b", 0.1), ("c", 0.2)):
        bank.write(key, key, reward)
    assert [e.key for e in bank.entries] == ["a", "c"]
    assert [e.number for e in bank.entries] == [1, 3]


def test_a_mean_counts_the_writer_and_the_readers():
    bank = Bank(capacity=2, similar=0.95)
    entry = bank.add("a", "a", 1.0)
    for value in (0.0, 0.5):
        bank.read([entry.number, 99], value)
    assert (entry.reward, entry.count, entry.uses) == (0.5, 3, 2)


def test_a_hypothesis_has_the_returns_of_its_readers_alone():
    bank = Bank(capacity=2, similar=0.95)
    for value in (0.2, 0.4):  # written twice by episodes that did something else
        bank.write("On ice", "left", value, counts=False)
    (entry,) = bank.entries
    assert (entry.reward, entry.count) == (0.0, 0)
    bank.read([entry.number], 1.0)
    assert (entry.reward, entry.count, entry.uses) == (1.0, 1, 1)
    assert bank.write("On ice", "up", 2.0, counts=False) == "update"
    assert (entry.text, entry.reward, entry.count, entry.uses) == ("up", 0.0, 0, 0)


def test_a_text_that_was_read_in_vain_is_not_added_again():
    bank = Bank(capacity=9, similar=None)
    for text in ("left", "up"):
        bank.write("On ice", text, 0.0, "a", counts=False)
    bank.read([1], 0.0)
    assert bank.drop(below=0.5, after=2) == 0
    bank.read([1, 2], 0.0)
    assert bank.drop(below=0.5, after=2) == 1
    restored = Bank(capacity=9, similar=None)
    restored.set_state(bank.get_state())
    for of in (bank, restored):
        assert [e.text for e in of.entries] == ["up"]
        assert of.write("On ice", "left", 1.0, "a") == "noop"
        assert of.write("On ice", "left", 1.0, "b") == "add"  # of another task
        assert of.write("On sand", "left", 1.0, "a") == "add"  # of another place


# Search -------------------------------------------------------------------------------


def slow_search(entries, settings, observation):
    """Choose texts one by one from all pairs of entries."""
    index = TfIdf([e.key for e in entries])
    similar = index.similarities(observation)
    ranked = sorted(
        (i for i in range(len(entries)) if similar[i] > settings.least_similarity),
        key=lambda i: (
            -round(similar[i] + settings.reward_weight * entries[i].reward, 9),
            -entries[i].number,
        ),
    )[: settings.candidates]
    kept = []
    for i in ranked:
        duplicates = [
            j
            for j in kept
            if entries[i].text == entries[j].text
            or index.between(i, j) >= settings.duplicate
        ]
        if not duplicates:
            kept.append(i)
    return [AddedText(entries[i].number, entries[i].text) for i in kept]


@pytest.mark.parametrize("seed", range(20))
def test_search_is_that_of_a_slow_loop(seed):
    rng = random.Random(seed)
    vocabulary = [
        "on",
        "ice",
        "sand",
        "mud",
        "go",
        "to",
        "the",
        "left",
        "right",
        "side",
    ]
    entries = tuple(
        Entry(
            number=i + 1,
            key=" ".join(rng.choices(vocabulary, k=rng.randint(1, 4))),
            text=f"text {rng.randint(0, 5)}",
            reward=rng.random(),
        )
        for i in range(12)
    )
    settings = Retrieval(
        top_k=rng.randint(1, 6),
        least_similarity=rng.choice([0.0, 0.2]),
        reward_weight=rng.choice([0.0, 0.5]),
        candidates=rng.randint(6, 12),
        duplicate=rng.choice([0.6, 0.95]),
    )
    chosen = BankView(entries, settings).texts_for("on ice to the left")
    expected = slow_search(entries, settings, "on ice to the left")
    assert chosen == expected[: settings.top_k]


def test_the_best_entry_is_read_first_and_others_not_at_all():
    of = memory(text="{reply}", top_k=2, least_similarity=0.5)
    table = TurnTable([walked(0, "right", 1), walked(1, "up", 1, ground="sand")])
    of.observe(table, [])
    assert texts_of(of, "On ice") == ["right"]
    assert texts_of(of, "On grass") == []


def test_a_view_does_not_change_and_travels_without_its_index():
    of = memory(text="{reply}")
    of.observe(TurnTable([walked(0, "right", 1)]), [])
    view = of.assign(Task(0, 0, 0), 0).prompt_text
    assert view.texts_for("On ice")[0].text == "right"
    copy = pickle.loads(pickle.dumps(view))
    assert "_index" not in vars(copy)
    of.observe(TurnTable([walked(1, "left", 3.0)]), [])
    assert view.texts_for("On ice") == copy.texts_for("On ice")
    assert texts_of(of, "On ice") == ["left"]


def test_all_tasks_of_an_iteration_share_one_view():
    of = memory()
    one, two = (of.assign(Task(g, 0, g), 0).prompt_text for g in range(2))
    assert one is two


# The rule -----------------------------------------------------------------------------


def test_solved_episodes_write_and_readers_count():
    of = memory(text="{task} -> {reply}.")
    table = TurnTable([walked(0, "right", 1), walked(1, "up", 0, ground="sand")])
    numbers = of.observe(table, [])
    assert numbers["num_texts"] == numbers["num_added"] == 1
    assert texts_of(of, "On ice") == ["On ice -> right."]
    numbers = of.observe(TurnTable([walked(2, "left", 0, read=[1])]), [])
    assert numbers["reading_frac"] == 1 and numbers["num_added"] == 0
    (entry,) = of.bank.entries
    assert (entry.reward, entry.uses) == (0.5, 1)


@pytest.mark.parametrize(
    ("wanted", "count"), [("solved", 1), ("failed", 2), ("all", 3)]
)
def test_the_chosen_episodes_write(wanted, count):
    of = memory(learn_from=wanted)
    grounds = ("ice", "sand", "mud")
    table = [walked(i, "up", float(i == 0), ground=g) for i, g in enumerate(grounds)]
    assert of.observe(TurnTable(table), [])["num_added"] == count


def test_rewarded_episodes_write_whatever_the_environment_says():
    of = memory(learn_from="rewarded", text="{reply}")
    accepted, refused = walked(0, "up", 1, ground="ice"), walked(1, "down", 0)
    accepted.success, refused.success = False, True
    of.observe(TurnTable([accepted, refused]), [])
    assert [entry.text for entry in of.bank.entries] == ["up"]


def test_texts_may_hold_all_replies():
    of = memory(text="{replies}")
    walk = walked(0, "up", 1)
    walk.completions = [*walk.completions, "left"]
    walk.observations = [*walk.observations, "On mud"]
    of.observe(TurnTable([walk]), [])
    assert [entry.text for entry in of.bank.entries] == ["up left"]


def test_texts_that_do_not_help_are_deleted():
    of = memory(text="{reply}", drop_below=0.4, drop_after=2)
    of.observe(TurnTable([walked(0, "right", 1)]), [])
    assert of.observe(TurnTable([walked(1, "up", 0, read=[1])]), [])["num_deleted"] == 0
    numbers = of.observe(TurnTable([walked(2, "up", 0, read=[1])]), [])
    assert numbers["num_deleted"] == 1 and numbers["num_texts"] == 0


def test_texts_of_a_task_are_read_in_that_task_alone():
    of = memory(text="{reply}", scope="task")
    of.observe(TurnTable([walked(0, "right", 1, seed=7)]), [])
    assert texts_of(of, "On ice", task=7) == ["right"]
    assert texts_of(of, "On ice", task=8) == []
    assert of.shared() is None


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({"of": "w", "learn_from": "failed"}, 0),
        ({"of": "w", "learn_from": "all"}, 1),
        ({"text": "{reply}", "learn_from": "failed"}, 1),
    ],
)
def test_the_writers_return_counts_unless_it_reflects_on_a_failure(settings, count):
    of = memory(**settings)
    of.observe(TurnTable([walked(0, "left", 0.3)]), ["up"])
    (entry,) = of.bank.entries
    assert (entry.count, entry.reward) == (count, pytest.approx(0.3 * count))


def test_a_reflection_is_the_newest_text_of_the_task_and_knows_the_others():
    of = memory(of="w", scope="task", learn_from="failed", similar=None, top_k=1)
    for text in ("up", "down"):
        table = TurnTable([walked(0, "left", 0, seed=7)])
        of.observe(table, [text])
    assert texts_of(of, "On ice", task=7) == ["down"]
    assert of.asked(table)[0].texts == ("up", "down")


# One episode --------------------------------------------------------------------------


def later(observations, replies, **settings):
    source = memory(scope="episode", **settings).assign(Task(0, 0, 0), 0).prompt_text
    assert source.texts_for(observations[0]) == []
    return [added.text for added in source.texts_later(observations, replies)]


def test_a_turn_reads_the_newest_texts_of_places_like_its_own():
    observations = ["On ice", "On sand", "On ice", "On ice"]
    replies = ["left", "up", "down"]
    assert later(observations, replies, top_k=1) == ["On ice down"]
    assert later(observations, replies) == ["On ice down", "On sand up"]
    added = later(observations, replies, similar=None, least_similarity=0.9)
    assert added == ["On ice down", "On ice left"]
    # Of two texts the oldest goes; a text is cut, and may show the turns before it.
    assert later(observations, replies, similar=None, capacity=1) == ["On ice down"]
    text = "{task}: {transcript}"
    (added,) = later(observations[:2], replies[:1], text=text, max_chars=30)
    assert added == "On ice: Environment: On ice Ag"


def test_an_episodes_memory_keeps_nothing():
    of = memory(scope="episode")
    numbers = of.observe(TurnTable([walked(0, "right", 1, read=[1])]), [])
    assert numbers["reading_frac"] == 1.0 and numbers["success_rate_readers"] == 1.0
    assert of.get_state() == {"entries": [], "next": 1, "dropped": []}
    assert of.shared() is of.assign(Task(0, 0, 0), 0).prompt_text


def test_success_of_readers_is_counted_apart():
    of = memory(text="{reply}")
    of.observe(TurnTable([walked(0, "right", 1)]), [])
    table = [walked(1, "up", 1, read=[1]), walked(2, "up", 0), walked(3, "up", 0)]
    numbers = of.observe(TurnTable(table), [])
    assert numbers["success_rate_readers"] == 1 and numbers["success_rate_others"] == 0
    assert numbers["reading_frac"] == pytest.approx(1 / 3)


def test_the_bank_does_not_depend_on_the_order_of_delivery():
    episodes = [
        walked(task, reply, reward, rollout=rollout)
        for task, rollout, reply, reward in (
            (0, 0, "left", 0.6),
            (0, 1, "up", 0.7),
            (1, 0, "right", 0.7),
            (1, 1, "down", 0.9),
        )
    ]
    states = []
    for seed in range(5):
        shuffled = list(episodes)
        random.Random(seed).shuffle(shuffled)
        of = memory(text="{reply}")
        of.observe(TurnTable(shuffled), [])
        states.append(of.get_state())
    assert all(state == states[0] for state in states)


def test_an_assistants_texts_are_written_in_place_of_the_rules():
    of = memory(of="writer")
    table = TurnTable([walked(1, "up", 1), walked(0, "right", 1, ground="sand")])
    asked = of.asked(table)
    assert [each.trajectories[0].task.group_id for each in asked] == [0, 1]
    of.observe(table, ["On sand, go\n right", None])
    assert [(e.key, e.text) for e in of.bank.entries] == [
        ("On sand", "On sand, go right")
    ]


def test_long_texts_are_cut_to_one_line():
    of = memory(text="{reply}", max_chars=8)
    of.observe(TurnTable([walked(0, "go\nright at once", 1)]), [])
    assert of.bank.entries[0].text == "go right"


def test_other_agents_neither_write_nor_read():
    of = memory(agents=["agent_1"])
    assert of.observe(TurnTable([walked(0, "right", 1)]), [])["num_added"] == 0
    assert of.assign(Task(0, 0, 0), 0).prompt_text.agents == {"agent_1"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top_k": 0}, "top_k=0"),
        ({"top_k": 9, "candidates": 8}, "candidates=8"),
        ({"similar": 0.0}, "similar=0.0"),
        ({"text": "always"}, "placeholders"),
        ({"text": "{word}"}, "not word"),
        ({"text": "{task", "top_k": 1}, "brace"),
        ({"text": "{task}", "of": "writer"}, "no effect"),
        ({"agents": []}, "agents=\\[\\]"),
        ({"scope": "turn"}, "scope"),
        ({"scope": "episode", "of": "w"}, "of='w' has no effect"),
        ({"scope": "episode", "learn_from": "failed"}, "learn_from='failed' has no"),
        ({"scope": "episode", "reward_weight": 0.0}, "reward_weight=0.0 has no"),
        ({"scope": "episode", "drop_below": 0.5}, "drop_below=0.5 has no effect"),
        ({"scope": "episode", "drop_after": 2}, "drop_after=2 has no effect"),
        ({"scope": "episode", "text": "{return}"}, "not return"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        memory(**settings)


# First messages -----------------------------------------------------------------------


def test_a_first_message_has_a_line_for_each_text():
    assert with_texts([], "On ice") == "On ice"
    expected = "Notes:\n- a\n- b\n\nOn ice"
    assert with_texts(["a", "b"], "On ice") == expected


def test_fixed_texts_do_not_depend_on_the_observation():
    source = FixedTexts((AddedText(1, "a"),), heading="Rules:")
    assert source.texts_for("x") == source.texts_for("y") == [AddedText(1, "a")]
    assert np.all([source.agents is None])
