"""The base of environments in which a model works with tools.

An author writes :meth:`TextEnv.start`, ``tools`` and :meth:`ToolEnv.judge`.
"""

from __future__ import annotations

import re
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

    A turn that calls tools reads their results; any other text with a word in it is the
    answer (``<answer>...</answer>``, the last one, where there is one), and
    :meth:`judge` decides. Calls that cannot be read or do not fit the tool's arguments
    are told to the model; a turn of nothing but such calls is an invalid action.

    With ``tool_format="auto"`` the model's chat template presents the tools and their
    results where it can; otherwise the first message describes them.
    ``"tags"`` always does so.

    Attributes:
        tools: Typed functions, objects whose public methods are tools, or classes of
            such, of which each episode gets a new object; :meth:`start` may set it.
        tool_format: ``"auto"``, ``"hermes"``, ``"llama3"`` or ``"tags"``; an option of
            ``env_config``.
        max_calls: Most calls of a turn that are run.
        max_result_chars: Longer results are cut.
        tool_set: The tools of the running episode.
    """

    tools: Any = ()
    tool_format: str = "auto"
    max_calls: int = 8
    max_result_chars: int = 2000
    format_hint = "Call a tool, or give your answer."

    _BASE_OPTIONS: ClassVar[tuple[str, ...]] = (*TextEnv._BASE_OPTIONS, "tool_format")
    _KEPT: ClassVar[frozenset[str]] = TextEnv._KEPT | {"tool_format"}

    def judge(self, answer: str) -> float | bool | TurnResult:
        """Judge the answer.

        Returns:
            The reward, 1 or more for success, which ends the episode; or a TurnResult,
            which may go on, e.g. with a user's reply.
        """
        raise NotImplementedError(f"{type(self).__name__}.judge() is missing.")

    def write_call(self, name: str, /, **arguments: Any) -> str:
        """Return the text of a call, for :meth:`expert_action` and the like."""
        return self.tool_set.write_call(name, **arguments)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode; info holds ``tools`` for the chat template."""
        self._results: list[Result] = []
        self._of_turn: list[Result] = []
        prompt, info = super().reset(seed=seed, options=options)
        self.tool_set = ToolSet(
            self.tools,
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
        *told, info = super().step(action)
        info["metrics"] = {**tally(self._results), **info["metrics"]}
        return (*told, info)

    def parse(self, completion: str) -> list[Call] | str | None:
        """Return the calls in a completion, else the answer, else None."""
        calls = self._calls = self.tool_set.parse(completion)
        if calls:
            return calls if any(call.problem is None for call in calls) else None
        tagged = last_match(_ANSWER, completion)
        answer = (tagged[1] if tagged else completion).strip()
        return answer if _WORD.search(answer) else None

    def reply(self, action: list[Call] | str) -> TurnResult:
        """Run the calls, or judge the answer."""
        if not isinstance(action, str):
            return TurnResult(self._run(action))
        verdict = self.judge(action)
        if isinstance(verdict, TurnResult):
            return verdict
        success = float(verdict) >= 1.0
        said = "That is right." if success else "That is not right."
        return TurnResult(said, float(verdict), terminated=True, success=success)

    def more_info(self) -> dict[str, Any]:
        """Return what the turn's calls did; see docs/tools.md."""
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
            # Read by chat templates that have a role for them.
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
            result.observation = self._run(self._calls)
        return result
