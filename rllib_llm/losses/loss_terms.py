"""Terms added to the policy loss, each times its ``weight``.

A term takes a :class:`~rllib_llm.losses.token_batch.TokenBatch` and returns the loss of
each token, to be minimised [B, T]. It is averaged as the policy loss is. A class may
adapt to an update's statistics in ``end_update(means)`` and keep the result as state.

The KL to the reference is not a term; see the settings ``ref_kl_*``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from rllib_llm.components.registry import component
from rllib_llm.losses._checks import check_choice, check_positive
from rllib_llm.losses.action_distillation import action_divergence
from rllib_llm.losses.kl import kl_k3
from rllib_llm.losses.surrogate import MAX_LOG_RATIO
from rllib_llm.losses.token_batch import TokenBatch, requires


@component(
    "loss_term",
    "entropy",
    paper="Wang et al. 2025, arXiv:2506.01939 (top); Feng et al. 2025, "
    "arXiv:2505.03792 (weights)",
)
@requires("scores", when=lambda settings: settings.get("top", 1.0) < 1.0)
@requires("causal", when=lambda settings: settings.get("weights") == "causal")
def entropy(batch: TokenBatch, *, top: float = 1.0, weights: str = "equal") -> Tensor:
    """Return minus the entropy of all tokens, or of the highest-entropy ones.

    Args:
        batch: Tokens.
        top: Share of the iteration's tokens, those with the highest entropy before the
            update ("forking" tokens), in (0, 1].
        weights: "equal", or "causal": by their effect on the action that the
            environment parses from the reply, which ``scorer: {loss: causal}`` learns.
    """
    check_share("top", top)
    check_choice("weights", weights, ("equal", "causal"))
    loss = -batch.entropy
    if top < 1.0:
        assert batch.entropy_rank is not None  # required above
        loss = loss * (batch.entropy_rank < top)
    if weights == "causal":
        assert batch.causal_weights is not None  # required above
        loss = loss * batch.causal_weights
    return loss


@component("loss_term", "entropy_target", paper="Skywork-OR1 2025, arXiv:2505.22312")
class EntropyTarget:
    """Adapt the entropy bonus so that entropy stays near a target.

    After each update the coefficient grows by ``step`` if the mean entropy was at most
    the target, and shrinks by it otherwise, in [0, largest]. It acts only while entropy
    is at or below the target.

    Args:
        target: Mean entropy to keep, in nats per token, > 0.
        step: Change of the coefficient per update, > 0.
        start: Initial coefficient, >= 0.
        largest: Bound of the coefficient.
    """

    def __init__(
        self,
        *,
        target: float,
        step: float = 0.005,
        start: float = 0.0,
        largest: float = 0.1,
    ):
        check_positive("target", target, "Use e.g. 0.2 nats.")
        check_positive("step", step, "Use e.g. 0.005.")
        if not 0 <= start <= largest:
            raise ValueError(f"start={start} must be in [0, largest={largest}].")
        self.target, self.step, self.largest = target, step, largest
        self._coeff = start
        self._is_low = True

    @property
    def coeff(self) -> float:
        """The coefficient now in force."""
        return self._coeff if self._is_low else 0.0

    def __call__(self, batch: TokenBatch) -> Tensor:
        """Return minus the entropy times the coefficient. [B, T]"""
        return -self.coeff * batch.entropy

    def end_update(self, means: Mapping[str, float]) -> None:
        """Adapt the coefficient to the mean entropy of the update."""
        # Adapted after an update, from its mean: all micro-batches of an update use one
        # coefficient, so the gradient does not depend on how the batch is split.
        self._is_low = means["entropy"] <= self.target
        new_coeff = self._coeff + (self.step if self._is_low else -self.step)
        self._coeff = min(self.largest, max(0.0, new_coeff))

    def get_state(self) -> dict[str, Any]:
        """Return the adapted coefficient."""
        return {"steered": self._coeff, "is_low": self._is_low}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the adapted coefficient."""
        self._coeff, self._is_low = state["steered"], state["is_low"]


