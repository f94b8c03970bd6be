"""Base class of tasks with one tool, whose short calls suit small models.

``ToolEnv`` is for several tools, their schemas and a model's own template.
"""

from __future__ import annotations

import re
from typing import Any

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.parsing import last_tagged
from rllib_llm.envs.text_env import TextEnv


class ToolOrAnswer(TextEnv):
    """A task in which every turn uses the tool or gives the answer.

    Attributes:
        tagged: Pattern of the tags; its groups are a tag's name (the tool's, or
            "answer") and content. The last tag of a text counts, unless it is empty.
        used: Record of the tool's use in this turn, for :meth:`more_info`.
        tag: Name of this turn's tag; "" if the text has none.
    """

    tagged: re.Pattern[str]
    used: dict[str, Any]
    tag: str = ""

    def use(self, text: str) -> str:
        """Use the tool, record it in ``used``, and return the observation."""
        raise NotImplementedError(f"{type(self).__name__}.use() is missing.")

    def judge(self, answer: str) -> tuple[float, bool]:
        """Return the reward of an answer, and whether it is right."""
        raise NotImplementedError(f"{type(self).__name__}.judge() is missing.")

    def parse(self, completion: str) -> tuple[str, str] | None:
        """Return the last use of the tool, or the answer."""
        self.used = {}
        action = last_tagged(self.tagged, completion)
        self.tag = "" if action is None else action[0]
        return action

    def reply(self, action: tuple[str, str]) -> TurnResult:
        """Return the result of the tool, or rate the answer."""
        kind, text = action
        if kind != "answer":
            return TurnResult(self.use(text), success=False)
        reward, is_right = self.judge(text)
        reply = "Correct!" if is_right else "That is wrong."
        return TurnResult(reply, reward, terminated=True, success=is_right)
