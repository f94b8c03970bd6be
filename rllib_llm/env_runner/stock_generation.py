"""Turn sampling in an RLModule's forward pass, for RLlib's stock env runners.

The default is LLMEnvRunner with an engine that caches conversations. Here every turn
is computed from its first token, and all environments step in lockstep.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rllib_llm.data import columns
from rllib_llm.data.types import Turn
from rllib_llm.engines.base import SamplingParams, generate

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class TurnSampler:
    """Samples one turn for every conversation of a batch.

    Args:
        lm: The causal language model.
        settings: ``max_new_tokens``, ``max_context_tokens``, ``max_slots``, ``seed``.
        temperature: Sampling temperature when exploring.
        vocabulary: Number of ids that may be sampled, from 0; None means all.
    """

    def __init__(
        self,
        lm: PreTrainedModel,
        settings: dict[str, Any],
        temperature: float,
        vocabulary: int | None = None,
    ):
        self.lm = lm
        self.vocabulary = vocabulary
        self.settings = settings
        self.temperature = temperature
        self._calls = 0

    def __call__(self, batch: Mapping[str, Any], *, explore: bool) -> dict[str, Any]:
        """Return ``{"turn": [...]}``, one Turn per conversation (None if over)."""
        from rllib_llm.engines.torch_engine import TorchEngine

        conversations = [data for items in batch["prompts"].values() for data in items]
        # An object array: RLlib's unbatching would split a list of Turns.
        turns = np.empty(len(conversations), dtype=object)
        running = [i for i, d in enumerate(conversations) if not d.is_over]
        if not running:
            return {columns.TURN: turns}
        settings, started = self.settings, time.perf_counter()
        # A new engine per call: without sessions nothing has to follow the weights.
        engine = TorchEngine(
            self.lm,
            max_slots=settings["max_slots"],
            max_context_tokens=settings["max_context_tokens"],
            vocabulary=self.vocabulary,
        )
        prompts, params = [], []
        for i in running:
            data, prompt = conversations[i], conversations[i].due_prompt
            # The whole conversation is computed again in each turn.
            history = data.ids if prompt.extends else []
            prompts.append([*history, *prompt.ids])
            params.append(self._params(i, batch["stop_token_ids"], explore))
        for i, result in zip(running, generate(engine, prompts, params), strict=True):
            data = conversations[i]
            turns[i] = Turn(
                prompt_ids=np.asarray(data.prompt.ids, np.int32),
                extends=data.prompt.extends,
                action_ids=result.token_ids,
                action_logps=result.logps,
                finish=result.finish,
                seconds=time.perf_counter() - started,
                env_t=data.num_turns,
            )
            data.record(turns[i])
        self._calls += 1
        return {columns.TURN: turns}

    def _params(
        self, index: int, stop_ids: tuple[int, ...], explore: bool
    ) -> SamplingParams:
        # By call and row: the stock runner does not pass tasks to the module.
        sequence = np.random.SeedSequence([self.settings["seed"], self._calls, index])
        return SamplingParams(
            max_new_tokens=self.settings["max_new_tokens"],
            seed=int(sequence.generate_state(1)[0]),
            temperature=self.temperature if explore else 0.0,
            stop_token_ids=stop_ids,
        )
