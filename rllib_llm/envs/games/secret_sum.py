"""Secret sum: a chain of agents with private numbers computes their sum."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from rllib_llm.envs.multi_agent_env import MultiAgentTextEnv, Outcome
from rllib_llm.envs.parsing import last_match, require_float, require_int
from rllib_llm.envs.registry import register_text_env

NAMES = ("alice_0", "bob_0", "carol_0", "dave_0", "erin_0", "frank_0")


@register_text_env("secret_sum-v0")
class SecretSum(MultiAgentTextEnv):
    """Pass on what is needed, answer the sum modulo n. Return 1 for each if right.

    Every agent has a private number in ``[0, numbers)``, acts once, and reads only the
    message of the one before it; the last one answers. No agent can solve it alone, and
    any convention that preserves the information works. Episodes of both splits are
    drawn alike, because an unseen sum cannot be inferred from others.
    """

    # Retries would change the exact values.
    invalid_action = "end"
    format_hint = "Please answer as 'say 1'."
    _pattern = re.compile(r"\bsay[ \t]+([0-9]{1,2})\b", re.IGNORECASE)

    def agent_names(self, agents: int = 2, **_: object) -> list[str]:
        """Return the first ``agents`` names."""
        return list(NAMES[: require_int("agents", agents, 2, len(NAMES))])

    def start(
        self,
        rng: np.random.Generator,
        agents: int = 2,
        numbers: int = 4,
        partial: float = 0.0,
    ) -> None:
        """Draw the private numbers.

        Args:
            rng: Generator of the numbers.
            agents: Number of agents, in [2, 6].
            numbers: Private numbers and messages are 0 to ``numbers - 1``, in [2, 10].
            partial: Reward of the nearest wrong answers, in [0, 1); it falls
                linearly with the distance.
        """
        self.numbers = require_int("numbers", numbers, 2, 10)
        self.partial = require_float("partial", partial, 0.0, 0.99)
        self.secrets = [int(n) for n in rng.integers(numbers, size=agents)]
        self.messages: list[int] = []

    def prompt_for(self, agent: str) -> str:
        """Return the agent's own number and the message that it receives."""
        place = self.possible_agents.index(agent)
        if len(self.messages) > place:
            return ""  # its only turn is over
        received = ""
        if 0 < place == len(self.messages):
            received = f"{NAMES[place - 1]} says {self.messages[-1]}. "
        if place + 1 == len(self.secrets):
            task = f"Say the sum modulo {self.numbers}."
        else:
            task = f"Tell {NAMES[place + 1]} 0 to {self.numbers - 1}."
        return f"{received}You have {self.secrets[place]}. {task}"

    def parse(self, agent: str, text: str) -> int | None:
        """Return the number of the last ``say <n>`` in range."""
        match = last_match(self._pattern, text)
        number = int(match.group(1)) if match else self.numbers
        return number if number < self.numbers else None

    def apply(self, agent: str, action: int) -> Outcome | None:
        """Pass the number on, or rate it if it is the last one."""
        self.messages.append(action)
        if len(self.messages) < len(self.secrets):
            return None
        reward = float(answer_rewards(self.secrets, self.numbers, self.partial)[action])
        return Outcome(
            dict.fromkeys(self.possible_agents, reward),
            terminated=True,
            success=reward == 1.0,
        )

    def expert_action(self, agent: str, rng: np.random.Generator) -> str:
        """Return the sum of the own number and of the received one."""
        received = self.messages[-1] if self.messages else 0
        return f"say {(received + self.secrets[len(self.messages)]) % self.numbers}"

    def random_action(self, agent: str, rng: np.random.Generator) -> str:
        """Return any number in range."""
        return f"say {rng.integers(self.numbers)}"

    def optimal_value(self) -> float:
        """Return each agent's return under the best team policy."""
        return 1.0


def answer_rewards(
    secrets: Sequence[int], numbers: int, partial: float = 0.0
) -> np.ndarray:
    """Return the team's reward of every answer [numbers].

    Distances are measured around the circle of residues: the reward is 1 at the sum,
    ``partial`` next to it, falling linearly to 0 at the opposite side.
    """
    off = (np.arange(numbers) - sum(secrets)) % numbers
    distance = np.minimum(off, numbers - off)
    farthest = max(numbers // 2, 1)
    near = partial * (farthest - distance) / max(farthest - 1, 1)
    return np.where(distance == 0, 1.0, near)
