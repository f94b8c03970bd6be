"""Memories of single episodes: what later turns read, and what is restored."""

from __future__ import annotations

from team_helpers import Pair, Run, single_config, team_config

from rllib_llm import GRPOConfig
from rllib_llm.algorithms.driver.rewards_filters_curriculum import DriverComponents
from rllib_llm.data.episode_data import agent_episodes, episode_data
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.data.types import TurnResult
from rllib_llm.envs.text_env import TextEnv

MEMORY = {"name": "memory", "scope": "episode", "max_chars": 60}


class Rooms(TextEnv):
    """Four turns; the text's bytes decide in which of two rooms the next one is."""

    max_turns = 4

    def start(self, rng):
        return f"Room {'ab'[int(rng.integers(2))]}"

    def parse(self, completion):
        return completion or "-"

    def reply(self, action):
        last = self.turn == self.max_turns
        room = f"Room {'ab'[sum(map(ord, action)) % 2]}"
        return TurnResult(room, reward=float(last), terminated=last, success=last)


def config(env, prompt_text):
    rollouts = {"episodes_per_iteration": 8, "group_size": 2}
    rollouts["prompt_text"] = prompt_text
    if env is Rooms:
        return single_config(GRPOConfig, env=env, rollouts=rollouts, slots=2)
    return team_config(env, GRPOConfig, policies=None, rollouts=rollouts, slots=2)


def sampled(run, components, groups=4):
    tasks = components.assign(run.source.next_groups(groups), 0)
    return run.runner.sample(tasks=tasks)


def prompts_of(run, episode):
    """Return the observations, the replies and the prompt of each turn."""
    tokenizer = run.config.chat_renderer().tokenizer
    turns = episode.get_extra_model_outputs("turn")
    return (
        list(map(str, episode.get_observations()))[: len(turns)],
        list(map(str, episode.get_actions())),
        [tokenizer.decode(turn.prompt_ids) for turn in turns],
    )


def one_line(text):
    return " ".join(text.split())[:60].rstrip()


def test_later_turns_read_what_earlier_ones_wrote_about_such_a_place():
    run = Run(config(Rooms, {**MEMORY, "least_similarity": 0.9}), learner=False)
    components = DriverComponents(run.config)
    read, texts = 0, set()
    episodes = sampled(run, components, groups=12)
    for episode in episodes:
        observations, replies, prompts = prompts_of(run, episode)
        assert len(prompts) == 4 and "Notes:" not in prompts[0]
        for turn in range(1, len(prompts)):
            same = [i for i in range(turn) if observations[i] == observations[turn]]
            # The newest text of this room: it replaced the others.
            newest = [one_line(f"{observations[i]} {replies[i]}") for i in same[-1:]]
            notes = "".join(f"Notes:\n- {text}\n\n" for text in newest)
            assert f"{notes}{observations[turn]}" in prompts[turn]
            assert ("Notes:" in prompts[turn]) == bool(newest)
            read += len(newest)
            texts.update(newest)
    assert read > 20 and len(texts) > 10
    table = TurnTable(SampledEpisodes(episodes).trajectories)
    numbers = components.prompt_text_of(None).observe(table, [])
    readers = [e for e in episodes if episode_data(e).added_texts]
    assert numbers["reading_frac"] == len(readers) / len(episodes) > 0
    # Evaluation has such memories, too.
    source = components.shared_texts()[None]
    later = source.texts_later(["Room a", "Room b", "Room a"], ["left", "right"])
    assert [added.text for added in later] == ["Room a left"]


def test_agents_of_a_team_read_their_own_turns():
    spec = {**MEMORY, "similar": None, "top_k": 9, "agents": ["ann_0"]}
    run = Run(config(Pair, spec), learner=False)
    for episode in sampled(run, DriverComponents(run.config)):
        for part in agent_episodes(episode):
            observations, replies, prompts = prompts_of(run, part)
            assert len(prompts) == 2
            written = one_line(f"{observations[0]} {replies[0]}")
            note = f"Notes:\n- {written}\n\n{observations[1]}"
            assert (note in prompts[1]) == (part.agent_id == "ann_0")
            assert ("Notes:" in prompts[1]) == (part.agent_id == "ann_0")


def test_a_restored_run_samples_the_same():
    run = Run(config(Rooms, MEMORY), learner=False)
    components = DriverComponents(run.config)
    table = TurnTable(SampledEpisodes(sampled(run, components)).trajectories)
    components.prompt_text_of(None).observe(table, [])
    restored = Run(config(Rooms, MEMORY), learner=False)
    restored.source.set_state(run.source.get_state())
    again = DriverComponents(restored.config)
    again.set_state(components.get_state())
    assert again.get_state() == components.get_state()
    texts = []
    for of, by in ((run, components), (restored, again)):
        data = [episode_data(episode) for episode in sampled(of, by)]
        data.sort(key=lambda d: (d.task.group_id, d.task.rollout))
        texts.append([(d.task.seed, d.ids, d.added_texts) for d in data])
    assert texts[0] == texts[1] and any(added for _, _, added in texts[0])
