"""Presets on data that models write: what is kept, and what is in the loss."""

import json

import pytest
from component_helpers import trajectory
from preset_helpers import config_of

from rllib_llm import GRPOConfig, SFTConfig
from rllib_llm.algorithms.driver.rewards_filters_curriculum import DriverComponents
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.data.types import Task
from rllib_llm.envs import make_env
from rllib_llm.filters.apply import Filters
from rllib_llm.offline.conversation_files import parse_row
from rllib_llm.offline.prepare_model import prepare_language_model
from rllib_llm.offline.stored_episodes import conversation_episode
from rllib_llm.recipes import load_recipe


def test_written_results_are_left_out_of_the_loss_of_the_preset():
    env = make_env("written_results-v0")
    env.reset(seed=1)
    played = _played(env, ["<search>x</search>", " ", "A text.", "<answer>y</answer>"])
    for name in ("ssrl", "auto_coa"):
        filters = Filters(config_of(name).filters)
        (outcome,), _ = filters(TurnTable([played]))
        assert outcome.masked_turns == {1, 2} and not outcome.is_dropped


def _played(env, texts):
    steps = [env.step(text) for text in texts]
    return trajectory(
        0,
        0,
        rewards=[step[1] for step in steps],
        infos=[step[4] for step in steps],
    )


def test_evaluation_uses_the_real_tool():
    evaluation = config_of("ssrl").evaluation_config["env_config"]
    assert evaluation["tool"] == "real"
    imagined, real = (config_of("auto_coa", stage=i).env_config for i in (0, 1))
    assert imagined.get("tool", "written") == "written" and real["tool"] == "real"
    assert imagined["task"] == real["task"]


# STaR: a hint helps to write, and is not in what is imitated ------------------------


def prompt_of(config, **options):
    env = config.make_text_env()
    return env.reset(seed=5, options={"split": "train", **options})[0]


@pytest.mark.parametrize("stage", [1, 3])
def test_star_tries_failed_tasks_again_with_a_hint(stage):
    config = config_of("star", stage=stage)
    of = DriverComponents(config).only.curriculum.call
    first = Task(0, 0, seed=5)
    assert "answer is" not in prompt_of(config, **of.assign(first, 0).options)
    of.observe(TurnTable([trajectory(0, i, rewards=[0.0]) for i in range(2)]))
    of.prob = 1.0
    again = of.assign(Task(1, 0, seed=6), 1)
    assert again.seed == 100 and "answer is" in prompt_of(config, **again.options)
    assert config.lr == 0.0 and config.save_where == "success"


@pytest.mark.parametrize("stage", [2, 4])
def test_star_imitates_prompts_without_the_hint(tmp_path, stage):
    recipe = load_recipe("star").stages[stage]
    plain, hinted = (
        prompt_of(recipe.build_config(), hint_prob=prob) for prob in (0.0, 1.0)
    )
    assert hinted.startswith(plain) and hinted != plain
    rows = [
        {"agents": [{"turns": [{"observation": prompt, "completion": "1 + 1 = 2."}]}]}
        for prompt in (plain, hinted)
    ]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    config = recipe.build_config()
    (name,) = config.data_files
    config.earlier_stages = {name.removeprefix("stage:"): str(tmp_path)}
    renderer = renderer_of(config)
    episodes = [
        conversation_episode(row, renderer) for row in config.stored_rows(parse_row)
    ]
    bare, shown = ([t["turn"].prompt_ids.tolist() for t in _turns(e)] for e in episodes)
    assert bare == shown


def renderer_of(config):
    """Return the renderer of a small model of the preset's family."""
    config.language_model(tiny={"hidden_size": 32, "intermediate_size": 64})
    config.validate()
    config.resolved_model = prepare_language_model(config)
    return config.chat_renderer()


def _turns(episode):
    count = len(episode)
    return [{"turn": episode.get_extra_model_outputs("turn", i)} for i in range(count)]


# MaskSearch, Plan-and-Act, WebRL ------------------------------------------------


def test_mask_search_raises_the_number_of_masks_then_asks_questions():
    masks, imitated, questions = (config_of("mask_search", stage=i) for i in range(3))
    of = DriverComponents(masks).only.curriculum.call
    of.window = 4

    def shown():
        task = of.assign(Task(0, 0, seed=3), 0)
        of.observe(TurnTable([trajectory(0, i, rewards=[1.0]) for i in range(4)]))
        return prompt_of(masks, **task.options).count("[")

    assert [shown() for _ in range(4)] == [1, 2, 3, 3]
    assert all(prompt_of(c).startswith("What is") for c in (imitated, questions))
    assert isinstance(imitated, SFTConfig) and isinstance(questions, GRPOConfig)
    assert masks.evaluation_config["env_config"]["masks"] == 0


