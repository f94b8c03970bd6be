"""Two values of RLlib's settings, and the effect in which they differ."""

from __future__ import annotations

import sharded_looks
import torch
from ray.rllib.algorithms.algorithm_config import DEFAULT_STATS_CLS_LOOKUP
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from setting_ahead import batch_that_waits, groups_admitted
from setting_effect import needing, of
from setting_faults import (
    after_hung_envs,
    call_limits,
    nobody,
    patience,
    without_healthy_runners,
)
from setting_groups import (
    OwnRunner,
    OwnStats,
    after_an_error,
    asked_for,
    asked_in_sampling,
    counts_asked_for,
    device_of_learner,
    fixed_call,
    in_group,
    in_parallel,
    log_level,
    mean_return,
    own_evaluation,
    own_statistics,
    requests_in_flight,
    restore_limit,
    steps_asked_for,
    survives_failing_env,
    synchronised,
    validated,
    waited_for,
    with_evaluators,
    with_stock,
    without_evaluators,
)
from setting_looks import (
    sampled_turns,
)
from setting_places import (
    Failing,
    bundles,
    during_backward,
    explored,
    more_slots,
    wait_for_nodes,
)
from setting_runs import (
    OwnLearner,
    evaluated_alone,
    evaluation_of,
    evaluations,
    first_step,
    learner_built,
    marked,
    marker,
    offloaded,
    reported,
    steps_in_iteration,
)

from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner

