"""Settings of ``replay``: own earlier episodes beside those of the iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from ray.rllib.core import DEFAULT_MODULE_ID

from rllib_llm.algorithms.config.declarations import (
    DeclaredSettings,
    fluent_method,
    setting,
)
from rllib_llm.algorithms.config.rllib_kinds import Schedule
from rllib_llm.algorithms.config.schedules import value_at
from rllib_llm.algorithms.config.without_effect import refuse_without_effect
from rllib_llm.components.registry import Spec, Specs
from rllib_llm.errors import ConfigError
from rllib_llm.filters.apply import Filters
from rllib_llm.offline.episode_store import DRAWS
from rllib_llm.schema import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    OneOf,
    PositiveInt,
)

if TYPE_CHECKING:
    from rllib_llm.algorithms.grpo.grpo import GRPOConfig
    from rllib_llm.losses.composed_loss import ComposedLoss

# Over the iteration's sampled rows, which replayed ones are not part of.
_SAMPLED_ONLY = ("scores", "success")


class ReplaySettings(DeclaredSettings):
    """Settings of ``replay``."""

    replay = fluent_method(
        "Learn from episodes of earlier iterations, too.", prefix="replay_"
    )

    replay_episodes_per_iteration: NonNegativeInt = setting(
        0, "Earlier episodes that join each update; 0: none."
    )
    replay_capacity_tokens: PositiveInt = setting(
        1_000_000,
        "Tokens of the episodes that are kept, on disk; the oldest leave first.",
    )
    replay_max_age: PositiveInt | None = setting(
        5, "Iterations after which an episode is no longer used; None: no limit."
    )
    replay_keep: Specs = setting(
        (), "Filters of the episodes that are kept, e.g. ``success``."
    )
    replay_keep_masked: bool = setting(
        False,
        """Keep the episodes that ``rollouts.filters`` mask (``effect: mask``), in place
        of those that are trained; replayed, they are trained.""",
    )
    replay_probability: Fraction | Schedule = setting(
        1.0,
        """Probability that an iteration replays episodes: a number, or pairs
        ``[[0, value], [iteration, value], ...]``, interpolated linearly.""",
    )
    replay_alone: bool = setting(
        False,
        """An iteration that replays episodes learns from these in place of sampled ones
        (RoRecomp's compensation batches).""",
    )
    replay_positive_only: bool = setting(
        False,
        """Use only episodes whose advantage is positive (self-imitation learning, Oh
        et al. 2018), when they are kept and when they are drawn.""",
    )
    replay_draw: Annotated[str, OneOf(DRAWS)] = setting(
        "uniform",
        """"uniform", "recency" (the newest), "task_balanced" (equally many of each
        task) or "priority" (by the magnitude of advantages).""",
    )
    replay_alpha: NonNegativeFloat = setting(
        1.0, 'Exponent of priorities with "priority", as of RLlib\'s replay buffers.'
    )
    replay_min_perplexity: NonNegativeFloat | None = setting(
        None,
        """Drawn episodes whose perplexity under the current policy is lower do not join
        the update: they are known already (WebRL: 1 / 0.95). None: no bound.""",
    )
    replay_max_perplexity: NonNegativeFloat | None = setting(
        None,
        """Drawn episodes whose perplexity is higher do not join the update: they are
        too far from the policy (WebRL: 1 / 0.5). None: no bound.""",
    )
    replay_advantages: Literal["stored", "rebased"] = setting(
        "stored",
        """"stored": those of the iteration that sampled the episode. "rebased": its
        return minus the median of the recent groups' mean returns (SPEAR).""",
    )
    replay_window: PositiveInt = setting(
        256, 'Groups in the median of "rebased", per agent.'
    )
    replay_old_logps: Literal["engine", "learner"] = setting(
        "engine",
        """Old log-probabilities of replayed tokens. "engine": those recorded while
        sampling, so that the ratio is to the policy that sampled. "learner": those
        before the update; the ratio of the two weights the advantages, truncated at
        ``tis_clip`` (decoupled objective).""",
    )
    replay_loss: Spec | None = setting(
        None, "Policy loss of replayed tokens; None: the one of sampled tokens."
    )
    replay_coeff: NonNegativeFloat | Schedule = setting(
        1.0,
        """Weight of their mean loss beside that of sampled tokens: a number, or pairs
        ``[[0, value], [update, value], ...]``, interpolated linearly.""",
    )

    @property
    def uses_replay(self) -> bool:
        """True if earlier episodes join the updates."""
        return bool(self.replay_episodes_per_iteration)

    @property
    def bounds_perplexity(self) -> bool:
        """True if drawn episodes join only within bounds of their perplexity."""
        bounds = (self.replay_min_perplexity, self.replay_max_perplexity)
        return bounds != (None, None)

    def replay_coeff_at(self, update: int) -> float:
        """Return the weight of replayed tokens' loss in an update, from 0."""
        return value_at(self.replay_coeff, update)

    def build_replay_loss(self) -> ComposedLoss:
        """Return the policy loss of replayed tokens; empty: that of sampled tokens."""
        from rllib_llm.losses.composed_loss import ComposedLoss

        return ComposedLoss(self.replay_loss)


