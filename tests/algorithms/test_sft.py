"""SFT: imitation of the environment's expert as an algorithm of its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from team_helpers import batches

from rllib_llm import SFTConfig
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.errors import ConfigError
from rllib_llm.offline.demonstrations import demonstrate
from rllib_llm.seeding import stable_seed

TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def sft(**training):
    return (
        SFTConfig()
        .environment("guess_number-v0", env_config={"upper": 7})
        .language_model(tiny=TINY)
        .generation(max_new_tokens=8)
        .rollouts(episodes_per_iteration=12)
        .training(**{"lr": 5e-3, "minibatch_size": 4, **training})
    )


@pytest.mark.parametrize(
    "change, message",
    [
        (
            lambda c: c.training(mistake_rate=1.5),
            r"mistake_rate=1.5 must be a number in \[0, 1\]",
        ),
        (
            lambda c: c.training(observation_weight=-0.1),
            r"observation_weight=-0.1 must be a number in \[0, 1\]",
        ),
        (
            lambda c: c.training(ref_kl_coeff=0.1),
            "ref_kl_coeff=0.1 would have no effect",
        ),
        (lambda c: c.training(policy_loss="ppo_clip"), "policy_loss=.*no effect: SFT"),
        (lambda c: c.rollouts(group_size=4), "group_size=4 would have no effect"),
        (lambda c: c.rollouts(rewards=["format"]), "rewards=.*no effect"),
        (lambda c: c.rollouts(curriculum="threshold"), "curriculum"),
    ],
)
def test_what_imitation_does_not_read_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        change(sft()).validate()


def test_one_policy_speaks_for_all_agents():
    team = SFTConfig().environment("secret_sum-v0")
    team.validate()
    for table in ({"alice": "alice", "bob": "bob"}, {"alice": "one", "bob": "one"}):
        names = sorted(set(table.values()))
        team = SFTConfig().environment("secret_sum-v0")
        team.multi_agent(policies=names, policy_mapping_fn=table)
        message = f"one policy, 'default_policy', not {', '.join(map(repr, names))}"
        with pytest.raises(ConfigError, match=message):
            team.validate()


@pytest.fixture(scope="module")
def trained(ray_session):
    """An algorithm after three iterations, with the results of each."""
    algo = sft(mistake_rate=0.5).build_algo()
    results = [algo.train() for _ in range(3)]
    yield algo, results
    algo.stop()


pytestmark = pytest.mark.ray


def test_the_likelihood_of_demonstrations_rises(trained):
    _, results = trained
    nll = [r["learners"][DEFAULT_MODULE_ID]["nll"] for r in results]
    assert nll[0] > nll[1] > nll[2] > 0
    steps = [r["env_runners"]["num_env_steps_sampled_lifetime"] for r in results]
    assert 0 < steps[0] < steps[1] < steps[2]  # the clock of schedules


def test_every_iteration_imitates_the_next_tasks(trained):
    algo, _ = trained
    before = algo._task_source.get_state()
    assert before == {"cursor": 3 * 12}
    episodes = algo.collect()
    env = algo.config.make_text_env()
    for i, episode in enumerate(episodes):
        seed = stable_seed(0, "train", before["cursor"] + i)
        expected = demonstrate(env, seed=seed, mistake_rate=0.5)
        messages = episode_data(episode).messages
        replies = [m["content"] for m in messages if m["role"] == "assistant"]
        assert replies == expected.completions
    algo._task_source.set_state(before)


def test_a_restored_run_goes_on_as_if_nothing_had_happened(trained, tmp_path):
    algo, _ = trained
    path = algo.save_to_path(tmp_path / "checkpoint")
    expected = algo.train()["learners"][DEFAULT_MODULE_ID]["nll"]
    again = type(algo).from_checkpoint(path)
    assert again.train()["learners"][DEFAULT_MODULE_ID]["nll"] == expected
    ours, theirs = (
        a.learner_group._learner.module[DEFAULT_MODULE_ID].unwrapped().get_state()
        for a in (algo, again)
    )
    again.stop()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_observations_count_with_their_weight(ray_session):
    algo = sft(observation_weight=0.25, lr=0.0, minibatch_size=12).build_algo()
    learner = algo.learner_group._learner
    data = batches(learner, algo.collect())[DEFAULT_MODULE_ID]
    data = {name: np.asarray(column) for name, column in data.items()}
    real, sampled = data[columns.ATTENTION_MASK], data[columns.TURN_IDS] >= 0
    first = np.zeros_like(real)
    first[:, 0] = True
    np.testing.assert_array_equal(data[Columns.LOSS_MASK], real & ~first)
    weights = data[columns.LOSS_WEIGHTS]
    assert (weights[sampled] == 1.0).all()
    assert (weights[real & ~sampled & ~first] == 0.25).all()
    assert not weights[~real | first].any()
    # One step without a rate: the reported loss is that of the formula.
    model = learner.module[DEFAULT_MODULE_ID].unwrapped().lm
    ids = torch.as_tensor(data[columns.INPUT_IDS])
    with torch.no_grad():
        logits = model(ids, attention_mask=torch.as_tensor(real)).logits
    nll = -torch.log_softmax(logits[:, :-1], -1).gather(2, ids[:, 1:, None])[..., 0]
    nll = nll.double().numpy()
    sampled, read = sampled[:, 1:], (real & ~sampled)[:, 1:]
    expected = (nll[sampled].sum() + 0.25 * nll[read].sum()) / sampled.sum()
    algo._task_source.set_state({"cursor": 0})
    result = algo.train()["learners"][DEFAULT_MODULE_ID]
    algo.stop()
    assert result["total_loss"] == pytest.approx(expected, rel=1e-4)
    assert result["nll"] == pytest.approx(nll[sampled].mean(), rel=1e-4)
