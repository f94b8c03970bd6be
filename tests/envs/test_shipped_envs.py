"""Common checks of every registered environment."""

import pathlib
import pickle
import random
import subprocess
import sys

import numpy as np
import pytest

from rllib_llm.envs import TEXT_ENVS, check_env, make_env
from rllib_llm.envs.transcript import expert_policy, play, random_policy
from rllib_llm.errors import ConfigError
from rllib_llm.pictures.contract import IMAGES, digest

SHIPPED = [
    "back-v0",
    "bandit_probe-v0",
    "canvas-v0",
    "canvas_pictures-v0",
    "clinic-v0",
    "code-v0",
    "colour_grid-v0",
    "copy_probe-v0",
    "countdown-v0",
    "dataset-v0",
    "delay_probe-v0",
    "frames-v0",
    "frames_pictures-v0",
    "frozen_lake-v0",
    "frozen_lake_pictures-v0",
    "function_and_test-v0",
    "geo-v0",
    "geo_pictures-v0",
    "ground_rules-v0",
    "guess_number-v0",
    "hangman-v0",
    "household-v0",
    "judging-v0",
    "layout-v0",
    "long_document-v0",
    "mastermind-v0",
    "prune-v0",
    "python_tool-v0",
    "search_facts-v0",
    "search_qa-v0",
    "service_desk-v0",
    "sokoban-v0",
    "sokoban_pictures-v0",
    "sql_agent-v0",
    "tool_probe-v0",
    "travel-v0",
    "ui-v0",
    "ui_pictures-v0",
    "webshop_text-v0",
    "wordle-v0",
    "written_results-v0",
]
HELD_OUT = [
    "back-v0",
    "canvas-v0",
    "clinic-v0",
    "code-v0",
    "countdown-v0",
    "dataset-v0",
    "frames-v0",
    "frozen_lake-v0",
    "function_and_test-v0",
    "geo-v0",
    "household-v0",
    "judging-v0",
    "layout-v0",
    "long_document-v0",
    "prune-v0",
    "python_tool-v0",
    "search_facts-v0",
    "search_qa-v0",
    "service_desk-v0",
    "sokoban-v0",
    "sql_agent-v0",
    "travel-v0",
    "ui-v0",
    "webshop_text-v0",
    "written_results-v0",
]
# Instances of environments whose prompts do not show them.
INSTANCES = {
    "frames-v0": lambda env: (*env.things, *env.spans),
    "geo-v0": lambda env: env.place.names[2],
}
UNLISTED = [  # whose actions are too many to be listed
    "clinic-v0",
    "code-v0",
    "countdown-v0",
    "dataset-v0",
    "frames-v0",
    "frames_pictures-v0",
    "function_and_test-v0",
    "geo-v0",
    "geo_pictures-v0",
    "judging-v0",
    "layout-v0",
    "prune-v0",
    "long_document-v0",
    "python_tool-v0",
    "search_facts-v0",
    "search_qa-v0",
    "service_desk-v0",
    "sql_agent-v0",
    "travel-v0",
    "ui-v0",
    "ui_pictures-v0",
    "webshop_text-v0",
    "wordle-v0",
    "written_results-v0",
]
GOLDEN = pathlib.Path(__file__).parent / "golden"


def test_all_shipped_envs_are_registered():
    assert set(SHIPPED) <= set(TEXT_ENVS.names())


@pytest.mark.parametrize("name", SHIPPED)
def test_check_env_finds_nothing(name):
    report = check_env(name)
    assert report.ok, str(report)
    assert report.measurements["expert_success"] == 1.0
    assert report.measurements["random_success"] < 0.8


@pytest.mark.parametrize("name", SHIPPED)
def test_expert_succeeds_in_both_splits(name):
    env = make_env(name)
    for seed in range(200):
        options = {"split": ("train", "test")[seed % 2]}
        transcript = play(env, seed, expert_policy, options=options)
        assert transcript.success is True, str(transcript)
        looks = transcript.actions.count("look")  # a probe's tool, which costs
        assert sum(transcript.rewards) == 1.0 - 0.2 * looks
        assert len(transcript.actions) <= env.max_turns


