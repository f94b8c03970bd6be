"""The standing workload in TRL's GRPOTrainer, driven step by step over a pipe.

``standing.py --peer-python PYTHON`` starts this script in a virtual environment for TRL
(docs/performance.md describes how to make it). Each line on stdin starts one update;
its measurements are returned as one line of JSON on stdout.

Three modes: ``rollout_func``, a batched loop around ``model.generate`` that keeps keys
and values between turns; ``rollout_generate``, the same loop generating every turn from
the whole conversation, as in TRL's examples of environments; and
``environment_factory``, TRL's tool loop.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import resource
import sys
import tempfile
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from datasets import Dataset
from standing_game import (
    CALL,
    MAX_NEW_TOKENS,
    MAX_TURNS,
    UPPER,
    NumberGame,
    parse_guess,
)
from transformers import AutoTokenizer, DynamicCache, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template
from trl.models.utils import unwrap_model_for_generation

GROUP_SIZE = 8
# The tool's answers are shown as user messages, in the tokens that all others see.
TOOL_TEMPLATE = (
    "{% for m in messages %}"
    "{% set role = 'user' if m['role'] == 'tool' else m['role'] %}"
    "{{ '<|im_start|>' + role + '\n' }}"
    "{{ m['content'] or '' }}{% for call in m['tool_calls'] or [] %}"
    "{% set call = call.function or call %}"
    '{{ \'<tool_call>{"name": "\' + call.name + \'", "arguments": \' }}'
    "{{ call.arguments | tojson }}{{ '}</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class Rollout:
    """The ``rollout_func``: all episodes generate their turns in one batch.

    Args:
        tokenizer: Renders the prompt and decodes the turns.
        keeps_cache: Keep keys and values of earlier turns.
        args: Options of the command line.
    """

    def __init__(
        self, tokenizer: Any, keeps_cache: bool, args: argparse.Namespace
    ) -> None:
        self.tokenizer = tokenizer
        self.keeps_cache = keeps_cache
        self.variant, self.form = args.variant, args.form
        self.groups = args.groups
        self.rng = random.Random(args.seed)
        self.success = float("nan")
        self.deltas: dict[str, list[int]] = {}

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """Sample one episode per prompt."""
        upper = UPPER[self.variant]
        secrets = [self.rng.randint(1, upper) for _ in range(self.groups)]
        # Rollouts of a group stand side by side.
        games = [
            NumberGame(secret, upper, fixed=self.variant == "fixed")
            for secret in secrets
            for _ in range(GROUP_SIZE)
        ]
        prompt = self.tokenizer.apply_chat_template(
            prompts[0], add_generation_prompt=True, return_dict=False
        )
        episodes = [Episode(game) for game in games]
        with (
            torch.no_grad(),
            unwrap_model_for_generation(
                trainer.model_wrapped, trainer.accelerator
            ) as model,
        ):
            self._play(model, trainer.generation_config, prompt, episodes)
        self.success = sum(e.solved for e in episodes) / len(episodes)
        return {
            "prompt_ids": [prompt] * len(episodes),
            "completion_ids": [e.ids for e in episodes],
            "logprobs": None,
            "env_mask": [e.trained for e in episodes],
            "env_reward": [e.reward for e in episodes],
        }

    def _play(
        self, model: Any, settings: Any, prompt: list[int], episodes: list[Episode]
    ) -> None:
        ids = torch.tensor([prompt] * len(episodes))  # [B, T], all that was generated
        mask = torch.ones_like(ids)  # what of it belongs to the episodes
        cache = DynamicCache(config=model.config) if self.keeps_cache else None
        for _ in range(MAX_TURNS):
            width = ids.shape[1]
            ids = model.generate(
                input_ids=ids,
                attention_mask=mask,
                past_key_values=cache,
                generation_config=settings,
            )
            new = ids[:, width:]
            is_end = new == self.tokenizer.eos_token_id
            real = is_end.cumsum(1) - is_end.long() == 0  # up to the first end of turn
            turns = [r[m].tolist() for r, m in zip(new, real, strict=True)]
            texts = self.tokenizer.batch_decode(turns)
            shown, going = [], []
            for row, (episode, sampled, text) in enumerate(
                zip(episodes, turns, texts, strict=True)
            ):
                guess = parse_guess(text, self.form)
                reply, episode.reward, done = episode.game.play(guess)
                episode.solved = reply == "correct"
                episode.add(sampled, 1)
                if not done:
                    going.append(row)
                    shown.append(self._delta(reply, sampled[-1]))
                    episode.add(shown[-1], 0)
            if not going:
                return
            mask = torch.cat([mask, real.long()], 1)
            if len(going) < len(episodes):  # those that ended take no more turns
                kept = torch.tensor(going)
                if cache is not None:
                    cache.batch_select_indices(kept)
                ids, mask = ids[kept], mask[kept]
                episodes = [episodes[row] for row in going]
            shown_ids, shown_mask = _pad(shown, self.tokenizer.pad_token_id)
            ids = torch.cat([ids, shown_ids], 1)
            mask = torch.cat([mask, shown_mask], 1)

    def _delta(self, reply: str, last_id: int) -> list[int]:
        """Return the text after a turn, with the end of turn if it was not sampled."""
        text = f"\n<|im_start|>user\n{reply}<|im_end|>\n<|im_start|>assistant\n"
        if last_id != self.tokenizer.eos_token_id:
            text = "<|im_end|>" + text
        if text not in self.deltas:
            self.deltas[text] = self.tokenizer(text)["input_ids"]
        return self.deltas[text]


@dataclasses.dataclass
class Episode:
    """A running episode: its tokens after the prompt and their loss mask."""

    game: NumberGame
    reward: float = 0.0
    solved: bool = False
    ids: list[int] = dataclasses.field(default_factory=list)
    trained: list[int] = dataclasses.field(default_factory=list)

    def add(self, ids: list[int], trained: int) -> None:
        """Append tokens."""
        self.ids += ids
        self.trained += [trained] * len(ids)


def _pad(rows: list[list[int]], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and attention mask of ``rows``, padded on the left. [B, T] each"""
    width = max(map(len, rows))
    ids = torch.tensor([[pad_id] * (width - len(r)) + r for r in rows])
    mask = torch.tensor([[0] * (width - len(r)) + [1] * len(r) for r in rows])
    return ids, mask


