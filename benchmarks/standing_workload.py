"""The standing workload: environment, models and GRPO settings (docs/performance.md).

One update is 8 groups of 8 episodes of at most 5 turns, each a tool call of at most 32
tokens, trained once. Variants: ``fixed`` (always 5 turns, for throughput) and ``game``
(ends with the correct guess, for learning).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from standing_game import (
    CALL,
    INVALID,
    MAX_NEW_TOKENS,
    MAX_TURNS,
    UPPER,
    NumberGame,
    form_of,
    parse_guess,
)

from rllib_llm.algorithms.grpo.grpo import GRPOConfig
from rllib_llm.data.types import TurnResult
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.modules.tiny import save_tiny_model
from rllib_llm.offline.prepare_model import cache_dir, prepare_language_model

SIZES: dict[str, dict[str, int]] = {
    "tiny": {
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 384,
    },
    "small": {
        "hidden_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "intermediate_size": 1024,
    },
}
_SHARED = {"vocab_size": 384, "max_position_embeddings": 8192}
_SFT: dict[str, dict[str, Any]] = {
    "tiny": {"demonstrations": 3000, "epochs": 3, "lr": 3e-3},
    "small": {"demonstrations": 320, "epochs": 1, "lr": 1e-3},
    "smollm": {"demonstrations": 480, "epochs": 1, "lr": 1e-4},
}

# Texts that train the tokenizer: the words of the game three times, so that each is one
# token, and other text, so that a tool call has 26 tokens with its end.
_WORDS = [
    "Guess a number from 1 to 31.",
    *("higher", "lower", "correct", INVALID, "user", "assistant"),
]
_OTHER_TEXT = [
    "An agent reads what the world says and answers with an action. A tool is called "
    "by its name with its arguments, written as an object. The world replies, and the "
    "agent reads the reply before it acts again. What it learns comes from the reward "
    "at the end of the task and from nothing else. A search that halves the range with "
    "every question is the shortest way to find what was hidden.",
    '{"name": "look", "arguments": {"at": "door"}}',
]


class StandingGame(TextEnv):
    """The number game as a text environment."""

    max_turns = MAX_TURNS
    format_hint = INVALID

    def start(
        self,
        rng: np.random.Generator,
        upper: int = UPPER["game"],
        fixed: bool = False,
        filler: int = 0,
        form: str = CALL,
    ) -> str:
        """Hide a number; ``filler`` digits, a token each, make the prompt long."""
        self.form = form
        secret = int(rng.integers(1, upper + 1))
        self.game = NumberGame(secret, upper, fixed, self.max_turns)
        return "7" * filler + self.game.prompt

    def parse(self, completion: str) -> int | None:
        """Read the tool call."""
        return parse_guess(completion, self.form)

    def reply(self, action: int) -> TurnResult:
        """Answer a guess."""
        self.game.turn = self.turn - 1  # invalid calls took turns, too
        text, reward, done = self.game.play(action)
        solved = text == "correct"
        return TurnResult(text, reward=reward, terminated=done, success=solved)

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the middle of the possible interval."""
        low, high = self.game.low, self.game.high
        return self.form.format((low + high) // 2)

    def random_action(self, rng: np.random.Generator) -> str:
        """Return any guess."""
        return self.form.format(rng.integers(1, self.game.upper + 1))


def standing_config(
    size: str,
    variant: str = "fixed",
    *,
    dtype: str = "float32",
    groups: int = 8,
    turns: int = MAX_TURNS,
    filler: int = 0,
    seed: int = 0,
    lora: dict[str, Any] | None = None,
) -> GRPOConfig:
    """Return the GRPO settings of the standing workload, with a model after SFT.

    Args:
        size: "tiny", "small", or "smollm": SmolLM2-135M-Instruct.
        variant: "fixed" or "game".
        dtype: Dtype of the parameters; SFT runs in float32, that of smollm in bfloat16.
        groups: Groups of 8 episodes per update.
        turns: Maximum number of turns of an episode.
        filler: Number of additional tokens in the first prompt.
        seed: Seed of tasks and sampling.
        lora: Train adapters with these settings instead of all weights.
    """
    config = _base_config(size, variant)
    folder = prepare_language_model(config)
    env_config = {**config.env_config, "max_turns": turns, "filler": filler}
    return (
        _base_config(size, variant)
        .environment(StandingGame, env_config=env_config)
        .language_model(model=folder, dtype=dtype, lora=lora)
        .sft(demonstrations=0)
        .generation(
            max_new_tokens=MAX_NEW_TOKENS[form_of(size)], max_context_tokens=8192
        )
        .rollouts(
            episodes_per_iteration=8 * groups,
            group_size=8,
            # Five wrong guesses are a loss, nothing to go on from.
            stop_policies={"max_turns": "train"},
        )
        .env_runners(num_envs_per_env_runner=64)
        # Every group is trained, so that every update has the same work. The rate is
        # too low to change how long the calls are.
        .training(
            lr=1e-6 if variant == "fixed" else 3e-4,
            drop_zero_variance_groups=variant != "fixed",
        )
        .debugging(seed=seed)
    )


def _base_config(size: str, variant: str) -> GRPOConfig:
    options: dict[str, Any] = {"upper": UPPER[variant], "fixed": variant == "fixed"}
    if size == "smollm":
        options["form"] = form_of(size)
        model = {"model": "smollm2-135m", "dtype": "bfloat16"}
    else:
        model = {"model": str(_random_model(size))}
    return (
        GRPOConfig()
        .environment(StandingGame, env_config=options)
        .language_model(**model)
        .sft(mistake_rate=0.5, minibatch_size=8, **_SFT[size])
    )


def _random_model(size: str) -> Path:
    """Return the folder of the untrained model, named by its content."""
    settings = {**_SHARED, **SIZES[size]}
    texts = [*_WORDS * 3, *_OTHER_TEXT]
    key = json.dumps([settings, texts], sort_keys=True).encode()
    digest = hashlib.blake2b(key, digest_size=6).hexdigest()
    folder = cache_dir() / f"standing_{size}_{digest}"
    if not (folder / "config.json").is_file():
        work = folder.with_suffix(".part")
        shutil.rmtree(work, ignore_errors=True)
        save_tiny_model(work, texts, seed=0, **settings)
        work.rename(folder)
    return folder
