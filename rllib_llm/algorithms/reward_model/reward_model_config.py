"""Configuration of RewardModel."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.utils.annotations import override

from rllib_llm.algorithms.config.data import DataSettings
from rllib_llm.algorithms.config.declarations import (
    fluent_method,
    setting,
    state,
)
from rllib_llm.algorithms.config.llm_config import LLMConfigMixin
from rllib_llm.algorithms.config.without_effect import (
    OF_POLICY_GRADIENTS,
    refuse_without_effect,
)
from rllib_llm.algorithms.pref.pairs import MATCHES
from rllib_llm.env_runner.agents import agents_of
from rllib_llm.errors import ConfigError
from rllib_llm.modules.gguf_models import is_gguf
from rllib_llm.modules.tiny import BUILT_MODELS
from rllib_llm.offline.conversation_files import parse_pair
from rllib_llm.offline.row_file import RowFile, open_rows
from rllib_llm.schema import Fraction, NonNegativeFloat, OneOf, PositiveInt

_UNREAD = (
    *OF_POLICY_GRADIENTS,
    "loss_agg_mode",
    "loss_agg_constant",
    "loss_mask_pattern",
    "head_chunk_tokens",
    "row_per_turn",
    "lm_value_head",
    "lm_value_head_detach",
    "lm_value_model",
    "evaluation_before_training",
)
_SAMPLING = (
    "group_size",
    "rewards",
    "reward_transforms",
    "filters",
    "curriculum",
    "prompt_text",
    "save_episodes",
    "fork",
    "match",
    "pair_margin",
    "max_pairs_per_task",
)
_OF_PAIRS = ("score_margin", "centering")


class ComparisonData(DataSettings):
    """Settings of ``data`` of reward models."""

    data = fluent_method(
        "Train and evaluate on the rows of data files.", prefix="data_"
    )

    data_held_out: str | list[str] | None = setting(
        None,
        """Files with preference pairs for evaluation, of the same forms. None: pairs of
        episodes of held-out tasks, or no evaluation if ``files`` is set.""",
    )

    def held_out_rows(self) -> RowFile | None:
        """Return the rows of ``data_held_out``; None if there are no files.

        Raises:
            ConfigError: A file or a row cannot be used.
        """
        files = self.data_held_out
        return None if files is None else open_rows(files, parse_pair)


class RewardModelConfig(LLMConfigMixin, ComparisonData, AlgorithmConfig):
    """Configuration of :class:`RewardModel`.

    Example:
        >>> config = (
        ...     RewardModelConfig()
        ...     .environment("frozen_lake-v0")
        ...     .rollouts(episodes_per_iteration=128, group_size=8)
        ...     .training(lr=1e-3, minibatch_size=16, centering=1e-3)
        ... )
    """

    lr = setting(1e-4)
    group_size = setting(8)
    evaluation_before_training = setting(False)
    use_critic = state(False)
    old_logps = setting("engine")

    score_loss: Literal["pairwise", "outcome"] = setting(
        "pairwise",
        """"pairwise": the preferred episode of a pair has the higher score
        (Bradley-Terry). "outcome": the score is the logit of success; of a stored pair
        the chosen side is a success.""",
    )
    score_margin: NonNegativeFloat = setting(
        0.0, "Difference of a pair's scores that the loss asks for."
    )
    centering: NonNegativeFloat = setting(
        0.0,
        """Weight of the sum of a pair's squared scores, which keeps scores near 0 (TRL
        ``center_rewards_coefficient``).""",
    )
    label_noise: Fraction = setting(
        0.0,
        """Share of training labels that are exchanged, chosen at random, to measure the
        effect of wrong comparisons. Held-out pairs keep theirs.""",
    )
    match: Annotated[str, OneOf(MATCHES)] = setting(
        "one_to_one", "Pairs of a task's episodes, by return, as in Pref."
    )
    pair_margin: NonNegativeFloat = setting(
        0.0, "Least difference of the returns of a pair, not included."
    )
    max_pairs_per_task: PositiveInt | None = setting(
        None, "Maximum number of pairs of a task; None: no limit."
    )

    def __init__(self, algo_class: type[Any] | None = None):
        if algo_class is None:
            from rllib_llm.algorithms.reward_model.reward_model import (
                RewardModel as algo_class,
            )
        super().__init__(algo_class=algo_class)
        self._set_llm_defaults()

    @override(LLMConfigMixin)
    def language_model_config(self) -> dict[str, Any]:
        # Without samples there is no policy beside the scores.
        trunk = "shared" if self.data_files is not None else "own"
        return {
            **super().language_model_config(),
            "value_head": {"kind": "linear", "detach": False, "bias": False},
            "value_model": trunk,
            "head_chunk_tokens": None,
        }

    @override(LLMConfigMixin)
    def get_default_rl_module_spec(self) -> RLModuleSpec:
        from rllib_llm.modules.reward_model import RewardRLModule

        return RLModuleSpec(
            module_class=RewardRLModule, model_config=self.language_model_config()
        )

    @override(LLMConfigMixin)
    def ahead_obstacles(self) -> list[tuple[bool, str]]:
        why = "is not supported by RewardModel, which samples in turns. Leave it out."
        return [(True, why)]

    @override(AlgorithmConfig)
    def validate(self) -> None:
        super().validate()
        why = "RewardModel trains scores, not a policy. Leave it out."
        refuse_without_effect(self, _UNREAD, why)
        if self.score_loss == "outcome":
            why = "score_loss='outcome' compares nothing. Leave it out."
            refuse_without_effect(self, _OF_PAIRS, why)
        self.held_out_rows()
        self._check_sources()
        if self.sharding is not None:
            raise ConfigError(
                "sharding is not supported by RewardModel. Leave it out, and train "
                "larger models with LoRA."
            )
        if self.history != "append":
            raise ConfigError(
                f"history={self.history!r}: RewardModel scores whole conversations. "
                "Use history='append'."
            )
        if self.action_head != "generate":
            raise ConfigError(
                f"head={self.action_head!r}: RewardModel scores texts. Use "
                "head='generate'."
            )
        self._require_one_agent()
        self._check_architecture()

    def _check_sources(self) -> None:
        """Check what files replace, and what samples need."""
        if self.stored_rows(parse_pair) is not None:
            why = "the pairs come from data.files. Leave it out."
            refuse_without_effect(self, _SAMPLING, why)
            if self.evaluation_interval and self.data_held_out is None:
                raise ConfigError(
                    "evaluation_interval needs pairs that are not trained on. Set "
                    "data.held_out to files of them, or evaluation_interval to None."
                )
            return
        if self.score_loss == "outcome":
            why = "score_loss='outcome' compares nothing. Leave it out."
            refuse_without_effect(
                self, ("match", "pair_margin", "max_pairs_per_task"), why
            )
        if self.lm_lora:
            raise ConfigError(
                "lora adapts the policy, which samples and stays frozen here. Leave it "
                "out, or train the reward model on data.files."
            )
        if self.group_size < 2:
            raise ConfigError(
                f"group_size={self.group_size}: a pair needs two episodes of a task. "
                "Use group_size >= 2, or data.files."
            )

    def _require_one_agent(self) -> None:
        env = self.make_text_env()
        agents = agents_of(env)
        env.close()
        if agents is not None or len(self.module_ids) > 1:
            names = ", ".join(agents or self.module_ids)
            raise ConfigError(
                f"RewardModel scores episodes of one agent and one policy, not of "
                f"{names}. Use data.files of another environment."
            )

    def _check_architecture(self) -> None:
        """Check now that the trained model can be exported."""
        from rllib_llm.modules.architectures import read_config
        from rllib_llm.modules.classifiers import check_classifier
        from rllib_llm.modules.loading import find_model

        if self.lm_model not in BUILT_MODELS and not is_gguf(self.lm_model):
            model = find_model(self.lm_model, weights_follow=not self.lm_lora)
            check_classifier(read_config(model), model)

    @override(AlgorithmConfig)
    def get_default_learner_class(self) -> type[Any]:
        from rllib_llm.algorithms.reward_model.reward_model_learner import (
            RewardModelTorchLearner,
        )

        return RewardModelTorchLearner