def validate_replay(config: GRPOConfig) -> None:
    """Check the settings of ``replay``.

    Raises:
        ConfigError: If one is wrong or would have no effect.
    """
    if not config.uses_replay:
        names = set(ReplaySettings._declared) - {"replay_episodes_per_iteration"}
        why = "nothing is replayed. Set replay.episodes_per_iteration."
        refuse_without_effect(config, tuple(sorted(names)), why)
        return
    if config.replay_draw != "priority":
        why = "it is for replay.draw='priority'. Leave it out."
        refuse_without_effect(config, ("replay_alpha",), why)
    if config.replay_advantages != "rebased":
        why = "it is for replay.advantages='rebased'. Leave it out."
        refuse_without_effect(config, ("replay_window",), why)
    Filters(config.replay_keep, turns_may_be_masked=False).try_out()
    _check_probability(config)
    _check_masked(config)
    _check_perplexity(config)
    _check_loss(config)


def _check_probability(config: GRPOConfig) -> None:
    given = config.replay_probability
    values = [given] if isinstance(given, int | float) else [p for _, p in given]
    if not all(0 <= p <= 1 for p in values):
        raise ConfigError(
            f"replay.probability={given!r}: values must be in [0, 1]. Use e.g. 0.2."
        )
    if not any(values):
        raise ConfigError(
            f"replay.probability={given!r} never replays. Raise it, or set "
            "replay.episodes_per_iteration to 0."
        )
    if config.replay_alone and all(p == 1 for p in values):
        raise ConfigError(
            "replay.alone=True lets an iteration learn from replayed episodes alone, "
            f"which replay.probability={given!r} makes of every iteration: sampled "
            "episodes would never be learned from. Lower replay.probability."
        )


def _check_masked(config: GRPOConfig) -> None:
    if not config.replay_keep_masked:
        return
    specs = config.component_specs().values()
    if not any(b.effect == "mask" for s in specs for b in Filters(s.filters).bound):
        raise ConfigError(
            "replay.keep_masked=True keeps the episodes that filters mask, but "
            "rollouts.filters has none that does. Add one with effect: mask, e.g. "
            "{name: priority, effect: mask}."
        )


def _check_perplexity(config: GRPOConfig) -> None:
    if not config.bounds_perplexity:
        return
    low, high = config.replay_min_perplexity, config.replay_max_perplexity
    if high is not None and high <= max(low or 0.0, 1.0):
        raise ConfigError(
            f"replay.max_perplexity={high!r} lets no episode join: perplexities are "
            f"at least 1, and replay.min_perplexity is {low!r}. Raise it, e.g. to 2.0."
        )
    if list(config.sampled_module_ids) != [DEFAULT_MODULE_ID]:
        raise ConfigError(
            "replay.min_perplexity and max_perplexity read the scores of one "
            f"policy, but there are {', '.join(config.sampled_module_ids)}. Let all "
            "agents share a policy, or leave the two out."
        )


def _check_loss(config: GRPOConfig) -> None:
    loss = config.build_replay_loss()
    loss.try_out()
    for need in loss.needs.intersection(_SAMPLED_ONLY):
        raise ConfigError(
            f"replay.loss={config.replay_loss!r} compares the sampled tokens of an "
            f"iteration ({need}), which replayed ones are not part of. Use another."
        )
    if config.replay_old_logps == "learner" and "unweighted" in loss.needs:
        raise ConfigError(
            f"replay.loss={config.replay_loss!r} is not linear in the advantages, "
            "which replay.old_logps='learner' weighs. Set it to 'engine'."
        )
