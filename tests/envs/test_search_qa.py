"""search_qa: questions can be answered by searching, and facts are real."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rllib_llm.envs import make_env
from rllib_llm.envs.search_qa_geography import NEIGHBOUR, PlaceFact, geography, index
from rllib_llm.envs.text_env import in_split
from rllib_llm.envs.transcript import expert_policy, play, random_policy

LEVELS = [
    {"hops": 1},
    {"hops": 2, "results": 1},
    {"hops": 3},
    {"hops": 3, "results": 1},
    {"comparisons": 1.0},
    {"comparisons": 0.5, "hops": 1, "distractors": 3, "reward": "f1"},
]
DATA = Path(__file__).parents[2] / "rllib_llm" / "envs" / "data" / "geonames.json"


def test_data_have_the_documented_size():
    assert DATA.stat().st_size <= 600_000
    world = geography()
    assert len(world.facts) == 243
    assert len(world.country) == len(world.people) == 6000
    assert len(world.passages) == 6243  # no city is called like a country
    assert world.facts["Hungary"] == {
        "continent": "Europe",
        "capital": "Budapest",
        "currency": "Forint",
        "domain": ".hu",
        "calling code": "36",
        NEIGHBOUR: "Ukraine",
    }
    assert world.country["Debrecen"] == "Hungary"
    for facts in world.facts.values():
        assert all(facts.values())
        assert facts.get(NEIGHBOUR, "Hungary") in world.facts
    notice = (DATA.parents[3] / "NOTICE").read_text(encoding="utf-8")
    assert "geonames.json" in notice
    assert "Attribution 4.0" in notice


def test_every_passage_is_the_first_that_its_query_finds():
    world, search = geography(), index("bm25").search
    for country, facts in world.facts.items():
        for relation, value in facts.items():
            fact = PlaceFact(country, relation, value)
            assert search(fact.query, 1) == [fact.text]
            assert value in fact.text
    for city in list(world.country)[::7]:
        fact = PlaceFact(city, "country", world.country[city])
        assert search(fact.query, 1) == [fact.text]
        assert fact.value in fact.text


@pytest.mark.parametrize("config", LEVELS, ids=str)
def test_the_expert_always_answers_rightly(config):
    env = make_env("search_qa-v0", config)
    for seed in range(200):
        options = {"split": ("train", "test")[seed % 2]}
        played = play(env, seed, expert_policy, options=options)
        assert played.success, str(played)
        assert sum(played.rewards) == 1.0
        assert len(played.actions) <= len(env.chain) + 1


def test_chains_follow_the_facts():
    world = geography()
    env = make_env("search_qa-v0", {"hops": 3})
    for seed in range(100):
        question, _ = env.reset(seed=seed)
        city, country, neighbour = (fact.entity for fact in env.chain)
        assert world.country[city] == country
        assert world.facts[country][NEIGHBOUR] == neighbour
        last = env.chain[-1]
        assert env.gold_answers() == [world.facts[neighbour][last.relation]]
        assert question == (
            f"What is the {last.relation} of the {NEIGHBOUR} of the country of {city}?"
        )


def test_comparisons_ask_for_the_larger_city():
    world = geography()
    env = make_env("search_qa-v0", {"comparisons": 1.0})
    for seed in range(100):
        question, _ = env.reset(seed=seed)
        first, second = (fact.entity for fact in env.chain)
        assert question == f"Which city has more people, {first} or {second}?"
        larger = max((first, second), key=world.people.get)
        assert env.gold_answers() == [larger]
        assert world.people[first] != world.people[second]


@pytest.mark.parametrize("config", LEVELS, ids=str)
def test_places_that_are_named_belong_to_the_split(config):
    env = make_env("search_qa-v0", config)
    for seed in range(100):
        for split in ("train", "test"):
            env.reset(seed=seed, options={"split": split})
            named = env.chain if env.compares else env.chain[:1]
            assert all(in_split(fact.entity, split) for fact in named)


def test_countries_are_asked_about_equally_often():
    env = make_env("search_qa-v0")
    asked = set()
    for seed in range(300):
        env.reset(seed=seed)
        asked.add(env.chain[1].entity)
    assert len(asked) > 120  # 231 have cities; the five largest have a third of them


@pytest.mark.parametrize(
    ("given", "em", "f1"),
    [
        ("the new DELHI.", 1.0, 1.0),
        ("Delhi", 0.0, 2 / 3),
        ("New Delhi in India", 0.0, 2 * 0.5 * 1 / 1.5),
        ("Old York", 0.0, 0.0),
    ],
)
def test_rewards(given, em, f1):
    for name, granted in (("exact_match", em), ("f1", f1)):
        env = make_env("search_qa-v0", {"hops": 1, "reward": name})
        env.reset(seed=0)
        env.chain = [PlaceFact("India", "capital", "New Delhi")]
        observed = env.step(f"<answer>{given}</answer>")
        assert observed[1] == pytest.approx(granted)
        assert observed[2]
        assert observed[4]["success"] == (em == 1.0)


def test_info_holds_needed_and_returned_documents():
    env = make_env("search_qa-v0", {"results": 1})
    env.reset(seed=5)
    city, country = env.chain
    info = env.step(f"<search>{city.entity}</search>")[4]
    assert info["gold_answers"] == [country.value]
    assert info["gold_documents"] == [city.text, country.text]
    assert info["gold_queries"] == [city.query, country.query]
    assert (info["tool"], info["query"]) == ("search", city.entity)
    assert info["documents"] == [city.text]
    assert info["tool_error"] is False
    text, _, _, _, info = env.step("<search>qqq</search>")
    assert text == "Nothing found."
    assert info["tool_error"] is True
    info = env.step("no action")[4]
    assert info["tool"] is None
    assert info["documents"] == []


def test_distractors_are_others_and_anywhere():
    env = make_env("search_qa-v0", {"results": 1, "distractors": 4})
    places = set()
    for seed in range(40):
        env.reset(seed=seed)
        gold = env.chain[0]
        found = env.step(f"<search>{gold.query}</search>")[4]["documents"]
        assert len(set(found)) == 5
        places.add(found.index(gold.text))
    assert places == set(range(5))


def test_noise_hides_passages_at_the_given_rate():
    env = make_env("search_qa-v0", {"results": 2, "noise": 0.5, "max_turns": 200})
    env.reset(seed=0)
    gold = env.chain[0]
    shown = [
        env.step(f"<search>{gold.query}</search>")[4]["documents"] for _ in range(150)
    ]
    assert all(len(set(found)) == 2 for found in shown)
    assert 0.35 < np.mean([gold.text in found for found in shown]) < 0.65


def test_environments_share_one_index():
    first, second = make_env("search_qa-v0"), make_env("search_qa-v0", {"hops": 3})
    first.reset(seed=0)
    built = index("bm25")
    second.reset(seed=1)
    assert index("bm25") is built
    assert len(first.snapshot()) < 4_000  # passages are not copied


def test_another_process_plays_the_same():
    code = (
        "from rllib_llm.envs import make_env\n"
        "from rllib_llm.envs.transcript import play, random_policy\n"
        "import json\n"
        "config = {'distractors': 2, 'noise': 0.2, 'comparisons': 0.3}\n"
        "env = make_env('search_qa-v0', config)\n"
        "print(json.dumps([str(play(env, s, random_policy)) for s in range(8)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    env = make_env("search_qa-v0", {"distractors": 2, "noise": 0.2, "comparisons": 0.3})
    played = [str(play(env, seed, random_policy)) for seed in range(8)]
    assert json.loads(done.stdout) == played


def test_without_tantivy_the_episode_does_not_begin(monkeypatch):
    from rllib_llm.errors import MissingExtraError
    from rllib_llm.retrieval import shared

    monkeypatch.setitem(sys.modules, "tantivy", None)
    monkeypatch.setattr(shared, "_SHARED", {})
    with pytest.raises(MissingExtraError, match="search"):
        make_env("search_qa-v0", {"engine": "tantivy"}).reset(seed=0)


def test_tantivy_answers_the_expert_too():
    pytest.importorskip("tantivy")
    env = make_env("search_qa-v0", {"engine": "tantivy", "hops": 3, "results": 2})
    played = [play(env, seed, expert_policy) for seed in range(60)]
    assert np.mean([p.success for p in played]) > 0.95
