"""Environments that need a package of which this process has no version."""

import os
import time

import clash

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.multi_agent_env import MultiAgentTextEnv, Outcome
from rllib_llm.envs.text_env import TextEnv


class Versioned(TextEnv):
    """Says the version of its package; the action "exit" ends the process."""

    max_turns = 1
    numbered_tasks = True

    def start(self, rng, word="say"):
        return f"{word} {clash.VERSION}, not {rng.integers(9)}"

    def parse(self, completion):
        if completion == "exit":
            os._exit(3)
        if completion == "hang":
            time.sleep(600)
        if completion == "fail":
            raise KeyError("an error of its own")
        return completion or "nothing"

    def reply(self, action):
        success = str(clash.VERSION) in action
        return TurnResult("Done.", float(success), terminated=True, success=success)

    def expert_action(self, rng):
        return str(clash.VERSION)

    def random_action(self, rng):
        return str(rng.integers(9))


class Pair(MultiAgentTextEnv):
    """Two agents that say the version, at the same time."""

    possible_agents = ["ann_0", "bob_0"]
    simultaneous = True
    max_turns = 1
    system_prompt = "Be brief."

    def start(self, rng):
        self.texts = {}

    def prompt_for(self, agent):
        return "" if agent in self.texts else f"say {clash.VERSION}"

    def apply(self, agent, action):
        self.texts[agent] = action

    def end_round(self):
        right = {a: float(str(clash.VERSION) in text) for a, text in self.texts.items()}
        return Outcome(right, terminated=True, success=all(right.values()))

    def expert_action(self, agent, rng):
        return str(clash.VERSION)

    def random_action(self, agent, rng):
        return str(rng.integers(9))
