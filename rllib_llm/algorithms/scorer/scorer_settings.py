"""Settings of ``scorer``: a model that is trained to score, beside the policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

from annotated_types import Interval
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from rllib_llm.algorithms.config.declarations import (
    DeclaredSettings,
    fluent_method,
    setting,
)
from rllib_llm.algorithms.pref.pairs import MATCHES
from rllib_llm.schema import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    OneOf,
    PositiveFloat,
    PositiveInt,
)

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig

VTRACE = "vtrace"
TURN_CRITICS = ("td", "monte_carlo", VTRACE)
CAUSAL = "causal"
PROCESS = "process"
LOSSES = ("pairwise", "outcome", PROCESS, "return", "expert", CAUSAL, *TURN_CRITICS)
SCORES = ("head", "log_ratio")
POOLS = ("last", "sum", "mean")
LABELS = ("soft", "hard")


class ScorerSettings(DeclaredSettings):
    """Settings of ``scorer``."""

    scorer = fluent_method(
        """Train a model that scores episodes, and read its scores.

        Each iteration scores the sampled episodes, then updates the policy, then the
        scorer with the environment's rewards of these episodes. The scores are read by
        the reward ``scorer`` and the advantage estimator ``scorer``.
        """,
        prefix="scorer_",
    )

    scorer_loss: Annotated[str, OneOf(LOSSES)] | None = setting(
        None,
        """None: no scorer. "pairwise": of two episodes of a task the one with the
        higher return has the higher score (Bradley-Terry). "outcome": the score is the
        logit of success. "process": after each turn the score is the logit of success
        from there on, of which forked episodes tell the frequency. "return": the score
        is the return (squared error). "expert":
        the score of each turn is the logit of being the expert's. Turn critics, read by
        the advantage estimator ``turn_critic``: "td": values of places and of turns,
        from one-step targets, also of replayed episodes (ArCHer, IQL). "monte_carlo":
        the value of a place is the probability of success (DigiRL). "vtrace": the value
        of a place under the current policy, also of replayed episodes, by importance
        weights of turns (IMPALA). "causal": a small
        encoder predicts the parsed action from the reply; its weights of tokens are
        read by the loss term ``entropy`` (CoSo).""",
    )
    scorer_scores: Annotated[str, OneOf(SCORES)] = setting(
        "head",
        """"head": scores are read from the last token of each turn. "log_ratio": they
        are ``beta`` times the log-ratio of a turn under the scorer, a language model,
        and under the policy that sampled it (implicit rewards).""",
    )
    scorer_pool: Annotated[str, OneOf(POOLS)] = setting(
        "last",
        """Score of an episode in the loss: that of its "last" turn, which reads the
        whole conversation, or the "sum" or "mean" over its turns.""",
    )
    scorer_privileged: bool = setting(
        False,
        """The scorer reads the right answers of the task, which the policy does not
        see, before the conversation: ``info["gold_answers"]`` (SWEET-RL).""",
    )
    scorer_beta: PositiveFloat = setting(0.05, 'Factor of the scores of "log_ratio".')
    scorer_lr: PositiveFloat = setting(1e-4, "Learning rate of the scorer.")
    scorer_num_epochs: PositiveInt = setting(
        1, "Passes over the episodes of an iteration."
    )
    scorer_minibatch_size: PositiveInt | None = setting(
        None, "Pairs or episodes per optimiser step over all Learners; None: all."
    )
    scorer_warmup_iters: NonNegativeInt = setting(
        0, "Iterations at the start in which only the scorer is trained."
    )
    scorer_iters: PositiveInt | None = setting(
        None, "Iterations after which the scorer is not trained any more; None: never."
    )
    scorer_label_noise: Fraction = setting(
        0.0,
        """Share of labels that are exchanged, chosen at random, to measure the effect
        of wrong ones.""",
    )
    scorer_labels: Annotated[str, OneOf(LABELS)] = setting(
        "soft",
        """Label of a turn with "process": "soft": the share of solved episodes among
        those that go through it. "hard": 1 if any of them was solved.""",
    )
    scorer_match: Annotated[str, OneOf(MATCHES)] = setting(
        "one_to_one", "Pairs of a task's episodes, by return, as in Pref."
    )
    scorer_pair_margin: NonNegativeFloat = setting(
        0.0, "Least difference of the returns of a pair, not included."
    )
    scorer_max_pairs_per_task: PositiveInt | None = setting(
        None, "Maximum number of pairs of a task; None: no limit."
    )

    scorer_gamma: Fraction = setting(0.95, 'Discount per turn of "td" and "vtrace".')
    scorer_clip_rho_threshold: PositiveFloat = setting(
        1.0, 'Largest importance weight of a turn with "vtrace"; RLlib\'s word.'
    )
    scorer_expectile: Annotated[float, Interval(gt=0, lt=1)] = setting(
        0.5,
        """Value of a place with "td": 0.5 the mean of its turns' values, above 0.5 an
        expectile, which approaches that of the best turn (IQL).""",
    )
    scorer_twin: bool = setting(
        True, 'Whether "td" has two estimates of a turn\'s value; the least counts.'
    )
    scorer_tau: Annotated[float, Interval(gt=0, le=1)] = setting(
        0.1,
        """Share of the weights that the target network of "td" takes over after each
        optimiser step; RLlib's word.""",
    )

    scorer_span: PositiveInt = setting(
        4, 'Tokens of a reply that "causal" masks together to see their effect.'
    )
    scorer_num_actions: Annotated[int, Interval(ge=2)] = setting(
        256,
        """Labels of "causal": a parsed action has the label of its hash, so that a few
        may share one.""",
    )

    @property
    def action_labels(self) -> int | None:
        """Number of labels of parsed actions that the scorer learns; None: no such."""
        return self.scorer_num_actions if self.scorer_loss == CAUSAL else None

    @property
    def scores_turns(self) -> bool:
        """True if a scorer is trained that gives scores to turns."""
        return self.uses_scorer and self.scorer_loss != CAUSAL

    @property
    def is_turn_critic(self) -> bool:
        """True if the scorer estimates values of places and turns."""
        return self.scorer_loss in TURN_CRITICS

    @property
    def uses_scorer(self) -> bool:
        """True if a scorer is trained."""
        return self.scorer_loss is not None

    def ahead_obstacles(self) -> list[tuple[bool, str]]:
        """Return conditions under which nothing is sampled ahead, with message ends."""
        why = "is not supported with a scorer. Leave it or scorer out."
        return [*super().ahead_obstacles(), (self.uses_scorer, why)]  # type: ignore[misc]

    @property
    def reads_increments(self) -> bool:
        """True if the score of a turn is by how much it raises the conversation's."""
        of_turns = self.scorer_loss == "expert" or self.is_turn_critic
        return self.scorer_pool == "last" and not of_turns

    def scorer_module_spec(self) -> RLModuleSpec | None:
        """Return the specification of the scorer, None without one."""
        if not self.uses_scorer:
            return None
        config = cast("LLMConfig", self)
        policy = config.get_config_for_module(config.trained_module_ids[0])
        of_actions = self.action_labels is not None
        return (_action_spec if of_actions else _spec)(policy, self)


