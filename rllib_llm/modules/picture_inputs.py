"""Inputs of rows with pictures, for the Learner's forward passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from rllib_llm.data import columns
from rllib_llm.data.micro_batches import count_pictures, read
from rllib_llm.data.packed_rows import PackedRows
from rllib_llm.pictures.features import PictureReader
from rllib_llm.pictures.placed_features import PlacedFeatures
from rllib_llm.pictures.positions import positions_3d
from rllib_llm.pictures.row_pictures import BatchPictures
from rllib_llm.pictures.spec import ImageSpec
from rllib_llm.upload import upload


def row_inputs(
    lm: nn.Module,
    batch: Mapping[str, Any],
    spec: ImageSpec | None,
    *,
    always: bool = False,
) -> dict[str, Any] | None:
    """Return inputs of the text part with the features of a micro-batch's pictures.

    Each picture is computed once, also where several rows show it.

    Args:
        lm: The language model, or its trunk.
        batch: Rows.
        spec: The model's picture inputs; None of a model of text.
        always: Whether to run the tower once without a picture, too: layers that are
            sharded over Learners are gathered by all of them.

    Returns:
        Those of :meth:`PlacedFeatures.inputs`, and ``position_ids`` [3, B, T] if the
        family's positions have three dimensions; None if no row has a picture, the
        ids suffice, and ``always`` is False.
    """
    if not count_pictures(batch):
        return _inputs_without(lm, batch, spec) if always and spec else None
    pictures = batch[columns.PICTURES]
    assert isinstance(pictures, BatchPictures)
    assert spec is not None, "A model of text got pictures."
    starts = read(batch, columns.PICTURE_STARTS)  # [B, M]
    rows, which = np.nonzero(starts >= 0)
    index = read(batch, columns.PICTURE_INDEX)[rows, which]  # [K]
    distinct, number = np.unique(index, return_inverse=True)
    reader = PictureReader(lm, spec)
    features = reader(torch.as_tensor(pictures.pixels[distinct]))  # [P, count, hidden]
    of_rows = features[torch.as_tensor(number, device=features.device)]
    places = starts[rows, which][:, None] + np.arange(pictures.count)  # [K, count]
    embeddings = lm.get_input_embeddings()(batch[columns.INPUT_IDS])
    placed = PlacedFeatures(
        np.repeat(rows, pictures.count), places.ravel(), of_rows.flatten(0, 1)
    )
    inputs = placed.inputs(embeddings)
    if spec.side is not None:
        index = np.arange(embeddings.shape[1])[None]
        positions = positions_3d(index, starts, spec.side)
        inputs["position_ids"] = upload(positions, embeddings.device)
    return inputs


def packed_inputs(
    inputs: Mapping[str, Any], packed: PackedRows, spec: ImageSpec, *, varlen: bool
) -> dict[str, Any]:
    """Return the inputs of a packed row.

    Args:
        inputs: Those of :func:`row_inputs`, or ``input_ids``.
        packed: Places of the tokens.
        spec: The model's picture inputs.
        varlen: As of :meth:`PackedRows.attention_inputs`.
    """
    by_token = ("input_ids", "inputs_embeds", "visual_pos_masks")
    arguments = {n: packed.pack(v) if n in by_token else v for n, v in inputs.items()}
    extents = arguments.pop("position_ids", None)
    arguments |= packed.attention_inputs(varlen=varlen)
    if spec.side is not None:
        # By the first of four transformers keeps rows apart; three alone would not.
        columns_of_rows = arguments["position_ids"]  # [1, N]
        three = [columns_of_rows] * 3
        if extents is not None:
            three = [packed.pack(extent) for extent in extents]
        arguments["position_ids"] = torch.stack([columns_of_rows, *three])
    return arguments


def _inputs_without(
    lm: nn.Module, batch: Mapping[str, Any], spec: ImageSpec
) -> dict[str, Any]:
    """Return the embeddings of rows after a pass over a blank picture of no effect."""
    blank = torch.zeros((1, spec.size, spec.size, 3), dtype=torch.uint8)
    embeddings = lm.get_input_embeddings()(batch[columns.INPUT_IDS])
    nothing = PictureReader(lm, spec)(blank).sum().to(embeddings.dtype) * 0.0
    return {"inputs_embeds": embeddings + nothing}
