"""Digests of prompts, by which duplicates and held-out rows are found."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from rllib_llm.envs.dataset.dataset_rows import DatasetRow


def prompt_digest(row: DatasetRow, pictures: Sequence[str]) -> int:
    """Return a digest of 64 bits that is equal for duplicates.

    Case and spaces of the texts do not count; pictures are compared by their files.

    Args:
        row: The task.
        pictures: Digest of the file of each picture.
    """
    texts = [*(message["content"] for message in row.preceding), row.prompt]
    key = json.dumps([*(" ".join(t.split()).lower() for t in texts), *pictures])
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big")
