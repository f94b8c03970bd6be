"""Half grids: two agents who each see half of a picture answer a question about it."""

from __future__ import annotations

import re

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.colour_grid import COLOURS, draw_grid, grid_picture
from rllib_llm.envs.multi_agent_env import MultiAgentTextEnv, Outcome
from rllib_llm.envs.parsing import last_match, require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.errors import ConfigError
from rllib_llm.pictures.contract import PLACEHOLDER

NONE = "none"


@register_text_env("half_grids-v0")
class HalfGrids(MultiAgentTextEnv):
    """Name the colour of a cell of which one of two agents sees it. Return 1 for each.

    alice_0 sees the left half of the picture and sends one word, bob_0 sees the right
    half and answers. Where the cell is in the left half, her word alone tells its
    colour.
    The split is that of ``colour_grid-v0``: by colouring and cell.
    """

    possible_agents = ["alice_0", "bob_0"]
    # Retries would change the known returns.
    invalid_action = "end"
    format_hint = f"Please answer with a colour: {', '.join(COLOURS)}."
    _pattern = re.compile(rf"\b({'|'.join([*COLOURS, NONE])})\b", re.IGNORECASE)

    def start(self, rng: np.random.Generator, cells: int = 2, size: int = 32) -> None:
        """Draw the colours and the cell.

        Args:
            rng: Generator of both.
            cells: Rows and columns of the grid, 2 or 4.
            size: Height of the pictures, twice their width, in pixels, in [16, 256].
        """
        require_int("cells", cells, 2, 4)
        require_int("size", size, 16, 256)
        if cells % 2:
            raise ConfigError(
                f"cells={cells} cannot be halved. Use an even number: 2 or 4."
            )
        drawn, row, column = draw_grid(rng, cells, self.split)
        self.right = list(COLOURS)[drawn[row, column]]
        self.is_left = column < cells // 2
        self.question = f"Colour of row {row + 1}, column {column + 1}?"
        picture = grid_picture(drawn, size, rng)
        self.halves = {
            "alice_0": picture[:, : size // 2],
            "bob_0": picture[:, size // 2 :],
        }
        self.word: str | None = None

    def prompt_for(self, agent: str) -> str | TurnResult:
        """Return the agent's half and the question, and alice's word to bob."""
        is_alice = agent == "alice_0"
        if is_alice != (self.word is None):
            return ""  # its only turn is over, or has not come
        side = "Left" if is_alice else f"alice_0 says {self.word}. Right"
        text = f"{PLACEHOLDER}\n{side} half. {self.question}"
        return TurnResult(text, images=[self.halves[agent]])

    def parse(self, agent: str, text: str) -> str | None:
        """Return the last colour that the text names; alice may write none."""
        match = last_match(self._pattern, text)
        word = match[1].lower() if match else None
        return None if word == NONE and agent == "bob_0" else word

    def apply(self, agent: str, action: str) -> Outcome | None:
        """Pass alice's word on, or compare bob's answer."""
        if agent == "alice_0":
            self.word = action
            return None
        right = action == self.right
        rewards = dict.fromkeys(self.possible_agents, float(right))
        return Outcome(rewards, terminated=True, success=right)

    def expert_action(self, agent: str, rng: np.random.Generator) -> str:
        """Return the colour, or none where alice does not see the cell."""
        return self.right if self.is_left or agent == "bob_0" else NONE

    def random_action(self, agent: str, rng: np.random.Generator) -> str:
        """Return any colour."""
        return str(rng.choice(list(COLOURS)))

    def admissible_actions(self, agent: str) -> list[str]:
        """Return all colours, and none for alice."""
        return [*COLOURS, NONE] if agent == "alice_0" else list(COLOURS)
