"""Catalogue of the alarms with their metrics, default thresholds and remedies."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from rllib_llm.callbacks import result_keys
from rllib_llm.monitoring.alarms import detectors

MODULE = "learners/<module>/"

WARN, LOWER_LR, ROLLBACK, STOP = "warn", "lower_lr", "rollback", "stop"
ACTIONS = (WARN, LOWER_LR, ROLLBACK, STOP)
TRUNCATED = "truncated"  # sum of result_keys.TRUNCATED, as in the progress line


@dataclasses.dataclass(frozen=True)
class Alarm:
    """One alarm.

    Attributes:
        name: Its name in YAML and in the result.
        condition: A sentence about a run in which it fires.
        reads: Result keys, one for each series of ``detect``. Those below
            ``learners/<module>/`` are checked per policy.
        detect: Returns a description if the condition holds, else None.
        thresholds: Keyword arguments of ``detect`` and their defaults.
        subject: Begins the message, before the description.
        remedy: Usual remedy.
        unless_solved: Whether the alarm is silent once the task is solved.
        actions: Actions that can be configured.
    """

    name: str
    condition: str
    reads: tuple[str, ...]
    detect: Callable[..., str | None]
    thresholds: dict[str, Any]
    subject: str
    remedy: str
    unless_solved: bool = False
    actions: tuple[str, ...] = ACTIONS

    @property
    def per_module(self) -> bool:
        """True if every policy has its own values."""
        return self.reads[0].startswith(MODULE)


_ALL = (
    Alarm(
        "kl",
        "The policy changes too much in an update.",
        (MODULE + result_keys.KL,),
        detectors.is_above,
        {"above": 0.2, "window": 1},
        "approx_kl_k3 is",
        "Lower lr or num_epochs, or raise minibatch_size.",
    ),
    Alarm(
        "entropy_collapse",
        "The policy becomes deterministic before it succeeds.",
        (MODULE + result_keys.ENTROPY,),
        detectors.is_below,
        {"below": 0.02, "window": 3},
        "entropy is",
        "Lower lr, add entropy_coeff, or raise clip_param_high.",
        unless_solved=True,
    ),
    Alarm(
        "entropy_explosion",
        "The policy becomes noise.",
        (MODULE + result_keys.ENTROPY,),
        detectors.has_grown,
        {"factor": 3.0, "above": 1.0, "window": 3, "baseline": 5},
        "entropy is",
        "Lower lr or entropy_coeff; look for noise in the transcripts.",
    ),
    Alarm(
        "reward_variance",
        "Returns of a group are equal, so nothing is learned.",
        (result_keys.ZERO_VARIANCE_GROUPS, "return_std"),
        detectors.variance_is_gone,
        {"above": 0.95, "fraction": 0.1, "window": 5, "baseline": 10},
        "",
        "Make the task easier or harder, raise group_size, or look at the entropy.",
        unless_solved=True,
    ),
    Alarm(
        "repetition",
        "Turns repeat themselves.",
        ("env_runners/repeat_in_turn_frac",),
        detectors.is_above,
        {"above": 0.5, "window": 3},
        "repeat_in_turn_frac is",
        "Lower max_new_tokens or lr; read the transcripts.",
    ),
    Alarm(
        "echo",
        "Turns repeat earlier turns.",
        ("env_runners/repeat_of_turns_frac",),
        detectors.has_grown,
        {"factor": 2.0, "above": 0.5, "window": 3, "baseline": 5},
        "repeat_of_turns_frac is",
        "The policy samples the same text for every prompt: filter groups by their "
        "variance, add entropy_coeff, or lower lr.",
        unless_solved=True,
    ),
    Alarm(
        "copying",
        "Turns repeat the prompt.",
        ("env_runners/copied_prompt_frac",),
        detectors.has_grown,
        {"factor": 2.0, "above": 0.5, "window": 3, "baseline": 5},
        "copied_prompt_frac is",
        "The policy copies its prompt: look for a reward function that rewards it.",
        unless_solved=True,
    ),
    Alarm(
        "length",
        "Turns become long.",
        (result_keys.TOKENS_PER_TURN,),
        detectors.has_grown,
        {"factor": 3.0, "above": 50.0, "window": 3, "baseline": 5},
        "tokens_per_turn_mean is",
        "Longer answers have higher rewards: try loss_agg_mode token-mean, or a reward "
        "that penalises tokens.",
    ),
    Alarm(
        "truncation",
        "Episodes run out of tokens.",
        (TRUNCATED,),
        detectors.is_above,
        {"above": 0.5, "window": 3},
        "the share of episodes out of tokens is",
        "Raise max_new_tokens or max_context_tokens, or penalise length.",
    ),
    Alarm(
        "no_valid_action",
        "No turn has been a valid action since the run began.",
        (result_keys.INVALID,),
        detectors.was_never_below,
        {"below": 0.99, "window": 3},
        "invalid_action_frac is",
        "No turn was a valid action, so nothing can be learned: run SFT first, "
        "show an example of an action in the prompt, or use a larger model.",
    ),
    Alarm(
        "invalid_turns",
        "More turns than before are invalid actions.",
        (result_keys.INVALID,),
        detectors.has_grown,
        {"factor": 2.0, "above": 0.2, "window": 3, "baseline": 5},
        "invalid_action_frac is",
        "The policy forgets the format: lower lr or num_epochs, set ref_kl_coeff, or "
        "raise the penalty for invalid actions.",
    ),
    Alarm(
        "unended_turns",
        "More turns than before reach ``max_new_tokens``.",
        (result_keys.CUT_TURNS,),
        detectors.has_grown,
        {"factor": 2.0, "above": 0.5, "window": 3, "baseline": 5},
        "cut_turn_frac is",
        "The policy no longer ends its turns: lower lr, or restart from a checkpoint; "
        "raise max_new_tokens only if long answers have higher rewards.",
    ),
    Alarm(
        "grad_norm",
        "Gradients are far larger than before.",
        (MODULE + "grad_norm",),
        detectors.has_spiked,
        {"factor": 10.0, "history": 20},
        "grad_norm is",
        "Lower lr or grad_clip; look for extreme rewards.",
    ),
    Alarm(
        "nan",
        "A loss or gradient is not finite.",
        (
            MODULE + "total_loss",
            MODULE + "policy_loss",
            MODULE + result_keys.ENTROPY,
            MODULE + "grad_norm",
            MODULE + "nan_steps_skipped",
        ),
        detectors.is_not_finite,
        {},
        "",
        "Lower lr, look for extreme rewards, use bfloat16 instead of float16.",
    ),
    Alarm(
        "return_drop",
        "The return falls far below its best.",
        (result_keys.RETURN,),
        detectors.has_dropped,
        {"fraction": 0.5, "window": 3},
        "episode_return_mean is",
        "Lower lr, or restart from a checkpoint.",
    ),
    Alarm(
        "train_inference_mismatch",
        "Log-probabilities of sampling and training differ.",
        (MODULE + result_keys.TRAIN_INFERENCE_MISMATCH,),
        detectors.is_above,
        {"above": 0.1, "window": 2},
        "train_inference_mismatch_mean is",
        "Inference and training disagree: check dtype and temperature, or use tis.",
    ),
    Alarm(
        "stalled",
        "No turn finished for ``after_s`` seconds while sampling.",
        ("env_runners/num_stalls",),
        detectors.has_happened,
        {"after_s": 60.0},
        "the number of waits without a finished turn is",
        "The log names what each EnvRunner waited for; lower step_timeout_s or "
        "turn_timeout_s.",
        actions=(WARN, STOP),
    ),
)
ALARMS: dict[str, Alarm] = {alarm.name: alarm for alarm in _ALL}
