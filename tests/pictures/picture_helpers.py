"""Tiny vision-language models, pictures, and episodes that show them."""

from __future__ import annotations

import numpy as np
import torch
from ray.rllib.core.columns import Columns

from rllib_llm.connectors.chat import ChatRenderer
from rllib_llm.connectors.learner.score_rows import on_device
from rllib_llm.connectors.learner.token_rows import build_rows, pad_rows
from rllib_llm.connectors.tool_prompts import later, opening
from rllib_llm.data.types import FinishReason, Turn
from rllib_llm.engines import SamplingParams, TorchEngine
from rllib_llm.envs.spaces import UnicodeText
from rllib_llm.modules.llm_rl_module import LLMRLModule
from rllib_llm.modules.loading import load_tokenizer
from rllib_llm.modules.tiny_vlm import save_tiny_vlm
from rllib_llm.pictures.contract import digest
from rllib_llm.pictures.placement import placed
from rllib_llm.pictures.row_pictures import picture_columns
from rllib_llm.pictures.spec import image_spec

TEXTS = ["What colour is it? red green blue yellow", "user assistant Look again."] * 8


def write_vlm(folder, seed: int = 0, **sizes) -> str:
    """Write a tiny vision-language model whose logits depend strongly on its input."""
    save_tiny_vlm(folder, TEXTS, seed=seed, **{"initializer_range": 0.15, **sizes})
    return str(folder)


def picture(seed: int, height: int = 32, width: int = 32) -> np.ndarray:
    """Return a random picture."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (height, width, 3), dtype=np.uint8)


def make_renderer(folder: str, history: str = "append") -> ChatRenderer:
    """Return the renderer of a folder."""
    return ChatRenderer(load_tokenizer(folder), history, pictures=image_spec(folder))


def make_vlm_module(folder: str, **settings) -> LLMRLModule:
    """Build a module of a folder."""
    config = {
        "model": folder,
        "dtype": "float32",
        "lora": None,
        "value_head": None,
        "reference": False,
        "temperature": 1.0,
        "init_seed": 0,
        **settings,
    }
    return LLMRLModule(
        observation_space=UnicodeText(),
        action_space=UnicodeText(),
        model_config=config,
    )


def make_vlm_engine(module: LLMRLModule, folder: str, **settings) -> TorchEngine:
    """Return an engine that samples with a module."""
    settings = {"max_slots": 4, "max_context_tokens": 256, **settings}
    return TorchEngine(module.lm, pictures=image_spec(folder), **settings)


def sample_conversation(engine, renderer, shown, seed=0, session="s", tokens=5):
    """Sample one turn per observation; return its turns and its pictures.

    Args:
        engine: The engine.
        renderer: The renderer.
        shown: Text and pictures of each observation.
        seed: Seed of the turns.
        session: Name of the session; it is closed at the end.
        tokens: Tokens of each turn.
    """
    store: dict[str, np.ndarray] = {}
    turns: list[Turn] = []
    ids: list[int] = []
    messages = []
    engine.open(session)
    for number, (text, images) in enumerate(shown):
        store |= {digest(image): image for image in images}
        info = {"images": list(images)}
        if number == 0:
            messages, _ = opening(text, info, system=None, renderer=renderer)
            prompt = renderer.opened(messages)
        else:
            messages = [*messages, *later(text, info, None)]
            prompt = renderer.next(messages, ids, last_sampled_id=ids[-1])
        engine.submit(
            session,
            prompt.ids,
            SamplingParams(max_new_tokens=tokens, seed=seed + number),
            extends=prompt.extends,
            pictures=placed(prompt.images, store),
        )
        while engine.num_unfinished:
            done = engine.step()
        (result,) = done
        turns.append(
            Turn(
                prompt_ids=np.asarray(prompt.ids, np.int32),
                images=prompt.images,
                extends=prompt.extends,
                action_ids=result.token_ids,
                action_logps=result.logps,
                finish=FinishReason.LENGTH,
            )
        )
        ids = ids if prompt.extends else []
        ids = [*ids, *prompt.ids, *result.token_ids.tolist()]
        messages.append(
            {"role": "assistant", "content": renderer.decode(list(result.token_ids))}
        )
    engine.close(session)
    return turns, store


def row_batch(conversations, folder: str, **settings):
    """Return the columns of conversations' rows, as a Learner gets them."""
    rows, stores = [], []
    for turns, store in conversations:
        new = build_rows(turns, [0.0] * len(turns), **settings)
        rows += new
        stores += [store] * len(new)
    out = pad_rows(rows, pad_id=0, trained=[True] * len(rows))
    out |= picture_columns([r.images for r in rows], stores, image_spec(folder))
    return on_device(out, "cpu")


def row_scores(module: LLMRLModule, batch) -> torch.Tensor:
    """Return log-probabilities of the trained tokens, zero elsewhere. [B, T]"""
    return module._forward(batch)[Columns.ACTION_DIST_INPUTS][..., 0]
