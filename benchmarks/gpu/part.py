"""Arguments, rows, devices and models of the parts of ``scripts/gpu.py``."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = 3
GIB = 2**30
for _folder in ("tests", "tests/algorithms", "tests/device"):
    sys.path.append(str(ROOT / _folder))

# The architectures of Qwen3-0.6B, -1.7B and -4B: hidden and intermediate sizes, layers,
# heads. "small" lets the same code run in seconds on a CPU.
_ARCHITECTURES = {
    "0.6B": (1024, 3072, 28, 16),
    "1.7B": (2048, 6144, 28, 16),
    "4B": (2560, 9728, 36, 32),
    "small": (64, 128, 2, 4),
}
_VOCABULARY, _SMALL_VOCABULARY = 151_936, 1024


class Part:
    """Arguments and rows of one part.

    Attributes:
        device_name: "cuda", "standin" or "cpu".
        is_small: Whether models and workloads are those for a CPU.
        args: All arguments.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.device_name: str = args.device
        self.is_small: bool = args.sizes == "small"
        self._found: dict[str, Any] = {"rows": []}
        self._device: Any = None

    def row(self, **cells: Any) -> None:
        """Add a row, print it and write all rows, so that a time limit loses none."""
        self._found["rows"].append(cells)
        print(cells, flush=True)
        self._write()

    def skip(self, reason: str) -> None:
        """End the part; name what it lacks."""
        self._found["reason"] = reason
        self._write()
        sys.exit(SKIPPED)

    def _write(self) -> None:
        self.args.json.write_text(json.dumps(self._found))

    # Devices ----------------------------------------------------------------------

    @property
    def accelerator(self) -> Any:
        """The accelerator with its count of bytes; None on the CPU."""
        if self._device is None and self.device_name != "cpu":
            from device_process import accelerator

            self._device = accelerator(self.device_name)
        return self._device

    @property
    def device(self) -> Any:
        """The torch.device."""
        import torch

        found = self.accelerator
        return torch.device("cpu") if found is None else found.device

    def synchronize(self) -> None:
        """Wait until the device has done all work."""
        import torch

        if self.device_name != "cpu":
            torch.get_device_module(self.device).synchronize()

    def seconds(self, function: Callable[[], Any]) -> float:
        """Return the time of a call, in seconds, the device's work included."""
        self.synchronize()
        start = time.perf_counter()
        function()
        self.synchronize()
        return time.perf_counter() - start

    @contextlib.contextmanager
    def placed(self) -> Iterator[None]:
        """Let RLlib place Learners and EnvRunners of this process on the device."""
        from unittest import mock

        from ray.rllib.core.learner.torch import torch_learner

        from rllib_llm.env_runner import llm_env_runner

        with contextlib.ExitStack() as stack:
            for module in (torch_learner, llm_env_runner):
                stack.enter_context(
                    mock.patch.object(module, "get_device", lambda *a, **k: self.device)
                )
            yield

    # Models -----------------------------------------------------------------------

    def models(self, *names: str) -> tuple[str, ...]:
        """Return these names of models, or the small one."""
        return ("small",) if self.is_small else names

    def model_folder(self, name: str) -> str:
        """Return a folder with a model of random bfloat16 weights and a tokenizer."""
        folder = self.args.work / f"model-{name}"
        if not (folder / "tokenizer_config.json").exists():
            model = self.random_model(name)
            with contextlib.redirect_stderr(sys.stdout):
                model.save_pretrained(folder)
            _tokenizer(model.config.vocab_size).save_pretrained(folder)
        return str(folder)

    def random_model(self, name: str, dtype: Any = None) -> Any:
        """Return a model with random weights on the device."""
        import torch
        from transformers import AutoModelForCausalLM

        torch.manual_seed(0)
        # Made on the device: a CPU needs minutes for 4 billion random numbers.
        with torch.device(self.device):
            return AutoModelForCausalLM.from_config(
                architecture(name), dtype=dtype or torch.bfloat16
            ).eval()


def architecture(name: str) -> Any:
    """Return the transformers config of a model."""
    from transformers import Qwen3Config

    width, inner, layers, heads = _ARCHITECTURES[name]
    is_small = name == "small"
    return Qwen3Config(
        vocab_size=_SMALL_VOCABULARY if is_small else _VOCABULARY,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=min(8, heads),
        head_dim=16 if is_small else 128,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )


def _tokenizer(size: int) -> Any:
    """Return the tiny model's tokenizer, with unused entries up to a size."""
    from tokenizers import Tokenizer

    from rllib_llm.modules.tiny import build_tokenizer

    fast = build_tokenizer(["guess 1 to 9: higher, lower, correct"] * 4, 400)
    data = json.loads(fast.backend_tokenizer.to_str())
    words = data["model"]["vocab"]
    for number in range(len(words), size):
        words[f"unused{number}"] = number
    fast._tokenizer = Tokenizer.from_str(json.dumps(data))
    return fast


def run(main: Callable[[Part], None], *needs: str, **options: tuple[str, ...]) -> None:
    """Run a part's main function.

    Args:
        main: Takes the :class:`Part`.
        needs: Modules without which it is skipped.
        options: Further arguments and their choices; the first is the default.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sizes", default="real")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    for name, choices in options.items():
        parser.add_argument(f"--{name}", choices=choices, default=choices[0])
    part = Part(parser.parse_args())
    part.args.work.mkdir(parents=True, exist_ok=True)
    require(part, *needs)
    if part.device_name == "cuda":
        import torch

        if not torch.cuda.is_available():
            part.skip("torch finds no CUDA device")
    main(part)


def require(part: Part, *needs: str) -> None:
    """Skip the part if modules are missing."""
    missing = [name for name in needs if importlib.util.find_spec(name) is None]
    if missing:
        part.skip(f"not installed: {', '.join(missing)}")
