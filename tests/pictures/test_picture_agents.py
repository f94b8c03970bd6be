"""Several agents that see different pictures: sampling, rows, updates, checks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from picture_helpers import picture
from picture_runs import MISMATCH, TINY
from side_by_side import update_side_by_side
from team_helpers import make_team_learner, wake_critic

from rllib_llm import GRPOConfig, LLMPPOConfig, MARFTConfig, SelfPlayConfig
from rllib_llm.algorithms.config.preflight import preflight
from rllib_llm.algorithms.learner.training_data import LLMTrainingData
from rllib_llm.connectors.learner.central_rows import central_columns
from rllib_llm.connectors.pipelines import row_settings
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.types import TurnResult
from rllib_llm.envs import MultiAgentAdapter, MultiAgentTextEnv, Outcome, make_env
from rllib_llm.envs.one_player import OnePlayer
from rllib_llm.envs.transcript import expert_policy, play
from rllib_llm.errors import EnvContractError
from rllib_llm.offline.prepare_model import prepare_language_model
from rllib_llm.pictures.contract import digest
from rllib_llm.pictures.features import fit
from rllib_llm.recipes import load_recipe
from rllib_llm.transcripts.collector import read_result

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]
POLICIES = {"alice_0": "alice", "bob_0": "bob"}
LOOKERS = {"ann_0": "ann", "ben_0": "ben"}


class Lookers(MultiAgentTextEnv):
    """Two agents look at pictures of their own until the game is truncated."""

    possible_agents = ["ann_0", "ben_0"]
    max_turns = 3
    has_success = False

    def start(self, rng):
        self.first = int(rng.integers(1000))

    def prompt_for(self, agent):
        number = self.first + 10 * self.turn + self.possible_agents.index(agent)
        return TurnResult("<image> What?", images=[picture(number)])

    def parse(self, agent, text):
        return text or "nothing"

    def apply(self, agent, action):
        return Outcome({agent: float(sum(map(ord, action)) % 2)})


def config_of(kind=GRPOConfig, env="half_grids-v0", policies=POLICIES, **model):
    rollouts = {"episodes_per_iteration": 8}
    if kind is GRPOConfig:
        rollouts |= {"group_size": 4}
        extra = {"drop_zero_variance_groups": False}
    else:
        extra = {}
    return (
        kind()
        .environment(env)
        .language_model(**{"model": "tiny-vlm", "tiny": TINY, **model})
        .generation(max_new_tokens=3)
        .rollouts(**rollouts)
        .training(lr=1e-2, **extra)
        .env_runners(num_envs_per_env_runner=8)
        .multi_agent(
            policies=sorted(set(policies.values())), policy_mapping_fn=policies
        )
        .debugging(seed=3)
    )


def sampled(algo, count=4):
    tasks = algo.config.build_task_source().next_groups(count)
    return algo.env_runner.sample(tasks=tasks)


def halves_of(episode):
    """Return the halves of an episode's picture by agent, from the environment."""
    task = episode_data(episode).task
    env = make_env("half_grids-v0")
    env.reset(seed=task.seed, options=task.options or None)
    return env.halves


def weights_of(algo, policy):
    module = algo.learner_group._learner.module[policy].unwrapped()
    return {n: p.detach().clone() for n, p in module.named_parameters()}


def test_each_policys_rows_hold_its_own_pictures():
    algo = config_of().build_algo()
    episodes = sampled(algo)
    learner = algo.learner_group._learner
    batch = learner._make_batch_if_necessary(
        training_data=LLMTrainingData(episodes=episodes)
    )
    algo.stop()
    expected = {"alice": set(), "bob": set()}
    for episode in episodes:
        halves = halves_of(episode)
        for agent, part in episode.agent_episodes.items():
            data = episode_data(part)
            assert list(data.pictures) == [digest(halves[agent])]
            assert [ref.digest for ref in data.images] == list(data.pictures)
            # RLlib's record holds digests in the place of pixels.
            assert part.get_infos(0)["images"] == list(data.pictures)
            expected[part.module_id].add(fit(halves[agent], 32).tobytes())
    assert all(expected.values()) and not expected["alice"] & expected["bob"]
    for policy, rows in batch.policy_batches.items():
        starts = np.asarray(rows[columns.PICTURE_STARTS].cpu())
        assert (starts >= 0).sum(1).tolist() == [1] * len(starts)
        pixels = rows[columns.PICTURES].pixels
        index = np.asarray(rows[columns.PICTURE_INDEX].cpu())[:, 0]
        assert {pixels[i].tobytes() for i in index} == expected[policy]


