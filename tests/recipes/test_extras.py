"""First lines of shipped recipes name the extras that they need, and enough cores."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from rllib_llm.recipes import load_recipe, search_spaces, shipped_recipes

# Extras by what a recipe names: its environment up to a slash, its algorithm, settings.
_ENVS = {
    "babyai-v0": "babyai",
    "miniwob-v0": "browser",
    "open_spiel": "games",
    "open_spiel-v0": "games",
    "pettingzoo_classic-v0": "classic",
    "reasoning_gym-v0": "reasoning",
    "scienceworld-v0": "scienceworld",
    "text_arena-v0": "games",
    "textworld-v0": "textworld",
    "webshop_pages-v0": "browser",
}
_ALGORITHMS = {"SelfPlay": "games"}  # ratings
_VALUES = {
    ("engine", "vllm"): "vllm",
    ("engine", "vllm_actor"): "vllm",
    ("engine", "tantivy"): "search",
    ("sandbox", "monty"): "sandbox",
    ("model", "smollm2-135m"): "gguf",
}


def entries(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield all keys with their values, nested ones too."""
    if isinstance(value, dict):
        yield from value.items()
    inside = value.values() if isinstance(value, dict) else value
    for each in inside if isinstance(value, dict | list) else ():
        yield from entries(each)


def needed(recipe: dict[str, Any]) -> set[str]:
    found = {_ALGORITHMS.get(recipe["algo"])}
    for key, value in entries(recipe):
        if key == "env" and isinstance(value, str):
            found.add(_ENVS.get(value.split("/")[0]))
        if key == "lora" and value:
            found.add("lora")
        if isinstance(value, str):
            found.add(_VALUES.get((key, value)))
        if key == "loggers":
            found |= {name for name in ("wandb", "mlflow") if name in str(value)}
    return found - {None}


@pytest.mark.parametrize("name", shipped_recipes())
def test_first_lines_name_the_extras(name):
    head = shipped_recipes()[name].read_text(encoding="utf-8").split("\ndesc")[0]
    documented = set(re.findall(r"pip install 'rllib-llm\[(\w+)\]'", head))
    stages = load_recipe(name).stages
    assert documented == set().union(*(needed(stage.resolved) for stage in stages))


@pytest.mark.parametrize("name", shipped_recipes())
def test_processes_fit_into_the_cores_that_the_first_lines_name(name):
    head = shipped_recipes()[name].read_text(encoding="utf-8").split("\ndesc")[0]
    documented = re.findall(r"Needs: (\d+) CPU cores", head)
    for stage in load_recipe(name).stages:
        config = stage.build_config(search_spaces.first_of)
        request = config.algo_class.default_resource_request(config)
        cpus = sum(bundle.get("CPU", 0) for bundle in request.bundles)
        assert all(cpus <= int(cores) for cores in documented)


def test_errors_of_environments_name_their_extras():
    from rllib_llm.envs import TEXT_ENVS, make_env
    from rllib_llm.errors import MissingExtraError

    for name, extra in _ENVS.items():
        if name not in TEXT_ENVS:
            continue
        try:
            make_env(name).close()
        except MissingExtraError as error:
            assert f"rllib-llm[{extra}]" in str(error)
