"""Built-in tiny model: Qwen3 architecture, with its own tokenizer.

Nothing is downloaded. The tokenizer is byte-level BPE, trained on transcripts of the
environment, with single digits and a ChatML template. The initial weights are random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypedDict

from rllib_llm.errors import ConfigError, did_you_mean
from rllib_llm.schema import Fraction, PositiveFloat, PositiveInt


class TinySizes(TypedDict, total=False):
    """Sizes of the tiny model; defaults are in ``TINY_DEFAULTS``.

    ``image_size`` and ``patch_size`` (pixels) belong to ``tiny-vlm`` alone, whose
    defaults are in ``tiny_vlm.TINY_VLM_DEFAULTS``, as do ``image_mean`` and
    ``image_std`` of the values of red, green and blue, from 0 to 1: its tower reads
    ``(value - mean) / std``.
    """

    hidden_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    intermediate_size: PositiveInt
    vocab_size: PositiveInt
    max_position_embeddings: PositiveInt
    initializer_range: PositiveFloat
    image_size: PositiveInt
    patch_size: PositiveInt
    image_mean: list[Fraction]
    image_std: list[PositiveFloat]


BUILT_MODELS = ("tiny", "tiny-vlm")
"""Values of ``language_model.model`` whose model the package builds."""

TINY_DEFAULTS: TinySizes = {
    "hidden_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 640,
    "vocab_size": 1024,
    "max_position_embeddings": 2048,
    # About 1 / sqrt(hidden_size); the usual 0.02 is for models ten times as wide.
    "initializer_range": 0.06,
}

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<answer>",
    "</answer>",
    "<think>",
    "</think>",
)

CHATML_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}"
    "{{ '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def defaults_of(model: str) -> TinySizes:
    """Return the default sizes of a built model.

    Args:
        model: One of ``BUILT_MODELS``.
    """
    if model == "tiny":
        return TINY_DEFAULTS
    from rllib_llm.modules.tiny_vlm import TINY_VLM_DEFAULTS

    return TINY_VLM_DEFAULTS


def build_tokenizer(
    texts: Iterable[str], vocab_size: int, more_special: tuple[str, ...] = ()
) -> Any:
    """Train a byte-level BPE tokenizer with single digits and a ChatML template.

    Args:
        texts: Typical observations and completions.
        vocab_size: Upper bound; small corpora give fewer tokens.
        more_special: Control tokens beside ``SPECIAL_TOKENS``.

    Returns:
        A ``PreTrainedTokenizerFast``.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    # Byte-level, so that every text has tokens, including observations that the corpus
    # lacks.
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            # Single digits: numbers that differ in one digit share the others.
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[*SPECIAL_TOKENS, *more_special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        # Only <|im_start|>: the tags of tools and answers are text that environments
        # parse, so decoding must never skip them.
        additional_special_tokens=[*SPECIAL_TOKENS[1:2], *more_special],
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHATML_TEMPLATE
    return fast


def save_tiny_model(
    folder: Path, texts: Iterable[str], *, seed: int, **sizes: Any
) -> None:
    """Write a tokenizer and a randomly initialised model as a Hugging Face folder.

    Args:
        folder: Target folder.
        texts: Transcripts to train the tokenizer on.
        seed: Seed of the weights.
        sizes: Overrides of ``TINY_DEFAULTS``.
    """
    from transformers import Qwen3Config, Qwen3ForCausalLM

    check_sizes(sizes, TINY_DEFAULTS)
    settings = {**TINY_DEFAULTS, **sizes}
    tokenizer = build_tokenizer(texts, settings["vocab_size"])
    # A small corpus gives fewer tokens than vocab_size; unused rows would cost time.
    settings["vocab_size"] = len(tokenizer)
    config = Qwen3Config(
        **settings,
        head_dim=settings["hidden_size"] // settings["num_attention_heads"],
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    save_random(folder, lambda: Qwen3ForCausalLM(config), tokenizer, seed)


def save_random(
    folder: Path, build: Callable[[], Any], tokenizer: Any, seed: int
) -> None:
    """Write a tokenizer and a model with random weights.

    Args:
        folder: Target folder.
        build: Returns the model.
        tokenizer: Its tokenizer.
        seed: Seed of the weights.
    """
    import torch

    from rllib_llm.modules.loading import quiet_progress

    # The caller's random state must not depend on whether the model was in the cache.
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build()
    with quiet_progress():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def check_sizes(sizes: Iterable[str], defaults: TinySizes) -> None:
    """Check that all sizes are those of the model with these defaults.

    Raises:
        ConfigError: If one is not.
    """
    for key in sizes:
        if key not in defaults:
            raise ConfigError(
                f"language_model.tiny has no setting {key!r} for this model. "
                f"{did_you_mean(key, defaults)}"
            )
