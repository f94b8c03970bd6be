"""Rows of the literature that run by overrides: what they claim happens.

Each row is its preset with the overrides of docs/literature.yaml; its rewards, filters,
losses and curricula are compared with values by hand.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
from literature import load_methods
from preset_helpers import rollout, searcher, tokens

from rllib_llm.algorithms.driver.rewards_filters_curriculum import DriverComponents
from rllib_llm.assistants.settings import read_assistant
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.data.types import MIXTURE_ENVIRONMENT, Task
from rllib_llm.recipes import load_recipe, search_spaces

approx = pytest.approx
ROWS = {row.id: row for row in load_methods().rows}


@functools.cache
def config_of(row):
    """Return the configuration of a row's last stage."""
    recipe = load_recipe(ROWS[row].yaml[0], ROWS[row].change)
    return recipe.stages[-1].build_config(search_spaces.first_of)


def components_of(row):
    """Return the components of a row; of a mixture those of its first environment."""
    return next(iter(DriverComponents(config_of(row)).by_environment.values()))


def rewards_of(row, *made, iteration=0, **answers):
    """Return the rewards of turns; all rollouts have the same answers."""
    for trajectory in made:
        trajectory.answers.update(answers)
    components_of(row).rewards(made, iteration)
    return [trajectory.rewards for trajectory in made]


def loss_of(row, ratios, advantages):
    batch, _ = tokens(ratios, advantages)
    loss, _ = config_of(row).build_composed_loss().policy_loss(batch)
    return loss[0].tolist()


def filtered(row, *made):
    results, _ = components_of(row).filters(TurnTable(made))
    return results


def advantages_of(row, *made):
    table = TurnTable(made)
    found = config_of(row).build_advantage_estimators().advantages(table)
    return [part.tolist() for part in table.split(found)]


def script_of(row, name):
    """Return a script's name and settings."""
    bound = read_assistant(name, config_of(row).assistants[name]).script
    return bound.component.name, bound.settings


# Agents and what they are trained on --------------------------------------------------


def test_epo_trains_the_adviser_on_the_turns_that_a_judge_selects():
    assert config_of("A21").policies_to_train == ["adviser"]
    made = rollout(0, [0, 0, 1])
    made.answers["judge"] = [1.0, 0.0, 1.0]
    assert filtered("A21", made)[0].masked_turns == {1}
    # The policy gradient on the return to go; log-probabilities are -2 at ratio 1.
    assert advantages_of("A21", rollout(0, [0.5, 1])) == [[1.5, 1.0]]
    assert loss_of("A21", [1.0, 1.0], [1.5, -1.0]) == approx([3.0, -2.0])


def test_rlft_penalises_invalid_actions_of_a_bandit_and_whitens_returns():
    config = config_of("A25")
    prompt = config.make_text_env().reset(seed=0)[0]
    assert prompt.startswith("Buttons: red blue green pink gold.")
    assert (config.ref_kl_coeff, config.sft_mistake_rate) == (0.05, 1.0)
    made = rollout(0, [0.1, 0.1], invalid=[True, False])
    assert rewards_of("A25", made)[0] == approx([-4.9, 0.1])
    found = np.concatenate(advantages_of("A25", made, rollout(1, [0.1, 0.1])))
    returns = [-4.8, 0.1, 0.2, 0.1]
    assert found == approx((returns - np.mean(returns)) / np.std(returns, ddof=1))


def test_one_model_plays_all_roles_of_afm_for_the_judges_word():
    config = config_of("C6")
    assert list(config.llm_module_ids) == ["agent"]
    assert {config.policy_mapping_fn(a, None) for a in ("adviser", "solver")} == {
        "agent"
    }
    assert script_of("C6", "judge")[0] == "outcome"
    # The judge's answer alone, whatever the environment says.
    made = [rollout(0, [0.0, 0.0]), rollout(1, [0.0, 1.0])]
    assert [sum(r) for r in rewards_of("C6", *made, judge=[1.0])] == [1.0, 1.0]
    assert loss_of("C6", [1.5, 0.5], [1.0, -1.0]) == approx([-1.28, 0.8])


# Memories ----------------------------------------------------------------------------


def read_by(row, solved):
    """Return the texts that a later episode reads after a solved one."""
    text = components_of(row).prompt_text.call
    text.observe(TurnTable([solved]), [])
    source = text.assign(Task(1, 0, seed=9), 1).prompt_text
    return [added.text for added in source.texts_for(solved.observations[0])]


def test_calls_cost_agile_and_it_reads_a_memory():
    infos = [{"tool": "get_order", "tool_error": False}, {"tool": None}]
    made = rollout(0, [0, 1], infos=infos)
    assert rewards_of("A28", made)[0] == approx([-0.02, 1.0])
    assert read_by("A28", made) == ["place 0 so"]


def test_doctor_r1_adds_a_judge_to_the_score_and_reads_a_memory():
    infos = [{"score": 0.0}, {"score": 0.5}]
    texts = ["<refer>a</refer>", "<answer>a</answer>"]
    given = {"infos": infos, "completions": texts}
    made = [rollout(0, [0, 0.5], **given)]
    made.append(rollout(1, [0, 0.5], invalid=[True, False], **given))
    sums = [sum(r) for r in rewards_of("A29", *made, judge=[1.0])]
    assert sums == approx([0.75, 0.0])
    assert script_of("A29", "judge") == ("outcome", {"accuracy": 0.9})
    solved = rollout(2, [0, 1], **given)
    assert len(read_by("A29", solved)) == 1


