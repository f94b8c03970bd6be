"""Print the public API: names and signatures of the package's exports.

    python scripts/public_api.py > tests/public_api.txt

renews the text that ``tests/test_public_api.py`` compares with.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

MODULES = (
    "rllib_llm",
    "rllib_llm.advantages",
    "rllib_llm.algorithms",
    "rllib_llm.components",
    "rllib_llm.dependency_graph",
    "rllib_llm.engines",
    "rllib_llm.envs",
    "rllib_llm.errors",
    "rllib_llm.graders",
    "rllib_llm.losses",
    "rllib_llm.recipes",
    "rllib_llm.runs",
    "rllib_llm.retrieval",
    "rllib_llm.rewards.allocation",
    "rllib_llm.sandbox",
    "rllib_llm.selfplay",
    "rllib_llm.tools",
)


def public_api() -> str:
    """Return the API as text, a line per name."""
    lines: list[str] = []
    seen: set[int] = set()
    for module_name in MODULES:
        module = import_module(module_name)
        lines.append(f"# {module_name}")
        for name in exported(module):
            lines.extend(_described(name, getattr(module, name), seen))
        lines.append("")
    return "\n".join(lines)


def exported(module: Any) -> list[str]:
    """Return ``__all__``, or the public names that the module defines."""
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    own = inspect.getmembers(
        module, lambda o: getattr(o, "__module__", "") == module.__name__
    )
    return sorted(name for name, _ in own if not name.startswith("_"))


def _described(name: str, thing: Any, seen: set[int]) -> Iterator[str]:
    if inspect.isclass(thing):
        bases = ", ".join(b.__name__ for b in thing.__bases__ if b is not object)
        yield f"class {name}({bases})"
        if id(thing) not in seen:  # exported from another module as well
            seen.add(id(thing))
            yield from _members(thing)
    elif callable(thing):
        yield f"{name}{_signature(thing)}"
    else:
        yield f"{name}: {type(thing).__name__}"


def _is_foreign(member: Any) -> bool:
    """Return True if a member wraps a function of another package."""
    if not inspect.isfunction(member):
        return False
    return inspect.unwrap(member).__module__.startswith("ray.")


def _members(cls: type[Any]) -> Iterator[str]:
    """Yield the public members that this package defines, inherited ones included."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("rllib_llm"):
            found.update({k: v for k, v in vars(base).items() if not _is_foreign(v)})
    for name, member in sorted(found.items()):
        if name == "__init__" and not isinstance(member, type(object.__init__)):
            yield f"  __init__{_signature(member)}"
        if name.startswith("_"):
            continue
        if isinstance(member, staticmethod | classmethod):
            kind = type(member).__name__
            yield f"  {kind} {name}{_signature(member.__func__)}"
        elif inspect.isfunction(member):
            yield f"  {name}{_signature(member)}"
        elif isinstance(member, property):
            yield f"  property {name}"


def _signature(function: Any) -> str:
    """Return parameters and defaults, without annotations and addresses."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # of a class written in C
        return "(...)"
    parameters = [
        p.replace(annotation=p.empty)
        for name, p in signature.parameters.items()
        if name != "_ray_trace_ctx"  # Ray adds it to methods of classes made actors
    ]
    plain = signature.replace(parameters=parameters, return_annotation=signature.empty)
    text = re.sub(r"<[\w.]*_NotProvided object at 0x\w+>", "NotProvided", str(plain))
    return re.sub(r" at 0x\w+", "", text)


if __name__ == "__main__":
    sys.stdout.write(public_api())
