"""The pretrained small model as a judge that was taught, and a policy that it rewards.

Run:    python benchmarks/trained_judge.py --rows 100 --seeds 0 1 2
Table:  python benchmarks/trained_judge.py --table
Writes: benchmarks/results/trained_judge/<rows>_seed<n>.json

SmolLM2-135M-Instruct is fine-tuned (SFT, LoRA) on a file of questions whether a reply
repeats a word, half of the replies right. It is then the assistant ``judge`` of GRPO on
``copy_probe-v0``, whose reward is the judge's answer alone. The asked reward and the
true share of right replies in the same sampled episodes are compared. The judge's
accuracy is that on all pairs of the words, weighted so that half of them are right.
Needs ``smollm``.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from examples import evaluate
from pretrained_judge import QUESTION as ASKED
from pretrained_judge import Judge

from rllib_llm import SFTConfig
from rllib_llm.cli.session import quiet_loggers
from rllib_llm.envs.probes import WORDS as ALL_WORDS
from rllib_llm.recipes import load_recipe

RESULTS = Path(__file__).parent / "results" / "trained_judge"
ITERATIONS, HELD_OUT, SHOWN = 30, 200, (1, 10, 20, 30)
QUESTION = f"{{observation}}\nReply: {{reply}}\n{ASKED}"
WORDS = ALL_WORDS[:4]
ENV = {"words": len(WORDS), "max_turns": 1}
BEST_RETURN = 0.5  # of the first of the task's two turns


def question(word: str, reply: str) -> str:
    """Return the question as the assistant asks it."""
    return QUESTION.format(observation=f"Say {word}", reply=reply)


def train_judge(rows: int, seed: int, folder: Path) -> dict[str, Any]:
    """Fine-tune the judge, save it as a folder, and return its accuracy."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(rows):
        word, other = rng.choice(WORDS, size=2, replace=False)
        right = rng.random() < 0.5
        messages = [
            {"role": "user", "content": question(word, word if right else other)},
            {"role": "assistant", "content": "yes" if right else "no"},
        ]
        lines.append(json.dumps({"messages": messages}))
    file = folder / "judged.jsonl"
    file.write_text("\n".join(lines) + "\n")
    config = (
        SFTConfig()
        .environment("copy_probe-v0", env_config=ENV)
        .language_model(model="smollm2-135m", lora={"rank": 16})
        .data(files=str(file))
        .rollouts(episodes_per_iteration=rows)
        .training(lr=5e-4, minibatch_size=8)
        .debugging(seed=seed)
    )
    algo = config.build_algo()
    start = time.process_time()
    algo.train()
    minutes = (time.process_time() - start) / 60
    module = algo.learner_group._learner.module["default_policy"].unwrapped()
    module.save_model(folder / "judge")
    algo.stop()
    return {"sft_cpu_min": minutes, **accuracy(Judge(folder / "judge"))}


def accuracy(judge: Judge) -> dict[str, Any]:
    """Return the judge's accuracy on all pairs, and the wrong ones that it accepts."""
    accepts = {
        (word, reply): judge.score(question(word, reply)) > 0
        for word in WORDS
        for reply in WORDS
    }
    right = float(np.mean([accepts[word, word] for word in WORDS]))
    wrong = [pair for pair in accepts if pair[0] != pair[1]]
    accepted = [pair for pair in wrong if accepts[pair]]
    return {
        "accuracy": (right + 1 - len(accepted) / len(wrong)) / 2,
        "right_accepted": right,
        "wrong_accepted": accepted,
    }


def run(rows: int, seed: int) -> dict[str, Any]:
    """Train a judge, and one policy with its answers as the only reward."""
    with tempfile.TemporaryDirectory() as folder:
        record = {"rows": rows, "seed": seed}
        record |= train_judge(rows, seed, Path(folder))
        print(rows, seed, record, flush=True)
        recipe = load_recipe("judged", [f"seed={seed}"])
        config = recipe.build_config()
        config.environment("copy_probe-v0", env_config=ENV)
        config.evaluation(evaluation_interval=None, evaluation_config={})
        # More is right than by chance, so that a group has something to compare.
        config.sft(mistake_rate=0.6)
        config.rollouts(
            episodes_per_iteration=64,
            assistants={
                "judge": {
                    "model": str(Path(folder) / "judge"),
                    "template": QUESTION,
                    "parse": {"words": {"yes": 1.0, "no": 0.0}},
                    "max_new_tokens": 2,
                    "unreadable": 0.0,
                }
            },
        )
        algo = config.build_algo()
        start = time.process_time()
        before, curve = evaluate(algo, HELD_OUT), []
        for iteration in range(1, ITERATIONS + 1):
            result = algo.train()
            curve.append(
                {
                    "iteration": iteration,
                    "asked": float(result["assistants"]["judge"]["value_mean"]),
                    "true": float(result["env_runners"]["episode_return_mean"])
                    / BEST_RETURN,
                }
            )
            print(curve[-1], flush=True)
        record |= {"before": before, "after": evaluate(algo, HELD_OUT), "curve": curve}
        algo.stop()
    return record | {"cpu_min": (time.process_time() - start) / 60}


def print_table() -> None:
    """Print one row per judge and seed."""
    shown = [f"asked / true, iteration {i}" for i in SHOWN]
    print(
        "| rows of SFT, seed | accuracy | wrong pairs accepted, of 12 | "
        f"{' | '.join(shown)} | held-out right replies before, after | CPU min |"
    )
    print("|---" * (len(SHOWN) + 5) + "|")
    paths = RESULTS.glob("*_seed*.json")
    runs = [json.loads(path.read_text()) for path in paths]
    for record in sorted(runs, key=lambda run: (run["rows"], run["seed"])):
        points = [record["curve"][iteration - 1] for iteration in SHOWN]
        before, after = (
            record[key]["return"] / BEST_RETURN for key in ("before", "after")
        )
        cells = [
            f"{record['rows']}, {record['seed']}",
            f"{record['accuracy']:.2f}",
            str(len(record["wrong_accepted"])),
            *(f"{point['asked']:.2f} / {point['true']:.2f}" for point in points),
            f"{before:.2f}, {after:.2f}",
            f"{record['sft_cpu_min']:.1f} + {record['cpu_min']:.1f}",
        ]
        print(f"| {' | '.join(cells)} |")


def main() -> None:
    """Run, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[100])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if not args.table:
        quiet_loggers()
        torch.set_num_threads(1)
        RESULTS.mkdir(parents=True, exist_ok=True)
        for rows in args.rows:
            for seed in args.seeds:
                record = run(rows, seed)
                path = RESULTS / f"{rows}_seed{seed}.json"
                path.write_text(json.dumps(record, indent=1) + "\n")
    print_table()


if __name__ == "__main__":
    main()
