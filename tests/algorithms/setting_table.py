"""Two values of every setting, and the effect in which they differ."""

from __future__ import annotations

import torch
from setting_asked import ALWAYS_RIGHT, answered
from setting_candidates import BEST, candidate_scores, saved_turns
from setting_effect import needing, of
from setting_looks import (
    driven,
    mask_policy_after,
    one_pass,
    rows,
    runner_of,
    sampled_turns,
    update,
)
from setting_pairs import (
    compared,
    comparisons,
    conversations,
    gradient_with_pairs,
    held_out,
    influenced,
    judged_pairs,
    matched,
    pair_gradient,
    score_gradient,
)
from setting_places import (
    Broken,
    Failing,
    Listed,
    Noted,
    Slow,
    Taught,
    about,
    alternating,
    cache_rows,
    calls_in_update,
    collected,
    configured,
    demonstrated,
    drafted_tokens,
    during_backward,
    engine_built,
    engine_bundle,
    engines_asleep,
    evaluated,
    exploited,
    exploiter_noise,
    fired,
    flat_collected,
    gradient_norm,
    imitated,
    kept_on_disk,
    league,
    learner_after,
    length_of,
    lowering,
    on_nan,
    opponent_or_refusal,
    prepared_size,
    survived,
    sync_dtype,
    transferred,
)
from setting_replay import (
    joining,
    left_over,
    mixed_rows,
    replayed,
    with_replayed,
    with_written,
    within_bounds,
)
from setting_runs import (
    all_rows,
    answering_model,
    picture_model,
    team_run,
    trained,
)
from setting_saved import (
    LABELS,
    SAVED,
    TEXT_FILES,
    calibrated,
    imitated_rows,
    labelled,
    read_by_ray,
    read_prompts,
    saved,
    spliced,
)
from setting_scorer import (
    judged_by_vtrace,
    labels_learned,
    scorer_after,
    scores_of_answers,
    weights_after,
)
from setting_table_rllib import RLLIB
from team_helpers import Pair, PairTogether, tiny_model

from rllib_llm import GRPOConfig
from rllib_llm.algorithms.learner.llm_learner import LLMLearnerMixin
from rllib_llm.data.packed_rows import PackedRows
from rllib_llm.modules.llm_rl_module import LLMRLModule

# The table ----------------------------------------------------------------------------