@pytest.mark.parametrize(
    ("kind", "policies", "model"),
    [
        (GRPOConfig, LOOKERS, {}),
        (GRPOConfig, dict.fromkeys(LOOKERS, "both"), {}),
        (GRPOConfig, LOOKERS, {"lora": {"rank": 2}, "freeze": []}),
        (LLMPPOConfig, LOOKERS, {}),
    ],
)
def test_sampler_and_learner_agree_for_every_policy(kind, policies, model):
    algo = config_of(kind, Lookers, policies, **model).build_algo()
    names = set(policies.values())
    before = {n: weights_of(algo, n) for n in names}
    results = [algo.train() for _ in range(2)]
    after = {n: weights_of(algo, n) for n in names}
    algo.stop()
    for name in names:
        assert all(r["learners"][name][MISMATCH] < 1e-5 for r in results)
        old, new = before[name], after[name]
        changed = [n for n, p in old.items() if not torch.equal(p, new[n])]
        assert any("vision_model" in n for n in changed)


@pytest.mark.parametrize(
    ("critic", "schedule"),
    [("own", "sequential"), ("shared", "joint"), ("central", "sequential")],
)
def test_teams_and_their_critics_read_the_pictures(critic, schedule):
    config = config_of(MARFTConfig, Lookers, LOOKERS, value_head_detach=False)
    config.training(
        critic=critic,
        update_schedule=schedule,
        minibatch_size=4,
        num_epochs=2,
    )
    algo = config.build_algo()
    names = ["ann", "ben", *(["critic"] if critic != "own" else [])]
    before = {n: weights_of(algo, n) for n in names}
    result = algo.train()
    after = {n: weights_of(algo, n) for n in names}
    algo.stop()
    for name in names:
        old, new = before[name], after[name]
        changed = [n for n, p in old.items() if not torch.equal(p, new[n])]
        assert any("vision_model" in n for n in changed)
    for name in ("ann", "ben"):
        assert result["learners"][name][MISMATCH] < 1e-5


def test_two_learners_of_a_team_take_the_step_of_one(monkeypatch):
    config = config_of(MARFTConfig, Lookers, LOOKERS, value_head_detach=False)
    algo = config.training(critic="central", num_epochs=1).build_algo()
    episodes, config = sampled(algo, 6), algo.config
    algo.stop()
    one, *pair = (make_team_learner(config) for _ in range(3))
    for learner in (one, *pair):
        wake_critic(learner)
    before = team_weights(one)
    one.update(training_data=LLMTrainingData(episodes=episodes), timesteps={})
    update_side_by_side(pair, episodes, monkeypatch)
    expected = team_weights(one)
    tower = [n for n in expected if "vision_model" in n]
    assert any(not torch.equal(before[n], expected[n]) for n in tower)
    for learner in pair:
        found = team_weights(learner)
        for name, weight in expected.items():
            torch.testing.assert_close(found[name], weight, atol=3e-4, rtol=0)


def team_weights(learner):
    """Return the parameters of both policies and the critic."""
    return {
        f"{policy}.{name}": parameter.detach().clone()
        for policy in ("ann", "ben", "critic")
        for name, parameter in learner.module[policy].unwrapped().named_parameters()
    }


def test_a_central_critic_sees_all_agents_pictures_in_the_order_of_play():
    config = config_of(MARFTConfig, Lookers, LOOKERS).training(critic="central")
    algo = config.build_algo()
    episodes = sampled(algo)
    settings = row_settings(algo.config.get_config_for_module("ann"))
    algo.stop()
    rows = central_columns(episodes, ["ann", "ben"], settings)
    spec = settings.pictures
    for row, episode in enumerate(episodes):
        parts = [episode.agent_episodes[a] for a in Lookers.possible_agents]
        data = [episode_data(part) for part in parts]
        turns = [
            (turn.env_t, number, turn.images)
            for number, part in enumerate(parts)
            for turn in part.get_extra_model_outputs(columns.TURN)
        ]
        turns.sort(key=lambda each: each[:2])
        shown = [(images, data[number].pictures) for _, number, images in turns]
        # The game is truncated, with a last picture that is not answered.
        shown += [(d.prompt.images, d.pictures) for d in data if d.prompt]
        expected = [
            fit(pictures[ref.digest], spec.size)
            for refs, pictures in shown
            for ref in refs
        ]
        assert len(expected) > len(turns)
        starts = rows[columns.PICTURE_STARTS][row]
        index = rows[columns.PICTURE_INDEX][row][starts >= 0]
        np.testing.assert_array_equal(
            rows[columns.PICTURES].pixels[index], np.stack(expected)
        )
        ids = rows[columns.INPUT_IDS][row]
        for start in starts[starts >= 0]:
            assert (ids[start : start + spec.count] == spec.token_id).all()


def test_a_resumed_run_continues_to_the_bit(tmp_path):
    algo = config_of(LLMPPOConfig, Lookers, LOOKERS).build_algo()
    algo.train()
    algo.save_to_path(tmp_path / "one")
    algo.train()
    expected = {n: weights_of(algo, n) for n in ("ann", "ben")}
    algo.stop()
    again = type(algo).from_checkpoint(tmp_path / "one")
    again.train()
    for name, tensors in expected.items():
        resumed = weights_of(again, name)
        assert all(torch.equal(tensors[n], resumed[n]) for n in tensors)
    again.stop()


