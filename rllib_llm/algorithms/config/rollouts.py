"""Settings of ``rollouts``: episodes, limits, rewards, filters, curricula."""

from __future__ import annotations

from typing import Annotated, Literal

from rllib_llm.algorithms.config.declarations import (
    DeclaredSettings,
    fluent_method,
    setting,
)
from rllib_llm.assistants.settings import AssistantGiven
from rllib_llm.components.registry import Spec, Specs
from rllib_llm.data.types import StopPolicy, StopReason
from rllib_llm.schema import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    OneOf,
    PositiveFloat,
    PositiveInt,
)

Reason = Annotated[str, OneOf(reason.value for reason in StopReason)]
Policy = Annotated[str, OneOf(policy.value for policy in StopPolicy)]

SavedRows = Literal[
    "episodes",
    "best_candidates",
    "corrections",
    "rollbacks",
    "calibrations",
    "expert_replies",
    "self_labels",
]


class RolloutSettings(DeclaredSettings):
    """Settings of ``rollouts``."""

    rollouts = fluent_method("Choose how many episodes are sampled, and their bounds.")

    episodes_per_iteration: PositiveInt = setting(
        64,
        """Episodes per training iteration, over all EnvRunners (verl
        ``train_batch_size`` x ``rollout.n``).""",
    )
    group_size: PositiveInt = setting(
        1,
        """Rollouts per task, sharing seed and options (TRL ``num_generations``); must
        divide episodes_per_iteration.""",
    )
    max_turns: PositiveInt | None = setting(
        None, "Turns after which episodes are truncated, beside the env's limit."
    )
    max_tokens_per_episode: PositiveInt | None = setting(
        None, "Sampled tokens after which they are truncated."
    )
    env_processes: bool = setting(
        False,
        """Run each environment of an EnvRunner in a process of its own (RLlib's
        ``gym_env_vectorize_mode="async"``) instead of a thread: for libraries that
        seed the process-wide random states, or allow only one instance per process.
        Observations, infos and the environment's class must be picklable.""",
    )
    step_timeout_s: PositiveFloat | None = setting(
        60.0, "Longest env.reset/env.step call."
    )
    turn_timeout_s: PositiveFloat | None = setting(
        600.0, "Longest generation of one turn."
    )
    episode_timeout_s: PositiveFloat | None = setting(None, "Longest episode.")
    max_retries: NonNegativeInt = setting(2, "Retries of a dropped episode.")
    max_failed_fraction: Fraction = setting(
        0.1,
        "Share of episodes that may fail for good before training stops with an error.",
    )
    stop_policies: dict[Reason, Policy] = setting(
        {},
        """Stop reason to "train", "bootstrap", "mask" or "drop"; unnamed ones keep
        their defaults (docs/design.md).""",
    )
    row_per_turn: bool = setting(
        False, "One training row per turn instead of merged rows."
    )
    weight_sync: Literal["object_store", "nccl", "ipc"] = setting(
        "object_store",
        """Path of new weights to the engines: "object_store", through main memory and
        EnvRunners; with ``engine="vllm_actor"`` also from the Learners' GPUs directly,
        by vLLM's own weight transfer: "nccl" between GPUs, "ipc" within one.""",
    )
    weight_sync_bucket_mib: PositiveInt | None = setting(
        None,
        """MiB of weights that "nccl" and "ipc" send together, which is also the
        additional memory on each side (twice that with "nccl"). None: 512.""",
    )
    weight_sync_dtype: Literal["bfloat16"] | None = setting(
        None,
        """"bfloat16" halves the size of float32 weights sent to other processes;
        sampling then differs a little from training
        (``train_inference_mismatch_mean``). None sends them unchanged.""",
    )
    assistants: dict[str, AssistantGiven] = setting(
        {},
        """Models or scripts by name, which are asked about sampled episodes; the reward
        ``asked`` and the filter ``asked`` read the answers (docs/assistants.md).""",
    )
    rewards: Specs = setting(
        (),
        """Components whose weighted sum is added to the environment's reward
        (docs/components.md), or functions of a trajectory.""",
    )
    reward_transforms: Specs = setting((), "Transforms of the sum, in order.")
    filters: Specs = setting(
        (), "Filters that drop or mask trajectories before training, in order."
    )
    fork: Spec | None = setting(
        None,
        """Fork rule, which decides where episodes of a group begin at places of others
        (docs/forks.md); group_size counts all of them.""",
    )
    candidates: PositiveInt = setting(
        1,
        """Replies that are sampled at each turn in training; the last one is played,
        the others are kept and scored (docs/candidates.md). 1: no others.""",
    )
    candidate_scores: Specs = setting(
        (),
        """Reward components whose weighted sum scores a conversation up to one of the
        replies at a turn; the environment has received none but the played one.""",
    )
    curriculum: Spec | None = setting(
        None, "Component that changes tasks before they are sampled."
    )
    prompt_text: Spec | None = setting(
        None,
        """Component that adds texts before the first message of episodes, and changes
        them by what episodes show, e.g. ``memory`` (docs/prompt_texts.md).""",
    )
    save_episodes: bool | str = setting(
        False,
        """Write sampled episodes, texts and tokens, into data files that SFT and Pref
        read: a folder, or True for ``episodes`` in the run folder.""",
    )
    save_as: SavedRows = setting(
        "episodes",
        """Rows that are saved. "episodes": whole episodes. "best_candidates": the best
        reply of each turn whose candidates differ in their scores, after the turns
        before it, which are not trained. "corrections": failed episodes up to their
        first wrong turn, which is not trained, continued by a solved one. "rollbacks":
        failed episodes of back-v0 that go back to their first wrong turn and on as a
        solved one; the environment plays them. "calibrations": pairs of a solved and a
        failed continuation of forked episodes after a reply of low value, for Pref.
        "expert_replies": for each turn the conversation before it, which is not
        trained, and the reply of the environment's scripted expert. "self_labels": for
        each task the known answer, after a tool call if it makes it more likely.""",
    )
    correction: str = setting(
        "That was wrong.",
        """Text that begins the reply after a wrong turn: of a correction, a rollback or
        a calibration.""",
    )
    calibration_margin: NonNegativeFloat = setting(
        0.01,
        """Difference from the best value at its place above which a reply is wrong, for
        "calibrations", in units of the return.""",
    )
    call_margin: NonNegativeFloat = setting(
        1.0,
        """Least decrease of the answer's loss by a tool call that is kept, in nats, for
        "self_labels".""",
    )
    answer_template: str = setting(
        "<answer>{answer}</answer>",
        """The reply with the known answer, for "self_labels": a text with {answer}.""",
    )
    save_where: Specs = setting(
        (),
        """Filters of the episodes that are saved, e.g. ``success``; turns that a filter
        masks are saved with ``train: false``, and get no expert's reply.""",
    )
