"""docs/alarms.md agrees with the catalogue of alarms."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rllib_llm.algorithms.config.schema import declared_settings
from rllib_llm.algorithms.ppo.llm_ppo import LLMPPOConfig
from rllib_llm.monitoring.alarms.catalogue import ACTIONS, ALARMS

PAGE = (Path(__file__).parents[2] / "docs" / "alarms.md").read_text(encoding="utf-8")


def row(name):
    found = re.search(rf"^\| `{name}`.*$", PAGE, re.MULTILINE)
    assert found, f"docs/alarms.md has no row for {name}"
    return found[0]


@pytest.mark.parametrize("alarm", ALARMS.values(), ids=ALARMS.keys())
def test_thresholds_are_those_of_the_page(alarm):
    cells = row(alarm.name).split("|")
    if alarm.name == "copying":
        assert alarm.thresholds == ALARMS["echo"].thresholds
        return
    documented = re.findall(r"`(\w+)` ([\d.]+)", cells[3])
    assert {k: float(v) for k, v in documented} == alarm.thresholds


def test_actions_and_common_settings_are_documented():
    for action in ACTIONS:
        assert row(action)
    settings = declared_settings(LLMPPOConfig, "alarms")
    assert settings.keys() > ALARMS.keys()
    for key in settings.keys() - ALARMS.keys():
        default = str(settings[key].default).replace("1e-08", "1e-8")
        assert row(key).split("|")[2].strip() == default
