"""Dependency graphs: topologies, levels, order, errors."""

import itertools

import numpy as np
import pytest

from rllib_llm.advantages.multi_agent_gae import message_gae
from rllib_llm.dependency_graph import dependency_graph
from rllib_llm.errors import ConfigError

TEAM = ["plan_0", "code_0", "test_0"]


def test_named_topologies():
    chain = dependency_graph("chain", TEAM)
    assert chain.levels == (("plan_0",), ("code_0",), ("test_0",))
    assert chain.reads["test_0"] == ("plan_0", "code_0")
    assert chain.read_by("plan_0") == ("code_0", "test_0")
    star = dependency_graph("star", TEAM)
    assert star.levels == (("plan_0", "code_0"), ("test_0",))
    assert star.reads == {
        "plan_0": (),
        "code_0": (),
        "test_0": ("plan_0", "code_0"),
    }
    assert star.read_by("test_0") == ()
    debate = dependency_graph("debate", TEAM)
    assert debate.levels == (tuple(TEAM),)
    assert not any(debate.reads.values())


@pytest.mark.parametrize("topology", ["chain", "star", "debate", {}])
def test_one_agent_is_one_level(topology):
    graph = dependency_graph(topology, ["solo_0"])
    assert graph.levels == (("solo_0",),) and graph.reads == {"solo_0": ()}


def test_edges_make_a_diamond_whatever_their_order():
    edges = {"d": ["b", "c", "b"], "b": ["a"], "c": ["a"]}
    for keys in itertools.permutations(edges):
        graph = dependency_graph({k: edges[k] for k in keys}, list("abcd"))
        assert graph.levels == (("a",), ("b", "c"), ("d",))
        assert graph.reads["d"] == ("b", "c")


def test_every_agent_acts_after_all_it_reads_and_no_later_than_needed():
    rng = np.random.default_rng(0)
    agents = [f"a_{i}" for i in range(8)]
    for _ in range(20):
        rank = rng.permutation(8)
        edges = {
            agents[i]: [
                agents[j] for j in range(8) if rank[j] < rank[i] and rng.random() < 0.3
            ]
            for i in range(8)
        }
        graph = dependency_graph(edges, agents)
        level = {a: i for i, names in enumerate(graph.levels) for a in names}
        assert sorted(level) == agents
        for agent in agents:
            reads = [level[a] for a in edges[agent]]
            assert level[agent] == (max(reads) + 1 if reads else 0)


def test_places_number_rounds_and_levels():
    graph = dependency_graph("star", TEAM)
    order = graph.order(["plan_0", "code_0", "test_0", "plan_0"], [0, 0, 0, 1])
    assert order.tolist() == [0, 0, 1, 2]
    assert graph.order([], []).shape == (0,)


def test_a_star_in_gae_has_two_steps_per_round():
    order = dependency_graph("star", TEAM).order(TEAM * 2, [0, 0, 0, 1, 1, 1])
    got, _ = message_gae(
        [0.0] * 5 + [1.0], np.zeros(6), [0] * 6, gamma=0.5, lambda_=1.0, order=order
    )
    np.testing.assert_allclose(got, [0.125, 0.125, 0.25, 0.5, 0.5, 1.0])


@pytest.mark.parametrize(
    ("topology", "agents", "message"),
    [
        ("chian", TEAM, "Did you mean 'chain'"),
        ("chain", [], "at least one"),
        ("chain", ["a", "a"], "each listed once"),
        ({"code_0": ["plan_1"]}, TEAM, "'plan_1' is not.*Did you mean 'plan_0'"),
        ({"cod_0": []}, TEAM, "'cod_0' is not.*Did you mean 'code_0'"),
        ({"a": ["a"]}, ["a"], "cycle: a reads a"),
    ],
)
def test_errors_say_what_to_mend(topology, agents, message):
    with pytest.raises(ConfigError, match=message):
        dependency_graph(topology, agents)


def test_a_cycle_is_spelled_out():
    edges = {"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"]}
    with pytest.raises(ConfigError) as error:
        dependency_graph(edges, list("abcd"))
    cycle = str(error.value).split("cycle: ")[1].split(". ")[0].split(" reads ")
    assert cycle[0] == cycle[-1] and set(cycle) == {"a", "b", "c"}
    for reader, read in itertools.pairwise(cycle):
        assert read in edges[reader]


def test_unknown_speakers_are_refused():
    graph = dependency_graph("chain", TEAM)
    with pytest.raises(ConfigError, match="'tset_0' is not"):
        graph.order(["tset_0"], [0])
    with pytest.raises(ConfigError, match="'nobody' is not"):
        graph.read_by("nobody")
    with pytest.raises(ValueError, match="zip"):
        graph.order(["plan_0"], [0, 1])
