"""Settings of ``learners``: RLlib's, sharding, time limit, optimiser offload."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from rllib_llm.algorithms.config.declarations import (
    DeclaredSettings,
    fluent_method,
    setting,
)
from rllib_llm.errors import ConfigError
from rllib_llm.modules.sharding import SHARDING_DEFAULTS, ShardingSettings
from rllib_llm.schema import PositiveFloat


class LearnerSettings(DeclaredSettings):
    """Settings of ``learners``."""

    lm_compile: str | None

    if TYPE_CHECKING:

        @property
        def non_llm_module_ids(self) -> tuple[str, ...]: ...

    learners = fluent_method(
        "Choose the number and devices of Learners, and what each of them holds."
    )

    sharding: Literal["fsdp2"] | None = setting(
        None,
        """"fsdp2": each Learner holds a part of every parameter, gradient and optimiser
        state, and gathers layers while it computes them (torch's FSDP2); None: each
        holds the whole model.""",
    )
    sharding_kwargs: ShardingSettings = setting(
        {},
        """``reshard_after_forward`` (True): free gathered layers after the forward
        pass, and gather them again for the backward pass; ``offload`` (False): keep
        shards, gradients and optimiser in host memory; ``param_dtype`` (None):
        "bfloat16" gathers layers and computes in it, with gradients summed in
        float32.""",
    )
    collective_timeout_s: PositiveFloat = setting(
        1800.0,
        """Seconds that a Learner waits in a collective call for the others; then the
        run ends with an error.""",
    )
    optimizer_offload: bool = setting(
        False,
        """Keep the optimisers' moments and float32 masters in host memory; parts of
        them are copied to the GPU during a step (verl: ``optimizer_offload``). Weights
        stay equal; a step takes longer.""",
    )

    def validate_learners(self) -> None:
        """Check the settings against those of other sections.

        Raises:
            ConfigError: If there is nothing to shard, or something that cannot be.
        """
        if self.sharding is None:
            if self.sharding_kwargs:
                raise ConfigError(
                    f"learners.sharding_kwargs={self.sharding_kwargs!r} would have no "
                    "effect with sharding=None. Set learners.sharding to 'fsdp2', or "
                    "leave sharding_kwargs out."
                )
            return
        given = f"learners.sharding={self.sharding!r}"
        if (self.num_learners or 0) < 2:
            raise ConfigError(
                f"{given} divides parameters among Learners, but num_learners="
                f"{self.num_learners}. Set num_learners to 2 or more, or sharding to "
                "None."
            )
        if self.non_llm_module_ids:
            raise ConfigError(
                f"{given} shards language models; the policies "
                f"{', '.join(self.non_llm_module_ids)} have none. Set sharding to None."
            )
        if self.optimizer_offload:
            raise ConfigError(
                f"{given} keeps an optimiser's state where its shards are, so "
                "optimizer_offload=True would have no effect. Set "
                "learners.sharding_kwargs to {offload: true} instead."
            )
        if self.lm_compile:
            raise ConfigError(
                f"{given} changes layers after language_model.compile="
                f"{self.lm_compile!r} has compiled them. Drop one of the two."
            )

    def complete_sharding_kwargs(self) -> ShardingSettings:
        """Return ``sharding_kwargs`` with defaults."""
        return {**SHARDING_DEFAULTS, **self.sharding_kwargs}
