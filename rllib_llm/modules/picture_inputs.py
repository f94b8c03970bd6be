"""Inputs of rows with pictures, for the Learner's forward passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from rllib_llm.data import columns
from rllib_llm.data.micro_batches import read
from rllib_llm.pictures.features import PictureReader
from rllib_llm.pictures.placed_features import PlacedFeatures
from rllib_llm.pictures.positions import positions_3d
from rllib_llm.pictures.row_pictures import BatchPictures
from rllib_llm.pictures.spec import ImageSpec
from rllib_llm.upload import upload


def row_inputs(
    lm: nn.Module, batch: Mapping[str, Any], spec: ImageSpec | None
) -> dict[str, Any] | None:
    """Return inputs of the text part with the features of a micro-batch's pictures.

    Each picture is computed once, also where several rows show it.

    Args:
        lm: The language model, or its trunk.
        batch: Rows.
        spec: The model's picture inputs; None of a model of text.

    Returns:
        Those of :meth:`PlacedFeatures.inputs`, and ``position_ids`` [3, B, T] if the
        family's positions have three dimensions; None if no row has a picture, and the
        ids suffice.
    """
    pictures = batch.get(columns.PICTURES)
    if pictures is None:
        return None
    assert isinstance(pictures, BatchPictures)
    assert spec is not None, "A model of text got pictures."
    starts = read(batch, columns.PICTURE_STARTS)  # [B, M]
    rows, which = np.nonzero(starts >= 0)
    if not len(rows):
        return None
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
