"""Names of all metrics, to reject misspelt ones before a run."""

from __future__ import annotations

import re

from rllib_llm.errors import ConfigError, did_you_mean

# The metrics of docs/metrics.md in its order (a test compares them); "<..>" is any
# name.
METRICS = (
    "env_runners/episode_return_mean",
    "env_runners/episode_return_min",
    "env_runners/episode_return_max",
    "env_runners/success_rate",
    "env_runners/turns_mean",
    "env_runners/episode_len_mean",
    "env_runners/episode_len_min",
    "env_runners/episode_len_max",
    "env_runners/completion_tokens_mean",
    "env_runners/tokens_per_turn_mean",
    "env_runners/context_tokens_mean",
    "env_runners/invalid_action_frac",
    "env_runners/cut_turn_frac",
    "env_runners/repeat_in_turn_frac",
    "env_runners/repeat_of_turns_frac",
    "env_runners/copied_prompt_frac",
    "env_runners/prefix_break_frac",
    "env_runners/stop/<reason>",
    "env_runners/episode_duration_sec_mean",
    "env_runners/agent_episode_return_mean/<agent>",
    "env_runners/module_episode_return_mean/<module>",
    "env_runners/num_episodes",
    "env_runners/num_episodes_failed",
    "env_runners/num_completion_tokens",
    "env_runners/num_env_steps_sampled",
    "env_runners/num_agent_steps_sampled/<agent>",
    "env_runners/num_module_steps_sampled/<module>",
    "env_runners/num_episodes_lifetime",
    "env_runners/num_completion_tokens_lifetime",
    "env_runners/num_env_steps_sampled_lifetime",
    "env_runners/num_agent_steps_sampled_lifetime/<agent>",
    "env_runners/num_module_steps_sampled_lifetime/<module>",
    "env_runners/num_completion_tokens_lifetime_throughput/<since>",
    "env_runners/num_env_steps_sampled_lifetime_throughput/<since>",
    "env_runners/sample",
    "env_runners/num_stalls",
    "env_runners/longest_wait_s",
    "env_runners/histograms",
    "learners/<module>/histograms",
    "env_runners/transcripts",
    "env_runners/engine/decoded_tokens",
    "env_runners/engine/draft_tokens",
    "env_runners/engine/accepted_tokens",
    "env_runners/engine/prefill_tokens",
    "env_runners/engine/cached_tokens",
    "env_runners/engine/shared_tokens",
    "env_runners/engine/reprefills",
    "env_runners/engine/forwards",
    "learners/<module>/policy_loss",
    "learners/<module>/total_loss",
    "learners/<module>/entropy",
    "learners/<module>/approx_kl_k3",
    "learners/<module>/clip_frac",
    "learners/<module>/ratio_mean",
    "learners/<module>/train_inference_mismatch_mean",
    "learners/<module>/train_inference_mismatch_max",
    "learners/<module>/padding_frac",
    "learners/<module>/advantage_abs_mean",
    "learners/<module>/grad_norm",
    "learners/<module>/gradients_<optimizer>_global_norm",
    "learners/<module>/nan_steps_skipped",
    "learners/<module>/trained_token_frac",
    "learners/<module>/num_rows",
    "learners/<module>/num_trained_tokens",
    "learners/<module>/num_sequence_tokens",
    "learners/<module>/curr_entropy_coeff",
    "learners/<module>/<optimizer>_learning_rate",
    "learners/<module>/ref_kl_coeff",
    "learners/<module>/policy_staleness_mean",
    "learners/<module>/policy_staleness_max",
    "learners/<module>/mixed_version_turn_frac",
    "learners/<module>/weights_seq_no",
    "return_std",
    "alarms/<name>",
    "learners/<module>/vf_loss",
    "learners/<module>/vf_loss_unclipped",
    "learners/<module>/vf_explained_var",
    "learners/<module>/value_target_mean",
    "learners/<module>/sequential_factor_gap",
    "learners/<module>/mean_kl_loss",
    "learners/<module>/is_weight_mean",
    "learners/<module>/is_effective_sample_frac",
    "learners/<module>/is_ratio_max",
    "learners/<module>/is_clipped_frac",
    "learners/<module>/is_masked_frac",
    "learners/<module>/loss_term_<name>",
    "learners/<module>/loss_term_coeff_<name>",
    "learners/<module>/ref_kl",
    "learners/<module>/ref_kl_clip_frac",
    "replay/num_episodes_stored",
    "replay/num_tokens_stored",
    "replay/num_episodes_drawn",
    "replay/age_mean",
    "replay/perplexity_kept_frac",
    "learners/<module>/replay_token_frac",
    "learners/<module>/replay_loss",
    "learners/<module>/replay_ratio_mean",
    "learners/<module>/replay_effective_sample_frac",
    "learners/<module>/replay_clip_frac",
    "learners/<module>/replay_is_weight_mean",
    "learners/<module>/replay_is_clipped_frac",
    "learners/<module>/file_token_frac",
    "learners/<module>/pair_token_frac",
    "learners/<module>/file_nll",
    "num_pairs",
    "influence/num_tokens",
    "influence/negative_frac",
    "influence/kept_frac",
    "num_desirable",
    "num_undesirable",
    "num_conversations_too_long",
    "num_episodes_saved",
    "self_labels/num_calls",
    "self_labels/loss_decrease_mean",
    "self_labels/helpful",
    "learners/<module>/preference_loss",
    "learners/<module>/preference_kl",
    "learners/<module>/score_loss",
    "learners/<module>/outcome_accuracy",
    "learners/<module>/chosen_score",
    "learners/<module>/rejected_score",
    "learners/<module>/score_mean",
    "learners/<module>/score_std",
    "learners/<module>/pair_accuracy",
    "learners/<module>/margin",
    "learners/<module>/chosen_logratio",
    "learners/<module>/rejected_logratio",
    "learners/<module>/chosen_logp",
    "learners/<module>/rejected_logp",
    "learners/<module>/nll",
    "reward_parts/<name>",
    "filtered_frac/<name>",
    "filters/<name>/<metric>",
    "zero_variance_group_frac",
    "replayed_games",
    "replay_s",
    "num_greedy_rollouts",
    "greedy_return_mean",
    "num_baseline_rollouts",
    "baseline_return_mean",
    "num_groups_resampled",
    "league/win_rate/<policy>",
    "league/rating/<name>",
    "league/member_iteration/<policy>",
    "league/pool_size",
    "league/mirror_frac",
    "league/exploitability",
    "league/exploiter_return_mean",
    "alarms/messages",
    "alarms/stopped_by",
    "alarms/num_rollbacks",
    "alarms/lr_scale/<module>",
    "num_updates_skipped",
    "weight_sync_mib",
    "env_runners/engine/engine_restarts",
    "num_episodes_lost",
    "num_groups_retried",
    "sample_wait_s",
    "learner_idle_frac",
    "sampler_idle_frac",
    "evaluation_before_training/random_success_rate",
    "evaluation_before_training/advice",
    "num_episodes_sampled_locally",
    "num_hung_envs",
    "prompt_text/num_texts",
    "prompt_text/num_added",
    "prompt_text/num_updated",
    "prompt_text/num_unchanged",
    "prompt_text/num_deleted",
    "prompt_text/num_refused",
    "prompt_text/num_rolled_back",
    "prompt_text/num_tried",
    "prompt_text/num_admitted",
    "prompt_text/best_value",
    "prompt_text/reading_frac",
    "prompt_text/success_rate_readers",
    "prompt_text/success_rate_others",
    "assistants/<name>/num_answers",
    "assistants/<name>/num_unreadable",
    "assistants/<name>/num_too_long",
    "assistants/<name>/sampled_tokens",
    "assistants/<name>/prompt_tokens",
    "assistants/<name>/contradicted_frac",
    "assistants/<name>/value_mean",
    "assistants/<name>/value_mean_solved",
    "assistants/<name>/value_mean_failed",
    "proposals/<name>/num_refused",
    "proposals/<name>/num_kept",
    "num_episodes_unreadable",
    "candidates/num_places",
    "candidates/best_gain_mean",
    "scorer/num_units",
    "scorer/score_mean_solved",
    "scorer/score_mean_failed",
    "learners/scorer/score_loss",
    "learners/scorer/vtrace_clip_frac",
    "learners/scorer/pair_accuracy",
    "learners/scorer/outcome_accuracy",
    "learners/scorer/action_accuracy",
    "learners/scorer/chosen_score",
    "learners/scorer/rejected_score",
    "learners/scorer/margin",
    "learners/scorer/qf_loss",
    "learners/scorer/vf_loss",
    "learners/scorer/qf_mean",
    "env_runners/candidate_tokens",
    "env_runners/num_forks",
    "env_runners/fork_tokens",
    "env_runners/inherited_tokens",
    "env_runners/fork_turn_mean",
    "env_runners/env/<name>",
    "env_runners/environments/<environment>/episode_return_mean",
    "env_runners/environments/<environment>/success_rate",
    "env_runners/environments/<environment>/turns_mean",
    "env_runners/environments/<environment>/completion_tokens_mean",
    "env_runners/environments/<environment>/tokens_per_turn_mean",
    "env_runners/environments/<environment>/invalid_action_frac",
    "env_runners/environments/<environment>/cut_turn_frac",
    "env_runners/environments/<environment>/num_episodes",
    "env_runners/environments/<environment>/env/<name>",
    "reward_parts/<environment>/<name>",
    "filtered_frac/<environment>/<name>",
    "filters/<environment>/<name>/<metric>",
    "timers/training_iteration",
    "timers/training_step",
    "timers/env_runner_sampling_timer",
    "timers/learner_update_timer",
    "timers/synch_weights",
    "timers/evaluation_iteration",
)
# Metrics of RLlib and Tune themselves.
TUNES = (
    "training_iteration",
    "time_this_iter_s",
    "time_total_s",
    "time_since_restore",
    "iterations_since_restore",
    "timestamp",
    "num_env_steps_sampled_lifetime",
    "num_training_step_calls_per_iteration",
)
_THEIRS = re.compile(
    r"(perf|fault_tolerance|env_runner_group|timers|learners/__all_modules__)/.+"
    r"|evaluation/(?!env_runners/).+"
    r"|learners/[^/]+/(num_module_steps_trained|num_trainable|module_train|curr_kl|diff_)"
    r".*"
)
_EVALUATIONS = ("evaluation/", "evaluation_before_training/")


