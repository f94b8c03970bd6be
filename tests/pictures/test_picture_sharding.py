"""Learners that shard a vision-language model: steps as of one Learner."""

from __future__ import annotations

import numpy as np
import pytest
import sharded
import torch
from family_folders import WRITERS
from picture_helpers import picture
from picture_runs import TINY, ThreeShots
from process_group import ProcessGroup

from rllib_llm import GRPOConfig, LLMPPOConfig, MARFTConfig
from rllib_llm.algorithms.driver.memory_plan import plan_memory
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.types import TurnResult

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]

VLM = {"model": "tiny-vlm", "tiny": TINY}
ADAPTERS = {"rank": 4, "parts": ["text", "vision", "projector"]}


class SomeShots(ThreeShots):
    """Shows pictures in every other task."""

    def start(self, rng):
        first = super().start(rng)
        self.shows = bool(self.seed_of_pictures % 2)
        return first if self.shows else TurnResult("Which?")

    def reply(self, action):
        if not self.shows:
            is_last = self.turn == self.max_turns
            return TurnResult("Which?", terminated=is_last)
        return super().reply(action)

    def _shot(self, number):
        return picture(self.seed_of_pictures + number, 20 + 6 * number, 32)


@pytest.fixture(scope="module")
def pair():
    group = ProcessGroup(2)
    yield group
    group.close()


def config_of(kind=GRPOConfig, model=None, **training):
    config = kind().environment(SomeShots).language_model(**{**VLM, **(model or {})})
    config.generation(max_new_tokens=5)
    config.env_runners(num_envs_per_env_runner=8)
    return config.training(lr=1e-3, micro_batch_tokens=96, **training).debugging(seed=3)


@pytest.fixture(scope="module")
def sample():
    """Return a function that samples episodes with a config, and resolves it."""
    played = {}

    def sampled(config):
        key = config.lm_model
        if key not in played:
            algo = config.copy(copy_frozen=False).build_algo()
            tasks = algo.config.build_task_source().next_groups(12)
            episodes = algo.env_runner.sample(tasks=tasks)
            for index, episode in enumerate(episodes):
                episode_data(episode).advantage = float(np.cos(index))
            played[key] = algo.config.resolved_model, episodes
            algo.stop()
        config.validate()
        config.resolved_model, episodes = played[key]
        shown = [e for e in episodes if episode_data(e).pictures]
        plain = [e for e in episodes if e not in shown]
        assert len(shown) > 2
        assert len(plain) > 2
        return shown, plain

    return sampled


def two_steps(config, first, second):
    """Return the gradients of the second step and the parameters after it."""
    learner = sharded.make(config)
    sharded.update(learner, first)
    taken = sharded.keep_gradients(learner)
    sharded.update(learner, second)
    return taken, sharded.parameters(learner), sharded.held(learner)[0]


def compare(pair, config, first, second, **kwargs):
    """Compare two steps with those of one Learner; return its gradients."""
    grads, weights, size = two_steps(config, first, second)
    parts = sharded.sharded_config(config, **kwargs)
    for found, after, held in pair(two_steps, parts, first, second):
        assert found.keys() == grads.keys()
        for name, gradient in grads.items():
            assert (found[name] - gradient).abs().max() < 1e-6, name
        for name, weight in weights.items():
            assert (after[name] - weight).abs().max() < 1e-5, name
        assert held < 0.6 * size or config.lm_lora
    return grads


def towers(grads):
    """Return the largest gradient of each model's vision parameters."""
    names = ("vision", "visual", "connector", "projector")
    return [g.abs().max() for n, g in grads.items() if any(x in n for x in names)]


