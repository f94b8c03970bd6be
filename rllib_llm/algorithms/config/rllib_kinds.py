"""Types and ranges of RLlib's settings, where its annotations do not give them.

RLlib annotates nearly everything as ``Optional``; a setting whose default is not None
takes None only if this table includes it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, Any, Literal

from annotated_types import Interval

from rllib_llm.schema import (
    Fraction,
    InfinityAllowed,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Rule,
    SubclassOf,
    is_number,
)


def is_schedule(value: object) -> bool:
    """Return whether ``value`` is RLlib's ``[[0, value], [step, value], ...]``.

    Steps are integers that increase from 0, values are not negative.
    """
    if not isinstance(value, list | tuple) or len(value) < 2:
        return False
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in value):
        return False
    steps = [pair[0] for pair in value]
    if not all(is_number(step, int) for step in steps):
        return False
    is_increasing = steps[0] == 0 and all(a < b for a, b in pairwise(steps))
    return is_increasing and all(is_number(pair[1]) and pair[1] >= 0 for pair in value)


# Pairs may hold search spaces, so their numbers are not typed one by one.
Schedule = Annotated[
    list, Rule("a schedule [[0, value], [step, value], ...]", is_schedule)
]
Seconds = NonNegativeFloat
Resources = dict[str, NonNegativeFloat]
Learner = Annotated[type, SubclassOf("ray.rllib.core.learner.learner:Learner")]
Runner = Annotated[type, SubclassOf("ray.rllib.env.env_runner:EnvRunner")]

TRAINING = {
    "gamma": Fraction,
    "lambda_": Fraction,
    "lr": NonNegativeFloat | Schedule,
    "entropy_coeff": NonNegativeFloat | Schedule,
    "grad_clip": PositiveFloat | None,
    "grad_clip_by": Literal["value", "norm", "global_norm"],
    "num_epochs": PositiveInt,
    "minibatch_size": PositiveInt | None,
    "clip_param": NonNegativeFloat,
    "kl_coeff": NonNegativeFloat,
    "kl_target": NonNegativeFloat,
    "vf_loss_coeff": NonNegativeFloat,
    "vf_clip_param": Annotated[NonNegativeFloat, InfinityAllowed()],
}
ENV_RUNNERS = {
    "env_runner_cls": Runner | None,
    "num_env_runners": NonNegativeInt,
    "num_envs_per_env_runner": PositiveInt,
    "num_cpus_per_env_runner": NonNegativeFloat,
    "num_gpus_per_env_runner": NonNegativeFloat,
    "custom_resources_per_env_runner": Resources,
    "max_requests_in_flight_per_env_runner": PositiveInt,
    "env_to_module_connector": Callable | None,
    "module_to_env_connector": Callable | None,
    "merge_env_runner_states": bool | Literal["training_only"],
}
LEARNERS = {
    "learner_class": Learner | None,
    "learner_connector": Callable | None,
    "num_learners": NonNegativeInt,
    "num_cpus_per_learner": NonNegativeFloat | Literal["auto"],
    "num_gpus_per_learner": NonNegativeFloat,
    "custom_resources_per_learner": Resources,
    "local_gpu_idx": NonNegativeInt,
}
RESOURCES = {
    "num_cpus_for_main_process": NonNegativeFloat,
    "custom_resources_for_main_process": Resources,
    "placement_strategy": Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"],
}
EVALUATION = {
    "evaluation_interval": NonNegativeInt | None,
    "evaluation_duration": PositiveInt | Literal["auto"],
    "evaluation_duration_unit": Literal["episodes", "timesteps"],
    "evaluation_auto_duration_min_env_steps_per_sample": PositiveInt,
    "evaluation_auto_duration_max_env_steps_per_sample": PositiveInt,
    # Not None, which RLlib compares with a time once an EnvRunner fails.
    "evaluation_sample_timeout_s": Seconds,
    "evaluation_unhealthy_workers_timeout_s": Seconds | None,
    "evaluation_error_after_n_consecutive_skips": PositiveInt | None,
    "evaluation_num_env_runners": NonNegativeInt,
    "evaluation_config": Annotated[
        Any,
        Rule(
            "a mapping of settings, an AlgorithmConfig or None",
            lambda given: given is None or hasattr(given, "keys"),
        ),
    ],
    "custom_evaluation_function": Callable | None,
}
DEBUGGING = {
    "seed": Annotated[int, Interval(ge=0, le=2**32 - 1)] | None,
    "log_level": Literal["DEBUG", "INFO", "WARN", "WARNING", "ERROR"],
}
REPORTING = {
    "metrics_num_episodes_for_smoothing": PositiveInt,
    "min_time_s_per_iteration": Seconds | None,
    "min_train_timesteps_per_iteration": NonNegativeInt,
    "min_sample_timesteps_per_iteration": NonNegativeInt,
}
FAULT_TOLERANCE = {
    "max_num_env_runner_restarts": NonNegativeInt,
    "delay_between_env_runner_restarts_s": Seconds,
    "env_runner_health_probe_timeout_s": Seconds,
    "env_runner_restore_timeout_s": Seconds,
}
RLLIB_KINDS: dict[str, Any] = {
    **TRAINING,
    **ENV_RUNNERS,
    **LEARNERS,
    **RESOURCES,
    **EVALUATION,
    **DEBUGGING,
    **REPORTING,
    **FAULT_TOLERANCE,
}

# Settings of RLlib without effect here, by section, and why.
_EPISODES = (
    "batches are whole episodes. Use rollouts.episodes_per_iteration, which counts "
    "episodes over all Learners"
)
_SCHEDULES = "it is deprecated. Give the schedule to"
_MOVED = "RLlib has moved it. Use"
_OLD_STACK = "RLlib reads it on its old API stack only. Leave it out"
_ASYNCHRONOUS = "RLlib's asynchronous algorithms alone read it. Leave it out"
_OFFLINE = "policies are evaluated on tasks, also after files. Leave it out"
_TIME_STEPS = (
    "files hold conversations and episodes here, not time steps. Use data.files of "
    "SFT, Pref, RewardModel or GRPO to read them, rollouts.save_episodes to write them"
)
_CONNECTORS = (
    "the connectors between text and tokens are always used. Leave it out, or add "
    "connectors of your own with"
)
WITHOUT_EFFECT: dict[str, dict[str, str]] = {
    "training": {
        "model": "the network is a language model. Use language_model.model",
        "train_batch_size": _EPISODES,
        "train_batch_size_per_learner": (
            "it counts time steps, which are turns here, and batches are whole "
            "episodes. Use rollouts.episodes_per_iteration: about this number times "
            "num_learners, over the turns of an episode"
        ),
        "lr_schedule": f"{_SCHEDULES} training.lr",
        "entropy_coeff_schedule": f"{_SCHEDULES} training.entropy_coeff",
        "shuffle_batch_per_epoch": "minibatches are always shuffled. Leave it out",
        "use_critic": (
            "the algorithm decides. Use GRPO or SFT to train without a critic, LLMPPO "
            "or MARFT to train with one"
        ),
        "use_gae": "LLMPPO and MARFT always estimate advantages so. Leave it out",
        "optimizer": "the optimiser is AdamW. Use training.weight_decay",
        "learner_class": f"{_MOVED} learners.learner_class",
        "learner_connector": f"{_MOVED} learners.learner_connector",
        "add_default_connectors_to_learner_pipeline": f"{_MOVED} it in learners",
        "learner_config_dict": f"{_MOVED} learners.learner_config_dict",
    },
    "env_runners": {
        "rollout_fragment_length": _EPISODES,
        "batch_mode": "batches are whole episodes. Leave it out",
        "sample_timeout_s": (
            "no episode is dropped because its EnvRunner is slow. Use "
            "rollouts.episode_timeout_s, turn_timeout_s or step_timeout_s"
        ),
        "episode_lookback_horizon": "episodes are never cut. Leave it out",
        "episodes_to_numpy": "episodes hold texts of any length. Leave it out",
        "add_default_connectors_to_env_to_module_pipeline": (
            f"{_CONNECTORS} env_runners.env_to_module_connector"
        ),
        "add_default_connectors_to_module_to_env_pipeline": (
            f"{_CONNECTORS} env_runners.module_to_env_connector"
        ),
        "use_env_runner_state_server": _ASYNCHRONOUS,
        "env_runner_state_server_max_concurrency": _ASYNCHRONOUS,
        **dict.fromkeys(
            (
                "compress_observations",
                "create_env_on_local_worker",
                "use_worker_filter_stats",
                "update_worker_filter_stats",
                "exploration_config",
                "sample_collector",
                "remote_worker_envs",
                "remote_env_batch_wait_ms",
                "preprocessor_pref",
                "observation_filter",
                "enable_tf1_exec_eagerly",
                "sampler_perf_stats_ema_coef",
            ),
            _OLD_STACK,
        ),
    },
    "learners": {
        "num_aggregator_actors_per_learner": _ASYNCHRONOUS,
        "max_requests_in_flight_per_aggregator_actor": _ASYNCHRONOUS,
        "max_requests_in_flight_per_learner": _ASYNCHRONOUS,
        "add_default_connectors_to_learner_pipeline": (
            f"{_CONNECTORS} learners.learner_connector"
        ),
    },
    "multi_agent": dict.fromkeys(
        (
            "policy_map_capacity",
            "policy_states_are_swappable",
            "observation_fn",
            "count_steps_by",
        ),
        _OLD_STACK,
    ),
    "resources": {
        "num_gpus": f"{_OLD_STACK}, or use learners.num_gpus_per_learner",
        "_fake_gpus": _OLD_STACK,
    },
    "evaluation": {
        "off_policy_estimation_methods": _OLD_STACK,
        "ope_split_batch_by_episode": _OLD_STACK,
        **dict.fromkeys(
            (
                "offline_evaluation_interval",
                "num_offline_eval_runners",
                "offline_evaluation_type",
                "offline_eval_runner_class",
                "offline_loss_for_module_fn",
                "offline_eval_batch_size_per_runner",
                "dataset_num_iters_per_offline_eval_runner",
                "offline_eval_rl_module_inference_only",
                "num_cpus_per_offline_eval_runner",
                "num_gpus_per_offline_eval_runner",
                "custom_resources_per_offline_eval_runner",
                "offline_evaluation_timeout_s",
                "max_requests_in_flight_per_offline_eval_runner",
                "broadcast_offline_eval_runner_states",
                "validate_offline_eval_runners_after_construction",
                "restart_failed_offline_eval_runners",
                "ignore_offline_eval_runner_failures",
                "max_num_offline_eval_runner_restarts",
                "offline_eval_runner_health_probe_timeout_s",
                "offline_eval_runner_restore_timeout_s",
            ),
            _OFFLINE,
        ),
    },
    "offline_data": dict.fromkeys(
        (
            "input_",
            "offline_data_class",
            "input_read_method",
            "input_read_method_kwargs",
            "input_read_schema",
            "input_read_episodes",
            "input_read_sample_batches",
            "input_read_batch_size",
            "input_filesystem",
            "input_filesystem_kwargs",
            "materialize_data",
            "materialize_mapped_data",
            "map_batches_kwargs",
            "iter_batches_kwargs",
            "ignore_final_observation",
            "prelearner_class",
            "prelearner_buffer_class",
            "prelearner_buffer_kwargs",
            "prelearner_module_synch_period",
            "prelearner_use_recorded_module_states",
            "dataset_num_iters_per_learner",
            "input_config",
            "output",
            "output_config",
        ),
        _TIME_STEPS,
    ),
    "debugging": {"fake_sampler": _OLD_STACK, "log_sys_usage": _OLD_STACK},
    "reporting": {
        "keep_per_episode_custom_metrics": _OLD_STACK,
        "metrics_episode_collection_timeout_s": _OLD_STACK,
    },
    "fault_tolerance": {"num_consecutive_env_runner_failures_tolerance": _OLD_STACK},
}
# Those of them that AlgorithmConfig.update_from_dict passes to fluent methods.
PASSED_BACK = (
    *WITHOUT_EFFECT["multi_agent"],
    "model",
    "optimizer",
    "exploration_config",
    "sample_collector",
)
# Keywords of RLlib before 2.10, and their present names.
RENAMED = {
    "num_sgd_iter": "num_epochs",
    "sgd_minibatch_size": "minibatch_size",
    "lambda": "lambda_",
    "num_workers": "num_env_runners",
    "num_rollout_workers": "num_env_runners",
    "num_envs_per_worker": "num_envs_per_env_runner",
    "num_cpus_per_worker": "num_cpus_per_env_runner",
    "num_gpus_per_worker": "num_gpus_per_env_runner",
    "evaluation_num_workers": "evaluation_num_env_runners",
    "recreate_failed_workers": "restart_failed_env_runners",
}