@component("loss_term", "kl_cov", paper="Cui et al. 2025, arXiv:2505.22617")
@requires("scores")
def kl_cov(batch: TokenBatch, *, share: float = 2e-3, largest: float = 10.0) -> Tensor:
    """Penalise the KL to the old policy on the tokens that reduce entropy most.

    Args:
        batch: Tokens.
        share: Share of the iteration's tokens, those of the highest covariance of
            log-probability and advantage, in (0, 1].
        largest: Bound on the KL of a token, > 0.
    """
    check_share("share", share)
    # The tokens came from the policy before the update, so the roles are swapped.
    k3 = kl_k3(batch.old_logp, batch.logp, clamp=MAX_LOG_RATIO, largest=largest)
    assert batch.covariance_rank is not None  # required above
    return k3 * (batch.covariance_rank < share)


@component("loss_term", "nll_success", paper="VAPO 2025, arXiv:2504.05118")
@requires("success")
def nll_success(batch: TokenBatch) -> Tensor:
    """Imitate solved episodes; the mean is over their tokens only."""
    assert batch.success is not None  # required above
    solved = batch.success[:, None] == 1.0
    # The Learner divides by all trained tokens. Dividing by the share of solved ones
    # gives the mean over the latter, as in VAPO, also across micro-batches.
    return -batch.logp * solved / max(batch.success_share, 1e-8)


@component(
    "loss_term", "distill", paper="LLM4Teach, Zhou et al. 2023, arXiv:2311.13373"
)
@requires("reference")
def distill(batch: TokenBatch, *, largest: float = 10.0) -> Tensor:
    """Minimise the cross-entropy to a teacher, the frozen initial policy.

    Estimated from the policy's samples: ``-(p_teacher / p_old) log p`` has the mean
    ``-sum_y p_teacher(y) log p(y)`` under ``p_old``. Let its ``weight`` decrease:
    ``[[0, 10.0], [1980, 0.1]]`` is LLM4Teach's schedule.

    Args:
        batch: Tokens.
        largest: Bound of the importance weight, > 0; it biases towards the policy.
    """
    check_positive("largest", largest, "Use e.g. 10.0.")
    # The clamp keeps exp finite; the bound on the weight follows.
    weight = (batch.ref_logp - batch.old_logp).clamp(max=20.0).exp()
    return -weight.clamp(max=largest) * batch.logp


def _has_teacher(name: str) -> Callable[[Mapping[str, Any]], bool]:
    """Return whether ``name`` is the teacher of given settings of distill_actions."""
    return lambda settings: settings.get("teacher", "reference") == name


@component(
    "loss_term",
    "distill_actions",
    paper="LLM4Teach, Zhou et al. 2023, arXiv:2311.13373",
)
@requires("actions")
@requires("reference", when=_has_teacher("reference"))
@requires("expert", when=_has_teacher("expert"))
def distill_actions(
    batch: TokenBatch, *, teacher: str = "reference", direction: str = "forward"
) -> Tensor:
    """Minimise the KL to a teacher, exact over a turn's admissible actions.

    Its gradient in the direction "forward" is that of the cross-entropy of LLM4Teach.
    For ``head="score"``; let its ``weight`` decrease as that of ``distill``.

    Args:
        batch: Tokens.
        teacher: "reference": the frozen reference policy, which ``ref_model`` names;
            "expert": the environment's, reported in ``info["expert_probs"]``.
        direction: "forward": KL(teacher, policy); "reverse": KL(policy, teacher).
    """
    check_choice("teacher", teacher, ("reference", "expert"))
    if (teacher, direction) == ("expert", "reverse"):
        raise ValueError(
            "direction is 'reverse' and teacher is 'expert'. KL(policy, expert) is "
            "infinite wherever the expert never takes an action. Use 'forward'."
        )
    actions = batch.actions
    assert actions is not None  # required above
    of_teacher = actions.reference if teacher == "reference" else actions.expert
    assert of_teacher is not None  # required above
    divergence = action_divergence(actions.logps, of_teacher, direction)
    return actions.at_tokens(divergence, batch.logp)


def check_share(name: str, value: float) -> None:
    """Refuse a share outside (0, 1]."""
    if not 0 < value <= 1:
        raise ValueError(f"{name} is {value}. It must lie in (0, 1], e.g. 0.2.")
