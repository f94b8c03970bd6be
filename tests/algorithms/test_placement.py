"""Nodes of actors: what is requested, and what nodes cannot hold."""

from __future__ import annotations

import pytest
from ray.tune import PlacementGroupFactory

from rllib_llm import GRPOConfig
from rllib_llm.algorithms.driver.build_vllm_engines import with_engine_bundle
from rllib_llm.algorithms.driver.placement import unplaceable
from rllib_llm.errors import ConfigError

TWO = [{"CPU": 4.0, "GPU": 1.0}, {"CPU": 8.0, "samplers": 1.0}]


@pytest.mark.parametrize(
    "bundles, words",
    [
        ([{"CPU": 4.0, "GPU": 1.0}, {"CPU": 8.0}], None),
        ([{"CPU": 1.0, "samplers": 0.0001}] * 8, None),
        ([{"CPU": 1.0, "GPU": 0.0}], None),
        ([{"CPU": 9.0}], "No node has 9 CPU, which one process"),
        ([{"GPU": 1.0, "samplers": 0.0001}], "No node has 1 GPU, 0.0001 samplers"),
        ([{"chip": 1.0}], "the nodes have 4 CPU, 1 GPU; 8 CPU, 1 samplers"),
        ([{"CPU": 1.0}] * 13, "need 13 CPU together; the cluster has 12"),
        ([{"GPU": 0.5}] * 3, "need 1.5 GPU together; the cluster has 1"),
    ],
)
def test_what_nodes_cannot_hold(bundles, words):
    found = unplaceable(bundles, TWO)
    assert (found is None) if words is None else words in found


def config(**places):
    made = GRPOConfig().environment("guess_number-v0").language_model(tiny={})
    return made.resources(placement=places)


def bundles(made):
    return made.algo_class.default_resource_request(made).bundles


def test_each_kind_requests_its_nodes():
    made = config(learners="trainers", env_runners="samplers")
    made.learners(num_learners=1).env_runners(num_env_runners=2)
    by_resource = [
        [b for b in bundles(made) if b.get(name)] for name in ("samplers", "trainers")
    ]
    assert [len(found) for found in by_resource] == [2, 1]
    made.validate()
    assert made.custom_resources_per_learner == {"trainers": 0.0001}
    assert bundles(made) == bundles(made.copy(copy_frozen=False))


def test_an_amount_that_the_user_requests_is_kept():
    made = config(env_runners="samplers").env_runners(
        num_env_runners=1, custom_resources_per_env_runner={"samplers": 0.5}
    )
    assert {"CPU": 1.0, "samplers": 0.5} in bundles(made)


def test_the_engine_has_a_bundle_of_its_own():
    made = config(engines="gpus").generation(engine="vllm_actor", engine_num_gpus=0.5)
    found = with_engine_bundle(PlacementGroupFactory([{"CPU": 1.0}]), made)
    assert found.bundles == [{"CPU": 1.0}, {"GPU": 0.5, "gpus": 0.0001}]


@pytest.mark.parametrize(
    "places, words",
    [
        ({"learners": "trainers"}, "Set learners.num_learners of 1 or more"),
        ({"env_runners": "samplers"}, "Set env_runners.num_env_runners of 1 or more"),
        ({"engines": "gpus"}, "Set generation.engine='vllm_actor'"),
    ],
)
def test_parts_without_processes_are_refused(places, words):
    with pytest.raises(ConfigError, match="places processes of their own") as error:
        config(**places).validate()
    assert words in str(error.value)


@pytest.mark.parametrize("name", ["GPU", "cpu", "memory", ""])
def test_resources_with_settings_of_their_own_are_refused(name):
    made = config(env_runners=name).env_runners(num_env_runners=1)
    with pytest.raises(ConfigError, match="must be a custom resource of nodes"):
        made.validate()


def test_an_unknown_kind_is_refused():
    with pytest.raises(ConfigError, match="workers"):
        config(workers="samplers").validate()
