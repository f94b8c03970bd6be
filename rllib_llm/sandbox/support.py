"""Platform support for running untrusted programs."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from typing import Any

from rllib_llm.errors import ConfigError, did_you_mean

BACKENDS = ("fork_server", "monty")


def probe() -> dict[str, Any]:
    """Return the platform's support for sandboxes, without starting a process.

    Returns:
        ``platform``, ``machine``, ``landlock`` (version of the interface, 0: none),
        ``seccomp``, ``root`` (whether programs switch to another user), ``monty``
        (whether it is installed), ``missing`` (requirements of ``fork_server`` that
        this platform lacks) and ``backends`` (backends that work here).
    """
    support: dict[str, Any] = {
        "platform": sys.platform,
        "machine": platform.machine(),
        "landlock": 0,
        "seccomp": False,
        "root": hasattr(os, "geteuid") and os.geteuid() == 0,
        "monty": importlib.util.find_spec("pydantic_monty") is not None,
    }
    if sys.platform == "linux":
        from rllib_llm.sandbox import jail

        support |= {"landlock": jail.landlock_abi(), "seccomp": jail.has_seccomp()}
    support["missing"] = _missing(support)
    works = {"fork_server": not support["missing"], "monty": support["monty"]}
    support["backends"] = [name for name in BACKENDS if works[name]]
    return support


def check_backend(backend: str) -> None:
    """Check that a backend exists and can isolate programs here.

    Raises:
        ConfigError: If not; the message names what is missing and the remedy.
    """
    if backend not in BACKENDS:
        raise ConfigError(
            f"Unknown sandbox {backend!r}. {did_you_mean(backend, BACKENDS)}"
        )
    missing = probe()["missing"]
    if backend == "fork_server" and missing:
        raise ConfigError(
            f"The sandbox 'fork_server' cannot isolate programs here: it lacks "
            f"{'; '.join(missing)}. Run on x86_64 Linux 5.13 or later with "
            "Landlock (boot option lsm=landlock,...), in a container whose profile "
            "permits Landlock and seccomp. Or set sandbox='monty', a subset of Python "
            "that requires neither (pip install 'rllib-llm[sandbox]')."
        )


def _missing(support: dict[str, Any]) -> list[str]:
    if (support["platform"], support["machine"]) != ("linux", "x86_64"):
        return [f"x86_64 Linux (this is {support['machine']} {support['platform']})"]
    missing = [] if support["landlock"] else ["Landlock"]
    return missing if support["seccomp"] else [*missing, "seccomp filters"]
