"""SFT on a file of conversations, here and in TRL's SFTTrainer, on the same tokens.

Run:     python benchmarks/sft_files.py --peer-python VENV/bin/python
         python benchmarks/sft_files.py --peer-python VENV/bin/python \
             --model smollm2-135m --rows 2000 --lr 2e-5
Writes:  benchmarks/results/sft_files_<model>.json

The rows are demonstrations of an environment's expert as conversations in chat format.
The peer gets the ids and labels of the rows that this package renders, so that both
train on equal tokens, with AdamW, a constant learning rate, and gradients clipped at
norm 1. Both train at the same time, each with one thread (``--in-turn``: one after the
other). Times are of the training loop alone; this package's includes rendering.
Held-out loss and success of both models are computed by the same code.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
RESULTS = Path(__file__).parent / "results"
HELD_OUT_ROWS = 100


def main() -> None:
    """Train both, each on one core, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--env", default="guess_number-v0")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--held-out", type=int, default=100, help="Tasks.")
    parser.add_argument("--env-config", type=json.loads, default={}, help="JSON.")
    parser.add_argument("--in-turn", action="store_true", help="Not side by side.")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="sft_files_"))
    config, start, tokens = _write_rows(given, folder)
    record = {**vars(given), "before": _quality(given, folder, start)}
    command = [given.peer_python, __file__, "--peer", _write_job(given, folder, start)]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    with contextlib.ExitStack() as stack:
        if not given.in_turn:
            peer = stack.enter_context(subprocess.Popen(command, env=environment))
        record["ours"] = {"tokens": tokens, "seconds": _train(given, folder, config)}
        if given.in_turn:
            subprocess.run(command, check=True, env=environment)
        elif peer.wait():
            raise SystemExit(f"The peer ended with status {peer.returncode}.")
    record["peer"] = json.loads((folder / "peer.json").read_text())
    record["ours"] |= _quality(given, folder, str(folder / "ours"))
    record["peer"] |= _quality(given, folder, str(folder / "peer"))
    rates = [record[who]["tokens"] / record[who]["seconds"] for who in ("ours", "peer")]
    record["tokens_per_s"] = dict(zip(("ours", "peer"), rates, strict=True))
    record["ratio"] = rates[0] / rates[1]
    del record["peer_python"]
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"sft_files_{Path(given.model).name}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


# This package -------------------------------------------------------------------------


def _config(given: argparse.Namespace) -> Any:
    from rllib_llm import SFTConfig

    return (
        SFTConfig()
        .environment(given.env, env_config=given.env_config)
        .language_model(model=given.model)
        .rollouts(episodes_per_iteration=given.rows)
        .training(lr=given.lr, minibatch_size=given.batch)
        .debugging(seed=given.seed)
    )


def _write_rows(given: argparse.Namespace, folder: Path) -> tuple[Any, str, int]:
    """Write the rows; return the config that trains on them, the start, the tokens."""
    from rllib_llm.offline.conversation_files import parse_row
    from rllib_llm.offline.prepare_model import prepare_language_model
    from rllib_llm.offline.stored_episodes import conversation_episode

    config = _config(given)
    config.validate()
    start = config.resolved_model = prepare_language_model(config)
    renderer = config.chat_renderer()
    texts = _demonstrations(config, renderer, given.rows + HELD_OUT_ROWS, given.seed)
    for name, part in (
        ("train", texts[: given.rows]),
        ("held_out", texts[given.rows :]),
    ):
        (folder / f"{name}.jsonl").write_text("".join(part))
    tokens = 0
    with (folder / "tokens.jsonl").open("w") as file:
        for line in texts[: given.rows]:
            ids, labels = _tokens(
                conversation_episode(parse_row(line.encode()), renderer)
            )
            tokens += len(ids)
            file.write(json.dumps({"input_ids": ids, "labels": labels}) + "\n")
    config.data(files=str(folder / "train.jsonl"))
    return config, start, tokens * given.epochs


