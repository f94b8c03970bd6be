"""Savings of the CPU's shorter passes, in updates and in sampling.

Run:  OMP_NUM_THREADS=1 python benchmarks/cpu_passes.py [PART ...]

Parts are optimiser, norms, last_mlp and products. Both ways are measured in turn in one
process; CPU ms, medians. Prints the table of docs/performance.md.
"""

from __future__ import annotations

import contextlib
import copy
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from rllib_llm.algorithms.learner import adamw
from rllib_llm.algorithms.learner.fast_layers import speed_up_norms
from rllib_llm.cli.session import quiet_loggers
from rllib_llm.engines import fused_forward, multi_lora_linear
from rllib_llm.modules import llm_rl_module

CPU = torch.device("cpu")
Way = Callable[[], Any]


def in_turn(ways: Sequence[Way], repeats: int) -> list[float]:
    """Return the median CPU milliseconds of each way."""
    spent: list[list[float]] = [[] for _ in ways]
    for repeat in range(repeats + 1):
        for way, seconds in zip(ways, spent, strict=True):
            start = time.process_time()
            way()
            if repeat:  # the first is a warm-up
                seconds.append(time.process_time() - start)
    return [statistics.median(seconds) * 1e3 for seconds in spent]


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute inside of the block."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def read_all_again(low: torch.Tensor, master: torch.Tensor) -> None:
    """Copy changed elements to their masters without looking for any first."""
    master.copy_(torch.where(master.to(low.dtype) == low, master, low))


def optimiser() -> Iterator[tuple[str, list[float]]]:
    """Measure AdamW's steps of 30 matrices of 1,536 x 576."""
    for dtype in (torch.float32, torch.bfloat16):
        parameters = [
            torch.nn.Parameter(0.02 * torch.randn(1536, 576).to(dtype))
            for _ in range(30)
        ]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        step = adamw.MixedPrecisionAdamW(parameters, lr=1e-5).step

        def plain(step: Way = step) -> None:
            with (
                replaced(adamw, "_may_be_fused", lambda *tensors: None),
                replaced(adamw, "_read_again", read_all_again),
            ):
                step()

        yield f"AdamW's step, 26.5 M parameters, {dtype}", in_turn([plain, step], 7)


def norms() -> Iterator[tuple[str, list[float]]]:
    """Measure a norm forward and backward: widths of tiny and SmolLM2-135M."""
    for rows, size in ((3990, 128), (1872, 576)):
        for dtype in (torch.float32, torch.bfloat16):
            plain = LlamaRMSNorm(size).to(dtype)
            fast = copy.deepcopy(plain)
            speed_up_norms(fast, CPU)
            x = torch.randn(rows, size).to(dtype).requires_grad_()
            grad = torch.randn_like(x)

            def run(layer: Any, x: torch.Tensor = x, grad: torch.Tensor = grad) -> None:
                x.grad = layer.weight.grad = None
                layer(x).backward(grad)

            ways = [lambda run=run, n=layer: run(n) for layer in (plain, fast)]
            yield f"norm, {rows:,} x {size}, {str(dtype)[6:]}", in_turn(ways, 31)


def _algorithm(variant: str, dtype: str) -> Any:
    from standing_workload import standing_config

    return standing_config("tiny", variant, dtype=dtype).build_algo()


def last_mlp() -> Iterator[tuple[str, list[float]]]:
    """Measure forward and backward of one update of the standing workload."""
    for variant, dtype in (
        ("fixed", "float32"),
        ("game", "float32"),
        ("fixed", "bfloat16"),
    ):
        algo = _algorithm(variant, dtype)
        learner = algo.learner_group._learner
        backward, found = learner._backward, []

        def measured(
            *args: Any, backward: Any = backward, found: Any = found, **kwargs: Any
        ) -> Any:
            everywhere = contextlib.nullcontext

            def whole() -> None:
                with replaced(llm_rl_module, "only_read_at", everywhere):
                    backward(*args, **kwargs)

            found[:] = in_turn([whole, lambda: backward(*args, **kwargs)], 25)
            return backward(*args, **kwargs)

        algo.train()
        with replaced(learner, "_backward", measured):
            algo.train()
        algo.stop()
        yield f"update of `{variant}`, tiny, {dtype}, last MLP", found


def products() -> Iterator[tuple[str, list[float]]]:
    """Measure rollouts in bfloat16 with products of any shape and of few."""
    algo = _algorithm("fixed", "bfloat16")
    for _ in range(3):
        algo.sample_groups(8)

    def any_shape() -> None:
        with (
            replaced(multi_lora_linear, "pad_rows", lambda x: x),
            replaced(fused_forward, "pad_rows", lambda x: x),
        ):
            algo.sample_groups(8)

    yield (
        "rollout of `fixed`, tiny, bfloat16, shapes of products",
        in_turn([any_shape, lambda: algo.sample_groups(8)], 9),
    )
    algo.stop()


def main() -> None:
    """Print one table row per measurement."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    quiet_loggers()
    parts = {f.__name__: f for f in (optimiser, norms, last_mlp, products)}
    print("| part | before | now | ratio |\n|---|---|---|---|")
    for name in sys.argv[1:] or parts:
        for label, (before, now) in parts[name]():
            print(
                f"| {label.replace('torch.', '')} | {before:.1f} | {now:.1f} "
                f"| {now / before:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