def _action_spec(config: LLMConfig, settings: ScorerSettings) -> RLModuleSpec:
    """Return the specification of a model that predicts parsed actions."""
    from rllib_llm.envs.spaces import UnicodeText
    from rllib_llm.modules.action_model import ActionRLModule

    of_policy = config.language_model_config()
    return RLModuleSpec(
        module_class=ActionRLModule,
        observation_space=UnicodeText(),
        action_space=UnicodeText(),
        model_config={
            "vocabulary": of_policy["vocabulary"],
            "num_actions": settings.action_labels,
            "init_seed": of_policy["init_seed"],
        },
        learner_only=True,
    )


def _spec(config: LLMConfig, settings: ScorerSettings) -> RLModuleSpec:
    """Return the specification of a scorer that begins with the policy's weights."""
    from rllib_llm.envs.spaces import UnicodeText
    from rllib_llm.modules.scorer import (
        SCORER_CLASSES,
        SCORER_MODULE,
        TURN_CRITIC_CLASSES,
    )

    scores, loss = settings.scorer_scores, settings.scorer_loss or ""
    kind = "mlp" if settings.is_turn_critic else "linear"
    head = {"kind": kind, "detach": False, "bias": True}
    model_config = {
        **config.language_model_config(),
        "lora": None,
        "reference": False,
        "mask_policy": False,
        "module_id": SCORER_MODULE,
        "value_head": head if scores == "head" else None,
        "value_model": "shared",
        "num_q": (1 + settings.scorer_twin) if loss == "td" else 0,
    }
    return RLModuleSpec(
        module_class=TURN_CRITIC_CLASSES.get(loss, SCORER_CLASSES[scores]),
        observation_space=UnicodeText(),
        action_space=UnicodeText(),
        model_config=model_config,
        learner_only=True,
    )