CUT = {"loss_agg_mode": "seq-mean-token-sum-norm"}
OLD = {"old_logps": "engine"}
REF = {"ref_kl_coeff": 1.0}
SERIES = {"snapshot_min_games": 2, "snapshot_max_games": None}
LANGUAGE_MODEL = {
    "model": of(sampled_turns, "PPO", tiny_model(0), tiny_model(7)),
    "dtype": of(about(lambda m: str(next(m.lm.parameters()).dtype)), "PPO", "bfloat16"),
    "autocast": of(one_pass, "PPO", "bfloat16"),
    "lora": of(
        about(lambda m: [n for n, p in m.named_parameters() if p.requires_grad]),
        "PPO",
        {"rank": 2, "target_modules": ["q_proj"]},
    ),
    "tiny": needing(
        of(
            prepared_size,
            "PPO",
            {"hidden_size": 32, "num_hidden_layers": 1},
            {"hidden_size": 64, "num_hidden_layers": 1},
        ),
        own={"model": "tiny"},
    ),
    "freeze": needing(
        of(
            about(lambda m: sum(p.requires_grad for p in m.parameters())),
            "GRPO",
            ["vision", "projector"],
        ),
        own={"model": picture_model()},
    ),
    "value_head": of(about(lambda m: str(m.value_head)), "PPO", "linear"),
    "value_head_detach": of(one_pass, "PPO", False),
    "value_model": of(about(lambda m: m.value_head.trunk is None), "PPO", "own"),
    "model_kwargs": of(
        about(lambda m: m.lm.config._attn_implementation),
        "PPO",
        {"attn_implementation": "eager"},
    ),
    "gradient_checkpointing": of(
        about(lambda m: m.lm.is_gradient_checkpointing), "PPO", True
    ),
    "compile": of(
        about(lambda m: m.lm.base_model._compiled_call_impl is not None), "PPO", "eager"
    ),
    "history": of(sampled_turns, "PPO", "latest"),
    "chat_template_kwargs": needing(
        of(sampled_turns, "PPO", {"loud": True}), own={"model": answering_model()}
    ),
    "system_prompt": of(sampled_turns, "PPO", "Speak up."),
}
GENERATION = {
    "head": needing(
        of(sampled_turns, "PPO", "score", env=Listed), own={"max_new_tokens": 32}
    ),
    "score_norm": needing(
        of(sampled_turns, "PPO", "token", env=Listed),
        own={"head": "score", "max_new_tokens": 32},
    ),
    "engine": of(engine_built, "GRPO", "vllm"),
    "engine_kwargs": needing(
        of(engine_built, "GRPO", {"block_size": 64}), own={"engine": "vllm"}
    ),
    "engine_num_gpus": of(engine_bundle, "GRPO", 0.5),
    "engine_sleep": of(engines_asleep, "GRPO", True),
    "engine_forward": of(
        lambda *a, **s: runner_of(*a, **s).engine.is_fused, "PPO", "plain"
    ),
    "kv_cache_gib": of(cache_rows, "PPO", 1e-3),
    "num_speculative_tokens": of(drafted_tokens, "PPO", 0, 2),
    "max_new_tokens": of(sampled_turns, "PPO", 2, 4),
    "max_context_tokens": of(sampled_turns, "PPO", 100),
    "temperature": of(sampled_turns, "PPO", 0.5),
    "mask_top_p": of(sampled_turns, "PPO", 0.2),
    "mask_update_iters": needing(
        of(mask_policy_after, "PPO", 1), own={"mask_top_p": 0.9}
    ),
    "top_p": of(evaluated, "PPO", 0.1),
    "top_k": of(evaluated, "PPO", 1),
    "stop_strings": of(sampled_turns, "PPO", list("abcdefghijklmnopqrstuvwxyz")),
}
ROLLOUTS = {
    "episodes_per_iteration": of(collected, "PPO", 4),
    "group_size": of(collected, "GRPO", 2),
    "max_turns": of(sampled_turns, "PPO", 1),
    "max_tokens_per_episode": of(sampled_turns, "PPO", 3),
    "step_timeout_s": of(survived, "PPO", 0.02, env=Slow),
    "turn_timeout_s": needing(
        of(survived, "PPO", 1e-6), generation={"max_new_tokens": 400}
    ),
    "episode_timeout_s": of(survived, "PPO", 0.02, env=Slow),
    "max_retries": of(survived, "PPO", 0, env=Failing),
    "max_failed_fraction": needing(
        of(survived, "PPO", 1.0, env=Broken), own={"max_retries": 0}
    ),
    "stop_policies": of(sampled_turns, "PPO", {"max_tokens_turn": "mask"}),
    "env_processes": of(
        configured(lambda c: type(c.make_sampled_env()).__name__), "PPO", True
    ),
    "row_per_turn": of(rows, "PPO", True),
    "weight_sync": of(transferred, "GRPO", "object_store"),
    "weight_sync_bucket_mib": of(transferred, "GRPO", 64),
    "weight_sync_dtype": of(sync_dtype, "PPO", "bfloat16"),
    "assistants": of(answered, "PPO", {"judge": ALWAYS_RIGHT}),
    "rewards": of(driven, "PPO", [length_of]),
    "reward_transforms": of(driven, "PPO", [{"name": "clip", "high": 0.1}]),
    "filters": of(driven, "PPO", [{"name": "success", "least": 0.5}]),
    "fork": needing(
        of(sampled_turns, "PPO", {"name": "every_turn", "first": 1}),
        own={"group_size": 4},
    ),
    "candidates": needing(
        of(candidate_scores, "GRPO", 2, 3),
        own={k: v for k, v in BEST.items() if k != "candidates"},
    ),
    "candidate_scores": needing(
        of(candidate_scores, "GRPO", "logp", {"name": "logp", "weight": 2.0}),
        own={k: v for k, v in BEST.items() if k != "candidate_scores"},
    ),
    "curriculum": of(driven, "PPO", {"name": "horizon", "turns": [1]}),
    "prompt_text": of(driven, "PPO", Noted),
    "save_episodes": of(saved, "PPO", SAVED.name),
    "save_as": needing(
        of(saved_turns, "PPO", "episodes", "best_candidates"),
        own={"save_episodes": SAVED.name},
    ),
    "correction": needing(
        of(spliced, "PPO", "No."),
        own={"save_episodes": SAVED.name, "save_as": "corrections", "group_size": 2},
    ),
    "calibration_margin": needing(
        of(calibrated, "PPO", 0.5),
        own={
            "save_episodes": SAVED.name,
            "save_as": "calibrations",
            "group_size": 4,
            "fork": "every_turn",
        },
    ),
    "call_margin": needing(of(labelled, "PPO", 3.0), own=LABELS),
    "answer_template": needing(of(labelled, "PPO", "So {answer}"), own=LABELS),
    "save_where": needing(
        of(saved, "PPO", "success"), own={"save_episodes": SAVED.name}
    ),
}
WARM_START = {
    "demonstrations": of(imitated, "PPO", 4, 6, env=Taught),
    "mistake_rate": of(imitated, "PPO", 0.0, 1.0, env=Taught),
    "epochs": of(imitated, "PPO", 3, env=Taught),
    "lr": of(imitated, "PPO", 1e-2, env=Taught),
    "minibatch_size": of(imitated, "PPO", 2, 4, env=Taught),
    "observation_weight": of(imitated, "PPO", 1.0, env=Taught),
}
TRAINING = {
    "lr": of(update, "PPO", 1e-2, 2e-2),
    "gamma": of(rows, "PPO", 0.5),
    "lambda_": of(rows, "PPO", 0.2),
    "gamma_token": of(rows, "PPO", 0.9),
    "lambda_token": of(rows, "PPO", 0.5),
    "gae_level": of(rows, "PPO", "turn"),
    "lambda_critic": of(rows, "PPO", 0.3),
    "lambda_length_alpha": of(rows, "PPO", 0.5),
    "whiten_advantages": of(rows, "PPO", False),
    "critic_lr": of(update, "PPO", 1e-1),
    "critic_warmup_iters": of(update, "PPO", 5),
    "weight_decay": of(update, "PPO", 0.5),
    "micro_batch_tokens": of(
        calls_in_update(LLMLearnerMixin, "_annotate_tokens"), "PPO", 64
    ),
    "packing": of(calls_in_update(PackedRows, "attention_inputs"), "PPO", True),
    "head_chunk_tokens": of(calls_in_update(LLMRLModule, "_head"), "PPO", 4),
    "matmul_precision": of(
        during_backward(torch.get_float32_matmul_precision), "PPO", "medium", "highest"
    ),
    "old_logps": of(update, "GRPO", "engine"),
    "tis": of(one_pass, "GRPO", None, "token"),
    "tis_clip": needing(of(one_pass, "GRPO", 0.1), own={"tis": "token"}),
    "is_mask_low": of(one_pass, "GRPO", 0.999),
    "is_mask_high": of(one_pass, "GRPO", 1.001),
    "is_sequence_mask_low": of(one_pass, "GRPO", 0.999),
    "is_sequence_mask_high": of(one_pass, "GRPO", 1.001),
    "nan_policy": of(on_nan, "PPO", "error"),
    "loss_agg_mode": of(one_pass, "GRPO", "seq-mean-token-sum"),
    "loss_mask_pattern": of(one_pass, "GRPO", "[a-z]+"),
    "loss_agg_constant": needing(of(gradient_norm, "GRPO", 8.0, 80.0), own=CUT),
    "ref_kl_coeff": of(one_pass, "GRPO", 1.0),
    "ref_kl_estimator": needing(of(one_pass, "GRPO", "k2"), own=REF),
    "ref_kl_clip": needing(of(one_pass, "GRPO", 1e-4), own=REF),
    "ref_kl_in": needing(of(one_pass, "PPO", "reward"), own=REF),
    "ref_model": needing(of(one_pass, "GRPO", tiny_model(7)), own=REF),
    "ref_kl_target": needing(
        of(learner_after(lambda x: dict(x._ref_kl_coeffs)), "GRPO", 1e-9), own=REF
    ),
    "policy_loss": of(update, "GRPO", "cispo"),
    "loss_terms": of(one_pass, "GRPO", [{"name": "entropy", "weight": 0.5}]),
    "token_advantage_transforms": of(one_pass, "GRPO", [{"name": "weigh_signs"}]),
    "shared_reward_fraction": of(collected, "GRPO", 1.0, env=Pair),
    "minibatch_size": of(trained, "PPO", 4, 8),
    "num_epochs": of(trained, "PPO", 1, 3),
    "clip_param": needing(of(one_pass, "GRPO", 0.001, 0.9), own=OLD),
    "clip_param_high": needing(of(one_pass, "GRPO", 5.0), own=OLD),
    "dual_clip": needing(of(one_pass, "GRPO", 1.001), own=OLD),
    "advantage_baseline": needing(
        of(collected, "GRPO", "leave_one_out"), own={"advantage_scale": "none"}
    ),
    "advantage_scale": of(collected, "GRPO", "none"),
    "advantage_group_by": of(collected, "GRPO", "turn"),
    "turn_discount": needing(
        of(collected, "GRPO", 0.5), own={"advantage_group_by": "turn"}
    ),
    "advantage_estimator": of(collected, "GRPO", ["history"]),
    "advantage_transforms": of(collected, "GRPO", ["positive_only"]),
    "fork_training": needing(
        of(collected, "GRPO", "tree"),
        rollouts={"fork": {"name": "every_turn", "first": 1}, "group_size": 4},
    ),
    "drop_zero_variance_groups": of(flat_collected, "GRPO", True),
    "dynamic_sampling_rounds": needing(
        of(flat_collected, "GRPO", 2), own={"drop_zero_variance_groups": True}
    ),
    "use_kl_loss": of(update, "PPO", True, False),
    "kl_coeff": needing(of(update, "PPO", 5.0), own={"use_kl_loss": True}),
    "kl_target": needing(
        of(
            learner_after(
                lambda x: float(x.curr_kl_coeffs_per_module["default_policy"])
            ),
            "PPO",
            1e-9,
            1e3,
        ),
        own={"use_kl_loss": True},
    ),
    "vf_loss_coeff": of(gradient_norm, "PPO", 0.1),
    "entropy_coeff": of(one_pass, "PPO", 1.0),
    "vf_clip_param": of(one_pass, "PPO", 1e-3),
    "grad_clip": of(gradient_norm, "PPO", 1e-3),
    "grad_clip_by": needing(of(gradient_norm, "PPO", "value"), own={"grad_clip": 1e-4}),
    "value_loss": of(one_pass, "PPO", "huber"),
    "value_huber_delta": needing(
        of(gradient_norm, "PPO", 1e-3), own={"value_loss": "huber"}
    ),
    "vf_clip_range": needing(of(update, "PPO", 1e-4, 10.0), own={"critic_lr": 1e-1}),
    "level": of(one_pass, "MARFT", "token"),
    "critic": of(all_rows, "MARFT", "own", "central"),
    "team_reward": of(rows, "MARFT", "sum"),
    "message_logp": needing(of(one_pass, "MARFT", "sum", "mean"), own=OLD),
    "update_schedule": of(update, "MARFT", "sequential"),
    "alternate_every": of(alternating, "MARFT", 2),
    "sequential_ratio_clip": needing(
        of(update, "MARFT", 1e-3), own={"update_schedule": "sequential"}
    ),
    "sequential_factor_clip": needing(
        of(update, "MARFT", 1e-3), own={"update_schedule": "sequential"}
    ),
    "whiten_by": of(rows, "MARFT", "batch"),
    "mistake_rate": of(demonstrated, "SFT", 1.0, env=Taught),
    "observation_weight": of(one_pass, "SFT", 0.5),
    "role_decay": of(collected, "SelfPlay", 0.1, env=PairTogether),
}
TRAINING |= {
    "preference_loss": of(pair_gradient, "Pref", "hinge"),
    "nll_weight": of(pair_gradient, "Pref", 0.5),
    "turn_discount": of(pair_gradient, "Pref", 0.5),
    "match": of(matched, "Pref", "all", "best_worst"),
    "expert_episodes": of(matched, "Pref", True),
    "margin": of(matched, "Pref", 0.5),
    "max_pairs_per_task": of(matched, "Pref", 1),
    "step_judge": of(judged_pairs, "Pref", "judge"),
    "judge_weight": needing(
        of(judged_pairs, "Pref", 0.0, 1.0), own={"step_judge": "judge"}
    ),
    "influence": of(influenced, "Pref", {"weight": 2.0}),
    "reference": of(pair_gradient, "Pref", "current"),
    "after_fork": of(matched, "Pref", True),
    "compared_agent": of(matched, "Pref", "ann_0"),
    "desirable_return": needing(
        of(matched, "Pref", 0.5), own={"preference_loss": "kto"}
    ),
}
TRAINING |= {
    "score_loss": of(score_gradient, "RewardModel", "outcome"),
    "score_margin": of(score_gradient, "RewardModel", 0.5),
    "centering": of(score_gradient, "RewardModel", 0.5),
    "label_noise": of(score_gradient, "RewardModel", 0.5),
    "pair_margin": of(compared, "RewardModel", 0.5),
}
DATA = {
    "files": of(demonstrated, "SFT", conversations(), env=Taught),
    "shares": of(imitated_rows, "SFT", [0.25, 0.75], env=Taught),
    "min_return": of(imitated_rows, "SFT", 0.5, env=Taught),
    "remove": of(read_prompts, "SFT", "ess", env=Taught),
    "read_method": needing(
        of(read_by_ray, "SFT", "read_json"), own={"read_method_kwargs": TEXT_FILES}
    ),
    "read_method_kwargs": needing(
        of(read_by_ray, "SFT", TEXT_FILES), own={"read_method": "read_json"}
    ),
    "held_out": of(held_out, "RewardModel", comparisons()),
    "episodes_per_iteration": of(mixed_rows, "GRPO", 2),
    "coeff": of(with_written, "GRPO", 0.3),
}
REPLAY = {
    "episodes_per_iteration": of(replayed, "GRPO", 2, 4),
    "capacity_tokens": of(replayed, "GRPO", 150),
    "max_age": of(replayed, "GRPO", 1),
    "keep": of(replayed, "GRPO", "success"),
    "positive_only": of(replayed, "GRPO", True),
    "keep_masked": of(left_over, "GRPO", True),
    "probability": of(replayed, "GRPO", 0.5),
    "alone": needing(of(joining, "GRPO", True), own={"probability": 0.5}),
    "draw": of(replayed, "GRPO", "recency"),
    "alpha": needing(of(replayed, "GRPO", 9.0), own={"draw": "priority"}),
    "min_perplexity": of(within_bounds, "GRPO", 2.0),
    "max_perplexity": of(within_bounds, "GRPO", 3.0),
    "advantages": of(replayed, "GRPO", "rebased"),
    "window": needing(of(replayed, "GRPO", 1), own={"advantages": "rebased"}),
    "old_logps": of(with_replayed, "GRPO", "learner"),
    "loss": of(with_replayed, "GRPO", "cispo"),
    "coeff": of(with_replayed, "GRPO", 0.3),
}
PREFERENCES = {
    "loss": of(gradient_with_pairs, "GRPO", "simpo"),
    "coeff": of(gradient_with_pairs, "GRPO", 0.3),
    "match": of(gradient_with_pairs, "GRPO", "best_worst"),
    "margin": of(gradient_with_pairs, "GRPO", 0.5),
    "max_pairs_per_task": of(gradient_with_pairs, "GRPO", 1),
    "nll_weight": of(gradient_with_pairs, "GRPO", 0.5),
}
SCORER = {
    "loss": of(scorer_after, "GRPO", "pairwise", "outcome"),
    "scores": needing(of(scorer_after, "GRPO", "log_ratio"), own={"pool": "mean"}),
    "pool": of(scorer_after, "GRPO", "sum"),
    "beta": needing(
        of(scorer_after, "GRPO", 5.0), own={"scores": "log_ratio", "pool": "mean"}
    ),
    "lr": of(scorer_after, "GRPO", 1e-2),
    "num_epochs": of(scorer_after, "GRPO", 3),
    "minibatch_size": of(scorer_after, "GRPO", 1),
    "warmup_iters": of(scorer_after, "GRPO", 1),
    "iters": of(scorer_after, "GRPO", 1),
    "label_noise": of(scorer_after, "GRPO", 0.5),
    "labels": of(labels_learned, "GRPO", "hard"),
    "match": of(scorer_after, "GRPO", "all"),
    "pair_margin": of(scorer_after, "GRPO", 1.5),
    "max_pairs_per_task": of(scorer_after, "GRPO", 1),
    "gamma": needing(of(scorer_after, "GRPO", 0.5), own={"loss": "td"}),
    "clip_rho_threshold": needing(
        of(judged_by_vtrace, "GRPO", 2.0), own={"loss": "vtrace"}
    ),
    "privileged": of(scores_of_answers, "GRPO", True),
    "expectile": needing(of(scorer_after, "GRPO", 0.9), own={"loss": "td"}),
    "twin": needing(of(scorer_after, "GRPO", False), own={"loss": "td"}),
    "tau": needing(of(scorer_after, "GRPO", 0.9), own={"loss": "td"}),
    "span": needing(of(weights_after, "GRPO", 1), own={"loss": "causal"}),
    "num_actions": needing(of(weights_after, "GRPO", 3), own={"loss": "causal"}),
}
ALARMS = {
    **{name: of(fired, "GRPO", False) for name in GRPOConfig().chosen_alarms()},
    "lr_factor": needing(of(fired, "GRPO", 0.25), own=lowering()),
    "min_lr": needing(of(fired, "GRPO", 1e-3), own=lowering()),
    "max_rollbacks": needing(of(fired, "GRPO", 0), own=lowering("rollback")),
    "snapshot_interval": needing(of(fired, "GRPO", 1), own=lowering("rollback")),
    "snapshots": of(kept_on_disk, "GRPO", "disk"),
}
LEAGUE = {
    "opponents": of(league, "SelfPlay", "latest"),
    "mirror_fraction": of(league, "SelfPlay", 0.1),
    "pool_size": of(league, "SelfPlay", 2),
    "snapshot_win_rate": needing(of(league, "SelfPlay", 0.99, 0.6), own=SERIES),
    "snapshot_min_games": of(league, "SelfPlay", 3),
    "snapshot_max_games": needing(
        of(league, "SelfPlay", 4),
        own={"snapshot_min_games": 3, "snapshot_win_rate": 0.99},
    ),
    "decay": of(league, "SelfPlay", 0.5),
    "evaluation_opponent": needing(
        of(opponent_or_refusal, "SelfPlay", "other"),
        multi_agent={
            "policies": {
                "default_policy": None,
                "other": {"scripted_policy": length_of},
            }
        },
    ),
}
MAPPED = {"policies": ["a", "b"], "policy_mapping_fn": {"ann": "a", "ben": "b"}}
MODES = {
    "own": MAPPED,
    "shared": {"policies": ["a"], "policy_mapping_fn": "a"},
}
MULTI_AGENT = {
    "policies": needing(
        of(team_run, "PPO", ["a"], {"a": {"training": {"lr": 0.5}}}, env=Pair),
        own={"policy_mapping_fn": "a"},
    ),
    "policy_mapping_fn": needing(
        of(
            team_run,
            "PPO",
            {"ann": "a", "ben": "b"},
            {"ann": "b", "ben": "a"},
            env=Pair,
        ),
        own={"policies": ["a", "b"]},
    ),
    "policies_to_train": needing(of(team_run, "PPO", ["b"], env=Pair), own=MAPPED),
    "sharing_modes": needing(
        of(team_run, "PPO", MODES, {"own": MODES["shared"]}, env=Pair),
        own={"sharing_mode": "own"},
    ),
    "sharing_mode": needing(
        of(team_run, "PPO", "own", "shared", env=Pair), own={"sharing_modes": MODES}
    ),
}
LEAGUE |= {
    "exploitability_interval": of(exploited, "SelfPlay", 2),
    "exploiter_fraction": of(exploited, "SelfPlay", 0.5),
    "exploiter_noise": of(exploiter_noise, "SelfPlay", 0.7),
}
PROBES = {
    f"{section}.{key}": effect
    for section, effects in {
        "language_model": LANGUAGE_MODEL,
        "generation": GENERATION,
        "rollouts": ROLLOUTS,
        "sft": WARM_START,
        "data": DATA,
        "replay": REPLAY,
        "preferences": PREFERENCES,
        "scorer": SCORER,
        "training": TRAINING,
        "alarms": ALARMS,
        "league": LEAGUE,
        "multi_agent": MULTI_AGENT,
    }.items()
    for key, effect in effects.items()
} | RLLIB
