"""Import of objects given as ``"package.module:Name"``."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from rllib_llm.errors import ConfigError, did_you_mean, summarize


def import_object(path: str, where: str) -> Any:
    """Import the object given as ``"package.module:Name"``.

    Args:
        path: Module and name.
        where: The setting, for messages, e.g. ``"learners.learner_class"``.

    Raises:
        ConfigError: If the module cannot be imported, for any reason, or does not have
            the name.
    """
    module_name, _, name = path.partition(":")
    what = f"{where}={path[:200]!r} cannot be imported"
    try:
        module = import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"{what}: {summarize(error)}. Install the package, or put its folder on "
            "PYTHONPATH."
        ) from error
    except (Exception, SystemExit) as error:  # a module may raise anything
        raise ConfigError(
            f"{what}: the module {module_name[:100]!r} raised {summarize(error)}. "
            "Correct the module; its import must not raise an exception."
        ) from error
    if not hasattr(module, name):
        public = [n for n in vars(module) if not n.startswith("_")][:50]
        raise ConfigError(
            f"{what}: {module_name!r} has no {name[:100]!r}. "
            f"{did_you_mean(name[:100], public)}"
        )
    return getattr(module, name)
