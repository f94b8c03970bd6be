"""Names are known without the libraries; making a game says what to install."""

from __future__ import annotations

import builtins
import subprocess
import sys

import pytest
from pettingzoo.env_registry.spec import _load_env_creator

from rllib_llm.envs import TEXT_ENVS, make_env
from rllib_llm.errors import MissingExtraError

LIBRARIES = {
    "open_spiel-v0": ("pyspiel", "games"),
    "open_spiel/kuhn_poker-v0": ("pyspiel", "games"),
    "text_arena-v0": ("textarena", "games"),
    "pettingzoo_classic-v0": ("pygame", "classic"),
    "babyai-v0": ("minigrid", "babyai"),
    "miniwob-v0": ("selenium", "browser"),
    "reasoning_gym-v0": ("reasoning_gym", "reasoning"),
    "scienceworld-v0": ("scienceworld", "scienceworld"),
    "textworld-v0": ("textworld", "textworld"),
    "openenv-v0": ("websockets", "openenv"),
    "openenv_game-v0": ("websockets", "openenv"),
    "webshop_pages-v0": ("selenium", "browser"),
}


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_missing_library_is_named_when_the_game_is_made(name, monkeypatch):
    library, extra = LIBRARIES[name]
    real = builtins.__import__

    def without(wanted, *args, **kwargs):
        if wanted.split(".")[0] == library:
            raise ModuleNotFoundError(f"No module named {library!r}", name=library)
        return real(wanted, *args, **kwargs)

    for module in list(sys.modules):
        if module.split(".")[0] == library or module.startswith("pettingzoo.classic."):
            monkeypatch.delitem(sys.modules, module)
    _load_env_creator.cache_clear()  # PettingZoo's, of games made before
    monkeypatch.setattr(builtins, "__import__", without)
    assert name in TEXT_ENVS
    with pytest.raises(MissingExtraError, match=rf"rllib-llm\[{extra}\]"):
        make_env(name)


def test_listing_the_games_imports_no_library():
    code = (
        "import sys, rllib_llm.envs as e, rllib_llm.selfplay; e.TEXT_ENVS.names(); "
        "heavy = {'pyspiel', 'textarena', 'pygame', 'openskill', 'torch', 'ray', "
        "'minigrid', 'reasoning_gym', 'websockets', 'textworld', 'scienceworld', "
        "'selenium', 'miniwob'}; "
        "print(heavy & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "set()"