STOCK = {"env_runner_cls": SingleAgentEnvRunner}
RLLIB = {
    "env_runners.explore": of(explored, "PPO", False),
    "env_runners.num_envs_per_env_runner": of(more_slots, "PPO", 3),
    "env_runners.num_env_runners": of(bundles, "PPO", 3),
    "env_runners.num_cpus_per_env_runner": needing(
        of(bundles, "PPO", 2), own={"num_env_runners": 1}
    ),
    "env_runners.num_gpus_per_env_runner": needing(
        of(bundles, "PPO", 1), own={"num_env_runners": 1}
    ),
    "env_runners.custom_resources_per_env_runner": needing(
        of(bundles, "PPO", {"chip": 1.0}), own={"num_env_runners": 1}
    ),
    "learners.num_learners": of(bundles, "PPO", 2),
    "learners.num_cpus_per_learner": needing(
        of(bundles, "PPO", 3), own={"num_learners": 2}
    ),
    "learners.num_gpus_per_learner": needing(
        of(bundles, "PPO", 1), own={"num_learners": 2}
    ),
    "learners.custom_resources_per_learner": needing(
        of(bundles, "PPO", {"chip": 1.0}), own={"num_learners": 2}
    ),
    "learners.sharding": of(
        sharded_looks.built(sharded_looks.holds_shards), "GRPO", "fsdp2"
    ),
    "learners.sharding_kwargs": needing(
        of(
            sharded_looks.built(sharded_looks.gathered_dtype),
            "GRPO",
            {"param_dtype": "bfloat16"},
        ),
        own={"sharding": "fsdp2"},
    ),
    "learners.collective_timeout_s": of(
        sharded_looks.built(sharded_looks.time_limit), "GRPO", 7.0
    ),
    "resources.num_cpus_for_main_process": of(bundles, "PPO", 4),
    "resources.custom_resources_for_main_process": of(bundles, "PPO", {"chip": 1.0}),
    "resources.torch_num_threads": of(
        during_backward(torch.get_num_threads), "PPO", 2, 3
    ),
    "resources.placement_strategy": of(bundles, "PPO", "SPREAD"),
    "resources.placement": needing(
        of(bundles, "PPO", {"env_runners": "samplers"}),
        env_runners={"num_env_runners": 1},
    ),
    "resources.wait_for_nodes_s": of(wait_for_nodes, "PPO", 5.0),
    "evaluation.evaluation_before_training": needing(
        of(first_step, "PPO", False), own={"evaluation_interval": 5}
    ),
    "evaluation.evaluation_interval": of(evaluations, "PPO", None, 1),
    "evaluation.evaluation_duration": of(evaluated_alone, "PPO", 3, 5),
    "evaluation.evaluation_num_env_runners": needing(
        of(bundles, "PPO", 2), own={"evaluation_interval": 1}
    ),
    "evaluation.evaluation_config": of(
        evaluation_of(lambda c: c.explore), "PPO", {"explore": False}, {"explore": True}
    ),
    "reporting.min_time_s_per_iteration": of(steps_in_iteration, "PPO", 1.0),
    "reporting.min_sample_timesteps_per_iteration": of(steps_in_iteration, "PPO", 60),
    "reporting.min_train_timesteps_per_iteration": of(steps_in_iteration, "PPO", 60),
    "reporting.log_gradients": needing(
        of(reported, "PPO", True), training={"grad_clip_by": "norm"}
    ),
    "learners.optimizer_offload": needing(
        of(offloaded, "PPO", True), own={"num_gpus_per_learner": 1}
    ),
    "learners.learner_class": of(learner_built, "PPO", OwnLearner),
    "learners.learner_config_dict": of(learner_built, "PPO", {"own": 1}),
    "learners.learner_connector": of(marked, "PPO", marker),
    "fault_tolerance.restart_failed_env_runners": needing(
        of(nobody, "PPO", False), own={"delay_between_env_runner_restarts_s": 0.6}
    ),
    "fault_tolerance.delay_between_env_runner_restarts_s": of(nobody, "PPO", 0.6),
    "fault_tolerance.env_runner_health_probe_timeout_s": of(nobody, "PPO", 0.6),
    "fault_tolerance.min_healthy_env_runners": of(patience, "PPO", 2),
    "fault_tolerance.min_healthy_timeout_s": of(nobody, "PPO", 7.0),
    "fault_tolerance.call_timeout_s": of(call_limits, "PPO", 7.0),
    "fault_tolerance.batch_timeout_s": of(call_limits, "PPO", 7.0),
    "env_runners.sample_ahead": needing(
        of(groups_admitted, "PPO", 0, 2), own={"num_env_runners": 1}
    ),
    "training.max_staleness": needing(
        of(batch_that_waits, "PPO", 1, 3),
        env_runners={"num_env_runners": 1, "sample_ahead": 1},
    ),
    "fault_tolerance.sample_locally_if_none": of(without_healthy_runners, "PPO", True),
    "fault_tolerance.max_hung_envs_per_env_runner": of(after_hung_envs, "PPO", 1),
    "debugging.seed": of(sampled_turns, "PPO", 1),
    "env_runners.env_runner_cls": of(
        in_group(lambda group: type(group.local_env_runner).__name__),
        "PPO",
        LLMEnvRunner,
        OwnRunner,
    ),
    "env_runners.create_local_env_runner": of(
        asked_for(lambda asked: asked["local_env_runner"]), "PPO", False
    ),
    "env_runners.validate_env_runners_after_construction": of(validated, "PPO", False),
    "env_runners.max_requests_in_flight_per_env_runner": of(
        in_group(requests_in_flight), "PPO", 3
    ),
    "env_runners.env_to_module_connector": of(asked_in_sampling, "PPO", marker),
    "env_runners.module_to_env_connector": of(asked_in_sampling, "PPO", marker),
    "env_runners.merge_env_runner_states": of(synchronised, "PPO", False),
    "env_runners.broadcast_env_runner_states": of(synchronised, "PPO", False),
    "env_runners.gym_env_vectorize_mode": of(
        with_stock(lambda runner: type(runner.env.unwrapped).__name__),
        "PPO",
        "sync",
        "vector_entry_point",
        env="guess_number-v0",
    ),
    "learners.local_gpu_idx": of(device_of_learner, "PPO", 2),
    "evaluation.evaluation_duration_unit": of(
        with_evaluators(counts_asked_for), "PPO", "timesteps"
    ),
    "evaluation.evaluation_auto_duration_min_env_steps_per_sample": of(
        with_evaluators(steps_asked_for), "PPO", 7
    ),
    "evaluation.evaluation_auto_duration_max_env_steps_per_sample": of(
        with_evaluators(steps_asked_for), "PPO", 50
    ),
    "evaluation.evaluation_sample_timeout_s": of(
        with_evaluators(fixed_call), "PPO", 9.0
    ),
    "evaluation.evaluation_force_reset_envs_before_iteration": of(
        with_evaluators(fixed_call), "PPO", False
    ),
    "evaluation.evaluation_parallel_to_training": needing(
        of(in_parallel, "PPO", True), own={"evaluation_interval": 1}
    ),
    "evaluation.evaluation_unhealthy_workers_timeout_s": of(
        with_evaluators(waited_for, healthy_after=1), "PPO", 60.0
    ),
    "evaluation.evaluation_error_after_n_consecutive_skips": of(
        with_evaluators(without_evaluators, healthy_after=None), "PPO", 2
    ),
    "evaluation.custom_evaluation_function": of(evaluated_alone, "PPO", own_evaluation),
    "debugging.log_level": of(asked_for(log_level), "PPO", "ERROR"),
    "reporting.metrics_num_episodes_for_smoothing": needing(
        of(with_stock(mean_return), "PPO", 2), env_runners=STOCK
    ),
    "reporting.custom_stats_cls_lookup": of(
        own_statistics, "PPO", {**DEFAULT_STATS_CLS_LOOKUP, "own": OwnStats}
    ),
    "fault_tolerance.ignore_env_runner_failures": of(after_an_error, "PPO", True),
    "fault_tolerance.max_num_env_runner_restarts": of(
        in_group(lambda group: group._remote_args["max_restarts"]), "PPO", 3
    ),
    "fault_tolerance.restart_failed_sub_environments": needing(
        of(with_stock(survives_failing_env), "PPO", True, env=Failing),
        env_runners=STOCK,
    ),
    "fault_tolerance.env_runner_restore_timeout_s": of(restore_limit, "PPO", 5.0),
}
