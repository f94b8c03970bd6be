"""A tool: a typed Python function that a model may call.

Its JSON schema comes from the type hints and the Google docstring
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

# A pair of these tags is no call in any format.
RESERVED = ("answer", "think")
_SETTINGS = "_rllib_llm_tool"
_SCHEMAS: dict[Any, dict[str, Any]] = {}


class ToolUnavailable(RLlibLLMError):
    """A tool cannot be reached, through no fault of the model that called it.

    It is retried, and then fails the episode, which is dropped and played anew: it
    never counts as a reward of zero. Any other exception of a tool is told to the
    model.
    """


class ToolTimeout(RLlibLLMError):
    """A call took longer than its tool's ``timeout_s``; the model is told."""


@dataclasses.dataclass(frozen=True, slots=True)
class ToolSettings:
    """How a tool is run.

    Attributes:
        timeout_s: Seconds a call may take, > 0; None: no limit of its own. A coroutine
            is cancelled at its next ``await``, a process is killed. A plain function
            runs in a thread, which cannot be stopped: it is left to itself, and may
            still change what it holds.
        process: Whether to run in a process of its own, started once and kept.
        retries: How often a call is repeated after :class:`ToolUnavailable`, >= 0.
        pure: Whether equal arguments give equal results for ever; then they are kept,
            for all episodes of this process.
        cost: Of each call, in units of reward; logged, and charged by the reward
            ``tool_cost``.
    """

    timeout_s: float | None = None
    process: bool = False
    retries: int = 0
    pure: bool = False
    cost: float = 0.0

    def __post_init__(self) -> None:
        if self.timeout_s is not None and not 0 < self.timeout_s < math.inf:
            raise ConfigError(
                f"timeout_s={self.timeout_s!r} must be > 0 seconds, or None for none."
            )
        if not isinstance(self.retries, int) or self.retries < 0:
            raise ConfigError(f"retries={self.retries!r} must be an int >= 0.")
        if not math.isfinite(self.cost):
            raise ConfigError(f"cost={self.cost!r} must be a finite number.")


def tool(**settings: Any) -> Callable[[Function], Function]:
    """Say how a function or method is run as a tool, e.g. ``@tool(timeout_s=2)``.

    Only what differs from the defaults needs it; any typed function is a tool.

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
        name: What the model calls it.
        schema: ``{"type": "function", "function": {"name", "description",
            "parameters"}}``.
        run: Called with the arguments as keywords; may be a coroutine function.
        settings: How it is run.
    """

    name: str
    schema: dict[str, Any]
    run: Callable[..., Any]
    settings: ToolSettings = ToolSettings()

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON schema of its arguments."""
        return self.schema["function"]["parameters"]

    @property
    def is_async(self) -> bool:
        """Whether it is a coroutine function."""
        return inspect.iscoroutinefunction(self.run)

    def read(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return valid arguments as Python wants them.

        Raises:
            ValueError: If they do not fit the schema; says which and why.
        """
        validator = _validator(json.dumps(self.parameters, sort_keys=True))
        problems = sorted(validator.iter_errors(arguments), key=lambda p: str(p.path))
        if problems:
            where = f"{problems[0].json_path[2:]}: " if problems[0].path else ""
            raise ValueError(f"{where}{problems[0].message}")
        properties = self.parameters.get("properties", {})
        return {
            # JSON Schema takes 3.0 for an integer.
            name: int(value)
            if properties.get(name, {}).get("type") == "integer"
            and isinstance(value, float)
            else value
            for name, value in arguments.items()
        }


def tools_of(sources: Any) -> list[Tool]:
    """Return the tools of functions, objects, :class:`Tool`, and lists of them.

    The public methods of an object are tools; so are those of a class, of which a new
    object is made, without arguments.

    Raises:
        ConfigError: If one cannot be a tool, or two have the same name.
    """
    found = list(_each_tool(sources))
    names = [t.name for t in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"Two tools are called {twice[0]!r}. Rename one of them.")
    return found


def _each_tool(source: Any) -> Iterable[Tool]:
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
                f"{source!r} has no tools. Give typed functions, or an object whose "
                "public methods are tools."
            )
        yield from map(_as_tool, methods)


def _inherited(kind: type) -> dict[str, Any]:
    """Return what a class has from its bases, those of ``object`` left out."""
    return {k: v for base in kind.__mro__[1:-1] for k, v in vars(base).items()}


def _as_tool(function: Callable[..., Any]) -> Tool:
    settings = getattr(function, _SETTINGS, ToolSettings())
    name = function.__name__
    if name in RESERVED:
        raise ConfigError(f"A tool cannot be called {name!r}; rename it.")
    is_method = inspect.ismethod(function)
    importable = "<" not in function.__qualname__ and function.__module__ != "__main__"
    is_plain = not is_method and not inspect.iscoroutinefunction(function)
    if settings.process and not (is_plain and importable):
        raise ConfigError(
            f"The tool {name!r} has process=True, which needs a plain function at the "
            "top of an importable module. Move it there, or leave process out."
        )
    if settings.pure and is_method:
        raise ConfigError(
            f"The tool {name!r} has pure=True, but a method's result may depend on its "
            "object. Make it a function, or leave pure out."
        )
    return Tool(name, _schema(function), function, settings)


def _schema(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the schema, made once for each function."""
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
        schema["function"].pop("return", None)  # a template may print it
        _SCHEMAS[key] = schema
    return _SCHEMAS[key]


@functools.lru_cache(maxsize=1024)
def _validator(schema: str) -> Any:
    from jsonschema import Draft202012Validator

    parameters = json.loads(schema)
    for parameter in parameters.get("properties", {}).values():
        # transformers writes None as OpenAPI does, which JSON Schema does not read.
        if parameter.pop("nullable", False) and "type" in parameter:
            kinds = parameter["type"]
            kinds = kinds if isinstance(kinds, list) else [kinds]
            parameter["type"] = [*kinds, "null"]
    return Draft202012Validator({"additionalProperties": False, **parameters})
