"""The shipped recipes of rewards, filters and curricula train, each by its mechanism.

That they load and dry-run is tested with all others in tests/cli/test_cli_light.py.
"""

from __future__ import annotations

import numpy as np
import pytest

from rllib_llm.algorithms.driver.rewards_filters_curriculum import DriverComponents
from rllib_llm.data.turn_table import Trajectory, TurnTable
from rllib_llm.data.types import Task
from rllib_llm.recipes import load_recipe
from rllib_llm.rewards.efficiency import tool_efficiency
from rllib_llm.rewards.text_features import final_answer, word_f1
from rllib_llm.rewards.tools import num_calls

SMALL = (
    "language_model.tiny={hidden_size: 64, intermediate_size: 128}",
    "env_runners.num_envs_per_env_runner=32",
    "rollouts.episodes_per_iteration=32",
    "training.minibatch_size=16",
    "evaluation.evaluation_interval=null",
)
GRPO = (*SMALL, "training.drop_zero_variance_groups=false")
SEARCH = ("sft={demonstrations: 300, lr: 3e-3, mistake_rate: 0.3}",)
LAKE = ("sft={demonstrations: 200, lr: 1e-2}", "env_config.size=3")


def f1_of(t):
    given = final_answer(t, "<answer>(.*?)</answer>") or ""
    return max(word_f1(given, gold) for gold in t.last_info("gold_answers"))


def right(t):
    return float(f1_of(t) == 1.0)


def is_form(t):
    return not any(t.invalid) and "</answer>" in t.completions[-1]


def returns(found):
    return np.array([t.episode_return for t in found])


# What each is about: of what was played, what is left to learn from, and the result --


def search_r1(played, left, result):
    np.testing.assert_allclose(returns(played), [right(t) for t in played])
    assert result["reward_parts"]["environment"] == 0.0


def r1_searcher(played, left, result):
    for t in played:
        worked = any(i["tool"] and not i["tool_error"] for i in t.infos)
        assert t.episode_return == pytest.approx(0.5 * worked + 0.5 * is_form(t))


def r1_searcher_answer(played, left, result):
    for t in played:
        assert t.episode_return == pytest.approx(f1_of(t) - 2.0 * (not is_form(t)))


def research(played, left, result):
    for t in played:
        form = 0.1 * is_form(t)
        assert t.episode_return == pytest.approx(is_form(t) * f1_of(t) or form)


def stepsearch(played, left, result):
    searches = [
        (r, i)
        for t in played
        for r, i in zip(t.rewards[:-1], t.infos[:-1], strict=True)
    ]
    assert all(-0.6 <= r <= 0.6 for r, _ in searches)
    needed = [r for r, i in searches if set(i["documents"]) & set(i["gold_documents"])]
    assert not needed or max(needed) > 0.1
    assert all(r == 0 for r, i in searches if not i["documents"])


def otc(played, left, result):
    for t in (t for t in played if t.is_solved):
        same = [u for u in played if u.task.group_id == t.task.group_id and u.is_solved]
        fewest = min(map(num_calls, same))
        assert t.episode_return == pytest.approx(tool_efficiency(num_calls(t), fewest))


def atom_searcher(played, left, result):
    """In the second iteration weights are 0.525 and 0.475."""
    judged = sum(t.episode_return - 0.525 * f1_of(t) for t in played) / len(played)
    assert result["reward_parts"]["rubric"] == pytest.approx(judged)


def ppr_renorm(played, left, result):
    for t in played:
        for r, info in zip(t.rewards[:-1], t.infos[:-1], strict=True):
            half = 0.5 * bool(info["tool"]) / max(num_calls(t), 1)
            assert abs(r) == pytest.approx(half)
        assert t.rewards[-1] <= 0.5


def grpo_roc(played, left, result):
    assert len(left) == len(played) // 2
    assert result["filtered_frac"]["roc"] == pytest.approx(0.5)


