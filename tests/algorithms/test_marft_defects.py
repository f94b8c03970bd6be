"""Absence of nine groups of known defects of multi-agent fine-tuning.

MARFT (arXiv:2504.16129) and its three public implementations were read for them; each
test fails on code that does what its name says.
"""

import numpy as np
import pytest
import torch
from ray.rllib.core.columns import Columns
from team_helpers import (
    LORA,
    Pair,
    Run,
    assert_bit_equal,
    batches,
    team_config,
    tiny_model,
    turns_of,
    update,
    wake_critic,
    worth,
)

from rllib_llm.data import columns
from rllib_llm.data.episode_data import agent_episodes, episode_data
from rllib_llm.data.types import StopReason
from rllib_llm.env_runner.task_groups import TaskSource
from rllib_llm.envs import Outcome
from rllib_llm.errors import ConfigError


class AtTheEnd(Pair):
    """Pays everybody 1 after the last of many turns."""

    def apply(self, agent, action):
        self.texts.append(action)
        over = len(self.texts) == 2 * self.rounds
        pay = dict.fromkeys(self.possible_agents, 1.0) if over else {}
        return Outcome(pay, terminated=over)


def marft(env=Pair, **sections):
    return Run(team_config(env, **sections))


# 1. Discounts inside a message.


def test_defect_1_the_reward_does_not_fade_over_the_tokens_of_a_message():
    training = {
        "level": "token",
        "gamma": 0.9,
        "lambda_": 1.0,
        "whiten_advantages": False,
    }
    run = marft(AtTheEnd, training=training, generation={"max_new_tokens": 60})
    data = batches(run.learner, run.sample(1))
    for index, module_id in enumerate("ab"):
        mask = data[module_id][Columns.LOSS_MASK][0]
        steps = data[module_id][columns.TURN_STEPS][0]
        assert int(mask.sum()) > 30
        for step in (index, index + 2):
            found = data[module_id][Columns.ADVANTAGES][0][mask & (steps == step)]
            # The critic still says 0: what remains is gamma once per message.
            wanted = torch.full_like(found, 0.9 ** (3 - step))
            torch.testing.assert_close(found, wanted)


# 2. Behaviour policy and recorded policy.


def test_defect_2_recorded_log_probabilities_are_those_of_the_sampling_distribution():
    run = marft(generation={"temperature": 0.5})
    episodes = run.sample(3)
    for module_id, agent in (("a", "ann_0"), ("b", "ben_0")):
        lm = run.learner.module[module_id].unwrapped().lm
        for episode in episodes:
            ids = []
            for who, turn in turns_of(episode):
                if who != agent:
                    continue
                ids += turn.prompt_ids.tolist()
                start = len(ids)
                ids += turn.action_ids.tolist()
                with torch.no_grad():
                    logits = lm(input_ids=torch.tensor([ids])).logits[0]
                cold = (logits / 0.5).log_softmax(-1)
                wanted = [float(cold[p - 1, ids[p]]) for p in range(start, len(ids))]
                assert turn.action_logps.tolist() == pytest.approx(wanted, abs=1e-4)
    found = run.update(episodes)
    assert found["a"]["train_inference_mismatch_max"].peek() < 1e-4
    with pytest.raises(ConfigError, match="top_k=50: training needs"):
        team_config(Pair, generation={"top_k": 50}).validate()


# 3. Statistics over all agents together.


class Unequal(Pair):
    """Ben's rewards are three orders of magnitude larger."""

    def apply(self, agent, action):
        outcome = super().apply(agent, action)
        outcome.rewards = {agent: worth(action) * (1e3 if agent == "ben_0" else 1.0)}
        return outcome


def test_defect_3_one_agents_scale_does_not_silence_the_other():
    off = {"gamma": 0.0, "lambda_": 0.0}  # each message is judged by its own reward
    by_agent = marft(Unequal, training={**off, "whiten_by": "agent"})
    together = marft(Unequal, training={**off, "whiten_by": "batch"})
    episodes = by_agent.sample(6)

    def spread(run, module_id):
        data = batches(run.learner, episodes)[module_id]
        heads = data[columns.MESSAGE_STARTS] > 0
        return float(data[Columns.ADVANTAGES][heads].std())

    assert spread(by_agent, "a") == pytest.approx(1.0, abs=1e-3)
    assert spread(by_agent, "b") == pytest.approx(1.0, abs=1e-3)
    assert spread(together, "a") < 0.01
    # Advantages of zero are messages like others: nothing is dropped before the mean.
    plain = batches(by_agent.learner, episodes)["a"]
    heads = plain[columns.MESSAGE_STARTS] > 0
    assert int(heads.sum()) == 12
    assert abs(float(plain[Columns.ADVANTAGES][heads].mean())) < 1e-5


# 4. Stopping by a hard-coded divergence, after the critic has moved.


def test_defect_4_a_large_divergence_stops_nothing_silently():
    run = marft(training={"lr": 0.3, "num_epochs": 4})
    wake_critic(run.learner)
    steps = []
    original = run.learner.apply_gradients
    run.learner.apply_gradients = lambda grads: steps.append(1) or original(grads)
    before = run.weights("a")
    found = run.update(run.sample(2), num_epochs=4)
    # Far beyond 1e-3, and still every epoch's step is taken by critic and policies.
    assert found["a"]["approx_kl_k3"].peek() > 1e-2
    assert len(steps) == 4
    after = run.weights("a")
    assert all(not torch.equal(before[n], after[n]) for n in before)


# 5. Half precision, and no reference.


