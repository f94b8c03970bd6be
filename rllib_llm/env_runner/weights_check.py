"""Check that an engine's copy of the weights gives the Learner's probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from ray.rllib.core.columns import Columns

from rllib_llm.data import columns
from rllib_llm.engines.base import GenerationEngine, SamplingParams, generate
from rllib_llm.errors import ModelError

if TYPE_CHECKING:
    from rllib_llm.modules.llm_rl_module import LLMRLModule
    from rllib_llm.types import LLMConfig

# Maximum mean difference of log-probabilities that rounding explains, in nats.
TOLERANCE = {"float32": 0.01, "bfloat16": 0.1, "quantized": 0.3}
# Two, because LoRA adapters start at zero: an error in them shows after an update only.
_CHECKED_VERSIONS = 2
_PROMPTS, _TOKENS = 4, 8


class WeightsCheck:
    """Compares an engine's log-probabilities with those of the module it samples for.

    Only the first versions of the weights are checked, each once: parameter names and
    layouts do not change, so later versions are transferred in the same way.

    Args:
        module_id: The policy's ModuleID.
        module: Its LLMRLModule, which holds the Learner's weights.
        engine: Its engine, which holds a copy of the weights.
        tolerance: Maximum mean absolute difference, in nats per token.
    """

    def __init__(
        self,
        module_id: str,
        module: LLMRLModule,
        engine: GenerationEngine,
        tolerance: float,
    ) -> None:
        self._module_id = module_id
        self._module = module
        self._engine = engine
        self._tolerance = tolerance
        self._versions: set[int] = set()

    def __call__(self) -> dict[str, int]:
        """Check the current version if it is among the first.

        Returns:
            The check's share of the engine's counters; empty if nothing was checked.

        Raises:
            ModelError: If the log-probabilities differ by more than the tolerance.
        """
        version = self._engine.weights_version
        if version in self._versions or len(self._versions) >= _CHECKED_VERSIONS:
            return {}
        self._versions.add(version)
        gap = self._gap(version)
        if gap is None:  # another runner updated the shared engine meanwhile
            self._versions.remove(version)
        elif not gap <= self._tolerance:  # `not <=` catches NaN too
            model = self._module.model_config["model"]
            raise ModelError(
                f"After weights version {version} of policy {self._module_id!r} was "
                f"sent to {type(self._engine).__name__}, its log-probabilities differ "
                f"from the Learner's by {gap:.3g} nats per token on average (tolerance "
                f"{self._tolerance}): it does not sample from the trained policy "
                f"({model!r}). Use engine='torch', or another version of vLLM."
            )
        tokens = _PROMPTS * _TOKENS
        return {"prefill_tokens": tokens, "decoded_tokens": tokens}

    def _gap(self, version: int) -> float | None:
        """Return the mean absolute difference over sampled tokens, in nats.

        None if the engine sampled them with another version.
        """
        module = self._module
        rows = module.lm.config.get_text_config().vocab_size
        random = np.random.default_rng(version)
        prompts = random.integers(0, module.vocabulary or rows, (_PROMPTS, _TOKENS))
        params = [
            SamplingParams(
                max_new_tokens=_TOKENS,
                seed=seed,
                temperature=module.model_config["temperature"],
            )
            for seed in range(_PROMPTS)
        ]
        results = generate(self._engine, list(prompts), params)
        if any(r.weights_version != version for r in results):
            return None
        ids = np.concatenate((prompts, [r.token_ids for r in results]), axis=1)
        mask = np.broadcast_to(np.arange(2 * _TOKENS) >= _TOKENS, ids.shape)
        batch = {
            columns.INPUT_IDS: torch.from_numpy(ids),
            columns.ATTENTION_MASK: torch.ones(ids.shape, dtype=torch.bool),
            Columns.LOSS_MASK: torch.from_numpy(mask.copy()),
        }
        device = next(module.parameters()).device
        batch = {name: value.to(device) for name, value in batch.items()}
        with torch.no_grad():
            scores = module._forward(batch)[Columns.ACTION_DIST_INPUTS]
        module_logps = scores[:, _TOKENS:, 0].cpu().numpy()
        return float(np.abs(module_logps - [r.logps for r in results]).mean())


def tolerance_of(config: LLMConfig) -> float:
    """Return the tolerance for the precision that the engine computes in.

    Args:
        config: The policy's config.
    """
    arguments = config.engine_kwargs
    if arguments.get("quantization"):
        return TOLERANCE["quantized"]
    dtypes: set[str] = {config.lm_dtype, config.lm_autocast or "float32"}
    dtypes.add(str(arguments.get("dtype", "float32")).removeprefix("torch."))
    return TOLERANCE["float32" if dtypes == {"float32"} else "bfloat16"]
