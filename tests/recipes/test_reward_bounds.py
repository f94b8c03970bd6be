"""No shipped reward recipe gives a failed trajectory a larger return than a solved one.

Trajectories are played by scripts: every sequence of a few kinds of turns, ended in
every way, and long ones that repeat what a recipe rewards.
"""

from __future__ import annotations

import copy
import functools
import itertools
from pathlib import Path

import numpy as np
import pytest
import yaml
from component_helpers import trajectory

from rllib_llm.algorithms.config.validation import make_env
from rllib_llm.algorithms.driver.rewards_filters_curriculum import DriverComponents
from rllib_llm.data.turn_table import Trajectory
from rllib_llm.data.types import Task
from rllib_llm.recipes import load_recipe

SHIPPED = Path(__file__).parents[2] / "tuned_examples"
ITERATIONS = (0, 7, 1000)  # weights of rewards may change as training goes on
LONGEST = 8
# Environments without a search of their own.
SCRIPTED = (
    *("ui-v0", "travel-v0", "layout-v0", "written_results-v0"),
    *("ui_pictures-v0", "geo_pictures-v0", "frames_pictures-v0"),
    "canvas_pictures-v0",
)

# Of a turn of a search game, given the expert's action and the turn's number.
SEARCHES = {
    "good": lambda env, i: env.expert_action(np.random.default_rng(0)),
    "again": lambda env, i: "<search>home of Nobody</search>",
    "other": lambda env, i: f"<search>item {i} of No{'abcdefgh'[i]}</search>",
    "unreadable": lambda env, i: "well",
}
ENDS = {
    "right": lambda gold: f"<answer>{gold}</answer>",
    "wrong": lambda gold: "<answer>Nobody</answer>",
    "partly": lambda gold: f"<answer>{gold} Nobody</answer>",
    "both": lambda gold: "<search>home of Nobody</search><answer>Nobody</answer>",
    "none": lambda gold: "well",
}


def recipes_with_rewards(*, of_teams=False):
    """Name and stage of everything shipped that sets rewards."""
    found = []
    for path in sorted(SHIPPED.rglob("*.yaml")):
        recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
        if "scorer" in recipe or "assistants" in _rollouts(recipe):
            continue  # learned and asked rewards have no such bound
        if ("multi_agent" in recipe) != of_teams:
            continue
        own = ("rewards", "reward_transforms")
        stages = [
            stage
            for stage in recipe.get("stages", ())
            if set(own) & set(_rollouts(stage)) and "assistants" not in _rollouts(stage)
        ]
        found += [f"{path.stem}/{stage['name']}" for stage in stages]
        if set(own) & set(_rollouts(recipe)):
            found.append(path.stem)
    return found


def _rollouts(section):
    return section.get("rollouts") or {}


# Whose stage imitates a behaviour, right or wrong.
BY_BEHAVIOUR = {"behavior_priming/prime"}
RECIPES = [name for name in recipes_with_rewards() if name not in BY_BEHAVIOUR]


TEAMS = recipes_with_rewards(of_teams=True)


@functools.cache
def config_of(name):
    name, _, stage = name.partition("/")
    recipe = load_recipe(name)
    index = recipe.stage_names.index(stage) if stage else -1
    return recipe.stages[index].config


def play(env, moves, rollout):
    """Play until the game ends; a move says what to do, given the game and the turn."""
    observation, _ = env.reset(seed=0)
    t = Trajectory(
        Task(0, rollout, seed=0),
        *(rollout, 0, "agent", "policy"),
        *([], [], [], [], [], []),
        success=False,
    )
    for index, move in enumerate(moves):
        action = move(env, index)
        t.observations.append(observation)
        observation, reward, ended, cut, info = env.step(action)
        t.completions.append(action)
        t.rewards.append(reward)
        t.steps.append(index)
        t.num_tokens.append(2)
        t.invalid.append(info["invalid_action"])
        t.infos.append(info)
        if ended or cut:
            break
    t.success = bool(info["success"])
    return t


def search_games(env):
    """All short games, and long ones of one kind of turn."""
    starts = [
        *itertools.chain(*(itertools.product(SEARCHES, repeat=n) for n in range(3))),
        *((kind,) * n for kind in SEARCHES for n in (4, 6, LONGEST)),
    ]
    for start, end in itertools.product(starts, ENDS):
        env.reset(seed=0)
        gold = env.gold_answers()[0]
        last = ENDS[end](gold)
        yield [*(SEARCHES[kind] for kind in start), lambda env, i, last=last: last]


def scripted_games(env):
    """The expert after some turns of no use, and walks that never arrive."""

    def expert(env, i):
        return env.expert_action(np.random.default_rng(0))

    def unreadable(env, i):
        return "well"

    def stumble(env, i):
        return env.random_action(np.random.default_rng(i))

    for n in range(LONGEST):
        for kind in (unreadable, stumble):
            yield [kind] * n + [expert] * 20
            yield [kind] * n
    for start in ("So: ", "Then ", "Now "):
        yield [lambda env, i, start=start: start + expert(env, i)] * 20
    yield [unreadable] * 20
    yield [stumble] * 20


