"""Tasks that assistants propose: reading, checks, the band of success, runs."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from assistant_helpers import SCRIPT
from component_helpers import trajectory
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
from team_helpers import single_config

from rllib_llm import GRPOConfig
from rllib_llm.algorithms.config.check_assistants import check_source
from rllib_llm.algorithms.driver.assistants import AsksAssistants
from rllib_llm.algorithms.driver.proposals import accepted_options, propose_tasks
from rllib_llm.algorithms.driver.rewards_filters_curriculum import DriverComponents
from rllib_llm.assistants.questions import Question
from rllib_llm.assistants.settings import read_assistant
from rllib_llm.components.registry import bind
from rllib_llm.curricula.proposed import Proposed, read_options
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.data.types import Task
from rllib_llm.envs import make_env
from rllib_llm.errors import ConfigError

PROPOSER = {"per": "task", "script": {"name": "propose", "ranges": {"size": [2, 5]}}}
CURRICULUM = {"name": "proposed", "of": "proposer", "prob": 1.0}


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ('{"size": 5}', {"size": 5}),
        ('First {"size": 3}, no: {"size": 4, "slippery": true} it is.',
         {"size": 4, "slippery": True}),
        ("size 5", None),
        ("{size: 5}", None),
        ("{}", None),
        ('{"size": NaN}', None),
        ('{"split": "test"}', None),
        ('{"task_number": 1}', None),
        ("{" * 5000, None),
        (None, None),
    ],
)  # fmt: skip
def test_a_proposal_is_the_last_object_of_the_text(text, options):
    assert read_options(text) == options


def test_the_environment_refuses_options():
    proposed = [{"size": 2}, {"size": 3}, {"siez": 3}, {"size": "x"}, {"size": 5}]
    made = []

    def make():
        made.append(make_env("frozen_lake-v0"))
        return made[-1]

    assert accepted_options(proposed, make) == [{"size": 3}, {"size": 5}]
    assert accepted_options([], make) == [] and len(made) == 1


def given(of, first, count):
    """Assign tasks to some groups; return their options."""
    tasks = [Task(g, 0, seed=g, options={"split": "train"}) for g in range(count)]
    tasks = [
        of.assign(Task(first + t.group_id, 0, t.seed, t.options), 0) for t in tasks
    ]
    return [{k: v for k, v in t.options.items() if k != "split"} for t in tasks]


def observe(of, first, solved, rollouts=4):
    of.observe(
        TurnTable(
            [
                trajectory(first + g, r, rewards=[float(r < count)])
                for g, count in enumerate(solved)
                for r in range(rollouts)
            ]
        )
    )


def test_options_of_medium_success_are_kept_and_used_again():
    of = Proposed(of="x", low=0.25, high=0.75, prob=1.0)
    assert given(of, 0, 2) == [{}, {}]  # nothing is proposed yet
    observe(of, 0, [4, 4])
    sizes = [{"size": n} for n in (3, 4, 5, 6)]
    of.receive([*sizes, {"size": 3}])
    assert given(of, 10, 4) == sizes
    observe(of, 10, [4, 3, 1, 0])  # too easy, kept, kept, too hard
    assert of.get_state() == {
        "new": [],
        "kept": {'{"size": 4}': 0.75, '{"size": 5}': 0.25},
    }
    assert of.fields()["tasks"] == '{"size": 4} solved 0.75\n{"size": 5} solved 0.25'
    of.receive([{"size": 5}])  # is kept already
    drawn = given(of, 20, 40)
    assert {o["size"] for o in drawn} == {4, 5}
    observe(of, 20, [4 if o["size"] == 4 else 2 for o in drawn])
    assert of.get_state()["kept"] == {'{"size": 5}': 0.5}  # 4 is too easy by now


def test_groups_without_results_and_order_of_delivery():
    of, other = (Proposed(of="x", prob=1.0, capacity=2) for _ in range(2))
    for each in (of, other):
        each.receive([{"size": n} for n in (3, 4, 5)])
        assert [o["size"] for o in given(each, 0, 2)] == [4, 5]  # the newest two
    table = [trajectory(g, r, rewards=[float(r)]) for g in range(1) for r in range(2)]
    of.observe(TurnTable(table))
    other.observe(TurnTable(table[::-1]))
    # The second group failed as a whole: nothing says that its options are suitable.
    assert (
        of.get_state() == other.get_state() == {"new": [], "kept": {'{"size": 4}': 0.5}}
    )


def test_the_share_of_tasks_with_proposals_is_prob():
    of = Proposed(of="x", prob=0.25, low=0.0, high=1.0)
    of.receive([{"size": 3}])
    shares = [bool(o) for o in given(of, 0, 400)]
    assert 0.0 < np.mean(shares) < 0.01  # one group tries it
    observe(of, 0, [0] * 400)
    assert 0.18 < np.mean([bool(o) for o in given(of, 1000, 400)]) < 0.32


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"proposals": 0}, "proposals=0 must be >= 1"),
        ({"capacity": 0}, "capacity=0 must be >= 1"),
        ({"low": 0.8, "high": 0.2}, "low=0.8, high=0.2"),
        ({"prob": 0.0}, "prob=0.0 must be in"),
    ],
)
def test_bad_settings_of_the_curriculum_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        bind("curriculum", {**CURRICULUM, **settings})


# The script -------------------------------------------------------------------------


def test_the_script_draws_options_within_ranges():
    ranges = {"size": [2, 4], "results": [1, 1]}
    script = bind(
        "answer", {"name": "propose", "ranges": ranges, "unreadable": 0.25}
    ).call
    texts = [script(Question((), (), 0, seed)) for seed in range(400)]
    read = [read_options(text) for text in texts]
    sizes = [options["size"] for options in read if options is not None]
    assert set(sizes) == {2, 3, 4}
    assert all(o == {"size": o["size"], "results": 1} for o in read if o is not None)
    assert 0.18 < np.mean([o is None for o in read]) < 0.32
    assert script(Question((), (), 0, 3)) == texts[3]
    with pytest.raises(ConfigError, match=r"ranges.size=\[3\]"):
        bind("answer", {"name": "propose", "ranges": {"size": [3]}}).call(
            Question((), (), 0, 0)
        )


# Settings ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"parse": {"words": {"yes": 1.0, "no": 0.0}}}, "parse would have no effect"),
        ({"samples": 2}, "samples would have no effect"),
        ({"unreadable": 0.5}, "unreadable would have no effect"),
        ({"privileged": True}, "privileged would have no effect"),
        ({"template": "{transcript}"}, "placeholder {transcript}"),
    ],
)
def test_settings_about_values_are_refused(changed, message):
    with pytest.raises(ConfigError, match=message):
        read_assistant("proposer", {**PROPOSER, **changed})


def config(assistants, curriculum=CURRICULUM, **rollouts):
    return single_config(
        GRPOConfig,
        env="frozen_lake-v0",
        rollouts={
            "episodes_per_iteration": 8,
            "group_size": 2,
            "assistants": assistants,
            "curriculum": curriculum,
            **rollouts,
        },
    )


def test_a_config_with_a_proposer_is_valid():
    config({"proposer": PROPOSER}).validate()
    model = {"policy": "default_policy", "template": "Lake?", "temperature": 1.0}
    config({"proposer": {**model, "per": "task"}}).validate()


@pytest.mark.parametrize(
    ("assistants", "rollouts", "message"),
    [
        ({}, {}, "'proposer', which is not in"),
        ({"proposer": SCRIPT}, {}, "per='trajectory': the curriculum 'proposed'"),
        ({"proposer": PROPOSER}, {"curriculum": None}, "is never asked"),
        (
            {"proposer": PROPOSER},
            {"rewards": [{"name": "asked", "of": "proposer"}]},
            "per='task': the curriculum 'proposed'",
        ),
        (
            {"proposer": {"per": "task", "script": lambda question: "hm"}},
            {},
            "proposes 'hm', which is no JSON object",
        ),
    ],
)
def test_proposers_and_readers_must_match(assistants, rollouts, message):
    with pytest.raises(ConfigError, match=message):
        config(assistants, **rollouts).validate()


def test_models_must_sample_their_proposals():
    given_ = {"policy": "default_policy", "template": "Lake?", "per": "task"}
    with pytest.raises(ConfigError, match="all the same at temperature 0"):
        check_source(config({"proposer": PROPOSER}), read_assistant("p", given_))


# The driver -------------------------------------------------------------------------


class _Base:
    def setup(self, config):
        self.config, self.metrics, self.iteration = config, MetricsLogger(), 0
        self._driver_components = DriverComponents(config)

    def next_tasks(self, num_groups):
        tasks = [Task(g, 0, seed=g) for g in range(num_groups)]
        return self._driver_components.assign(tasks, self.iteration)


class _Driver(AsksAssistants, _Base):
    pass


def driver(script, **curriculum):
    made = _Driver()
    made.setup(
        config(
            {"proposer": {"per": "task", "script": script}},
            {**CURRICULUM, **curriculum},
        )
    )
    return made


def test_accepted_options_are_assigned_and_the_others_counted():
    def script(question):
        return ('{"size": 2}', '{"size": 3}', "hm", '{"size": 7}')[question.seed % 4]

    made = driver(script, proposals=40)
    tasks = made.next_tasks(6)
    options = sorted(json.dumps(t.options) for t in tasks)
    # Each is tried once before it is used again.
    assert options == ['{"size": 3}', '{"size": 7}', *["{}"] * 4]
    result = made.metrics.reduce()
    counts = result["assistants"]["proposer"]
    refused = result["proposals"]["proposer"]["num_refused"]
    assert counts["num_answers"] == 40 and counts["num_unreadable"] > 0 and refused > 0
    assert result["proposals"]["proposer"]["num_kept"] == 0


def test_questions_differ_by_iteration_and_number_and_repeat_after_a_resume():
    seeds = []

    def script(question):
        seeds.append(question.seed)
        return '{"size": 4}'

    made = driver(script, proposals=3)
    seeds.clear()
    for made.iteration in (0, 1, 0):
        propose_tasks(made)
    assert seeds[:3] == seeds[6:] and len(set(seeds)) == 6


def test_curricula_without_proposals_ask_nobody():
    algo = SimpleNamespace(
        _driver_components=DriverComponents(config({}, {"name": "failed"}))
    )
    propose_tasks(algo)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_a_policy_proposes_in_a_run_and_results_are_observed():
    model = {"policy": "default_policy", "template": "Lake?", "temperature": 1.0}
    made = config(
        {"judge": SCRIPT, "proposer": {**model, "per": "task"}},
        rewards=[{"name": "asked", "of": "judge"}],
    ).build_algo()
    episodes = made.sample_groups(4)
    result = made.metrics.reduce()
    made.stop()
    assert len(episodes) == 8
    assert result["assistants"]["proposer"]["num_answers"] == 4
    # A random model writes no JSON.
    assert result["assistants"]["proposer"]["num_unreadable"] == 4
    assert result["assistants"]["judge"]["num_answers"] == 8
