"""Preparation of a config's language model: tiny model, GGUF files, SFT, cache.

Prepared models are in the user's cache directory under a hash of their settings: a
second run reuses them, and a changed setting does not reuse a stale model.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import json
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllib_llm.cache import cache_dir
from rllib_llm.manifest import built_whole, file_digest, find_damage, remove_partial
from rllib_llm.modules.gguf_models import check_gguf, convert_gguf, gguf_file, is_gguf
from rllib_llm.modules.tiny import BUILT_MODELS
from rllib_llm.monitoring.live.lines import progress_lines
from rllib_llm.version import __version__

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig

logger = logging.getLogger("rllib_llm")

# Increment when the same settings build a different model.
RECIPE_VERSION = 1


def prepare_language_model(
    config: LLMConfig, on_progress: Callable[[str, float], None] | None = None
) -> str:
    """Return the folder of the model to train, building the model if needed.

    Args:
        config: An algorithm config with :class:`LLMConfigMixin`.
        on_progress: Called with a phase's name and its finished fraction in [0, 1].
            None prints lines to standard error if a phase takes more than a few
            seconds.

    Returns:
        A checkpoint folder, or the hub id of the config.
    """
    on_progress = on_progress or progress_lines()
    model = config.lm_model
    if model in BUILT_MODELS:
        key = [model, _env_key(config), config.lm_tiny, config.seed or 0]
        model = _cached(key, functools.partial(_build_tiny, config, on_progress))
    else:
        model = checkpoint_folder(model, on_progress)
    if config.sft_demonstrations:
        model = _cached(
            [
                "sft",
                _env_key(config),
                _model_key(model),
                _sft_key(config),
                config.seed or 0,
            ],
            functools.partial(_sft_model, config, model, on_progress),
        )
    return str(model)


def checkpoint_folder(
    model: str, on_progress: Callable[[str, float], None] | None = None
) -> str:
    """Return the checkpoint folder of a GGUF model; other models unchanged.

    The file is converted once. The cache is keyed on its content.

    Args:
        model: A checkpoint folder, a hub id, a GGUF file or a packaged model.
        on_progress: As in :func:`prepare_language_model`.
    """
    if not is_gguf(model):
        return model
    on_progress = on_progress or progress_lines()

    def build(folder: Path) -> None:
        on_progress("conversion", 0.0)
        convert_gguf(model, folder)
        on_progress("conversion", 1.0)

    check_gguf(model)
    return _cached(["gguf", file_digest(gguf_file(model))], build)


def _build_tiny(
    config: LLMConfig, on_progress: Callable[[str, float], None], folder: Path
) -> None:
    from rllib_llm.modules.tiny import save_tiny_model
    from rllib_llm.modules.tiny_vlm import save_tiny_vlm
    from rllib_llm.offline.demonstrations import transcript_texts

    texts = transcript_texts(
        config.make_text_env,
        seed=config.seed or 0,
        most_envs=config.most_envs_in_threads,
        max_retries=config.max_retries,
        on_progress=lambda done: on_progress("tokenizer", done),
    )
    save = save_tiny_model if config.lm_model == "tiny" else save_tiny_vlm
    save(folder, texts, seed=config.seed or 0, **config.lm_tiny)


def _sft_model(
    config: LLMConfig,
    model: str,
    on_progress: Callable[[str, float], None],
    folder: Path,
) -> None:
    from rllib_llm.offline.sft_before_rl import sft

    sft(config, model, folder, on_progress)


def _env_key(config: LLMConfig) -> Any:
    """Return a cache key of the environment: its class, source file and options."""
    members = config.mixture_members
    envs = config.make_each_env()
    if not members:
        (env,) = envs.values()
        return _key_of_env(env, config.env, config.env_config)
    return [
        [_key_of_env(envs[m.name], m.env, m.env_config), m.name, m.weight]
        for m in members
    ]


def _key_of_env(env: Any, spec: Any, env_config: dict[str, Any]) -> list[Any]:
    """Return a cache key of one environment, and close it."""
    kind = type(env.unwrapped)
    env.close()
    try:
        source = Path(inspect.getfile(kind)).read_bytes()
    except (OSError, TypeError):  # defined in a notebook or an interpreter
        source = b""
    digest = hashlib.blake2b(source, digest_size=8).hexdigest()
    name = spec if isinstance(spec, str) else kind.__qualname__
    return [name, kind.__module__, digest, dict(env_config)]


def _model_key(model: str) -> Any:
    """Return a cache key of a model: a folder's file sizes and times, or the hub id."""
    path = Path(model).expanduser()
    if not path.is_dir():
        return model
    if path.is_relative_to(cache_dir()):
        return path.name  # already a hash of its settings
    files = sorted(p for p in path.iterdir() if p.is_file())
    return [str(path), [(p.name, p.stat().st_size, p.stat().st_mtime) for p in files]]


def _sft_key(config: LLMConfig) -> Any:
    # Only if set, so that models without one keep their key.
    prompt = config.system_prompt
    frozen = config.resolved_freeze()
    only_if_set: dict[str, Any] = {"system_prompt": prompt} if prompt else {}
    if frozen:
        only_if_set["freeze"] = frozen
    return only_if_set | {
        "demonstrations": config.sft_demonstrations,
        "mistake_rate": config.sft_mistake_rate,
        "epochs": config.sft_epochs,
        "lr": config.sft_lr,
        "minibatch_size": config.sft_minibatch_size,
        "observation_weight": config.sft_observation_weight,
        "dtype": config.lm_dtype,
        "history": config.history,
        "chat_template_kwargs": config.chat_template_kwargs,
    }


def _cached(key: object, build: Callable[[Path], None]) -> str:
    """Return the folder of ``key``; build it if it is missing or damaged."""
    text = json.dumps([RECIPE_VERSION, __version__, key], sort_keys=True, default=str)
    digest = hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
    folder = cache_dir() / digest
    if find_damage(folder) is None:  # without the lock: the common case
        return str(folder)
    cache_dir().mkdir(parents=True, exist_ok=True)
    with _lock(cache_dir() / f"{digest}.lock"):
        damage = find_damage(folder)  # again: another process may have built it
        if damage is not None:
            remove_partial(folder)
            if folder.exists():
                logger.warning(
                    "The cached model %s is damaged (%s); rebuilding it.",
                    folder,
                    damage,
                )
                shutil.rmtree(folder)
            with built_whole(folder) as work:
                build(work)
                (work / "rllib_llm_recipe.json").write_text(text)
    return str(folder)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold a file lock, so that one process of the machine builds at a time."""
    from filelock import FileLock

    with FileLock(str(path)):
        yield
