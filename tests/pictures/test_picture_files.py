"""Pictures in transcripts and on the viewer's page."""

from __future__ import annotations

import base64
import io
import json

import numpy as np
import pytest
from picture_helpers import picture
from PIL import Image

from rllib_llm.pictures.contract import digest
from rllib_llm.pictures.placement import PictureRef
from rllib_llm.pictures.png import picture_records, png
from rllib_llm.transcripts.reader import SCHEMA_FILE


@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (64, 48)])
def test_png_files_hold_the_pixels(shape):
    pixels = picture(3, *shape)
    opened = Image.open(io.BytesIO(png(pixels)))
    assert opened.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(opened), pixels)


def test_large_pictures_are_named_but_not_kept():
    small, large = picture(1), picture(2, 200, 200)
    pictures = {digest(p): p for p in (small, large)}
    refs = tuple(PictureRef(name, 0, 4) for name in pictures)
    first, second = picture_records(refs, pictures)
    assert base64.b64decode(first["png"]) == png(small)
    assert second == {"digest": digest(large), "png": None}
    schema = json.loads(SCHEMA_FILE.read_text())["$defs"]["turn"]
    assert set(schema["properties"]["images"]["items"]["properties"]) == set(first)
    assert "images" not in schema["required"]
