"""Check that an engine's copy of the weights gives the Learner's probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from ray.rllib.core.columns import Columns

from rllib_llm.data import columns
from rllib_llm.engines.base import GenerationEngine, SamplingParams, generate
from rllib_llm.errors import ModelError
from rllib_llm.pictures.contract import digest
from rllib_llm.pictures.placement import PictureRef, PlacedPicture
from rllib_llm.pictures.row_pictures import picture_columns

if TYPE_CHECKING:
    from rllib_llm.connectors.chat import ChatRenderer
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
    layouts do not change, so later versions are transferred in the same way. Models
    that read pictures get one in each prompt, if the context has room for it.

    Args:
        module_id: The policy's ModuleID.
        module: Its LLMRLModule, which holds the Learner's weights.
        engine: Its engine, which holds a copy of the weights.
        tolerance: Maximum mean absolute difference, in nats per token.
        renderer: The policy's renderer, which knows its picture inputs.
        max_context_tokens: Maximum tokens of a history.
    """

    def __init__(
        self,
        module_id: str,
        module: LLMRLModule,
        engine: GenerationEngine,
        tolerance: float,
        renderer: ChatRenderer,
        max_context_tokens: int,
    ) -> None:
        self._module_id = module_id
        self._module = module
        self._engine = engine
        self._tolerance = tolerance
        self._versions: set[int] = set()
        self._run: list[int] = []  # ids of a picture
        self._spec = renderer.pictures
        if self._spec is not None:
            run = renderer.tokenizer.encode(
                self._spec.expand(), add_special_tokens=False
            )
            if len(run) + 2 * _TOKENS <= max_context_tokens:
                self._run = run

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
        return {
            "prefill_tokens": _PROMPTS * (_TOKENS + len(self._run)),
            "decoded_tokens": _PROMPTS * _TOKENS,
        }

    def _gap(self, version: int) -> float | None:
        """Return the mean absolute difference over sampled tokens, in nats.

        None if the engine sampled them with another version.
        """
        module = self._module
        rows = module.lm.config.get_text_config().vocab_size
        random = np.random.default_rng(version)
        prompts = random.integers(0, module.vocabulary or rows, (_PROMPTS, _TOKENS))
        shown = self._pictures(random)
        runs = np.tile(np.array(self._run, prompts.dtype), (_PROMPTS, 1))
        prompts = np.concatenate((prompts, runs), axis=1)
        params = [
            SamplingParams(
                max_new_tokens=_TOKENS,
                seed=seed,
                temperature=module.model_config["temperature"],
            )
            for seed in range(_PROMPTS)
        ]
        results = generate(self._engine, list(prompts), params, pictures=shown)
        if any(r.weights_version != version for r in results):
            return None
        ids = np.concatenate((prompts, [r.token_ids for r in results]), axis=1)
        length = prompts.shape[1]
        mask = np.broadcast_to(np.arange(ids.shape[1]) >= length, ids.shape)
        batch: dict[str, Any] = {
            columns.INPUT_IDS: torch.from_numpy(ids),
            columns.ATTENTION_MASK: torch.ones(ids.shape, dtype=torch.bool),
            Columns.LOSS_MASK: torch.from_numpy(mask.copy()),
        }
        device = next(module.parameters()).device
        batch = {name: value.to(device) for name, value in batch.items()}
        if self._spec is not None:
            batch |= picture_columns(
                [[(p.ref.start, p.ref.digest) for p in of_row] for of_row in shown],
                [{p.ref.digest: p.pixels for p in of_row} for of_row in shown],
                self._spec,
            )
        with torch.no_grad():
            scores = module._forward(batch)[Columns.ACTION_DIST_INPUTS]
        module_logps = scores[:, length:, 0].cpu().numpy()
        return float(np.abs(module_logps - [r.logps for r in results]).mean())

    def _pictures(self, random: np.random.Generator) -> list[list[PlacedPicture]]:
        """Return the random picture of each prompt, none of a model of text."""
        if self._spec is None or not self._run:
            return [[] for _ in range(_PROMPTS)]
        start = _TOKENS + self._run.index(self._spec.token_id)
        shown = []
        for _ in range(_PROMPTS):
            shape = (self._spec.size, self._spec.size, 3)
            pixels = random.integers(0, 256, shape, dtype=np.uint8)
            ref = PictureRef(digest(pixels), start, self._spec.count)
            shown.append([PlacedPicture(ref, pixels)])
        return shown


def checked_as(config: LLMConfig) -> dict[str, Any]:
    """Return a policy's settings of the check, by the names of its arguments.

    Args:
        config: The policy's config.
    """
    return {
        "tolerance": tolerance_of(config),
        "renderer": config.chat_renderer(),
        "max_context_tokens": config.resolved_context_tokens(),
    }


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