class Environment:
    """The number game for ``environment_factory``: its method is the tool."""

    def reset(self, seed: int, **kwargs: Any) -> None:
        """Begin an episode; all rollouts of a group get the same seed."""
        upper = UPPER["fixed"]
        secret = random.Random(seed).randint(1, upper)
        self._game = NumberGame(secret, upper, fixed=True)
        self._reward = 0.0

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: The guess.

        Returns:
            Whether the hidden number is higher or lower.
        """
        reply, self._reward, _ = self._game.play(int(number))
        return reply

    def get_reward(self) -> float:
        """Return the closeness of the last guess, plus a hundredth per guess."""
        return self._reward + 0.01 * self._game.turn


class Pacer(TrainerCallback):
    """Waits for a line before every update and reports after it.

    Args:
        steps: Optimiser steps of an update.
        rollout: The rollout_func, or None.
    """

    def __init__(self, steps: int, rollout: Rollout | None) -> None:
        self.steps, self.rollout = steps, rollout
        self.cpu = {"rollout": 0.0, "collect": 0.0}
        self.counts = {"sampled": 0, "sequence": 0}

    def on_step_begin(self, args: Any, state: Any, *rest: Any, **kwargs: Any) -> None:
        """Wait, then start the clock."""
        if state.global_step % self.steps:
            return
        if not sys.stdin.readline():
            os._exit(0)  # the driver has gone
        self.cpu = dict.fromkeys(self.cpu, 0.0)
        self.start = time.process_time()

    def on_step_end(self, args: Any, state: Any, *rest: Any, **kwargs: Any) -> None:
        """Report one update."""
        if state.global_step % self.steps:
            return
        total = time.process_time() - self.start
        report = {
            "rollout_s": self.cpu["rollout"],
            "update_s": total - self.cpu["collect"],
            "total_s": total,
            "sampled": self.counts["sampled"],
            "trained": self.counts["sampled"],
            "sequence": self.counts["sequence"],
            "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "success": self.rollout.success if self.rollout else float("nan"),
        }
        REPORTS.write(json.dumps(report) + "\n")
        REPORTS.flush()

    def timed(self, name: str, function: Any) -> Any:
        """Return ``function`` with its CPU seconds added to ``name``."""

        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            result = function(*args, **kwargs)
            self.cpu[name] += time.process_time() - start
            if name == "rollout":
                prompt_ids, completion_ids, tool_mask = result[:3]
                self.counts["sampled"] = sum(map(sum, tool_mask))
                self.counts["sequence"] = sum(map(len, [*prompt_ids, *completion_ids]))
            return result

        return call


def build_trainer(args: argparse.Namespace) -> GRPOTrainer:
    """Return a trainer for the standing workload in TRL's fastest settings."""
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    modes: dict[str, Any] = {
        mode: {
            "rollout_func": Rollout(tokenizer, keeps_cache, args),
            "reward_funcs": lambda env_reward, **kwargs: env_reward,
        }
        for mode, keeps_cache in (("rollout_func", True), ("rollout_generate", False))
    }
    modes["environment_factory"] = {"environment_factory": Environment}
    if args.mode == "environment_factory":
        tokenizer.chat_template = TOOL_TEMPLATE
        tokenizer.response_template = qwen3_template
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="peer_trl_"),
        use_cpu=True,
        bf16=args.dtype == "bfloat16",
        model_init_kwargs={"dtype": args.dtype},
        gradient_checkpointing=False,
        per_device_train_batch_size=args.part,
        gradient_accumulation_steps=args.minibatch // args.part,
        steps_per_generation=args.groups * GROUP_SIZE // args.part,
        num_generations=GROUP_SIZE,
        max_completion_length=256,
        generation_kwargs={"max_new_tokens": MAX_NEW_TOKENS[args.form]},
        # The last call needs no answer.
        max_tool_calling_iterations=MAX_TURNS - 1,
        learning_rate=args.learning_rate,
        seed=args.seed,
        lr_scheduler_type="constant",
        max_steps=10_000,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    prompt = NumberGame(1, UPPER[args.variant], fixed=True).prompt
    message = [{"role": "user", "content": prompt}]
    data = Dataset.from_list([{"prompt": message, "seed": i} for i in range(4096)])
    return GRPOTrainer(
        model=args.model,
        args=config,
        train_dataset=data,
        processing_class=tokenizer,
        peft_config=adapters(args.lora),
        **modes[args.mode],
    )


