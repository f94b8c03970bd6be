"""Sandboxed execution of model-written Python programs; see docs/sandbox.md."""

from rllib_llm.sandbox.calls import STATUSES, SandboxError, SandboxResult
from rllib_llm.sandbox.sandbox import Sandbox
from rllib_llm.sandbox.shared import result_text, shared_sandbox
from rllib_llm.sandbox.support import BACKENDS, probe

__all__ = [
    "BACKENDS",
    "STATUSES",
    "Sandbox",
    "SandboxError",
    "SandboxResult",
    "probe",
    "result_text",
    "shared_sandbox",
]