@pytest.mark.parametrize("name", SHIPPED)
def test_admissible_actions_are_read_and_hold_what_experts_say(name):
    env = make_env(name)
    for seed in range(20):
        info, rng = env.reset(seed=seed)[1], np.random.default_rng(seed)
        ended = False
        while not ended and "admissible_actions" in info:
            listed = info["admissible_actions"]
            assert len(set(listed)) == len(listed) > 1
            assert all(env.parse(action) is not None for action in listed)
            completion = env.expert_action(rng)
            assert completion in listed
            _, _, terminated, truncated, info = env.step(completion)
            ended = terminated or truncated
        assert ended == (name not in UNLISTED)


@pytest.mark.parametrize("name", SHIPPED)
def test_golden_transcripts(name):
    """Prompts and rewards are part of an environment's version.

    After a deliberate change raise the version, and write the new text to the file.
    """
    env = make_env(name)
    plays = [play(env, 0, expert_policy), play(env, 1, random_policy)]
    assert "\n\n".join(map(str, plays)) + "\n" == (GOLDEN / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", HELD_OUT)
def test_splits_are_disjoint_and_both_varied(name):
    env, seen = make_env(name), {"train": set(), "test": set()}
    for split, instances in seen.items():
        for seed in range(300):
            prompt, _ = env.reset(seed=seed, options={"split": split})
            instances.add(INSTANCES[name](env) if name in INSTANCES else prompt)
    few = name == "geo-v0"  # it has 64 cities
    assert len(seen["train"]) > (40 if few else 100)
    assert len(seen["test"]) > (8 if few else 20)
    assert not seen["train"] & seen["test"]


def test_countdown_split_ignores_the_order_of_the_numbers():
    env = make_env("countdown-v0", {"max_number": 4, "max_target": 10})
    seen = {"train": set(), "test": set()}
    for split, instances in seen.items():
        for seed in range(200):
            env.reset(seed=seed, options={"split": split})
            instances.add((*sorted(env.numbers), env.target))
    assert not seen["train"] & seen["test"]


@pytest.mark.parametrize("name", SHIPPED)
def test_random_unicode_is_answered(name):
    env = make_env(name)
    source = random.Random(name)
    words = ["go", "left", "guess", "answer:", "red", "(", "/", "0", "1+1", "\n", " "]
    alphabets = [range(128), range(0x80, 0x800), range(0x4E00, 0x5000)]
    for episode in range(60):
        env.reset(seed=episode)
        done = False
        while not done:
            letters = map(chr, source.choices(source.choice(alphabets), k=30))
            parts = [*letters, *source.choices(words, k=source.randint(0, 6))]
            source.shuffle(parts)
            text, reward, terminated, truncated, info = env.step("".join(parts))
            assert isinstance(text, str)
            assert np.isfinite(reward)
            assert isinstance(info["invalid_action"], bool)
            done = terminated or truncated
        assert info["success"] in (True, False)


@pytest.mark.parametrize("name", SHIPPED)
def test_invalid_action_retry_costs_a_turn(name):
    config = {"invalid_action": "retry", "invalid_action_reward": -0.25}
    env = make_env(name, {"max_turns": 14, **config})
    env.reset(seed=0)
    text, reward, terminated, truncated, info = env.step("???")
    assert (text, reward) == (env.format_hint, -0.25)
    assert not terminated
    assert not truncated
    assert info["invalid_action"]
    assert env.turn == 1


@pytest.mark.parametrize("name", SHIPPED)
def test_invalid_action_end_is_a_parse_error(name):
    env = make_env(name, {"invalid_action": "end", "invalid_action_reward": -1.0})
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step("???")
    assert reward == -1.0
    assert terminated
    assert not truncated
    assert info["stop_reason"] == "parse_error"
    assert info["success"] is False


@pytest.mark.parametrize("name", SHIPPED)
def test_class_and_fresh_instance_pickle(name):
    assert pickle.loads(pickle.dumps(TEXT_ENVS.get(name))) is TEXT_ENVS.get(name)
    copy = pickle.loads(pickle.dumps(make_env(name)))
    pairs = [env.reset(seed=3) for env in (copy, make_env(name))]
    shown = [info.pop(IMAGES, []) for _, info in pairs]
    assert pairs[0] == pairs[1]
    assert list(map(digest, shown[0])) == list(map(digest, shown[1]))


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("bandit-v0", {"arms": 11}),
        ("bandit-v0", {"best": 0.2}),
        ("bandit_probe-v0", {"words": 1}),
        ("bandit_probe-v0", {"rewarded": 4}),
        ("copy_probe-v0", {"words": True}),
        ("delay_probe-v0", {"distance": 0}),
        ("delay_probe-v0", {"distance": 4, "max_turns": 4}),
        ("tool_probe-v0", {"cost": -0.1}),
        ("tool_probe-v0", {"hidden": 2}),
        ("countdown-v0", {"numbers": 1}),
        ("canvas-v0", {"tiles": 2}),
        ("clinic-v0", {"symptoms": 4}),
        ("clinic-v0", {"results": 0}),
        ("clinic-v0", {"world": -1}),
        ("frames-v0", {"frames": 3}),
        ("frames-v0", {"crop": 0}),
        ("geo-v0", {"world": -1}),
        ("judging-v0", {"hops": 3}),
        ("frozen_lake-v0", {"size": 2}),
        ("frozen_lake-v0", {"size": 8}),
        ("frozen_lake-v0", {"slippery": 1}),
        ("frozen_lake-v0", {"frozen_prob": 1.5}),
        ("frozen_lake-v0", {"frozen_prob": 0.0}),
        ("guess_number-v0", {"upper": 0}),
        ("hangman-v0", {"length": 3}),
        ("hangman-v0", {"lives": 0}),
        ("hangman-v0", {"pool": 10}),
        ("household-v0", {"tasks": "put"}),
        ("household-v0", {"tasks": ["put", "paint"]}),
        ("household-v0", {"tasks": []}),
        ("household-v0", {"max_receptacles": 2}),
        ("household-v0", {"clutter": -1}),
        ("household-v0", {"closed": 1.5}),
        ("household-v0", {"test_rooms": "all"}),
        ("layout-v0", {"size": 3}),
        ("layout-v0", {"items": 5}),
        ("layout-v0", {"relations": 4}),
        ("long_document-v0", {"parts": 12}),
        ("long_document-v0", {"distance": 3, "hops": 2}),
        ("long_document-v0", {"order": "backward"}),
        ("long_document-v0", {"repeat": 1}),
        ("mastermind-v0", {"length": 6}),
        ("mastermind-v0", {"symbols": 1}),
        ("search_facts-v0", {"hops": 3}),
        ("search_facts-v0", {"results": 0}),
        ("search_facts-v0", {"world": -1}),
        ("search_qa-v0", {"hops": 4}),
        ("search_qa-v0", {"comparisons": 1.5}),
        ("search_qa-v0", {"results": 6}),
        ("search_qa-v0", {"distractors": -1}),
        ("search_qa-v0", {"noise": 1.0}),
        ("search_qa-v0", {"reward": "exact"}),
        ("search_qa-v0", {"engine": "google"}),
        ("sokoban-v0", {"boxes": 4, "walls": 5, "size": 3}),
        ("sokoban-v0", {"depth": 40, "max_turns": 2}),
        ("sql_agent-v0", {"level": 4}),
        ("sql_agent-v0", {"worlds": 0}),
        ("sql_agent-v0", {"rows": 0}),
        ("travel-v0", {"constraints": 5}),
        ("travel-v0", {"world": -1}),
        ("ui-v0", {"mode": "page"}),
        ("ui-v0", {"apps": ["form", "camera"]}),
        ("webshop_text-v0", {"products": 19}),
        ("webshop_text-v0", {"families": 11}),
        ("webshop_text-v0", {"catalogue_seed": -1}),
        ("webshop_text-v0", {"attributes": 4}),
        ("webshop_text-v0", {"options": 3}),
        ("webshop_text-v0", {"hidden": 3}),
        ("webshop_text-v0", {"results": 0}),
        ("webshop_text-v0", {"short": 1}),
        ("wordle-v0", {"length": 9}),
        ("wordle-v0", {"pool": 10_000}),
    ],
)
def test_impossible_options_are_refused(name, config):
    with pytest.raises(ConfigError, match=next(iter(config))):
        make_env(name, config).reset(seed=0)


def test_importing_the_envs_is_light():
    code = (
        "import sys, rllib_llm.envs as e; e.TEXT_ENVS.names(); "
        "print({'torch', 'ray', 'transformers', 'pygame'} & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "set()"