def check_metric_name(name: str, where: str) -> None:
    """Raise a ConfigError unless runs can report the metric ``name``.

    Args:
        name: Result key with ``/`` between levels.
        where: Field of the recipe, for the message, e.g. ``"stop"``.
    """
    prefix = next((p for p in _EVALUATIONS if name.startswith(p)), "")
    bare = name.removeprefix(prefix)
    bare = bare if bare.startswith("env_runners/") else name
    patterns = (*METRICS, *TUNES)
    if _THEIRS.fullmatch(name) or any(_matches(bare, pattern) for pattern in patterns):
        return
    shown = [_filled(pattern, bare) for pattern in patterns]
    if prefix:
        shown = [f"{prefix}{s}" for s in shown if s.startswith("env_runners/")]
    hint = did_you_mean(name, shown)
    if not hint.startswith("Did you mean"):
        hint = "docs/metrics.md lists all metrics, e.g. " + ", ".join(shown[:4])
    raise ConfigError(f"{where}: unknown metric {name!r}. {hint}")


def _matches(name: str, pattern: str) -> bool:
    parts = map(re.escape, re.split(r"<\w+>", pattern))
    return re.fullmatch(r"[^/]+".join(parts), name) is not None


def _filled(pattern: str, name: str) -> str:
    """Return the pattern with its placeholders replaced by the parts of ``name``."""
    given = name.split("/")
    parts = pattern.split("/")
    return "/".join(
        given[i] if re.fullmatch(r"<\w+>", part) and i < len(given) else part
        for i, part in enumerate(parts)
    )