def test_plan_and_act_imitates_plans_and_actions_of_solved_tasks(tmp_path):
    plan, imitate = load_recipe("plan_and_act").stages
    config = plan.build_config()
    assert config.save_where == "success" and config.lr == 0.0
    env = config.make_text_env()
    assert env.possible_agents == ["planner_0", "executor_0"]
    row = {
        "agents": [
            {"agent_id": name, "turns": [{"observation": "a", "completion": text}]}
            for name, text in (("planner_0", "go up"), ("executor_0", "up it is"))
        ]
    }
    (tmp_path / "x.jsonl").write_text(json.dumps(row) + "\n")
    config = imitate.build_config()
    config.earlier_stages = {"plan": str(tmp_path)}
    (stored,) = config.stored_rows(parse_row)
    renderer = renderer_of(config)
    game = conversation_episode(stored, renderer)
    texts = [
        renderer.decode(part["turn"].action_ids.tolist())
        for each in game.agent_episodes.values()
        for part in _turns(each)
    ]
    assert texts == ["go up", "up it is"]


def test_web_rl_keeps_proposed_sizes_of_medium_success():
    config = config_of("web_rl")
    of = DriverComponents(config).only.curriculum.call
    of.prob = 1.0
    of.receive([{"size": 3}, {"size": 5}, {"size": 6}])
    sizes = [of.assign(Task(g, 0, seed=g), 0).options["size"] for g in range(3)]
    assert sizes == [3, 5, 6]
    solved = {3: 4, 5: 2, 6: 0}
    of.observe(
        TurnTable(
            [
                trajectory(g, r, rewards=[float(r < solved[size])])
                for g, size in enumerate(sizes)
                for r in range(4)
            ]
        )
    )
    assert list(of.get_state()["kept"]) == ['{"size": 5}']


def test_search_planner_compares_with_a_search_that_finds_nothing():
    config = config_of("search_planner")
    (gain,) = DriverComponents(config).only.gains
    env = config.make_text_env()
    text = env.reset(seed=2, options=dict(gain.baseline_options))[0]
    assert text == config.make_text_env().reset(seed=2)[0]  # the same question
    query = env.chain[0].query
    shown, *_, info = env.step(f"<search>{query}</search>")
    assert shown == "Nothing found." and info["tool_error"]


# EvoSyn -------------------------------------------------------------------------------


def _wrote(config, function, test, task, rollout, seed):
    """Return a trajectory of an own function (None: the right one) and a test."""
    env = config.make_text_env()
    env.reset(seed=seed)
    right = env.unwrapped.task.solution
    texts = [f"<python>{function or right}</python>", f"<test>{test}</test>"]
    steps = [env.step(text) for text in texts]
    return trajectory(
        task,
        rollout,
        rewards=[step[1] for step in steps],
        infos=[step[4] for step in steps],
        success=steps[-1][4]["success"],
    )


@pytest.mark.sandbox
def test_evosyn_saves_turns_of_functions_and_tests_that_agree():
    config = load_recipe("evosyn").stages[0].build_config()
    assert config.history == "latest" and config.lr == 0.0
    lie, truth = "f([1]) == 'no'", "f([]) == 0"  # a sum of nothing
    none = "def f(numbers):\n    return None"
    seeds = {False: 1, True: 39}  # tasks about sums, of which 39 has checked tests
    for is_checked, seed in seeds.items():
        group = [
            _wrote(config, code, test, 0, i, seed)
            for i, (code, test) in enumerate([(None, truth), (None, lie), (none, lie)])
        ]
        assert (group[0].infos[0]["checked"] is not None) == is_checked
        outcomes, _ = Filters(config.save_where)(TurnTable(group))
        left = [{0, 1} - o.masked_turns for o in outcomes]
        assert left == ([set()] * 3 if is_checked else [{0, 1}, {0}, set()])


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.sandbox
def test_evosyn_imitates_what_the_strategy_chose_and_resumes(ray_session, tmp_path):
    small = ["stages.write.sft.demonstrations=500", "evaluation=null"]
    small += ["stages.write.rollouts.episodes_per_iteration=96"]
    small += ["stages.write.rollouts.group_size=8"]
    write, imitate = load_recipe("evosyn", small).stages

    def build(folder):
        config = write.build_config()
        config.save_episodes = str(tmp_path / folder)
        return config.build_algo()

    def saved(folder, iteration):
        files = (tmp_path / folder).glob(f"*{iteration:06d}.jsonl")
        rows = [json.loads(line) for file in files for line in file.open()]
        return [
            (r["task"]["seed"], [t["train"] for t in r["agents"][0]["turns"]])
            for r in rows
        ]

    algo = build("a")
    first = algo.train()
    checkpoint = algo.save_to_path(str(tmp_path / "checkpoint"))
    algo.train()
    resumed = build("b")
    resumed.restore_from_path(checkpoint)
    resumed.train()
    assert saved("a", 2) == saved("b", 2)
    state = [of._saver.get_state() for of in (algo, resumed)]
    assert state[0] == state[1]
    found = first["filters"]["evolved"]
    assert found["num_checked"] + len({seed for seed, _ in saved("a", 1)}) <= 12
    for of in (algo, resumed):
        of.stop()
    config = imitate.build_config()
    config.earlier_stages = {"write": str(tmp_path / "a")}
    config.initial_checkpoint = checkpoint
    trained = sum(sum(t) for i in (1, 2) for _, t in saved("a", i))
    rows = config.stored_rows(parse_row)
    turns = [t for i in range(len(rows)) for t in rows[i].agents[0].turns]
    assert sum(t.train for t in turns) == trained > 0
    learner = config.build_algo()
    assert learner.train()["learners"]["default_policy"]["grad_norm"] > 0
    learner.stop()
