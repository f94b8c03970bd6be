"""Base class of environments with tools.

An author implements :meth:`TextEnv.start`, ``tools`` and :meth:`ToolEnv.judge`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.parsing import last_match
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.tools.formats import Call, check_format
from rllib_llm.tools.tool_set import Result, ToolSet, tally

_ANSWER = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)
_WORD = re.compile(r"\w")


class ToolEnv(TextEnv):
    """A task in which every turn calls tools or gives the answer.

    A turn with tool calls is followed by their results. Any other text with a word in
    it is the answer (the content of the last ``<answer>...</answer>``, if any), which
    :meth:`judge` rates. The model reads the problems of malformed calls and of invalid
    arguments; a turn with such calls only is an invalid action.

    With ``tool_format="auto"`` the model's chat template presents the tools and their
    results if it can; otherwise the first message describes them. With ``"tags"`` it
    always does.

    Attributes:
        tools: Typed functions, objects whose public methods are tools, or classes of
            such, which are instantiated per episode; :meth:`start` may set it. Without
            tools, every text is an answer.
        more_tools: Tools that an environment around the task adds to them.
        tool_format: ``"auto"``, ``"hermes"``, ``"llama3"`` or ``"tags"``; an option of
            ``env_config``.
        max_calls: Maximum number of calls per turn that are run.
        max_result_chars: Maximum length of a result, in characters; the rest is cut.
        tool_set: Tools of the current episode, if there are any.
    """

    tools: Any = ()
    more_tools: Sequence[Any] = ()
    tool_format: str = "auto"
    max_calls: int = 8
    max_result_chars: int = 2000
    format_hint = "Call a tool, or give your answer."

    _BASE_OPTIONS: ClassVar[tuple[str, ...]] = (*TextEnv._BASE_OPTIONS, "tool_format")
    _KEPT: ClassVar[frozenset[str]] = TextEnv._KEPT | {"tool_format"}

    def judge(self, answer: str) -> float | bool | TurnResult:
        """Rate the answer.

        Returns:
            The reward, where 1 or more means success, which ends the episode; or a
            TurnResult, which may continue it, e.g. with a user's reply.
        """
        raise NotImplementedError(f"{type(self).__name__}.judge() is missing.")

    def write_call(self, name: str, /, **arguments: Any) -> str:
        """Return the text of a call, e.g. for :meth:`expert_action`."""
        return self.tool_set.write_call(name, **arguments)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode; info holds ``tools`` for the chat template."""
        self._results: list[Result] = []
        self._of_turn: list[Result] = []
        prompt, info = super().reset(seed=seed, options=options)
        # After start(), which may set the episode's tools.
        listed = self.tools if isinstance(self.tools, list | tuple) else [self.tools]
        sources = [*listed, *self.more_tools]
        self._has_tools = bool(sources)
        if not self._has_tools:
            return prompt, info
        self.tool_set = ToolSet(
            sources,
            tool_format=self.tool_format,
            max_calls=self.max_calls,
            max_result_chars=self.max_result_chars,
        )
        if self.tool_format == "tags":
            return f"{self.tool_set.describe()}\n{prompt}", info
        tools = {"tools": self.tool_set.schemas, "tool_format": self.tool_format}
        return prompt, {**info, **tools}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play one turn; ``info["metrics"]`` counts the episode's calls."""
        self._of_turn = []
        text, reward, terminated, truncated, info = super().step(action)
        info["metrics"] = {**tally(self._results), **info["metrics"]}
        return text, reward, terminated, truncated, info

    def parse(self, completion: str) -> list[Call] | str | None:
        """Return the calls in a completion, else the answer, else None."""
        calls = self._calls = self.tool_set.parse(completion) if self._has_tools else []
        if calls:
            return calls if any(call.problem is None for call in calls) else None
        tagged = last_match(_ANSWER, completion)
        answer = (tagged[1] if tagged else completion).strip()
        return answer if _WORD.search(answer) else None

    def reply(self, action: list[Call] | str) -> TurnResult:
        """Run the calls, or rate the answer."""
        if not isinstance(action, str):
            return TurnResult(self._run(action))
        judged = self.judge(action)
        if isinstance(judged, TurnResult):
            return judged
        success = float(judged) >= 1.0
        reply = "That is right." if success else "That is not right."
        return TurnResult(reply, float(judged), terminated=True, success=success)

    def more_info(self) -> dict[str, Any]:
        """Return the calls of the turn and their results; see docs/tools.md."""
        results = self._of_turn
        info: dict[str, Any] = {
            "tool": (results[0].call.name or "malformed") if results else None,
            "tool_error": any(result.failed for result in results),
            "tool_cost": sum(result.cost for result in results),
            "tool_calls": [
                {
                    "name": result.call.name,
                    "arguments": result.call.arguments,
                    "status": result.status,
                }
                for result in results
            ],
        }
        if results and self.tool_format != "tags":
            # For chat templates that render results in their own role.
            info["tool_results"] = [
                {"name": result.call.name, "content": result.text} for result in results
            ]
        return info

    def _check_base_options(self) -> None:
        super()._check_base_options()
        check_format(self.tool_format)

    def _run(self, calls: list[Call]) -> str:
        self._of_turn = self.tool_set.run(calls)
        self._results += self._of_turn
        return self.tool_set.results_text(self._of_turn)

    def _invalid(self) -> TurnResult:
        result = super()._invalid()
        if self._calls:
            # The model reads the calls' problems instead of the format hint.
            result.observation = self._run(self._calls)
        return result