# Imitation of what succeeded ---------------------------------------------------------


@pytest.mark.parametrize("row", ["B18", "F6"])
def test_solved_episodes_are_imitated_with_equal_weights(row):
    made = [rollout(0, [0, 1]), rollout(1, [0, 0])]
    failed = filtered(row, *made)
    assert [r.is_dropped or r.is_masked for r in failed] == [False, True]
    assert loss_of(row, [1.0, 1.0], [1.0, -1.0]) == approx([2.0, 2.0])


def test_rest_mcts_grows_a_search_tree():
    fork = config_of("B18").fork
    assert (fork["name"], fork["width"], config_of("B18").group_size) == ("mcts", 3, 16)


@pytest.mark.parametrize("row", ["F6", "F23"])
def test_proposed_tasks_are_sampled(row):
    assert script_of(row, "proposer") == ("propose", {"ranges": {"size": [2, 6]}})
    curriculum = components_of(row).curriculum.call
    assert curriculum.of == "proposer"
    curriculum.receive([{"size": 2}, {"size": 6}])
    tasks = [curriculum.assign(Task(g, 0, seed=g), 0) for g in range(40)]
    assert {t.options.get("size") for t in tasks} >= {2, 6}


def test_paes_evaluator_alone_rewards():
    made = [rollout(0, [0, 1]), rollout(1, [0, 0])]
    assert [sum(r) for r in rewards_of("F6", *made, evaluator=[1.0])] == [1, 1]


# Rewards of worlds -------------------------------------------------------------------


def answering(index, reward, *infos, **fields):
    """Return a rollout of two turns that ends with an answer."""
    texts = ["<crop>1-4</crop>", "<answer>2-5</answer>"]
    given = {"infos": list(infos), "completions": texts, **fields}
    return rollout(index, [0, reward], **given)


def test_backtrack_agent_is_judged_at_each_step_and_may_step_back():
    made = rollout(0, [0, 1])
    assert rewards_of("F12", made, judger=[1.0, 0.0])[0] == approx([0.1, 1.0])
    env = config_of("F12").make_text_env()
    assert "Say back to undo" in env.reset(seed=0)[0]
    assert type(env.unwrapped.task).__name__.startswith("WebShop")


def test_longvt_adds_overlap_format_and_a_right_span():
    overlaps = [1.0, 0.5, 0.5]
    made = [
        answering(i, o, {}, {"overlap": o}, invalid=[i == 2, False])
        for i, o in enumerate(overlaps)
    ]
    sums = [sum(r) for r in rewards_of("F14", *made)]
    assert sums == approx([3.0, 1.5, 0.5])


def test_rewatch_r1_judges_each_step_beside_answer_and_format():
    made = answering(0, 1.0, {}, {})
    assert rewards_of("F16", made, judge=[1.0, 0.0])[0] == approx([0.2, 2.0])
    judge = read_assistant("judge", config_of("F16").assistants["judge"])
    assert judge.per == "turn"


def test_geovista_rewards_by_tiers():
    made = [answering(i, 0, {}, {"level": i}) for i in range(4)]
    assert [sum(r) for r in rewards_of("F18", *made)] == [0.0, 1.0, 2.0, 4.0]


def test_vital_weighs_hard_groups_more_and_rewards_overlap_and_format():
    overlaps, bad = (1.0, 0.5, 0.0, 0.5), 3
    made = [
        answering(i, o, {}, {"overlap": o}, invalid=[i == bad, False], success=o == 1)
        for i, o in enumerate(overlaps)
    ]
    for one in made:  # of the mixture's two environments
        one.task.options[MIXTURE_ENVIRONMENT] = "frames_pictures-v0"
    sums = [sum(r) for r in rewards_of("F15", *made)]
    assert sums == approx([1.5, 1.0, 0.5, 0.5])
    weighted = advantages_of("F15", *made)
    mean, deviation = np.mean(sums), np.std(sums, ddof=1)
    # One of four is right, in the group and its environment: 1 - 1/2 + 1/2 (1 - 1/4).
    expected = [0.875**2 * (s - mean) / deviation for s in sums]
    assert [turns[-1] for turns in weighted] == approx(expected, abs=1e-4)


def test_the_form_is_rewarded_and_swaps_of_solved_pictures_cost():
    cases = [(1.0, 1.0, False), (0.0, 0.5, False), (1.0, 1.0, True)]
    made = []
    for index, (reward, placed, bad) in enumerate(cases):
        info = {"tool": "swap", "tool_error": False, "placed": placed}
        texts = {"completions": ["swap 1 2"] * 2, "invalid": [bad, False]}
        made.append(rollout(index, [0, reward], infos=[info, info], **texts))
    sums = [sum(r) for r in rewards_of("F19", *made)]
    assert sums == approx([0.8 + 0.2 - 0.1, 0.2 - 0.25, 0.8 - 0.1])


def test_arm_thinker_goes_from_the_use_of_tools_to_the_answer():
    found = [
        sum(rewards_of("F20", searcher(0, [("a", [])] * 2, "right"), iteration=i)[0])
        for i in (0, 10)
    ]
    # Two calls are capped at one half; an answer counts 0.2, then 1.
    assert found == approx([0.5 + 0.2, 1.0])
    assert config_of("F20").env == "judging-v0"


def test_game_on_trains_ppo_on_groups():
    assert type(config_of("F23")).__name__ == "LLMPPOConfig"
    assert config_of("F23").group_size == 4
