"""What a platform offers to run untrusted programs."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from typing import Any

from rllib_llm.errors import ConfigError, did_you_mean

BACKENDS = ("fork_server", "monty")


def probe() -> dict[str, Any]:
    """Say what the platform offers, without starting anything.

    Returns:
        ``platform``, ``machine``, ``landlock`` (version of the interface, 0: none),
        ``seccomp``, ``root`` (whether programs become another user), ``monty``
        (whether it is installed), ``missing`` (what ``fork_server`` lacks, in words)
        and ``backends`` (those that work here).
    """
    found: dict[str, Any] = {
        "platform": sys.platform,
        "machine": platform.machine(),
        "landlock": 0,
        "seccomp": False,
        "root": hasattr(os, "geteuid") and os.geteuid() == 0,
        "monty": importlib.util.find_spec("pydantic_monty") is not None,
    }
    if sys.platform == "linux":
        from rllib_llm.sandbox import jail

        found |= {"landlock": jail.landlock_abi(), "seccomp": jail.has_seccomp()}
    found["missing"] = _missing(found)
    works = {"fork_server": not found["missing"], "monty": found["monty"]}
    found["backends"] = [name for name in BACKENDS if works[name]]
    return found


def check_backend(backend: str) -> None:
    """Refuse a backend that is unknown or cannot isolate programs here.

    Raises:
        ConfigError: With what is missing, and what can be done.
    """
    if backend not in BACKENDS:
        raise ConfigError(
            f"The sandbox {backend!r} does not exist. {did_you_mean(backend, BACKENDS)}"
        )
    missing = probe()["missing"]
    if backend == "fork_server" and missing:
        raise ConfigError(
            f"The sandbox 'fork_server' cannot isolate programs here: it lacks "
            f"{'; '.join(missing)}. Run on x86_64 Linux 5.13 or later with "
            "Landlock (boot option lsm=landlock,...) and in a container whose profile "
            "permits Landlock and seccomp, or choose sandbox='monty', a smaller Python "
            "that needs none of it (pip install 'rllib-llm[sandbox]')."
        )


def _missing(found: dict[str, Any]) -> list[str]:
    if (found["platform"], found["machine"]) != ("linux", "x86_64"):
        return [f"x86_64 Linux (this is {found['machine']} {found['platform']})"]
    missing = [] if found["landlock"] else ["Landlock"]
    return missing if found["seccomp"] else [*missing, "seccomp filters"]
