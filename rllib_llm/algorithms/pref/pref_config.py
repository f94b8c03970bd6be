"""Configuration of Pref."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from annotated_types import Interval
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.utils.annotations import override

from rllib_llm.algorithms.config.check_candidates import MATCH
from rllib_llm.algorithms.config.data import DataSettings, Return
from rllib_llm.algorithms.config.declarations import setting, state
from rllib_llm.algorithms.config.llm_config import LLMConfigMixin
from rllib_llm.algorithms.config.preferences import (
    PreferenceLossMixin,
    PreferencePass,
)
from rllib_llm.algorithms.config.without_effect import (
    OF_POLICY_GRADIENTS,
    refuse_without_effect,
)
from rllib_llm.algorithms.pref.influence_settings import (
    INFLUENCE_DEFAULTS,
    InfluenceGiven,
    validate_influence,
)
from rllib_llm.algorithms.pref.pairs import MATCHES
from rllib_llm.algorithms.scorer.check_scorer import validate_scorer
from rllib_llm.algorithms.scorer.scorer_settings import ScorerSettings
from rllib_llm.assistants.settings import read_assistants
from rllib_llm.components.registry import Spec, bind
from rllib_llm.env_runner.agents import agents_of
from rllib_llm.errors import ConfigError, did_you_mean
from rllib_llm.offline.conversation_files import Parser, parse_labelled, parse_pair
from rllib_llm.offline.demonstrations import play_expert_with_mistakes
from rllib_llm.policy_mapping import mapped_policies
from rllib_llm.schema import Fraction, NonNegativeFloat, OneOf, PositiveInt

if TYPE_CHECKING:
    from rllib_llm.types import PlayableEnv

_UNREAD = (*OF_POLICY_GRADIENTS, "loss_agg_mode", "loss_agg_constant")
_OF_PAIRS = ("match", "margin", "max_pairs_per_task", "expert_episodes")
_SAMPLING = (
    "group_size",
    "rewards",
    "reward_transforms",
    "filters",
    "curriculum",
    "prompt_text",
    "save_episodes",
    "fork",
    "candidates",
    "candidate_scores",
    "scorer_loss",
    *_OF_PAIRS,
    "compared_agent",
    "desirable_return",
    "step_judge",
    "influence",
)
UpToOne = Annotated[float, Interval(gt=0, le=1)]


class PrefConfig(
    ScorerSettings, PreferenceLossMixin, LLMConfigMixin, DataSettings, AlgorithmConfig
):
    """Configuration of :class:`Pref`.

    Example:
        >>> config = (
        ...     PrefConfig()
        ...     .environment("frozen_lake-v0")
        ...     .rollouts(episodes_per_iteration=128, group_size=8)
        ...     .training(lr=1e-4, preference_loss={"name": "dpo", "beta": 0.1})
        ... )
    """

    lr = setting(1e-4)
    group_size = setting(8)
    use_critic = state(False)
    old_logps = setting("engine")

    preference_loss: Spec = setting(
        "dpo",
        """Loss of a pair, or of an episode with a label (kto), by name or as a mapping
        of ``name`` and settings (docs/components.md).""",
    )
    reference: Literal["initial", "current"] = setting(
        "initial",
        """Policy that losses with a reference compare with: "initial", with which the
        run or stage began, or "current", with which the iteration began (online
        iterative DPO), which needs no second copy of the model.""",
    )
    nll_weight: NonNegativeFloat = setting(
        0.0,
        """Weight of the chosen episode's mean negative log-likelihood, added to the
        loss (RPO; TRL ``rpo_alpha``).""",
    )
    turn_discount: UpToOne = setting(
        1.0, "Discount of later turns' log-probabilities, in (0, 1] (DMPO); 1: none."
    )
    match: Annotated[str, OneOf((*MATCHES, "step", MATCH))] = setting(
        "one_to_one",
        """Pairs of a task's episodes, by return: "best_worst" (one pair),
        "one_to_one" (every episode in at most one pair), "all", or "longest_prefix"
        (episodes that differ latest, each in at most one pair). "step": replies at one
        place of forked episodes, by the mean return after each; nothing else of the
        episodes is compared (IPR). "candidates": replies that were sampled at one turn,
        by their scores (SWEET-RL).""",
    )
    after_fork: bool = setting(
        False,
        """Compare only the turns from the first one in which a pair differs (step-DPO);
        earlier ones are context.""",
    )
    compared_agent: str | None = setting(
        None,
        """Agent whose turns are compared, in environments with several agents, by its
        own returns; its policy alone is trained (MPO: plans, by the returns of those
        who follow them).""",
    )
    desirable_return: Return = setting(
        0.0,
        """Return above which a sampled episode is desirable; others are undesirable
        (kto).""",
    )
    expert_episodes: bool = setting(
        False,
        """Compare the expert's episode of every task, too (ETO; with
        match="best_worst" one pair of expert and worst own episode).""",
    )
    margin: NonNegativeFloat = setting(
        0.0,
        """Least difference of a pair's returns, or of its replies' values
        (match="step") or scores (match="candidates"); not included.""",
    )
    max_pairs_per_task: PositiveInt | None = setting(
        None, "Maximum number of pairs of a task; None: no limit."
    )
    step_judge: str | None = setting(
        None,
        """Assistant of rollouts.assistants whose answers about turns are part of the
        values that match="step" compares (Agent Q); None: returns alone.""",
    )
    judge_weight: Fraction = setting(
        0.5, "Share of a reply's value that is the step_judge's, in [0, 1]."
    )
    influence: dict[str, Any] | None = setting(
        None,
        """Choose the pairs of match="step" by value gap and by influence on the return
        of validation tasks (DITS), a dict of ``weight`` (0.5), ``validation_tasks`` (8)
        and ``step_size`` (0.01); None: by value gap.""",
        kind=InfluenceGiven | None,
    )

    def __init__(self, algo_class: type[Any] | None = None):
        if algo_class is None:
            from rllib_llm.algorithms.pref.pref import Pref as algo_class
        super().__init__(algo_class=algo_class)
        self._set_llm_defaults()

    @property
    def preference_pass(self) -> PreferencePass:
        """The loss that the Learner computes; all rows are of its units."""
        return PreferencePass(
            self.build_preference_loss().call,
            compares_labels=self.compares_labels,
            is_current=self.reference == "current",
            nll_weight=self.nll_weight,
            turn_discount=self.turn_discount,
            has_mismatched=self.data_files is not None,
        )

    @property
    def uses_reference(self) -> bool:
        """True if the loss compares with the frozen policy of the beginning."""
        return self.reference == "initial" and self.preference_loss_needs("reference")

    @property
    def scored_old_logps(self) -> str:
        """Those of the current reference are computed before the update."""
        return "learner" if self.reference == "current" else "engine"

    def complete_influence(self) -> InfluenceGiven:
        """Return ``influence`` with defaults."""
        return {**INFLUENCE_DEFAULTS, **cast("InfluenceGiven", self.influence or {})}

    @property
    def row_parser(self) -> Parser:
        """The function that reads the rows of ``data_files``."""
        return parse_labelled if self.compares_labels else parse_pair

    @override(LLMConfigMixin)
    def ahead_obstacles(self) -> list[tuple[bool, str]]:
        why = "is not supported by Pref, which samples in turns. Leave it out."
        return [(True, why)]

    @override(AlgorithmConfig)
    def validate(self) -> None:
        super().validate()
        self.build_preference_loss()
        why = "Pref compares log-probabilities of pairs. Leave it out, or use GRPO."
        refuse_without_effect(self, _UNREAD, why)
        self._refuse_other_comparisons()
        if self.stored_rows(self.row_parser) is not None:
            why = "what is compared comes from data.files. Leave it out."
            refuse_without_effect(self, _SAMPLING, why)
        elif self.group_size < 2 and not self.compares_labels and self.match != MATCH:
            raise ConfigError(
                f"group_size={self.group_size}: a pair needs two episodes of a task. "
                "Use group_size >= 2, or data.files."
            )
        if self.match in ("step", MATCH):
            self._validate_turns()
        self._validate_judge()
        validate_influence(self)
        validate_scorer(self)
        if self.action_head != "generate":
            raise ConfigError(
                f"head={self.action_head!r}: Pref compares tokens. Use head='generate'."
            )
        self._validate_agents()

    def _validate_judge(self) -> None:
        if self.match != "step":
            why = f"match={self.match!r} reads no values of turns. Use match='step'."
            refuse_without_effect(self, ("step_judge", "judge_weight"), why)
        if self.step_judge is None:
            why = "there is no judge. Set step_judge."
            refuse_without_effect(self, ("judge_weight",), why)
            return
        per = read_assistants(self.assistants)[self.step_judge].per
        if per != "turn":
            raise ConfigError(
                f"step_judge={self.step_judge!r} answers about each {per}, and "
                "match='step' compares turns. Set "
                f"rollouts.assistants.{self.step_judge}.per to 'turn'."
            )

    def _validate_turns(self) -> None:
        why = f"match={self.match!r} compares one turn of a pair. Leave it out."
        refuse_without_effect(self, ("after_fork",), why)
        if self.match == "step" and self.fork is None:
            raise ConfigError(
                "match='step' compares replies at one place of forked episodes, but "
                "fork=None. Set rollouts.fork, or another match."
            )
        if self.expert_episodes:
            raise ConfigError(
                "expert_episodes=True: the expert's episode begins at the prompt, and "
                f"match={self.match!r} compares replies at one place. Leave one of the "
                "two out."
            )

    def _refuse_other_comparisons(self) -> None:
        """Refuse settings that this loss does not read."""
        loss = bind("preference_loss", self.preference_loss).component.name
        if self.compares_labels:
            why = f"preference_loss {loss!r} compares no pairs. Leave it out."
            refuse_without_effect(self, (*_OF_PAIRS, "after_fork", "nll_weight"), why)
        else:
            why = f"preference_loss {loss!r} compares pairs. Leave it out, or use kto."
            refuse_without_effect(self, ("desirable_return",), why)
        if not self.preference_loss_needs("reference"):
            why = f"preference_loss {loss!r} has no reference. Leave it out."
            refuse_without_effect(self, ("reference",), why)

    def _validate_agents(self) -> None:
        env = self.make_text_env()
        agents = agents_of(env)
        if agents is None and self.expert_episodes:
            self._try_expert(env)
        env.close()
        if self.compared_agent is not None:
            self._validate_compared_agent(self.compared_agent, agents)
        elif agents is not None or len(self.module_ids) > 1:
            names = ", ".join(agents or self.module_ids)
            raise ConfigError(
                f"Pref compares turns of one agent, not of {names}. Set "
                "compared_agent, or use GRPO or MARFT."
            )

    def _validate_compared_agent(self, agent: str, agents: list[str] | None) -> None:
        if agents is None:
            raise ConfigError(
                f"compared_agent={agent!r}: the environment has one agent. Leave it "
                "out."
            )
        if agent not in agents:
            raise ConfigError(
                f"compared_agent={agent!r}: the environment has no such agent. "
                f"{did_you_mean(agent, agents)}"
            )
        if self.expert_episodes:
            raise ConfigError(
                "expert_episodes=True plays one agent, and compared_agent names one of "
                "several. Leave one of the two out."
            )
        policy = mapped_policies(self, [agent])[agent]
        if self.trained_module_ids != (policy,):
            raise ConfigError(
                f"compared_agent={agent!r}: pairs train its policy {policy!r} alone, "
                f"but trained are {', '.join(self.trained_module_ids)}. Set "
                f"multi_agent.policies_to_train to [{policy}]."
            )

    def _try_expert(self, env: PlayableEnv) -> None:
        """Play an episode of the expert, which not every environment has."""
        if self.rewards or self.reward_transforms:
            raise ConfigError(
                "expert_episodes=True compares the environment's rewards, but "
                "rewards or reward_transforms change those of sampled episodes. Leave "
                "one of the two out."
            )
        try:
            play_expert_with_mistakes(env, seed=0, mistake_rate=0.0)
        except ConfigError as error:
            raise ConfigError(
                "expert_episodes=True needs a scripted expert. Implement "
                "expert_action(), or leave it out."
            ) from error

    @override(AlgorithmConfig)
    def get_default_learner_class(self) -> type[Any]:
        from rllib_llm.algorithms.pref.pref_learner import PrefTorchLearner

        return PrefTorchLearner
