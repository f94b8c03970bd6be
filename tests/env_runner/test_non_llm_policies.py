"""Policies without a language model: observations, actions, records, metrics."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from non_llm_toys import MLP, Beside, Discretely, NonLLMRun, Steering
from non_llm_toys import non_llm_config as config_of
from ray.rllib.core.columns import Columns

from rllib_llm.data.episode_data import agent_episodes, policy_episodes
from rllib_llm.data.types import Task
from rllib_llm.env_runner.non_llm_policies import Encoder, NonLLMActor, encoded_space
from rllib_llm.errors import ConfigError, EnvContractError
from rllib_llm.transcripts.collector import transcript_record


def runners_of(episodes):
    return [
        part
        for episode in episodes
        for part in policy_episodes(episode)
        if part.module_id == "run"
    ]


@pytest.fixture(scope="module")
def run():
    return NonLLMRun(config_of())


def test_episodes_hold_the_columns_of_rllibs_learner(run):
    episodes = run.sample(4)
    module = run.runner.module["run"]
    for part in runners_of(episodes):
        assert len(part) == 3 and part.is_terminated
        assert set(part.extra_model_outputs) == {
            "turn",
            Columns.ACTION_LOGP,
            Columns.ACTION_DIST_INPUTS,
        }
        for t in range(len(part)):
            obs = torch.as_tensor(part.get_observations(t))[None]
            logits = module.forward_exploration({"obs": obs})["action_dist_inputs"][0]
            recorded = part.get_extra_model_outputs(Columns.ACTION_DIST_INPUTS, t)
            np.testing.assert_allclose(recorded, logits.detach().numpy(), atol=1e-6)
            logp = logits.log_softmax(-1)[int(part.get_actions(t))]
            recorded_logp = part.get_extra_model_outputs(Columns.ACTION_LOGP, t)
            assert recorded_logp == pytest.approx(float(logp), abs=1e-6)


def test_rewards_are_those_of_the_actions(run):
    for part in runners_of(run.sample(4)):
        numbers = np.stack(part.get_observations()[:-1])
        right = np.argmax(numbers, axis=1) == np.array(part.get_actions())
        assert list(part.get_rewards()) == list(right.astype(float))


def test_waiting_agents_share_a_forward_pass(monkeypatch):
    run = NonLLMRun(config_of(Beside, slots=1))
    module, sizes = run.runner.module["run"], []
    forward = module.forward_exploration

    def count(batch):
        sizes.append(len(batch[Columns.OBS]))
        return forward(batch)

    monkeypatch.setattr(module, "forward_exploration", count)
    run.sample(1)
    assert sizes == [2, 2, 1, 1]  # the other one has left


def actions_of(config, explore=True):
    run = NonLLMRun(config)
    tasks = [Task(i, 0, i) for i in range(6)]
    episodes = run.runner.sample(tasks=tasks, explore=explore)
    return [[int(a) for a in part.get_actions()] for part in runners_of(episodes)]


def test_actions_do_not_depend_on_concurrent_episodes():
    alone = actions_of(config_of(slots=1))
    assert alone == actions_of(config_of(slots=6))
    assert len({tuple(a) for a in alone}) > 1


def test_explore_false_takes_the_mode():
    run = NonLLMRun(config_of())
    for part in runners_of(run.sample(4, explore=False)):
        logits = np.stack(part.get_extra_model_outputs(Columns.ACTION_DIST_INPUTS))
        assert list(part.get_actions()) == list(logits.argmax(axis=1))


def test_discrete_observations_are_one_hot_and_actions_may_be_several():
    run = NonLLMRun(config_of(Discretely))
    (part,) = runners_of(run.sample(1))
    np.testing.assert_array_equal(np.stack(part.get_observations()[:3]), np.eye(3))
    actions = np.stack(part.get_actions())
    assert actions.shape == (3, 2) and (actions < [2, 3]).all()
    assert isinstance(encoded_space(MultiDiscrete([2, 2])), Box)
    code = Encoder(MultiDiscrete([2, 3]))(np.array([1, 0]), "x")
    np.testing.assert_array_equal(code, [0, 1, 1, 0, 0])


@pytest.mark.parametrize("squashed", [True, False])
def test_continuous_actions_stay_within_the_bounds_of_the_space(squashed, monkeypatch):
    got = []
    apply = Steering.apply

    def keep(self, agent, action):
        if agent == "runner_0":
            got.append(action)
        return apply(self, agent, action)

    monkeypatch.setattr(Steering, "apply", keep)
    config = config_of(Steering, slots=1)
    config.environment(normalize_actions=squashed, clip_actions=True)
    run = NonLLMRun(config)
    (part,) = runners_of(run.sample(1))
    recorded = np.stack(part.get_actions())
    wanted = np.clip(recorded + 3, 2, 4) if squashed else np.clip(recorded, 2, 4)
    np.testing.assert_allclose(np.stack(got), wanted, atol=1e-6)


def test_a_recurrent_module_is_refused():
    class Recurrent:
        def is_stateful(self):
            return True

    with pytest.raises(ConfigError, match="'run' has a recurrent state"):
        NonLLMActor(Recurrent(), "run", Discrete(2))


def by_seed(agent_id, episode, **kwargs):
    """Map the runner to the MLP in the first game only."""
    from rllib_llm.data.episode_data import episode_data

    is_first = episode_data(episode).task.seed == FIRST_SEED
    return "run" if agent_id == "runner_0" and is_first else "talk"


FIRST_SEED = config_of().build_task_source().next_groups(1)[0].seed


def test_numeric_observations_of_a_language_model_are_refused():
    run = NonLLMRun(config_of(mapping=by_seed))
    with pytest.raises(EnvContractError, match=r"'runner_0'.*'talk' reads text"):
        run.runner.sample(tasks=[Task(0, 0, FIRST_SEED + 1)])


def test_metrics_include_the_mlp_agent_without_its_turns(run):
    run.runner.get_metrics()
    episodes = run.sample(4)
    metrics = run.runner.get_metrics()
    returns = [part.get_return() for part in runners_of(episodes)]
    mean = metrics["agent_episode_return_mean"]["runner_0"].peek()
    assert mean == pytest.approx(np.mean(returns))
    assert metrics["module_episode_return_mean"]["run"].peek() == pytest.approx(mean)
    assert metrics["num_module_steps_sampled"]["run"].peek() == 12
    assert metrics["turns_mean"].peek() == 3  # the LLM's turns alone
    assert [p.agent_id for p in agent_episodes(episodes[0])] == ["speaker_0"]
    record = transcript_record(
        episodes[0], split="train", selected_as="best", max_chars=99, max_turns=9
    )
    assert record["agents"] == ["runner_0", "speaker_0"]
    assert [t["policy"] for t in record["turns"]] == ["talk", "run"] * 3
    assert record["turns"][1]["completion"] in ("0", "1")


def test_numeric_observations_are_not_rendered_as_text(run):
    (part,) = runners_of(run.sample(1))
    assert part.custom_data["llm"].messages == []


def test_an_mlp_may_act_for_several_agents():
    run = NonLLMRun(config_of(Beside, runner=MLP))
    (episode,) = run.sample(1)
    assert [p.agent_id for p in runners_of([episode])] == ["runner_0", "runner_1"]
