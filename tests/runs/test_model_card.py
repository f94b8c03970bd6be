"""Model cards of exported policies."""

import dataclasses

import pytest
import yaml
from run_builder import RECIPE, write_run

from rllib_llm.evaluation.success_statistics import wilson_interval
from rllib_llm.runs.card_seeds import other_seeds
from rllib_llm.runs.model_card import CardFacts, last_scores, model_card
from rllib_llm.runs.reading import read_run
from rllib_llm.runs.seed_statistics import mean_interval

SUCCESS = "evaluation/env_runners/success_rate"
EPISODES = "evaluation/env_runners/num_episodes"
RETURN = "env_runners/episode_return_mean"
FACTS = CardFacts(
    name="my-agent",
    recipe={**RECIPE, "description": "A bandit;\n  GRPO."},
    policy="default_policy",
    iteration=3,
    parameters=1_234_567,
    base_model="owner/base-1b",
    license="apache-2.0",
)


@pytest.fixture
def trial(tmp_path):
    rows = [
        {RETURN: 0.1, SUCCESS: 0.2, EPISODES: 50},
        {RETURN: 0.4},
        {RETURN: 0.8, SUCCESS: 0.9, EPISODES: 50},
        {RETURN: 0.9, SUCCESS: 0.1, EPISODES: 50},  # after the exported checkpoint
    ]
    run = write_run(tmp_path / "run", [({"seed": 7}, rows)])
    return read_run(run).trials[0]


def metadata(card):
    return yaml.safe_load(card.split("---")[1])


def test_the_card_has_every_part(trial):
    card = model_card(FACTS, trial)
    for part in (
        "# my-agent",
        "1,234,567 parameters",
        "A bandit; GRPO.",
        "`bandit_probe-v0`",
        "| algorithm | GRPO |",
        "| seed | 7 |",
        "| iteration | training return | held-out success |",
        "| 3 | 0.800 | 0.900 |",
        "AutoModelForCausalLM.from_pretrained",
        "released under `apache-2.0`",
        "algo: GRPO",
        "one training seed (7)",
    ):
        assert part in card, part
    assert "0.100 | 0.100" not in card  # iteration 4 is later than the checkpoint


def test_the_metadata_are_the_hubs(trial):
    data = metadata(model_card(FACTS, trial))
    assert data["base_model"] == "owner/base-1b" and data["license"] == "apache-2.0"
    assert data["library_name"] == "transformers"
    assert {"reinforcement-learning", "rllib-llm", "grpo"} <= set(data["tags"])
    (result,) = data["model-index"][0]["results"]
    assert result["metrics"][0]["value"] == 0.9


def test_intervals_are_those_of_the_evaluation(trial):
    (score,) = last_scores(FACTS, trial)
    assert (score.iteration, score.episodes) == (3, 50)
    assert (score.low, score.high) == wilson_interval(45, 50)


def test_environments_of_a_mixture_are_apart(tmp_path):
    head = "evaluation/env_runners/environments"
    row = {SUCCESS: 0.5, EPISODES: 40}
    for name, success in (("a", 0.25), ("b", 0.75)):
        row |= {f"{head}/{name}/success_rate": success}
        row |= {f"{head}/{name}/num_episodes": 20}
    env = {"mixture": [{"env": "a"}, {"env": "b", "weight": 2, "env_config": {"x": 1}}]}
    trial = read_run(write_run(tmp_path / "run", [({"seed": 0}, [row])])).trials[0]
    facts = dataclasses.replace(FACTS, recipe={"algo": "GRPO", "env": env})
    assert [(s.environment, s.success) for s in last_scores(facts, trial)] == [
        ("a", 0.25),
        ("b", 0.75),
    ]
    card = model_card(facts, trial)
    assert "- `b`, weight 2, options `{'x': 1}`" in card
    results = metadata(card)["model-index"][0]["results"]
    assert [(r["dataset"]["name"], r["metrics"][0]["value"]) for r in results] == [
        ("a", 0.25),
        ("b", 0.75),
    ]


def test_the_other_seeds_of_the_run_are_listed(tmp_path):
    def rows(*successes):
        return [{RETURN: s, SUCCESS: s, EPISODES: 50} for s in successes]

    trials = [
        ({"seed": 0, "lr": 1}, rows(0.1, 0.2, 0.5)),
        ({"seed": 1, "lr": 1}, rows(0.1, 0.2, 0.8, 0.99)),  # 0.99: after iteration 3
        ({"seed": 2, "lr": 1}, rows(0.1, 0.6)),  # ended early
        ({"seed": 3, "lr": 1}, [{RETURN: 0.5}]),
        ({"seed": 0, "lr": 2}, rows(0.0, 0.0, 0.0)),  # another setting
    ]
    run = read_run(write_run(tmp_path / "run", trials, searched=["seed", "lr"]))
    trial = read_run(run.trials[0].path).trials[0]
    others = other_seeds(run, trial)
    assert [each.seed for each in others] == [1, 2, 3]
    card = model_card(FACTS, trial, others)
    table = card.split("### Other seeds")[1].split("### Learning curve")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert [line.split("|")[1].strip() for line in lines] == [
        "0 (exported)",
        "1",
        "2",
        "3",
    ]
    assert "| 3 | 0.500 (" in lines[0] and "| 3 | 0.800 (" in lines[1]
    assert "| 2 | 0.600 (" in lines[2] and "not evaluated" in lines[3]
    mean = mean_interval([0.5, 0.8, 0.6])
    assert f"bandit_probe-v0: {mean.mean:.3f}, 95% interval {mean.low:.3f} to" in table
    assert "3 seeds" in table


def test_a_run_of_one_seed_has_no_list_of_seeds(tmp_path):
    rows = [{RETURN: 0.5, SUCCESS: 0.5, EPISODES: 50}]
    run = read_run(write_run(tmp_path / "run", [({"seed": 0}, rows)]))
    assert other_seeds(run, run.trials[0]) == []
    assert "Other seeds" not in model_card(FACTS, run.trials[0], [])


def test_unknown_facts_are_stated_as_unknown(tmp_path):
    facts = dataclasses.replace(
        FACTS, license=None, base_model="tiny", is_adapter=True, recipe={}
    )
    card = model_card(facts, None)
    assert "Not stated: the checkpoint is not part of a run's folder." in card
    assert "No licence is stated" in card and "AutoPeftModelForCausalLM" in card
    data = metadata(card)
    assert "base_model" not in data and "license" not in data
    assert data["library_name"] == "peft"
    rows = [{RETURN: 0.5}]
    trial = read_run(write_run(tmp_path / "run", [({"seed": 0}, rows)])).trials[0]
    card = model_card(FACTS, trial)
    assert "reported no held-out success" in card
    assert "| iteration | training return |" in card


def test_a_long_curve_is_thinned_and_keeps_its_end(tmp_path):
    rows = [{RETURN: n / 100, SUCCESS: n / 100, EPISODES: 10} for n in range(100)]
    trial = read_run(write_run(tmp_path / "run", [({"seed": 0}, rows)])).trials[0]
    card = model_card(dataclasses.replace(FACTS, iteration=100), trial)
    curve = card.split("### Learning curve")[1].split("## Use")[0]
    shown = [line for line in curve.splitlines() if line.startswith("| ")][1:]
    assert len(shown) <= 12 and shown[-1].startswith("| 100 |")
