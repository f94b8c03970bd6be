"""The tools of an environment: parsing, execution, and rendering of results."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rllib_llm.errors import ConfigError, did_you_mean
from rllib_llm.tools import running
from rllib_llm.tools.formats import Call, check_format, find_calls, text_format
from rllib_llm.tools.result_text import as_text, clip
from rllib_llm.tools.tool import Tool, ToolTimeout, tools_of

if TYPE_CHECKING:
    from collections.abc import Hashable

_STATUSES = ("ok", "error", "malformed", "timeout")


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """The result of one call.

    Attributes:
        call: The call as the model wrote it.
        text: Text that the model reads.
        status: ``"ok"``; ``"error"`` (the tool raised), ``"malformed"`` (not run), or
            ``"timeout"``.
        seconds: Duration of the call.
        cost: Cost of the tool, if it ran; cached results cost nothing.
        retries: Number of retries.
        cached: Whether the result is that of an earlier equal call.
    """

    call: Call
    text: str
    status: str = "ok"
    seconds: float = 0.0
    cost: float = 0.0
    retries: int = 0
    cached: bool = False

    @property
    def failed(self) -> bool:
        """True unless the call returned a result."""
        return self.status != "ok"


class ToolSet:
    """The tools that a model may call.

    Args:
        sources: Functions, objects or classes whose public methods are tools,
            ``McpServer``, ``Tool``; one of them or a list.
        tool_format: Format of the calls: ``"hermes"``, ``"llama3"``, ``"tags"``, or
            ``"auto"``: any of these.
        max_calls: Maximum number of calls per turn that are run.
        max_result_chars: Maximum length of a result, in characters; the rest is cut.

    Raises:
        ConfigError: If a source cannot be a tool.
    """

    def __init__(
        self,
        sources: object,
        *,
        tool_format: str = "auto",
        max_calls: int = 8,
        max_result_chars: int = 2000,
    ):
        self.tool_format = check_format(tool_format)
        self.max_calls = max_calls
        self.max_result_chars = max_result_chars
        self.tools: dict[str, Tool] = {t.name: t for t in tools_of(sources)}
        if not self.tools:
            raise ConfigError("The list of tools is empty. Pass at least one function.")

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """JSON schemas of the tools, in the form that chat templates read."""
        return [t.schema for t in self.tools.values()]

    def describe(self) -> str:
        """Return a description of the tools for chat templates that cannot give one."""
        return text_format(self.schemas, self.tool_format).describe(self.schemas)

    def write_call(self, name: str, /, **arguments: Any) -> str:
        """Return the text of a call, e.g. for a scripted expert."""
        parameters = self._get(name).parameters
        names = parameters.get("properties", {})
        ordered = {n: arguments[n] for n in names if n in arguments}
        call_format = text_format(self.schemas, self.tool_format)
        return call_format.write(name, {**ordered, **arguments}, parameters)

    def parse(self, completion: str) -> list[Call]:
        """Return the calls in a completion, in order; invalid ones name the problem."""
        calls = find_calls(completion, self.schemas, self.tool_format)
        return [self._check(call, i) for i, call in enumerate(calls)]

    def _check(self, call: Call, number: int) -> Call:
        if call.problem is not None:
            return call
        problem, arguments = None, call.arguments
        if number >= self.max_calls:
            problem = f"at most {self.max_calls} calls a turn are run"
        elif call.name not in self.tools:
            hint = did_you_mean(call.name, self.tools)
            problem = f"there is no tool {clip(call.name, 40)!r}. {hint}"
        else:
            try:
                arguments = self.tools[call.name].read(arguments)
            except ValueError as error:
                problem = clip(str(error), 200)
        return dataclasses.replace(call, arguments=arguments, problem=problem)

    def run(self, calls: Sequence[Call]) -> list[Result]:
        """Run calls in order; consecutive coroutines run concurrently.

        Raises:
            ToolUnavailable: If a tool was unavailable after all retries.
        """
        results: list[Result] = []
        for at_once, group in itertools.groupby(calls, self._is_async):
            if at_once:
                waiting = [self._start(call) for call in group]
                results += [finish() for finish in waiting]
            else:
                results += [self._start(call)() for call in group]
        return results

    def results_text(self, results: Sequence[Result]) -> str:
        """Return the results of a turn as a user message."""
        call_format = text_format(self.schemas, self.tool_format)
        return call_format.results([result.text for result in results])

    def _is_async(self, call: Call) -> bool:
        return call.problem is None and self._get(call.name).is_async

    def _get(self, name: str) -> Tool:
        if name not in self.tools:
            raise ConfigError(
                f"There is no tool {name!r}. {did_you_mean(name, self.tools)}"
            )
        return self.tools[name]

    def _start(self, call: Call) -> Any:
        """Start a call; return a function that waits for its :class:`Result`."""
        if call.problem is not None:
            text = f"Error: {call.name and call.name + ': '}{call.problem}"
            result = Result(call, text, "malformed")
            return lambda: result
        tool = self._get(call.name)
        key = running.key_of(tool, call.arguments) if tool.settings.pure else None
        cached = running.RESULT_CACHE.get(key) if key is not None else None
        if cached is not None:
            result = Result(call, clip(cached, self.max_result_chars), cached=True)
            return lambda: result
        began = time.perf_counter()
        wait = running.start(tool, call.arguments)
        return lambda: self._finish(tool, call, wait, key, began)

    def _finish(
        self, tool: Tool, call: Call, wait: running.Wait, key: Hashable, began: float
    ) -> Result:
        status, retries = "ok", 0
        try:
            value, retries = running.finish(tool, call.arguments, wait)
            text = as_text(value)
            if key is not None:
                running.RESULT_CACHE.put(key, text)
        except ToolTimeout:
            status = "timeout"
            text = f"Error: {tool.name} took longer than {tool.settings.timeout_s:g} s."
        # Infrastructure failures must end the episode, not become text for the model.
        except running.ToolUnavailable:
            raise
        except (Exception, SystemExit) as error:  # the model reads what tools raise
            status, text = "error", running.error_text(tool, error)
        return Result(
            call,
            clip(as_text(text), self.max_result_chars),
            status,
            seconds=time.perf_counter() - began,
            cost=tool.settings.cost,
            retries=retries,
        )


def tally(results: Sequence[Result]) -> dict[str, float]:
    """Return the tool metrics of an episode."""
    counts = {s: sum(r.status == s for r in results) for s in _STATUSES}
    return {
        "tool_calls": len(results),
        "tool_malformed": counts["malformed"],
        "tool_errors": counts["error"],
        "tool_timeouts": counts["timeout"],
        "tool_retries": sum(r.retries for r in results),
        "tool_cache_hits": sum(r.cached for r in results),
        "tool_seconds": sum(r.seconds for r in results),
        "tool_cost": sum(r.cost for r in results),
    }