def first_of(name):
    """Return environment, options and components, of a mixture those of the first."""
    config = config_of(name)
    components = DriverComponents(config).by_environment
    for member in config.mixture_members:
        return member.env, member.env_config, components[member.name]
    return config.env, config.env_config, components[None]


def is_scripted(name):
    """Return whether its environment has no search, so that scripts play it."""
    env = str(first_of(name)[0])
    return "lake" in env or env in SCRIPTED


ANSWERED = [r for r in RECIPES if r != "deepretrieval" and not is_scripted(r)]


@functools.cache
def played(name, is_long):
    env = make_env(*first_of(name)[:2])
    games = scripted_games if is_scripted(name) else search_games
    if is_long:
        env.unwrapped.max_turns = 25
    cut = slice(config_of(name).max_turns)
    found = [play(env, game[cut], i) for i, game in enumerate(games(env)) if game]
    env.close()
    return found


def found_all(t):
    """Return True if the documents that the question needs were found."""
    found = {text for info in t.infos for text in info["documents"]}
    return set(t.infos[-1]["gold_documents"]) <= found


def well_formed(t):
    return not any(t.invalid)


# What success means where it is not the answer, or form is a part of it.
SOLVED = {
    "deepretrieval": found_all,
    **dict.fromkeys(
        ("research", "arpo", "aepo", "deep_dxsearch", "metaspatial", "vital"),
        lambda t: t.success and well_formed(t),
    ),
    "r1_searcher/answer": lambda t: t.success and well_formed(t),
}
# Reasons why the return of a solved game may be below that of a failed one.
NOT_BY_OUTCOME = {
    "r1_searcher/search": "the first stage rewards only searching and format",
    "stepsearch": "the paper's weights pay good searches more than a lucky guess",
}


def returns(name, iteration, *, is_long=False):
    """Return the episodes, their returns [N] and whether each is solved [N]."""
    made = copy.deepcopy(played(name, is_long))
    first_of(name)[2].rewards(made, iteration=iteration)
    solved = SOLVED.get(name, lambda t: t.success)
    returns_ = np.array([t.episode_return for t in made])
    return made, returns_, np.array([bool(solved(t)) for t in made])


def test_recipes_are_found():
    assert {"atom_searcher", "ppr_renorm", "starpo", "r1_searcher/answer"} <= {*RECIPES}
    assert {*SOLVED, *NOT_BY_OUTCOME} <= {*RECIPES}


@pytest.mark.parametrize("iteration", ITERATIONS)
@pytest.mark.parametrize("name", sorted({*RECIPES} - {*NOT_BY_OUTCOME}))
def test_no_failed_trajectory_earns_more_than_a_solved_one(name, iteration):
    made, returns_, solved = returns(name, iteration)
    assert 4 < solved.sum() < len(made) - 4
    best, worst = np.flatnonzero(~solved), np.flatnonzero(solved)
    best, worst = best[returns_[best].argmax()], worst[returns_[worst].argmin()]
    observation = f"{made[best].completions} vs. {made[worst].completions}"
    assert returns_[best] <= returns_[worst] + 1e-9, observation


@pytest.mark.parametrize("iteration", ITERATIONS)
@pytest.mark.parametrize("name", ANSWERED)
def test_a_right_end_never_earns_less_than_another(name, iteration):
    """Of games whose turns before the last are the same; and nobody beats the best."""
    made, returns_, solved = returns(name, iteration)
    assert returns_[~solved].max() <= returns_[solved].max() + 1e-9
    before = {}
    for t, total, is_solved in zip(made, returns_, solved, strict=True):
        before.setdefault(tuple(t.completions[:-1]), []).append((is_solved, total))
    compared = 0
    for ends in before.values():
        right = [total for is_solved, total in ends if is_solved]
        other = [total for is_solved, total in ends if not is_solved]
        if right and other:
            assert max(other) <= min(right) + 1e-9
            compared += 1
    assert compared > 4


@pytest.mark.parametrize("name", RECIPES)
def test_long_failed_games_earn_less_than_the_best_solved_one(name):
    """Also where the game's own limit on turns does not bound their returns."""
    _, returns_, solved = returns(name, 0, is_long=True)
    assert returns_[~solved].max() <= returns_[solved].max() + 1e-9


@pytest.mark.parametrize("name", TEAMS)
def test_a_team_that_fails_in_few_words_earns_less_than_one_that_talks(name):
    made = [
        trajectory(
            rollout=rollout,
            agent=agent,
            rewards=[float(solved)],
            num_tokens=[tokens],
            success=solved,
        )
        for rollout, (solved, tokens) in enumerate([(True, 1000), (False, 1)])
        for agent in (0, 1)
    ]
    DriverComponents(config_of(name)).only.rewards(made, iteration=0)
    returns_ = np.array([t.episode_return for t in made])
    assert returns_[:2].min() > returns_[2:].max()
    assert returns_[:2].max() < 1.0  # the words have their price
