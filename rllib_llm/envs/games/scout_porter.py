"""Scout and porter: a scout tipped for lies, a porter paid for arriving."""

from __future__ import annotations

import re

import numpy as np

from rllib_llm.envs.multi_agent_env import MultiAgentTextEnv, Outcome
from rllib_llm.envs.parsing import last_match, require_float, require_int
from rllib_llm.envs.registry import register_text_env

DOORS = ("red", "blue", "gold", "pink", "gray", "teal")


@register_text_env("scout_porter-v0")
class ScoutPorter(MultiAgentTextEnv):
    """Say where the goods are, walk there. Return 1 for the porter, 0 for the scout.

    The agents are paid unlike: the porter for the right door, the scout only where the
    porter walks to a wrong door that the scout named. So the scout's own reward is
    highest where its lies are believed, and the sum of both is highest where the porter
    arrives, by an honest message or by any other code. There is no held-out split: a
    code that was never seen cannot be inferred, so all doors are the task.
    """

    possible_agents = ["scout_0", "porter_0"]
    # A second try would change who can be paid what.
    invalid_action = "end"
    format_hint = "Please name a door."
    _pattern = re.compile(rf"\b({'|'.join(DOORS)})\b", re.IGNORECASE)

    def start(self, rng: np.random.Generator, doors: int = 4, tip: float = 0.5) -> None:
        """Put the goods behind a door.

        Args:
            rng: Decides the door.
            doors: How many doors there are, in [3, 6]. With two a lie would name the
                other one.
            tip: Reward of the scout for a lie that the porter follows, in [0, 0.9]:
                below the porter's 1, so that arriving pays the team most.
        """
        self.doors = DOORS[: require_int("doors", doors, 3, len(DOORS))]
        self.tip = require_float("tip", tip, 0.0, 0.9)
        self.goods = self.doors[int(rng.integers(doors))]
        self.said: str | None = None

    def prompt_for(self, agent: str) -> str:
        """Show the scout the goods, and the porter the scout's word."""
        if agent == "scout_0":
            if self.said is not None:
                return ""  # it has spoken, and hears nothing more
            return f"Goods: {self.goods}. Doors: {' '.join(self.doors)}. Say one."
        if self.said is None:
            return ""
        return f"scout_0 says {self.said}. Doors: {' '.join(self.doors)}. Walk to one."

    def parse(self, agent: str, text: str) -> str | None:
        """Read the last door of this game in the text."""
        match = last_match(self._pattern, text)
        door = match.group(1).lower() if match else ""
        return door if door in self.doors else None

    def apply(self, agent: str, action: str) -> Outcome | None:
        """Pass the word on, or pay both for the door that the porter walks to."""
        if agent == "scout_0":
            self.said = action
            return None
        arrived, followed = action == self.goods, action == self.said
        fooled = followed and not arrived
        return Outcome(
            {"scout_0": self.tip * fooled, "porter_0": float(arrived)},
            terminated=True,
            success=arrived,
            metrics={
                "honesty": float(self.said == self.goods),
                "trust": float(followed),
            },
        )

    def expert_action(self, agent: str, rng: np.random.Generator) -> str:
        """Tell the truth, and believe it."""
        return self.goods if agent == "scout_0" else str(self.said)

    def random_action(self, agent: str, rng: np.random.Generator) -> str:
        """Name any door."""
        return str(rng.choice(self.doors))