def test_last_prompts_of_truncated_agents_have_their_pictures():
    config = config_of(LLMPPOConfig, Lookers, LOOKERS)
    algo = config.rollouts(stop_policies={"max_turns": "bootstrap"}).build_algo()
    episodes = sampled(algo)
    for episode in episodes:
        # ann acts in turns 0 and 2, ben in turn 1; the game is cut before turn 3.
        for index, part in enumerate(episode.agent_episodes.values()):
            data = episode_data(part)
            (shown,) = data.prompt.images
            first = episode_data(part).task.seed
            env = Lookers()
            env.reset(seed=first)
            last = picture(env.first + 30 + index)
            assert shown.digest == digest(last)
            np.testing.assert_array_equal(data.pictures[shown.digest], last)
    result = algo.train()
    algo.stop()
    assert all(result["learners"][n][MISMATCH] < 1e-5 for n in ("ann", "ben"))


def test_demonstrations_and_transcripts_show_each_agents_picture():
    config = config_of().sft(demonstrations=200, minibatch_size=4, lr=1e-2)
    algo = config.build_algo()
    records = read_result(algo.train())
    algo.stop()
    shown = [[i["digest"] for t in r["turns"] for i in t["images"]] for r in records]
    # An invalid word of alice's ends a game before bob's turn.
    assert {len(set(names)) for names in shown} >= {2}
    assert all(
        len(set(names)) == len(r["turns"])
        for names, r in zip(shown, records, strict=True)
    )


def test_the_preset_trains_both_policies():
    overrides = (
        "language_model.tiny={hidden_size: 32, intermediate_size: 64}",
        "env_runners.num_envs_per_env_runner=16",
        "rollouts.episodes_per_iteration=16",
        "training.minibatch_size=8",
        "training.drop_zero_variance_groups=false",
        "sft={demonstrations: 400, lr: 1e-2}",
        "evaluation.evaluation_interval=null",
    )
    algo = load_recipe("half_grids", overrides).build_config().build_algo()
    result = algo.train()
    algo.stop()
    for name in ("alice", "bob"):
        assert result["learners"][name]["num_trained_tokens"] > 0
        assert result["learners"][name][MISMATCH] < 1e-5


def test_one_player_shows_the_next_agents_picture():
    env = OnePlayer(MultiAgentAdapter(make_env("half_grids-v0")))
    transcript = play(env, 5, expert_policy)
    halves = env.adapter.unwrapped.halves
    expected = [[digest(halves[a])] for a in ("alice_0", "bob_0")]
    assert transcript.pictures == [*expected, []]


def test_a_model_of_text_is_refused_before_training():
    config = config_of(model="tiny", tiny={"hidden_size": 32})
    config.validate()
    config.resolved_model = prepare_language_model(config)
    with pytest.raises(EnvContractError, match="reads text alone"):
        preflight(config)


def test_another_number_of_placeholders_than_of_pictures_is_refused():
    class Wrong(Lookers):
        def prompt_for(self, agent):
            return TurnResult("<image> <image>", images=[picture(1)])

    with pytest.raises(EnvContractError, match="prompt_for.'ann_0'.*1 pictures"):
        Wrong().reset(seed=0)


class Duel(MultiAgentTextEnv):
    """Two agents look at pictures; the longer answer wins."""

    possible_agents = ["ann_0", "ben_0"]
    has_success = False

    def start(self, rng):
        self.first = int(rng.integers(1000))
        self.lengths = {}

    def prompt_for(self, agent):
        number = self.first + self.possible_agents.index(agent)
        return TurnResult("<image> What?", images=[picture(number)])

    def parse(self, agent, text):
        return text or "nothing"

    def apply(self, agent, action):
        self.lengths[agent] = len(action)
        if len(self.lengths) < 2:
            return None
        lead = float(np.sign(self.lengths["ann_0"] - self.lengths["ben_0"]))
        return Outcome({"ann_0": lead, "ben_0": -lead}, terminated=True)


def test_self_play_shows_pictures_to_frozen_opponents_too():
    config = (
        SelfPlayConfig()
        .environment(Duel)
        .language_model(model="tiny-vlm", tiny=TINY)
        .generation(max_new_tokens=3)
        .rollouts(episodes_per_iteration=16)
        .league(pool_size=2, snapshot_min_games=4, snapshot_max_games=12)
        .training(lr=1e-2)
        .env_runners(num_envs_per_env_runner=8)
        .debugging(seed=3)
    )
    algo = config.build_algo()
    before = weights_of(algo, "default_policy")
    results = [algo.train() for _ in range(3)]
    after = weights_of(algo, "default_policy")
    opponents = [
        part
        for episode in algo.sample_groups(8)
        for part in episode.agent_episodes.values()
        if part.module_id != "default_policy"
    ]
    algo.stop()
    assert opponents
    for part in opponents:
        (turn,) = part.get_extra_model_outputs(columns.TURN)
        assert len(turn.images) == 1
    for result in results:
        assert result["learners"]["default_policy"][MISMATCH] < 1e-5
    changed = [n for n, p in before.items() if not torch.equal(p, after[n])]
    assert any("vision_model" in n for n in changed)
