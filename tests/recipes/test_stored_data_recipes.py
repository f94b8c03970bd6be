"""Presets that learn from saved episodes: what they read, and what is in their loss."""

from __future__ import annotations

import json

import numpy as np
import pytest
from preset_helpers import config_of, rollout, searcher

from rllib_llm.algorithms.driver.rewards_filters_curriculum import DriverComponents
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.envs.household.world import NOTHING
from rllib_llm.filters.apply import Filters
from rllib_llm.offline.conversation_files import StoredConversation, parse_row
from rllib_llm.offline.episode_rows import StoredEpisode
from rllib_llm.offline.prepare_model import prepare_language_model
from rllib_llm.recipes import load_recipe


def reading(name, stage, folders):
    """Return a stage's config with what earlier stages saved."""
    config = load_recipe(name).stages[stage].build_config()
    config.earlier_stages = {k: str(v) for k, v in folders.items()}
    return config


def save(folder, returns, reply="go up"):
    """Write one saved episode for each return; return the folder."""
    folder.mkdir()
    rows = [
        {
            "id": f"{folder.name}-{number}",
            "agents": [
                {"turns": [{"observation": "a", "completion": reply, "reward": value}]}
            ],
        }
        for number, value in enumerate(returns)
    ]
    (folder / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def read_of(config, count):
    return config.stored_rows(parse_row).in_passes(0, 0, count)


def test_rest_improves_on_one_data_set_with_rising_thresholds(tmp_path):
    returns = [-100.0, -50.0, -25.0, -20.0, -10.0]
    folder = save(tmp_path / "grow", returns)
    grow, *improve = load_recipe("rest").stages
    assert grow.build_config().lr == 0.0  # sampled once, by the first policy
    seen = []
    for number in range(1, 1 + len(improve)):
        config = reading("rest", number, {"grow": folder})
        rows = config.stored_rows(parse_row)
        seen.append(sorted(r.episode_return for r in rows.in_passes(0, 0, len(rows))))
    assert seen == [returns[1:], returns[2:], returns[4:]]


def test_agent_tuning_mixes_a_fifth_of_episodes(tmp_path):
    folder = save(tmp_path / "collect", [1.0] * 3)
    config = reading("agent_tuning", 1, {"collect": folder})
    rows = read_of(config, config.episodes_per_iteration)
    kinds = [isinstance(row, StoredEpisode) for row in rows]
    assert np.mean(kinds) == pytest.approx(0.2)
    chat = next(row for row in rows if isinstance(row, StoredConversation))
    assert "<answer>" in chat.messages[-1]["content"]
    collect = load_recipe("agent_tuning").stages[0].build_config()
    assert (collect.save_episodes, collect.lr) == (True, 0.0)
    outcomes, _ = Filters(collect.save_where)(
        TurnTable([rollout(0, [0, 1]), rollout(1, [0, 0])])
    )
    assert [o.is_dropped for o in outcomes] == [False, True]


def test_ire_vla_imitates_demonstrations_and_own_successes(tmp_path):
    saved = {n: save(tmp_path / n, [1.0], reply=n) for n in ("rl", "rl_2")}
    stages = load_recipe("ire_vla").stages
    assert [s.algo for s in stages] == ["SFT", "GRPO", "SFT", "GRPO", "SFT"]
    for stage, shares in ((2, {"rl": 0.5}), (4, {"rl": 0.3, "rl_2": 0.3})):
        rows = read_of(reading("ire_vla", stage, saved), 100)
        own = [r.agents[0].turns[0].completion for r in rows if hasattr(r, "agents")]
        assert {name: own.count(name) / 100 for name in set(own)} == shares
    for stage in (1, 3):
        assert stages[stage].build_config().save_where == "success"


def test_atlas_trains_only_turns_with_a_choice():
    where = load_recipe("atlas").stages[0].build_config().save_where
    seen = [
        "map\nrow 1 column 1, ice down right",
        "row 1 column 2, ice down",
        "goal up",
    ]
    table = TurnTable(
        [
            rollout(0, [0, 0, 1], observations=seen),
            rollout(1, [0, 0, 0], observations=seen),
        ]
    )
    solved, failed = Filters(where)(table)[0]
    assert (solved.is_dropped, failed.is_dropped) == (False, True)
    # The forced move is context; the choice and the last turn are imitated.
    assert solved.masked_turns == {1}


def test_behavior_priming_ranks_by_behaviour_and_not_by_the_answer():
    searches = [("home of Zanos", ["zanos lives in ratal"])]
    episodes = [
        searcher(0, searches, "wrong"),  # behaves well
        searcher(1, [], "right"),
        searcher(2, [("Zanos", [])], "right"),
        searcher(3, [("Zanos", [])], None),
    ]
    prime = config_of("behavior_priming", stage=0)
    only = DriverComponents(prime).only
    only.rewards(episodes, 0)
    outcomes, _ = only.filters(TurnTable(episodes))
    assert [o.is_dropped for o in outcomes] == [False, True, True, True]
    rl = config_of("behavior_priming")
    assert not DriverComponents(rl).only.rewards.changes_anything
    assert rl.policy_loss is None and prime.policy_loss["name"] == "nll"


def test_mucode_saves_the_best_replies_of_a_policy_that_waits():
    stages = load_recipe("mucode").stages
    verifier, relabel, imitate = (stage.build_config() for stage in stages)
    assert verifier.scorer_warmup_iters == 6 and verifier.candidates == 1
    assert (relabel.candidates, relabel.candidate_scores) == (8, "scorer")
    assert relabel.save_as == "best_candidates"
    assert relabel.scorer_loss == verifier.scorer_loss == "outcome"
    for stage, config in zip(stages[:2], (verifier, relabel), strict=True):
        assert stage.total_iterations == config.scorer_warmup_iters
    assert imitate.data_files == ["stage:relabel"]


def test_digi_q_ranks_replies_by_the_q_of_a_critic():
    stages = load_recipe("digi_q").stages
    critic, relabel, imitate = (stage.build_config() for stage in stages)
    assert critic.scorer_loss == relabel.scorer_loss == "td" and critic.scorer_twin
    assert critic.advantage_estimator == "turn_critic"
    assert (relabel.candidates, relabel.candidate_scores) == (8, "scorer")
    assert relabel.save_as == "best_candidates"
    for stage, config in zip(stages[:2], (critic, relabel), strict=True):
        assert stage.total_iterations == config.scorer_warmup_iters
    assert imitate.data_files == ["stage:relabel"]


def test_e2cl_imitates_the_expert_after_own_errors():
    stages = (stage.build_config() for stage in load_recipe("e2cl").stages)
    errors, everywhere, imitate = stages
    for config in (errors, everywhere):
        assert config.save_as == "expert_replies" and config.lr == 0
    assert errors.save_where["observation"].strip(".") == NOTHING.strip(".")
    assert not everywhere.save_where
    assert imitate.data_files == ["stage:errors", "stage:everywhere"]
    assert imitate.data_shares == [0.5, 0.5] and imitate.observation_weight > 0


def test_agent_r_imitates_corrections_and_solved_episodes():
    search, solved, imitate = (s.build_config() for s in load_recipe("agent_r").stages)
    assert (search.save_as, search.correction, search.lr) == (
        "corrections",
        "Wrong.",
        0,
    )
    assert search.fork["name"] == "mcts" and search.group_size == 8
    assert (solved.save_as, solved.save_where, solved.lr) == ("episodes", "success", 0)
    assert imitate.data_files == ["stage:search", "stage:solved"]
    assert imitate.data_shares == [0.5, 0.5]


def test_webcot_imitates_rollbacks_and_solved_episodes():
    chains, solved, imitate = (s.build_config() for s in load_recipe("webcot").stages)
    assert (chains.save_as, chains.correction, chains.lr) == ("rollbacks", "Wrong.", 0)
    assert chains.env_config["thoughts"] and chains.group_size == 8
    chains.validate()
    assert (solved.save_as, solved.save_where, solved.lr) == ("episodes", "success", 0)
    assert imitate.data_files == ["stage:chains", "stage:solved"]
    assert imitate.data_shares == [0.5, 0.5]


def test_steca_compares_calibrations_after_imitating_solved_episodes():
    stages = load_recipe("steca").stages
    explore, solved, imitate, reinforce = (s.build_config() for s in stages)
    assert [s.algo for s in stages] == ["GRPO", "GRPO", "SFT", "Pref"]
    assert (explore.save_as, explore.calibration_margin) == ("calibrations", 0.01)
    assert explore.fork["name"] == "every_turn" and explore.lr == solved.lr == 0
    explore.validate()
    assert solved.save_where == "success" and imitate.data_files == "stage:solved"
    assert reinforce.data_files == "stage:explore" and reinforce.nll_weight > 0


def test_android_gen_reads_no_outcome_and_trains_adapters():
    stages = load_recipe("android_gen").stages
    begin, collect, imitate = (s.build_config() for s in stages)
    assert [s.algo for s in stages] == ["SFT", "PromptSearch", "SFT"]
    for config in (begin, collect):
        memory = config.prompt_text
        assert (memory["top_k"], memory["learn_from"]) == (1, "rewarded")
        assert config.env_config["plan"] and config.env_config["checks"] == 1
        config.validate()
    assert collect.rewards[0] == {"name": "environment", "weight": 0}
    assert collect.assistants["judge"]["script"]["accuracy"] < 1
    assert collect.save_where == {"name": "asked", "of": "critic"}
    assert collect.assistants["critic"]["per"] == "turn"
    assert imitate.data_files == ["stage:collect"] and imitate.prompt_text is None
    assert imitate.lm_lora["rank"] > 0


def test_android_gen_cuts_trajectories_after_the_last_accepted_step():
    where = load_recipe("android_gen").stages[1].build_config().save_where
    answers = ([1.0, 0.0, 1.0, 0.0, 0.0], [0.0, 0.0], [1.0, 1.0])
    table = TurnTable([rollout(i, [0.0] * len(a)) for i, a in enumerate(answers)])
    for trajectory, values in zip(table.trajectories, answers, strict=True):
        trajectory.answers = {"critic": values}
    results = Filters(where)(table)[0]
    assert [r.masked_turns for r in results] == [{1, 3, 4}, {0, 1}, frozenset()]


def tokens_of(episode):
    turns = episode.get_extra_model_outputs("turn")
    return tuple(tuple(map(int, turn.action_ids)) for turn in turns)


@pytest.mark.slow
@pytest.mark.ray
def test_android_gen_trains_accepted_steps_alone(ray_session, tmp_path):
    small = (
        "language_model.tiny={hidden_size: 32, num_hidden_layers: 1}",
        *("generation.max_new_tokens=12", "stages.begin.sft={demonstrations: 100}"),
        "stages.collect.rollouts.episodes_per_iteration=16",
        "stages.imitate.rollouts.episodes_per_iteration=12",
    )
    begin, collect, imitate = load_recipe("android_gen", small).stages
    first = begin.build_config()
    first.resolved_model = model = prepare_language_model(first)
    config = collect.build_config()
    config.resolved_model, config.save_episodes = model, str(tmp_path / "collect")
    algo = config.build_algo()
    sampled = [algo.collect() for _ in range(2)][1]
    algo.stop()
    answers = {
        tokens_of(episode): trajectory.answers_of("critic")
        for episode, trajectory in zip(sampled, sampled.trajectories, strict=True)
    }
    config = imitate.build_config()
    config.resolved_model = model
    config.earlier_stages = {"collect": str(tmp_path / "collect")}
    algo = config.build_algo()
    trained = algo.collect()
    known = [e for e in trained if tokens_of(e) in answers]
    assert known
    for episode in known:
        refused = [i for i, v in enumerate(answers[tokens_of(episode)]) if not v]
        assert episode_data(episode).masked_turns == set(refused)
    module = algo.learner_group._learner.module["default_policy"]
    before = {n: p.detach().clone() for n, p in module.named_parameters()}
    algo.train()
    changed = {n for n, p in module.named_parameters() if (before[n] != p).any()}
    assert changed and all("lora_" in name for name in changed)
    algo.stop()


def test_toolformer_imitates_own_calls_without_reading_rewards():
    stages = load_recipe("toolformer").stages
    begin, label, imitate = (stage.build_config() for stage in stages)
    assert [stage.algo for stage in stages] == ["SFT", "GRPO", "SFT"]
    assert 0 < begin.mistake_rate < 1 and not begin.data_files
    assert (label.save_as, label.lr, label.save_where) == ("self_labels", 0, ())
    label.validate()
    assert imitate.data_files == "stage:label"
