"""Environments that use the global random state or break their process."""

from __future__ import annotations

import os
import random
import sys
import time

import numpy as np
from multi_toys import Together, over

from rllib_llm.data.types import TurnResult
from rllib_llm.envs import IsolatedRandomState, TextEnv


class Library:
    """Creates puzzles with the global random state, as many libraries do."""

    def __init__(self, seed):
        random.seed(seed)
        np.random.seed(seed)

    def puzzle(self):
        """Return a puzzle, slowly enough that other threads draw in between."""
        drawn = []
        for _ in range(4):
            time.sleep(0.002)
            drawn += [random.randrange(100), int(np.random.randint(100))]
        return " ".join(map(str, drawn))


class SeedsGlobally(TextEnv):
    """Seeds the global random state; correct only in a separate process."""

    max_turns = 2

    def start(self, rng):
        return Library(int(rng.integers(2**31))).puzzle()

    def reply(self, action):
        return TurnResult(f"You said {action}.", reward=1.0)

    def random_action(self, rng):
        return "hi"


class Tamed(SeedsGlobally):
    """Calls the same library with an IsolatedRandomState."""

    def start(self, rng):
        seed = int(rng.integers(2**31))
        self.state = IsolatedRandomState(seed)
        with self.state.swapped_in():
            return Library(seed).puzzle()


class TeamThatSeeds(Together):
    """Seeds the global random state in a game of several agents."""

    plan = (over({"ann_0": 1.0}),)

    def start(self, rng, **options):
        super().start(rng, **options)
        self.puzzle = Library(int(rng.integers(2**31))).puzzle()

    def prompt_for(self, agent):
        return f"{agent}: {self.puzzle}"


class Restless(TextEnv):
    """Breaks its process in its second turn, in the first attempt of a seed."""

    max_turns = 2
    how = ""

    def start(self, rng, how: str = "", marks: str = ""):
        self.how = how
        self.mark = os.path.join(marks, str(rng.integers(2**31)))
        sys.stdout.write("noise among the messages")
        sys.stdout.flush()
        return f"Go on in {os.getpid()}."

    def reply(self, action):
        if not os.path.exists(self.mark):
            with open(self.mark, "w"):
                pass
            if self.how == "exit":
                os._exit(3)
            if self.how == "hang":
                time.sleep(600)
            if self.how == "raise":
                raise CannotBePickled(sys.stdout)
        return TurnResult("Fine.", reward=1.0, terminated=True, success=True)


class CannotBePickled(Exception):
    """Exception that cannot be sent to another process."""