CASES = {
    "grpo": (GRPOConfig, {}, {}),
    "own critic": (LLMPPOConfig, {"value_model": "own"}, {}),
    "shared critic": (LLMPPOConfig, {"value_head_detach": False}, {}),
    "reference": (GRPOConfig, {}, {"ref_kl_coeff": 0.5}),
    "adapters": (GRPOConfig, {"lora": ADAPTERS}, {"ref_kl_coeff": 0.5}),
    "frozen tower": (GRPOConfig, {"freeze": ["vision"]}, {}),
    "packed": (LLMPPOConfig, {"value_model": "own"}, {"packing": True}),
    "checkpointing": (GRPOConfig, {"gradient_checkpointing": True}, {}),
}


IN_FAST_LANE = ("own critic", "adapters")


@pytest.mark.parametrize(
    "case",
    [
        case if case in IN_FAST_LANE else pytest.param(case, marks=pytest.mark.slow)
        for case in CASES
    ],
)
def test_steps_are_those_of_one_learner(pair, sample, case):
    kind, model, training = CASES[case]
    config = config_of(kind, model, **training)
    shown, plain = sample(config)
    # Rows without pictures on some Learners, in some micro-batches, or on all.
    together = [*shown[:3], *plain[:2]]
    grads = compare(pair, config, together, [shown[0], plain[0]])
    assert max(towers(grads)) > 1e-6
    without = compare(pair, config, together, plain[:3])
    assert without
    assert not towers(without)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kwargs", [{"reshard_after_forward": False}, {"offload": True}], ids=str
)
def test_places_of_parameters_do_not_change_the_step(pair, sample, kwargs):
    config = config_of(ref_kl_coeff=0.5)
    shown, plain = sample(config)
    compare(pair, config, shown[:3], [shown[0], plain[0]], **kwargs)


@pytest.mark.slow
def test_a_lower_precision_rounds_passes_alone(pair, sample):
    config = config_of()
    shown, plain = sample(config)
    together = [shown[0], plain[0]]
    grads, *_ = sharded.step(config, together)
    lower = sharded.sharded_config(config, param_dtype="bfloat16")
    for found, after, _ in pair(sharded.step, lower, together):
        assert {t.dtype for t in (*found.values(), *after.values())} == {torch.float32}
        rounded, exact = (
            torch.cat([tensors[name].ravel() for name in grads])
            for tensors in (found, grads)
        )
        assert (rounded - exact).norm() > 1e-3 * exact.norm()
        assert torch.cosine_similarity(rounded, exact, dim=0) > 0.98


@pytest.mark.slow
@pytest.mark.parametrize("family", WRITERS)
def test_every_family(pair, sample, family, tmp_path_factory):
    folder = WRITERS[family](tmp_path_factory.mktemp(family))
    config = config_of(model={"model": folder, "tiny": {}}, ref_kl_coeff=0.5)
    shown, plain = sample(config)
    grads = compare(pair, config, shown[:3], [shown[0], plain[0]])
    assert max(towers(grads)) > 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("critic", ["own", "central"])
def test_policies_and_critics_of_a_team(pair, critic):
    policies = {"alice_0": "alice", "bob_0": "bob"}
    config = MARFTConfig().environment("half_grids-v0").language_model(**VLM)
    config.generation(max_new_tokens=3).env_runners(num_envs_per_env_runner=8)
    config.multi_agent(policies=["alice", "bob"], policy_mapping_fn=policies)
    config.training(lr=1e-3, micro_batch_tokens=96, level="action", critic=critic)
    algo = config.copy(copy_frozen=False).build_algo()
    episodes = algo.env_runner.sample(tasks=algo.next_tasks(7))
    config.validate()
    config.resolved_model = algo.config.resolved_model
    algo.stop()
    grads = compare(pair, config, episodes[:4], episodes[4:])
    assert max(towers(grads)) > 1e-6


def test_the_memory_plan_counts_shards_of_the_tower(pair, sample):
    config = config_of()
    shown, _ = sample(config)
    config = sharded.sharded_config(config)
    plan = plan_memory(config)[2]
    for *_, (weights, moments) in pair(sharded.step, config, shown[:3]):
        assert plan.weights == pytest.approx(4 * weights, rel=0.02)
        assert plan.optimizer == pytest.approx(8 * moments, rel=0.02)
