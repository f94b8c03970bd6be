"""Tools: typed Python functions that a model may call.

The JSON schema of a tool is derived from its type hints and its Google docstring
(``transformers.utils.get_json_schema``), in the form that chat templates read.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import math
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from rllib_llm.errors import ConfigError, RLlibLLMError

Function = TypeVar("Function", bound=Callable[..., Any])

# Tags with these names are not calls, in any format.
RESERVED = ("answer", "think")
_SETTINGS = "_rllib_llm_tool"
_SCHEMAS: dict[Any, dict[str, Any]] = {}


class ToolUnavailable(RLlibLLMError):
    """A tool is unavailable, through no fault of the model that called it.

    The call is retried. If all retries fail, the episode is dropped and repeated; this
    never counts as a reward of zero. The model reads any other exception of a tool as
    the result of its call.
    """


class ToolTimeout(RLlibLLMError):
    """A call exceeded its tool's ``timeout_s``; the model reads this as its result."""


@dataclasses.dataclass(frozen=True, slots=True)
class ToolSettings:
    """Execution settings of a tool.

    Attributes:
        timeout_s: Time limit of a call in seconds, > 0; None: no limit. A coroutine is
            cancelled at its next ``await``, a process is killed. A plain function runs
            in a thread, which cannot be stopped: it is abandoned, and may still change
            shared state.
        process: Whether to run in a separate process, which is reused.
        retries: Number of retries after :class:`ToolUnavailable`, >= 0.
        pure: Whether equal arguments always give equal results; then results are
            cached for all episodes of this process.
        cost: Cost of a call, in units of reward; logged, and subtracted by the reward
            component ``tool_cost``.
    """

    timeout_s: float | None = None
    process: bool = False
    retries: int = 0
    pure: bool = False
    cost: float = 0.0

    def __post_init__(self) -> None:
        if self.timeout_s is not None and not 0 < self.timeout_s < math.inf:
            raise ConfigError(
                f"timeout_s={self.timeout_s!r} must be > 0 seconds, or None for no "
                "limit."
            )
        if not isinstance(self.retries, int) or self.retries < 0:
            raise ConfigError(f"retries={self.retries!r} must be an int >= 0.")
        if not math.isfinite(self.cost):
            raise ConfigError(f"cost={self.cost!r} must be a finite number.")


def tool(**settings: Any) -> Callable[[Function], Function]:
    """Set how a function or method runs as a tool, e.g. ``@tool(timeout_s=2)``.

    Any typed function is a tool; the decorator is needed for other settings than the
    defaults only.

    Args:
        settings: Fields of :class:`ToolSettings`.
    """
    chosen = ToolSettings(**settings)

    def decorate(function: Function) -> Function:
        setattr(function, _SETTINGS, chosen)
        return function

    return decorate


