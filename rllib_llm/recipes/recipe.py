"""Recipes: experiments in YAML, loaded and strictly validated."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllib_llm import yaml_io
from rllib_llm.algorithms.config.sections import SECTIONS, apply_section, suggestion
from rllib_llm.algorithms.registry import ALGORITHMS
from rllib_llm.callbacks.metric_names import check_metric_name
from rllib_llm.errors import ConfigError
from rllib_llm.recipes import search_spaces
from rllib_llm.recipes.boundary import errors_as_config_error
from rllib_llm.recipes.environment_field import environment_of, is_mixture
from rllib_llm.recipes.expectations import check_expectations
from rllib_llm.recipes.loggers import check_loggers, require_loggers
from rllib_llm.recipes.names import check_run_name, find_recipe
from rllib_llm.recipes.overrides import apply_overrides
from rllib_llm.recipes.rllib_yaml import from_rllib_yaml, is_rllib_yaml
from rllib_llm.recipes.stages import (
    STAGES,
    override_stages,
    recipes_of_stages,
    stages_as_list,
    stages_by_name,
)
from rllib_llm.recipes.tune_settings import check_search, check_tune, paths_searched
from rllib_llm.runs.folders import stage_folder
from rllib_llm.schema import PositiveFloat, require, show

if TYPE_CHECKING:
    from ray.tune import Tuner

    from rllib_llm.types import LLMConfig

FIELDS = (
    "name",
    "description",
    "algo",
    "env",
    "env_config",
    *SECTIONS,
    "seed",
    "stop",
    "expect",
    "tune",
    "loggers",
    STAGES,
)
TRAINING_ITERATION = "training_iteration"
# Recorded in a run's recipe.yaml; ignored when that file is loaded.
VERSIONS = "versions"


@dataclasses.dataclass
class Recipe:
    """One experiment, as loaded by :func:`load_recipe`.

    Attributes:
        name: Name of the recipe; run folders begin with it.
        algo: Registered name of the algorithm.
        config: The algorithm's config, search spaces included.
        stop: Result keys (nested with ``/``) to the value that ends a trial.
        expect: Result keys to ``{"min": .., "max": ..}`` of the last reported value.
        tune: Settings of Tune, defaults included.
        loggers: Settings of loggers by name; see :mod:`rllib_llm.recipes.loggers`.
        resolved: The recipe's fields after translation and overrides; loadable.
        earlier_stages: Folders of the episodes that earlier stages save, by their
            names; None before they have run.
    """

    name: str
    algo: str
    config: LLMConfig
    stop: dict[str, float]
    expect: dict[str, dict[str, float]]
    tune: dict[str, Any]
    loggers: dict[str, dict[str, Any]]
    resolved: dict[str, Any]
    earlier_stages: dict[str, str | None] = dataclasses.field(default_factory=dict)

    @property
    def description(self) -> str:
        """The ``description`` of the recipe."""
        return self.resolved.get("description", "")

    @property
    def stages(self) -> list[Recipe]:
        """The recipe itself as its only stage; see :attr:`StagedRecipe.stages`."""
        return [self]

    @property
    def has_search(self) -> bool:
        """True if any setting is a search space."""
        return search_spaces.has_space(self.resolved)

    @property
    def total_iterations(self) -> float | None:
        """Training iterations per trial, if ``stop`` bounds them."""
        return self.stop.get(TRAINING_ITERATION)

    def build_config(
        self, values: Callable[[Any], Any] = search_spaces.to_tune
    ) -> Any:  # AlgorithmConfig
        """Return a new config object.

        Args:
            values: Replaces search spaces, see :mod:`rllib_llm.recipes.search_spaces`:
                ``to_tune`` (by Tune's objects), ``first_of`` or ``last_of`` (by one
                value each).
        """
        config = _build_config(self.resolved, values)
        config.earlier_stages = dict(self.earlier_stages)
        return config

    def validate(self) -> None:
        """Check every setting and reset the environment once.

        Each value of a search space is checked (of a range, both bounds), but not every
        combination of values.

        Raises:
            ConfigError: A setting is invalid.
        """
        with errors_as_config_error(self.name):
            self._validate()

    def _validate(self) -> None:
        require_loggers(self.loggers)
        for key in self.stop:
            check_metric_name(key, "stop")
        for key in self.expect:
            check_metric_name(key, "expect")
        if self.tune["metric"] is not None:
            check_metric_name(self.tune["metric"], "tune.metric")
        self._check_all_spaces_are_seen()
        for n in range(max(1, search_spaces.most_values(self.resolved))):
            config = self.build_config(search_spaces.nth_of(n))
            config.validate()
            for env in config.make_each_env().values():
                # Environments read some of their options only in reset().
                env.reset(seed=0, options={"split": "train"})
                env.close()

    def _check_all_spaces_are_seen(self) -> None:
        """Reject search spaces in settings whose values Tune does not search."""
        paths = paths_searched(self.resolved)
        seen = search_spaces.count_in_config(self.build_config().to_dict())
        if seen < len(paths):
            raise ConfigError(
                f"Of the search spaces at {', '.join(paths)} Tune would see {seen}: "
                "the others are inside a setting that is converted to an object, such "
                "as multi_agent.policy_mapping_fn. Search multi_agent.sharing_mode "
                "instead, or run one recipe for each value."
            )

    def tuner(self, storage_path: str | Path | None = None, **kwargs: Any) -> Tuner:
        """Return a Tuner that runs this recipe, as ``rllib-llm train`` does.

        Args:
            storage_path: Parent of the run folder; None: see
                :func:`rllib_llm.runs.folders.default_storage`.
            kwargs: See :func:`rllib_llm.recipes.tuning.make_tuner`.
        """
        from rllib_llm.recipes.tuning import make_tuner

        return make_tuner(self, storage_path, **kwargs)


@dataclasses.dataclass
class StagedRecipe:
    """A sequence of recipes; each starts from the weights of the one before.

    Attributes:
        name: Name of the recipe; run folders begin with it.
        stages: The recipes in their order.
        stage_names: Their names.
        resolved: The fields of the whole recipe after overrides; loadable.
    """

    name: str
    stages: list[Recipe]
    stage_names: list[str]
    resolved: dict[str, Any]

    @property
    def description(self) -> str:
        """The ``description`` of the recipe."""
        return self.resolved.get("description", "")

    @property
    def folders(self) -> list[str]:
        """Names of the stages' folders inside the run folder, e.g. ``1_sft``."""
        return [stage_folder(i, name) for i, name in enumerate(self.stage_names)]

    def validate(self) -> None:
        """Check every stage, and that each can load the weights of the one before.

        Raises:
            ConfigError: A stage is invalid; the message has its name.
        """
        from rllib_llm.algorithms.driver.init_from_checkpoint import check_initialisable

        previous = None
        for name, stage in zip(self.stage_names, self.stages, strict=True):
            with _prefixed(f"stage {name!r}"):
                stage.validate()
                config = stage.build_config()
                config.validate()
                if previous is not None:
                    check_initialisable(previous, config)
            previous = config

    def run(self, storage_path: str | Path | None = None, **kwargs: Any) -> list[Any]:
        """Run the stages; see :func:`rllib_llm.recipes.run_stages.run_stages`."""
        from rllib_llm.recipes.run_stages import run_stages

        return run_stages(self, storage_path, **kwargs)


