"""Runs with texts before prompts: what agents read, what changes, what is restored."""

from __future__ import annotations

import numpy as np
import pytest
from team_helpers import PairTogether, single_config, team_config

from rllib_llm import GRPOConfig, PromptSearchConfig
from rllib_llm.data.episode_data import agent_episodes, episode_data
from rllib_llm.data.types import TurnResult
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.errors import ConfigError

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]
MEMORY = {"name": "memory", "text": "{reply}", "learn_from": "all", "max_chars": 8}


class Signs(TextEnv):
    """One turn about one of three signs; the text's bytes decide the reward."""

    max_turns = 1

    def start(self, rng):
        return f"Sign {'abc'[int(rng.integers(3))]}"

    def parse(self, completion):
        return completion or "-"

    def reply(self, action):
        value = sum(map(ord, action)) % 5 / 4
        return TurnResult("Over.", reward=value, terminated=True, success=value == 1)


def config(prompt_text=MEMORY, config_class=PromptSearchConfig, env=Signs, **sections):
    rollouts = {
        "episodes_per_iteration": 8,
        "group_size": 2,
        "prompt_text": prompt_text,
        **sections.pop("rollouts", {}),
    }
    if config_class is PromptSearchConfig:
        # The helper's learning rate would be refused.
        training = {"lr": PromptSearchConfig().lr, **sections.pop("training", {})}
        sections["training"] = training
    return single_config(config_class, env=env, rollouts=rollouts, slots=2, **sections)


def weights_of(algo):
    module = algo.learner_group._learner.module["default_policy"]
    return {n: p.detach().clone() for n, p in module.named_parameters()}


def bank_of(algo):
    return algo._driver_components.prompt_text_of(None).get_state()


def test_weights_stay_and_later_episodes_read_what_earlier_ones_wrote():
    algo = config().build_algo()
    before = weights_of(algo)
    first = algo.collect()
    assert not any(episode_data(e).added_texts for e in first)
    written = {e["text"] for e in bank_of(algo)["entries"]}
    second = algo.collect()
    read = [added for e in second for added in episode_data(e).added_texts]
    assert read and {added.text for added in read} <= written
    renderer = algo.config.chat_renderer()
    for episode in second:
        data = episode_data(episode)
        assert data.task.prompt_text is None and data.text_source is None
        prompt = renderer.tokenizer.decode(data.ids)
        lines = "".join(f"- {added.text}\n" for added in data.added_texts)
        observation = str(episode.get_observations(0))
        assert f"Notes:\n{lines}\n{observation}" in prompt
    result = algo.train()
    assert result["num_updates_skipped"] == 1 and "learners" not in result
    assert result["prompt_text"]["num_texts"] == len(bank_of(algo)["entries"])
    assert all((before[n] == p).all() for n, p in weights_of(algo).items())
    algo.stop()


def test_texts_are_prompt_tokens_which_are_not_trained():
    algo = config(config_class=GRPOConfig).build_algo()
    algo.collect()
    for episode in algo.collect():
        turn = episode.get_extra_model_outputs("turn")[0]
        assert len(turn.prompt_ids) > len("Notes:")
        assert episode_data(episode).num_sampled == len(turn.action_ids)
    algo.stop()


@pytest.mark.slow
def test_the_bank_is_the_same_whatever_the_number_of_env_runners():
    banks = []
    for runners in (0, 1, 2):
        of = config(env="ground_rules-v0").env_runners(num_env_runners=runners)
        algo = of.build_algo()
        for _ in range(2):
            algo.train()
        banks.append(bank_of(algo))
        algo.stop()
    assert banks[0]["entries"]
    assert banks[0] == banks[1] == banks[2]


def test_a_restored_run_goes_on_with_the_same_texts(tmp_path):
    algo = config().build_algo()
    algo.train()
    path = algo.save_to_path(tmp_path / "checkpoint")
    restored = type(algo).from_checkpoint(path)
    assert bank_of(restored) == bank_of(algo)
    for _ in range(2):
        of_one, of_other = restored.train(), algo.train()
        assert of_one["prompt_text"] == of_other["prompt_text"]
        assert bank_of(restored) == bank_of(algo)
    algo.stop()
    restored.stop()