def test_defect_5_small_steps_add_up_and_a_reference_is_there():
    language_model = {"model": tiny_model(), "lora": LORA, "dtype": "bfloat16"}
    training = {
        "lr": 1e-6,
        "ref_kl_coeff": 0.1,
        "ref_kl_in": "loss",
        "ref_kl_estimator": "k3",
    }
    run = marft(language_model=language_model, training=training)
    wake_critic(run.learner)
    ((_, optimizer),) = run.learner.get_optimizers_for_module("a")
    (group,) = optimizer.param_groups
    start = [p.detach().float().clone() for p in group["params"]]
    for _ in range(3):
        found = run.update(run.sample(2))
    # Adam's moments, and what it moves, are in full precision: nothing is rounded off.
    for before, parameter in zip(start, group["params"], strict=True):
        state = optimizer.state[parameter]
        assert state["exp_avg_sq"].dtype is torch.float32
        after = state.get("master", parameter)
        assert after.dtype is torch.float32
        step = float((after - before).abs().max())
        if before.abs().max() == 0:  # those that start at zero have a gradient at once
            assert 1.5e-6 < step < 3.5e-6
    assert found["a"]["ref_kl"].peek() >= 0


# 6. Contexts that are cut differently in sampling and training.


def test_defect_6_training_reads_exactly_what_was_read_in_sampling():
    generation = {"max_new_tokens": 6, "max_context_tokens": 170}
    run = marft(env_config={"rounds": 9}, generation=generation)
    episodes = run.sample(4)
    data = batches(run.learner, episodes)
    reasons = {episode_data(e).stop_reason for e in episodes}
    assert StopReason.CONTEXT_OVERFLOW in reasons
    for module_id, agent in (("a", "ann_0"), ("b", "ben_0")):
        for row, episode in enumerate(episodes):
            part = episode.agent_episodes[agent]
            length = int(data[module_id][columns.ATTENTION_MASK][row].sum())
            ids = data[module_id][columns.INPUT_IDS][row, :length].tolist()
            recorded = [
                (t.prompt_ids, t.action_ids) for w, t in turns_of(episode) if w == agent
            ]
            whole = [int(i) for pair in recorded for ids_ in pair for i in ids_]
            # The newest messages are there; only an unanswered prompt may follow.
            assert ids[: len(whole)] == whole and length <= 170
            assert len(part) == len(recorded)
    assert (
        update(run.learner, episodes)["a"]["train_inference_mismatch_max"].peek() < 1e-4
    )


# 7. Evaluating another model than the trained one; settings without effect.


def test_defect_7_evaluation_plays_the_trained_adapters():
    language_model = {"model": tiny_model(), "lora": LORA}
    run = marft(language_model=language_model, training={"lr": 0.3})
    tasks = TaskSource(seed=0, split="test").fixed(3)

    def sampled_by(runner):
        episodes = runner.sample(tasks=tasks, explore=False)
        return [[t.action_ids.tolist() for _, t in turns_of(e)] for e in episodes]

    untrained = sampled_by(run.runner)
    for _ in range(2):
        run.update(run.sample(2))
    trained = sampled_by(run.runner)
    assert trained != untrained
    fresh = Run(run.config, learner=False)
    assert sampled_by(fresh.runner) == untrained
    fresh.runner.set_state({"rl_module": run.learner.module.get_state()})
    assert sampled_by(fresh.runner) == trained


def test_defect_7_unknown_settings_are_refused():
    with pytest.raises(ConfigError, match=r"language_model\.lora_path"):
        team_config(Pair, language_model={"lora_path": "somewhere"})
    with pytest.raises(ConfigError, match=r"training\.n_agents"):
        team_config(Pair, training={"n_agents": 2})


# 8. The end-of-turn token, and empty messages.


def test_defect_8_the_end_of_a_turn_is_trained_and_an_empty_turn_is_one_token():
    run = marft()
    renderer = run.config.chat_renderers()["a"]
    (end,) = renderer.stop_token_ids
    for height in (30.0, -30.0):  # one of them makes it the most likely token
        with torch.no_grad():
            for module_id in "ab":
                lm = run.learner.module[module_id].unwrapped().lm
                lm.get_input_embeddings().weight[end] = height
        run.runner.set_weights_version(1 + run.runner._weights_seq_no)
        episodes = run.sample(4)
        recorded = [t for e in episodes for _, t in turns_of(e)]
        empty = [t for t in recorded if t.action_ids.tolist() == [end]]
        if empty:
            break
    assert empty
    data = batches(run.learner, episodes)
    for module_id in "ab":
        mask = data[module_id][Columns.LOSS_MASK]
        ids = data[module_id][columns.INPUT_IDS]
        assert int((ids[mask] == end).sum()) == sum(
            end in t.action_ids.tolist() for t in recorded if t.module_id == module_id
        )
    result = run.update(episodes)
    assert np.isfinite(result["a"]["grad_norm"].peek())


# 9. Checkpoints whose critic is not found.


def test_defect_9_a_restored_learner_has_critic_and_adapters_and_goes_on_alike():
    language_model = {"model": tiny_model(), "lora": LORA}
    config = team_config(
        Pair,
        language_model=language_model,
        training={"update_schedule": "alternate", "alternate_every": 1},
    )
    run, other = Run(config), Run(config)
    wake_critic(run.learner)
    first, second = run.sample(2), None
    update(run.learner, first)
    other.learner.set_state(run.learner.get_state())
    for module_id in ("a", "b", "critic"):
        assert_bit_equal(run.weights(module_id), {**other.weights(module_id)})
    run.runner.set_weights_version(1)
    second = run.sample(2)
    for learner in (run.learner, other.learner):
        update(learner, second)
    for module_id in ("a", "b", "critic"):
        assert_bit_equal(run.weights(module_id), other.weights(module_id))
    parts = [p for e in second for p in agent_episodes(e)]
    assert len(parts) == 4
