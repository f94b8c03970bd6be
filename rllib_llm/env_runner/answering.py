"""Answers of language models on EnvRunners to questions of the driver."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from rllib_llm.assistants.answers import Answer
from rllib_llm.data.types import Message
from rllib_llm.engines.base import SamplingParams, generate
from rllib_llm.envs.spaces import UnicodeText
from rllib_llm.modules.llm_rl_module import LLMRLModule
from rllib_llm.modules.loading import models_placed_on
from rllib_llm.torch_threads import torch_settings

if TYPE_CHECKING:
    from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner
    from rllib_llm.types import LLMConfig


@dataclasses.dataclass(frozen=True)
class AnsweringModel:
    """A language model of an EnvRunner that answers.

    Attributes:
        module_id: The policy whose settings it has, and its weights unless ``model``
            is set.
        model: Folder or hub id of weights that are not trained; None: the policy's.
        temperature: Sampling temperature; 0 is greedy.
        max_new_tokens: Maximum tokens of an answer.
    """

    module_id: str
    model: str | None
    temperature: float
    max_new_tokens: int


@dataclasses.dataclass(frozen=True)
class AnswerQuestions:
    """Picklable call that answers questions with a language model.

    Attributes:
        by: The model.
        conversations: Messages of each question.
        seeds: Seed of each answer.
        version: Version of all weights that the EnvRunner must have; None: any.
    """

    by: AnsweringModel
    conversations: Sequence[Sequence[Message]]
    seeds: Sequence[int]
    version: int | None = None

    def __call__(self, runner: LLMEnvRunner) -> list[Answer] | None:
        """Return the answers in order; None if the EnvRunner has other weights."""
        # Ray may have restarted it since it sampled the episodes.
        is_current = runner.has_all_weights and runner._weights_seq_no == self.version
        if self.version is not None and not is_current:
            return None
        engine, config, adapter = _engine_of(runner, self.by)
        renderer, longest = config.chat_renderer(), config.resolved_context_tokens()
        prompts = [renderer.first(list(each)) for each in self.conversations]
        fitting = [i for i, ids in enumerate(prompts) if len(ids) < longest]
        with torch_settings(runner.num_threads):
            generations = generate(
                engine,
                [prompts[i] for i in fitting],
                [self._params(renderer, longest, prompts[i], i) for i in fitting],
                open_settings=adapter,
            )
        # So that the engine's counters remain those of the episodes.
        engine.reset_stats()
        answers = [Answer(None, is_too_long=True) for _ in prompts]
        for i, generation in zip(fitting, generations, strict=True):
            ids = generation.token_ids.tolist()
            text = renderer.decode(ids)
            answers[i] = Answer(text, len(ids), len(prompts[i]))
        return answers

    def _params(
        self, renderer: Any, longest: int, prompt: Sequence[int], index: int
    ) -> SamplingParams:
        return SamplingParams(
            max_new_tokens=min(self.by.max_new_tokens, longest - len(prompt)),
            seed=self.seeds[index],
            temperature=self.by.temperature,
            stop_token_ids=renderer.stop_token_ids,
        )


def frozen_config(config: LLMConfig, module_id: str, model: str) -> Any:
    """Return a policy's config with another model that is only sampled from."""
    frozen = config.get_config_for_module(module_id).copy(copy_frozen=False)
    frozen.lm_model = frozen.resolved_model = model
    frozen.lm_lora = None
    return frozen


def _engine_of(
    runner: LLMEnvRunner, by: AnsweringModel
) -> tuple[Any, LLMConfig, dict[str, Any]]:
    """Return an engine, the config of its model, and the arguments of ``open``."""
    config = runner.config
    if by.model is None:
        engine = runner.engines[by.module_id]
        sharing = [m for m, other in runner.engines.items() if other is engine]
        # A shared engine numbers the adapters of its policies in this order.
        index = sharing.index(by.module_id)
        policy_config = config.get_config_for_module(by.module_id)
        return engine, policy_config, {"adapter": index} if len(sharing) > 1 else {}
    frozen = frozen_config(config, by.module_id, by.model)
    if by.model not in runner.frozen_engines:
        spec = RLModuleSpec(
            module_class=LLMRLModule,
            observation_space=UnicodeText(),
            action_space=UnicodeText(),
            inference_only=True,
            model_config={
                **frozen.language_model_config(),
                "reference": False,
                "mask_policy": False,
                "value_head": None,
            },
        )
        with models_placed_on(runner._device):
            module = spec.build().to(runner._device)
        runner.frozen_engines[by.model] = frozen.build_generation_engine(module)
    return runner.frozen_engines[by.model], frozen, {}