def test_evaluation_reads_the_bank():
    of = config().evaluation(evaluation_interval=1, evaluation_duration=6)
    algo = of.evaluation(evaluation_before_training=False).build_algo()
    algo.collect()
    algo.evaluate()
    sources = algo.eval_env_runner.text_sources
    assert [e.text for e in sources[None].entries] == [
        e["text"] for e in bank_of(algo)["entries"]
    ]
    episodes = algo.eval_env_runner.sample(num_episodes=6)
    assert any(episode_data(e).added_texts for e in episodes)
    algo.stop()


def test_an_assistant_writes_texts_and_is_counted():
    writer = {"script": lambda q: f"Note: {q.trajectories[0].completions[-1][-3:]}"}
    writer["parse"] = {"text": "Note: (.+)"}
    spec = {"name": "memory", "of": "writer", "learn_from": "all"}
    algo = config(spec, rollouts={"assistants": {"writer": writer}}).build_algo()
    algo.collect()
    assert bank_of(algo)["entries"]
    answers = algo.metrics.reduce()["assistants"]["writer"]
    assert float(answers["num_answers"]) == 8
    algo.stop()


def test_each_agent_reads_texts_of_its_own_first_message():
    spec = {**MEMORY, "agents": ["ann_0"]}
    of = team_config(
        PairTogether,
        GRPOConfig,
        policies=None,
        slots=2,
        rollouts={"episodes_per_iteration": 4, "group_size": 2, "prompt_text": spec},
    )
    algo = of.build_algo()
    algo.collect()
    read = {}
    for episode in algo.collect():
        for part in agent_episodes(episode):
            read.setdefault(part.agent_id, []).append(episode_data(part).added_texts)
    assert all(read["ann_0"]) and not any(read["ben_0"])
    algo.stop()


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"prompt_text": None}, "changes nothing"),
        ({"training": {"lr": 1e-2}}, "updates no weights"),
        ({"prompt_text": {**MEMORY, "agents": ["ann"]}}, "one agent"),
        ({"prompt_text": {"name": "memory", "of": "writer"}}, "not in"),
        (
            {"rollouts": {"assistants": {"w": {"script": "outcome", "parse": {}}}}},
            "parse",
        ),
        (
            {
                "rollouts": {
                    "assistants": {
                        "w": {"script": "outcome", "parse": {"text": "(.+)"}}
                    }
                }
            },
            "nothing reads",
        ),
    ],
)
def test_what_has_no_effect_is_refused(sections, message):
    with pytest.raises(ConfigError, match=message):
        config(**sections).validate()


@pytest.mark.sandbox
def test_functions_need_an_environment_that_runs_them():
    writer = {"script": {"name": "function_pool", "candidates": []}}
    writer["parse"] = {"text": "(.+)"}
    spec = {"name": "functions", "of": "writer"}
    of = config(spec, rollouts={"assistants": {"writer": writer}})
    with pytest.raises(ConfigError, match="no option 'functions'"):
        of.build_algo()


def test_forks_and_sampling_ahead_are_refused():
    of = config(config_class=GRPOConfig, rollouts={"fork": "every_turn"})
    with pytest.raises(ConfigError, match="prompt_text"):
        of.validate()
    of = config(config_class=GRPOConfig).env_runners(sample_ahead=1, num_env_runners=1)
    with pytest.raises(ConfigError, match="prompt_text"):
        of.validate()


def test_equal_seeds_give_equal_episodes():
    runs = []
    for _ in range(2):
        algo = config().build_algo()
        algo.collect()
        runs.append([episode_data(e).ids for e in algo.collect()])
        algo.stop()
    assert all(np.array_equal(a, b) for a, b in zip(*runs, strict=True))