def adapters(settings: dict[str, Any] | None) -> Any:
    """Return peft's config of adapters, or None to train all weights."""
    if settings is None:
        return None
    from peft import LoraConfig

    return LoraConfig(
        task_type="CAUSAL_LM",
        r=settings["rank"],
        lora_alpha=settings["alpha"],
        target_modules=settings["target_modules"],
    )


def main() -> None:
    """Train until the driver closes the pipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--mode", default="rollout_func")
    parser.add_argument("--variant", default="fixed", help="game: no tool loop")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--part", type=int, default=64, help="rows per forward pass")
    parser.add_argument("--minibatch", type=int, default=64, help="rows per step")
    parser.add_argument("--learning-rate", type=float, default=1e-6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--groups", type=int, default=8, help="of 8 episodes")
    parser.add_argument("--form", default=CALL, help="of a guess")
    parser.add_argument("--lora", type=json.loads, help="rank, alpha, target_modules")
    args = parser.parse_args()
    episodes = args.groups * GROUP_SIZE
    args.part = min(args.part, args.minibatch, episodes)
    torch.set_num_threads(1)
    trainer = build_trainer(args)
    pacer = Pacer(episodes // args.minibatch, trainer.rollout_func)
    trainer._generate = pacer.timed("rollout", trainer._generate)
    collect = trainer._generate_and_score_completions
    trainer._generate_and_score_completions = pacer.timed("collect", collect)
    trainer.add_callback(pacer)
    trainer.train()


if __name__ == "__main__":
    # The libraries print to stdout, too; they get stderr.
    REPORTS = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    main()
