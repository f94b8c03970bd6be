"""The RLModule of a policy that a function plays."""

from __future__ import annotations

from typing import Any

from ray.rllib.core.rl_module.rl_module import RLModule
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from ray.rllib.utils.annotations import override


class ScriptedRLModule(TorchRLModule):
    """Holds a scripted policy's place in RLlib's MultiRLModule: it has no weights.

    The env runner calls the script itself; nothing is ever forwarded or trained.
    """

    @override(RLModule)
    def setup(self) -> None:
        """There is nothing to build."""

    @override(TorchRLModule)
    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        raise NotImplementedError("A scripted policy's turns come from its script.")
