"""Default callbacks and statistics of every LLM algorithm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ray.rllib.callbacks.callbacks import RLlibCallback

from rllib_llm.callbacks.exact_results import ExactResults
from rllib_llm.callbacks.stats import EPISODE_MEAN, EpisodeMeanStats
from rllib_llm.transcripts.collector import TranscriptCollector

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig


def install_defaults(config: LLMConfig) -> None:
    """Add the package's statistics and callbacks to ``config``.

    It is idempotent, and called again when the config is validated, so that callbacks
    of the user are added to the defaults instead of replacing them. A subclass of a
    default callback replaces that default.
    """
    if EPISODE_MEAN not in config.stats_cls_lookup:
        config.stats_cls_lookup = {
            **config.stats_cls_lookup,
            EPISODE_MEAN: EpisodeMeanStats,
        }
    given = config.callbacks_class
    given = list(given) if isinstance(given, list | tuple) else [given]
    given = [c for c in given if c is not None and c is not RLlibCallback]
    missing = [
        default
        for default in (ExactResults, TranscriptCollector)
        if not any(_is_subclass(c, default) for c in given)
    ]
    if missing:
        config.callbacks_class = [*missing, *given]


def _is_subclass(callback: object, base: type) -> bool:
    # RLlib also accepts callables that build a callback, e.g. functools.partial.
    return isinstance(callback, type) and issubclass(callback, base)
