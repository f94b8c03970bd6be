"""Reward models as sequence classifiers of transformers: written, loaded and run."""

from __future__ import annotations

import copy
import functools
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from rllib_llm.errors import ConfigError, ModelError
from rllib_llm.modules import loading

if TYPE_CHECKING:
    from rllib_llm.modules.reward_model import RewardRLModule

# Keys of an exported config.json.
MEAN, STD = "score_mean", "score_std"


def check_classifier(config: Any, model: str) -> None:
    """Check that an architecture can be exported as a classifier with one score.

    Args:
        config: The model's transformers config.
        model: Its folder or hub id, for the message.

    Raises:
        ModelError: It cannot.
    """
    from transformers import (
        MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING as CLASSIFIERS,
    )
    from transformers import AutoModelForSequenceClassification

    problem = "has no class ...ForSequenceClassification in transformers"
    if type(config) in CLASSIFIERS:
        with torch.device("meta"):
            built = AutoModelForSequenceClassification.from_config(_scored(config))
        head = getattr(built, "score", None)
        if isinstance(head, nn.Linear) and head.bias is None:
            return
        problem = f"has a head of another form ({type(built).__name__})"
    raise ModelError(
        f"language_model.model={model!r} is of type {config.model_type!r}, which "
        f"{problem}, so a reward model could not be exported. Use a model of another "
        "type, e.g. 'Qwen/Qwen2.5-0.5B-Instruct'."
    )


def _scored(config: Any, pad_id: int | None = None) -> Any:
    """Return a copy of a config for one score, with the id that pads rows."""
    scored = copy.deepcopy(config)
    scored.num_labels = 1
    text = scored.get_text_config()
    if pad_id is not None:
        text.pad_token_id = pad_id
    return scored


def save_classifier(module: RewardRLModule, folder: Path, *, merged: bool) -> None:
    """Write weights, config and tokenizer as a sequence classifier.

    Raises:
        ConfigError: ``merged`` is False.
        ModelError: The architecture has no classifier.
    """
    from transformers import AutoModelForSequenceClassification

    if not merged:
        raise ConfigError(
            "A reward model is exported with its adapter merged. Leave --adapter out."
        )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = loading.load_tokenizer(module.model_config["model"])
    _pad_with_another_id(tokenizer)
    trunk = module.trunk
    config = _scored(module.lm.config, tokenizer.pad_token_id)
    check_classifier(config, module.model_config["model"])
    mean, std = module.score_stats.tolist()
    if math.isfinite(mean):
        setattr(config, MEAN, mean)
        setattr(config, STD, std)
    dtype = next(trunk.parameters()).dtype
    model = AutoModelForSequenceClassification.from_config(config, dtype=dtype)
    getattr(model, model.base_model_prefix).load_state_dict(trunk.state_dict())
    with torch.no_grad():
        model.score.weight.copy_(module.value_head.out.weight)
    with loading.quiet_progress():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _pad_with_another_id(tokenizer: Any) -> None:
    """Choose a token for padding that does not end a conversation.

    Classifiers of transformers score the last token that is not padding.
    """
    shown = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
    ]
    last = tokenizer.apply_chat_template(shown, tokenize=False)
    ids = tokenizer(last, add_special_tokens=False)["input_ids"]
    if tokenizer.pad_token_id in (None, ids[-1]):
        ordinary = [0, 1]  # of two ids, one is another
        others = [i for i in (*tokenizer.all_special_ids, *ordinary) if i != ids[-1]]
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(others[0])


# Running ------------------------------------------------------------------------------