@contextlib.contextmanager
def _prefixed(prefix: str) -> Iterator[None]:
    """Prefix the message of any ConfigError."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{prefix}: {error}") from error


def load_recipe(
    name_or_path: str | Path, overrides: Iterable[str] = ()
) -> Recipe | StagedRecipe:
    """Load a shipped recipe by name, or any recipe by path.

    Args:
        name_or_path: E.g. ``"frozen_lake_ppo"`` or ``"my/recipe.yaml"``.
        overrides: Overrides of the file, e.g. ``["training.lr=2e-5", "seed=3"]``.

    Returns:
        The recipe, all names in it checked. :meth:`Recipe.validate` checks the values.

    Raises:
        ConfigError: A recipe, field, section or key is unknown.

    Example:
        >>> recipe = load_recipe("frozen_lake_ppo", ["seed=3"])
        >>> recipe.config.lr, recipe.resolved["seed"]
        (0.0002, 3)
        >>> results = recipe.tuner().fit()  # doctest: +SKIP
    """
    path = find_recipe(name_or_path)
    with errors_as_config_error(path.name), _prefixed(path.name):
        return recipe_from_dict(yaml_io.read(path), path.stem, overrides)


def recipe_from_dict(
    data: object, name: str = "recipe", overrides: Iterable[str] = ()
) -> Recipe | StagedRecipe:
    """Return the recipe described by ``data`` (parsed YAML)."""
    if not isinstance(data, dict):
        raise ConfigError(
            f"A recipe must be a mapping of fields, not {type(data).__name__}, e.g. "
            "{algo: LLMPPO, env: frozen_lake-v0, stop: {training_iteration: 100}}."
        )
    if is_rllib_yaml(data):
        data = from_rllib_yaml(data)
    data = {k: v for k, v in data.items() if k != VERSIONS}
    if data.get(STAGES) is not None:
        return _staged(data, name, overrides)
    return _single(apply_overrides(data, overrides), name)


def _staged(data: dict[str, Any], name: str, overrides: Iterable[str]) -> StagedRecipe:
    data = override_stages(stages_by_name(data), overrides)
    _check_field_names(data)
    data.setdefault("name", name)
    check_run_name(data["name"])
    stages = []
    saving: dict[str, str | None] = {}
    for stage, merged in recipes_of_stages(data, str(data["name"])).items():
        with _prefixed(f"stage {stage!r}"):
            recipe = _single(merged, stage)
            _refuse_search(recipe)
            recipe.earlier_stages = dict(saving)
            stages.append(recipe)
        if recipe.config.save_episodes is True:
            saving[stage] = None
    listed = stages_as_list(data)
    resolved = {k: listed[k] for k in FIELDS if listed.get(k) is not None}
    return StagedRecipe(str(data["name"]), stages, list(data[STAGES]), resolved)


def _refuse_search(recipe: Recipe) -> None:
    if recipe.has_search or recipe.tune["num_samples"] != 1:
        raise ConfigError(
            "a stage must be a single trial, otherwise the next stage cannot tell "
            "which checkpoint to load. Remove the search spaces and tune.num_samples; "
            "tune this stage in its own recipe and copy the result."
        )


def _single(data: dict[str, Any], name: str) -> Recipe:
    _check_fields(data)
    resolved = {k: data[k] for k in FIELDS if data.get(k) is not None}
    resolved.setdefault("name", name)
    check_run_name(resolved["name"])
    require("description", resolved.get("description", ""), str)
    tune = check_tune(resolved.get("tune"))
    check_search(tune, resolved)
    return Recipe(
        name=str(resolved["name"]),
        algo=resolved["algo"],
        config=_build_config(resolved, search_spaces.to_tune),
        stop=_check_stop(resolved.get("stop")),
        expect=check_expectations(resolved.get("expect")),
        loggers=check_loggers(resolved.get("loggers")),
        tune=tune,
        resolved=resolved,
    )


def _check_field_names(data: dict[str, Any]) -> None:
    for key in data:
        if key not in FIELDS:
            raise ConfigError(
                f"Unknown field {show(key, 60)}. {suggestion(str(key)[:60], FIELDS)}"
                f"Fields of a recipe: {', '.join(FIELDS)}."
            )


def _check_fields(data: dict[str, Any]) -> None:
    _check_field_names(data)
    for key, example in (("algo", "LLMPPO"), ("env", "frozen_lake-v0")):
        if data.get(key) is None:
            raise ConfigError(f"The field {key!r} is missing, e.g. {key}: {example}.")
        if key == "env" and is_mixture(data[key]):
            continue
        if not isinstance(data[key], str):
            raise ConfigError(
                f"{key}: {show(data[key])} must be one name, e.g. {key}: {example}. "
                "For several, start one run each."
            )


def _build_config(resolved: dict[str, Any], values: Callable[[Any], Any]) -> Any:
    config = ALGORITHMS.get(resolved["algo"]).config_class()()
    env, env_config = environment_of(resolved)
    hint = "It maps the environment's options to values; those can be search spaces."
    if search_spaces.is_space(env_config):
        raise ConfigError(f"env_config={show(env_config)} must be a mapping. {hint}")
    require("env_config", env_config, dict[str, Any], hint)
    config.environment(env, env_config=values(env_config))
    for section in SECTIONS:
        apply_section(config, section, values(resolved.get(section)))
    if "seed" in resolved:
        config.debugging(seed=values(resolved["seed"]))
    return config


def _check_stop(stop: object) -> dict[str, float]:
    if not isinstance(stop, dict) or not stop:
        raise ConfigError(
            "The field 'stop' is missing, so the run would not end. Set e.g. "
            "stop: {training_iteration: 100}."
        )
    hint = (
        "A trial ends when a result reaches its bound. Separate nested keys with '/', "
        "e.g. env_runners/episode_return_mean."
    )
    require("stop", stop, dict[str, float], hint)
    if TRAINING_ITERATION in stop:
        require(f"stop.{TRAINING_ITERATION}", stop[TRAINING_ITERATION], PositiveFloat)
    return dict(stop)
