"""An environment in a separate process, for libraries that cannot share one."""

from __future__ import annotations

from typing import Any

from rllib_llm.envs.child_process import ChildProcess


class ProcessEnv(ChildProcess):
    """Forwards ``reset``, ``step`` and ``close`` to an environment in another process.

    Args:
        maker: A pickled function without arguments that returns the environment.
    """

    def __init__(self, maker: bytes):
        super().__init__(maker)

    def reset(self, **keywords: Any) -> Any:
        """Call the environment's ``reset``."""
        return self.call("reset", (), keywords)

    def step(self, action: object) -> Any:
        """Call the environment's ``step``."""
        return self.call("step", (action,))
