"""Agreement and cost of vLLM and the embedded engine.

Run:  python benchmarks/vllm_parity.py --sizes small medium --dtypes float32 bfloat16

Random Qwen3 models, one process, one thread, alternating engines. Every session has
several turns; each engine keeps their keys and values in its cache. Prints one row per
model and dtype:

- greedy tokens: share of equal tokens of greedy turns, up to each first difference;
- greedy |dlogp|: largest gap between the engines' log-probabilities of those tokens;
- forward |dlogp|: largest gap between vLLM's log-probabilities of sampled tokens and
  one full forward pass of the model, before / after an update of all weights;
- tokens per CPU-second of sampled turns, embedded engine / vLLM, medians.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from rllib_llm.engines import GenerationEngine, SamplingParams, TorchEngine, VLLMEngine
from rllib_llm.modules.loading import DTYPES, quiet_progress

VOCAB, CONTEXT = 512, 640
SIZES = {  # hidden size, layers
    "small": (128, 4),
    "medium": (256, 8),
    "large": (512, 8),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["small"])
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["float32"])
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| model | dtype | greedy tokens | greedy \\|dlogp\\| | forward \\|dlogp\\| | "
        "tok / CPU-s: torch | vllm | vllm / torch |\n|---|---|---|---|---|---|---|---|"
    )
    for size in args.sizes:
        for dtype in args.dtypes:
            print(row(size, dtype, args), flush=True)


def row(size: str, dtype: str, args: argparse.Namespace) -> str:
    """Compare the engines on one model."""
    model = build(size, seed=0).to(DTYPES[dtype])
    with tempfile.TemporaryDirectory() as folder:
        with quiet_progress():
            model.save_pretrained(folder)
        limits = {"max_slots": args.sessions, "max_context_tokens": CONTEXT}
        torch_engine = TorchEngine(model, **limits)
        vllm_engine = VLLMEngine(folder, dtype=dtype, **limits)
        equal, gap = compare_greedy(torch_engine, vllm_engine, args)
        before = forward_gap(vllm_engine, model, args)
        with torch.no_grad():
            for old, new in zip(
                model.parameters(), build(size, seed=1).parameters(), strict=True
            ):
                old.copy_(new)
        torch_engine.set_weights_version(1)
        vllm_engine.update_weights(model.named_parameters(), 1)
        after = forward_gap(vllm_engine, model, args)
        speeds = {torch_engine: [], vllm_engine: []}
        for repeat in range(args.repeats + 1):
            for engine, found in speeds.items():
                speed = play(engine, args, seed=repeat, temperature=1.0)[1]
                if repeat:  # the first one warms up
                    found.append(speed)
    torch_speed, vllm_speed = (float(np.median(s)) for s in speeds.values())
    cells = [
        f"{size}, {sum(p.numel() for p in model.parameters()) / 1e6:.1f}M",
        dtype,
        f"{equal:.4f}",
        f"{gap:.1e}",
        f"{before:.1e} / {after:.1e}",
        f"{torch_speed:,.0f}",
        f"{vllm_speed:,.0f}",
        f"{vllm_speed / torch_speed:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def build(size: str, seed: int) -> torch.nn.Module:
    """Return a random model with heads of size 32, as vLLM's CPU attention requires."""
    hidden, layers = SIZES[size]
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=max(1, hidden // 64),
        head_dim=32,
        max_position_embeddings=CONTEXT,
        initializer_range=0.1,
        tie_word_embeddings=False,
    )
    return Qwen3ForCausalLM(config).eval()


def play(
    engine: GenerationEngine, args: argparse.Namespace, seed: int, temperature: float
) -> tuple[dict[int, tuple[list[int], list[Any]]], float]:
    """Sample the turns of all sessions, each as soon as the previous one is finished.

    Returns:
        History and turns by session, and sampled tokens per CPU-second.
    """
    rng = np.random.default_rng(seed)
    prompts = rng.integers(0, VOCAB, (args.turns, args.sessions, 24)).tolist()
    lengths = rng.integers(8, 45, (args.turns, args.sessions)).tolist()
    played: dict[int, tuple[list[int], list[Any]]] = {}
    start = time.process_time()

    def submit(i: int, turn: int) -> None:
        params = SamplingParams(
            max_new_tokens=lengths[turn][i],
            seed=1000 * turn + i,
            temperature=temperature,
        )
        engine.submit(i, prompts[turn][i], params)
        played[i][0].extend(prompts[turn][i])

    for i in range(args.sessions):
        engine.open(i)
        played[i] = ([], [])
        submit(i, 0)
    while engine.num_unfinished:
        for done in engine.step():
            history, turns = played[done.session_id]
            turns.append((len(history), done))
            history.extend(done.token_ids.tolist())
            if len(turns) < args.turns:
                submit(done.session_id, len(turns))
    seconds = time.process_time() - start
    for i in range(args.sessions):
        engine.close(i)
    tokens = sum(len(d.token_ids) for _, turns in played.values() for _, d in turns)
    return played, tokens / seconds


def compare_greedy(
    one: GenerationEngine, two: GenerationEngine, args: argparse.Namespace
) -> tuple[float, float]:
    """Return the share of equal greedy tokens and the largest gap among them."""
    found = [play(engine, args, seed=0, temperature=0.0)[0] for engine in (one, two)]
    equal = total = 0
    gap = 0.0
    for i in range(args.sessions):
        for (_, a), (_, b) in zip(found[0][i][1], found[1][i][1], strict=True):
            differ = np.flatnonzero(a.token_ids != b.token_ids)
            same = int(differ[0]) if len(differ) else len(a.token_ids)
            equal, total = equal + same, total + len(a.token_ids)
            if same:
                gap = max(gap, float(np.abs(a.logps[:same] - b.logps[:same]).max()))
            if len(differ):  # later turns have other histories
                break
    return equal / total, gap


@torch.no_grad()
def forward_gap(
    engine: GenerationEngine, model: torch.nn.Module, args: argparse.Namespace
) -> float:
    """Return the largest gap to one full forward pass per session, in nats."""
    gap = 0.0
    for history, turns in play(engine, args, seed=7, temperature=1.0)[0].values():
        logits = model(input_ids=torch.tensor([history])).logits[0].float()
        logps = torch.log_softmax(logits, -1)
        for start, done in turns:
            rows = torch.arange(start - 1, start - 1 + len(done.token_ids))
            expected = logps[rows, torch.as_tensor(done.token_ids).long()].numpy()
            gap = max(gap, float(np.abs(expected - done.logps).max()))
    return gap


if __name__ == "__main__":
    main()
