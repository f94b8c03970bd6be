"""The torch engine on the CPU and on an accelerator."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from learner_helpers import make_config

from rllib_llm import GRPOConfig
from rllib_llm.engines.base import SamplingParams
from rllib_llm.engines.torch_engine import TorchEngine
from rllib_llm.modules.loading import load_causal_lm

SESSIONS, STEPS = 8, 5


def engines(accelerator, forward: str, drafted: int = 0) -> list[TorchEngine]:
    """Return engines with equal weights, on the CPU and on the accelerator.

    Those that draft have sampled their first two turns often.
    """
    model = load_causal_lm(make_config(GRPOConfig).resolved_model)
    copied = copy.deepcopy(model).to(accelerator.device)
    settings: dict[str, Any] = {"max_slots": SESSIONS, "max_context_tokens": 128}
    settings["num_speculative_tokens"] = drafted
    both = [TorchEngine(m, forward=forward, **settings) for m in (model, copied)]
    for engine in both:
        for _ in range(12 if drafted else 0):
            play(engine)
        engine.reset_stats()
    return both


def play(engine: TorchEngine) -> list[Any]:
    """Return the tokens of two turns of every session."""
    found: list[Any] = []
    for session in range(SESSIONS):
        engine.open(session)
    for turn in range(2):
        submit(engine, turn)
        done: dict[int, Any] = {}
        while engine.num_unfinished:
            done |= {r.session_id: list(r.token_ids) for r in engine.step()}
        found += [done[session] for session in range(SESSIONS)]
    for session in range(SESSIONS):
        engine.close(session)
    return found


def submit(engine: TorchEngine, turn: int) -> None:
    """Submit a turn of every session: sampled, cut or greedy."""
    rng = np.random.default_rng(turn)
    for session in range(SESSIONS):
        prompt = rng.integers(20, 200, 5 + session)
        cut = {"top_k": 20, "top_p": 0.9} if session % 4 == 1 else {}
        temperature = 0.0 if session % 4 == 2 else 0.8
        params = SamplingParams(
            max_new_tokens=12, seed=100 * turn + session, temperature=temperature, **cut
        )
        engine.submit(session, prompt, params)


def compare_tokens(accelerator, forward: str, drafted: int = 0) -> dict[str, Any]:
    """Return the number of equal turns, of all, and whether both engines are fused."""
    both = engines(accelerator, forward, drafted)
    found = [play(engine) for engine in both]
    return {
        "equal": sum(a == b for a, b in zip(*found, strict=True)),
        "turns": len(found[0]),
        "fused": [engine.is_fused for engine in both],
        "accepted": [engine.stats()["accepted_tokens"] for engine in both],
    }


def decode_waits(accelerator, forward: str, drafted: int = 0) -> dict[str, Any]:
    """Return the waits of some decoding steps, by reason and line."""
    _, engine = engines(accelerator, forward, drafted)
    for session in range(SESSIONS):
        engine.open(session)
    submit(engine, 0)
    for _ in range(2):  # the prompts, and the first step after them
        engine.step()
    steps = 1 if drafted else STEPS
    with accelerator.host_syncs() as syncs:
        for _ in range(steps):
            engine.step()
    accepted = engine.stats()["accepted_tokens"]
    return {"steps": steps, "waits": dict(syncs.by_phase[""]), "accepted": accepted}


def decode_without_waits(accelerator, forward: str) -> int:
    """Return the number of decoding steps whose forward pass never waited."""
    _, engine = engines(accelerator, forward)
    for session in range(SESSIONS):
        engine.open(session)
    submit(engine, 0)
    for _ in range(2):  # the prompts, and the first step after them
        engine.step()
    forward_of = engine._runner.forward
    steps = 0

    def checked(*args, **kwargs):
        nonlocal steps
        steps += 1
        with accelerator.no_waits():
            return forward_of(*args, **kwargs)

    engine._runner.forward = checked
    for _ in range(STEPS):
        engine.step()
    return steps
