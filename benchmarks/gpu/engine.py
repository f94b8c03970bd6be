"""Tokens per second of an engine on random weights: prompts, and decoding.

Needs torch and transformers, without ray; ``--engine vllm`` needs vLLM.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
from part import GIB, Part, require, run

from rllib_llm.engines import GenerationEngine, SamplingParams


@dataclasses.dataclass
class Work:
    """Sessions that all start at once.

    Attributes:
        sessions: Their number.
        prompt: Tokens of each prompt.
        new: Sampled tokens of each session.
    """

    sessions: int
    prompt: int
    new: int


REAL = [Work(8, 256, 128), Work(64, 256, 128), Work(256, 256, 128)]
SMALL = [Work(4, 16, 6)]


def main(part: Part) -> None:
    """Write one row per model, forward pass and number of sessions."""
    if part.args.engine == "vllm":
        require(part, "vllm")
    workloads = SMALL if part.is_small else REAL
    for name in part.models("0.6B", "1.7B", "4B"):
        forwards = ("auto", "plain") if part.args.engine == "torch" else ("vllm",)
        for forward in forwards if name in ("0.6B", "small") else forwards[:1]:
            engine, vocabulary = build(part, name, forward, workloads)
            play(engine, workloads[0], vocabulary)  # warms up
            for work in workloads:
                measure(part, name, forward, engine, work, vocabulary)


def build(
    part: Part, name: str, forward: str, workloads: list[Work]
) -> tuple[GenerationEngine, int]:
    """Return an engine of a model, and the number of its tokens."""
    limits: dict[str, Any] = {
        "max_slots": max(w.sessions for w in workloads),
        "max_context_tokens": max(w.prompt + w.new for w in workloads) + 8,
    }
    if part.args.engine == "vllm":
        from transformers import AutoConfig

        from rllib_llm.engines.vllm_engine import VLLMEngine

        folder = part.model_folder(name)
        vocabulary = AutoConfig.from_pretrained(folder).vocab_size
        return VLLMEngine(folder, dtype="bfloat16", **limits), vocabulary
    from rllib_llm.engines.torch_engine import TorchEngine

    model = part.random_model(name)
    return TorchEngine(model, forward=forward, **limits), model.config.vocab_size


def measure(
    part: Part,
    name: str,
    forward: str,
    engine: GenerationEngine,
    work: Work,
    vocabulary: int,
) -> None:
    """Write the row of one workload."""
    if part.accelerator is not None:
        part.accelerator.reset_peak()
    first, whole = play(engine, work, vocabulary)
    peak = part.accelerator.peak_bytes / GIB if part.accelerator else ""
    steps = work.new - 1
    part.row(
        model=name,
        forward=forward,
        sessions=work.sessions,
        prompt_tokens_per_s=work.sessions * work.prompt / first,
        decoded_tokens_per_s=work.sessions * steps / (whole - first),
        ms_per_step=1e3 * (whole - first) / steps,
        # vLLM's memory is its own share of the device, which torch does not count.
        peak_gib="" if forward == "vllm" else peak,
    )


def play(engine: GenerationEngine, work: Work, vocabulary: int) -> tuple[float, float]:
    """Sample one turn of every session.

    Returns:
        Seconds until every session has its first token, and until the end; a step
        reads its tokens, so the device has done its work.
    """
    rng = np.random.default_rng(0)
    prompts = rng.integers(0, vocabulary, (work.sessions, work.prompt))
    start = time.perf_counter()
    for session in range(work.sessions):
        engine.open(session)
        params = SamplingParams(max_new_tokens=work.new, seed=session, temperature=1.0)
        engine.submit(session, prompts[session], params)
    before = engine.stats()["decoded_tokens"]
    first = 0.0
    while engine.num_unfinished:
        engine.step()
        sampled = engine.stats()["decoded_tokens"] - before
        if not first and sampled >= work.sessions:
            first = time.perf_counter() - start
    whole = time.perf_counter() - start
    for session in range(work.sessions):
        engine.close(session)
    return first or whole, whole


if __name__ == "__main__":
    run(main, "torch", "transformers", engine=("torch", "vllm"))