def rorecomp(played, left, result):
    kept = {(t.task.group_id, t.task.rollout) for t in left if t.is_trained}
    assert len(kept) < len(played)
    for group in {t.task.group_id for t in played}:
        for solved in (True, False):
            of = [
                t for t in played if t.task.group_id == group and t.is_solved is solved
            ]
            for t in of:
                if (group, t.task.rollout) not in kept:
                    beyond = [sum(u.num_tokens) - sum(t.num_tokens) for u in of]
                    better = min(beyond) if solved else -max(beyond)
                    assert better <= 0


def spear(played, left, result):
    fading = np.interp(1, [0, 5], [1.0, 0.854])
    for t in played:
        worked = sum(bool(i["tool"]) and not i["tool_error"] for i in t.infos)
        bonus = fading * min(0.1 * worked, 1.0)
        assert t.episode_return == pytest.approx(float(bool(t.success)) + bonus)
    if "replay" in result:
        # Of the first iteration, since an episode is drawn from the next one on.
        assert 0 < result["replay"]["num_episodes_stored"] < 32
        assert result["replay"]["num_episodes_drawn"] <= 32


def scaling_inter_rl(played, left, result):
    assert max(len(t) for t in played) <= 6


def starpo(played, left, result):
    for t in played:
        unpaid = t.episode_return + 0.1 * sum(t.invalid)
        assert unpaid == pytest.approx(float(bool(t.success)))


def starpo_s(played, left, result):
    spread = {
        g: returns([t for t in played if t.task.group_id == g]).std()
        for g in {t.task.group_id for t in played}
    }
    kept = {t.task.group_id for t in left}
    assert len(kept) == 1
    assert spread[next(iter(kept))] == pytest.approx(max(spread.values()))


def demystifying(played, left, result):
    for t in played:
        over = np.clip((sum(t.num_tokens) - 50) / 30, 0, 1)
        assert t.episode_return == pytest.approx(
            right(t) * ("</answer>" in t.completions[-1]) - over
        )


def deep_dxsearch(played, left, result):
    for t in played:
        seen = {d for info in t.infos for d in info["documents"]}
        evidence = bool(seen & set(t.infos[-1]["gold_documents"]))
        total = t.last_info("score") + 0.25 * evidence
        assert t.episode_return == pytest.approx(is_form(t) * total)


def ui_r1(played, left, result):
    for t in played:
        (info,), (invalid,) = t.infos, t.invalid
        total = info["type_right"] + info["inside"] + (not invalid)
        assert t.episode_return == pytest.approx(total)
        assert not t.success or total >= 2


def deep_travel(played, left, result):
    for t in played:
        accepted = t.last_info("feasible") == t.last_info("consistent") == 1.0
        assert t.episode_return == float(accepted) == float(bool(t.success))


def metaspatial(played, left, result):
    for t in played:
        scores = t.last_info("physics") + t.last_info("rules")
        total = 0.2 * (not any(t.invalid)) + 0.4 * scores
        assert t.episode_return == pytest.approx(total)


PPO = (*SMALL, *SEARCH)
ACT = (*GRPO, "sft={demonstrations: 200, lr: 3e-3, mistake_rate: 0.2}")
CASES = {
    "search_r1": (search_r1, PPO),
    "r1_searcher": (r1_searcher, (*GRPO, *SEARCH)),
    "r1_searcher/answer": (r1_searcher_answer, (*GRPO, *SEARCH)),
    "research": (research, (*GRPO, *SEARCH)),
    "arpo": (research, (*GRPO, *SEARCH)),
    "aepo": (research, (*GRPO, *SEARCH)),
    "stepsearch": (stepsearch, PPO),
    "otc": (otc, (*GRPO, *SEARCH)),
    "atom_searcher": (atom_searcher, (*GRPO, *SEARCH)),
    "ppr_renorm": (ppr_renorm, PPO),
    "grpo_roc": (grpo_roc, (*GRPO, *SEARCH)),
    "rorecomp": (rorecomp, (*GRPO, *SEARCH)),
    "spear": (spear, (*GRPO, *SEARCH)),
    "scaling_inter_rl": (scaling_inter_rl, (*GRPO, *LAKE)),
    "starpo": (starpo, (*GRPO, *LAKE)),
    "starpo_s": (starpo_s, (*GRPO, *LAKE)),
    "demystifying": (demystifying, (*GRPO, *SEARCH)),
    "deep_dxsearch": (deep_dxsearch, (*GRPO, *SEARCH)),
    "ui_r1": (ui_r1, ACT),
    "ui_r1_pictures": (ui_r1, ACT),
    "deep_travel": (deep_travel, ACT),
    "metaspatial": (metaspatial, ACT),
}


