"""The cluster files of the docs: valid for Ray, and their commands are recipes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import jsonschema
import ray.autoscaler
import yaml

from rllib_llm.recipes import load_recipe

FILES = Path(__file__).parents[2] / "docs" / "cluster"


def loaded(name):
    return yaml.safe_load((FILES / name).read_text())


def test_the_launchers_file_fulfils_rays_schema():
    schema = json.loads(
        (Path(ray.autoscaler.__file__).with_name("ray-schema.json")).read_text()
    )
    jsonschema.validate(loaded("ray_cluster.yaml"), schema)


def declared(file):
    """Return the custom resources of a file's groups of workers."""
    found = set()
    for group in file["spec"]["rayClusterSpec"]["workerGroupSpecs"]:
        text = json.loads(group["rayStartParams"]["resources"])
        found |= json.loads(text).keys()
    return found


def test_the_job_of_kuberay_trains_a_recipe_on_the_nodes_of_its_groups():
    job = loaded("kuberay.yaml")
    program, verb, name, *overrides = shlex.split(job["spec"]["entrypoint"])
    assert (program, verb) == ("rllib-llm", "train")
    recipe = load_recipe(name, overrides)
    recipe.validate()
    config = recipe.build_config()
    assert set(config.placement.values()) == declared(job)
    assert config.wait_for_nodes_s == 900 and config.num_learners == 2


def test_all_nodes_have_the_same_folders():
    pods = loaded("kuberay.yaml")["spec"]["rayClusterSpec"]
    for group in (pods["headGroupSpec"], *pods["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        mounted = container["volumeMounts"][0]["mountPath"]
        names = {entry["name"]: entry["value"] for entry in container["env"]}
        assert names.keys() == {"RLLIB_LLM_CACHE", "RLLIB_LLM_RESULTS"}
        assert all(value.startswith(f"{mounted}/") for value in names.values())
    options = loaded("ray_cluster.yaml")["docker"]["run_options"]
    assert {"--env=RLLIB_LLM_CACHE=/shared/cache"} < set(options)
