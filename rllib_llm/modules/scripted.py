"""RLModule of a scripted policy."""

from __future__ import annotations

from typing import Any

from ray.rllib.core.rl_module.rl_module import RLModule
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from ray.rllib.utils.annotations import override


class ScriptedRLModule(TorchRLModule):
    """Module without weights that represents a scripted policy in a MultiRLModule.

    The env runner calls the script directly; the module is never called or trained.
    """

    @override(RLModule)
    def setup(self) -> None:
        """Build nothing: the module has no parameters."""

    @override(TorchRLModule)
    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        # RLlib builds an RLModule for every policy of the mapping, also for scripted
        # ones.
        raise NotImplementedError(
            "A scripted policy has no forward pass; call its script instead."
        )
