"""ask_around: questions to people with private facts."""

import pytest

from rllib_llm.envs import MultiAgentAdapter, make_env


def game(seed=0, **config):
    env = MultiAgentAdapter(make_env("ask_around-v0", config))
    return env, env.reset(seed=seed)


def test_a_person_reads_only_what_it_owns():
    for seed in range(20):
        env, _ = game(seed)
        of = env.unwrapped
        for person in ("ann_0", "dan_0"):
            env, step = game(seed)
            step = env.step({"asker_0": f"{of.thing}=? ask {person[:3]}"})
            assert list(step.observations) == [person]
            for thing, place in of.places.items():
                has_it = f"{thing}={place}" in step.observations[person]
                assert has_it == (of.owners[thing] == person)


def test_answers_are_passed_on_right_or_wrong():
    env, _ = game()
    thing = env.unwrapped.thing
    env.step({"asker_0": f"{thing}=? ask cid"})
    step = env.step({"cid_0": f"{thing}=hall"})
    assert step.observations == {"asker_0": f"cid says {thing}=hall."}
    env.step({"asker_0": f"{thing}=? ask cid"})
    step = env.step({"cid_0": f"{thing}=?"})
    assert step.observations == {"asker_0": f"cid says {thing}=?."}


@pytest.mark.parametrize("right", [True, False])
def test_all_who_took_part_get_the_reward_of_the_place(right):
    env, _ = game(seed=3)
    thing, place = env.unwrapped.thing, env.unwrapped.places[env.unwrapped.thing]
    env.step({"asker_0": f"{thing}=? ask ann"})
    env.step({"ann_0": f"{thing}=?"})
    named = place if right else next(p for p in ("hall", "shed") if p != place)
    step = env.step({"asker_0": f"{thing}={named}"})
    assert step.is_over and step.success is right
    both = {"asker_0": 1.0, "ann_0": 1.0}
    assert {a: r for a, r in step.rewards if r} == (both if right else {})
    assert step.metrics == {"questions": 1.0}


def test_one_question_too_many_ends_the_game():
    env, _ = game(questions=1)
    thing = env.unwrapped.thing
    env.step({"asker_0": f"{thing}=? ask ann"})
    env.step({"ann_0": f"{thing}=?"})
    step = env.step({"asker_0": f"{thing}=? ask bob"})
    assert step.is_over and step.success is False


def test_a_world_has_the_same_owners_but_not_the_same_places():
    games = [game(seed, world=1, shown=0.0) for seed in range(30)]
    assert len({tuple(env.unwrapped.owners.items()) for env, _ in games}) == 1
    assert len({tuple(env.unwrapped.places.items()) for env, _ in games}) > 5
    for env, step in games:
        assert step.observations == {"asker_0": f"Find: {env.unwrapped.thing}."}
    others = {tuple(game(seed)[0].unwrapped.owners.items()) for seed in range(30)}
    assert len(others) > 5


@pytest.mark.parametrize(("people", "things"), [(4, 4), (2, 5), (4, 2)])
def test_things_are_divided_evenly(people, things):
    for seed in range(20):
        of = game(seed, people=people, things=things)[0].unwrapped
        owned = [list(of.owners.values()).count(a) for a in of.possible_agents[1:]]
        assert sum(owned) == things and max(owned) - min(owned) <= 1


def test_a_note_names_the_owner_and_an_earlier_place():
    for seed in range(20):
        env, step = game(seed)
        of = env.unwrapped
        person = of.owners[of.thing].removesuffix("_0")
        assert f"- {person} says {of.thing}=" in step.observations["asker_0"]
        assert f"{of.thing}={of.places[of.thing]}" not in step.observations["asker_0"]


@pytest.mark.parametrize("form", ["{}=?", "{}=? ask eve", "{}=moon", "car=hall", ""])
def test_other_texts_end_the_game(form):
    env, _ = game()
    step = env.step({"asker_0": form.format(env.unwrapped.thing)})
    assert step.is_over and not step.success