def check_classifier_folder(model: str) -> Any:
    """Return the config of a classifier with one score.

    Args:
        model: Folder or hub id.

    Raises:
        ModelError: It is not one, or is not there.
    """
    from transformers import AutoConfig

    path = os.path.expanduser(model)
    loading.check_model_path(model)
    try:
        config = AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"The config of the reward model {model!r} could not be read: {error}"
        ) from error
    names = config.architectures or []
    if not any(name.endswith("ForSequenceClassification") for name in names):
        raise ModelError(
            f"The reward model {model!r} is a {', '.join(names) or 'model'}, not a "
            "sequence classifier. Use a folder that 'rllib-llm export' writes of a "
            "RewardModel run, or one of TRL's RewardTrainer."
        )
    if config.num_labels != 1:
        raise ModelError(
            f"The reward model {model!r} has {config.num_labels} labels; a reward is "
            "one number. Use a classifier with num_labels=1."
        )
    if os.path.isdir(path) and not loading.has_weights(Path(path)):
        raise ModelError(
            f"The reward model {model!r} holds a config but no weights. Use a complete "
            "folder."
        )
    return config


class Classifier:
    """A sequence classifier with one score, without gradients.

    Args:
        model: Folder or hub id.
        dtype: Data type of the weights.
        device: Device to compute on; None: an accelerator, if there is one.

    Raises:
        ModelError: It cannot be loaded, or lacks weights.
    """

    def __init__(
        self, model: str, dtype: str = "float32", device: str | None = None
    ) -> None:
        from transformers import AutoModelForSequenceClassification

        check_classifier_folder(model)
        path = os.path.expanduser(model)
        try:
            with loading.quiet_progress():
                loaded, info = AutoModelForSequenceClassification.from_pretrained(
                    path, output_loading_info=True, dtype=loading.DTYPES[dtype]
                )
        except (OSError, ValueError, RuntimeError) as error:
            raise ModelError(
                f"The reward model {model!r} could not be loaded: {error}"
            ) from error
        missing = sorted(info["missing_keys"])
        if missing:  # transformers only warns and initialises them randomly
            raise ModelError(
                f"The weights of the reward model {model!r} lack "
                f"{', '.join(missing[:3])} ({len(missing)} in all), which would be "
                "random. Use a complete folder."
            )
        if not isinstance(getattr(loaded, "score", None), nn.Linear):
            raise ModelError(
                f"The reward model {model!r} is a {type(loaded).__name__}, whose head "
                "is no linear layer on the last token of a causal model. Use another."
            )
        self.device = torch.device(
            device or ("cuda" if torch.cuda.is_available() else "cpu")
        )
        self.model = loaded.to(self.device).eval()

    @property
    def longest(self) -> int | None:
        """Number of positions of the model; None if it has no limit."""
        text = self.model.config.get_text_config()
        return getattr(text, "max_position_embeddings", None)

    @torch.no_grad()
    def scores(self, rows: Sequence[Sequence[int]], max_tokens: int) -> np.ndarray:
        """Return the score of each row of token ids. [N]

        Args:
            rows: Token ids, each at least one.
            max_tokens: Most positions of a forward pass; a longer row has its own.
        """
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        scores = np.zeros(len(rows))
        batch: list[int] = []
        for place, index in enumerate(order):
            batch.append(index)
            is_last = place + 1 == len(order)
            if is_last or len(rows[order[place + 1]]) * (len(batch) + 1) > max_tokens:
                scores[batch] = self._pass([rows[i] for i in batch])
                batch = []
        return scores

    def _pass(self, rows: Sequence[Sequence[int]]) -> np.ndarray:
        # Not the model's forward(), which looks for the last token by the id of
        # padding: a row may end with it, and some tokenizers have none.
        ids = torch.zeros((len(rows), max(map(len, rows))), dtype=torch.long)
        ends = torch.tensor([len(row) - 1 for row in rows])
        for place, row in enumerate(rows):
            ids[place, : len(row)] = torch.tensor(list(row))
        trunk = getattr(self.model, self.model.base_model_prefix)
        # Padded on the right, which causal attention does not reach.
        out = trunk(input_ids=ids.to(self.device), use_cache=False)
        hidden = out.last_hidden_state[torch.arange(len(rows)), ends.to(self.device)]
        head = self.model.score
        return head(hidden.to(head.weight.dtype))[:, 0].float().cpu().numpy()


@functools.lru_cache(maxsize=4)
def open_classifier(model: str, dtype: str, device: str | None) -> Classifier:
    """Return a classifier that is loaded once per process."""
    return Classifier(model, dtype, device)
