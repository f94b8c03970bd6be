"""Run folders with synthetic transcripts."""

from __future__ import annotations

import json

import numpy as np
from run_builder import write_run

HOSTILE = (
    "</script><script>document.title='owned'</script>"
    "<img src=x onerror=\"document.title='owned'\">\u2028<!-- ]]> &lt;b&gt; \\u003c"
)
COMPONENTS = [
    "Let",
    " me",
    " think",
    ":",
    " the",
    " answer",
    " is",
    " 4",
    "2",
    "<|im_end|>",
]


def make_turn(rng, number, *, index=None, agent=None, agent_index=0, text=None):
    """Return a turn of ten tokens with all columns of a Learner with a critic."""
    components = [text or COMPONENTS[0], *COMPONENTS[1:]]
    size = len(components)
    return {
        "turn": number,
        "index": number if index is None else index,
        "agent": agent,
        "agent_index": agent_index,
        "policy": agent and f"policy_of_{agent}",
        "observation": f"The board after {number} moves. {text or ''}",
        "prompt": f"<|im_start|>user\nThe board after {number} moves.<|im_end|>\n",
        "completion": "".join(components[:-1]),
        "reward": float(rng.integers(-1, 2)),
        "reward_parts": {"environment": 1.0, "length_penalty": -0.1},
        "advantage": round(float(rng.normal()), 4),
        "tokens": size,
        "logp_mean": -0.4,
        "finish": "stop",
        "invalid": False,
        "columns": {
            "text": components,
            "logp": (-rng.random(size)).round(4).tolist(),
            "trained": [1] * (size - 1) + [0],
            "advantage": rng.normal(size=size).round(4).tolist(),
            "ratio": rng.normal(1.0, 0.05, size).round(4).tolist(),
            "entropy": rng.random(size).round(4).tolist(),
            "value": 0.25,
            "old_logp": (-rng.random(size)).round(4).tolist(),
            "gap": (rng.normal(size=size) * 1e-4).tolist(),
        },
    }


def make_record(seed, *, iteration=1, turns=4, agents=(), text=None, **fields):
    """Return a record of version 2."""
    rng = np.random.default_rng(seed)
    played = []
    for number in range(turns):
        for place, agent in enumerate(agents or (None,)):
            more = {"agent": agent, "agent_index": place, "text": text}
            played.append(make_turn(rng, number, **more))
    return {
        "version": 2,
        "iteration": iteration,
        "episode": f"episode_{seed}",
        "split": "train",
        "selected_as": "random",
        "group_id": seed // 4,
        "rollout": seed % 4,
        "seed": 1000 + seed // 4,
        "environment": None,
        "return": round(float(rng.normal()), 4),
        "success": bool(seed % 2),
        "stop_reason": "terminated",
        "stop_policy": "train",
        "trained": True,
        "advantage": None,
        "weights": iteration,
        "num_turns": len(played),
        "num_tokens": 10 * len(played),
        "agents": sorted(agents),
        "turns": played,
        "final_observation": text or "You won.",
        **fields,
    }


def write_viewed_run(folder, records, *, name="run", values=(0.0, 0.5, 1.0)):
    """Return a run with one trial whose transcripts are ``records``."""
    rows = [
        {
            "env_runners/episode_return_mean": value,
            "learners/default_policy/entropy": 1 - value / 2,
            "learners/__all_modules__/entropy": 99.0,
        }
        for value in values
    ]
    run = write_run(folder / name, [({"seed": 0}, rows)])
    add_transcripts(run / "trial_00000", records)
    return run


def add_transcripts(trial, records):
    """Write a trial's ``transcripts.jsonl``."""
    lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
    (trial / "transcripts.jsonl").write_text("".join(lines), encoding="utf-8")