def config_of(name, settings=()):
    """Return the config of a recipe, or of one of its stages after a slash."""
    name, _, stage = name.partition("/")
    recipe = load_recipe(name, settings)
    if not stage:
        return recipe.stages[0].config
    return recipe.stages[recipe.stage_names.index(stage)].config


def scripted(env, tasks=4, rollouts=8):
    """Groups played by an expert who sometimes errs, or says nothing of use."""
    found = []
    for task, rollout in np.ndindex(tasks, rollouts):
        rng = np.random.default_rng([task, rollout])
        t = Trajectory(
            Task(task, rollout, seed=task),
            *(len(found), 0, "agent", "policy"),
            *([], [], [], [], [], []),
            success=False,
        )
        observation, _ = env.reset(seed=task)
        done = False
        while not done:
            how = rng.choice(3, p=[0.75, 0.15, 0.1])
            action = (env.expert_action, env.random_action, lambda _: "well")[how](rng)
            t.observations.append(observation)
            observation, reward, ended, cut, info = env.step(action)
            done = ended or cut
            t.completions.append(action)
            t.rewards.append(reward)
            t.steps.append(len(t.steps))
            t.num_tokens.append(len(action.split()) + int(rng.integers(40)))
            t.invalid.append(info["invalid_action"])
            t.infos.append(info)
        t.success = info["success"]
        found.append(t)
    return found


ON_SEARCH = [name for name, (_, settings) in CASES.items() if SEARCH[0] in settings]


@pytest.mark.parametrize("name", ON_SEARCH)
def test_good_and_bad_rollouts_differ_as_in_the_paper(name):
    """As below, on rollouts of which enough are right, wrong, and without form."""
    config = config_of(name)
    played = scripted(config.make_text_env())
    assert 6 < sum(map(right, played)) < 30 and sum(map(is_form, played)) < 30
    assert len(set(map(num_calls, played))) > 2
    components = DriverComponents(config)
    parts = components.only.rewards(played, iteration=1)
    results, shares = components.only.filters(TurnTable(played))
    left = [
        t
        for t, v in zip(played, results, strict=True)
        if not (v.is_dropped or v.is_masked)
    ]
    reward_parts = {part: p.sum() / len(played) for part, p in parts.items()}
    assert returns(played).std() > 0.05
    CASES[name][0](
        played, left, {"reward_parts": reward_parts, "filtered_frac": shares}
    )


@pytest.mark.parametrize(
    "name", ["ui_r1", "ui_r1_pictures", "deep_travel", "metaspatial"]
)
def test_rewards_on_text_stand_ins_are_those_of_the_page(name):
    config = config_of(name)
    played = scripted(config.make_text_env(), tasks=8)
    DriverComponents(config).only.rewards(played, iteration=0)
    assert returns(played).std() > 0.1
    CASES[name][0](played, played, {})


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("name", CASES)
def test_two_iterations_do_what_the_paper_is_about(ray_session, monkeypatch, name):
    check, settings = CASES[name]
    algo = config_of(name, settings).build_algo()
    select, seen = algo._driver_components.select, []

    def select_and_keep(episodes):
        left, shares = select(episodes)
        seen.append((episodes.trajectories, left.trajectories))
        return left, shares

    monkeypatch.setattr(algo._driver_components, "select", select_and_keep)
    results = [algo.train() for _ in range(2)]
    algo.stop()
    assert len(seen) == 2 and len(seen[-1][0]) == 32
    check(*seen[-1], results[-1])
    for learned in results[-1]["learners"].values():
        if isinstance(learned, dict) and "grad_norm" in learned:
            assert np.isfinite(learned["grad_norm"])
