"""docs/coming_from_settings.md: names of ours exist, those of others were looked up."""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from pathlib import Path

import pytest
import yaml

from rllib_llm.algorithms import ALGORITHMS
from rllib_llm.algorithms.config.sections import SECTIONS, section_keys
from rllib_llm.recipes.recipe import FIELDS
from rllib_llm.recipes.tune_settings import TUNE_DEFAULTS

PAGE = Path(__file__).parents[2] / "docs" / "coming_from_settings.md"
RECORD = Path(__file__).parent / "peer_names.yaml"
LIBRARIES = (
    "verl",
    "TRL",
    "RAGEN",
    "MARFT",
    "SkyRL",
    "verifiers",
    "prime-rl",
    "OpenRLHF",
    "AReaL",
    "NeMo-RL",
    "rLLM",
    "ART",
    "Agent Lightning",
    "AgileRL",
    "tinker",
    "Unsloth",
    "RLlib",
)
# Folder with wheels of peers: pip install --no-deps --target FOLDER NAME==VERSION ...
PEERS = os.environ.get("RLLIB_LLM_PEERS")


def rows() -> list[tuple[str, str, list[str]]]:
    """Return library, their names, and our names, by row."""
    found, library = [], ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            library = line[3:]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and library in LIBRARIES:
            found.append((library, cells[0], re.findall(r"`([^`]+)`", cells[1])))
    return found


@pytest.fixture(scope="module")
def settings() -> set[str]:
    """Return what a recipe may say: its fields, and ``section.key``."""
    classes = [ALGORITHMS.get(name).config_class() for name in ALGORITHMS]
    keys = {f"{s}.{k}" for c in classes for s in SECTIONS for k in section_keys(c, s)}
    return keys | set(FIELDS) | {f"tune.{key}" for key in TUNE_DEFAULTS}


def test_every_name_of_ours_exists(settings):
    named = [(theirs, name) for _, theirs, ours in rows() for name in ours]
    # A cell may give a value as well, e.g. `training.ref_kl_in: reward`.
    unknown = [(t, n) for t, n in named if n.split(":")[0] not in settings]
    assert named and not unknown


def test_every_library_has_a_table_and_every_row_an_answer():
    assert {library for library, _, _ in rows()} == set(LIBRARIES)
    assert not [theirs for _, theirs, ours in rows() if not ours]


def test_prose_names_settings_that_exist(settings):
    text = PAGE.read_text(encoding="utf-8")
    # Not "data": verl's settings of the left columns have a section of this name.
    sections = "|".join(s for s in SECTIONS if s != "data")
    for name in re.findall(rf"`((?:{sections})\.\w+)", text):
        assert name in settings, name


def test_names_of_others_were_looked_up_in_the_version_that_the_page_gives():
    """The record holds each name with the version and the place where it was found."""
    record = yaml.safe_load(RECORD.read_text(encoding="utf-8"))
    assert set(record) == set(LIBRARIES)
    named: dict[str, set[str]] = {library: set() for library in LIBRARIES}
    for library, theirs, _ in rows():
        named[library] |= set(re.findall(r"`([^`]+)`", theirs))
    text = PAGE.read_text(encoding="utf-8")
    for library, entry in record.items():
        assert named[library] == set(entry["names"]), library
        (version,) = re.findall(rf"^\| {library} \| ([^|]+) \|$", text, re.MULTILINE)
        assert entry["version"] in version and entry["source"], library


def words_of_wheel(package: str, version: str) -> set[str]:
    """Return the words in the sources of an installed package of this version."""
    path = [*([PEERS] if PEERS else []), *sys.path]
    found = list(importlib.metadata.distributions(name=package, path=path))
    installed = [each for each in found if each.version == version]
    if not installed:
        pytest.skip(f"{package} {version} is not installed (RLLIB_LLM_PEERS)")
    words: set[str] = set()
    for file in installed[0].files or ():
        if file.suffix in (".py", ".yaml", ".toml", ".json"):
            text = Path(file.locate()).read_text(encoding="utf-8", errors="ignore")
            words.update(re.findall(r"\w+", text))
    return words


@pytest.mark.parametrize("library", LIBRARIES)
def test_names_of_others_are_in_their_wheels(library):
    entry = yaml.safe_load(RECORD.read_text(encoding="utf-8"))[library]
    if "wheel" not in entry:
        pytest.skip("its names are those of a repository, or tested below")
    words = words_of_wheel(entry["wheel"], entry["version"])
    names = set(entry["names"]) - set(entry.get("not_in_wheel", ()))
    missing = [n for n in names if not words.issuperset(re.findall(r"\w+", n))]
    assert not missing


def test_names_of_rllib_are_those_of_the_installed_version():
    import dataclasses

    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    names = {f.name for f in dataclasses.fields(DefaultModelConfig)}
    names |= {*dir(PPOConfig), *vars(PPOConfig())}
    old = {"num_sgd_iter", "sgd_minibatch_size", "num_workers"}  # the page says so
    record = yaml.safe_load(RECORD.read_text(encoding="utf-8"))
    assert set(record["RLlib"]["names"]) - names <= old