def _write_job(given: argparse.Namespace, folder: Path, start: str) -> str:
    """Write what the peer shall do; return the file."""
    job = {
        **{k: getattr(given, k) for k in ("batch", "lr", "epochs", "seed")},
        "model": start,
        "rows": str(folder / "tokens.jsonl"),
        "out": str(folder / "peer"),
    }
    (folder / "job.json").write_text(json.dumps(job))
    return str(folder / "job.json")


def _train(given: argparse.Namespace, folder: Path, config: Any) -> float:
    """Train on the rows, write the model, and return the seconds."""
    algo = config.build_algo()
    began = time.perf_counter()
    for _ in range(given.epochs):
        algo.train()
    seconds = time.perf_counter() - began
    module = algo.learner_group._learner.module["default_policy"].unwrapped()
    module.save_model(folder / "ours")
    algo.stop()
    return seconds


def _demonstrations(config: Any, renderer: Any, count: int, seed: int) -> list[str]:
    """Return lines with conversations of the environment's expert."""
    from rllib_llm.data.episode_data import episode_data
    from rllib_llm.offline.demonstrations import demonstrate
    from rllib_llm.offline.sft_before_rl import demonstration_episode

    env, lines = config.make_text_env(), []
    for number in range(count):
        demo = demonstrate(env, seed=100_000 * seed + number, mistake_rate=0.3)
        episode = demonstration_episode(demo, renderer, config.system_prompt)
        lines.append(json.dumps({"messages": episode_data(episode).messages}) + "\n")
    return lines


def _tokens(episode: Any) -> tuple[list[int], list[int]]:
    """Return the ids of an episode, and the labels of its replies."""
    ids: list[int] = []
    labels: list[int] = []
    for turn in episode.get_extra_model_outputs("turn"):
        prompt, action = turn.prompt_ids.tolist(), turn.action_ids.tolist()
        ids += prompt + action
        labels += [-100] * len(prompt) + action
    return ids, labels


def _quality(given: argparse.Namespace, folder: Path, model: str) -> dict[str, float]:
    """Return a model's loss on held-out rows and its success on held-out tasks."""
    import torch
    from examples import evaluate
    from transformers import AutoModelForCausalLM

    from rllib_llm.offline.conversation_files import parse_row
    from rllib_llm.offline.stored_episodes import conversation_episode

    config = _config(given)
    config.language_model(model=model)
    algo = config.build_algo()
    success = evaluate(algo, given.held_out)["success"]
    renderer = algo.config.chat_renderer()
    algo.stop()
    lm = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    total = count = 0.0
    for line in (folder / "held_out.jsonl").read_text().splitlines():
        ids, labels = _tokens(conversation_episode(parse_row(line.encode()), renderer))
        with torch.no_grad():
            loss = lm(torch.tensor([ids]), labels=torch.tensor([labels])).loss
        # Labels are shifted: the first token has no prediction.
        weight = sum(label != -100 for label in labels[1:])
        total, count = total + loss.item() * weight, count + weight
    return {"nll": total / count, "success": success}


# The peer, in its own environment -----------------------------------------------------


def peer(path: str) -> None:
    """Train TRL's SFTTrainer on rows of ids and labels."""
    import torch
    from datasets import Dataset
    from torch.utils.data import RandomSampler
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    job = json.loads(Path(path).read_text())
    rows = [json.loads(line) for line in Path(job["rows"]).read_text().splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32),
        args=SFTConfig(
            output_dir=job["out"],
            per_device_train_batch_size=job["batch"],
            num_train_epochs=job["epochs"],
            learning_rate=job["lr"],
            lr_scheduler_type="constant",
            weight_decay=0.0,
            max_grad_norm=1.0,
            max_length=None,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=not torch.cuda.is_available(),
            save_strategy="no",
            report_to=[],
            logging_steps=50,
            seed=job["seed"],
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
    )
    assert isinstance(trainer._get_train_sampler(), RandomSampler)
    began = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - began
    trainer.save_model(job["out"])
    tokenizer.save_pretrained(job["out"])
    tokens = sum(len(row["input_ids"]) for row in rows) * job["epochs"]
    result = {"tokens": tokens, "seconds": seconds}
    Path(path).with_name("peer.json").write_text(json.dumps(result))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peer"]:
        peer(sys.argv[2])
    else:
        main()