@dataclasses.dataclass(frozen=True)
class Tool:
    """A function that a model may call.

    Attributes:
        name: Name that the model uses.
        schema: ``{"type": "function", "function": {"name", "description",
            "parameters"}}``.
        run: Called with the arguments as keywords; may be a coroutine function.
        settings: Execution settings.
        connect_s: Seconds, >= 0, that a coroutine ``run`` may spend on its connection
            beside ``timeout_s``. If positive, ``run`` limits the call itself, and
            raises :class:`ToolUnavailable` for the connection.
    """

    name: str
    schema: dict[str, Any]
    run: Callable[..., Any]
    settings: ToolSettings = ToolSettings()
    connect_s: float = 0.0

    @property
    def parameters(self) -> dict[str, Any]:
        """JSON schema of the arguments."""
        return self.schema["function"]["parameters"]

    @property
    def is_async(self) -> bool:
        """True if the tool is a coroutine function."""
        return inspect.iscoroutinefunction(self.run)

    def read(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return validated arguments, converted to the types that Python expects.

        Raises:
            ValueError: If an argument does not match the schema; names it and says why.
        """
        validator = _validator(json.dumps(self.parameters, sort_keys=True))
        problems = sorted(validator.iter_errors(arguments), key=lambda p: str(p.path))
        if problems:
            where = f"{problems[0].json_path[2:]}: " if problems[0].path else ""
            raise ValueError(f"{where}{problems[0].message}")
        properties = self.parameters.get("properties", {})
        return {
            # JSON Schema accepts 3.0 as an integer; Python's range() does not.
            name: int(value)
            if properties.get(name, {}).get("type") == "integer"
            and isinstance(value, float)
            else value
            for name, value in arguments.items()
        }


def tools_of(sources: object) -> list[Tool]:
    """Return the tools of functions, objects, :class:`Tool`, and lists of them.

    The public methods of an object are tools; so are those of a class, which is
    instantiated without arguments.

    Raises:
        ConfigError: If a source cannot be a tool, or two tools have the same name.
    """
    tools = list(_each_tool(sources))
    names = [t.name for t in tools]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"Two tools have the name {twice[0]!r}. Rename one of them.")
    return tools


def _each_tool(source: object) -> Iterable[Tool]:
    if isinstance(source, Tool):
        yield source
    elif isinstance(source, list | tuple):
        for part in source:
            yield from _each_tool(part)
    elif hasattr(source, "as_tools"):  # e.g. McpServer
        yield from source.as_tools()
    elif isinstance(source, type):
        yield from _each_tool(source())
    elif inspect.isroutine(source):
        yield _as_tool(source)
    else:
        methods = [
            getattr(source, name)
            for name in vars(type(source)) | _inherited(type(source))
            if not name.startswith("_") and inspect.isroutine(getattr(source, name))
        ]
        if not methods:
            raise ConfigError(
                f"{source!r} does not define any tools. Pass typed functions, or an "
                "object whose public methods are tools."
            )
        yield from map(_as_tool, methods)


def _inherited(kind: type) -> dict[str, Any]:
    """Return the attributes that a class inherits, except those of ``object``."""
    return {k: v for base in kind.__mro__[1:-1] for k, v in vars(base).items()}


def _as_tool(function: Callable[..., Any]) -> Tool:
    settings = getattr(function, _SETTINGS, ToolSettings())
    name = function.__name__
    if name in RESERVED:
        raise ConfigError(
            f"The name {name!r} is reserved for a tag that is not a tool call. Rename "
            "the tool."
        )
    is_method = inspect.ismethod(function)
    importable = "<" not in function.__qualname__ and function.__module__ != "__main__"
    is_plain = not is_method and not inspect.iscoroutinefunction(function)
    if settings.process and not (is_plain and importable):
        raise ConfigError(
            f"The tool {name!r} has process=True, which requires a plain function at "
            "the top level of an importable module. Move it there, or remove process."
        )
    if settings.pure and is_method:
        raise ConfigError(
            f"The tool {name!r} has pure=True, but a method's result may depend on its "
            "object. Turn it into a function, or remove pure."
        )
    return Tool(name, _schema(function), function, settings)


def _schema(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the schema, derived once per function."""
    key = getattr(function, "__func__", function)
    if key not in _SCHEMAS:
        from transformers.utils import chat_template_utils

        try:
            schema = chat_template_utils.get_json_schema(function)
        except (
            chat_template_utils.DocstringParsingException,
            chat_template_utils.TypeHintParsingException,
        ) as error:
            raise ConfigError(
                f"{function.__qualname__} cannot be a tool: {error}. Give every "
                "argument a type hint, and a line in the docstring under 'Args:'."
            ) from error
        schema["function"].pop("return", None)  # some chat templates would print it
        _SCHEMAS[key] = schema
    return _SCHEMAS[key]


@functools.lru_cache(maxsize=1024)
def _validator(schema: str) -> Any:
    from jsonschema import Draft202012Validator

    parameters = json.loads(schema)
    for parameter in parameters.get("properties", {}).values():
        # transformers writes optional types as OpenAPI's "nullable", which JSON Schema
        # ignores.
        if parameter.pop("nullable", False) and "type" in parameter:
            kinds = parameter["type"]
            kinds = kinds if isinstance(kinds, list) else [kinds]
            parameter["type"] = [*kinds, "null"]
    return Draft202012Validator({"additionalProperties": False, **parameters})
