"""Number of files between the rows and the loss, as docs/design.md says."""

import re
import sys
from pathlib import Path

import pytest
from learner_helpers import fake_episode, make_config, make_learner, update

import rllib_llm
from rllib_llm import GRPOConfig, LLMPPOConfig
from rllib_llm.connectors.learner.token_rows import TokenRows
from rllib_llm.data.episode_data import episode_data

PACKAGE = Path(rllib_llm.__file__).parent
DESIGN = PACKAGE.parent / "docs" / "design.md"


def files_entered(learner, episodes):
    """Files of the package entered from TokenRows to the end of the first loss."""
    start, files, state = TokenRows.__call__.__code__, set(), {"is_on": False}

    def profile(frame, event, _):
        code = frame.f_code
        if not code.co_filename.startswith(str(PACKAGE)):
            return
        state["is_on"] |= code is start
        if state["is_on"] and event == "call":
            files.add(code.co_filename)
        if event == "return" and code.co_name == "compute_loss_for_module":
            state["is_on"] = False
            sys.setprofile(None)

    sys.setprofile(profile)
    try:
        update(learner, episodes)
    finally:
        sys.setprofile(None)
    return {str(Path(name).relative_to(PACKAGE)) for name in files}


@pytest.mark.parametrize("config, name", [(GRPOConfig, "GRPO"), (LLMPPOConfig, "PPO")])
def test_the_way_from_rows_to_the_loss_is_as_short_as_the_design_says(config, name):
    episodes = [fake_episode(i) for i in range(8)]
    for i, episode in enumerate(episodes):
        episode_data(episode).advantage = float(i)
    files = files_entered(make_learner(make_config(config)), episodes)
    documented = re.search(
        r"(?P<GRPO>\d+) files of the package are entered with GRPO and (?P<PPO>\d+)",
        DESIGN.read_text(encoding="utf-8"),
    )
    assert {"connectors/learner/token_rows.py", "losses/surrogate.py"} <= files
    assert len(files) <= int(documented[name]), sorted(files)
